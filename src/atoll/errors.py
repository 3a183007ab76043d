"""The one error tree: what Atoll failed to do, never what the user's program did."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar


class AtollError(Exception):
    """An error with a stable code, a message that names the way out, and details for machines."""

    code: ClassVar[str] = "error"
    retryable: ClassVar[bool] = False

    def __init__(self, message: str, **details: Any) -> None:
        super().__init__(message)
        self.message = message
        self.details = details

    def __str__(self) -> str:
        return self.message


class InvalidRequest(AtollError, ValueError):
    """The caller asked for something impossible."""

    code = "invalid_request"


class Unauthorized(AtollError):
    """Nobody has shown who is asking."""

    code = "unauthorized"


class Forbidden(AtollError, PermissionError):
    """The one who asks may not do this."""

    code = "forbidden"


class NotFound(AtollError, FileNotFoundError):
    """There is no such thing, or none that the caller may see."""

    code = "not_found"


class Conflict(AtollError):
    """A right request at the wrong moment."""

    code = "conflict"


class LimitExceeded(AtollError):
    """A limit or a quota would be passed."""

    code = "limit_exceeded"


class TimedOut(AtollError, TimeoutError):
    """Atoll itself did not answer in time; a command's timeout is a result instead."""

    code = "timed_out"
    retryable = True


class CommandFailed(AtollError):
    """A command did not succeed; raised by `result.check()` only."""

    code = "command_failed"


class Unsupported(AtollError):
    """This engine, or this machine, cannot do that."""

    code = "unsupported"


class Unavailable(AtollError):
    """Not now; trying again may help."""

    code = "unavailable"
    retryable = True


class InternalError(AtollError):
    """A bug of Atoll's."""

    code = "internal"


def all_of(failures: Sequence[BaseException]) -> AtollError:
    """Return one error that tells of several things which went wrong, each in its own words; one alone is itself."""
    if len(failures) == 1 and isinstance(failures[0], AtollError):
        return failures[0]
    words = [each.message if isinstance(each, AtollError) else repr(each) for each in failures]
    error = Unavailable("; ".join(words), failures=words)
    error.__cause__ = failures[0]
    return error


def by_code(code: str) -> type[AtollError]:
    """Return the class of an error code; an unknown code is an `InternalError`."""
    return _BY_CODE.get(code, InternalError)


_BY_CODE = {error.code: error for error in AtollError.__subclasses__()}
