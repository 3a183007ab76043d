"""A node with a real proxy process, and the outside that it may be let out to."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from atoll.egress.door import EgressDoor
from tests.egress.inside import Node, Told
from tests.egress.outside import NameServer, WebServer, make_certificate, serving

# Names that the operator opened: they may lie on the loopback.
NAMES = ("web.example", "other.example", "tls.example", "a.wild.example", "rebind.example")
OPENED = {name: ["127.0.0.0/8", "::1/128"] for name in NAMES}


@pytest.fixture(scope="session")
def name_server() -> Iterator[NameServer]:
    with NameServer() as server:
        yield server


@pytest.fixture
def names(name_server: NameServer) -> NameServer:
    name_server.table = {name: ["127.0.0.1"] for name in NAMES}
    name_server.asked.clear()
    return name_server


@pytest.fixture(scope="session")
def shared_door(
    name_server: NameServer, certificate: tuple[Path, Path]
) -> Iterator[tuple[EgressDoor, Told]]:
    """A door that all tests may use who leave its process alone: starting one takes a while."""
    told = Told()
    door = EgressDoor(
        told,
        opened=OPENED,
        servers=[name_server.address],
        trusted=certificate[0].read_text(),
    )
    yield door, told
    door.close()


@pytest.fixture
def node(shared_door: tuple[EgressDoor, Told], names: NameServer) -> Iterator[Node]:
    node = Node(*shared_door)
    yield node
    node.close()


@pytest.fixture
def own_node(names: NameServer) -> Iterator[Node]:
    """A node with a proxy process of its own."""
    told = Told()
    door = EgressDoor(told, opened=OPENED, servers=[names.address])
    yield Node(door, told)
    door.close()


@pytest.fixture
def no_faults(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """No mistake of the proxy's own was told of meanwhile."""
    yield
    faults = [each.__dict__["text"] for each in caplog.records if each.msg == "egress.proxy_fault"]
    assert faults == []


@pytest.fixture
def web() -> Iterator[WebServer]:
    with serving(WebServer()) as server:
        yield server


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return make_certificate(tmp_path_factory.mktemp("tls"), "tls.example", "other.example")


@pytest.fixture
def secure_web(certificate: tuple[Path, Path]) -> Iterator[WebServer]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    with serving(WebServer(context)) as server:
        yield server


@pytest.fixture
def trust(certificate: tuple[Path, Path]) -> ssl.SSLContext:
    """What a client trusts that knows the secure server."""
    return ssl.create_default_context(cafile=certificate[0])
