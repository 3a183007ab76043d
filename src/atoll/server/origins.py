"""Which pages may ask: our own, and those that the operator names."""

from __future__ import annotations

from collections.abc import Collection

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Scope

from atoll.errors import Forbidden
from atoll.server.errors import Refusal

_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")
_ASKED = ("Authorization", "Content-Type", "Idempotency-Key", "Last-Event-ID", "Range", "If-Match")
_TOLD = (
    *("Atoll-Execution", "Atoll-Next-Cursor", "Idempotent-Replay", "Retry-After"),
    *("ETag", "Content-Range", "Content-Disposition"),
)
_SAFE = ("GET", "HEAD", "OPTIONS")


class Origins:
    """Tells pages apart by the header `Origin`, which browsers do not let a page choose."""

    def __init__(self, foreign: Collection[str]) -> None:
        self._foreign = frozenset(foreign)

    def check(self, scope: Scope, host: str) -> bool:
        """Return whether a foreign page asks that may; raises `Refusal` for one that may not."""
        origin = _origin(scope)
        if origin is None or _is_own(origin, host):
            return False
        if origin in self._foreign:
            return True
        raise _refusal(
            f"pages of {origin[:80]!r} may not ask this server",
            "have the operator add that to server.cors_origins",
        )

    def check_own(self, scope: Scope, host: str) -> None:
        """Raise `Refusal` unless what changes something was asked by a page of ours.

        For callers whom a browser shows by itself, whichever page asks.
        """
        changes = scope["type"] == "websocket" or scope["method"] not in _SAFE
        origin = _origin(scope)
        if origin is None and not changes:
            return
        if origin is None or not _is_own(origin, host):
            raise _refusal(
                "this came with a cookie, and not from this server's own page",
                "send a token in the header Authorization instead",
            )

    def share(self, app: ASGIApp) -> ASGIApp:
        """Return an application that also answers browsers who ask on behalf of foreign pages; never with cookies."""
        return CORSMiddleware(
            app,
            allow_origins=tuple(self._foreign),
            allow_methods=_METHODS,
            allow_headers=_ASKED,
            expose_headers=_TOLD,
        )


def _origin(scope: Scope) -> str | None:
    found = Headers(scope=scope).getlist("origin")
    # Two that differ equal none that is allowed.
    return ", ".join(found) if found else None


def _is_own(origin: str, host: str) -> bool:
    return origin.lower() in (f"http://{host}", f"https://{host}")


def _refusal(message: str, next_step: str) -> Refusal:
    return Refusal(Forbidden(message, next_step=next_step), 403)
