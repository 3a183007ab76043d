"""What is round a steward."""

from __future__ import annotations

from typing import Protocol

from atoll.model.process import ProcessEnd


class Wall(Protocol):
    """A container, or whatever else keeps a steward in."""

    async def pause(self) -> None:
        """Stop every process in place."""
        ...

    async def resume(self) -> None:
        """Let every process go on."""
        ...

    async def stop(self) -> None:
        """End every process and keep the rest; safe to call twice.

        Raises:
            Unsupported: there is nothing that could be kept.
            Unavailable: that failed.
        """
        ...

    async def remove(self) -> None:
        """End every process and remove everything; safe to call twice.

        Raises:
            Unavailable: that failed.
        """
        ...

    def explain(self, end: ProcessEnd) -> ProcessEnd:
        """Tell deaths apart by what the limits have counted since the last one."""
        ...
