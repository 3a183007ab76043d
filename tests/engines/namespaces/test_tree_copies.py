"""The host's end of a copied tree, against a side that may say anything."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from atoll.engines.inside import wire
from atoll.engines.namespaces.engine import BINARIES
from atoll.engines.namespaces.tree_copies import Work, check, summary
from atoll.errors import AtollError, LimitExceeded, Unavailable
from atoll.model.tree import TreeLimits
from tests.campaigns import Campaign

LIMITS = TreeLimits(entries=50, depth=5, total_bytes=100_000)


def record(
    kind: int, name: bytes = b"", data: bytes = b"", mode: int = 0o644, claimed: int | None = None
) -> bytes:
    size = len(data) if claimed is None else claimed
    head = wire.TreeRecord(kind=kind, mode=mode, name_bytes=len(name), data_bytes=size)
    return bytes(head) + name + data


def enter(name: bytes) -> bytes:
    return record(wire.TreeKind.ENTER, name)


def file(name: bytes, data: bytes = b"x") -> bytes:
    return record(wire.TreeKind.FILE, name, data)


LEAVE, END = record(wire.TreeKind.LEAVE), record(wire.TreeKind.END)


def receive(stream: bytes, folder: Path, limits: TreeLimits = LIMITS) -> wire.TreeReport:
    """Let the copier hear a stream, and return its report; it never crashes."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        with Work(limits, 60) as work, tempfile.TemporaryFile() as source:
            reading, writing = os.pipe()
            source.write(stream)
            source.seek(0)
            command = [str(BINARIES / "copier"), "receive"]
            with (
                subprocess.Popen(["cat"], stdin=source, stdout=writing, stderr=subprocess.DEVNULL),
                subprocess.Popen(command, stdin=fd, stdout=reading, stderr=work.memory) as copier,
            ):
                os.close(reading)
                os.close(writing)
                assert copier.wait(timeout=60) == 0
            return work.report()
    finally:
        os.close(fd)


def error_of(report: wire.TreeReport) -> BaseException | None:
    try:
        check("inside", LIMITS, report, wire.TreeReport(), 0)
    except (OSError, AtollError) as error:
        return error
    return None


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder beside one that must not change."""
    (tmp_path / "beside").write_bytes(b"kept")
    folder = tmp_path / "folder"
    folder.mkdir()
    return folder


def everything(folder: Path) -> dict[str, bytes | None]:
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
    }


def test_a_tree_is_made_as_told(folder: Path) -> None:
    skipped = record(wire.TreeKind.SKIPPED, b"link")
    stream = [file(b"a", b"1"), enter(b"d"), file(b"b", bytes(90_000)), skipped, LEAVE, END]
    report = receive(b"".join(stream), folder)
    assert everything(folder) == {"a": b"1", "d": None, "d/b": bytes(90_000)}
    found = summary("in", report)
    assert (found.files, found.directories, found.total_bytes) == (2, 1, 90_001)
    assert found.skipped_paths == ["in/d/link"]


@pytest.mark.parametrize(
    "name", [b"", b".", b"..", b"../evil", b"/etc/evil", b"a/b", b"nul\0byte", b"n" * 256]
)
@pytest.mark.parametrize("make", [file, enter, lambda name: record(wire.TreeKind.SKIPPED, name)])
def test_a_name_that_is_no_component_ends_the_copy(
    folder: Path, name: bytes, make: Callable[[bytes], bytes]
) -> None:
    report = receive(file(b"before") + make(name) + file(b"after") + END, folder)
    assert isinstance(error_of(report), Unavailable)
    assert everything(folder.parent) == {
        "beside": b"kept",
        "folder": None,
        "folder/before": b"x",
    }


@pytest.mark.parametrize(
    "stream",
    [
        LEAVE + END,
        enter(b"d") + LEAVE + LEAVE + END,
        record(99, b"odd") + END,
        record(wire.TreeKind.FILE, b"f", b"short", claimed=50_000),
        file(b"f")[:-10],
        b"",
        b"noise" * 1000,
    ],
)
def test_a_broken_stream_leaves_no_part_of_a_file(folder: Path, stream: bytes) -> None:
    assert error_of(receive(stream, folder)) is not None
    assert [path for path in folder.rglob("*") if path.is_file()] == []


def test_nothing_that_exists_is_changed_and_no_link_is_followed(folder: Path) -> None:
    (folder / "old").write_bytes(b"old")
    (folder / "out").symlink_to(folder.parent)
    (folder / "link").symlink_to(folder.parent / "made")
    for stream in (file(b"old"), file(b"link"), file(b"out"), enter(b"out") + file(b"evil")):
        assert isinstance(error_of(receive(stream + END, folder)), OSError)
    assert (folder / "old").read_bytes() == b"old"
    assert sorted(path.name for path in folder.parent.iterdir()) == ["beside", "folder"]


@pytest.mark.parametrize(
    "stream",
    [
        b"".join(file(b"%d" % number) for number in range(51)),
        b"".join(record(wire.TreeKind.SKIPPED, b"x") for _ in range(51)),
        (enter(b"d") + LEAVE) * 51,
        b"".join(enter(b"d") for _ in range(6)),
        record(wire.TreeKind.FILE, b"f", claimed=100_001),
        record(wire.TreeKind.FILE, b"f", claimed=(1 << 64) - 1),
        file(b"a", bytes(60_000)) + file(b"b", bytes(60_000)),
    ],
    ids=["files", "skipped", "directories", "depth", "claimed", "endless", "sum"],
)
def test_a_stream_beyond_its_limits_is_cut_off(folder: Path, stream: bytes) -> None:
    assert isinstance(error_of(receive(stream + END, folder)), LimitExceeded)
    assert sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) <= 100_000


NAMES = st.sampled_from([b"a", b"b", b"..", b".", b"", b"a/b", b"\0", b"x" * 255, b"x" * 256])
RECORDS = st.builds(
    record,
    st.integers(0, 6),
    NAMES,
    st.binary(max_size=100),
    st.integers(0, 0o177777),
    st.one_of(st.none(), st.integers(0, 300), st.integers(0, (1 << 64) - 1)),
)


def test_no_stream_harms_anything(tmp_path: Path, campaign: Campaign) -> None:
    @settings(
        max_examples=campaign.count(2000),
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(records=st.lists(RECORDS, max_size=12), noise=st.binary(max_size=40))
    def listen(records: Sequence[bytes], noise: bytes) -> None:
        with tempfile.TemporaryDirectory(dir=tmp_path) as place:
            folder = Path(place, "folder")
            folder.mkdir()
            report = receive(b"".join(records) + noise, folder)
            assert report.files <= LIMITS.entries
            assert os.listdir(place) == ["folder"]
            for path in folder.rglob("*"):
                assert path.is_dir() or path.is_file()
                assert not path.is_symlink()

    listen()
