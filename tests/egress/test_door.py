"""The proxy as a process: what it may do, how it ends, and what its door does then."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from atoll.egress import control
from atoll.egress.door import UNPRIVILEGED_UID
from atoll.errors import InvalidRequest, Unavailable
from atoll.model.network import Network, NetworkLimits
from tests.campaigns import Campaign
from tests.egress.inside import PATIENCE_SECONDS, Inside, Node, read_all, read_exactly
from tests.egress.outside import NameServer, WebServer, bare_server


def status(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def limits(pid: int) -> dict[str, list[str]]:
    lines = Path(f"/proc/{pid}/limits").read_text().splitlines()[1:]
    return {line[:26].strip(): line[26:].split() for line in lines}


@pytest.mark.every_user
def test_the_process_has_no_privileges_and_can_gain_none(node: Node, web: WebServer) -> None:
    inside = node.add(Network.parse([f"http://web.example:{web.port}"]))
    assert inside.get(f"http://web.example:{web.port}/").status == 200
    pid = node.wait_for_proxy()
    for task in os.listdir(f"/proc/{pid}/task"):
        facts = status(int(task))
        own = UNPRIVILEGED_UID if os.geteuid() == 0 else os.geteuid()
        assert set(facts["Uid"].split()) == {str(own)}
        assert facts["Groups"] in ("", str(own)) or os.geteuid() != 0
        assert facts["NoNewPrivs"] == "1"
        for kind in ("CapEff", "CapPrm", "CapInh", "CapAmb"):
            assert int(facts[kind], 16) == 0
    found = limits(pid)
    assert found["Max processes"][:2] == ["0", "0"]
    assert found["Max core file size"][:2] == ["0", "0"]
    assert found["Max file size"][:2] == ["0", "0"]


@pytest.mark.root_only
def test_its_memory_and_environment_are_closed_to_its_own_user(node: Node) -> None:
    node.add(Network())
    pid = node.wait_for_proxy()
    look = (
        "import os, sys\n"
        f"os.setresgid(*[{UNPRIVILEGED_UID}] * 3); os.setresuid(*[{UNPRIVILEGED_UID}] * 3)\n"
        "for name in ('mem', 'environ', 'maps', 'fd'):\n"
        "    try:\n"
        f"        path = '/proc/{pid}/' + name\n"
        "        os.listdir(path) if name == 'fd' else open(path, 'rb').read(1)\n"
        "    except PermissionError: continue\n"
        "    sys.exit(name)\n"
    )
    deadline = time.monotonic() + PATIENCE_SECONDS
    # Only once it has given up its privileges, which takes a moment.
    while status(pid)["NoNewPrivs"] != "1" and time.monotonic() < deadline:
        time.sleep(0.01)
    assert subprocess.run([sys.executable, "-Sc", look], capture_output=True).stderr == b""


def test_rules_change_while_it_runs(node: Node, web: WebServer) -> None:
    one, other = (f"http://{name}.example:{web.port}" for name in ("web", "other"))
    inside = node.add(Network.parse([one]))
    for _ in range(10):
        assert (inside.get(f"{one}/").status, inside.get(f"{other}/").status) == (200, 403)
        node.door.change(inside.id, Network.parse([other]))
        assert (inside.get(f"{one}/").status, inside.get(f"{other}/").status) == (403, 200)
        node.door.change(inside.id, Network.parse([one]))


def test_a_change_ends_what_it_forbids_and_nothing_else(node: Node) -> None:
    with bare_server(lambda connection: connection.sendall(read_all(connection))) as port:
        kept, ended = (f"tcp://{name}.example:{port}" for name in ("web", "other"))
        inside = node.add(Network.parse([kept, ended]))
        with (
            inside.tunnel(f"web.example:{port}") as going_on,
            inside.tunnel(f"other.example:{port}") as cut,
        ):
            node.door.change(inside.id, Network.parse([kept]))
            # Already: what `change` forbids has ended when it returns.
            cut.setblocking(False)
            with pytest.raises(ConnectionResetError):
                cut.recv(1)
            going_on.sendall(b"still here")
            going_on.shutdown(socket.SHUT_WR)
            assert read_all(going_on) == b"still here"
    verdicts = {each.host: each.verdict for each in node.wait_for(2)}
    assert verdicts == {"other.example": "ended", "web.example": "allowed"}


def test_a_tunnel_for_anything_does_not_survive_as_one_for_tls(node: Node) -> None:
    with bare_server(lambda connection: connection.sendall(read_all(connection))) as port:
        inside = node.add(Network.parse([f"tcp://web.example:{port}"]))
        with inside.tunnel(f"web.example:{port}") as connection:
            node.door.change(inside.id, Network.parse([f"https://web.example:{port}"]))
            with pytest.raises(ConnectionResetError):
                connection.recv(1)


def test_changes_under_load_let_nothing_forbidden_pass(
    node: Node, web: WebServer, campaign: Campaign
) -> None:
    """Whoever asks after a change has returned is judged by it, while others keep the proxy busy."""
    one, other = (f"http://{name}.example:{web.port}" for name in ("web", "other"))
    limits = NetworkLimits(connections_per_second=100_000)
    networks = [Network.parse([each], limits=limits) for each in (one, other)]
    inside = node.add(networks[0])
    busy = node.add(Network.parse([one], limits=limits))
    stop = threading.Event()

    def keep_busy() -> None:
        while not stop.is_set():
            assert busy.get(f"{one}/").status == 200

    thread = threading.Thread(target=keep_busy)
    thread.start()
    try:
        for turn in range(campaign.count(200)):
            node.door.change(inside.id, networks[turn % 2])
            assert inside.get(f"{one}/").status == (200, 403)[turn % 2]
            assert inside.get(f"{other}/").status == (403, 200)[turn % 2]
    finally:
        stop.set()
        thread.join()


def test_a_removed_sandbox_is_not_served_any_more(node: Node) -> None:
    with bare_server(lambda connection: connection.sendall(read_all(connection))) as port:
        inside = node.add(Network.parse([f"tcp://web.example:{port}"]))
        with inside.tunnel(f"web.example:{port}") as connection:
            node.door.remove(inside.id)
            node.door.remove(inside.id)
            with pytest.raises(ConnectionResetError):
                connection.recv(1)
        (attempt,) = node.wait_for(1)
        assert (attempt.verdict, attempt.reason) == ("ended", "the sandbox has ended")
        with pytest.raises(ConnectionRefusedError):
            inside.connect()


def test_a_sandbox_cannot_be_added_twice_nor_an_unknown_one_changed(node: Node) -> None:
    inside = node.add(Network())
    with pytest.raises(InvalidRequest, match="already"):
        node.door.add(inside.id, Network(), [])
    with pytest.raises(InvalidRequest, match="not served"):
        node.door.change(node.add(Network()).id[::-1], Network())  # type: ignore[arg-type]


def test_many_rules_travel_in_memory(node: Node, web: WebServer) -> None:
    names = [f"{'a-long-name.' * 15}{number}.example" for number in range(200)]
    assert len(json.dumps(Network.parse(names).to_json())) > control.LONGEST_PACKET
    inside = node.add(Network.parse([*names, f"http://web.example:{web.port}"]))
    assert inside.get(f"http://web.example:{web.port}/").status == 200
    node.door.change(inside.id, Network.parse(names))
    assert inside.get(f"http://web.example:{web.port}/").status == 403


def test_a_killed_proxy_is_replaced_and_told_everything(own_node: Node, web: WebServer) -> None:
    inside = own_node.add(
        Network.parse([f"http://web.example:{web.port}"], limits=NetworkLimits(download_bytes=9000))
    )
    assert inside.get(f"http://web.example:{web.port}/bytes/5000").status == 200
    own_node.wait_for(1)
    pid = own_node.wait_for_proxy()
    with inside.connect() as held:
        request = f"HEAD http://web.example:{web.port}/ HTTP/1.1\r\nHost: web.example\r\n\r\n"
        held.sendall(request.encode())
        assert held.recv(1 << 16)
        os.kill(pid, signal.SIGKILL)
        assert held.recv(1) == b""
    # What comes in between waits in the backlog, and is judged by the next one.
    assert inside.get(f"http://other.example:{web.port}/").status == 403
    assert inside.get(f"http://web.example:{web.port}/").status == 200
    assert own_node.wait_for_proxy() != pid
    used = own_node.door.used(inside.id)
    assert used[1] > 5000
    with inside.connect() as connection:
        connection.sendall(
            f"GET http://web.example:{web.port}/bytes/5000 HTTP/1.1\r\nHost: web.example\r\n\r\n".encode()
        )
        with pytest.raises(ConnectionResetError):
            read_exactly(connection, 5000)


def test_a_change_while_there_is_no_proxy_counts_for_the_next(
    own_node: Node, web: WebServer
) -> None:
    inside = own_node.add(Network.parse([f"http://web.example:{web.port}"]))
    assert inside.get(f"http://web.example:{web.port}/").status == 200
    os.kill(own_node.wait_for_proxy(), signal.SIGKILL)
    own_node.door.change(inside.id, Network())
    assert inside.get(f"http://web.example:{web.port}/").status == 403


def test_kills_at_random_moments_let_nothing_forbidden_out(
    own_node: Node, names: NameServer, web: WebServer, campaign: Campaign
) -> None:
    forbidden: list[bytes] = []
    stop = threading.Event()
    passed = 0
    with bare_server(lambda connection: forbidden.append(connection.recv(1))) as port:
        inside = own_node.add(Network.parse([f"http://web.example:{web.port}"]))

        def keep_asking() -> None:
            nonlocal passed
            while not stop.is_set():
                try:
                    passed += inside.get(f"http://web.example:{web.port}/").status == 200
                    assert inside.get(f"http://other.example:{port}/").status == 403
                except ConnectionError:
                    pass  # the proxy was killed meanwhile

        threads = [threading.Thread(target=keep_asking) for _ in range(3)]
        for thread in threads:
            thread.start()
        pid = 0
        for _ in range(campaign.count(40)):
            pid = own_node.wait_for_proxy(other_than=pid)
            time.sleep(campaign.random.random() / 2)
            os.kill(pid, signal.SIGKILL)
        own_node.wait_for_proxy(other_than=pid)
        before = passed
        deadline = time.monotonic() + PATIENCE_SECONDS
        while passed == before and time.monotonic() < deadline:
            time.sleep(0.01)
        stop.set()
        for thread in threads:
            thread.join()
    assert passed > before
    assert forbidden == []


def test_the_proxy_ends_with_its_node() -> None:
    """Killed, the node cannot tell it; a copy of the node even holds the control socket open."""
    program = (
        "import os, socket, sys, time\n"
        "from atoll.egress.door import EgressDoor, OfferedListener\n"
        "from atoll.model.ids import new_sandbox_id\n"
        "from atoll.model.network import Network\n"
        "door = EgressDoor(print)\n"
        "listener = socket.create_server(('127.0.0.1', 0))\n"
        "door.add(new_sandbox_id(), Network(), [OfferedListener(listener)])\n"
        "copy = os.fork()\n"
        "if copy == 0: time.sleep(600)\n"
        "print(door.pid, copy, flush=True)\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as node:
        assert node.stdout is not None
        proxy, copy = map(int, node.stdout.readline().split())
        pidfd = os.pidfd_open(proxy)
        try:
            node.kill()
            node.wait()
            waiting = select.poll()
            waiting.register(pidfd, select.POLLIN)
            assert waiting.poll(PATIENCE_SECONDS * 1000)
        finally:
            os.kill(copy, signal.SIGKILL)
            os.close(pidfd)


def test_closing_ends_the_process_and_closes_the_listeners(own_node: Node) -> None:
    inside: Inside = own_node.add(Network())
    pid = own_node.wait_for_proxy()
    before = set(threading.enumerate())
    own_node.door.close()
    own_node.door.close()
    assert not Path(f"/proc/{pid}").exists()
    # Others may end theirs meanwhile.
    ended = before - set(threading.enumerate())
    assert "atoll-egress" in {thread.name for thread in ended}
    with pytest.raises(ConnectionRefusedError):
        inside.connect()
    with pytest.raises(Unavailable):
        own_node.add(Network())
