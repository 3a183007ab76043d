"""Which names mean members of a private network, and how the proxy gets streams to them."""

from __future__ import annotations

import queue
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from atoll.egress.door import EgressDoor, StreamAnswer, StreamWish
from atoll.egress.peers import Peer, Peers
from atoll.egress.policy import Attempt
from atoll.model.hosts import parse_host
from atoll.model.ids import new_sandbox_id
from atoll.model.network import Network, NetworkLimits
from tests.egress.inside import PATIENCE_SECONDS, Node, Told, read_all
from tests.egress.outside import bare_server

DB = new_sandbox_id()
PEERS = Peers("build", {"db": Peer(DB, (5432,))})


def ask(name: str, port: int = 5432, *rules: str, private: str | None = "build") -> str | bool:
    """Return who is meant, whether it is refused, or `outside`."""
    network = Network.parse(list(rules), private=private)
    verdict = PEERS.decide(network, Attempt("tcp", parse_host(name), port))
    if verdict is None:
        return "outside"
    return verdict.peer or verdict.allowed


@pytest.mark.parametrize("name", ["db", "DB", "db.build.internal", "Db.Build.INTERNAL"])
def test_a_member_goes_by_two_names(name: str) -> None:
    assert ask(name) == DB


@pytest.mark.parametrize("name", ["db", "db.build.internal"])
def test_ports_that_it_does_not_serve_are_refused(name: str) -> None:
    assert ask(name, 22) is False


@pytest.mark.parametrize(
    "name",
    ["x.build.internal", "x.db.build.internal", "db.x.build.internal", "localhost.build.internal"],
)
def test_nothing_below_the_networks_own_domain_is_outside(name: str) -> None:
    assert ask(name, 5432, "*.internal") is False


@pytest.mark.parametrize(
    "name",
    ["x", "db.example", "db.other.internal", "build.internal", "internal", "xdb", "127.0.0.1"],
)
def test_all_other_names_are_no_business_of_the_network(name: str) -> None:
    assert ask(name) == "outside"


def test_a_rule_about_a_host_of_the_short_name_wins() -> None:
    assert ask("db", 5432, "tcp://db:5432") == "outside"
    assert ask("db", 5432, "db") == "outside"
    assert ask("db.build.internal", 5432, "db") == DB


def test_members_of_a_network_that_was_left_are_not_found() -> None:
    assert ask("db", private=None) == "outside"
    assert ask("db.build.internal", private=None) == "outside"
    assert ask("db", private="other") == "outside"
    assert ask("db.other.internal", private="other") is False


# --- streams, through a real proxy process ------------------------------------------------------------------------


class Wishes:
    """Streams that the proxy has asked for."""

    def __init__(self) -> None:
        self.heard: queue.Queue[tuple[StreamWish, StreamAnswer]] = queue.Queue()

    def __call__(self, wish: StreamWish, answer: StreamAnswer) -> None:
        self.heard.put((wish, answer))

    def next(self) -> tuple[StreamWish, StreamAnswer]:
        return self.heard.get(timeout=PATIENCE_SECONDS)


@pytest.fixture
def wishes() -> Wishes:
    return Wishes()


@pytest.fixture
def meeting(wishes: Wishes) -> Iterator[Node]:
    """A node with a proxy process of its own."""
    told = Told()
    door = EgressDoor(told, wished=wishes)
    yield Node(door, told)
    door.close()


ROOM = NetworkLimits(connections=1000, connections_per_second=10_000)
MEMBER = Network.parse("none", private="build", limits=ROOM)


def test_a_request_and_a_listener_get_the_stream_that_the_node_hands_over(
    meeting: Node, wishes: Wishes
) -> None:
    place = parse_host("db.build.internal"), 5432
    inside = meeting.add(MEMBER, place)
    meeting.door.introduce(inside.id, "build", {"db": Peer(DB, (5432,))})
    answer_http = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

    def serve(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(answer_http)

    with bare_server(serve) as port, ThreadPoolExecutor() as threads:
        asked = threads.submit(inside.get, "http://db:5432/page")
        wish, answer = wishes.next()
        assert wish == StreamWish(inside.id, DB, 5432)
        answer(socket.create_connection(("127.0.0.1", port)), "")
        assert (asked.result().status, asked.result().body) == (200, b"ok")
        with inside.connect(inside.ports[0]) as raw:
            wish, answer = wishes.next()
            assert wish == StreamWish(inside.id, DB, 5432)
            answer(socket.create_connection(("127.0.0.1", port)), "")
            raw.sendall(b"anything")
            assert read_all(raw) == answer_http
    noted = meeting.wait_for(2)
    assert [each.address for each in noted] == [DB, DB]
    assert [each.verdict for each in noted] == ["allowed", "allowed"]


def test_who_asks_before_the_peers_are_known_waits(meeting: Node, wishes: Wishes) -> None:
    inside = meeting.add(MEMBER)
    with ThreadPoolExecutor() as threads:
        asked = threads.submit(inside.get, "http://db:5432/")
        time.sleep(0.5)
        assert not asked.done()
        meeting.door.introduce(inside.id, "build", {"db": Peer(DB, (5432,))})
        _, answer = wishes.next()
        answer(None, "nothing listens there")
        assert (asked.result().status, asked.result().body) == (
            502,
            b"atoll: nothing listens there\n",
        )


def test_a_stream_that_comes_too_late_is_closed(meeting: Node, wishes: Wishes) -> None:
    inside = meeting.add(MEMBER)
    meeting.door.introduce(inside.id, "build", {"db": Peer(DB, (5432,))})
    pid = meeting.wait_for_proxy()
    connection = inside.connect()
    connection.sendall(b"CONNECT db:5432 HTTP/1.1\r\nHost: db:5432\r\n\r\n")
    _, answer = wishes.next()
    meeting.door.remove(inside.id)
    connection.close()
    meeting.wait_for(1)
    ours, theirs = socket.socketpair()
    answer(theirs, "")
    ours.settimeout(PATIENCE_SECONDS)
    assert ours.recv(1) == b""  # every copy is closed
    ours.close()
    assert meeting.wait_for_proxy() == pid


def test_streams_to_who_leaves_end_before_it_is_told(meeting: Node, wishes: Wishes) -> None:
    inside = meeting.add(MEMBER)
    other = Peer(new_sandbox_id(), (5432,))
    meeting.door.introduce(inside.id, "build", {"db": Peer(DB, (5432,)), "other": other})
    streams = []
    for name in ("db", "other"):
        with ThreadPoolExecutor() as threads:
            asked = threads.submit(inside.tunnel, f"{name}:5432")
            _, answer = wishes.next()
            ours, theirs = socket.socketpair()
            answer(theirs, "")
            streams.append((asked.result(), ours))
    # The same name, and another sandbox behind it: what is under way must not go on as if it were the same.
    meeting.door.introduce(
        inside.id, "build", {"db": Peer(new_sandbox_id(), (5432,)), "other": other}
    )
    (cut, cut_end), (kept, kept_end) = streams
    cut.setblocking(False)
    with pytest.raises(ConnectionResetError):
        cut.recv(1)
    kept.sendall(b"still here")
    assert kept_end.recv(100) == b"still here"
    for each in (cut, cut_end, kept, kept_end):
        each.close()
