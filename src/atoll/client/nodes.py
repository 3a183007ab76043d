"""Who makes the SDK's sandboxes: a node in this process, or the server at an address."""

from __future__ import annotations

from atoll.client.containers import check_endpoint
from atoll.client.face import Errands
from atoll.client.places import server_address, server_token
from atoll.engines.catalog import CONTAINER_ENGINES, DEFAULT_ENGINE
from atoll.errors import InvalidRequest


def find_errands(
    url: str | None = None, token: str | None = None, engine: str | None = None
) -> Errands:
    """Return who is asked: the server at `url`, else at ATOLL_URL, else, and if `url` is empty, this process.

    A container engine at `url`, as `docker+unix:///run/docker.sock`, is used by this process, too.

    Raises:
        InvalidRequest: a token without a server, or another engine than the one at `url`.
    """
    address = server_address() if url is None else url
    kind, plus, endpoint = address.partition("+")
    is_engine = bool(plus) and kind in CONTAINER_ENGINES
    if not address or is_engine:
        if token is not None:
            raise InvalidRequest("a token is for a server; name that with url=… or ATOLL_URL, too")
        from atoll.client.embedded_sandboxes import EmbeddedErrands

        if not is_engine:
            return EmbeddedErrands(engine or DEFAULT_ENGINE)
        if engine not in (None, kind):
            raise InvalidRequest(
                f"{address[:80]!r} is no place of engine {engine!r}; leave one out"
            )
        return EmbeddedErrands(kind, check_endpoint(endpoint))
    # Loaded only where it is used: it brings an HTTP client.
    from atoll.client.remote.errands import RemoteErrands

    return RemoteErrands(address, server_token() if token is None else token, engine)
