"""Spans of requests: they reach a collector, without what lets anybody in, and are missed by nobody who has none."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from atoll.errors import Unsupported
from atoll.server.tracing import open_tracing
from tests.cli.conftest import why_not
from tests.http_exchange import ask
from tests.running_server import running_server


class Collector(HTTPServer):
    """Keeps what it is sent."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Taker)
        self.taken = b""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1/traces"


class _Taker(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        assert isinstance(self.server, Collector)
        self.server.taken += self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_words: object) -> None:
        pass


@contextmanager
def collecting() -> Iterator[Collector]:
    with Collector() as collector:
        thread = threading.Thread(target=collector.serve_forever)
        thread.start()
        try:
            yield collector
        finally:
            collector.shutdown()
            thread.join()


def test_requests_are_told_and_nothing_that_lets_anybody_in() -> None:
    if reason := why_not("namespaces"):
        pytest.skip(f"engine namespaces does not work here: {reason}")
    with collecting() as collector:
        with running_server(ATOLL_TRACE__OTLP_URL=collector.url) as server:
            assert ask(server, "GET", "/sandboxes?limit=7", token=server.token).status == 200
            assert server.login is not None and server.token is not None
            assert ask(server, "GET", server.login.removeprefix(server.url)).status == 200
        # The end of the server sends what is left.
        assert b"/sandboxes" in collector.taken and b"limit=7" in collector.taken
        assert server.login.rpartition("=")[2].encode() not in collector.taken
        assert server.token.encode() not in collector.taken


def test_a_collector_that_is_away_holds_nothing_up() -> None:
    if reason := why_not("namespaces"):
        pytest.skip(f"engine namespaces does not work here: {reason}")
    with running_server(ATOLL_TRACE__OTLP_URL="http://127.0.0.1:9/v1/traces") as server:
        assert ask(server, "GET", "/sandboxes", token=server.token).status == 200
        assert server.stop() == 0


async def test_without_an_address_nothing_is_told_whatever_the_environment_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FASTAPI_OTEL_AUTO_CONFIGURE", "true")
    async with open_tracing(None) as telemetry:
        told = {
            name for name in ("tracing", "metrics", "logs", "auto_configure") if telemetry[name]
        }
    assert told == set()


async def test_packages_that_are_missing_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(Unsupported, match="opentelemetry") as missing:
        async with open_tracing("http://127.0.0.1:9"):
            pass
    assert "atoll[otel]" in missing.value.details["next_step"]
