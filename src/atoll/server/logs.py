"""The logs of a served node: one event per line, with named fields, as JSON or for people."""

from __future__ import annotations

import logging
import sys
import traceback
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, TextIO

import structlog
from structlog.typing import EventDict, Processor

from atoll.server.log_values import plain_field, plain_text, plain_traceback
from atoll.server.settings import LogSettings

# They bring handlers of their own.
_WITH_HANDLERS = ("uvicorn", "uvicorn.access", "uvicorn.error", "sqlalchemy")
# Below a warning these tell every statement with its values, or how they begin.
_TALKATIVE = ("aiosqlite", "alembic", "sqlalchemy")
_NAMES_OF_RECORD = {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"}
# The console's renderer puts `exception` and `stack` on lines of their own.
_OWN_NAMES = {"timestamp", "level", "logger", "event", "traceback", "called", "exception", "stack"}
# uvicorn's message once more, with colours.
_LEFT_OUT = {"color_message"}


def configure_logs(settings: LogSettings, stream: TextIO | None = None) -> None:
    """Send all that this process logs through one handler to `stream`, else to standard error."""
    handler = _Lines(stream or sys.stderr)
    handler.setFormatter(_make_formatter(settings, handler.stream))
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(settings.level.upper())
    for name in _WITH_HANDLERS:
        logging.getLogger(name).handlers = []
        logging.getLogger(name).propagate = True
    for name in _TALKATIVE:
        logging.getLogger(name).setLevel(logging.WARNING)


class _Lines(logging.StreamHandler[TextIO]):
    """Writes one event a line, and nothing else where there is no room for one."""

    def handleError(self, record: logging.LogRecord) -> None:
        """Leave out what the disk does not take: the traceback that would be printed instead goes to the same place."""
        if not isinstance(sys.exception(), OSError):
            super().handleError(record)


def _make_formatter(settings: LogSettings, stream: TextIO) -> logging.Formatter:
    is_terminal = stream.isatty()
    for_people = settings.format == "console" or (settings.format == "auto" and is_terminal)
    render: Processor = (
        structlog.dev.ConsoleRenderer(colors=is_terminal, pad_event_to=0, sort_keys=False)
        if for_people
        else structlog.processors.JSONRenderer()
    )
    return structlog.stdlib.ProcessorFormatter(processors=[_take_fields, render])


def _take_fields(logger: object, method: str, event: EventDict) -> EventDict:
    """Return everything a record tells, each value fit for one line."""
    record: logging.LogRecord = event["_record"]
    fields: dict[str, Any] = {
        "timestamp": _timestamp(record.created),
        "level": record.levelname.lower(),
        "logger": plain_text(record.name),
        "event": plain_text(event["event"]),
    }
    for name, value in vars(record).items():
        if name not in _NAMES_OF_RECORD and name not in _LEFT_OUT:
            # A field must not pass for one that the record itself has.
            shown = f"{name}_" if name in _OWN_NAMES else plain_text(name)
            fields[shown] = plain_field(name, value)
    if exc_info := event.get("exc_info"):
        fields["traceback"] = plain_traceback(_format_exception(exc_info))
    if stack := event.get("stack_info"):
        fields["called"] = plain_traceback(stack)
    return fields


def _timestamp(seconds: float) -> str:
    moment = datetime.fromtimestamp(seconds, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


_ExcInfo = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]


def _format_exception(exc_info: _ExcInfo) -> str:
    return "".join(traceback.format_exception(*exc_info))
