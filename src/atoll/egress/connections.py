"""One connection that somebody inside opened: what it asks for is checked, then taken to where it may go.

Every request is an attempt of its own with a record of its own, also on a connection that goes on. TLS to hosts whose requests have to be seen ends
here (`_end_tls`); all other TLS passes as it is.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from dataclasses import replace
from typing import Literal, NamedTuple, Protocol

from atoll.egress.client_hello import ClientHello, ClientHelloReader
from atoll.egress.dialling import Dialler
from atoll.egress.exchanges import Exchange
from atoll.egress.heads import HEAD_SECONDS, Head, HeadReader, forwarded_headers
from atoll.egress.injection import Injection, Secrets
from atoll.egress.meters import ByteMeter
from atoll.egress.policy import Attempt, Verdict
from atoll.egress.records import Record
from atoll.egress.refusals import DialFailed, Refused, answer
from atoll.egress.sockets import abort, end_sending, peek, receive, send
from atoll.egress.targets import Target, parse_target
from atoll.egress.tls import accept
from atoll.egress.tunnels import Tunnel, TunnelEnded
from atoll.errors import InvalidRequest
from atoll.model.hosts import Host, parse_authority
from atoll.model.ids import SandboxId
from atoll.model.network import Network

_ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"
# TLS's own word for a refusal: alert, fatal, access denied.
_DENIED = bytes.fromhex("15030300020231")
_TLS = 0x16
_CHUNK = 64 * 1024
# How long, and for how much, a client that was answered may go on sending.
_LEAVE_SECONDS = 2.0
_LEAVE_BYTES = 1024 * 1024


class _Origin(NamedTuple):
    """To whom all requests within a CONNECT are spoken, and what of them was read already."""

    host: Host
    port: int
    first: bytes
    scheme: Literal["http", "https"] = "http"


class Surroundings(Protocol):
    """What a connection needs of its sandbox."""

    @property
    def network(self) -> Network:
        """What the sandbox may reach now."""
        ...

    @property
    def secrets(self) -> Secrets:
        """What it has instead of secrets, and to whom those go."""
        ...

    def tls_context(self, host: Host) -> ssl.SSLContext:
        """Return what ends TLS for a host; raises `Refused` if that is not possible here."""
        ...

    @property
    def dialler(self) -> Dialler: ...

    def decide(self, attempt: Attempt) -> Verdict:
        """Return whether an attempt may go on now."""
        ...

    async def dial(self, attempt: Attempt, peer: SandboxId | None) -> tuple[socket.socket, str]:
        """Return a connection for it and where that leads to; `peer` is another sandbox that is meant."""
        ...

    @property
    def up(self) -> ByteMeter: ...

    @property
    def down(self) -> ByteMeter: ...

    def record(self, scheme: str) -> Record:
        """Begin the record of an attempt."""
        ...

    async def wait_for_node(self) -> None:
        """Wait while the node is behind with reading records."""
        ...


class Connection:
    """Serves one client."""

    def __init__(
        self, sandbox: Surroundings, client: socket.socket, *, crowded: bool = False
    ) -> None:
        self._sandbox = sandbox
        self._client = client
        # One too many: it is told so and nothing else.
        self._is_crowded = crowded
        self._is_established = False
        self._has_ended = False  # on both sides, so that nothing is left to be read
        self._attempt: Attempt | None = None
        self._injection: Injection | None = None
        self._is_raw = False
        self._peer: SandboxId | None = None

    async def serve(self, place: tuple[Host, int] | None) -> None:
        """Serve requests or, if its listener stands for one place, take the client there; the socket is closed."""
        try:
            if place is None:
                await self._serve_requests(HeadReader(self._client))
                if not self._has_ended:
                    await self._leave()
            else:
                await self._serve_fixed(*place)
        except (OSError, TunnelEnded):
            abort(self._client)  # what came so far must not look whole
        except asyncio.CancelledError:
            abort(self._client)
            raise
        finally:
            self._client.close()

    def may_go_on(self) -> bool:
        """Tell whether what is under way may go on, after rules, secrets or peers have changed."""
        if self._attempt is None:
            return True
        if self._injection is not None and set(self._injection.used) - set(
            self._sandbox.secrets.uses
        ):
            return False
        verdict = self._sandbox.decide(self._attempt)
        same = verdict.peer == self._peer and (verdict.raw or not self._is_raw)
        return verdict.allowed and same

    async def _leave(self) -> None:
        """Let the client read what it was told: closing while it still sends would take that away."""
        self._client = end_sending(self._client)
        deadline = time.monotonic() + _LEAVE_SECONDS
        left = _LEAVE_BYTES
        while left > 0 and (wait := deadline - time.monotonic()) > 0:
            try:
                data = await receive(self._client, _CHUNK, wait)
            except TimeoutError:
                return
            if not data:
                return
            left -= len(data)

    # --- HTTP -------------------------------------------------------------------------------------------

    async def _serve_requests(self, reader: HeadReader, origin: _Origin | None = None) -> None:
        while await reader.wait():
            await self._sandbox.wait_for_node()
            with self._sandbox.record("http" if origin is None else origin.scheme) as record:
                try:
                    following = await self._answer(reader, record, origin)
                except Refused as refused:
                    record.refuse(refused)
                    await self._tell(refused)
                    return
                finally:
                    self._attempt = self._injection = None
            if isinstance(following, _Origin):
                await self._serve_requests(HeadReader(self._client, following.first), following)
                return
            if not following:
                return

    async def _answer(
        self, reader: HeadReader, record: Record, origin: _Origin | None
    ) -> bool | _Origin:
        """Answer one request; return whether others may follow, or to whom all that follow are spoken."""
        head = await reader.read()
        record.method = head.method
        record.path = head.target
        if self._is_crowded:
            raise self._too_many()
        if head.method != "CONNECT":
            return await self._forward(head, reader, record, origin)
        if origin is not None:
            raise Refused(400, "a CONNECT within a CONNECT is not taken on")
        return await self._connect(head, record)

    async def _forward(
        self, head: Head, reader: HeadReader, record: Record, origin: _Origin | None
    ) -> bool:
        target = _target_of(head, origin)
        record.host, record.port, record.path = str(target.host), target.port, target.path
        head.check_host(target.host, target.port)
        scheme = "http" if origin is None else origin.scheme
        attempt = Attempt(scheme, target.host, target.port, head.method, target.path)
        verdict = self._decide(attempt)
        if not verdict.allowed:
            raise Refused(403, verdict.reason)
        self._check_overrides(head, attempt, verdict)
        assert verdict.path is not None
        self._injection = self._inject(attempt, head, verdict.path)
        with await self._dial_for_request(attempt, record) as upstream:
            exchange = Exchange(
                head,
                self._client,
                upstream,
                self._sandbox.up,
                self._sandbox.down,
                self._injection,
            )
            try:
                rest = await exchange.run(target.host, target.port, verdict.path)
            except Exception as error:
                raise _told(error, exchange) from error
            finally:
                record.up_bytes, record.down_bytes = exchange.up_bytes, exchange.down_bytes
        if rest is None:
            return False
        reader.give_back(rest)
        return True

    def _check_overrides(self, head: Head, attempt: Attempt, verdict: Verdict) -> None:
        """Refuse headers by which a server would see another request than the one that is allowed."""
        for method in head.overriding_methods:
            if not self._sandbox.decide(replace(attempt, method=method)).allowed:
                raise Refused(
                    403, f"a header asks for the method {method[:20]!r}, which no rule allows here"
                )
        if verdict.rule is not None and verdict.rule.path and head.overrides_path:
            raise Refused(403, "a header asks for another path, while rules allow some paths only")

    def _inject(self, attempt: Attempt, head: Head, path: str) -> Injection | None:
        """Put secrets into the head of a request over TLS; without TLS no placeholder passes."""
        headers = forwarded_headers(head.request)
        if attempt.scheme == "https":
            return self._sandbox.secrets.inject(attempt.host, attempt.port, path, headers)
        self._sandbox.secrets.check_plain(attempt.host, path, headers)
        return None

    async def _connect(self, head: Head, record: Record) -> bool | _Origin:
        host, port = _authority_of(head)
        record.scheme, record.host, record.port, record.path = "https", str(host), port, ""
        head.check_host(host, port)
        attempt = Attempt("https", host, port)
        verdict = self._decide(attempt)
        first, _ = head.parser.trailing_data
        if verdict.inspect or (verdict.allowed and self._sandbox.secrets.are_for(host, port)):
            return await self._end_tls(_Origin(host, port, first), record)
        if not verdict.allowed:
            return await self._speak_http(_Origin(host, port, first), record, verdict)
        with await self._dial(attempt, record) as upstream:
            await send(self._client, _ESTABLISHED)
            self._is_established = True
            if not verdict.raw:
                first = await self._read_hello(first, attempt)
                if first and first[0] != _TLS and self._may_speak_http(host, port):
                    record.scheme, self._is_established = "http", False
                    return _Origin(host, port, first)
            await self._tunnel(upstream, record, first)
        return False

    async def _end_tls(self, origin: _Origin, record: Record) -> bool | _Origin:
        """Be the host for the client, so that each request within is seen; never becomes a tunnel."""
        context = self._sandbox.tls_context(origin.host)
        await send(self._client, _ESTABLISHED)
        self._is_established = True
        first = origin.first or await peek(self._client, HEAD_SECONDS)
        if not first:
            return False
        if first[0] != _TLS:
            if not self._may_speak_http(origin.host, origin.port):
                raise Refused(403, f"{origin.host}:{origin.port} is for TLS")
            record.scheme, self._is_established = "http", False
            return origin
        if origin.first:
            raise Refused(400, "TLS has to wait until the CONNECT is answered")
        try:
            self._client = await accept(self._client, context, HEAD_SECONDS)
        except ssl.SSLError as error:
            # Its alert has told the client why.
            record.refuse(Refused(403, f"TLS with the client failed: {error.reason}"))
            raise ConnectionAbortedError from None
        self._is_established = False
        return origin._replace(scheme="https")

    async def _speak_http(self, origin: _Origin, record: Record, verdict: Verdict) -> _Origin:
        """Take requests within a CONNECT one by one, as clients of WebSockets without TLS send them."""
        if not self._may_speak_http(origin.host, origin.port):
            raise Refused(403, verdict.reason)
        record.scheme = "http"
        await send(self._client, _ESTABLISHED)
        return origin

    def _may_speak_http(self, host: Host, port: int) -> bool:
        verdict = self._sandbox.decide(Attempt("http", host, port))
        return verdict.allowed or verdict.inspect

    async def _read_hello(self, first: bytes, attempt: Attempt) -> bytes:
        """Return the client's first bytes: a whole ClientHello for the right name, or what is no TLS at all."""
        reader, data = ClientHelloReader(), first
        try:
            hello = reader.feed(first) if first else None
            async with asyncio.timeout(HEAD_SECONDS):
                while hello is None:
                    more = await receive(self._client, _CHUNK)
                    if not more:
                        return data
                    data += more
                    hello = reader.feed(more)
        except TimeoutError:
            raise Refused(408, "no TLS began within the tunnel in time") from None
        except InvalidRequest as error:
            if data[0] != _TLS and self._may_speak_http(attempt.host, attempt.port):
                return data
            raise Refused(
                403, f"{attempt.host}:{attempt.port} is for TLS: {error.message}"
            ) from None
        _check_name(hello, attempt.host, attempt.port)
        return data

    # --- a listener of its own ----------------------------------------------------------------------------

    async def _serve_fixed(self, host: Host, port: int) -> None:
        with self._sandbox.record("tcp") as record:
            record.host, record.port = str(host), port
            try:
                if self._is_crowded:
                    raise self._too_many()
                attempt = Attempt("tcp", host, port)
                verdict = self._decide(attempt)
                if not verdict.allowed:
                    raise Refused(403, verdict.reason)
                with await self._dial(attempt, record) as upstream:
                    await self._tunnel(upstream, record, b"")
            except Refused as refused:
                record.refuse(refused)
                abort(self._client)
                raise ConnectionAbortedError from None

    # --- steps of all ---------------------------------------------------------------------------------------

    def _decide(self, attempt: Attempt) -> Verdict:
        verdict = self._sandbox.decide(attempt)
        # From here on a change of rules finds it.
        self._attempt, self._is_raw, self._peer = attempt, verdict.raw, verdict.peer
        return verdict

    async def _dial(self, attempt: Attempt, record: Record) -> socket.socket:
        for meter in (self._sandbox.up, self._sandbox.down):
            if not meter.left:
                raise Refused(503, meter.reason)
        upstream, record.address = await self._sandbox.dial(attempt, self._peer)
        return upstream

    async def _dial_for_request(self, attempt: Attempt, record: Record) -> socket.socket:
        """Dial for a request that was seen: over TLS if it came so, and never without."""
        upstream = await self._dial(attempt, record)
        if attempt.scheme != "https":
            return upstream
        return await self._sandbox.dialler.secure(upstream, attempt.host)

    async def _tunnel(self, upstream: socket.socket, record: Record, first: bytes) -> None:
        tunnel = Tunnel(self._client, upstream, self._sandbox.up, self._sandbox.down)
        try:
            await tunnel.run(first)
            self._has_ended = True
        finally:
            record.up_bytes, record.down_bytes = tunnel.up_bytes, tunnel.down_bytes

    async def _tell(self, refused: Refused) -> None:
        await send(self._client, _DENIED if self._is_established else answer(refused))

    def _too_many(self) -> Refused:
        limit = self._sandbox.network.limits.connections
        return Refused(
            503, f"this sandbox has its {limit} connections open already; close some first"
        )


def _target_of(head: Head, origin: _Origin | None) -> Target:
    text = head.target
    if origin is not None:
        if not text.startswith("/"):
            raise Refused(400, "within a CONNECT a request's target is a path")
        text = f"http://{origin.host}:{origin.port}{text}"
    try:
        return parse_target(text)
    except InvalidRequest as error:
        raise Refused(400, error.message) from None


def _authority_of(head: Head) -> tuple[Host, int]:
    try:
        return parse_authority(head.target)
    except InvalidRequest as error:
        raise Refused(400, error.message) from None


def _check_name(hello: ClientHello, host: Host, port: int) -> None:
    if hello.encrypted:
        # A host that serves many names, as content networks do, would follow the hidden one.
        raise Refused(
            403,
            f"the TLS within the tunnel to {host} hides for whom it is (encrypted ClientHello); switch that off,"
            f" or add 'tcp://{host}:{port}' to the rules, which lets anything pass",
        )
    if hello.server_name == host or (hello.server_name is None and host.address is not None):
        return
    said = "no name" if hello.server_name is None else str(hello.server_name)
    raise Refused(403, f"the TLS within the tunnel to {host} asks for {said}")


def _told(error: Exception, exchange: Exchange) -> Exception:
    """Return what to raise for a failed exchange: once an answer has begun it can only be cut off."""
    if exchange.has_answered:
        return TunnelEnded(str(error)) if isinstance(error, Refused) else error
    if isinstance(error, TunnelEnded):
        return Refused(503, str(error))
    if isinstance(error, TimeoutError):
        return DialFailed(504, "the host did not answer in time")
    if isinstance(error, OSError):
        return DialFailed(502, "the host broke off before it answered")
    return error
