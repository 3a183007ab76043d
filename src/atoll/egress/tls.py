"""TLS that ends in the proxy: towards a client as its host, and towards a host as its client."""

from __future__ import annotations

import asyncio
import socket
import ssl

from atoll.egress.injection import Scrubber
from atoll.egress.refusals import DialFailed
from atoll.egress.sockets import receive, send, shake_hands
from atoll.egress.tunnels import IDLE_SECONDS, Allowance, TunnelEnded
from atoll.model.hosts import Host

_CHUNK = 64 * 1024


def client_context(trusted: str | None) -> ssl.SSLContext:
    """Return what begins TLS to hosts: verified against certificates in PEM, or else the machine's own."""
    context = ssl.create_default_context(cadata=trusted)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    return context


async def accept(client: socket.socket, context: ssl.SSLContext, seconds: float) -> ssl.SSLSocket:
    """Be the host for a client; its socket is taken over. Raises `OSError` if it does not want to."""
    secured = context.wrap_socket(client, server_side=True, do_handshake_on_connect=False)
    return await _shake_hands(secured, seconds)


async def secure(
    upstream: socket.socket, context: ssl.SSLContext, host: Host, seconds: float
) -> ssl.SSLSocket:
    """Begin TLS with a host, which has to prove that it is the one; the socket is taken over.

    Raises:
        DialFailed: it could not.
    """
    name = host.name if host.address is None else str(host.address)
    try:
        secured = context.wrap_socket(
            upstream,
            server_hostname=name,
            do_handshake_on_connect=False,
            suppress_ragged_eofs=False,  # an end that nobody vouches for must not look like one
        )
        return await _shake_hands(secured, seconds)
    except ssl.SSLCertVerificationError as error:
        raise DialFailed(
            502, f"the certificate of {host} is not trusted: {error.verify_message}"
        ) from None
    except TimeoutError:
        raise DialFailed(504, f"{host} did not begin TLS in time") from None
    except OSError as error:
        upstream.close()
        fault = getattr(error, "reason", None) or error.strerror or "it broke off"
        raise DialFailed(502, f"TLS with {host} failed: {fault}") from None


async def _shake_hands(secured: ssl.SSLSocket, seconds: float) -> ssl.SSLSocket:
    try:
        await shake_hands(secured, seconds)
    except BaseException:
        secured.close()
        raise
    return secured


class SecureTunnel:
    """Copies bytes both ways between two ends of TLS until one of both ends; what comes down is scrubbed."""

    def __init__(
        self,
        client: socket.socket,
        upstream: socket.socket,
        up: Allowance,
        down: Allowance,
        scrubber: Scrubber,
    ) -> None:
        self._client = client
        self._upstream = upstream
        self._up = up
        self._down = down
        self._scrubber = scrubber
        self.up_bytes = 0
        self.down_bytes = 0

    async def run(self, from_client: bytes = b"", from_upstream: bytes = b"") -> None:
        """Move bytes, first those that were read before.

        Raises:
            TunnelEnded: a cap was reached, or nothing moved for too long.
            OSError: one side broke off.
        """
        directions = [
            asyncio.create_task(self._move_up(from_client)),
            asyncio.create_task(self._move_down(from_upstream)),
        ]
        try:
            done, _ = await asyncio.wait(directions, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for direction in directions:
                direction.cancel()
            await asyncio.wait(directions)
        for direction in done:
            direction.result()

    async def _move_up(self, data: bytes) -> None:
        data = data or await self._receive(self._client, self._up)
        while data:
            self._up.count(len(data))
            self.up_bytes += len(data)
            await send(self._upstream, data)
            data = await self._receive(self._client, self._up)

    async def _move_down(self, data: bytes) -> None:
        data = data or await self._receive(self._upstream, self._down)
        while data:
            self._down.count(len(data))
            self.down_bytes += len(data)
            await send(self._client, self._scrubber.feed(data))
            data = await self._receive(self._upstream, self._down)
        await send(self._client, self._scrubber.finish())

    async def _receive(self, source: socket.socket, allowance: Allowance) -> bytes:
        """Return what comes next; either direction may be silent for as long as the other is not."""
        if not allowance.left:
            raise TunnelEnded(allowance.reason)
        while True:
            before = self.up_bytes + self.down_bytes
            try:
                return await receive(source, min(_CHUNK, allowance.left))
            except TimeoutError:
                if self.up_bytes + self.down_bytes == before:
                    raise TunnelEnded(f"nothing was sent for {IDLE_SECONDS:g} seconds") from None
