"""Whatever a name leads to, only addresses that were checked are dialled."""

from __future__ import annotations

import socket
from collections.abc import Sequence

import pytest

from atoll.model.hosts import Host
from atoll.model.network import Network
from tests.campaigns import Campaign
from tests.egress.inside import Node
from tests.egress.outside import NameServer, WebServer, bare_server


@pytest.mark.parametrize(
    "answer",
    [
        ["127.0.0.1"],
        ["10.1.2.3"],
        ["169.254.169.254"],
        ["100.64.0.1"],
        ["0.0.0.0"],
        ["224.0.0.1"],
        ["::1"],
        ["fe80::1"],
        ["fd00::1"],
        ["::ffff:127.0.0.1"],
        ["64:ff9b::7f00:1"],
        ["2002:7f00:1::"],
        ["127.0.0.1", "10.0.0.1", "::1"],
    ],
    ids=lambda answer: " ".join(answer),
)
def test_an_allowed_name_does_not_lead_behind_the_walls(
    node: Node, names: NameServer, web: WebServer, answer: list[str]
) -> None:
    names.table["closed.example"] = answer
    inside = node.add(Network.parse([f"http://closed.example:{web.port}"]))
    assert inside.get(f"http://closed.example:{web.port}/").status == 403
    (attempt,) = node.wait_for(1)
    assert (attempt.verdict, attempt.address) == ("refused", "")
    assert web.accepted == 0


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]", "[::ffff:7f00:1]", "169.254.169.254"])
def test_an_open_network_does_not_lead_behind_the_walls(
    node: Node, web: WebServer, host: str
) -> None:
    inside = node.add(Network.parse("open"))
    assert inside.get(f"http://{host}:{web.port}/").status == 403
    authority = f"{host}:{web.port}"
    assert inside.ask(f"CONNECT {authority} HTTP/1.1\nHost: {authority}\n\n").status == 403
    assert [each.verdict for each in node.wait_for(2)] == ["refused", "refused"]
    assert web.accepted == 0


def test_the_machines_own_address_is_behind_the_walls(node: Node) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("this machine has no address but those of its loopback")
        own = probe.getsockname()[0]
    listener = socket.create_server((own, 0))
    listener.settimeout(0)
    port = listener.getsockname()[1]
    with listener:
        inside = node.add(Network.parse("open"))
        assert inside.get(f"http://{own}:{port}/").status == 403
        with pytest.raises(BlockingIOError):
            listener.accept()


def test_of_mixed_answers_only_the_checked_ones_are_dialled(
    node: Node, names: NameServer, web: WebServer
) -> None:
    names.table["web.example"] = ["10.255.255.1", "127.0.0.1", "fd00::1"]
    inside = node.add(Network.parse([f"http://web.example:{web.port}"]))
    assert inside.get(f"http://web.example:{web.port}/").status == 200
    (attempt,) = node.wait_for(1)
    assert attempt.address == "127.0.0.1"


def test_an_address_that_does_not_answer_is_followed_by_the_next(
    node: Node, names: NameServer, web: WebServer
) -> None:
    names.table["web.example"] = ["127.0.0.9", "::1", "127.0.0.1"]
    inside = node.add(Network.parse([f"http://web.example:{web.port}"]))
    assert inside.get(f"http://web.example:{web.port}/").status == 200
    (attempt,) = node.wait_for(1)
    assert (attempt.verdict, attempt.address) == ("allowed", "127.0.0.1")


def test_a_silent_address_does_not_hold_up_the_others(
    node: Node, names: NameServer, web: WebServer
) -> None:
    """A full backlog takes no connection and refuses none."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.8", web.port))
        silent.listen(0)
        held = [socket.socket() for _ in range(3)]
        for each in held:
            each.setblocking(False)
            each.connect_ex(("127.0.0.8", web.port))
        names.table["web.example"] = ["127.0.0.8", "127.0.0.1"]
        inside = node.add(Network.parse([f"http://web.example:{web.port}"]))
        assert inside.get(f"http://web.example:{web.port}/").status == 200
        for each in held:
            each.close()
    (attempt,) = node.wait_for(1)
    assert attempt.address == "127.0.0.1"


def test_failures_are_told_apart(node: Node, names: NameServer) -> None:
    names.table["web.example"] = ["127.0.0.9"]
    inside = node.add(Network.parse(["http://web.example:9", "http://unknown.example"]))
    refused = inside.get("http://web.example:9/")
    assert (refused.status, refused.headers["x-atoll-egress"]) == (502, "failed")
    unknown = inside.get("http://unknown.example/")
    assert (unknown.status, b"no address" in unknown.body) == (502, True)
    assert [each.verdict for each in node.wait_for(2)] == ["failed", "failed"]


def test_rebinding_never_reaches_what_was_not_opened(
    node: Node, names: NameServer, web: WebServer, campaign: Campaign
) -> None:
    """One name is opened for the loopback and one is not; the resolver gives both now this, now that."""
    choices = (["127.0.0.1"], ["10.0.0.1", "127.0.0.1"], ["::1"], ["169.254.169.254"])
    reached: list[bytes] = []
    with bare_server(lambda connection: reached.append(connection.recv(10))) as port:
        for name in ("walls.example", "rebind.example"):
            names.table[name] = lambda: campaign.random.choice(choices)
        inside = node.add(
            Network.parse([f"http://walls.example:{port}", f"http://rebind.example:{web.port}"])
        )
        count = campaign.count(1000)
        for _ in range(count):
            assert inside.get(f"http://walls.example:{port}/").status in (403, 502)
            inside.get(f"http://rebind.example:{web.port}/")
        records = node.wait_for(2 * count)
    assert reached == []
    assert len(records) == 2 * count
    arrived = [each for each in records if each.verdict == "allowed"]
    assert len(arrived) == len(web.seen) == web.accepted > 0
    assert {(each.host, each.address) for each in arrived} == {("rebind.example", "127.0.0.1")}


def test_the_address_that_was_checked_is_the_one_dialled(
    node: Node, names: NameServer, web: WebServer
) -> None:
    """A second question would be answered with an address behind the walls; there is none."""
    answers: list[Sequence[str]] = [["127.0.0.1"]]
    names.table["web.example"] = lambda: answers[0]
    inside = node.add(Network.parse([f"http://web.example:{web.port}"]))
    for _ in range(10):
        names.asked.clear()
        assert inside.get(f"http://web.example:{web.port}/").status == 200
        assert names.asked == ["web.example"]


def test_answers_are_kept_no_longer_than_they_hold(
    node: Node, names: NameServer, web: WebServer
) -> None:
    names.seconds = 20
    try:
        inside = node.add(Network.parse([f"http://a.wild.example:{web.port}"]))
        for _ in range(5):
            assert inside.get(f"http://a.wild.example:{web.port}/").status == 200
        assert names.asked == ["a.wild.example"]
    finally:
        names.seconds = 0


def test_a_sandboxes_own_name_server_must_not_lie_behind_the_walls(
    node: Node, web: WebServer
) -> None:
    network = Network.parse([f"http://web.example:{web.port}"], dns=["127.0.0.1:5353"])
    response = node.add(network).get(f"http://web.example:{web.port}/")
    assert (response.status, b"name server" in response.body) == (403, True)


def test_names_for_a_listener_are_resolved_like_others(
    node: Node, names: NameServer, web: WebServer
) -> None:
    names.table["closed.example"] = ["127.0.0.1"]
    place = (Host("closed.example"), web.port)
    inside = node.add(Network.parse([f"tcp://closed.example:{web.port}"]), place)
    with pytest.raises(ConnectionResetError), inside.connect(inside.ports[0]) as connection:
        connection.recv(1)
    assert [each.verdict for each in node.wait_for(1)] == ["refused"]
    assert web.accepted == 0
