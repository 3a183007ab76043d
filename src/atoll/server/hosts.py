"""Whom requests are for: a page that makes a name of its own point here is not answered (DNS rebinding)."""

from __future__ import annotations

import re
from collections.abc import Iterable

from starlette.types import Scope

from atoll.errors import InvalidRequest
from atoll.server.errors import Refusal

_LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9_.-]+)(?::([0-9]{1,5}))?", re.IGNORECASE)
_ANY = ("0.0.0.0", "::", "[::]", "")


class Hosts:
    """The names that this server answers to, whatever the port."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = {_as_name(name) for name in (*_LOOPBACK, *names) if name not in _ANY}

    def check(self, scope: Scope) -> str:
        """Return the header `Host` of a request; raises `Refusal`."""
        found: list[bytes] = [value for name, value in scope["headers"] if name == b"host"]
        if len(found) != 1:
            raise Refusal(InvalidRequest("a request has one header Host"), 400)
        host = found[0].decode("latin-1").lower()
        match = _HOST.fullmatch(host)
        if match is None or match[1].removesuffix(".") not in self._names:
            raise Refusal(
                InvalidRequest(
                    f"this server does not answer for host {host[:80]!r}",
                    next_step="use its own address, or have the operator add the name to server.hosts",
                ),
                421,
            )
        return host


def _as_name(host: str) -> str:
    """Return a name as it stands in a header, without a port."""
    name = host.rpartition("//")[2].lower()
    if name.count(":") > 1 and not name.startswith("["):
        return f"[{name}]"
    match = _HOST.fullmatch(name)
    return match[1] if match else name
