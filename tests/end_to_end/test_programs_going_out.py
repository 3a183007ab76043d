"""Ordinary programs reach what a sandbox's rules name, with nothing told to them: over HTTP, over TLS, and over TLS that ends in the proxy."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from textwrap import dedent

import pytest

from atoll.engines.contract import Engine, Sandbox
from atoll.model.process import CommandResult
from atoll.node.commands import Commands
from tests.egress.outside import NameServer, make_certificate, serving
from tests.egress.sandboxes import LOOPBACK, Outlet, opened_outlet
from tests.end_to_end.clients import CLIENTS, Client, Way
from tests.end_to_end.origin import PACKAGE, PAGE, Origin, make_content
from tests.engine_fixtures import make_named_engine, skip_unless_usable

pytestmark = [pytest.mark.timeout(300), pytest.mark.any_user]

SECONDS = 120
HOSTS: dict[Way, str] = {
    "plain": "web.example",
    "tunnelled": "tls.example",
    "ended": "seen.example",
}
CASES = [
    pytest.param(client, way, id=f"{client.name}-{way}")
    for client in CLIENTS
    for way in client.ways
]
# What programs are made to do, and their words when that is refused.
REFUSED = {
    "curl": ("curl -sS $URL/page.txt", "its owner can add 'web.example:"),
    "wget": ("wget $URL/page.txt", "ERROR 403"),
    "git": ("git clone $URL/git/probe.git", "The requested URL returned error: 403"),
    # It does not tell why it found none.
    "pip": (
        f"pip install --index-url $URL/simple --trusted-host web.example {PACKAGE}",
        "No matching",
    ),
    "npm": ("npm install --registry $URL/npm/ six", "403 Forbidden"),
    "apt": ("/usr/lib/apt/apt-helper download-file $URL/page.txt page", "403  Forbidden"),
    "R": ("""Rscript -e 'download.file(paste0(Sys.getenv("URL"), "/page.txt"), "page")'""", "403"),
}


@dataclass
class Outside:
    """A server for each way."""

    origins: dict[Way, Origin]
    names: NameServer
    trusted: str

    def url(self, way: Way) -> str:
        return f"{self.origins[way].scheme}://{HOSTS[way]}:{self.origins[way].port}"

    def network(self, way: Way) -> list[str]:
        rules = {
            "plain": [self.url("plain")],
            # With a rule that nobody uses: it has the certificates of the tests known inside.
            "tunnelled": [self.url("tunnelled"), f"{self.url('ended')}/GET/unused"],
            "ended": [f"{self.url('ended')}/*/*"],
        }
        return rules[way]


@pytest.fixture(scope="module")
def outside(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outside]:
    content = tmp_path_factory.mktemp("content")
    make_content(content)
    certificate = make_certificate(tmp_path_factory.mktemp("tls"), *HOSTS.values())
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    with ExitStack() as stack:
        names = stack.enter_context(NameServer())
        names.table = {name: ["127.0.0.1"] for name in HOSTS.values()}
        origins: dict[Way, Origin] = {}
        for way in HOSTS:
            origin = Origin(content, None if way == "plain" else context)
            stack.enter_context(serving(origin))
            origins[way] = origin
        yield Outside(origins, names, certificate[0].read_text())


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
    opened = {name: LOOPBACK for name in HOSTS.values()}
    folder, dns = tmp_path_factory.mktemp("outlet"), [outside.names.address]
    async with opened_outlet(engine, folder, opened, dns, outside.trusted) as outlet:
        yield outlet


async def run(sandbox: Sandbox, client: Client, url: str, branch: str) -> CommandResult:
    # Where there is nothing to be had, they need not look for it for minutes.
    few_tries = {"PIP_RETRIES": "0", "NPM_CONFIG_FETCH_RETRIES": "0"}
    env = {"URL": url, "BRANCH": branch, **few_tries}
    script = ["bash", "-c", dedent(client.script)]
    return await Commands(sandbox).run(script, env=env, timeout=SECONDS)


@pytest.mark.parametrize(("client", "way"), CASES)
async def test_it_finds_its_way(outlet: Outlet, outside: Outside, client: Client, way: Way) -> None:
    sandbox = await outlet.make(outside.network(way))
    result = await run(sandbox, client, outside.url(way), way)
    printed = result.stdout.decode().strip()
    assert (result.exit_code, printed) == (0, client.prints), result.stderr.decode()
    noted = [each.attempt for each in outlet.attempts(sandbox.id, 2 if way == "ended" else 1)]
    # Some leave before they were told all; that counts as a failure of the way.
    assert "refused" not in {each.verdict for each in noted}
    assert {each.host for each in noted} == {HOSTS[way]}
    # What is within TLS is seen where that was asked for, and nowhere else.
    seen = {each.method for each in noted if each.scheme == "https"}
    assert {"plain": not seen, "tunnelled": seen == {"CONNECT"}, "ended": seen > {"CONNECT"}}[way]


@pytest.fixture(scope="module")
def stranger(outside: Outside, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Origin]:
    """A server whose certificate nobody knows."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*make_certificate(tmp_path_factory.mktemp("strange"), *HOSTS.values()))
    with serving(Origin(outside.origins["tunnelled"].content, context)) as origin:
        yield origin


@pytest.mark.parametrize("client", CLIENTS, ids=lambda each: each.name)
async def test_it_does_not_trust_whom_it_does_not_know(
    outlet: Outlet, outside: Outside, stranger: Origin, client: Client
) -> None:
    """So that those who found their way did not do so by trusting everybody."""
    url = f"https://{HOSTS['tunnelled']}:{stranger.port}"
    sandbox = await outlet.make([url, f"{outside.url('ended')}/GET/unused"])
    before = stranger.accepted
    result = await run(sandbox, client, url, "strange")
    assert result.stdout.decode().strip() != client.prints
    assert stranger.accepted > before
    assert stranger.seen == []


@pytest.mark.parametrize("program", REFUSED)
async def test_a_refusal_is_told_in_the_programs_words(
    outlet: Outlet, outside: Outside, program: str
) -> None:
    sandbox = await outlet.make([])
    before = outside.origins["plain"].accepted
    script, words = REFUSED[program]
    env = {"URL": outside.url("plain")}
    result = await Commands(sandbox).run(script, env=env, timeout=SECONDS)
    assert words in (result.stdout + result.stderr).decode()
    assert outside.origins["plain"].accepted == before
    noted = [each.attempt for each in outlet.attempts(sandbox.id, 1)]
    assert {each.verdict for each in noted} == {"refused"}


NODE_CALLS = {
    "fetch": """
        fetch(process.env.URL + "/page.txt").then(answer => answer.text()).then(
          text => process.stdout.write(text), error => console.log("failed:", error.cause ?? error))""",
    "get": """
        const get = require(process.env.URL.split(":")[0]).get;
        get(process.env.URL + "/page.txt", answer => answer.pipe(process.stdout))
          .on("error", error => console.log("failed:", error))""",
}


@pytest.mark.parametrize("way", HOSTS)
@pytest.mark.parametrize("call", NODE_CALLS)
async def test_node_goes_the_way_whether_it_knows_of_proxies_or_not(
    outlet: Outlet, outside: Outside, way: Way, call: str
) -> None:
    sandbox = await outlet.make(outside.network(way))
    env = {"URL": outside.url(way)}
    result = await Commands(sandbox).run(["node", "-e", NODE_CALLS[call]], env=env, timeout=SECONDS)
    assert result.stdout == PAGE, result.stderr
    assert result.stderr == b""


NODE_REFUSED = """
fetch("https://elsewhere.example/").catch(error => console.log(error.cause.message));
"""


async def test_fetch_of_node_says_what_the_proxy_refused(outlet: Outlet, outside: Outside) -> None:
    sandbox = await outlet.make(outside.network("plain"))
    result = await Commands(sandbox).run(["node", "-e", NODE_REFUSED], timeout=SECONDS)
    assert b"elsewhere.example" in result.stdout and b"403" in result.stdout, result.stderr


NODE_INSIDE = """
const server = require("http").createServer((_, answer) => answer.end("inside"));
server.listen(0, "127.0.0.1", async () => {
  const url = `http://localhost:${server.address().port}/`;
  console.log(await (await fetch(url)).text());
  require("http").get(url, answer => answer.on("data", data => console.log(String(data))))
    .on("close", () => server.close());
});
"""


async def test_node_reaches_what_is_inside_without_the_proxy(
    outlet: Outlet, outside: Outside
) -> None:
    sandbox = await outlet.make(outside.network("plain"))
    result = await Commands(sandbox).run(["node", "-e", NODE_INSIDE], timeout=SECONDS)
    assert result.stdout == b"inside\ninside\n", result.stderr
