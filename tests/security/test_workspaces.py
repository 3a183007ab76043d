"""T47, T13, T67: what one sandbox leaves in a workspace that is kept harms neither the host nor the next one."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from atoll.engines.namespaces import kept_workspaces
from atoll.engines.namespaces.engine import NamespaceEngine
from atoll.engines.workspace_images import missing_for_images
from atoll.errors import AtollError, Conflict, LimitExceeded, Unsupported
from atoll.model.ids import WorkspaceId
from atoll.model.limits import Limits
from atoll.model.sandbox import LOCAL_OWNER, KeptWorkspace, SandboxRequest, SandboxSpec
from atoll.model.sizes import MIB
from atoll.node.commands import Commands
from atoll.node.workspaces import Workspaces
from tests.security.canaries import Canary, make_canary
from tests.security.guest import Guest

INNER_ID = 65532
SIZE = 32 * MIB

# Deeper than a path can be long, and as deep as a folder is measured.
DEPTHS = {"image": 2100, "folder": 200}
DIG = 'import os; [(os.mkdir("d"), os.chdir("d")) for _ in range(%d)]'

Lodge = Callable[[str], AbstractAsyncContextManager[Guest]]


@pytest.fixture(params=["image", "folder"])
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways of keeping a workspace; whoever can have images could also have folders."""
    missing = missing_for_images()
    if request.param == "image" and missing:
        pytest.skip(f"images need {', '.join(missing)}")
    if request.param == "folder":
        monkeypatch.setattr(kept_workspaces, "missing_for_images", lambda: ["a test that has it"])
    found: str = request.param
    return found


@pytest.fixture
def workspaces(tmp_path: Path) -> Workspaces:
    return Workspaces(tmp_path / "workspaces")


@pytest.fixture
def lodge(engine: NamespaceEngine, workspaces: Workspaces, form: str) -> Lodge:
    """Makes a sandbox in a workspace, for as long as it is entered."""

    @asynccontextmanager
    async def enter(name: str = "lagoon") -> AsyncIterator[Guest]:
        limits = Limits(workspace_bytes=SIZE, enforcement="best_effort")
        request = SandboxRequest(SandboxSpec(limits=limits), workspace=WorkspaceId(name))
        hold = workspaces.take(request)
        sandbox = await engine.create(replace(request.spec, workspace=hold.kept))
        try:
            yield Guest(sandbox)
        finally:
            await sandbox.destroy()
            hold.release()

    return enter


@pytest.fixture
def canary(tmp_path: Path) -> Canary:
    return make_canary(tmp_path)


async def run(guest: Guest, line: str) -> str:
    result = await Commands(guest.sandbox).run(line)
    return result.stdout.decode() + result.stderr.decode()


def contents_of(tmp_path: Path) -> Path:
    """Return where the only workspace lies."""
    (contents,) = tmp_path.glob("workspaces/*/contents")
    return contents


def folder_of(tmp_path: Path) -> Path:
    return contents_of(tmp_path) / "files"


# --- what was planted ----------------------------------------------------------------------------------------


async def test_planted_links_lead_the_next_sandbox_nowhere(lodge: Lodge, canary: Canary) -> None:
    async with lodge("lagoon") as guest:
        found = await guest.attack("make_links", canary.word, str(canary.folder))
    async with lodge("lagoon") as guest:
        for name in found["names"]:
            for path in (f"links/{name}", f"links/{name}/canary"):
                try:
                    answer: object = await guest.files.read(path)
                except AtollError as error:
                    answer = error
                assert canary.word not in str(answer), path
            seen = await run(guest, f"cat links/{name} links/{name}/canary 2>&1 | head -c 100000")
            assert canary.word not in seen, name
    canary.check_host()


async def test_planted_trees_are_removed_and_lead_the_host_nowhere(
    lodge: Lodge, workspaces: Workspaces, canary: Canary, tmp_path: Path, form: str
) -> None:
    async with lodge("lagoon") as guest:
        await guest.attack("make_links", canary.word, str(canary.folder))
        line = f"""
            mkdir deep && cd deep && python3 -c '{DIG % DEPTHS[form]}'
            cd /workspace && mkdir -p shut/inner && touch shut/inner/f && ln -s {canary.folder} shut/inner/out
            chmod 0 shut/inner/f shut/inner shut; mkfifo pipe; ln pipe pipe2
            ln -s ../../../../canaries up; ln -s {canary.folder}/canary direct; echo planted
        """
        result = await Commands(guest.sandbox).run(line)
        assert result.stdout == b"planted\n", result
    workspaces.remove("lagoon", LOCAL_OWNER)
    assert list((tmp_path / "workspaces").iterdir()) == []
    canary.check_host()


async def test_planted_links_do_not_bend_what_is_written(lodge: Lodge, canary: Canary) -> None:
    async with lodge("lagoon") as guest:
        await run(guest, f"ln -s {canary.folder} folder; ln -s {canary.folder}/canary file")
    async with lodge("lagoon") as guest:
        for path in ("file", "folder/canary", "folder/new"):
            try:
                await guest.files.write(path, b"changed")
            except AtollError:
                continue
    canary.check_host()


async def test_no_set_id_program_can_be_left(lodge: Lodge) -> None:
    async with lodge("lagoon") as guest:
        seen = await run(guest, "cp /usr/bin/id id; chmod 6755 id; chmod u+s id; stat -c %a id")
        assert seen.startswith("755\n")
        assert seen.count("Operation not permitted") == 2
        mounted = await run(guest, "grep ' /workspace ' /proc/self/mountinfo")
        assert {"nosuid", "nodev"} < set(mounted.split()[5].split(","))


@pytest.mark.root_only
@pytest.mark.parametrize("form", ["folder"], indirect=True)
async def test_a_set_id_program_of_roots_gains_nothing(lodge: Lodge, tmp_path: Path) -> None:
    async with lodge("lagoon"):
        pass
    # As if somebody had got so far.
    planted = folder_of(tmp_path) / "id"
    planted.write_bytes(Path("/usr/bin/id").read_bytes())
    for owner in (0, INNER_ID):
        os.chown(planted, owner, owner)
        planted.chmod(0o6755)
        async with lodge("lagoon") as guest:
            assert await run(guest, "./id -u; ./id -g") == f"{INNER_ID}\n{INNER_ID}\n"


async def test_no_device_can_be_made(lodge: Lodge) -> None:
    async with lodge("lagoon") as guest:
        seen = await run(guest, "mknod null c 1 3; mknod disk b 7 0; ls")
        assert seen.count("Operation not permitted") == 2
        assert "null" not in seen.splitlines()
        assert "disk" not in seen.splitlines()


@pytest.mark.root_only
@pytest.mark.parametrize("form", ["folder"], indirect=True)
async def test_a_device_that_is_there_cannot_be_opened(lodge: Lodge, tmp_path: Path) -> None:
    async with lodge("lagoon"):
        pass
    planted = folder_of(tmp_path) / "zero"
    os.mknod(planted, stat.S_IFCHR | 0o666, os.makedev(1, 5))
    os.chown(planted, INNER_ID, INNER_ID)
    planted.chmod(0o666)
    async with lodge("lagoon") as guest:
        assert "Permission denied" in await run(guest, "head -c 1 zero")


async def test_nothing_can_be_made_immutable(
    lodge: Lodge, workspaces: Workspaces, tmp_path: Path
) -> None:
    async with lodge("lagoon") as guest:
        await guest.attack("make_immutable")
    workspaces.remove("lagoon", LOCAL_OWNER)
    assert list((tmp_path / "workspaces").iterdir()) == []


# --- whose it is ---------------------------------------------------------------------------------------------


async def test_files_belong_to_the_inner_id_on_disk(
    lodge: Lodge, tmp_path: Path, form: str
) -> None:
    """Else what one sandbox wrote would be another's whose id on the host is the same some day."""
    owners = set()
    for _ in range(2):
        async with lodge("lagoon") as guest:
            await guest.files.write(f"f{secrets.token_hex(4)}", b"x")
            owners |= set((await run(guest, "stat -c '%u %g' * .")).splitlines())
    assert owners == {f"{INNER_ID} {INNER_ID}"}
    if form == "folder" and os.geteuid() == 0:
        on_disk = {path.lstat().st_uid for path in folder_of(tmp_path).rglob("*")}
        assert on_disk == {INNER_ID}


async def test_an_image_is_never_mounted_twice(
    engine: NamespaceEngine, lodge: Lodge, tmp_path: Path, form: str
) -> None:
    if form != "image":
        pytest.skip("a folder may be mounted twice")
    async with lodge("lagoon") as guest:
        await guest.files.write("mine", b"x")
        kept = contents_of(tmp_path)
        # The node's lock is passed by, as by a program that has lost it.
        with pytest.raises(Conflict, match="another sandbox has this workspace"):
            await engine.create(SandboxSpec(workspace=KeptWorkspace(str(kept), SIZE)))
        assert await guest.files.read("mine") == b"x"


async def test_other_workspaces_and_images_are_not_seen(lodge: Lodge, tmp_path: Path) -> None:
    word = f"secret-{secrets.token_hex(8)}"
    async with lodge("reef") as other:
        await other.files.write(word, word.encode())
        async with lodge("lagoon") as guest:
            line = f"ls -a /workspace/..; find / -xdev -name '{word}*' -o -name 'image' -path '*contents*'; ls {tmp_path}; ls /dev"
            seen = await run(guest, line)
            assert word not in seen
            assert "contents" not in seen.replace(str(tmp_path), "")
            assert f"cannot access '{tmp_path}'" in seen
            assert "loop" not in seen
            # By the name of the device, which the list of mounts gives away.
            devices = await run(guest, "grep ' /workspace ' /proc/self/mountinfo | cut -d' ' -f3")
            major, minor = devices.split(":")
            seen = await run(guest, f"mknod /tmp/d b {major} {minor}; cat /dev/loop0 | head -c 1")
            assert "Operation not permitted" in seen


# --- how large it is -----------------------------------------------------------------------------------------


async def test_filling_it_up_fills_nothing_else(lodge: Lodge, tmp_path: Path) -> None:
    async with lodge("lagoon") as guest:
        # Slowly, so that a folder that is only watched shows that it is; and not without end.
        line = (
            "for i in $(seq 96); do head -c 1048576 /dev/urandom >> f || exit 7; sleep 0.03; done"
        )
        result = await Commands(guest.sandbox).run(line, timeout=60)
        assert result.exit_code != 0
        taken = sum(path.lstat().st_blocks * 512 for path in (tmp_path / "workspaces").rglob("*"))
        assert taken < 80 * MIB
        with anyio.fail_after(60):
            while not await is_refused(guest):
                await anyio.sleep(0.05)


async def is_refused(guest: Guest) -> bool:
    try:
        await guest.files.write("more", secrets.token_bytes(2 * MIB))
    except LimitExceeded:
        return True
    return False


async def test_files_that_have_no_name_any_more_count_as_well(lodge: Lodge, tmp_path: Path) -> None:
    async with lodge("lagoon") as guest:
        line = """
            exec 3> hidden; rm hidden
            for i in $(seq 96); do head -c 1048576 /dev/urandom >&3 || exit 7; sleep 0.03; done
        """
        result = await Commands(guest.sandbox).run(line, timeout=60)
        assert result.exit_code != 0


async def test_files_that_hold_nothing_count_as_well(lodge: Lodge) -> None:
    """Else there would be no end of them, and measuring those of one sandbox would keep the watch from all others."""
    async with lodge("lagoon") as guest:
        # Slowly, as above; three times as many as fit, for either way.
        line = """
            for i in $(seq 96); do
                python3 -c "import os; [os.mknod(f'f$i-{n}') for n in range(256)]" || exit 7
                sleep 0.03
            done
        """
        result = await Commands(guest.sandbox).run(line, timeout=60)
        assert result.exit_code != 0, result


@pytest.mark.parametrize("form", ["folder"], indirect=True)
async def test_a_size_that_is_only_watched_has_to_be_accepted(
    engine: NamespaceEngine, tmp_path: Path, form: str
) -> None:
    kept = KeptWorkspace(str(tmp_path), SIZE)
    with pytest.raises(Unsupported, match="best_effort"):
        await engine.create(SandboxSpec(workspace=kept, limits=Limits(workspace_bytes=SIZE)))
    assert list(tmp_path.iterdir()) == []
