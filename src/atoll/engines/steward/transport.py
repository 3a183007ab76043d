"""How bytes get to a steward and back."""

from __future__ import annotations

from typing import Protocol


class Transport(Protocol):
    """Two streams of bytes: to a steward's standard input, and from its standard output."""

    async def receive(self) -> bytes:
        """Return what came next; nothing at the end."""
        ...

    async def send(self, data: bytes) -> None:
        """Send all of it; raises `OSError` once nobody takes it any more."""
        ...

    async def close(self) -> None:
        """Let go of both; safe to call twice."""
        ...
