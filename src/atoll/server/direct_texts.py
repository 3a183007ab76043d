"""An extension of ASGI: an application sees a WebSocket's plain messages as they come, and answers at once.

To pass a message on to whoever waits for it, and the answer back through all that stands before an application, takes as long as a cell.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from starlette.types import Scope

NAME = "atoll.direct_texts"
# Returns whether it took a message; it waits for nothing.
Taker = Callable[[str], bool]


class DirectTexts(Protocol):
    """A WebSocket."""

    def take_directly(self, taker: Taker) -> None:
        """Show plain messages to `taker` as they come; those that it does not take are received as ever."""
        ...

    def send_directly(self, text: str) -> None:
        """Send a plain message: the answer to one that has just been taken."""
        ...


def find_direct_texts(scope: Scope) -> DirectTexts:
    """Return the WebSocket that a scope is about; at another server's door nothing is taken directly."""
    found: DirectTexts = scope.get("extensions", {}).get(NAME, _NONE)
    return found


class _Nowhere:
    def take_directly(self, taker: Taker) -> None:
        pass

    def send_directly(self, text: str) -> None:
        pass


_NONE = _Nowhere()
