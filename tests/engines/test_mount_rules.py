"""Directories of the host are reached without links, and what was mounted is compared with what was held."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from atoll.engines.mount_rules import HeldSources, check_mount, is_out_of_reach
from atoll.errors import InvalidRequest
from atoll.model.sandbox import Mount
from tests.exchange import exchange

pytestmark = pytest.mark.any_user


def differences(mount: Mount) -> list[str]:
    """Return what this process, for want of a container's, sees otherwise."""
    with HeldSources([mount]) as sources:
        return [*sources.differences(os.getpid())]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "listed" / "real" / "below").mkdir(parents=True)
    (tmp_path / "secret" / "below").mkdir(parents=True)
    (tmp_path / "listed" / "link").symlink_to(tmp_path / "secret")
    return tmp_path / "listed"


@pytest.mark.parametrize("path", ["link", "link/below", "missing", "file"])
def test_what_is_no_directory_or_behind_a_link_is_refused(folder: Path, path: str) -> None:
    (folder / "file").touch()
    with pytest.raises(InvalidRequest, match="without links"):
        HeldSources([Mount(str(folder / "real"), "/mnt/a"), Mount(str(folder / path), "/mnt/x")])


def test_nothing_stays_open(folder: Path) -> None:
    before = os.listdir("/proc/self/fd")
    with HeldSources([Mount(str(folder / "real"), "/mnt/x")]):
        assert len(os.listdir("/proc/self/fd")) == len(before) + 1
    with pytest.raises(InvalidRequest):
        HeldSources([Mount(str(folder / "real"), "/mnt/a"), Mount(str(folder / "link"), "/mnt/x")])
    assert os.listdir("/proc/self/fd") == before


def test_the_same_directory_is_known_again_and_no_other(folder: Path) -> None:
    real = str(folder / "real")
    assert differences(Mount(real, real)) == []
    for other in (folder, folder / "real" / "below", "/mnt/not-there"):
        assert len(differences(Mount(real, str(other)))) == 1


def test_a_link_at_the_place_of_a_mount_is_not_followed(folder: Path) -> None:
    (folder / "way").symlink_to(folder / "real")
    below = str(folder / "real" / "below")
    assert len(differences(Mount(below, str(folder / "way" / "below")))) == 1


def test_whatever_is_exchanged_meanwhile_nothing_outside_is_held(folder: Path) -> None:
    inside = (folder / "real" / "below").stat().st_ino
    outcomes = set()
    with exchanging(folder / "real", folder / "link"):
        # Until both were met.
        for _ in range(200_000):
            try:
                with HeldSources([Mount(str(folder / "real" / "below"), "/mnt/x")]) as sources:
                    (_mount, fd), *_ = sources._held
                    outcomes.add(os.fstat(fd).st_ino)
            except InvalidRequest:
                outcomes.add(0)
            if outcomes == {0, inside}:
                break
    assert outcomes == {0, inside}


@contextmanager
def exchanging(one: Path, other: Path) -> Iterator[None]:
    over = threading.Event()

    def run() -> None:
        while not over.is_set():
            exchange(one, other)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@pytest.mark.parametrize(
    ("source", "mountable", "expected"),
    [
        ("/srv", ["/srv"], True),
        ("/srv/", ["/srv", "/data"], True),
        ("/srv/below", ["/srv"], False),
        # It is listed, but who may write to the other one can exchange it.
        ("/srv/below", ["/srv", "/srv/below"], False),
    ],
)
def test_out_of_reach_is_what_no_sandbox_can_exchange(
    source: str, mountable: list[str], expected: bool
) -> None:
    assert is_out_of_reach(source, [Path(each) for each in mountable]) is expected


def test_a_name_that_no_file_can_have_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="may not be mounted"):
        check_mount(Mount("/srv/\0", "/mnt/x"), [Path("/srv")], longest_target=256)
