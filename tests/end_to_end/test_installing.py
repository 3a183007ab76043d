"""Network `registries`: installers find the machine's package indexes by themselves, and trust them as the machine does."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

import pytest

from atoll.engines.contract import Engine
from atoll.node.attempt_log import MemoryAttempts
from atoll.node.commands import Commands
from atoll.node.egress import Egress, EgressRules
from atoll.node.network_files import NetworkFiles
from tests.egress.outside import NameServer, make_certificate, serving
from tests.egress.sandboxes import LOOPBACK, ROOM, Outlet
from tests.end_to_end.origin import GREETING, PACKAGE, Origin, make_content
from tests.engine_fixtures import make_named_engine, skip_unless_usable

pytestmark = pytest.mark.any_user

HOST = "index.example"
INSTALLERS = {
    "pip": f"""
        pip install -q --no-deps --disable-pip-version-check {PACKAGE} &&
        python3 -c 'import {PACKAGE}; print({PACKAGE}.GREETING)'""",
    "npm": f"""
        npm install --silent --no-audit --no-fund {PACKAGE} && node -p 'require("{PACKAGE}")'""",
    "R": f"""
        mkdir lib
        Rscript -e 'install.packages("{PACKAGE}", "lib", quiet = TRUE)' \
            -e 'library("{PACKAGE}", lib.loc = "lib")' -e 'cat(greeting())'""",
}
ABSENT = {
    "pip": ("pip install -q --disable-pip-version-check absentprobe", "No matching distribution"),
    "npm": ("npm install --no-audit --no-fund absentprobe", "E404"),
    "R": ("""Rscript -e 'install.packages("absentprobe", ".")'""", "is not available"),
}


@dataclass
class Machine:
    """The configuration of a machine that uses an index of the tests', and who knows that."""

    environ: dict[str, str]
    names: NameServer


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    folder = tmp_path_factory.mktemp("machine")
    content = folder / "content"
    make_content(content)
    certificate, key = make_certificate(folder, HOST)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with NameServer() as names, serving(Origin(content, context)) as index:
        names.table = {HOST: ["127.0.0.1"]}
        url = f"https://{HOST}:{index.port}"
        profile = folder / "Rprofile"
        profile.write_text(f'options(repos = c(CRAN = "{url}/cran"))\n')
        environ = {
            "HOME": str(folder),
            "PATH": "/usr/bin:/bin",
            "PIP_INDEX_URL": f"{url}/simple",
            "NPM_CONFIG_REGISTRY": f"{url}/npm/",
            "R_PROFILE": str(profile),
            "SSL_CERT_FILE": str(certificate),
        }
        yield Machine(environ, names)


@pytest.fixture(scope="module")
async def engine() -> AsyncIterator[Engine]:
    engine = make_named_engine("namespaces")
    await skip_unless_usable(engine)
    yield engine
    await engine.close()


@pytest.fixture(scope="module")
async def outlet(
    engine: Engine, machine: Machine, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Outlet]:
    rules = EgressRules(
        opened={HOST: LOOPBACK},
        dns=[machine.names.address],
        limits=ROOM,
        environ=machine.environ,
    )
    files = NetworkFiles(tmp_path_factory.mktemp("outlet") / "network")
    outlet = Outlet(engine, Egress(rules, files, MemoryAttempts()))
    yield outlet
    await outlet.close()


@pytest.mark.parametrize("installer", INSTALLERS)
async def test_an_installer_installs(outlet: Outlet, installer: str) -> None:
    sandbox = await outlet.make("registries")
    result = await Commands(sandbox).run(["bash", "-c", INSTALLERS[installer]], timeout=100)
    assert result.stdout.decode().strip() == GREETING, result.stderr.decode()
    noted = [each.attempt for each in outlet.attempts(sandbox.id, 1)]
    assert {(each.host, each.method) for each in noted} == {(HOST, "CONNECT")}
    # R breaks off connections that it does not need any more, which is noted as well.
    others = {"failed"} if installer == "R" else set()
    assert {"allowed"} <= {each.verdict for each in noted} <= {"allowed", *others}


@pytest.mark.parametrize("installer", ABSENT)
async def test_what_is_not_there_is_told_in_the_installers_words(
    outlet: Outlet, installer: str
) -> None:
    sandbox = await outlet.make("registries")
    script, words = ABSENT[installer]
    result = await Commands(sandbox).run(script, timeout=100)
    assert words in (result.stdout + result.stderr).decode()


async def test_an_index_that_is_down_is_told_in_the_installers_words(
    outlet: Outlet, machine: Machine
) -> None:
    machine.names.table[HOST] = ["127.0.0.9"]
    try:
        sandbox = await outlet.make("registries")
        script = f"pip install --retries 1 --disable-pip-version-check {PACKAGE}"
        result = await Commands(sandbox).run(script, timeout=100)
    finally:
        machine.names.table[HOST] = ["127.0.0.1"]
    assert not result.ok
    assert b"Tunnel connection failed: 502" in result.stdout + result.stderr


async def test_nothing_else_is_reached(outlet: Outlet) -> None:
    sandbox = await outlet.make("registries")
    line = "curl -s -o /dev/null -w '%{http_code}' http://other.example/"
    assert (await Commands(sandbox).run(line)).stdout == b"403"
