"""What the target of a proxied request names: host, port and path. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from atoll.errors import InvalidRequest
from atoll.model.hosts import Host, parse_authority

_SCHEME = "http://"


@dataclass(frozen=True, slots=True)
class Target:
    """The parts of an absolute-form target; `path` includes the query and is never empty."""

    host: Host
    port: int
    path: str


def parse_target(text: str) -> Target:
    """Return the parts of `http://host[:port]/path?query`; raise `InvalidRequest` for any other form.

    For the target of a CONNECT there is `parse_authority(text)`, for a Host header `parse_authority(text, 80)`.
    """
    # Printable ASCII without spaces, as the grammar has it: some servers would cut or split at others.
    if not text.isascii() or not text.isprintable() or " " in text:
        raise _refused(text, "it holds white space, control or foreign characters")
    if text[: len(_SCHEME)].lower() != _SCHEME:
        raise _refused(text, "it does not start with 'http://'; for https use CONNECT")
    if "#" in text or "\\" in text:
        raise _refused(text, "it holds '#' or a backslash")
    rest = text[len(_SCHEME) :]
    authority, _, after = rest.partition("/")
    if "?" in authority:  # there is no path, and what follows belongs to the query
        authority, _, query = rest.partition("?")
        after = f"?{query}"
    host, port = parse_authority(authority, 80)
    return Target(host, port, f"/{after}")


def _refused(text: str, fault: str) -> InvalidRequest:
    return InvalidRequest(
        f"request target {text[:80]!r} is refused: {fault}; write it like 'http://api.example/v1/items'"
    )
