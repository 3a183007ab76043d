"""Archives out of and into a workspace, on every engine, and hostile ones."""

from __future__ import annotations

import gzip
import io
import tarfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.engines.contract import Sandbox
from atoll.errors import AtollError, Forbidden, InvalidRequest, LimitExceeded, NotFound
from atoll.model.sandbox import SandboxSpec
from atoll.node.commands import Commands
from atoll.node.files import Files
from atoll.node.trees import TreeLimits, TreeReport
from atoll.testing.conformance.running import soon
from atoll.testing.fake import FakeEngine
from tests.campaigns import Campaign


@pytest.fixture
def files(sandbox: Sandbox) -> Files:
    return Files(sandbox.workspace)


async def chunks_of(data: bytes, size: int = 1000) -> AsyncIterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


def make_tar(*members: tuple[tarfile.TarInfo, bytes], form: int = tarfile.PAX_FORMAT) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=form) as archive:
        for member, data in members:
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


def file_member(name: str, data: bytes = b"x") -> tuple[tarfile.TarInfo, bytes]:
    return tarfile.TarInfo(name), data


def special_member(name: str, kind: bytes, target: str = "") -> tuple[tarfile.TarInfo, bytes]:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, target
    return member, b""


async def read_tar(files: Files, path: str = ".") -> dict[str, bytes | None]:
    """Return what an archive holds, read with the standard library; None for directories."""
    data = b"".join([chunk async for chunk in files.read_archive(path)])
    held: dict[str, bytes | None] = {}
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as archive:
        for member in archive:
            content = archive.extractfile(member)
            held[member.name] = content.read() if content else None
    return held


async def test_a_tree_goes_out_as_a_valid_archive(files: Files, sandbox: Sandbox) -> None:
    long = "n" * 200 + "/" + "m" * 200
    await files.write("a/ünï 中", b"odd name")
    await files.write(long, b"long name")
    await files.write("a/empty", b"")
    await files.write("a/big", b"z" * 100_001)
    await Commands(sandbox).run("ln -s / a/link; mkfifo a/fifo", check=True)
    assert await read_tar(files) == {
        "a": None,
        "a/big": b"z" * 100_001,
        "a/empty": b"",
        "a/ünï 中": b"odd name",
        "n" * 200: None,
        long: b"long name",
    }
    assert set(await read_tar(files, "a")) == {"big", "empty", "ünï 中"}
    assert await read_tar(files, "a/empty") == {"empty": b""}


async def test_modes_and_times_are_kept(files: Files) -> None:
    await files.write("tool", b"#!/bin/sh\n", mode=0o755)
    data = b"".join([chunk async for chunk in files.read_archive()])
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        member = archive.getmember("tool")
    assert member.mode == 0o755
    assert abs(member.mtime - time.time()) < 60


async def test_what_is_no_tree_is_refused(files: Files, sandbox: Sandbox) -> None:
    await Commands(sandbox).run("ln -s /etc/passwd link; mkfifo fifo", check=True)
    for path in ("link", "fifo", "../x"):
        with soon(), pytest.raises(InvalidRequest):
            await read_tar(files, path)
    with pytest.raises(NotFound):
        await read_tar(files, "missing")


@pytest.mark.parametrize("change", ["echo more", "head -c 10 /dev/zero", "rm"])
async def test_an_archive_stays_valid_though_a_file_changes(
    files: Files, sandbox: Sandbox, change: str
) -> None:
    await files.write("a", b"a" * 3_000_000)
    await files.write("b", b"last")
    line = "rm a" if change == "rm" else f"{change} {'>>' if change == 'echo more' else '>'} a"
    archive = files.read_archive()
    data = await anext(archive)
    data += await anext(archive)
    await Commands(sandbox).run(line, check=True)
    data += b"".join([chunk async for chunk in archive])
    with tarfile.open(fileobj=io.BytesIO(data)) as held:
        assert held.getnames() == ["a", "b"]
        assert held.getmember("a").size == 3_000_000
        content = held.extractfile("b")
        assert content is not None
        assert content.read() == b"last"


async def test_a_tree_beyond_its_limits_is_not_archived(sandbox: Sandbox) -> None:
    limits = TreeLimits(total_bytes=1000, entries=5)
    files = Files(sandbox.workspace, tree_limits=limits)
    await files.write("a", b"x" * 900)
    assert await read_tar(files) == {"a": b"x" * 900}
    await files.write("b", b"x" * 101)
    with pytest.raises(LimitExceeded, match="1000 bytes"):
        await read_tar(files)


async def test_what_is_closed_to_its_owner_is_left_out_and_reported(
    files: Files, sandbox: Sandbox
) -> None:
    if sandbox.info.engine == "fake":
        return  # its files have modes, but nobody is kept out by them
    for name in ("a", "b/closed", "large", "c/inside", "d"):
        await files.write(name, bytes(100_000 if name == "large" else 10))
    await Commands(sandbox).run("chmod 000 b/closed large c; ln -s a link", check=True)
    report = TreeReport()
    data = b"".join([chunk async for chunk in files.read_archive(report=report)])
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        assert archive.getnames() == ["a", "b", "c", "d"]
    assert (report.files, report.directories, report.total_bytes) == (2, 2, 20)
    assert sorted(report.skipped_paths) == ["b/closed", "c", "large", "link"]
    with pytest.raises(Forbidden):
        await read_tar(files, "b/closed")


async def test_a_sparse_giant_is_refused_at_once(sandbox: Sandbox) -> None:
    if sandbox.info.engine == "fake":
        return  # its files hold what they hold
    files = Files(sandbox.workspace, tree_limits=TreeLimits(total_bytes=50 << 20))
    await Commands(sandbox).run(["truncate", "-s", "3G", "giant"], check=True)
    with anyio.fail_after(60), pytest.raises(LimitExceeded, match="50 MiB"):
        await read_tar(files)
    page = await files.read_page("giant", max_bytes=10)
    assert (page.text, page.cut_by) == ("\0" * 10, "bytes")


# In


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
@pytest.mark.parametrize("packed", [False, True])
async def test_archives_of_every_form_are_unpacked(files: Files, form: int, packed: bool) -> None:
    deep = "/".join(["x" * 40] * 4)
    folder = special_member("folder/", tarfile.DIRTYPE)
    tool = file_member("./folder/tool", b"run")
    tool[0].mode = 0o4755
    data = make_tar(folder, tool, file_member("ä", b"1" * 513), file_member(deep), form=form)
    report = await files.write_archive(chunks_of(gzip.compress(data) if packed else data), "to")
    assert (report.files, report.directories, report.total_bytes) == (3, 1, 517)
    assert await files.read("to/folder/tool") == b"run"
    assert (await files.stat("to/folder/tool")).mode & 0o7777 == 0o755
    assert await files.read("to/ä") == b"1" * 513
    assert await files.read(f"to/{deep}") == b"x"


async def test_pieces_of_any_size_make_an_archive(files: Files) -> None:
    data = gzip.compress(make_tar(file_member("a", b"1" * 1500), file_member("b", b"2")))
    for size in (1, 2, 511, 512, 513, 100_000):
        await files.write_archive(chunks_of(data, size), f"by-{size}")
        assert await files.read(f"by-{size}/a") == b"1" * 1500


async def test_a_hundred_megabytes_are_unpacked_in_a_stream(files: Files) -> None:
    async def archive() -> AsyncIterator[bytes]:
        member = tarfile.TarInfo("big")
        member.size = 100 << 20
        yield member.tobuf()
        for _ in range(100):
            yield bytes(1 << 20)
        yield bytes(1024)

    with anyio.fail_after(60):
        await files.write_archive(archive())
    assert (await files.stat("big")).size == 100 << 20


HOSTILE = {
    "absolute": file_member("/etc/cron.d/evil"),
    "absolute in the workspace": file_member("/workspace/evil"),
    "climbing": file_member("../evil"),
    "climbing inside": file_member("a/../../evil"),
    "climbing directory": special_member("../evil", tarfile.DIRTYPE),
    "empty component": file_member("a//b"),
    "no name": file_member("."),
    "symlink": special_member("evil", tarfile.SYMTYPE, "/etc/passwd"),
    "symlink inside": special_member("evil", tarfile.SYMTYPE, "ok"),
    "hard link": special_member("evil", tarfile.LNKTYPE, "../../etc/passwd"),
    "fifo": special_member("evil", tarfile.FIFOTYPE),
    "character device": special_member("evil", tarfile.CHRTYPE),
    "block device": special_member("evil", tarfile.BLKTYPE),
    "sparse": special_member("evil", tarfile.GNUTYPE_SPARSE),
    "unknown type": special_member("evil", b"Z"),
    "long link": special_member("evil", tarfile.SYMTYPE, "x" * 300),
    "over-long name": file_member("n" * 300),
    "over-long path": file_member("d/" * 2500 + "x"),
}


@pytest.mark.parametrize("kind", HOSTILE)
@pytest.mark.parametrize("form", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
async def test_a_hostile_member_stops_the_call(files: Files, kind: str, form: int) -> None:
    member, content = HOSTILE[kind]
    data = make_tar(file_member("ok"), (member, content), file_member("later"), form=form)
    with soon(), pytest.raises(InvalidRequest, match=r"archive member|sparse"):
        await files.write_archive(chunks_of(data), "to")
    assert [entry.path for entry in await files.list("to")] == ["to/ok"]
    assert [entry.path for entry in await files.list()] == ["to"]


async def test_links_that_are_there_already_lead_nowhere(files: Files, sandbox: Sandbox) -> None:
    await Commands(sandbox).run("ln -s /tmp out; ln -s /tmp/file file", check=True)
    with pytest.raises((InvalidRequest, NotFound)):
        await files.write_archive(chunks_of(make_tar(file_member("out/evil"))))
    await files.write_archive(chunks_of(make_tar(file_member("file"))))
    result = await Commands(sandbox).run("test -e /tmp/evil || test -e /tmp/file")
    assert result.exit_code == 1


def _broken_pax(text: bytes) -> bytes:
    member = tarfile.TarInfo("pax")
    member.type, member.size = tarfile.XHDTYPE, len(text)
    return member.tobuf() + text.ljust(512, b"\0") + make_tar(file_member("x"))


BROKEN = {
    "empty": b"",
    "garbage": b"\x01garbage" * 200,
    "zip": b"PK\x03\x04" + bytes(1000),
    "cut in a header": make_tar(file_member("a"))[:300],
    "cut in a member": make_tar(file_member("a", b"x" * 2000))[:1500],
    "no end": make_tar(file_member("a"))[:1024],
    "cut gzip": gzip.compress(make_tar(file_member("a", bytes(range(256)) * 20)))[:-100],
    "broken gzip": b"\x1f\x8b" + b"nonsense" * 20,
    "pax length": _broken_pax(b"99x path=evil\n"),
    "pax without =": _broken_pax(b"12 path.evil\n"),
    "pax size": _broken_pax(b"12 size=-5\n\n"),
    "pax huge size": _broken_pax(b"30 size=9999999999999999999999\n"),
}


@pytest.mark.parametrize("kind", BROKEN)
async def test_a_broken_archive_is_refused(files: Files, kind: str) -> None:
    with soon(), pytest.raises(InvalidRequest, match="archive"):
        await files.write_archive(chunks_of(BROKEN[kind]))
    assert [entry for entry in await files.list() if entry.size not in (1, 5120)] == []


async def test_a_gzip_bomb_is_refused_quickly(files: Files) -> None:
    async def bomb() -> AsyncIterator[bytes]:
        member = tarfile.TarInfo("zeros")
        member.size = 1 << 30
        packer = gzip.zlib.compressobj(wbits=31)  # type: ignore[attr-defined]
        yield packer.compress(member.tobuf())
        for _ in range(1024):
            yield packer.compress(bytes(1 << 20))
        yield packer.flush()

    with anyio.fail_after(60), pytest.raises(LimitExceeded, match="200 times"):
        await files.write_archive(bomb())
    assert await files.list() == []


async def test_entries_depth_and_bytes_are_limited(sandbox: Sandbox) -> None:
    limits = TreeLimits(entries=10, depth=5, total_bytes=1000)
    files = Files(sandbox.workspace, tree_limits=limits)
    many = make_tar(*(file_member(f"f{number}") for number in range(11)))
    with pytest.raises(LimitExceeded, match="10 entries"):
        await files.write_archive(chunks_of(many))
    with pytest.raises(LimitExceeded, match="5 folders"):
        await files.write_archive(chunks_of(make_tar(file_member("a/b/c/d/e/f"))))
    with pytest.raises(LimitExceeded, match="1000 bytes"):
        await files.write_archive(chunks_of(make_tar(file_member("big", bytes(1001)))))
    huge = tarfile.TarInfo("pax")
    huge.type, huge.size = tarfile.XHDTYPE, 10 << 20
    with pytest.raises(LimitExceeded, match="extended header"):
        await files.write_archive(chunks_of(huge.tobuf()))


async def test_a_wide_tree_goes_in_and_out(files: Files, campaign: Campaign) -> None:
    count = campaign.count(20_000)
    data = make_tar(*(file_member(f"wide/{number:05}", b"%d" % number) for number in range(count)))
    with anyio.fail_after(60):
        assert (await files.write_archive(chunks_of(data, 65536))).files == count
        held = await read_tar(files, "wide")
    assert len(held) == count
    assert held["00007"] == b"7"


# Anything

NAMES = st.text(
    st.characters(exclude_characters="/\0", codec="utf-8"), min_size=1, max_size=30
).filter(lambda name: name not in (".", ".."))
TREES = st.dictionaries(
    st.lists(NAMES, min_size=1, max_size=3).map("/".join), st.binary(max_size=1500), max_size=6
)


def _in_a_fake_sandbox(work: Callable[[Files], Awaitable[None]]) -> None:
    async def run() -> None:
        engine = FakeEngine()
        try:
            await work(Files((await engine.create(SandboxSpec())).workspace))
        finally:
            await engine.close()

    anyio.run(run)


@given(tree=TREES, packed=st.booleans(), size=st.integers(1, 3000))
def test_trees_round_trip(tree: dict[str, bytes], packed: bool, size: int) -> None:
    _in_a_fake_sandbox(partial(_round_trip, tree, packed, size))


async def _round_trip(tree: dict[str, bytes], packed: bool, size: int, files: Files) -> None:
    kept: dict[str, bytes] = {}
    for path, data in tree.items():
        try:
            await files.write(f"from/{path}", data)
        except InvalidRequest:
            # A name too long, or one that is a file already where a folder is needed.
            continue
        kept[path] = data
    await files.make_dir("from")
    archive = b"".join([chunk async for chunk in files.read_archive("from")])
    if packed:
        archive = gzip.compress(archive)
    report = await files.write_archive(chunks_of(archive, size), "to")
    assert report.files == len(kept)
    for path, data in kept.items():
        assert await files.read(f"to/{path}") == data


@given(data=st.binary(max_size=3000), position=st.integers(0, 4000), byte=st.integers(0, 255))
def test_a_spoilt_archive_never_breaks_anything(data: bytes, position: int, byte: int) -> None:
    archive = bytearray(make_tar(file_member("a/b", data), file_member("c", data)))
    archive[position % len(archive)] = byte
    _in_a_fake_sandbox(partial(_unpack_or_refuse, bytes(archive)))
    _in_a_fake_sandbox(partial(_unpack_or_refuse, data))


async def _unpack_or_refuse(archive: bytes, files: Files) -> None:
    try:
        await files.write_archive(chunks_of(archive))
    except AtollError as error:
        assert error.code in ("invalid_request", "limit_exceeded")
