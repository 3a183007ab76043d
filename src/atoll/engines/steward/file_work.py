"""One piece of file work inside a sandbox, in a process of its own there."""

from __future__ import annotations

import ctypes
from collections.abc import AsyncIterator
from functools import partial

import anyio

from atoll.engines.inside.file_errors import file_error
from atoll.engines.inside.file_requests import pack_request
from atoll.engines.inside.wire import FilesOp, FilesReply
from atoll.engines.steward.change import Change
from atoll.engines.steward.frames import Frame, parse_credit
from atoll.engines.steward.inlet import Inlet
from atoll.engines.steward.link import Link
from atoll.engines.steward.outlet import Outlet
from atoll.engines.steward.pump import give_credit
from atoll.engines.steward.wire import MAX_DATA, Channel, Numbers, Order, Word
from atoll.errors import Unavailable

_SECONDS = 30.0


class FileWork:
    """What was asked for, what is sent for it, and what comes back."""

    def __init__(self, link: Link, path: str) -> None:
        self._link = link
        self._path = path
        self._change = Change()
        self._number = link.add(self)
        self._inlet = Inlet(link, self._number)
        self._error = 0
        self._was_lost = False
        self._held = bytearray()
        self._outlet: Outlet | None = None

    def begin(self, request: bytes) -> None:
        """Have the steward begin."""
        self._link.tell(Order.START_FILES, self._number, data=request)
        self._outlet = Outlet(partial(give_credit, self._link, self._number, Channel.OUTPUT))

    def hear(self, frame: Frame) -> None:
        """Take a word about this work."""
        outlet = self._outlet
        if frame.word == Word.DATA and outlet is not None and frame.channel == Channel.OUTPUT:
            if not outlet.put(frame.data, 0.0):
                raise Unavailable("the sandbox sends more than it was asked for; it was destroyed")
        elif frame.word == Word.END and frame.channel == Channel.OUTPUT and outlet is not None:
            outlet.has_ended = True
        elif frame.word == Word.END:
            self._inlet.refuse()
        elif frame.word == Word.CREDIT:
            self._inlet.add_credit(parse_credit(frame))
        elif frame.word == Word.FAILED and len(frame.data) == ctypes.sizeof(Numbers):
            self._error = Numbers.from_buffer_copy(frame.data).b
            self._inlet.refuse()
        elif frame.word != Word.GONE:
            raise Unavailable("the sandbox says what makes no sense of a file; it was destroyed")
        self._change.tell()

    def lose(self) -> None:
        """Take note that the sandbox has ended."""
        self._was_lost = True
        self._inlet.refuse()
        self._change.tell()

    def close(self) -> None:
        """Let go of it; what was not sent whole changes nothing."""
        self._link.forget(self._number)

    async def send(self, data: bytes | memoryview) -> bool:
        """Send a part of what is to be written; False if no more is wanted."""
        view = memoryview(data)
        while view:
            part = view[:MAX_DATA]
            if not await self._pass_on(len(part).to_bytes(4, "little") + part):
                return False
            view = view[len(part) :]
        return True

    async def end(self) -> None:
        """Say that this was all."""
        if await self._pass_on(bytes(4)):
            self._inlet.end()

    async def _pass_on(self, data: bytes) -> bool:
        with anyio.move_on_after(_SECONDS):
            return await self._inlet.send(data)
        self._link.tell(Order.KILL, self._number)
        raise Unavailable(f"the sandbox took nothing more for {self._path!r}; try again")

    async def reply(self) -> FilesReply:
        """Return the answer; raises what it says has failed."""
        reply = await self.answer()
        if reply.error:
            raise file_error(reply.error, self._path)
        return reply

    async def answer(self) -> FilesReply:
        """Return the answer, whatever it says."""
        data = await self.read(ctypes.sizeof(FilesReply))
        if len(data) < ctypes.sizeof(FilesReply):
            raise Unavailable(f"the sandbox did not answer for {self._path!r}; try again")
        return FilesReply.from_buffer_copy(data)

    async def read(self, count: int) -> bytes:
        """Return that many bytes of what comes back; fewer at the end."""
        while len(self._held) < count and (piece := await self._next()):
            self._held += piece
        data = bytes(self._held[:count])
        del self._held[:count]
        return data

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield what else comes back."""
        if self._held:
            yield await self.read(len(self._held))
        while piece := await self._next():
            yield piece

    async def _next(self) -> bytes:
        assert self._outlet is not None
        with anyio.move_on_after(_SECONDS):
            while True:
                piece = self._outlet.take()
                if piece is not None:
                    return piece[0]
                if self._error:
                    raise file_error(self._error, self._path)
                if self._was_lost:
                    raise anyio.ClosedResourceError
                if self._outlet.has_ended:
                    return b""
                await self._change.wait()
        self._link.tell(Order.KILL, self._number)
        raise Unavailable(f"the sandbox did not answer for {self._path!r}; try again")


def request(
    op: FilesOp,
    path: str,
    target: str = "",
    *,
    mode: int = 0,
    flags: int = 0,
    most_bytes: int = 0,
    offset: int = 0,
    length: int = 0,
) -> bytes:
    """Return file work as the steward takes it; offset and length are of what is wanted back."""
    part = offset.to_bytes(8, "little") + length.to_bytes(8, "little")
    return pack_request(op, path, target, part, mode=mode, flags=flags, most_bytes=most_bytes)
