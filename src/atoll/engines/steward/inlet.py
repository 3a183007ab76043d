"""What is sent to an object: no more than its steward has room for."""

from __future__ import annotations

from atoll.engines.steward.change import Change
from atoll.engines.steward.link import Link
from atoll.engines.steward.wire import INPUT_CREDIT, MAX_DATA, Channel, Order


class Inlet:
    """One stream into a sandbox."""

    def __init__(self, link: Link, number: int) -> None:
        self._link = link
        self._number = number
        self._credit = INPUT_CREDIT
        self._change = Change()
        self.is_open = True  # somebody reads it, as far as is known

    def add_credit(self, count: int) -> None:
        """Let more be sent."""
        self._credit += count
        self._change.tell()

    def refuse(self) -> None:
        """Take note that nobody reads it any more."""
        self.is_open = False
        self._change.tell()

    async def send(self, data: bytes | memoryview) -> bool:
        """Send all of it, as room comes free; False if nobody reads it any more."""
        view = memoryview(data)
        while view:
            await self._change.until(lambda: self._credit > 0 or not self.is_open)
            if not self.is_open:
                return False
            part = view[: min(self._credit, MAX_DATA)]
            self._credit -= len(part)
            self._link.tell(Order.DATA, self._number, Channel.INPUT, bytes(part))
            view = view[len(part) :]
        await self._link.flushed()
        return self.is_open

    def end(self) -> None:
        """Say that this was all."""
        if self.is_open:
            self.is_open = False
            self._link.tell(Order.END, self._number)
            self._change.tell()
