"""Private networks: members reach each other by name in every way, and nobody else reaches or is reached."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import anyio
import pytest

from atoll.egress.door import StreamWish
from atoll.engines.contract import Engine, Feature
from atoll.errors import (
    Conflict,
    Forbidden,
    InvalidRequest,
    LimitExceeded,
    Unavailable,
    Unsupported,
)
from atoll.model.ids import SandboxId, new_sandbox_id
from atoll.model.network import Network, NetworkLimits
from atoll.model.sandbox import SandboxState
from atoll.node.network_members import _address
from atoll.node.private_networks import MOST_MEMBERS, MOST_SERVED, PrivateNetworks
from atoll.node.residents import Resident
from tests.engine_fixtures import make_named_engine, skip_unless_usable
from tests.security.private_peers import PATIENCE_SECONDS, Lagoon, curl, opened_lagoon, say, start

MANY_BYTES = 48 << 20


@pytest.fixture(scope="module")
async def engine() -> AsyncIterator[Engine]:
    engine = make_named_engine("namespaces")
    await skip_unless_usable(engine)
    yield engine
    await engine.close()


@pytest.fixture
async def lagoon(engine: Engine, tmp_path: Path) -> AsyncIterator[Lagoon]:
    async with opened_lagoon(engine, tmp_path) as lagoon:
        yield lagoon


async def pair(lagoon: Lagoon) -> tuple[Resident, Resident]:
    """Two members, `db` with a server on port 5432 that says `from db`, and `web`."""
    db = await lagoon.make("db", ports=[5432])
    await start(db, "serve", 5432, "from db")
    return db, await lagoon.make("web", ports=[8000])


async def until(wanted: str, resident: Resident, *question: object) -> None:
    """Wait until a member is told something."""
    with anyio.fail_after(PATIENCE_SECONDS):
        while (said := await say(resident, *question)) != wanted:
            assert said in ("ConnectionRefusedError", "ConnectionResetError", "gaierror", "closed")


# --- members ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["db", "db.build.internal"])
async def test_members_talk_by_name(lagoon: Lagoon, name: str) -> None:
    db, web = await pair(lagoon)
    before = db.last_active
    assert await say(web, "ask", name, 5432) == "from db"
    assert db.last_active > before  # being reached is being used


async def test_many_bytes_pass_both_ways_as_they_are(lagoon: Lagoon) -> None:
    db, web = await pair(lagoon)
    await start(web, "serve", 8000, "from web")
    for asker, host, port in ((web, "db", 5432), (db, "web", 8000)):
        sent, received = await say(asker, "transfer", host, port, MANY_BYTES)
        assert sent == received
    noted = (await lagoon.attempts(web, 1))[0].attempt
    assert (noted.host, noted.port, noted.scheme) == ("db.build.internal", 5432, "tcp")
    assert (noted.verdict, noted.address) == ("allowed", db.id)
    assert (noted.up_bytes, noted.down_bytes) == (MANY_BYTES, MANY_BYTES + len("from db\n"))


async def test_http_goes_by_name_with_and_without_the_proxy(lagoon: Lagoon) -> None:
    db = await lagoon.make("db", ports=[8000])
    web = await lagoon.make("web")
    await db.hosted.files.write("page", b"a page of db")
    await db.hosted.commands.start("python3 -m http.server 8000 --bind 127.0.0.1")
    with anyio.fail_after(PATIENCE_SECONDS):
        while (await curl(web, "http://db:8000/page"))[1] != "200":
            await anyio.sleep(0.05)
    for options in ((), ("--noproxy", "*"), ("--proxytunnel",)):
        for name in ("db", "db.build.internal"):
            found = await curl(web, f"http://{name}:8000/page", *options)
            assert found == ("a page of db", "200"), (options, name)
    # A server may call itself by its name, too.
    for options in ((), ("--noproxy", "*")):
        assert (await curl(db, "http://db:8000/page", *options))[1] == "200"
    noted = (await lagoon.attempts(web, 1))[-1].attempt
    assert noted.address == db.id


async def test_a_network_is_beside_whatever_else_may_be_reached(lagoon: Lagoon) -> None:
    db = await lagoon.make("db", ports=[5432])
    await start(db, "serve", 5432, "from db")
    for network in ("none", [], ["other.example"], "open"):
        member = await lagoon.make(network=network)
        assert await say(member, "ask", "db", 5432) == "from db"
        shown = member.info.network
        assert (shown.private, shown.mode) == ("build", Network.parse(network).mode)
        await lagoon.node.destroy(member.id)
    member = await lagoon.make()
    said, status = await curl(member, "http://other.example/")
    assert (status, "has no network" in said) == ("403", True)


async def test_who_comes_later_is_found_by_those_who_live(lagoon: Lagoon) -> None:
    client = await lagoon.make()
    assert await say(client, "ask", "late", 7000) == "gaierror"
    late = await lagoon.make("late", ports=[7000, 80])
    await start(late, "serve", 7000, "from late")
    assert await say(client, "ask", "late", 7000) == "from late"
    await start(late, "serve", 80, "low")
    assert await say(client, "ask", "late", 80) == "low"


async def test_who_ends_is_found_no_more(lagoon: Lagoon) -> None:
    db, web = await pair(lagoon)
    assert await say(web, "ask", "db", 5432) == "from db"
    address = _address("db", "build")
    await lagoon.node.destroy(db.id)
    await until("gaierror", web, "ask", "db", 5432)
    assert await say(web, "ask", address, 5432) == "ConnectionRefusedError"
    assert "db" not in lagoon.hosts(web)
    assert (await curl(web, "http://db.build.internal:5432/"))[1] == "403"


async def test_the_next_of_a_name_is_the_one_that_is_reached(lagoon: Lagoon) -> None:
    db, web = await pair(lagoon)
    held = await start(web, "hold", "db", 5432, until=b"held")
    await lagoon.node.destroy(db.id)
    other = await lagoon.make("db", ports=[5432])
    await start(other, "serve", 5432, "from the next")
    with anyio.fail_after(PATIENCE_SECONDS):
        await held.wait()
    assert b"ended" in held.logs() or b"Connection" in held.logs()
    assert await say(web, "ask", "db", 5432) == "from the next"
    # An address that stood for one name never stands for another.
    await lagoon.node.destroy(other.id)
    cache = await lagoon.make("cache", ports=[5432])
    await start(cache, "serve", 5432, "from cache")
    await until("gaierror", web, "ask", "db", 5432)
    assert await say(web, "ask", _address("db", "build"), 5432) == "ConnectionRefusedError"


async def test_a_member_is_found_by_its_new_name(lagoon: Lagoon) -> None:
    db, web = await pair(lagoon)
    lagoon.node.rename(db, "store")
    await until("from db", web, "ask", "store", 5432)
    assert await say(web, "ask", "db", 5432) == "gaierror"
    for name in (None, "localhost"):
        with pytest.raises(InvalidRequest):
            lagoon.node.rename(db, name)
    assert db.info.name == "store"


async def test_members_leave_and_join_alive(lagoon: Lagoon) -> None:
    db, web = await pair(lagoon)
    held = await start(web, "hold", "db", 5432, until=b"held")
    await lagoon.node.set_network(web, Network.parse([]))
    await held.wait(PATIENCE_SECONDS)
    assert b"ConnectionResetError" in held.logs()
    assert await say(web, "ask", "db", 5432) == "gaierror"
    assert web.info.network.private is None
    await lagoon.node.set_network(web, Network.parse([], private="build"))
    assert await say(web, "ask", "db", 5432) == "from db"
    await lagoon.node.set_network(db, Network.parse("none", private="build", ports=[1234]))
    assert await say(web, "ask", "db", 5432) == "ConnectionRefusedError"
    await lagoon.node.set_network(db, Network.parse("none", private="other", ports=[5432]))
    assert await say(web, "ask", "db", 5432) == "gaierror"
    alone = await lagoon.make(private=None, network=[])
    with pytest.raises(InvalidRequest, match="without a private network"):
        await lagoon.node.set_network(alone, Network.parse([], private="build"))


async def test_rules_win_over_short_names(lagoon: Lagoon) -> None:
    db = await lagoon.make("db", ports=[5432])
    await start(db, "serve", 5432, "from db")
    member = await lagoon.make(network=["tcp://db:5432", "http://db:5432"])
    assert await say(member, "ask", "db", 5432) != "from db"
    assert (await curl(member, "http://db:5432/"))[1] in ("403", "502", "504")
    assert await say(member, "ask", "db.build.internal", 5432) == "from db"
    with pytest.raises(InvalidRequest, match=r"below build\.internal"):
        await lagoon.make(network=["tcp://x.build.internal:1"])


# --- others ----------------------------------------------------------------------------------------------------


async def test_another_owners_network_of_that_name_is_another_one(lagoon: Lagoon) -> None:
    db, web = await pair(lagoon)
    eve = await lagoon.make("eve", ports=[6000], owner="eve")
    for name in ("db", "db.build.internal", db.id):
        assert await say(eve, "ask", name, 5432) == "gaierror"
        for request in (f"GET http://{name}:5432/ HTTP/1.1\nHost: {name}:5432\n\n",):
            assert " 403 " in f"{await say(eve, 'proxy', request)} "
        connect = f"CONNECT {name}:5432 HTTP/1.1\nHost: {name}:5432\n\n"
        assert " 403 " in f"{await say(eve, 'proxy', connect)} "
    assert await say(eve, "ask", _address("db", "build"), 5432) == "ConnectionRefusedError"
    # With a member of that name of her own she finds that one.
    own = await lagoon.make("db", ports=[5432], owner="eve")
    await start(own, "serve", 5432, "from eve")
    assert await say(eve, "ask", "db", 5432) == "from eve"
    assert await say(web, "ask", "db", 5432) == "from db"
    assert "eve" not in lagoon.hosts(web)
    assert {each.attempt.address for each in await lagoon.attempts(eve, 7)} == {"", own.id}


async def test_who_is_not_a_member_reaches_nobody(lagoon: Lagoon) -> None:
    _db, _web = await pair(lagoon)
    for stranger in (
        await lagoon.make(private=None, network=[]),
        await lagoon.make(private=None, network="open"),
        await lagoon.make("other", "other", ports=[5432]),
    ):
        assert await say(stranger, "ask", "db", 5432) == "gaierror"
        assert await say(stranger, "ask", _address("db", "build"), 5432) == "ConnectionRefusedError"
        for name in ("db", "db.build.internal"):
            request = f"GET http://{name}:5432/ HTTP/1.1\nHost: {name}:5432\n\n"
            assert " 200 " not in f"{await say(stranger, 'proxy', request)} "


async def test_what_is_not_served_is_refused(lagoon: Lagoon) -> None:
    db, web = await pair(lagoon)
    await start(db, "serve", 9999, "private to db")
    assert await say(web, "ask", "db", 9999) == "ConnectionRefusedError"
    said, status = await curl(web, "http://db:9999/")
    assert (status, "not served" in said) == ("403", True)
    # A member without ports is a client only, and one whose server is down is told so.
    assert await say(db, "ask", "web", 8000) == "ConnectionResetError"
    noted = (await lagoon.attempts(db, 1))[0].attempt
    assert (noted.verdict, "nothing listens" in noted.reason) == ("failed", True)


async def test_code_inside_gains_nothing_by_its_hosts_file_or_addresses(lagoon: Lagoon) -> None:
    _db, web = await pair(lagoon)
    line = "echo '127.0.0.1 evil' >> /etc/hosts; rm -f /etc/hosts; mv /etc/atoll/hosts /tmp/x; true"
    assert (await web.hosted.commands.run(line)).stderr.count(b"Read-only file system") >= 2
    assert await say(web, "ask", "db", 5432) == "from db"
    assert await say(web, "scan", "127.128.0.0", 3000, 5432) == []
    # A program that listens at the address of another's name fools only its own sandbox.
    client = await lagoon.make()
    await start(client, "serve", 5555, "mine", _address("db", "build"))
    assert await say(web, "ask", _address("db", "build"), 5555) == "ConnectionRefusedError"
    assert await say(client, "ask", "db", 5432) == "from db"


async def test_a_port_that_a_program_has_taken_spoils_nothing_for_others(lagoon: Lagoon) -> None:
    busy, client = await lagoon.make("busy"), await lagoon.make("client")
    server = await start(busy, "serve", 5432, "mine", "0.0.0.0")
    db = await lagoon.make("db", ports=[5432])
    await start(db, "serve", 5432, "from db")
    assert await say(client, "ask", "db", 5432) == "from db"
    # Its name must not lead to the program itself.
    assert await say(busy, "ask", "db", 5432) == "gaierror"
    await server.kill()
    await until("from db", busy, "ask", "db", 5432)


async def test_members_that_serve_the_same_port_are_not_in_each_others_way(lagoon: Lagoon) -> None:
    """A server on all addresses starts, whatever others serve; one on 127.0.0.1 leaves room for raw streams to those."""
    one, two = [await lagoon.make(name, ports=[8000]) for name in ("one", "two")]
    client = await lagoon.make()
    for each, word in ((one, "from one"), (two, "from two")):
        await each.hosted.files.write("page", word.encode())
        await each.hosted.commands.start("python3 -m http.server 8000 --bind 0.0.0.0")
    for asker, name in ((client, "one"), (client, "two"), (one, "two"), (two, "one"), (one, "one")):
        with anyio.fail_after(PATIENCE_SECONDS):
            while (found := await curl(asker, f"http://{name}:8000/page"))[1] != "200":
                await anyio.sleep(0.05)
        assert found[0] == f"from {name}"
    # The name must not lead to the program itself.
    assert await say(one, "ask", "two", 8000) == "gaierror"
    three, four = [await lagoon.make(name, ports=[7000]) for name in ("three", "four")]
    for each, word in ((three, "from three"), (four, "from four")):
        await start(each, "serve", 7000, word)
    await until("from four", three, "ask", "four", 7000)
    await until("from three", four, "ask", "three", 7000)


async def test_a_paused_member_holds_up_nobody(lagoon: Lagoon) -> None:
    if Feature.PAUSE not in lagoon.node._engines.default.features:
        pytest.skip("this machine cannot pause sandboxes")
    paused, client = await lagoon.make("paused", ports=[7000]), await lagoon.make()
    await lagoon.node.pause(paused)
    with anyio.fail_after(PATIENCE_SECONDS):
        db = await lagoon.make("db", ports=[5432])
        await start(db, "serve", 5432, "from db")
        assert await say(client, "ask", "db", 5432) == "from db"
    await lagoon.node.resume(paused)
    await until("from db", paused, "ask", "db", 5432)


# --- what the node believes ------------------------------------------------------------------------------------


async def test_a_proxy_that_lies_gets_no_stream(lagoon: Lagoon) -> None:
    db, web = await pair(lagoon)
    eve = await lagoon.make("eve", ports=[6000], owner="eve")
    other = await lagoon.make("other", "other", ports=[6001])
    outsider = await lagoon.make(private=None, network=[])
    networks = lagoon.node.outlets.private
    assert isinstance(networks, PrivateNetworks)
    for asker, peer, port in (
        (eve.id, db.id, 5432),
        (web.id, eve.id, 6000),
        (other.id, db.id, 5432),
        (outsider.id, db.id, 5432),
        (web.id, outsider.id, 5432),
        (web.id, db.id, 22),
        (web.id, db.id, -1),
        (new_sandbox_id(), db.id, 5432),
        (web.id, SandboxId("../../etc"), 5432),
        (web.id, SandboxId(""), 0),
    ):
        with pytest.raises(Forbidden):
            await networks.open_stream(StreamWish(asker, peer, port))
    (await networks.open_stream(StreamWish(web.id, db.id, 5432))).close()
    await lagoon.node.destroy(db.id)
    with pytest.raises(Forbidden):
        await networks.open_stream(StreamWish(web.id, db.id, 5432))


async def test_one_that_leaves_while_a_stream_is_opened_does_not_get_it(lagoon: Lagoon) -> None:
    db, web = await pair(lagoon)
    networks = lagoon.node.outlets.private
    assert isinstance(networks, PrivateNetworks)
    outcomes: list[str] = []

    async def open_stream() -> None:
        try:
            (await networks.open_stream(StreamWish(web.id, db.id, 5432))).close()
            outcomes.append("opened")
        except (Forbidden, Unavailable, Conflict) as error:
            outcomes.append(type(error).__name__)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(open_stream)
        await anyio.lowlevel.checkpoint()
        networks.leave(web.id)
    assert outcomes == ["Forbidden"]


async def test_a_flood_of_clients_leaves_its_peer_usable(lagoon: Lagoon) -> None:
    """A server that accepts nobody must not cost its sandbox the processes that others need, nor others their streams."""
    ada, client = await pair(lagoon)
    db = await lagoon.make("db", ports=[5432], owner="eve")
    web = await lagoon.make("web", owner="eve")
    full = "import socket,time; s=socket.socket(); s.bind(('127.0.0.1',5432)); s.listen(0)"
    server = await db.hosted.commands.start(
        ["python3", "-c", f"{full}; print(1, flush=True); time.sleep(600)"]
    )
    with anyio.fail_after(PATIENCE_SECONDS):
        while not server.logs():
            await anyio.sleep(0.01)
    flood = (
        "import socket, time\n"
        "held = []\n"
        "for _ in range(200):\n"
        "    try: held.append(socket.create_connection(('db', 5432), 20))\n"
        "    except OSError: pass\n"
        "time.sleep(60)\n"
    )
    await web.hosted.commands.start(["python3", "-c", flood])
    await anyio.sleep(4)
    inits = await db.hosted.commands.run("ls -d /proc/[0-9]* | wc -l")
    assert int(inits.stdout) < 30, inits.stdout
    with anyio.fail_after(60):
        assert await say(client, "ask", "db", 5432) == "from db"
    noted = await lagoon.attempts(web, 100)
    assert any("being opened already" in each.attempt.reason for each in noted)
    assert ada.info.state is SandboxState.RUNNING
    assert (await db.hosted.commands.run("echo alive")).stdout == b"alive\n"
    with anyio.fail_after(PATIENCE_SECONDS):  # what tried to get in is gone soon
        while int((await db.hosted.commands.run("ls -d /proc/[0-9]* | wc -l")).stdout) > 8:
            await anyio.sleep(0.5)


# --- ends ------------------------------------------------------------------------------------------------------


async def test_a_peer_that_is_killed_cuts_its_streams(lagoon: Lagoon) -> None:
    db, web = await pair(lagoon)
    held = await start(web, "hold", "db", 5432, until=b"held")
    await lagoon.node.destroy(db.id)
    assert await held.wait(PATIENCE_SECONDS) is not None
    noted = (await lagoon.attempts(web, 1))[0].attempt
    assert noted.verdict in ("ended", "failed", "allowed")


async def test_an_asker_that_ends_cuts_its_streams(lagoon: Lagoon) -> None:
    db, web = await pair(lagoon)
    await start(web, "hold", "db", 5432, until=b"held")
    count = "grep -c ':1538 .* 01 ' /proc/net/tcp; true"  # established, at port 5432
    assert (await db.hosted.commands.run(count)).stdout == b"1\n"
    await lagoon.node.destroy(web.id)
    with anyio.fail_after(PATIENCE_SECONDS):
        while (await db.hosted.commands.run(count)).stdout != b"0\n":
            await anyio.sleep(0.05)


async def test_the_proxy_is_killed_and_the_network_comes_back(lagoon: Lagoon) -> None:
    _db, web = await pair(lagoon)
    held = await start(web, "hold", "db", 5432, until=b"held")
    pid = lagoon.egress.proxy_pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    await held.wait(PATIENCE_SECONDS)
    await until("from db", web, "ask", "db", 5432)
    late = await lagoon.make("late", ports=[7000])
    await start(late, "serve", 7000, "from late")
    assert await say(web, "ask", "late", 7000) == "from late"


async def test_the_proxy_is_killed_again_and_again_while_members_come_and_go(
    lagoon: Lagoon,
) -> None:
    _db, web = await pair(lagoon)
    made: list[Resident] = []

    async def make(name: str) -> None:
        made.append(await lagoon.make(name, ports=[7000]))

    for turn in range(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(make, f"n{turn}")
            if (pid := lagoon.egress.proxy_pid) is not None:
                os.kill(pid, signal.SIGKILL)
            if made:
                tasks.start_soon(lagoon.node.destroy, made.pop(0).id)
        await anyio.sleep(0.1 * turn)
    last = made[-1]
    await start(last, "serve", 7000, "from the last")
    await until("from the last", web, "ask", last.info.name, 7000)
    await until("from db", last, "ask", "db", 5432)
    names = {line.split()[-1] for line in lagoon.hosts(web).splitlines()}
    assert {name for name in names if name.startswith("n")} == {"network", last.info.name}


async def test_members_that_come_and_go_all_the_time_leave_nothing(lagoon: Lagoon) -> None:
    db, web = await pair(lagoon)
    assert await say(web, "ask", "db", 5432) == "from db"
    proxy = lagoon.egress.proxy_pid
    assert proxy is not None
    before = _listeners(), _descriptors_of(proxy)
    for turn in range(8):
        names = [f"n{turn}-{number}" for number in range(3)]
        made: list[Resident] = []

        async def make(name: str, made: list[Resident] = made) -> None:
            made.append(await lagoon.make(name, ports=[7000, 7001]))

        async with anyio.create_task_group() as tasks:
            for name in names:
                tasks.start_soon(make, name)
        assert all(name in lagoon.hosts(web) for name in names)
        for each in made:
            await lagoon.node.destroy(each.id)
    with anyio.fail_after(PATIENCE_SECONDS):
        while any(f"n{turn}-" in lagoon.hosts(each) for each in (db, web) for turn in range(8)):
            await anyio.sleep(0.05)
    assert await say(web, "ask", "db", 5432) == "from db"
    with anyio.fail_after(PATIENCE_SECONDS):
        while (_listeners(), _descriptors_of(proxy)) != before:
            await anyio.sleep(0.1)
    assert sorted(each.name for each in lagoon.folder.iterdir()) == sorted([db.id, web.id])
    await lagoon.node.destroy(db.id)
    await lagoon.node.destroy(web.id)
    assert list(lagoon.folder.iterdir()) == []


def _descriptors_of(pid: int | None) -> int:
    """Return how many another process has; 0 if that is not for this user to know."""
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))
    except PermissionError:
        return 0


def _listeners() -> int:
    """Return how many sockets of sandboxes this process has."""
    found = 0
    for fd in map(int, os.listdir("/proc/self/fd")):
        with suppress(OSError), socket.socket(fileno=os.dup(fd)) as each:
            found += each.family == socket.AF_INET
    return found


# --- caps ------------------------------------------------------------------------------------------------------


async def test_bytes_and_connections_are_counted_as_all_others_are(lagoon: Lagoon) -> None:
    await pair(lagoon)
    limits = NetworkLimits(connections=1, upload_bytes=1000)
    capped = await lagoon.make(limits=limits)
    await start(capped, "hold", "db", 5432, until=b"held")
    assert await say(capped, "ask", "db", 5432) == "ConnectionResetError"
    capped = await lagoon.make(limits=limits)
    program = "import socket; s=socket.create_connection(('db',5432)); s.sendall(b'x'*5000)\nwhile s.recv(99): pass"
    result = await capped.hosted.commands.run(["python3", "-c", program])
    assert b"ConnectionResetError" in result.stderr
    noted = (await lagoon.attempts(capped, 1))[0].attempt
    assert (noted.verdict, noted.up_bytes <= 1000) == ("ended", True)


async def test_there_are_so_many_members_and_ports(lagoon: Lagoon) -> None:
    per_member = 16
    for number in range(MOST_SERVED // per_member):
        ports = range(5000 + 100 * number, 5000 + 100 * number + per_member)
        await lagoon.make(f"n{number}", ports=list(ports))
    with pytest.raises(LimitExceeded, match=f"{MOST_SERVED}"):
        await lagoon.make("more", ports=[1])
    await lagoon.make("elsewhere", "other", ports=[1])
    for _ in range(MOST_MEMBERS - MOST_SERVED // per_member):
        client = await lagoon.make()
    with pytest.raises(LimitExceeded, match=f"{MOST_MEMBERS} members"):
        await lagoon.make()
    await lagoon.node.destroy(client.id)
    last = await lagoon.make()
    assert lagoon.hosts(last).count(".build.internal") == MOST_SERVED // per_member


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"ports": [1]}, "give it one"),
        ({"name": "localhost", "ports": [1]}, "means the sandbox itself"),
        ({"name": "1234", "ports": [1]}, "no host name"),
        ({"name": "-db", "ports": [1]}, "no host name"),
        ({"name": "db", "private": None, "ports": [1]}, "name that, too"),
        ({"name": "db", "ports": list(range(1, 18))}, "the most is 16"),
        ({"name": "db", "ports": [1, 1]}, "once"),
        ({"name": "db", "ports": [0]}, "1 to 65535"),
        ({"name": "db", "ports": [True]}, "1 to 65535"),
        ({"name": "db", "private": "Build"}, "private network"),
    ],
    ids=str,
)
async def test_what_cannot_be_is_refused(
    lagoon: Lagoon, fields: dict[str, object], says: str
) -> None:
    with pytest.raises(InvalidRequest, match=says):
        await lagoon.make(**fields)  # type: ignore[arg-type]
    assert lagoon.node.living() == []


async def test_an_engine_without_ports_has_none(
    lagoon: Lagoon, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = lagoon.node._engines.default
    features = engine.features - {Feature.PORTS}
    monkeypatch.setattr(engine, "features", features)
    with pytest.raises(Unsupported):
        await lagoon.make("db", ports=[1])
