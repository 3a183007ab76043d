"""Directories of the machine in sandboxes: only those that the operator lists, and to be read unless he allows more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from atoll import AsyncSandbox
from atoll.errors import InvalidRequest
from tests.server.serving import Served, serving

pytestmark = [pytest.mark.timeout(300)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "data").write_text("of the host")
    tmp_path.chmod(0o777)  # sandboxes have a user of their own
    return tmp_path


async def make(served: Served, *mounts: dict[str, Any]) -> AsyncSandbox:
    _, token = served.add_token(served.add_user())
    return await AsyncSandbox.create("base", url=served.url, token=token, mounts=mounts)


async def test_what_is_listed_is_read_and_nothing_else(folder: Path) -> None:
    node = {"on_exit": "stop", "mounts": [str(folder)]}
    async with serving(engine="namespaces", node=node) as served:
        mount = {"source": str(folder), "target": "/mnt/data"}
        sandbox = await make(served, mount)
        told = await sandbox.commands.run("cat /mnt/data/data; touch /mnt/data/x || echo no")
        assert told.stdout == b"of the hostno\n"
        with pytest.raises(InvalidRequest, match="the operator lists those that may"):
            await make(served, {**mount, "source": "/etc"})
        with pytest.raises(InvalidRequest, match="only be mounted read-only"):
            await make(served, {**mount, "read_only": False})
        _, token = served.add_token(served.add_user())
        async with served.client(token) as client:
            body = {"template": "base", "mounts": [{**mount, "read_only": False}]}
            with pytest.raises(InvalidRequest, match="only be mounted read-only"):
                await client.call("PUT", "/pools", body={"count": 1, "sandbox": body})


async def test_an_operator_may_let_callers_write(folder: Path) -> None:
    node = {"on_exit": "stop", "mounts": [str(folder)], "writable_mounts": True}
    async with serving(engine="namespaces", node=node) as served:
        mount = {"source": str(folder), "target": "/mnt/data", "read_only": False}
        sandbox = await make(served, mount)
        assert (await sandbox.commands.run("echo new > /mnt/data/new")).ok
    assert (folder / "new").read_text() == "new\n"


def test_words_about_mounts_are_checked() -> None:
    for wrong in ({"source": "/srv"}, {"source": "/srv", "target": "/mnt/x", "mode": "rw"}, "/srv"):
        with pytest.raises(InvalidRequest, match="source, target"):
            AsyncSandbox(mounts=[wrong])  # type: ignore[list-item]
