"""The volume that every sandbox's own files come from: no image, no failure and no killed program gets into it."""

from __future__ import annotations

import asyncio
import io
import secrets
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import pytest

from atoll.engines.containers import guest_volume
from atoll.engines.containers.engine import ContainerEngine
from atoll.engines.containers.guest_volume import GuestVolume
from atoll.errors import AtollError, InvalidRequest, Unavailable
from atoll.model.container import ContainerOptions
from atoll.model.guest import GUEST
from atoll.model.sandbox import SandboxSpec
from atoll.node.commands import Commands
from tests.container_engines import leaving_nothing
from tests.engine_fixtures import container_settings
from tests.image_files import file, folder, layer, link
from tools.container_daemons import ContainerDaemon

# An image's own way to where the guest's code is; deeper, so that it would be mounted later.
DETOUR = "/a/b/c/d"


@pytest.fixture
def own_files(tmp_path: Path) -> Path:
    """A file that no other volume has, so that there is none yet."""
    path = tmp_path / "channel"
    path.write_text(secrets.token_hex(16))
    return path


@asynccontextmanager
async def opened(
    daemon: ContainerDaemon, place: Path, own_files: Path
) -> AsyncIterator[ContainerEngine]:
    rules = container_settings(daemon, patience_seconds=30.0)
    engine = ContainerEngine(daemon.name, place, rules, r_channel=own_files)
    try:
        yield engine
    finally:
        await engine.close()


@pytest.fixture(autouse=True)
def no_volume_left(container_daemon: ContainerDaemon) -> Iterator[None]:
    """Each test's volume of its own goes, and nothing else is left."""
    before = container_daemon.holdings().volumes
    with leaving_nothing(container_daemon):
        yield
        for volume in container_daemon.holdings().volumes - before:
            assert volume.startswith("atoll-guest-"), "an anonymous volume is left"
            container_daemon.call("DELETE", f"/volumes/{volume}")


@pytest.fixture
def make_image(container_daemon: ContainerDaemon) -> Iterator[Callable[[str], str]]:
    """Makes images that have a volume each."""
    made: list[str] = []

    def make(volume: str) -> str:
        name = f"localhost/hostile-{secrets.token_hex(4)}"
        content = layer(
            folder("a"), folder("a/b"), folder("a/b/c"), link("a/b/c/d", GUEST), file("data/large", bytes(1 << 20))
        )  # fmt: skip
        query = {"fromSrc": "-", "repo": name, "changes": f'VOLUME ["{volume}"]'}
        container_daemon._send(
            "POST", "/images/create", io.BytesIO(content), "application/x-tar", query
        )
        made.append(name)
        found = container_daemon.call("GET", f"/images/{name}/json")
        assert [*found["Config"]["Volumes"]] == [volume]
        return name

    yield make
    for name in made:
        container_daemon.call("DELETE", f"/images/{name}?force=1")


async def check_whole(engine: ContainerEngine, own_files: Path) -> None:
    sandbox = await engine.create(SandboxSpec())
    try:
        inside = Path(GUEST).parent
        paths = [f"{GUEST}/atoll_guest/__main__.py", str(inside / own_files.name)]
        result = await Commands(sandbox).run(["cat", *paths])
        assert result.exit_code == 0, result.stderr
        assert result.stdout.endswith(own_files.read_bytes())
    finally:
        await sandbox.destroy()


@pytest.mark.parametrize("volume", [GUEST, "/opt/atoll", DETOUR, "/data"])
async def test_the_first_image_does_not_take_the_guests_code_away_from_all_others(
    container_daemon: ContainerDaemon,
    tmp_path: Path,
    own_files: Path,
    make_image: Callable[[str], str],
    volume: str,
) -> None:
    spec = SandboxSpec(container=ContainerOptions(image=make_image(volume), pull="never"))
    async with opened(container_daemon, tmp_path, own_files) as engine:
        if volume in (GUEST, "/opt/atoll"):
            with pytest.raises(InvalidRequest, match="own files"):
                await engine.create(spec)
        else:
            # What comes of it is up to the image.
            with suppress(AtollError):
                await (await engine.create(spec)).destroy()
        await check_whole(engine, own_files)


async def test_what_did_not_arrive_is_not_taken_for_whole(
    container_daemon: ContainerDaemon,
    tmp_path: Path,
    own_files: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with opened(container_daemon, tmp_path, own_files) as engine:
        with monkeypatch.context() as patch:
            patch.setattr(guest_volume, "_archive", _without_files(guest_volume._archive))
            with pytest.raises(Unavailable, match="does not have it there"):
                await engine.create(SandboxSpec())
        await check_whole(engine, own_files)


def _without_files(really: Callable[[list[Any]], bytes]) -> Callable[[list[Any]], bytes]:
    return lambda files: really([each for each in files if each.path == guest_volume._MARK])


async def test_one_who_goes_away_while_it_is_filled_leaves_nothing(
    container_daemon: ContainerDaemon,
    tmp_path: Path,
    own_files: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with opened(container_daemon, tmp_path, own_files) as engine:
        for cancel_natively in (False, True):
            filling = asyncio.Event()

            async def hang(*_arguments: object, filling: asyncio.Event = filling) -> None:
                filling.set()
                await asyncio.sleep(1000)

            with monkeypatch.context() as patch:
                patch.setattr(GuestVolume, "_fill", hang)
                if cancel_natively:
                    creation = asyncio.ensure_future(engine.create(SandboxSpec()))
                    await filling.wait()
                    creation.cancel()
                    await asyncio.gather(creation, return_exceptions=True)
                else:
                    async with anyio.create_task_group() as tasks:
                        tasks.start_soon(engine.create, SandboxSpec())
                        await filling.wait()
                        tasks.cancel_scope.cancel()
            await _until_no_container(container_daemon)
        await check_whole(engine, own_files)


async def _until_no_container(daemon: ContainerDaemon) -> None:
    async with asyncio.timeout(60):
        while await asyncio.to_thread(daemon.call, "GET", "/containers/json?all=1"):
            await asyncio.sleep(0.2)


KILLED = """
import asyncio, sys
from pathlib import Path
from atoll.engines.containers.engine import ContainerEngine
from atoll.engines.containers.guest_volume import GuestVolume
from atoll.engines.containers.settings import ContainerSettings
from atoll.model.sandbox import SandboxSpec

async def hang(*arguments):
    print("filling", flush=True)
    await asyncio.sleep(1000)

async def main(name, folder, own_files, endpoint, image):
    GuestVolume._fill = hang
    settings = ContainerSettings(endpoint=endpoint, images={"base": image})
    await ContainerEngine(name, Path(folder), settings, r_channel=Path(own_files)).create(SandboxSpec())

asyncio.run(main(*sys.argv[1:]))
"""


async def test_what_a_killed_program_was_filling_it_with_is_removed_by_the_next(
    container_daemon: ContainerDaemon, tmp_path: Path, own_files: Path
) -> None:
    rules = container_settings(container_daemon)
    command = [sys.executable, "-c", KILLED, container_daemon.name, str(tmp_path), str(own_files)]
    command += [rules.endpoint, rules.images["base"]]
    program = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    assert program.stdout is not None
    assert await program.stdout.readline() == b"filling\n"
    program.kill()
    await program.wait()
    assert container_daemon.call("GET", "/containers/json?all=1") != []
    async with opened(container_daemon, tmp_path, own_files) as engine:
        await check_whole(engine, own_files)
