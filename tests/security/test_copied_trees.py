"""Threats D: whole trees on their way out and in, while hostile code prepares and changes them."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from atoll.errors import AtollError, Conflict, Forbidden, InvalidRequest, LimitExceeded, NotFound
from atoll.model.sizes import MIB
from atoll.node.commands import Commands
from atoll.node.files import Files
from atoll.node.trees import TreeLimits
from tests.campaigns import Campaign
from tests.security.canaries import Canary, make_canary
from tests.security.guest import Guest, until_ready

# What a caller may hear when a name is something else at each moment.
MEANWHILE = (InvalidRequest, NotFound, Forbidden, Conflict)


@pytest.fixture
def canary(tmp_path: Path) -> Canary:
    """A tree outside that must neither be read nor changed."""
    return make_canary(tmp_path)


@asynccontextmanager
async def going_on(guest: Guest, line: str) -> AsyncIterator[None]:
    """Let a shell in the sandbox do something without end."""
    async with Commands(guest.sandbox) as commands:
        process = await commands.start(f"echo ready; while :; do {line}; done")
        await until_ready(process)
        yield
        assert process.end is None, process.logs("stderr")


# --- trees without end ----------------------------------------------------------------------------


@pytest.mark.parametrize("shape", ["deep", "sparse"])
async def test_a_copy_of_a_hostile_tree_ends_at_a_limit(
    guest: Guest, tmp_path: Path, shape: str
) -> None:
    await guest.attack("hostile_trees", shape)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    files = Files(guest.sandbox.workspace, tree_limits=TreeLimits(total_bytes=64 * MIB))
    with anyio.fail_after(60), pytest.raises(LimitExceeded):
        await files.download("tree", tmp_path / "copy")
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10 <= 64 * MIB


async def test_more_entries_than_are_taken_on_are_refused_in_time(
    guest: Guest, tmp_path: Path
) -> None:
    code = "import os\nopen('f', 'w').close()\nfor n in range(60_000): os.link('f', f'{n}')"
    await Commands(guest.sandbox).run(("python3", "-c", code), check=True)
    with anyio.fail_after(120), pytest.raises(LimitExceeded, match="entries"):
        await guest.files.download(".", tmp_path / "copy")
    assert len(os.listdir(tmp_path / "copy")) <= 50_000


async def test_what_is_no_file_is_left_out(guest: Guest, tmp_path: Path) -> None:
    await guest.attack("hostile_trees", "special")
    with anyio.fail_after(60):
        report = await guest.files.download("tree", tmp_path / "copy")
    assert (report.files, report.directories, report.skipped) == (0, 0, 6)
    assert list((tmp_path / "copy").iterdir()) == []


async def test_a_closed_tree_is_copied_as_far_as_it_is_open(guest: Guest, tmp_path: Path) -> None:
    await guest.attack("hostile_trees", "closed")
    report = await guest.files.download(".", tmp_path / "copy")
    assert set(report.skipped_paths) == {"tree/a", "tree/b", "tree/c"}


@pytest.mark.root_only
async def test_root_copies_trees_that_belong_to_others(guest: Guest, tmp_path: Path) -> None:
    """The copier gives up its other privileges, but not this."""
    source, target = tmp_path / "source", tmp_path / "target"
    (source / "closed").mkdir(parents=True)
    (source / "closed/file").write_text("theirs")
    target.mkdir()
    for path in (source / "closed/file", source / "closed", source, target):
        path.chmod(0o500 if path.is_dir() else 0o400)
        os.chown(path, 65534, 65534)
    await guest.files.upload(source, "theirs")
    await guest.files.download("theirs", target)
    assert (target / "closed/file").read_text() == "theirs"


# --- trees that change meanwhile ------------------------------------------------------------------


async def test_a_file_that_grows_without_end_is_copied_as_it_was(
    guest: Guest, tmp_path: Path
) -> None:
    await guest.files.write("grows", bytes(MIB))
    async with going_on(
        guest, "head -c 65536 /dev/zero >> grows; head -c 1048576 grows > new; mv new grows"
    ):
        for number in range(10):
            with anyio.fail_after(60):
                report = await guest.files.download(".", tmp_path / f"copy{number}")
            assert report.total_bytes <= 64 * MIB
            assert report.total_bytes == sum(
                path.stat().st_size for path in (tmp_path / f"copy{number}").rglob("*")
            )


async def test_a_tree_that_changes_all_the_time_is_copied_whole(
    guest: Guest, tmp_path: Path, campaign: Campaign
) -> None:
    await guest.put("grow")
    async with Commands(guest.sandbox) as commands:
        process = await commands.start(("python3", "-B", "tests/security/attacks/grow.py"))
        await until_ready(process)
        for number in range(campaign.count(200)):
            target = tmp_path / f"copy{number}"
            with anyio.fail_after(60):
                await guest.files.download("growing", target)
            for path in target.rglob("*"):
                assert not path.is_symlink()
                if path.is_file():
                    assert b"root:" not in path.read_bytes()[:100]
        assert process.end is None, process.logs("stderr")


@pytest.mark.timeout(120)
async def test_a_folder_that_becomes_a_link_meanwhile_leads_nowhere(
    guest: Guest, tmp_path: Path, canary: Canary, campaign: Campaign
) -> None:
    """A folder within the copied tree is exchanged with a link out of it as fast as can be."""
    line = f"mkdir -p tree/real /tmp/outside; ln -s /tmp/outside tree/link; printf %s {canary.word} > /tmp/outside/secret"
    await Commands(guest.sandbox).run(line, check=True)
    program = await guest.put_program("exchange")
    source = tmp_path / "source"
    (source / "real").mkdir(parents=True)
    (source / "real/evil").write_text("evil")
    seconds, copies = campaign.seconds(60) + 2, 0
    async with Commands(guest.sandbox) as commands:
        # For as long as a busy machine needs to make some copies at all.
        process = await commands.start((program, "tree/real", "tree/link", str(seconds + 90)))
        end = time.monotonic() + seconds
        while copies < 6 or time.monotonic() < end:
            copies += 1
            await attempt(guest.files, source, tmp_path / f"copy{copies}")
        assert process.end is None, process.logs("stderr")
        await process.stop()
    outside = await Commands(guest.sandbox).run(["ls", "/tmp/outside"], check=True)
    assert outside.stdout == b"secret\n"
    for path in tmp_path.glob("copy*/**/*"):
        assert not path.is_symlink()
        assert path.is_dir() or canary.word not in path.read_text()
    canary.check_host()


async def attempt(files: Files, source: Path, target: Path) -> None:
    for call in (files.upload(source, "tree"), files.download("tree", target)):
        try:
            with anyio.fail_after(60):
                await call
        except MEANWHILE:
            continue
        except AtollError as error:
            raise AssertionError(f"the caller hears {error!r}") from error


# --- a file server that is killed -----------------------------------------------------------------


async def test_killing_everything_inside_ends_a_copy_and_no_more(
    guest: Guest, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for number in range(20):
        (source / f"{number}").write_bytes(bytes(5 * MIB))
    for number in range(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(copy_or_hear_why, guest.files, source, tmp_path / f"copy{number}")
            await anyio.sleep(0.02)
            await Commands(guest.sandbox).run("kill -9 -1", timeout=60)
    assert await guest.files.upload(source, "again")


async def copy_or_hear_why(files: Files, source: Path, target: Path) -> None:
    try:
        with anyio.fail_after(60):
            await files.upload(source, "in")
            await files.download("in", target)
    except AtollError:
        pass  # told in our own terms


async def test_what_begins_after_everything_was_killed_goes_on(guest: Guest) -> None:
    """The end of a killed command is told after the others were killed for it, not before."""
    commands = Commands(guest.sandbox)
    for number in range(50):
        await commands.run("kill -9 -1", timeout=60)
        await guest.files.write("number", str(number).encode())
        assert (await commands.run("sleep 0.01; cat number")).stdout == str(number).encode()
