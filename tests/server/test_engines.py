"""One server, several engines: the one asked for is the one used."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from typing import Any

import anyio
import httpx2
import pytest

from atoll import Sandbox
from atoll.errors import InvalidRequest, Unsupported
from tests.running_server import RunningServer, running_server

pytestmark = [pytest.mark.root_only, pytest.mark.containers]


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    """A server whose sandboxes may also be under gVisor."""
    with running_server(ATOLL_NODE__ENGINES="gvisor") as server:
        yield server


def test_a_request_may_name_an_engine(server: RunningServer) -> None:
    for engine, kernel in (("gvisor", "4.4.0"), ("namespaces", None), (None, None)):
        with Sandbox(url=server.url, token=server.token, engine=engine) as sandbox:
            assert sandbox.info().engine == (engine or "namespaces")
            told = sandbox.run_code("import platform; print(platform.release(), 6 * 7)").stdout
            assert told.endswith(" 42\n")
            assert kernel is None or told.startswith(kernel)


def test_sandboxes_of_any_engine_can_be_ready(server: RunningServer) -> None:
    place: dict[str, Any] = {"url": server.url, "token": server.token, "engine": "gvisor"}
    Sandbox.warm(1, **place)
    before = _hits(server)
    with Sandbox(**place) as sandbox:
        assert sandbox.run_code("6 * 7").text == "42"
    assert _hits(server) == before + 1
    Sandbox.warm(0, **place)


def _hits(server: RunningServer) -> int:
    async def ask() -> str:
        async with httpx2.AsyncClient(trust_env=False, timeout=60) as client:
            headers = {"Authorization": f"Bearer {server.token}"}
            return (await client.get(f"{server.url}/metrics", headers=headers)).text

    found = re.search(r'atoll_pool_hits_total\{engine="gvisor"\} (\d+)', anyio.run(ask))
    return 0 if found is None else int(found[1])


def test_an_engine_that_the_server_does_not_have_is_refused(server: RunningServer) -> None:
    with pytest.raises(
        InvalidRequest, match=r"'docker' is none of this node's.*namespaces, gvisor"
    ):
        Sandbox.create(url=server.url, token=server.token, engine="docker")


def test_what_an_engine_lacks_is_refused_by_name(server: RunningServer) -> None:
    with pytest.raises(Unsupported, match="engine 'gvisor' keeps no workspaces"):
        Sandbox.create(url=server.url, token=server.token, engine="gvisor", workspace="kept")
    with Sandbox(url=server.url, token=server.token, workspace="kept") as sandbox:
        assert sandbox.info().engine == "namespaces"


def test_what_goes_out_is_held_by_the_same_rules(server: RunningServer) -> None:
    ask = """
    import urllib.error, urllib.request
    try:
        urllib.request.urlopen("http://other.invalid/")
    except urllib.error.HTTPError as error:
        print(error.code, error.read().decode())
    """
    with Sandbox(
        url=server.url, token=server.token, engine="gvisor", network=["allowed.invalid"]
    ) as sandbox:
        told = sandbox.run_code(textwrap.dedent(ask)).stdout
    assert told.startswith("403 atoll: other.invalid:80 is not among the hosts")
