"""What stands before the application at each door, and says who asks.

Who asks is told by the door, never by what a request says about where it came from: each listener has a front of its own.
The TCP door is open to anybody, so its front decides in this order: for whom the request is, which page asks, how large its
head is, how often he asked, and who he is. Whoever has not shown that reaches only what is meant for everybody.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from atoll.errors import InvalidRequest, LimitExceeded, Unauthorized
from atoll.model.access import OPERATOR, Caller, Way
from atoll.model.sizes import KIB, format_size
from atoll.node.counters import Counters
from atoll.server.access import Access
from atoll.server.addresses import find_address, network_of
from atoll.server.browser_headers import add_browser_headers
from atoll.server.errors import Refusal
from atoll.server.hosts import Hosts
from atoll.server.origins import Origins
from atoll.server.protocols import MOST_HEAD_BYTES
from atoll.server.rates import Rates

MOST_ADDRESS_BYTES = 8 * KIB
MOST_HEADERS = 100

_VERSIONS = ("1.0", "1.1")
# Whoever looks after the server asks these often, and they cost no more than a refusal.
_UNCOUNTED = frozenset({"/health", "/ready"})
_BURST_SECONDS = 2.0


class SocketFront:
    """Before the node's own socket, which only its user can open: whoever comes that way is that user."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope.setdefault("state", {})["caller"] = OPERATOR
        await self._app(scope, receive, send)


@dataclass(frozen=True, slots=True)
class FrontRules:
    """What the TCP door lets through; `open_paths` are those that need nobody to be known."""

    hosts: Collection[str]
    cors_origins: Collection[str]
    proxies: Collection[str]
    requests_per_second: float
    requests_per_address: float
    strangers_per_second: float
    open_paths: Collection[str]


class Front:
    """Before the TCP door."""

    def __init__(self, app: ASGIApp, access: Access, rules: FrontRules, counters: Counters) -> None:
        self._app = app
        self._access = access
        self._rules = rules
        self._counters = counters
        self._hosts = Hosts(rules.hosts)
        self._origins = Origins(rules.cors_origins)
        self._shared = self._origins.share(self._admit)
        self._by_caller = _rates(rules.requests_per_second)
        self._by_address = _rates(rules.requests_per_address)
        self._strangers = _rates(rules.strangers_per_second)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        send = add_browser_headers(send)
        try:
            host = self._hosts.check(scope)
            is_shared = self._origins.check(scope, host)
            _check_head(scope)
        except Refusal as refusal:
            await self._refuse(refusal, scope, receive, send)
            return
        answer = self._shared if is_shared else self._admit
        await answer(scope, receive, send)

    async def _admit(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            caller = self._find_caller(scope)
        except Refusal as refusal:
            await self._refuse(refusal, scope, receive, send)
            return
        scope.setdefault("state", {})["caller"] = caller
        if caller is None:
            await self._app(scope, receive, send)
        else:
            await self._access.serve(caller, self._app, scope, receive, send)

    def _find_caller(self, scope: Scope) -> Caller | None:
        """Return who asks, or None where that does not matter; raises `Refusal`."""
        network = network_of(find_address(scope, self._rules.proxies))
        scope.setdefault("state", {})["network"] = network
        headers = Headers(scope=scope)
        try:
            caller = self._access.find_caller(headers)
        except Unauthorized as error:
            self._meet_stranger(error, scope, headers, network)
            return None
        if caller.way is Way.SESSION:
            self._origins.check_own(scope, headers["host"].lower())
        # Strangers have a count of their own: what they do at an address costs nobody else there.
        self._by_address.count(network, "of this address")
        self._by_caller.count(caller.token or caller.owner, "with this token")
        return caller

    def _meet_stranger(
        self, error: Unauthorized, scope: Scope, headers: Headers, network: str
    ) -> None:
        # Counted after it was looked at, so that nobody's wrong guesses keep out whoever shows a right one.
        if "authorization" in headers:
            self._access.count_failure(network)
        path = scope["path"]
        if path not in _UNCOUNTED:
            self._strangers.count(network, "without a token")
        if not self._is_open(scope):
            raise Refusal(error, 401, {"WWW-Authenticate": "Bearer"})

    def _is_open(self, scope: Scope) -> bool:
        # As it was sent: no way of writing a path makes another one pass for it.
        raw: bytes = scope.get("raw_path") or b""
        return scope["type"] == "http" and raw.decode("latin-1") in self._rules.open_paths

    async def _refuse(self, refusal: Refusal, scope: Scope, receive: Receive, send: Send) -> None:
        self._counters.refusals.add(refusal.error.code)
        if refusal.status == 400:
            # What follows may be no request, either.
            refusal.headers = {"Connection": "close"}
        await refusal.answer()(scope, receive, send)


def _rates(per_second: float) -> Rates:
    return Rates(per_second, max(per_second * _BURST_SECONDS, 1.0))


def _check_head(scope: Scope) -> None:
    raw: bytes = scope.get("raw_path") or b""
    if not raw.startswith(b"/"):
        raise Refusal(InvalidRequest("the address of a request begins with a slash"), 400)
    if len(raw) + len(scope["query_string"]) > MOST_ADDRESS_BYTES:
        raise _too_long("the address", 414, MOST_ADDRESS_BYTES)
    headers = scope["headers"]
    if len(headers) > MOST_HEADERS:
        error = LimitExceeded(f"the request has {len(headers)} headers, the most is {MOST_HEADERS}")
        raise Refusal(error, 431)
    if sum(len(name) + len(value) for name, value in headers) > MOST_HEAD_BYTES:
        raise _too_long("the headers together", 431, MOST_HEAD_BYTES)
    if scope["http_version"] not in _VERSIONS:
        raise Refusal(InvalidRequest("a request is of HTTP/1.1 here"), 400)
    names = {name for name, _ in headers}
    if {b"content-length", b"transfer-encoding"} <= names:
        # Others on the way may believe the one or the other.
        error_ = InvalidRequest("a request has a Content-Length or a Transfer-Encoding, not both")
        raise Refusal(error_, 400)


def _too_long(what: str, status: int, most: int) -> Refusal:
    error = LimitExceeded(f"{what} may take {format_size(most)}", limit_bytes=most)
    return Refusal(error, status)
