"""Waiting until something has changed."""

from __future__ import annotations

from collections.abc import Callable

import anyio


class Change:
    """Wakes all who wait, as often as something changes."""

    def __init__(self) -> None:
        self._event = anyio.Event()

    def tell(self) -> None:
        """Wake those who wait now."""
        event, self._event = self._event, anyio.Event()
        event.set()

    async def until(self, true: Callable[[], bool]) -> None:
        """Return once it is true; it is looked at after every change."""
        while not true():
            await self._event.wait()

    async def wait(self) -> None:
        """Return after the next change."""
        await self._event.wait()
