"""Errors over HTTP: error code → status, one body for all (RFC 9457), and never a traceback."""

from __future__ import annotations

import errno
import logging
import secrets
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError, WebSocketRequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.websockets import WebSocket, WebSocketState

from atoll.errors import (
    AtollError,
    Conflict,
    Forbidden,
    InternalError,
    InvalidRequest,
    LimitExceeded,
    NotFound,
    Unauthorized,
    Unavailable,
)
from atoll.server.texts import plain

_STATUSES = {
    "invalid_request": 400,
    "unauthorized": 401,
    "forbidden": 403,
    "not_found": 404,
    "conflict": 409,
    "command_failed": 422,
    "unsupported": 422,
    "limit_exceeded": 429,
    "internal": 500,
    "unavailable": 503,
    "timed_out": 504,
}
_BY_STATUS: dict[int, type[AtollError]] = {
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    413: LimitExceeded,
}
# What a machine may be short of, and have again later.
_SHORTAGES = {
    errno.EAGAIN,
    errno.EDQUOT,
    errno.EIO,
    errno.EMFILE,
    errno.ENFILE,
    errno.ENOBUFS,
    errno.ENOMEM,
    errno.ENOSPC,
}
PROBLEM = "application/problem+json"
_NO_THREAD = "can't start new thread"
_RETRY_AFTER_SECONDS = "1"
_MOST_FAULTS = 10
# The first of the codes that WebSocket leaves to applications; the last three digits are the status.
_SOCKET_CODES = 4000
_log = logging.getLogger(__name__)


def add_error_answers(app: FastAPI) -> None:
    """Let every error of a route become an answer of the same shape."""
    # Each of them answers requests and WebSockets alike, which Starlette's types keep apart.
    handlers: dict[type[Exception], Any] = {
        AtollError: _answer_error,
        Refusal: _answer_refusal,
        RequestValidationError: _answer_invalid,
        WebSocketRequestValidationError: _answer_invalid,
        HTTPException: _answer_unknown,
        OSError: _answer_shortage,
        RuntimeError: _answer_shortage,
    }
    for kind, handler in handlers.items():
        app.add_exception_handler(kind, handler)


class Problem(BaseModel):
    """Why a request was not answered as it asked."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    message: str
    details: dict[str, Any]
    retryable: bool
    next_step: str | None


class Refusal(Exception):
    """An error that has a status and headers of its own."""

    def __init__(
        self, error: AtollError, status: int, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(error.message)
        self.error = error
        self.status = status
        self.headers = headers

    def answer(self) -> Response:
        """Return it as the answer to a request."""
        return error_answer(self.error, self.status, self.headers)


def error_answer(
    error: AtollError, status: int | None = None, headers: Mapping[str, str] | None = None
) -> Response:
    """Return an error as the answer to a request."""
    status = status or status_of(error)
    again = {"Retry-After": _RETRY_AFTER_SECONDS} if error.retryable else {}
    body = error_to_json(error, status)
    return JSONResponse(body, status, {**again, **(headers or {})}, PROBLEM)


def error_bytes(error: AtollError, status: int) -> bytes:
    """Return an error as a whole answer, for those who are answered before they are understood; it ends the connection."""
    answer = error_answer(error, status, {"Connection": "close"})
    headers = b"".join(b"%s: %s\r\n" % each for each in answer.raw_headers)
    first = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n".encode()
    return first + headers + b"\r\n" + bytes(answer.body)


def status_of(error: AtollError) -> int:
    """Return the status of an error."""
    return _STATUSES.get(error.code, 500)


def error_to_json(error: AtollError, status: int | None = None) -> dict[str, Any]:
    """Return an error as it crosses the wire."""
    details = {name: _plain(value) for name, value in error.details.items()}
    next_step = details.pop("next_step", None)
    message = plain(error.message)
    return {
        "type": f"urn:atoll:{error.code}",
        "title": error.code.replace("_", " ").capitalize(),
        "status": status or status_of(error),
        "detail": message,
        "code": error.code,
        "message": message,
        "details": details,
        "retryable": error.retryable,
        "next_step": next_step,
    }


def unexpected_answer(error: Exception) -> Response:
    """Report a bug of ours in the log, and return an answer that only tells where to look."""
    error_id = secrets.token_hex(8)
    _log.error("request.failed", extra={"error_id": error_id}, exc_info=error)
    return error_answer(
        InternalError(f"internal error {error_id}; the node's log tells more", error_id=error_id)
    )


async def _answer_error(connection: HTTPConnection, error: Exception) -> Response | None:
    assert isinstance(error, AtollError)
    parts = connection.app.state.parts
    parts.counters.refusals.add(error.code)
    if error.code == "internal":
        return await _answer(connection, unexpected_answer(error))
    if isinstance(error, Unavailable):
        parts.traffic.tell_refusal(error)
    return await _answer(connection, error_answer(error))


async def _answer_refusal(connection: HTTPConnection, error: Exception) -> Response | None:
    assert isinstance(error, Refusal)
    connection.app.state.parts.counters.refusals.add(error.error.code)
    return await _answer(connection, error.answer())


async def _answer_shortage(connection: HTTPConnection, error: Exception) -> Response | None:
    """Refuse for the moment what the machine is short of; anything else is a bug."""
    number = error.errno if isinstance(error, OSError) else None
    if number not in _SHORTAGES and _NO_THREAD not in str(error):
        raise error
    reason = (isinstance(error, OSError) and error.strerror) or str(error)
    refusal = Unavailable(f"this machine refused: {reason}; try again in a moment", errno=number)
    refusal.__cause__ = error
    return await _answer_error(connection, refusal)


async def _answer_invalid(connection: HTTPConnection, error: Exception) -> Response | None:
    assert isinstance(error, RequestValidationError | WebSocketRequestValidationError)
    faults = [_describe_fault(fault) for fault in error.errors()[:_MOST_FAULTS]]
    invalid = InvalidRequest(f"the request is not valid: {'; '.join(faults)}", faults=faults)
    return await _answer(connection, error_answer(invalid))


async def _answer_unknown(connection: HTTPConnection, error: Exception) -> Response | None:
    """Answer what no route takes."""
    assert isinstance(error, HTTPException)
    if isinstance(error.__cause__, Refusal):
        # What was wrong with a body, which FastAPI has put into other words.
        return await _answer_refusal(connection, error.__cause__)
    kind = _BY_STATUS.get(error.status_code, InvalidRequest)
    shown = f"{connection.scope.get('method', 'WS')} {connection.url.path[:200]}"
    problem = kind(f"{shown}: {error.detail}; /openapi.json lists what there is")
    answer = error_answer(problem, error.status_code)
    answer.headers.update(error.headers or {})
    return await _answer(connection, answer)


async def _answer(connection: HTTPConnection, answer: Response) -> Response | None:
    if not isinstance(connection, WebSocket):
        return answer
    if connection.application_state is WebSocketState.CONNECTING:
        await connection.send_denial_response(answer)
    else:
        await connection.close(_SOCKET_CODES + answer.status_code)
    return None


def _describe_fault(fault: dict[str, Any]) -> str:
    place = ".".join(str(part) for part in fault["loc"] if part not in ("body", "query", "path"))
    message = str(fault["msg"]).removeprefix("Value error, ")
    return f"{place[:80]}: {message}" if place else message


def _plain(value: object) -> object:
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return plain(str(value))
