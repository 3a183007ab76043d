"""Attacks on the way out, from inside real sandboxes through their real listeners; every server that could be reached counts its visitors."""

from __future__ import annotations

import ssl
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import pytest

from atoll.engines.contract import Engine, Sandbox
from atoll.errors import InvalidRequest
from atoll.model.hosts import parse_host
from atoll.node.commands import Commands
from tests.egress.outside import NameServer, make_certificate
from tests.egress.sandboxes import (
    LOOPBACK,
    PATIENCE_SECONDS,
    Outlet,
    Upstream,
    ask_inside,
    opened_outlet,
    upstreams,
)
from tests.egress.spellings import (
    ADDRESS_SPELLINGS,
    ALLOWED,
    ALLOWED_HOSTS,
    ANSWERS,
    HOST_SPELLINGS,
    AddressSpelling,
    Answer,
    Spelling,
    rules,
)
from tests.engine_fixtures import make_named_engine, skip_unless_usable

SEND = Path(__file__).with_name("attacks") / "spelled_requests.py"
FORMS = ("connect", "absolute")


class Everywhere(dict[str, Any]):
    """A resolver's table that knows every name: those that are not allowed lead to the trap."""

    def __contains__(self, name: object) -> bool:
        return True

    def __missing__(self, name: str) -> Sequence[str]:
        return ["127.0.0.1"] if name.lower() in ALLOWED_HOSTS else ["127.0.0.2", "::1"]


@dataclass
class Outside:
    """Where requests can end up."""

    server: Upstream
    traps: Sequence[Upstream]
    names: NameServer

    @property
    def port(self) -> int:
        return self.server.port

    @property
    def trapped(self) -> int:
        return sum(trap.accepted for trap in self.traps)


def opened_names() -> Mapping[str, Sequence[str]]:
    """Every name of the attacks may lie on the loopback, so that no other wall hides a hole."""
    names = {*ALLOWED_HOSTS, "evil.test", "evil.example"}
    for spelling in HOST_SPELLINGS:
        for text in (spelling.target_at(1), *spelling.hosts_at(1)):
            with suppress(InvalidRequest):
                host = parse_host(text.removeprefix("http://").split("/")[0].rpartition(":")[0])
                names |= {host.name} if host.name else set()
    return {name: list(LOOPBACK) for name in names}


@pytest.fixture(scope="module")
def outside(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outside]:
    certificate = make_certificate(tmp_path_factory.mktemp("tls"), ALLOWED)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    with NameServer() as names, upstreams(context, "127.0.0.1", "127.0.0.2", "::1") as servers:
        names.table = Everywhere()
        yield Outside(servers[0], servers[1:], names)


@pytest.fixture(scope="module")
async def engine() -> AsyncIterator[Engine]:
    engine = make_named_engine("namespaces")
    await skip_unless_usable(engine)
    yield engine
    await engine.close()


@pytest.fixture(scope="module")
async def outlet(
    engine: Engine, outside: Outside, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Outlet]:
    folder = tmp_path_factory.mktemp("outlet")
    async with opened_outlet(engine, folder, opened_names(), [outside.names.address]) as outlet:
        yield outlet


@dataclass
class Outcome:
    """What came of many requests: the answer's status, and whether a server got each; what was dialled for them and a control."""

    by_name: Mapping[str, tuple[int, bool]]
    trapped: int
    dialled: Counter[str]


async def send_all(
    outlet: Outlet, outside: Outside, network: str | Sequence[str], tasks: Mapping[str, Any]
) -> Outcome:
    """Send requests from a sandbox of their own, and then one that is allowed."""
    before = outside.trapped
    sandbox = await outlet.make(network)
    found = await ask_inside(sandbox, SEND.read_text(), list(tasks.values()), timeout=300)
    control = [task(f"http://{ALLOWED}:{outside.port}/control", f"{ALLOWED}:{outside.port}")]
    assert await ask_inside(sandbox, SEND.read_text(), control) == [[200, True]]
    return Outcome(
        {name: (status, arrived) for name, (status, arrived) in zip(tasks, found, strict=True)},
        outside.trapped - before,
        await dialled_for(outlet, sandbox),
    )


async def dialled_for(outlet: Outlet, sandbox: Sandbox) -> Counter[str]:
    """Return how often which address was dialled, as soon as the last request is noted."""
    with anyio.fail_after(PATIENCE_SECONDS):
        while True:
            noted = [each.attempt for each in outlet.attempts(sandbox.id, 1)]
            if "/control" in {each.path for each in noted}:
                return Counter(each.address for each in noted if each.address)
            await anyio.sleep(0.02)


def task(target: str, host: str) -> dict[str, Any]:
    return {
        "head": f"GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n",
        "connect": False,
        "name": None,
    }


def spelled_task(spelling: Spelling, port: int) -> dict[str, Any]:
    connect = spelling.form == "connect"
    name = spelling.target_at(port).rpartition(":")[0].lower() if spelling.arrives else ALLOWED
    return {
        "head": spelling.request(port).decode("latin-1"),
        "connect": connect,
        "name": name if connect else None,
    }


@pytest.fixture(scope="module")
async def spelled_hosts(outlet: Outlet, outside: Outside) -> Outcome:
    tasks = {each.name: spelled_task(each, outside.port) for each in HOST_SPELLINGS}
    return await send_all(outlet, outside, rules(outside.port), tasks)


@pytest.mark.parametrize("spelling", HOST_SPELLINGS, ids=lambda each: each.name)
async def test_only_an_allowed_host_is_reached(spelled_hosts: Outcome, spelling: Spelling) -> None:
    status, arrived = spelled_hosts.by_name[spelling.name]
    assert arrived == spelling.arrives, (status, spelling.why)


async def test_no_spelling_of_a_host_led_into_the_trap(
    spelled_hosts: Outcome, outside: Outside
) -> None:
    assert spelled_hosts.trapped == 0
    assert set(spelled_hosts.dialled) == {"127.0.0.1"}
    arrived = [name for name, (_status, arrived) in spelled_hosts.by_name.items() if arrived]
    assert len(outside.server.asked) >= len(arrived) > 20  # the server says so, too


@pytest.fixture(scope="module")
async def spelled_addresses(outlet: Outlet, outside: Outside) -> Outcome:
    tasks = {}
    for spelling in ADDRESS_SPELLINGS:
        for form in FORMS:
            tasks[f"{spelling.name}-{form}"] = {
                "head": spelling.request(form, outside.port).decode("latin-1"),  # type: ignore[arg-type]
                "connect": form == "connect",
                "name": None if form == "absolute" else ALLOWED,
            }
    return await send_all(outlet, outside, "open", tasks)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("spelling", ADDRESS_SPELLINGS, ids=lambda each: each.name)
async def test_no_address_behind_the_walls_is_reached(
    spelled_addresses: Outcome, spelling: AddressSpelling, form: str
) -> None:
    status, arrived = spelled_addresses.by_name[f"{spelling.name}-{form}"]
    assert not arrived
    assert status not in (200, 502, 504), "it was dialled"


async def test_no_spelling_of_an_address_led_into_the_trap(spelled_addresses: Outcome) -> None:
    assert spelled_addresses.trapped == 0
    assert spelled_addresses.dialled == {"127.0.0.1": 1}  # which is the control


@pytest.fixture(scope="module")
async def resolved(outlet: Outlet, outside: Outside) -> tuple[Outcome, Mapping[str, str]]:
    """Names that lead to addresses behind the walls; with them, what was dialled for each."""
    tasks = {}
    for answer in ANSWERS:
        host = f"{answer.name}.answers.example"
        outside.names.table[host] = [answer.address]
        tasks[answer.name] = task(f"http://{host}:{outside.port}/", f"{host}:{outside.port}")
    outcome = await send_all(outlet, outside, "open", tasks)
    attempts = outlet.attempts(outlet.sandboxes[-1].id, len(tasks) + 1)
    return outcome, {each.attempt.host: each.attempt.address for each in attempts}


@pytest.mark.parametrize("answer", ANSWERS, ids=lambda each: each.name)
async def test_what_a_resolver_says_is_not_believed(
    resolved: tuple[Outcome, Mapping[str, str]], answer: Answer
) -> None:
    outcome, dialled = resolved
    assert outcome.by_name[answer.name] == (403, False)
    assert dialled[f"{answer.name}.answers.example"] == ""
    assert dialled[ALLOWED] == "127.0.0.1"


async def test_no_answer_of_a_resolver_led_into_the_trap(
    resolved: tuple[Outcome, Mapping[str, str]],
) -> None:
    assert resolved[0].trapped == 0
    assert resolved[0].dialled == {"127.0.0.1": 1}


# --- without the proxy ---------------------------------------------------------------------------------------

PAST = """
import errno, json, socket
def reach(family, kind, address):
    with socket.socket(family, kind) as probe:
        probe.settimeout(10)
        try:
            probe.connect(address)
            return "connected"
        except OSError as error:
            return errno.errorcode.get(error.errno, str(error))
def look_up(name):
    try:
        return [each[4][0] for each in socket.getaddrinfo(name, 80)]
    except OSError as error:
        return type(error).__name__
print(json.dumps({
    "tcp": reach(socket.AF_INET, socket.SOCK_STREAM, ("192.0.2.1", 80)),
    "udp": reach(socket.AF_INET, socket.SOCK_DGRAM, ("192.0.2.1", 53)),
    "ipv6": reach(socket.AF_INET6, socket.SOCK_STREAM, ("2001:db8::1", 80)),
    "metadata": reach(socket.AF_INET, socket.SOCK_STREAM, ("169.254.169.254", 80)),
    "name": look_up("allowed.example"),
    "proxy": reach(socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 3128)),
    "resolver": reach(socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.53", 53)),
}))
"""


@pytest.mark.parametrize("network", ["none", (), "open"], ids=["none", "no-rules", "open"])
async def test_there_is_no_way_past_the_proxy(outlet: Outlet, network: str | Sequence[str]) -> None:
    sandbox = await outlet.make(network)
    found = await ask_inside(sandbox, PAST)
    for way in ("tcp", "udp", "ipv6", "metadata"):
        assert found[way] in ("ENETUNREACH", "EADDRNOTAVAIL"), way
    assert found["name"] == "gaierror"
    assert found["resolver"] == "ECONNREFUSED"
    assert found["proxy"] == ("ECONNREFUSED" if network == "none" else "connected")


async def test_a_neighbour_has_its_own_rules_only(outlet: Outlet, outside: Outside) -> None:
    """Both have a listener of the same address; each is its own sandbox's."""
    allowed = [task(f"http://{ALLOWED}:{outside.port}/", f"{ALLOWED}:{outside.port}")]
    owner = await outlet.make(rules(outside.port))
    neighbour = await outlet.make([])
    alone = await outlet.make("none")
    assert await ask_inside(owner, SEND.read_text(), allowed) == [[200, True]]
    assert await ask_inside(neighbour, SEND.read_text(), allowed) == [[403, False]]
    assert await ask_inside(alone, SEND.read_text(), allowed) == [[0, False]]
    (noted,) = outlet.attempts(neighbour.id, 1)
    assert (noted.attempt.verdict, noted.attempt.address) == ("refused", "")


# --- what programs find --------------------------------------------------------------------------------------


async def test_what_is_told_inside_cannot_be_changed_there(outlet: Outlet) -> None:
    sandbox = await outlet.make(["tcp://allowed.example:80"])
    script = "echo 127.0.0.1 x >> /etc/hosts; echo x > /etc/atoll/hosts; rm -f /etc/atoll/hosts; mv /etc/atoll /tmp; cat /etc/hosts"
    result = await Commands(sandbox).run(script)
    assert b"127.1.0.1 allowed.example" in result.stdout
    assert b" x\n" not in result.stdout
