"""A socket of the host's for what an object inside is connected with: a kernel's channel, a port."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from atoll.engines.steward.change import Change
from atoll.engines.steward.inlet import Inlet
from atoll.engines.steward.link import Link
from atoll.engines.steward.outlet import Outlet
from atoll.engines.steward.wire import Channel, Order

_CHUNK = 65536


class Pump:
    """Passes bytes between a socket and an object, both ways, until both have ended."""

    def __init__(
        self,
        link: Link,
        number: int,
        ours: socket.socket,
        on_end: Callable[[], None] = lambda: None,
    ) -> None:
        self._link = link
        self._on_end = on_end
        self._socket = ours
        self._inlet = Inlet(link, number)
        self._outlet = Outlet(partial(give_credit, link, number, Channel.TALK))
        self._change = Change()
        self._is_over = False
        self._open_ends = 2
        ours.setblocking(False)
        for work in (self._inwards, self._outwards):
            link.own(asyncio.create_task(work()))

    def add_credit(self, count: int) -> None:
        """Let more go in."""
        self._inlet.add_credit(count)

    def refuse_input(self) -> None:
        """Take note that nobody inside reads it any more."""
        self._inlet.refuse()

    def put(self, data: bytes) -> bool:
        """Pass on what came out; False if that is more than there was credit for."""
        fits = self._outlet.put(data, 0.0)
        self._change.tell()
        return fits

    def end_output(self) -> None:
        """Nothing more comes out."""
        self._outlet.has_ended = True
        self._change.tell()

    def close(self) -> None:
        """Let go of the socket; its other end sees that what came out has ended."""
        self._is_over = True
        self._inlet.refuse()
        self.end_output()

    async def _inwards(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            with suppress(OSError):
                while data := await loop.sock_recv(self._socket, _CHUNK):
                    if not await self._inlet.send(data):
                        break
            self._inlet.end()
        finally:
            self._end()

    async def _outwards(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            with suppress(OSError):
                while not (self._outlet.is_empty and self._outlet.has_ended):
                    piece = self._outlet.take()
                    if piece is None:
                        await self._change.wait()
                    elif not self._is_over:
                        await loop.sock_sendall(self._socket, piece[0])
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_WR)
            if self._is_over:
                with suppress(OSError):
                    self._socket.shutdown(socket.SHUT_RD)  # wakes the other direction
        finally:
            self._end()

    def _end(self) -> None:
        self._open_ends -= 1
        if not self._open_ends:
            self._socket.close()
            self._on_end()


def give_credit(link: Link, number: int, channel: Channel, count: int) -> None:
    """Let an object send more on one of its channels."""
    link.tell(Order.CREDIT, number, channel, count.to_bytes(4, "little"))
