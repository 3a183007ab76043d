"""The connection with one steward: who says what about which object, in the order in which it was said."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from atoll.engines.steward.change import Change
from atoll.engines.steward.frames import Decoder, Frame, encode
from atoll.engines.steward.transport import Transport
from atoll.engines.steward.wire import ACCEPTED_BIT, MAX_OBJECTS, Order, Word
from atoll.errors import AtollError

# A steward that does not hear from anybody ends its sandbox after a while; see steward.c.
PING_SECONDS = 10.0
_MOST_AT_ONCE = 1 << 20
# A steward that takes nothing any more is none.
_MOST_WAITING = 64 << 20


class Listener(Protocol):
    """Who wants to know what a steward says about an object."""

    def hear(self, frame: Frame) -> None:
        """Take a word; raises for one that makes no sense, which ends the sandbox."""
        ...

    def lose(self) -> None:
        """Take note that no more words will come."""
        ...


class Link:
    """Both directions of a connection, each with a task of its own."""

    def __init__(self, transport: Transport, on_end: Callable[[str], None]) -> None:
        self._transport = transport
        self._on_end = on_end
        self._listeners: dict[int, Listener] = {}
        self._numbers = 0
        self._waiting = bytearray()
        self._change = Change()
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_over = False
        self.hello: bytes | None = None

    @property
    def is_over(self) -> bool:
        """Whether nothing comes any more."""
        return self._is_over

    def open(self) -> None:
        """Begin to listen."""
        for work in (self._listen, self._speak, self._ping):
            self.own(asyncio.create_task(work()))

    def own(self, task: asyncio.Task[None]) -> None:
        """Have a task end with the connection."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def greeting(self) -> bytes | None:
        """Return the steward's first word, or None if it never came."""
        await self._change.until(lambda: self.hello is not None or self._is_over)
        return self.hello

    def add(self, listener: Listener) -> int:
        """Return a number for a new object, about which `listener` hears everything."""
        self._numbers = (self._numbers + 1) % ACCEPTED_BIT or 1
        self._listeners[self._numbers] = listener
        return self._numbers

    def has_room_for(self, number: int) -> bool:
        """Whether a steward may give this number to something new: it is not in use, and there are not too many."""
        return number not in self._listeners and len(self._listeners) < 2 * MAX_OBJECTS

    def add_accepted(self, number: int, listener: Listener) -> None:
        """Let somebody hear about an object that the steward has given a number."""
        self._listeners[number] = listener

    def forget(self, number: int) -> None:
        """Let go of an object, here and there."""
        if self._listeners.pop(number, None) is not None:
            self.tell(Order.RELEASE, number)

    def tell(self, order: Order, number: int = 0, channel: int = 0, data: bytes = b"") -> None:
        """Have an order sent; nothing happens once the connection is over."""
        if not self._is_over:
            self._waiting += encode(order, number, channel, data)
            self._change.tell()
            if len(self._waiting) > _MOST_WAITING:
                self._end("it does not listen any more")

    async def flushed(self) -> None:
        """Return when there is not much left to be sent, for those who send much."""
        await self._change.until(lambda: len(self._waiting) < _MOST_AT_ONCE or self._is_over)

    async def close(self) -> None:
        """End the connection; all who listen are told."""
        self._end("it was closed")
        tasks = [task for task in self._tasks if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._transport.close()

    async def _listen(self) -> None:
        decoder = Decoder()
        why = "it ended"
        try:
            while data := await self._transport.receive():
                for frame in decoder.feed(data):
                    self._pass_on(frame)
        except (OSError, EOFError) as error:
            why = f"the connection with it was lost: {error}"
        except AtollError as error:
            why = str(error)
        finally:
            self._end(why)

    def _pass_on(self, frame: Frame) -> None:
        if frame.word == Word.HELLO and self.hello is None:
            self.hello = frame.data
            self._change.tell()
            return
        listener = self._listeners.get(frame.object)
        # About one that was let go of, more words may have been on their way.
        if listener is not None:
            listener.hear(frame)
        elif frame.word == Word.DATA and frame.object & ACCEPTED_BIT:
            self.tell(Order.RELEASE, frame.object)

    async def _speak(self) -> None:
        try:
            while True:
                await self._change.until(lambda: bool(self._waiting))
                data, self._waiting = bytes(self._waiting), bytearray()
                await self._transport.send(data)
                self._change.tell()
        except OSError as error:
            self._end(f"the connection with it was lost: {error}")

    async def _ping(self) -> None:
        while True:
            await asyncio.sleep(PING_SECONDS)
            self.tell(Order.PING)

    def _end(self, why: str) -> None:
        if self._is_over:
            return
        self._is_over = True
        listeners, self._listeners = list(self._listeners.values()), {}
        self._on_end(why)
        for listener in listeners:
            listener.lose()
        self._change.tell()
