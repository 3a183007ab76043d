"""Logs: one event per line whatever a sandbox chose as its name, no secrets, nothing without end."""

from __future__ import annotations

import io
import json
import logging
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.server.log_values import escape, plain
from atoll.server.logs import configure_logs
from atoll.server.settings import LogSettings

pytestmark = pytest.mark.any_user

FORMATS: tuple[Literal["json", "console"], ...] = ("json", "console")
EVIL = {
    "colour": "\x1b[31mred\x1b[0m",
    "title": "\x1b]0;title\x07",
    "line": 'name\n{"event": "sandbox.created", "forged": true}',
    "return": "good\rbad",
    "zero": "a\x00b",
    "erase": "\x7f\x08\x08",
    "control": "\x85\x9b31m",
    "separators": "a\u2028b\u2029c",
    "direction": "\u202egpj.exe\u2066\u2069",
    "invisible": "a\u200bb\ufeff",
    "surrogate": "\ud800\udc80",
    "space": "\x0b\x0c\x1c\x1d\x1e",
}
SECRETS = {
    "password": "hunter2hunter2",
    "api_key": "hunter2hunter2",
    "Authorization": "hunter2hunter2",
    "session_token": "hunter2hunter2",
    "key": "hunter2hunter2",
    "CLIENT_SECRET": "hunter2hunter2",
    "url": "postgresql://atoll:hunter2hunter2@localhost/atoll",
    "path": "/sandboxes?limit=3&access_token=hunter2hunter2&a=b",
    "header": "Authorization: Bearer hunter2hunter2",
    "object": "Settings(name='a', password='hunter2hunter2')",
    "env": {"OPENAI_API_KEY": "hunter2hunter2", "deep": [{"cookie": "hunter2hunter2"}]},
    "deepest": {"a": {"b": {"c": {"d": {"e": {"password": "hunter2hunter2"}}}}}},
}
log = logging.getLogger("atoll.tests")


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    names = ("", "uvicorn", "uvicorn.access", "uvicorn.error", "sqlalchemy", "alembic", "aiosqlite")
    loggers = [logging.getLogger(name) for name in names]
    before = [(each.handlers, each.level, each.propagate) for each in loggers]
    # As in a new process: a server that ran in this one before has silenced some.
    for each in loggers[1:]:
        each.handlers, each.level, each.propagate = [], logging.NOTSET, True
        each.manager._clear_cache()  # type: ignore[attr-defined]
    yield
    for each, (handlers, level, propagate) in zip(loggers, before, strict=True):
        each.handlers, each.level, each.propagate = handlers, level, propagate
        each.manager._clear_cache()  # type: ignore[attr-defined]


@pytest.fixture(params=FORMATS)
def output(request: pytest.FixtureRequest) -> io.StringIO:
    stream = io.StringIO()
    configure_logs(LogSettings(format=request.param), stream)
    return stream


@pytest.fixture
def json_output() -> io.StringIO:
    stream = io.StringIO()
    configure_logs(LogSettings(format="json"), stream)
    return stream


def only_event(stream: io.StringIO) -> dict[str, Any]:
    [line] = stream.getvalue().splitlines()
    event: dict[str, Any] = json.loads(line)
    return event


def assert_harmless(text: str) -> None:
    assert text.endswith("\n")
    assert text[:-1].isprintable(), ascii(text)
    text.encode()


def test_an_event_has_its_name_and_fields(json_output: io.StringIO) -> None:
    log.info("sandbox.created", extra={"sandbox": "abc", "seconds": 0.25, "warm": True})
    event = only_event(json_output)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", event.pop("timestamp"))
    assert event == {
        "level": "info",
        "logger": "atoll.tests",
        "event": "sandbox.created",
        "sandbox": "abc",
        "seconds": 0.25,
        "warm": True,
    }


def test_people_read_the_same_in_one_line() -> None:
    stream = io.StringIO()
    configure_logs(LogSettings(format="console"), stream)
    log.info("sandbox.created", extra={"sandbox": "abc", "reason": "two words"})
    [line] = stream.getvalue().splitlines()
    for part in ("info", "sandbox.created", "atoll.tests", "sandbox=abc", "reason='two words'"):
        assert part in line


@pytest.mark.parametrize("evil", EVIL.values(), ids=EVIL)
def test_no_value_acts_on_who_reads_it(output: io.StringIO, evil: str) -> None:
    for record in (
        {
            "name_": evil,
            "labels": {evil: [evil, {evil: evil}]},
            "data": evil.encode(errors="replace"),
        },
        {evil: "a name of a field"},
        {"exception": evil, "stack": evil, "traceback": evil, "event": evil},
    ):
        output.seek(0)
        output.truncate()
        log.info("sandbox.created", extra=record)
        assert_harmless(output.getvalue())


@pytest.mark.parametrize("evil", EVIL.values(), ids=EVIL)
def test_no_message_of_a_library_acts_on_who_reads_it(output: io.StringIO, evil: str) -> None:
    logging.getLogger("uvicorn.access").info('"GET %s" 200', evil)
    assert_harmless(output.getvalue())


@pytest.mark.parametrize("evil", EVIL.values(), ids=EVIL)
def test_an_exception_is_one_field(output: io.StringIO, evil: str) -> None:
    try:
        raise ValueError(evil)
    except ValueError:
        log.exception("sandbox.failed", stack_info=True)
    assert_harmless(output.getvalue())
    assert "test_an_exception_is_one_field" in output.getvalue()


@given(st.text(st.characters(exclude_categories=())))
def test_an_escaped_text_is_one_harmless_line(text: str) -> None:
    escaped = escape(text)
    assert escaped.isprintable()
    assert escaped.splitlines() in ([], [escaped])
    if text.isprintable():
        assert escaped == text


def test_a_traceback_names_the_error_and_keeps_its_end(json_output: io.StringIO) -> None:
    try:
        raise ValueError("x" * 50_000 + "the end")
    except ValueError:
        log.exception("sandbox.failed")
    traceback = only_event(json_output)["traceback"]
    assert traceback.endswith(r"the end\n")
    assert len(traceback) < 20_000


@pytest.mark.parametrize("name", SECRETS)
def test_secrets_are_hidden(output: io.StringIO, name: str) -> None:
    log.info("settings.read", extra={name: SECRETS[name]})
    assert "hunter2" not in output.getvalue()
    assert "settings.read" in output.getvalue()


def test_a_secret_in_a_message_or_an_error_is_hidden(output: io.StringIO) -> None:
    try:
        raise ConnectionError(SECRETS["url"])
    except ConnectionError:
        log.exception("no way to %s", SECRETS["url"])
    assert "hunter2" not in output.getvalue()
    assert "localhost" in output.getvalue()


def test_ordinary_names_are_shown(json_output: io.StringIO) -> None:
    shown = {
        "keyboard": "a",
        "monkeys": "b",
        "author": "c",
        "passed": 3,
        "address": "http://a:80/b",
    }
    log.info("event", extra=shown)
    assert only_event(json_output).items() >= shown.items()


def test_values_are_bounded(output: io.StringIO) -> None:
    nested: list[object] = []
    for _ in range(2000):
        nested = [nested]
    log.info(
        "x" * 100_000,
        extra={"text": "y" * 1_000_000, "many": ["z" * 1000] * 1000, "nested": nested},
    )
    assert len(output.getvalue()) < 100_000
    assert "1000000 characters" in output.getvalue()


def test_numbers_that_json_does_not_know_are_text(json_output: io.StringIO) -> None:
    log.info("event", extra={"a": float("nan"), "b": float("inf"), "c": 10**5000})
    event = json.loads(json_output.getvalue(), parse_constant=pytest.fail)
    assert (event["a"], event["b"]) == ("nan", "inf")


def test_a_value_that_cannot_be_shown_does_not_stop_the_log(output: io.StringIO) -> None:
    class Broken:
        def __str__(self) -> str:
            raise RuntimeError("no text")

    log.info("event", extra={"broken": Broken(), "keys": {Broken(): 1}})
    assert "<Broken without a text>" in output.getvalue()


def test_a_field_cannot_pass_for_the_events_own(json_output: io.StringIO) -> None:
    log.info("sandbox.created", extra={"event": "node.ended", "level": "error", "timestamp": "0"})
    event = only_event(json_output)
    assert (event["event"], event["level"]) == ("sandbox.created", "info")
    assert event["event_"] == "node.ended"


@pytest.mark.parametrize("name", ["uvicorn", "uvicorn.access", "uvicorn.error", "sqlalchemy.pool"])
def test_libraries_log_through_it_once(name: str) -> None:
    elsewhere = io.StringIO()
    foreign = logging.getLogger(name.partition(".")[0])
    foreign.addHandler(logging.StreamHandler(elsewhere))
    stream = io.StringIO()
    configure_logs(LogSettings(format="json"), stream)
    logging.getLogger(name).warning("pool is full", extra={"color_message": "\x1b[31mfull"})
    assert only_event(stream)["event"] == "pool is full"
    assert "full" not in elsewhere.getvalue()
    assert "color_message" not in stream.getvalue()


def test_statements_with_their_values_are_not_told(json_output: io.StringIO) -> None:
    logging.getLogger("sqlalchemy.engine.Engine").info("INSERT ... VALUES ('secret')")
    assert json_output.getvalue() == ""


def test_the_level_holds() -> None:
    stream = io.StringIO()
    configure_logs(LogSettings(format="json", level="warning"), stream)
    log.info("unimportant")
    log.warning("important")
    assert only_event(stream)["event"] == "important"


def test_twice_configured_tells_once(json_output: io.StringIO) -> None:
    second = io.StringIO()
    configure_logs(LogSettings(format="json"), second)
    log.info("event")
    assert json_output.getvalue() == ""
    assert only_event(second)["event"] == "event"


def test_without_a_terminal_the_log_is_json_on_standard_error() -> None:
    code = (
        "import logging\n"
        "from atoll.server.logs import configure_logs\n"
        "from atoll.server.settings import LogSettings\n"
        "configure_logs(LogSettings())\n"
        "logging.getLogger('a').info('event', extra={'name_': 'grün \\ud800'})\n"
    )
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, capture_output=True, env={"LC_ALL": "C", "PATH": ""})
    assert result.stdout == b""
    assert json.loads(result.stderr)["name_"] == r"grün \ud800"


def test_plain_values_stay_what_they_are() -> None:
    value = {"a": [1, 2.5, True, None, "text"]}
    assert plain(value) == value


class Full(io.StringIO):
    """A stream that has no room at present."""

    is_full = True

    def write(self, text: str) -> int:
        if self.is_full:
            raise OSError(28, "No space left on device")
        return super().write(text)


def test_a_line_without_room_is_left_out_and_nothing_stands_in_its_place(
    capsys: pytest.CaptureFixture[str],
) -> None:
    stream = Full()
    configure_logs(LogSettings(format="json"), stream)
    log.warning("left.out")
    stream.is_full = False
    log.warning("told.again")
    assert [json.loads(line)["event"] for line in stream.getvalue().splitlines()] == ["told.again"]
    assert capsys.readouterr().err == ""
