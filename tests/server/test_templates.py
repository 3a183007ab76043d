"""Templates over HTTP: built, listed, used by a sandbox, removed; and packages for one sandbox alone."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from atoll.client.remote.image_sending import build_of_image
from atoll.errors import CommandFailed, InvalidRequest, NotFound
from tests.cli.conftest import why_not
from tests.image_files import file, layer, program_layer, save_docker, save_layout
from tests.running_node import RunningNode, running_node

pytestmark = [pytest.mark.timeout(600), pytest.mark.any_user]
PACKAGE = "iniconfig==2.0.0"


@pytest.fixture(scope="module")
def node() -> Iterator[RunningNode]:
    if reason := why_not("namespaces"):
        pytest.skip(f"engine namespaces does not work here: {reason}")
    with running_node() as node:
        yield node


async def test_a_template_is_built_used_and_removed(node: RunningNode) -> None:
    async with node.client() as client:
        body = {"name": "served", "packages": {"iniconfig": "2.0.0"}}
        made = await client.call("POST", "/templates", body=body)
        assert made["packages"] == made["distributions"] == [PACKAGE]
        assert "owner" not in made
        assert made in await client.call("GET", "/templates")
        assert made == await client.call("GET", "/templates/served")
        box = await client.call("POST", "/sandboxes", body={"template": "served"})
        cell = {"kind": "cell", "code": "import iniconfig\n1 + 1", "wait": True}
        ran = await client.call("POST", f"/sandboxes/{box['id']}/executions", body=cell)
        assert ran["results"][0]["value"]["data"]["text/plain"] == "2"
        await client.call("DELETE", "/templates/served")
        with pytest.raises(NotFound):
            await client.call("GET", "/templates/served")


async def test_a_sandbox_is_made_with_packages(node: RunningNode) -> None:
    async with node.client() as client:
        box = await client.call("POST", "/sandboxes", body={"packages": [PACKAGE]})
        line = {"code": "python3 -c 'import iniconfig; print(iniconfig.__file__)'"}
        said = await client.call("POST", f"/sandboxes/{box['id']}/execute", body=line)
        assert said["stdout"] == "/opt/packages/iniconfig/__init__.py\n"
        with pytest.raises(CommandFailed, match="No matching distribution"):
            await client.call("POST", "/sandboxes", body={"packages": ["no-such-package-here==1"]})
        with pytest.raises(InvalidRequest, match="is no package"):
            await client.call("POST", "/sandboxes", body={"packages": ["--help"]})


async def test_a_sandbox_of_node_is_made_with_packages_of_npm_s(node: RunningNode) -> None:
    async with node.client() as client:
        body = {"template": "node", "packages": {"left-pad": "1.3.0"}}
        box = await client.call("POST", "/sandboxes", body=body)
        cell = {"kind": "cell", "code": "require('left-pad')('x', 3)", "wait": True}
        ran = await client.call("POST", f"/sandboxes/{box['id']}/executions", body=cell)
        assert ran["results"][0]["value"]["data"]["text/plain"] == "'  x'"
        with pytest.raises(InvalidRequest, match="is no package"):
            wrong = {"template": "node", "packages": ["left-pad==1.3.0"]}
            await client.call("POST", "/sandboxes", body=wrong)
        body = {"name": "of-npm", "packages": ["left-pad@1.3.0"], "language": "node"}
        assert (await client.call("POST", "/templates", body=body))["language"] == "node"
        await client.call("DELETE", "/templates/of-npm")
        with pytest.raises(InvalidRequest, match="not of 'r'"):
            body = {"name": "of-r", "packages": ["jsonlite"], "language": "r"}
            await client.call("POST", "/templates", body=body)


async def test_packages_go_into_one_sandbox(node: RunningNode) -> None:
    async with node.client() as client:
        box = await client.call("POST", "/sandboxes", body={"network": "registries"})
        path = f"/sandboxes/{box['id']}/install"
        said = await client.call("POST", path, body={"packages": [PACKAGE]})
        assert "Successfully installed" in said["output"]
        with pytest.raises(InvalidRequest, match="is no package"):
            await client.call("POST", path, body={"packages": ["a b"]})


async def test_cells_may_be_in_another_language(node: RunningNode) -> None:
    async with node.client() as client:
        box = await client.call("POST", "/sandboxes", body={})
        place = f"/sandboxes/{box['id']}"
        cell = {"kind": "cell", "language": "bash", "code": "x=5; echo $((x + 1))", "wait": True}
        assert (await client.call("POST", f"{place}/executions", body=cell))["stdout"] == "6\n"
        body = {"language": "shell", "cwd": "/usr", "env": {"A": "b"}}
        kernel = await client.call("POST", f"{place}/kernels", body=body)
        assert kernel["language"] == "bash"
        cell = {"kind": "cell", "kernel": kernel["id"], "code": "echo $PWD $A", "wait": True}
        assert (await client.call("POST", f"{place}/executions", body=cell))["stdout"] == "/usr b\n"
        with pytest.raises(InvalidRequest, match="cobol"):
            cell = {"kind": "cell", "language": "cobol", "code": "1"}
            await client.call("POST", f"{place}/executions", body=cell)


async def test_an_image_is_sent_and_used(node: RunningNode, tmp_path: Path) -> None:
    layers = [program_layer(), layer(file("etc/release", b"sent"))]
    save_docker(tmp_path / "x.tar", layers)
    save_layout(tmp_path / "layout", layers)
    async with node.client() as client:
        for name, image in (
            ("sent", f"docker-archive:{tmp_path}/x.tar"),
            ("laid", f"oci:{tmp_path}/layout"),
        ):
            made = await build_of_image(client, name, image)
            assert made["size_bytes"] > 0
            box = await client.call("POST", "/sandboxes", body={"template": name, "kernel": True})
            line = {"code": "cat /etc/release"}
            said = await client.call("POST", f"/sandboxes/{box['id']}/execute", body=line)
            assert said["stdout"] == "sent"
            pinned = f"/templates/{name}@sha256:{made['digest']}"
            assert await client.call("GET", pinned) == made
            await client.call("DELETE", f"/sandboxes/{box['id']}")
            await client.call("DELETE", pinned)


async def test_no_file_of_the_server_becomes_a_template(node: RunningNode, tmp_path: Path) -> None:
    save_docker(tmp_path / "x.tar", [layer(file("a"))])
    async with node.client() as client:
        for image in (
            f"docker-archive:{tmp_path}/x.tar",
            f"oci:{tmp_path}",
            "docker-archive:/etc/passwd",
        ):
            with pytest.raises(InvalidRequest, match="send a file"):
                await client.call("POST", "/templates", body={"name": "x", "image": image})
        for body in ({"name": "x"}, {"name": "x", "image": "y", "packages": ["six"]}):
            with pytest.raises(InvalidRequest, match="packages, or of an image"):
                await client.call("POST", "/templates", body=body)
        with pytest.raises(InvalidRequest):
            await client.call(
                "POST",
                "/templates/image",
                params={"name": "x"},
                data=_bytes(b"no image at all" * 100),
            )
        with pytest.raises(NotFound):
            await client.call("GET", "/templates/x")


async def _bytes(data: bytes) -> AsyncIterator[bytes]:
    yield data
