"""The inspector shows what is in a sandbox, and changes nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest
from httpx2 import AsyncClient, AsyncHTTPTransport, Response

from atoll.client.http import HttpNode
from tests.running_node import RunningNode


@pytest.fixture
async def bare(node: RunningNode) -> AsyncIterator[AsyncClient]:
    """A client that shows answers as they are."""
    transport = AsyncHTTPTransport(uds=str(node.socket_path))
    async with AsyncClient(transport=transport, base_url="http://node", timeout=60) as client:
        yield client


async def look(bare: AsyncClient, address: str, **params: Any) -> Response:
    answer = await bare.get(f"/inspector/sandboxes{address}", params=params)
    if answer.status_code < 400:
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "no-store"
    return answer


async def test_sandboxes_are_shown(bare: AsyncClient, sandbox: str) -> None:
    listed = (await look(bare, "")).json()["sandboxes"]
    (found,) = [each for each in listed if each["ref"] == sandbox]
    assert found == (await look(bare, f"/{sandbox}")).json()
    assert found["capabilities"] == {"files": True, "ports": True, "processes": True}


async def test_files_are_shown(bare: AsyncClient, client: HttpNode, sandbox: str) -> None:
    line = {"code": "mkdir d; printf '<b>x</b>' > d/page.html; ln -s /etc/passwd d/link"}
    await client.call("POST", f"/sandboxes/{sandbox}/execute", body=line)
    listed = (await look(bare, f"/{sandbox}/files", path="d")).json()
    kinds = {each["name"]: each["kind"] for each in listed["entries"]}
    assert (listed["truncated"], kinds) == (False, {"page.html": "file", "link": "symlink"})
    shown = await look(bare, f"/{sandbox}/files/content", path="d/page.html")
    assert (shown.content, shown.headers["content-type"]) == (
        b"<b>x</b>",
        "application/octet-stream",
    )
    assert shown.headers["content-disposition"].startswith("inline")
    saved = await look(bare, f"/{sandbox}/files/content", path="d/page.html", download=True)
    assert saved.headers["content-disposition"].startswith("attachment")
    for path, status in (("d", 400), ("d/link", 400), ("nothing", 404), ("../etc/passwd", 400)):
        assert (await look(bare, f"/{sandbox}/files/content", path=path)).status_code == status, (
            path
        )


async def test_a_large_file_is_not_shown(bare: AsyncClient, client: HttpNode, sandbox: str) -> None:
    line = {"code": "truncate -s 10485760 fits; truncate -s 10485761 large"}
    await client.call("POST", f"/sandboxes/{sandbox}/execute", body=line)
    fits = await look(bare, f"/{sandbox}/files/content", path="fits")
    assert (fits.status_code, len(fits.content)) == (200, 10 << 20)
    refused = await look(bare, f"/{sandbox}/files/content", path="large")
    assert (refused.status_code, refused.json()["code"]) == (413, "limit_exceeded")


async def test_processes_and_their_logs_are_shown(
    bare: AsyncClient, client: HttpNode, sandbox: str
) -> None:
    body = {"command": "seq 100000; sleep 1000", "background": True}
    made = await client.call("POST", f"/sandboxes/{sandbox}/executions", body=body)
    (process,) = (await look(bare, f"/{sandbox}/processes")).json()["processes"]
    assert (process["id"], process["status"]) == (made["id"], "running")
    logs = f"/{sandbox}/processes/{made['id']}/logs"
    with anyio.fail_after(60):
        while not (await look(bare, logs)).content.endswith(b"100000\n"):
            await anyio.sleep(0.02)
    assert len((await look(bare, logs)).content) == 64 << 10
    assert (await look(bare, logs, tailBytes=7)).content == b"100000\n"
    assert (await look(bare, logs, tailBytes=0)).content == b""
    assert len((await look(bare, logs, tailBytes=1 << 20)).content) == 588895
    assert (await look(bare, logs, tailBytes=(1 << 20) + 1)).status_code == 400
    assert (await look(bare, logs, tailBytes=-1)).status_code == 400


async def test_ports_are_shown(bare: AsyncClient, client: HttpNode) -> None:
    made = await client.call("POST", "/sandboxes", body={})
    body = {"argv": ["python3", "-m", "http.server", "8123"], "background": True}
    path = f"/sandboxes/{made['id']}"
    await client.call("POST", f"{path}/executions", body=body)
    await client.call("GET", f"{path}/ports/8123/wait")
    shown = (await look(bare, f"/{made['id']}/ports")).json()["ports"]
    assert {"port": 8123, "address": "0.0.0.0", "is_loopback": False} in shown
    await client.call("DELETE", path)


@pytest.mark.parametrize("what", ["", "/files", "/files/content?path=x", "/ports", "/processes"])
async def test_a_sandbox_that_is_gone_is_a_conflict(
    bare: AsyncClient, client: HttpNode, what: str
) -> None:
    made = await client.call("POST", "/sandboxes", body={"template": "base"})
    await client.call("DELETE", f"/sandboxes/{made['id']}")
    answer = await bare.get(f"/inspector/sandboxes/{made['id']}{what}")
    assert (answer.status_code, answer.json()["code"]) == (409, "conflict")
    unknown = await bare.get(f"/inspector/sandboxes/{'z' * 26}{what}")
    assert (unknown.status_code, unknown.json()["code"]) == (404, "not_found")


async def test_nothing_can_be_changed(bare: AsyncClient, sandbox: str) -> None:
    for method in ("POST", "PUT", "PATCH", "DELETE"):
        answer = await bare.request(method, f"/inspector/sandboxes/{sandbox}")
        assert answer.status_code == 405
