"""Secrets are used by sandboxes and are nowhere inside them, nor in anything that the node writes or tells."""

from __future__ import annotations

import base64
import json
import os
import secrets
import shutil
import signal
import ssl
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import pytest

from atoll.client.http import HttpNode
from atoll.errors import InvalidRequest, NotFound
from tests.campaigns import Campaign
from tests.cli.conftest import why_not
from tests.egress.outside import NameServer, WebServer, make_certificate, serving
from tests.running_node import RunningNode, prepare_data, running_node, start_node

HUNT = Path(__file__).with_name("attacks") / "secret_hunt.py"
BEGINNING = "zq7kx"
PER_SANDBOX = 25
PLACES: dict[str, dict[str, str]] = {
    "header": {"header": "X-Api-Key"},
    "basic": {"header": "Authorization"},
    "query": {"query": "key"},
    "json": {"body": "auth.key"},
    "form": {"body": "key"},
}


@dataclass
class Outside:
    """The node, the host that secrets are for, and another one that sandboxes may reach as well."""

    node: RunningNode
    bound: WebServer
    other: WebServer

    def forget(self) -> None:
        """Let what the bound host was sent so far be forgotten."""
        self.bound.seen.clear()
        self.bound.bodies.clear()

    def network(self) -> list[str]:
        # With a rule about requests the other one is looked at, too; else its TLS would pass unseen.
        return [
            f"https://tls.example:{self.bound.port}",
            f"https://other.example:{self.other.port}/*/*",
        ]


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return make_certificate(tmp_path_factory.mktemp("tls"), "tls.example", "other.example")


@pytest.fixture(scope="module")
def settings(certificate: tuple[Path, Path]) -> Iterator[dict[str, str]]:
    """What the operator says: two names may lie on the loopback, and prove themselves by a certificate of the tests."""
    with NameServer() as names:
        names.table = {name: ["127.0.0.1"] for name in ("tls.example", "other.example")}
        yield {
            "ATOLL_EGRESS__OPENED": "tls.example=127.0.0.0/8,other.example=127.0.0.0/8",
            "ATOLL_EGRESS__DNS": names.address,
            "ATOLL_EGRESS__CA_BUNDLE": str(certificate[0]),
        }


@pytest.fixture(scope="module")
def outside(certificate: tuple[Path, Path], settings: dict[str, str]) -> Iterator[Outside]:
    if reason := why_not("namespaces"):
        pytest.skip(f"engine namespaces does not work here: {reason}")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    with ExitStack() as stack:
        bound, other = (stack.enter_context(serving(WebServer(context))) for _ in range(2))
        node = stack.enter_context(running_node(**settings))
        yield Outside(node, bound, other)


def new_value() -> str:
    return f"{BEGINNING}{secrets.token_hex(16)}"


async def run_inside(
    client: HttpNode, sandbox: str, program: str, orders: Any, **env: str
) -> dict[str, Any]:
    body = {
        "argv": ["python3", "-c", program],
        "stdin": json.dumps(orders),
        "env": env,
        "wait": True,
    }
    result = await client.call("POST", f"/sandboxes/{sandbox}/executions", body=body)
    assert result["outcome"]["exit_code"] == 0, result["stderr"]
    found: dict[str, Any] = json.loads(result["stdout"])
    return found


def received(server: WebServer) -> str:
    """Return all that a server was sent, as text, with what is encoded once."""
    return str(server.seen) + str(server.bodies)


def kept_by(node: RunningNode) -> bytes:
    """Return all that the node has written: records, journal, logs, history; not the programs of its templates."""
    paths = [path for path in node.data.rglob("*") if "templates" not in path.parts]
    return b"".join(path.read_bytes() for path in paths if path.is_file() and not path.is_socket())


async def told_by(client: HttpNode, sandbox: str) -> str:
    """Return what the node tells of it all."""
    paths = ["/secrets", "/sandboxes", f"/sandboxes/{sandbox}", f"/sandboxes/{sandbox}/egress"]
    return json.dumps([await client.call("GET", path) for path in paths])


@pytest.mark.timeout(900)
async def test_a_secret_is_nowhere_inside_while_its_host_receives_it(
    outside: Outside, campaign: Campaign
) -> None:
    """1,000 secrets, each used in each way: header, query, body; refused, echoed, failed."""
    trials = campaign.count(1000)
    looked_for: list[str] = []
    async with outside.node.client() as client:
        for start in range(0, trials, PER_SANDBOX):
            count = min(PER_SANDBOX, trials - start)
            looked_for += await hunt(outside, client, count)
    assert len(looked_for) == trials
    kept = kept_by(outside.node).decode("latin-1")
    assert "atoll-secret-" in kept  # placeholders are found, so that this is where to look
    assert not [value for value in looked_for if value in kept]
    assert BEGINNING not in outside.node.log.read_text()


async def hunt(outside: Outside, client: HttpNode, count: int) -> Sequence[str]:
    """Use so many secrets in a sandbox and look for them; return their values."""
    values = [new_value() for _ in range(count)]
    places = [list(PLACES)[number % len(PLACES)] for number in range(count)]
    bound, other = f"tls.example:{outside.bound.port}", f"other.example:{outside.other.port}"
    variables = [f"KEY_{number}" for number in range(count)]
    for variable, value, place in zip(variables, values, places, strict=True):
        body = {"value": value, "hosts": [bound], **PLACES[place]}
        answer = await client.call("PUT", f"/secrets/{variable}", body=body)
        assert value not in json.dumps(answer)
    outside.forget()
    sandbox = (
        await client.call(
            "POST",
            "/sandboxes",
            body={
                "network": outside.network(),
                "secrets": {variable: variable for variable in variables},
                "kernel": True,
            },
        )
    )["id"]
    canaries = [new_value() for _ in range(3)]
    files = {"planted": canaries[1]}
    for name, content in files.items():
        await client.call(
            "PUT", f"/sandboxes/{sandbox}/files/{name}", data=_pieces(content.encode())
        )
    urls = [f"https://{bound}/", f"https://{bound}/head", f"https://{other}/", f"http://{bound}/"]
    orders = {
        "backwards": BEGINNING[::-1],
        "uses": [
            (variable, place, urls) for variable, place in zip(variables, places, strict=True)
        ],
    }
    found = await run_inside(
        client, sandbox, HUNT.read_text(), orders, PLANTED_IN_THE_ENVIRONMENT=canaries[0]
    )
    told = await told_by(client, sandbox)
    await client.call("DELETE", f"/sandboxes/{sandbox}")
    check_found(found, canaries)
    assert found["statuses"][0::4] == [200] * count
    assert not [value for value in values if value in told]
    check_received(outside, values, places)
    return values


def check_found(found: dict[str, Any], canaries: Sequence[str]) -> None:
    """What was planted was found where it was planted, and nothing else anywhere."""
    assert found["told"] == []
    assert found["looked"] > 10_000_000
    assert canaries[0] in found["found"]["environment"]
    assert canaries[0] in found["found"]["memory"]
    assert canaries[0] in found["found"]["proc"]
    assert canaries[1] in found["found"]["files"]
    everything = {each for some in found["found"].values() for each in some}
    assert everything <= set(canaries)


def check_received(outside: Outside, values: Sequence[str], places: Sequence[str]) -> None:
    got = received(outside.bound)
    for value, place in zip(values, places, strict=True):
        if place == "basic":
            value = base64.b64encode(f"me:{value}".encode()).decode()
        assert value in got, place
    # It is reached with placeholders that nobody looks for: in bodies, and where they are encoded.
    elsewhere = received(outside.other)
    assert "key=atoll-secret-" in elsewhere
    assert BEGINNING not in elsewhere
    assert not [
        value for value in values if base64.b64encode(f"me:{value}".encode()).decode() in elsewhere
    ]


async def _pieces(content: bytes) -> Any:
    yield content


ASK = """
import json, os, sys, urllib.request
url = json.load(sys.stdin)
request = urllib.request.Request(url, headers={"X-Api-Key": os.environ["API_KEY"]})
with urllib.request.urlopen(request, timeout=60) as answer:
    print(json.dumps({"status": answer.status}))
"""


async def test_a_secret_is_changed_and_revoked_while_a_sandbox_has_it(outside: Outside) -> None:
    host = f"tls.example:{outside.bound.port}"
    secret = {"value": new_value(), "hosts": [host], "header": "X-Api-Key"}
    async with outside.node.client() as client:
        await client.call("PUT", "/secrets/changing", body=secret)
        body = {"network": [f"https://{host}"], "secrets": {"API_KEY": "changing"}}
        sandbox = (await client.call("POST", "/sandboxes", body=body))["id"]
        outside.forget()
        await run_inside(client, sandbox, ASK, f"https://{host}/")
        changed = {**secret, "value": new_value()}
        await client.call("PUT", "/secrets/changing", body=changed)
        await run_inside(client, sandbox, ASK, f"https://{host}/")
        await client.call("POST", "/secrets/rotate")
        await run_inside(client, sandbox, ASK, f"https://{host}/")
        await client.call("DELETE", "/secrets/changing")
        await run_inside(client, sandbox, ASK, f"https://{host}/")
        await client.call("DELETE", f"/sandboxes/{sandbox}")
    *got, last = [headers["X-Api-Key"] for _, _, headers in outside.bound.seen]
    assert got == [secret["value"], changed["value"], changed["value"]]
    assert last.startswith("atoll-secret-")


async def test_a_secret_outlives_the_proxy_that_carried_it(outside: Outside) -> None:
    """Its authority does not: the next proxy makes another, which the sandbox is told to trust."""
    host = f"tls.example:{outside.bound.port}"
    secret = {"value": new_value(), "hosts": [host], "header": "X-Api-Key"}
    async with outside.node.client() as client:
        await client.call("PUT", "/secrets/lasting", body=secret)
        body = {"network": [f"https://{host}"], "secrets": {"API_KEY": "lasting"}}
        sandbox = (await client.call("POST", "/sandboxes", body=body))["id"]
        await run_inside(client, sandbox, ASK, f"https://{host}/")
        outside.forget()
        os.kill(proxy_of(outside.node), signal.SIGKILL)
        await wait_until_it_works(client, sandbox, f"https://{host}/")
        await client.call("DELETE", f"/sandboxes/{sandbox}")
    assert outside.bound.seen[-1][2]["X-Api-Key"] == secret["value"]


async def test_a_secret_that_is_revoked_while_a_sandbox_is_made_is_not_used_by_it(
    outside: Outside, campaign: Campaign
) -> None:
    host = f"tls.example:{outside.bound.port}"
    body = {"network": [f"https://{host}"], "secrets": {"API_KEY": "brief"}}
    secret = {"hosts": [host], "header": "X-Api-Key"}
    async with outside.node.client() as client, outside.node.client() as other:
        for _ in range(campaign.count(200)):
            await client.call("PUT", "/secrets/brief", body={**secret, "value": new_value()})
            outside.forget()
            made: list[str] = []

            async def make(made: list[str]) -> None:
                with suppress(NotFound):
                    made.append((await client.call("POST", "/sandboxes", body=body))["id"])

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(make, made)
                await anyio.sleep(campaign.random.uniform(0, 0.05))
                await other.call("DELETE", "/secrets/brief")
            for sandbox in made:
                await run_inside(client, sandbox, ASK, f"https://{host}/")
                await client.call("DELETE", f"/sandboxes/{sandbox}")
            assert BEGINNING not in received(outside.bound)


def proxy_of(node: RunningNode) -> int:
    children = Path(f"/proc/{node.process.pid}/task").glob("*/children")
    pids = [int(pid) for path in children for pid in path.read_text().split()]
    (proxy,) = [pid for pid in pids if b"atoll.egress" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    return proxy


async def wait_until_it_works(client: HttpNode, sandbox: str, url: str) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            await run_inside(client, sandbox, ASK, url)
            return
        except AssertionError:
            assert time.monotonic() < deadline


@pytest.mark.parametrize(
    ("secrets_asked", "network", "fault"),
    [
        ({"API_KEY": "unknown"}, ["https://tls.example"], "there is no secret"),
        ({"API_KEY": "kept"}, ["https://other.example"], "which no rule of the network allows"),
        ({"API_KEY": "kept"}, "none", "secrets go to hosts"),
        ({"API KEY": "kept"}, ["https://tls.example"], "cannot be the variable"),
    ],
)
async def test_a_sandbox_that_could_not_use_its_secret_is_refused(
    outside: Outside, secrets_asked: dict[str, str], network: Any, fault: str
) -> None:
    async with outside.node.client() as client:
        await client.call(
            "PUT", "/secrets/kept", body={"value": new_value(), "hosts": ["tls.example"]}
        )
        with pytest.raises((InvalidRequest, NotFound), match=fault):
            await client.call(
                "POST", "/sandboxes", body={"network": network, "secrets": secrets_asked}
            )


@pytest.mark.parametrize(
    "change", [{"value": f"{BEGINNING}\n"}, {"hosts": []}, {"header": "Host"}, {"other": 1}]
)
async def test_what_is_refused_is_not_shown(outside: Outside, change: dict[str, Any]) -> None:
    body = {"value": new_value(), "hosts": ["tls.example"], **change}
    async with outside.node.client() as client:
        with pytest.raises(InvalidRequest) as caught:
            await client.call("PUT", "/secrets/refused", body=body)
    assert BEGINNING not in str(caught.value) + str(caught.value.details)
    assert BEGINNING not in outside.node.log.read_text()


async def test_a_secret_is_used_and_revoked_through_the_next_node(
    outside: Outside, settings: dict[str, str]
) -> None:
    host = f"tls.example:{outside.bound.port}"
    secret = {"value": new_value(), "hosts": [host], "header": "X-Api-Key"}
    data = Path(tempfile.mkdtemp(prefix="atoll-node-"))
    prepare_data(data)
    try:
        node = start_node(data, **settings, ATOLL_NODE__ON_EXIT="keep")
        async with node.client() as client:
            for name in ("lasting", "gone"):
                await client.call("PUT", f"/secrets/{name}", body=secret)
            asked = {"API_KEY": "lasting", "OTHER_KEY": "gone"}
            body = {"network": [f"https://{host}"], "secrets": asked}
            sandbox = (await client.call("POST", "/sandboxes", body=body))["id"]
            await client.call("DELETE", "/secrets/gone")
        node.stop()
        outside.forget()
        node = start_node(data, **settings)
        try:
            async with node.client() as client:
                await run_inside(client, sandbox, ASK, f"https://{host}/")
                other = ASK.replace("API_KEY", "OTHER_KEY")
                await run_inside(client, sandbox, other, f"https://{host}/")
        finally:
            node.stop()
        assert BEGINNING.encode() not in kept_by(node)
    finally:
        shutil.rmtree(data, ignore_errors=True)
    first, second = [headers["X-Api-Key"] for _, _, headers in outside.bound.seen]
    assert first == secret["value"]
    assert second.startswith("atoll-secret-")
