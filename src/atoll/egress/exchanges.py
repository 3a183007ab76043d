"""One HTTP request, taken to its host over a connection of its own, and the answer taken back.

Both sides are parsed and written anew by h11, so that nothing passes that was not understood.
"""

from __future__ import annotations

import asyncio
import socket

import h11

from atoll.egress.heads import LONGEST_HEAD, Head, Headers, forwarded_headers
from atoll.egress.injection import LONGEST_BODY, Injection, Scrubber
from atoll.egress.refusals import DialFailed, Refused
from atoll.egress.sockets import receive, send
from atoll.egress.tls import SecureTunnel
from atoll.egress.tunnels import Allowance, Tunnel, TunnelEnded
from atoll.model.hosts import Host

_CHUNK = 64 * 1024


class Exchange:
    """A request that was allowed, between its client and a connection to its host."""

    def __init__(
        self,
        head: Head,
        client: socket.socket,
        upstream: socket.socket,
        up: Allowance,
        down: Allowance,
        injection: Injection | None = None,
    ) -> None:
        """`injection` is what has to be sent of the head over TLS; without TLS there is none."""
        self._head = head
        self._client = client
        self._upstream = upstream
        self._up = up
        self._down = down
        self._injection = injection
        self._scrubber = Scrubber(())
        self._held_body: bytes | None = None
        self._parser = h11.Connection(h11.CLIENT, max_incomplete_event_size=LONGEST_HEAD)
        self.has_answered = False
        self.up_bytes = 0
        self.down_bytes = 0

    async def run(self, host: Host, port: int, path: str) -> bytes | None:
        """Carry it out; return what belongs to the client's next request, None if there can be none.

        Raises:
            Refused: the request or the answer cannot be read.
            TunnelEnded: a cap was reached.
            OSError: one side broke off.
        """
        if self._injection is not None:
            await self._inject(self._injection)
        await self._send_head(host, port, path)
        upload = asyncio.create_task(self._send_body())
        try:
            switched = await self._take_answer(upload)
        finally:
            upload.cancel()
            await asyncio.wait([upload])
        if switched:
            await self._tunnel()
            return None
        return self._rest()

    # --- the request ------------------------------------------------------------------------------------

    async def _inject(self, injection: Injection) -> None:
        """Have all secrets in the request before anything of it is sent."""
        if injection.wants_body:
            self._held_body = injection.fill_body(await self._read_body())
        self._scrubber = Scrubber(injection.used)

    async def _read_body(self) -> bytes:
        """Return the whole body, in which a secret has to be put."""
        parser, body = self._head.parser, bytearray()
        if parser.they_are_waiting_for_100_continue:
            go_on = h11.InformationalResponse(status_code=100, headers=[])
            await send(self._client, parser.send(go_on) or b"")
        while not isinstance(event := self._next(parser), h11.EndOfMessage):
            if event is h11.NEED_DATA:
                parser.receive_data(await receive(self._client, _CHUNK))
            elif isinstance(event, h11.Data):
                body += event.data
            else:
                raise Refused(400, "the request broke off")
            if len(body) > LONGEST_BODY:
                raise Refused(
                    400, f"a body with a secret in it may have {LONGEST_BODY} bytes at most"
                )
        return bytes(body)

    async def _send_head(self, host: Host, port: int, path: str) -> None:
        request = self._head.request
        headers = forwarded_headers(request)
        default_port = 80
        if self._injection is not None:
            headers, path, default_port = self._injection.headers, self._injection.path, 443
        authority = str(host) if port == default_port else f"{host}:{port}"
        dropped = {b"host"}
        framing: Headers = []
        if self._held_body is not None:
            dropped |= {b"content-length", b"expect"}
            framing = [(b"Content-Length", b"%d" % len(self._held_body))]
        elif self._head.values(b"transfer-encoding"):
            framing = [(b"Transfer-Encoding", b"chunked")]
        others = [each for each in headers if each[0].lower() not in dropped]
        hop: Headers = [(b"Connection", b"close")]
        if self._wants_websocket():
            hop = [(b"Connection", b"Upgrade"), (b"Upgrade", b"websocket")]
        outgoing = h11.Request(
            method=request.method,
            target=path.encode(),
            headers=[(b"Host", authority.encode()), *others, *framing, *hop],
        )
        await self._send_up(self._parser.send(outgoing))

    def _wants_websocket(self) -> bool:
        """Whether it asks to go on as a WebSocket, the only other protocol that passes."""
        head = self._head
        return (
            head.request.method == b"GET"
            and head.values(b"upgrade") == [b"websocket"]
            and b"upgrade" in head.values(b"connection")
        )

    async def _send_body(self) -> None:
        if self._held_body is not None:
            await self._send_up(self._parser.send(h11.Data(data=self._held_body)))
            await self._send_up(self._parser.send(h11.EndOfMessage()))
            return
        while True:
            event = self._next(self._head.parser)
            if event is h11.NEED_DATA:
                self._head.parser.receive_data(await receive(self._client, _CHUNK))
                continue
            if isinstance(event, h11.EndOfMessage):
                event = h11.EndOfMessage()  # without trailers: nobody has checked those
            elif not isinstance(event, h11.Data):
                raise Refused(400, "the request broke off")
            try:
                await self._send_up(self._parser.send(event))
            except OSError:
                return  # the host reads no more, so its answer is what counts
            if isinstance(event, h11.EndOfMessage):
                return

    async def _send_up(self, data: bytes | None) -> None:
        if not data:
            return
        if len(data) > self._up.left:
            raise TunnelEnded(self._up.reason)
        self._up.count(len(data))
        self.up_bytes += len(data)
        await send(self._upstream, data)

    # --- the answer -------------------------------------------------------------------------------------

    async def _take_answer(self, upload: asyncio.Task[None]) -> bool:
        """Pass the answer on as it comes; return whether both sides go on with another protocol."""
        while True:
            event = self._next(self._parser)
            if event is h11.NEED_DATA:
                self._parser.receive_data(await self._receive_down(upload))
            elif isinstance(event, h11.InformationalResponse):
                await self._send_down(event)
                if event.status_code == 101:
                    return True
            elif isinstance(event, h11.Response):
                await self._send_down(event)
            elif isinstance(event, h11.Data):
                await self._send_data(self._scrubber.feed(bytes(event.data)))
            elif isinstance(event, h11.EndOfMessage):
                await self._send_data(self._scrubber.finish())
                await send(self._client, self._head.parser.send(h11.EndOfMessage()) or b"")
                return False
            else:
                raise DialFailed(502, "the host broke off its answer")

    async def _send_data(self, data: bytes) -> None:
        if data:
            await send(self._client, self._head.parser.send(h11.Data(data=data)) or b"")

    async def _receive_down(self, upload: asyncio.Task[None]) -> bytes:
        """Return more of the answer; a request that cannot be sent to its end does not wait for one."""
        left = self._down.left
        if not left:
            raise TunnelEnded(self._down.reason)
        if upload.done():
            upload.result()
            data = await receive(self._upstream, min(left, _CHUNK))
        else:
            data = await self._receive_beside(upload, min(left, _CHUNK))
        self._down.count(len(data))
        self.down_bytes += len(data)
        return data

    async def _receive_beside(self, upload: asyncio.Task[None], size: int) -> bytes:
        receiving = asyncio.create_task(receive(self._upstream, size))
        try:
            await asyncio.wait([upload, receiving], return_when=asyncio.FIRST_COMPLETED)
            if upload.done():
                upload.result()
            return await receiving
        finally:
            receiving.cancel()

    async def _send_down(self, event: h11.Response | h11.InformationalResponse) -> None:
        headers = forwarded_headers(event)
        names = {name for name, _ in event.headers}
        if b"transfer-encoding" in names:
            headers = [each for each in headers if each[0].lower() != b"content-length"]
        if event.status_code == 101:
            headers += [(b"Connection", b"Upgrade"), (b"Upgrade", b"websocket")]
        if self._carries_secret and b"content-encoding" in names:
            raise DialFailed(
                502, "the host packed its answer, in which the secret could not be found"
            )
        clean = self._scrubber.clean
        headers = [(clean(name), clean(value)) for name, value in headers]
        kind = type(event)
        outgoing = kind(status_code=event.status_code, reason=clean(event.reason), headers=headers)
        data = self._head.parser.send(outgoing) or b""
        # What follows a 101 is no HTTP any more, so no refusal may stand there.
        is_answer = kind is h11.Response or event.status_code == 101
        self.has_answered = self.has_answered or is_answer
        await send(self._client, data)

    def _next(self, parser: h11.Connection) -> type[h11.NEED_DATA | h11.PAUSED] | h11.Event:
        try:
            return parser.next_event()
        except h11.RemoteProtocolError as error:
            if parser is self._parser:
                # What is wrong with an answer may hold the secret that was sent.
                fault = "" if self._carries_secret else f": {error}"
                raise DialFailed(502, f"the host's answer cannot be read{fault}") from None
            raise Refused(400, f"the request's body cannot be read: {error}") from None

    @property
    def _carries_secret(self) -> bool:
        return self._injection is not None and bool(self._injection.used)

    # --- afterwards -------------------------------------------------------------------------------------

    async def _tunnel(self) -> None:
        sides = self._client, self._upstream, self._up, self._down
        tunnel = Tunnel(*sides) if self._injection is None else SecureTunnel(*sides, self._scrubber)
        from_client, _ = self._head.parser.trailing_data
        from_upstream, _ = self._parser.trailing_data
        try:
            await tunnel.run(from_client, from_upstream)
        finally:
            self.up_bytes += tunnel.up_bytes
            self.down_bytes += tunnel.down_bytes

    def _rest(self) -> bytes | None:
        parser = self._head.parser
        if parser.our_state is not h11.DONE or parser.their_state is not h11.DONE:
            return None
        rest, has_ended = parser.trailing_data
        return None if has_ended and not rest else rest
