"""Threats D: what the host does with trees that hostile code prepares."""

from __future__ import annotations

import io
import os
import resource
import secrets
import tarfile
import time
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from atoll.errors import AtollError, Conflict, Forbidden, InvalidRequest, LimitExceeded, NotFound
from atoll.model.file import FileKind
from atoll.node.commands import Commands
from tests.campaigns import Campaign
from tests.security.canaries import Canary, make_canary
from tests.security.guest import Guest, until_ready

# What a caller may hear about a path that leads nowhere good; the rest would be our fault.
CALLERS_FAULT = (InvalidRequest, NotFound, Forbidden, Conflict, LimitExceeded)


@pytest.fixture
def canary(tmp_path: Path) -> Canary:
    """A tree outside that must neither be read nor changed."""
    return make_canary(tmp_path)


@pytest.fixture
async def linked(guest: Guest, canary: Canary) -> list[str]:
    """A workspace full of links that lead out of it; returns paths to and through them."""
    found = await guest.attack("make_links", canary.word, str(canary.folder))
    paths = [f"links/{name}" for name in found["names"]]
    return [*paths, *(f"{path}/canary" for path in paths), *(f"{path}/deep/x" for path in paths)]


# --- T38: reading through links -------------------------------------------------------------------


async def test_links_that_lead_out_show_nothing(
    guest: Guest, linked: list[str], canary: Canary, tmp_path: Path
) -> None:
    files = guest.files
    heard: list[object] = []
    for path in linked:
        heard += [
            await answer(files.read(path)),
            await answer(files.read_page(path)),
            await answer(files.stat(path)),
            await answer(files.list(path)),
            await answer(collect(files.stream(path))),
            await answer(collect(files.read_archive(path))),
            await answer(files.search("canary|root", path)),
            await answer(files.search_names("*", path)),
            await answer(files.download(path, tmp_path / secrets.token_hex(4))),
        ]
    heard.append(await files.search("canary"))
    heard.append(await collect(files.read_archive()))
    assert len(heard) > 500
    assert canary.word not in repr(heard)
    assert "root:x:0" not in repr(heard)
    for copy in tmp_path.rglob("*"):
        if copy.is_file() and canary.folder not in copy.parents:
            assert canary.word.encode() not in copy.read_bytes()


async def test_links_are_described_themselves(guest: Guest, linked: list[str]) -> None:
    kinds = {info.name: info.kind for info in await guest.files.list("links")}
    assert kinds.pop("deep") is FileKind.DIRECTORY
    assert set(kinds.values()) == {FileKind.SYMLINK}


# --- T40: changing through links ------------------------------------------------------------------


async def test_links_that_lead_out_change_nothing(
    guest: Guest, linked: list[str], canary: Canary, tmp_path: Path
) -> None:
    source = tmp_path / "uploaded"
    source.mkdir()
    (source / "canary").write_text("uploaded")
    files = guest.files
    await files.write("own", "own")
    for path in linked:
        await answer(files.write(f"{path}/written", "changed", mode=0o777))
        await answer(files.make_dir(f"{path}/made"))
        await answer(files.upload(source, path))
        await answer(files.write_archive(tar_of("canary", "kept"), path))
        await answer(files.rename("own", f"{path}/canary"))
        await answer(files.rename(f"{path}/canary", "stolen"))
        await answer(files.remove(f"{path}/kept", recursive=True))
        await answer(files.remove(f"{path}/deep", recursive=True))
    # Through a link itself: it is the link that goes, not what it names.
    for path in linked:
        await answer(files.write(path, "changed", mode=0o777))
        await answer(files.remove(path, recursive=True))
    canary.check_host()
    await canary.check_guest(guest)


async def test_no_archive_member_leads_out(guest: Guest, canary: Canary) -> None:
    link = tarfile.TarInfo("link")
    link.type, link.linkname = tarfile.SYMTYPE, str(canary.folder)
    hard = tarfile.TarInfo("hard")
    hard.type, hard.linkname = tarfile.LNKTYPE, "/etc/passwd"
    device = tarfile.TarInfo("device")
    device.type, device.devmajor, device.devminor = tarfile.CHRTYPE, 1, 1
    members = [
        link,
        hard,
        device,
        *(
            tarfile.TarInfo(name)
            for name in ("/absolute", "../up", "a/../../up", "a//b", "a/./../b")
        ),
    ]
    for member in members:
        with pytest.raises(InvalidRequest):
            await guest.files.write_archive(tar_with(member))
    assert [info.path for info in await guest.files.list()] == []
    canary.check_host()


# --- T41: paths -----------------------------------------------------------------------------------

ODD_PARTS = st.sampled_from(
    ["", ".", "..", "...", "~", "/", "//", "\\", "a", "a\\..\\b", "%2e%2e", "%252e", "..%2f", " ",
     "\n", "\0", "\udcff", "\ud800", "x" * 255, "x" * 256, "é", "\u202e", "workspace", "proc", "-",
     "*", "\x1b[2J"]
)  # fmt: skip
PATHS = st.one_of(
    st.lists(ODD_PARTS, max_size=8).map("/".join),
    st.lists(ODD_PARTS, max_size=8).map("".join),
    st.text(max_size=40),
    st.builds(str.__mul__, st.sampled_from(["a/", "x", "../", "./"]), st.integers(0, 3000)),
    st.builds(
        str.__add__, st.sampled_from(["/workspace", "/workspace/", "/"]), st.text(max_size=10)
    ),
)


async def test_generated_paths_stay_inside_or_are_refused(guest: Guest, campaign: Campaign) -> None:
    """Ten thousand of them: each is written under that very name, or refused as a request."""
    generated: list[str] = []

    @settings(
        max_examples=campaign.count(10_000),
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(PATHS)
    def collect_paths(path: str) -> None:
        generated.append(path)

    collect_paths()
    workspace = guest.sandbox.workspace
    written = refused = 0
    for path in generated:
        try:
            info = await workspace.write(path, b"x")
        except InvalidRequest:
            refused += 1
        else:
            written += 1
            assert not info.path.startswith("/") and ".." not in info.path.split("/")
            assert (await collect(workspace.read(path))) == b"x"
            await workspace.remove(info.path.split("/")[0], recursive=True)
    assert written > 10 and refused > 10
    assert await workspace.list() == []


# --- T42: things that are no files ----------------------------------------------------------------


async def test_nothing_hangs_on_pipes_sockets_and_endless_links(guest: Guest) -> None:
    await guest.attack("hostile_trees", "special")
    files = guest.files
    for name in ("pipe", "socket", "endless", "device", "terminal", "link-to-pipe"):
        for read in (files.read, files.read_page, files.read_text):
            with anyio.fail_after(60), pytest.raises(CALLERS_FAULT):
                await read(f"tree/{name}")
        with anyio.fail_after(60):
            await files.stat(f"tree/{name}")
        with anyio.fail_after(60), pytest.raises(CALLERS_FAULT):
            await files.list(f"tree/{name}")
    with anyio.fail_after(60):
        archive = await collect(files.read_archive("tree"))
        await files.search("x", "tree")
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        assert tar.getnames() == []


# --- T43: trees without end -----------------------------------------------------------------------


@pytest.mark.parametrize("shape", ["deep", "sparse"])
async def test_an_export_of_a_hostile_tree_ends_at_a_limit(guest: Guest, shape: str) -> None:
    await guest.attack("hostile_trees", shape)
    begun, before = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(LimitExceeded):
        async for _chunk in guest.files.read_archive("tree"):
            pass
    assert time.monotonic() - begun <= 60
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10
    assert grown <= 64 << 20


async def test_a_giant_without_a_byte_is_not_read_whole(guest: Guest) -> None:
    await guest.attack("hostile_trees", "sparse")
    with anyio.fail_after(60), pytest.raises(LimitExceeded):
        await guest.files.read("tree/giant0")
    with anyio.fail_after(60), pytest.raises(LimitExceeded):
        await guest.files.read_page("tree/giant0", start_line=2)


async def test_a_wide_tree_is_exported_or_refused_in_time(guest: Guest) -> None:
    await guest.attack("hostile_trees", "wide")
    with pytest.raises(LimitExceeded):
        await guest.files.list("tree")
    begun, count = time.monotonic(), 0
    async for chunk in guest.files.read_archive("tree"):
        count += len(chunk)
    assert count >= 20_000 * 512
    assert time.monotonic() - begun <= 60


async def test_odd_names_come_back_byte_by_byte(guest: Guest, tmp_path: Path) -> None:
    """T45, T48: names are bytes, compared as such, never cut and never joined."""
    await guest.attack("hostile_trees", "odd")
    listed = {os.fsencode(info.name) for info in await guest.files.list("tree")}
    assert len(listed) == 16
    assert {b"upper", b"Upper", "é".encode(), "e\u0301".encode(), b"\xff\xfe not text"} <= listed
    for name in listed:
        assert await guest.files.read(f"tree/{os.fsdecode(name)}") == b"x"
    archive = await collect(guest.files.read_archive("tree"))
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        assert {os.fsencode(name) for name in tar.getnames()} == listed
    await guest.files.download("tree", tmp_path)
    assert set(os.listdir(os.fsencode(tmp_path))) == listed


# --- T44: files that change meanwhile -------------------------------------------------------------


async def test_an_archive_of_changing_files_is_whole(guest: Guest, campaign: Campaign) -> None:
    async with Commands(guest.sandbox) as commands:
        await guest.put("grow")
        process = await commands.start(("python3", "-B", "tests/security/attacks/grow.py"))
        await until_ready(process)
        for _ in range(campaign.count(200)):
            archive = await collect(guest.files.read_archive("growing"))
            assert len(archive) % 512 == 0
            with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
                for member in tar.getmembers():
                    assert member.isfile() or member.isdir()
                    if member.isfile():
                        content = tar.extractfile(member)
                        assert content and len(content.read()) == member.size
        assert process.end is None, process.logs("stderr")


# --- T46: files that tools of the host would obey -------------------------------------------------


async def test_the_host_obeys_no_file_of_a_workspace(guest: Guest, tmp_path: Path) -> None:
    marker = tmp_path / "obeyed"
    order = f"touch {marker}"
    files = guest.files
    for path, text in {
        ".git/config": f'[core]\n\tfsmonitor = {order}\n[filter "x"]\n\tclean = {order}\n',
        ".git/hooks/post-checkout": f"#!/bin/sh\n{order}\n",
        ".git/HEAD": "ref: refs/heads/main\n",
        ".gitattributes": "* filter=x\n",
        ".envrc": order,
        "conftest.py": f"import os; os.system('{order}')",
        "sitecustomize.py": f"import os; os.system('{order}')",
        "setup.cfg": "[aliases]\n",
        "pytest.ini": "[pytest]\naddopts = -p conftest\n",
        ".bashrc": order,
    }.items():
        await files.write(path, text, mode=0o755)
    await files.list()
    await files.search("touch")
    await collect(files.read_archive())
    await files.download(".", tmp_path / "copy")
    await files.upload(tmp_path / "copy", "again")
    await Commands(guest.sandbox).run("git status; git checkout .", timeout=20)
    assert not marker.exists()


# --- T49: trees that do not want to go ------------------------------------------------------------


@pytest.mark.parametrize("shape", ["deep", "wide", "sparse", "special", "closed", "odd"])
async def test_every_hostile_tree_can_be_removed(guest: Guest, shape: str) -> None:
    await guest.attack("hostile_trees", shape)
    begun = time.monotonic()
    await guest.files.remove("tree", recursive=True)
    assert "tree" not in [info.name for info in await guest.files.list()]
    assert time.monotonic() - begun <= 60


async def test_a_closed_tree_is_told_apart_from_a_missing_one(guest: Guest) -> None:
    await guest.attack("hostile_trees", "closed")
    for path in ("tree/a", "tree/a/inner", "tree/a/inner/file"):
        with pytest.raises(Forbidden):
            await guest.files.list(path)
    with pytest.raises(Forbidden):
        await guest.files.read("tree/b/inner/file")


# --- shared ---------------------------------------------------------------------------------------


async def answer(call: Awaitable[object]) -> object:
    """Return what the caller hears: a value, or an error that blames his request."""
    try:
        with anyio.fail_after(60):
            return await call
    except CALLERS_FAULT as error:
        return error
    except AtollError as error:
        raise AssertionError(f"the caller hears {error!r}") from error


async def collect(chunks: AsyncIterator[bytes]) -> bytes:
    return b"".join([chunk async for chunk in chunks])


def tar_with(*members: tarfile.TarInfo) -> AsyncIterator[bytes]:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for member in members:
            tar.addfile(member, io.BytesIO(bytes(member.size)))
    return pieces(buffer.getvalue())


def tar_of(*names: str) -> AsyncIterator[bytes]:
    return tar_with(*(tarfile.TarInfo(name) for name in names))


async def pieces(data: bytes) -> AsyncIterator[bytes]:
    yield data
