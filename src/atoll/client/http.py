"""A node over HTTP, on a unix socket or at a URL."""

from __future__ import annotations

import json
import os
import re
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Iterator, Mapping
from contextlib import aclosing, asynccontextmanager, contextmanager
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

import anyio
import h11
import httpx2
from httpx2 import AsyncClient, AsyncHTTPTransport, Limits, QueryParams, Response, Timeout
from httpx2.websockets import AsyncWebSocketSession, HTTPXWSException, WebSocketUpgradeError
from wsproto.utilities import LocalProtocolError

from atoll.client.lines import Lines, WholeAnswer
from atoll.client.lookout import Crowd
from atoll.client.places import data_directory
from atoll.errors import AtollError, Conflict, InvalidRequest, Unavailable, by_code
from atoll.model.execution import EventType, ExecutionEvent, event_from_json

_SOCKET = "node.sock"
# Commands and cells may say nothing for as long as they like.
_TIMEOUT = Timeout(10.0, read=None, write=None, pool=60.0)
# An unused connection is closed here a little before the node does so, which might be just when it is used again.
_LIMITS = Limits(max_connections=500, max_keepalive_connections=50, keepalive_expiry=4.0)
_MOST_MESSAGE_BYTES = 64 << 20
# One that means itself, without being encoded or made shorter.
_PLAIN_PATH = re.compile(r"(/[A-Za-z0-9_~-][A-Za-z0-9._~-]*)+|/")
# How long a node may take to come back, and how often it is looked for.
_PATIENCE_SECONDS, _LOOK_SECONDS = 60.0, 0.1


def node_address(environ: Mapping[str, str] = os.environ) -> str:
    """Return where the node is: ATOLL_URL, else the socket in the data directory."""
    return environ.get("ATOLL_URL") or f"unix://{data_directory(environ) / _SOCKET}"


class HttpNode:
    """A node that runs in another process; everything raises the errors that the node raised, or `Unavailable`."""

    def __init__(self, address: str, token: str | None = None) -> None:
        self.address = address
        self.crowd = Crowd()
        self._client = _make_client(address, token)
        self._lines = Lines(address, token, self.crowd) if _is_plain(address) else None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close_connections()

    async def close_connections(self) -> None:
        """Close all connections."""
        if self._lines is not None:
            self._lines.close()
        await self._client.aclose()

    async def call(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        data: AsyncIterable[bytes] | None = None,
        params: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        """Send a request with a JSON `body`, or with raw `data`; return the JSON of the answer, if it has any."""
        answer = await self.ask(method, path, body=body, data=data, params=params, headers=headers)
        return answer.json() if answer.content else None

    async def ask(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        data: AsyncIterable[bytes] | None = None,
        params: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Response | WholeAnswer:
        """Send a request as `call` does; return the answer with its headers."""
        sent = {**(headers or {})}
        content = None
        if body is not None:
            content = json.dumps(body).encode()
            sent["Content-Type"] = "application/json"
        answer: Response | WholeAnswer
        with self._our_errors():
            if self._lines is not None and data is None and _PLAIN_PATH.fullmatch(path):
                target = _with_params(path, params)
                answer = await self._lines.ask(method, target, list(sent.items()), content)
            else:
                answer = await self._client.request(
                    method, path, content=data or content, params=_given(params), headers=sent
                )
        _check(answer)
        return answer

    @asynccontextmanager
    async def answer_to(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        params: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> AsyncIterator[Response]:
        """Send a request as `call` does; give the answer while its body still comes."""
        sent = {**(headers or {})}
        content = None
        if body is not None:
            content = json.dumps(body).encode()
            sent["Content-Type"] = "application/json"
        with self._our_errors():
            async with self._client.stream(
                method, path, content=content, params=_given(params), headers=sent
            ) as answer:
                await _check_stream(answer)
                yield answer

    async def read(
        self, path: str, params: Mapping[str, Any] | None = None
    ) -> AsyncGenerator[bytes, None]:
        """Yield the body of an answer as it comes."""
        async with self.answer_to("GET", path, params=params) as answer:
            async for chunk in answer.aiter_raw():
                yield chunk

    async def events(
        self, execution_id: str, start: int = 0, *, follow: bool = True
    ) -> AsyncGenerator[ExecutionEvent, None]:
        """Yield the events of an execution from number `start` on; with `follow` to its end."""
        params = {"start": start, "follow": follow}
        path = f"/executions/{execution_id}/events"
        async with aclosing(self.lines(path, params)) as lines:
            async for line in lines:
                yield event_from_json(line)

    async def lines(
        self, path: str, params: Mapping[str, Any] | None = None
    ) -> AsyncGenerator[Mapping[str, Any], None]:
        """Yield the objects of an answer that has one per line, as they come."""
        async with self.answer_to("GET", path, params=params) as answer:
            async for line in answer.aiter_lines():
                yield _parse(line)

    async def follow(self, execution_id: str) -> AsyncGenerator[ExecutionEvent, None]:
        """Yield all events of an execution to its end; if the node goes away, the next one is waited for.

        Raises `Unavailable` if there is none within a minute.
        """
        start = 0
        while True:
            try:
                async with aclosing(self.events(execution_id, start)) as events:
                    async for event in events:
                        start = event.seq + 1
                        yield event
                        if event.type is EventType.END:
                            return
            except Unavailable:
                pass  # so does a node that is told to end break off; either way another one may come
            await self._wait_for_node()

    async def _wait_for_node(self) -> None:
        deadline = anyio.current_time() + _PATIENCE_SECONDS
        while True:
            try:
                await self.call("GET", "/ready")
                return
            except Unavailable:
                if anyio.current_time() > deadline:
                    raise
            await anyio.sleep(_LOOK_SECONDS)

    @asynccontextmanager
    async def attach(self, execution_id: str, start: int = 0) -> AsyncIterator[Attachment]:
        """Follow an execution from event `start` on, and send it input, for as long as this is entered."""
        path = f"/executions/{execution_id}/attach"
        with self._our_errors():
            async with self._client.websocket(
                path,
                params={"start": start},
                max_message_size_bytes=_MOST_MESSAGE_BYTES,
                # A person may stop the output for as long as he likes.
                keepalive_ping_interval_seconds=None,
            ) as socket:
                yield Attachment(socket)

    @contextmanager
    def _our_errors(self) -> Iterator[None]:
        """Raise what the connection fails with as ours."""
        try:
            yield
        except BaseExceptionGroup as group:
            raise self._as_ours(_only(group)) from group
        except (httpx2.HTTPError, HTTPXWSException, OSError, h11.RemoteProtocolError) as error:
            if isinstance(error, AtollError):
                raise  # some are errors of the system's, too
            raise self._as_ours(error) from error

    def _as_ours(self, error: BaseException) -> BaseException:
        match error:
            case WebSocketUpgradeError():
                return _to_error(error.response)
            case httpx2.ConnectError() | ConnectionRefusedError():
                return Unavailable(
                    f"no node answers at {self.address}",
                    next_step="start one with 'atoll node', or name another in ATOLL_URL",
                )
            case httpx2.HTTPError() | HTTPXWSException() | OSError() | h11.RemoteProtocolError():
                return Unavailable(
                    f"the connection to the node at {self.address} broke: {type(error).__name__}",
                    next_step="try again; 'atoll logs' reads on where it broke off",
                )
            case _:
                return error


class Attachment:
    """One side of a WebSocket to an execution."""

    def __init__(self, socket: AsyncWebSocketSession) -> None:
        self._socket = socket

    async def events(self) -> AsyncGenerator[ExecutionEvent, None]:
        """Yield events up to the end of the execution; raise what the node refused."""
        while True:
            message = _parse(await self._socket.receive_text())
            if isinstance(message, dict) and message.get("type") == "refused":
                raise error_from_json(message["error"])
            event = event_from_json(message)
            yield event
            if event.type is EventType.END:
                return

    async def write(self, data: bytes) -> None:
        """Send bytes to standard input; raises `Conflict` once the execution has ended."""
        with _end_noticed():
            await self._socket.send_bytes(data)

    async def tell(self, kind: str, **fields: Any) -> None:
        """Send `resize`, `signal`, `close_stdin` or `cancel`; raises `Conflict` once the execution has ended."""
        with _end_noticed():
            await self._socket.send_text(json.dumps({"type": kind, **fields}))


@contextmanager
def _end_noticed() -> Iterator[None]:
    try:
        yield
    except LocalProtocolError as error:
        # The node has closed its side; how it ended is among what it sent before.
        raise Conflict("this execution has ended") from error


def _make_client(address: str, token: str | None) -> AsyncClient:
    parts = urlsplit(address)
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    if parts.scheme == "unix" and not parts.netloc and parts.path:
        transport = AsyncHTTPTransport(uds=parts.path, verify=False, limits=_LIMITS)
        return AsyncClient(
            transport=transport, base_url="http://node", timeout=_TIMEOUT, headers=headers
        )
    if parts.scheme in ("http", "https") and parts.netloc:
        # The environment's proxies are for other addresses than that of one's own node. And to load the certificates that
        # plain HTTP does not need would take longer than all the rest.
        return AsyncClient(
            base_url=address,
            timeout=_TIMEOUT,
            limits=_LIMITS,
            headers=headers,
            trust_env=False,
            verify=parts.scheme == "https",
        )
    raise InvalidRequest(
        f"ATOLL_URL {address[:200]!r} is not understood; write unix:///path/of/node.sock or http://…"
    )


def _given(params: Mapping[str, Any] | None) -> dict[str, Any] | None:
    # None, not an empty one: else the address is taken apart once more.
    return {name: value for name, value in (params or {}).items() if value is not None} or None


def _is_plain(address: str) -> bool:
    """Whether a server is spoken to without TLS, and without a password in its address."""
    parts = urlsplit(address)
    return parts.scheme in ("http", "unix") and "@" not in parts.netloc


def _with_params(path: str, params: Mapping[str, Any] | None) -> str:
    given = _given(params)
    return path if given is None else f"{path}?{QueryParams(given)}"


def _check(answer: Response | WholeAnswer) -> None:
    if not answer.is_success:
        raise _to_error(answer)


async def _check_stream(answer: Response) -> None:
    if not answer.is_success:
        await answer.aread()
        raise _to_error(answer)


def _parse(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise InvalidRequest(f"this is no event of an execution: {text[:200]!r}") from error


def _to_error(answer: Response | WholeAnswer) -> AtollError:
    try:
        return error_from_json(answer.json())
    except (ValueError, KeyError, TypeError, httpx2.ResponseNotRead):
        return Unavailable(f"the node answered {answer.status_code} without saying why")


def error_from_json(fields: Mapping[str, Any]) -> AtollError:
    """Return the error that a node tells of; raises `KeyError` for what tells of none."""
    # Only classes of our own table: a name from the wire is never looked up anywhere else.
    kind = by_code(str(fields["code"]))
    details = {str(name): value for name, value in dict(fields["details"]).items()}
    details.pop("message", None)
    if fields.get("next_step"):
        details["next_step"] = str(fields["next_step"])
    return kind(str(fields["message"]), **details)


def _only(group: BaseException) -> BaseException:
    while isinstance(group, BaseExceptionGroup):
        group = group.exceptions[0]
    return group
