"""Streams to ports of a sandbox's own loopback, and listeners on it.

The host gets sockets of its own for them, and bytes are passed between those and the steward. What listens for the host is a
Unix socket that has no name any more, so that nobody else finds it and nothing is left of it on disk; whether the host
has closed it shows when somebody knocks.
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import tempfile
from collections.abc import Callable
from functools import partial

import anyio

from atoll.engines.inside.loopback import check_port, parse_loopback
from atoll.engines.steward.change import Change
from atoll.engines.steward.frames import Frame, parse_credit
from atoll.engines.steward.link import Link
from atoll.engines.steward.pump import Pump
from atoll.engines.steward.wire import ACCEPTED_BIT, Channel, Numbers, Order, Word
from atoll.errors import Conflict, LimitExceeded, Unavailable

_SECONDS = 10.0
_BACKLOG = 128
_MOST_LISTENERS = 256


class Ports:
    """The ports of one sandbox."""

    def __init__(self, link: Link, lowest: int, ended_error: Callable[[], Conflict]) -> None:
        self._link = link
        self._lowest = lowest
        self._ended_error = ended_error
        self._listeners: set[_Listener] = set()

    async def connect(self, port: int) -> socket.socket:
        """Return a stream connected to a port."""
        check_port(port, lowest=1)
        self._sweep()
        stream = _Stream(self._link)
        stream.number = self._link.add(stream)
        try:
            self._link.tell(Order.DIAL, stream.number, data=port.to_bytes(4, "little"))
            error = await self._answer(stream)
            if error:
                raise Unavailable(
                    f"nothing listens on port {port} in the sandbox: {os.strerror(error)}"
                )
            ours, theirs = socket.socketpair()
            stream.open(theirs)
        except BaseException:
            self._link.forget(stream.number)
            raise
        return ours

    async def listen(self, port: int, address: str) -> socket.socket:
        """Return a socket that listens on a port."""
        check_port(port, lowest=self._lowest)
        number = parse_loopback(address)
        self._sweep()
        if len(self._listeners) >= _MOST_LISTENERS:
            raise LimitExceeded(
                f"the host listens on {_MOST_LISTENERS} ports of the sandbox already; close some"
            )
        listener = _Listener(self._link)
        listener.number = self._link.add(listener)
        try:
            place = Numbers(a=port, b=ctypes.c_int32(number).value)
            self._link.tell(Order.LISTEN, listener.number, data=bytes(place))
            error = await self._answer(listener)
            if error == errno.EADDRINUSE:
                raise Conflict(f"port {port} is taken in the sandbox; choose another")
            if error:
                raise Unavailable(f"the sandbox cannot listen on port {port}: {os.strerror(error)}")
            ours = listener.open()
        except BaseException:
            self._link.forget(listener.number)
            listener.close()
            raise
        self._listeners.add(listener)
        return ours

    def close(self) -> None:
        """Let go of what the host has for it."""
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()

    async def _answer(self, asked: _Asked) -> int:
        with anyio.move_on_after(_SECONDS):
            error = await asked.answer()
            if error is None:
                raise self._ended_error()
            return error
        return errno.ETIMEDOUT

    def _sweep(self) -> None:
        """Let go of the ports whose sockets the host has closed."""
        for listener in [each for each in self._listeners if not each.is_open()]:
            self._listeners.discard(listener)
            self._link.forget(listener.number)
            listener.close()


class _Asked:
    """Something that a steward was asked for and answers once."""

    number = 0

    def __init__(self) -> None:
        self._change = Change()
        self._error: int | None = None
        self._is_lost = False

    async def answer(self) -> int | None:
        """Return 0 or an error number; None if the sandbox has ended."""
        await self._change.until(lambda: self._error is not None or self._is_lost)
        return self._error

    def _take_answer(self, frame: Frame) -> bool:
        if frame.word not in (Word.CONNECTED, Word.REFUSED) or self._error is not None:
            return False
        if len(frame.data) != ctypes.sizeof(Numbers):
            raise Unavailable("the sandbox says what makes no sense of a port; it was destroyed")
        refused = frame.word == Word.REFUSED
        self._error = (Numbers.from_buffer_copy(frame.data).a or errno.EIO) if refused else 0
        self._change.tell()
        return True

    def lose(self) -> None:
        """Take note that the sandbox has ended."""
        self._is_lost = True
        self._change.tell()


class _Stream(_Asked):
    """A connection with a port."""

    def __init__(self, link: Link) -> None:
        super().__init__()
        self._link = link
        self._pump: Pump | None = None
        self._is_unread = self._is_over = False

    def skip_answer(self) -> None:
        """It is there already: the steward has accepted it."""
        self._error = 0

    def open(self, theirs: socket.socket) -> None:
        """Begin to pass on bytes."""
        self._pump = Pump(self._link, self.number, theirs, partial(self._link.forget, self.number))
        if self._is_unread:
            self._pump.refuse_input()
        if self._is_over:
            self._pump.end_output()

    def hear(self, frame: Frame) -> None:
        """Take a word about this stream."""
        pump = self._pump
        if self._take_answer(frame):
            return
        if pump is None and frame.word == Word.END:
            # Whoever listened there has closed it at once.
            if frame.channel == Channel.INPUT:
                self._is_unread = True
            else:
                self._is_over = True
            return
        if pump is None:
            raise Unavailable("the sandbox speaks on a port that is not open; it was destroyed")
        if frame.word == Word.DATA and frame.channel == Channel.TALK:
            if not pump.put(frame.data):
                raise Unavailable("the sandbox sends more than it was asked for; it was destroyed")
        elif frame.word == Word.END and frame.channel == Channel.TALK:
            pump.end_output()
        elif frame.word == Word.END:
            pump.refuse_input()
        elif frame.word == Word.CREDIT:
            pump.add_credit(parse_credit(frame))
        else:
            raise Unavailable("the sandbox says what makes no sense of a port; it was destroyed")

    def lose(self) -> None:
        """Take note that the sandbox has ended."""
        super().lose()
        if self._pump is not None:
            self._pump.close()


class _Listener(_Asked):
    """A port on which the host listens."""

    def __init__(self, link: Link) -> None:
        super().__init__()
        self._link = link
        self._place: int | None = None  # the socket's file, which can be knocked at without a name

    def open(self) -> socket.socket:
        """Return the host's end."""
        listener = socket.socket(socket.AF_UNIX)
        try:
            with tempfile.TemporaryDirectory(prefix="atoll-port-") as folder:
                path = f"{folder}/port"
                listener.bind(path)
                self._place = os.open(path, os.O_PATH | os.O_CLOEXEC)
            listener.listen(_BACKLOG)
        except BaseException:
            listener.close()
            raise
        return listener

    def close(self) -> None:
        """Know it no more; safe to call twice."""
        place, self._place = self._place, None
        if place is not None:
            os.close(place)

    def _path(self) -> str:
        if self._place is None:
            raise ConnectionRefusedError(errno.ECONNREFUSED, "nobody listens any more")
        return f"/proc/self/fd/{self._place}"

    def is_open(self) -> bool:
        """Whether anybody on the host still listens: a knock of another kind shows it, and reaches nobody."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as knock:
            try:
                knock.connect(self._path())
            except OSError as error:
                return error.errno == errno.EPROTOTYPE
        return True

    def hear(self, frame: Frame) -> None:
        """Take a word about this listener."""
        if self._take_answer(frame):
            return
        if frame.word != Word.ACCEPTED or len(frame.data) != ctypes.sizeof(Numbers):
            raise Unavailable("the sandbox says what makes no sense of a port; it was destroyed")
        number = Numbers.from_buffer_copy(frame.data).a & 0xFFFFFFFF
        if not number & ACCEPTED_BIT or not self._link.has_room_for(number):
            raise Unavailable("the sandbox accepts what is not its own to name; it was destroyed")
        self._accept(number)

    def _accept(self, number: int) -> None:
        try:
            theirs = _knock(self._path())
        except (
            OSError
        ):  # nobody listens any more, too many wait, or the host has no descriptor left
            self._link.tell(Order.RELEASE, number)
            return
        stream = _Stream(self._link)
        stream.number = number
        stream.skip_answer()
        self._link.add_accepted(number, stream)
        stream.open(theirs)


def _knock(path: str) -> socket.socket:
    knocking = socket.socket(socket.AF_UNIX)
    try:
        knocking.setblocking(False)
        knocking.connect(path)
    except BaseException:
        knocking.close()
        raise
    return knocking
