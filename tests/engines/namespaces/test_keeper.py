"""A keeper that lasts: who may connect, what it holds for the next one, and when it ends."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from atoll.engines.namespaces import channel
from atoll.engines.namespaces.lasting_keeper import LastingKeeper
from atoll.engines.namespaces.wire import MAX_KEPT_FDS, KeeperHello
from atoll.errors import Conflict, InvalidRequest, LimitExceeded, Unavailable
from tests.campaigns import Campaign
from tests.engines.namespaces.keepers import names_of, open_keeper
from tests.host_state import eventually, is_running

LEASE_SECONDS = 0.3
ROOT = Path(__file__).parents[3]


def descriptors_of(keeper: LastingKeeper) -> int:
    return len(os.listdir(f"/proc/{keeper.pid}/fd"))


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A path that is longer than a socket's may be."""
    return tmp_path / ("long" * 30) / "keeper"


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    channel.close_all(ends)


def test_what_was_kept_is_there_for_the_next_one(
    keeper: LastingKeeper, directory: Path, pipe: tuple[int, int]
) -> None:
    keeper.keep("a/pipe", pipe, "a note")
    keeper.keep("a/nothing")
    keeper.leave()
    os.write(pipe[1], b"written before")
    again = open_keeper(directory)
    assert again.pid == keeper.pid
    kept = again.recall()
    assert set(kept) == {"a/pipe", "a/nothing"}
    assert kept["a/pipe"].note == "a note"
    assert kept["a/pipe"].is_whole
    reading, writing = kept["a/pipe"].fds
    os.write(writing, b", written after")
    assert os.read(reading, 100) == b"written before, written after"
    channel.close_all(kept["a/pipe"].fds)
    again.end()


def test_a_pipe_stays_open_as_long_as_its_end_is_kept(
    keeper: LastingKeeper, pipe: tuple[int, int]
) -> None:
    reading = os.dup(pipe[0])
    keeper.keep("a/writer", [os.dup(pipe[1])])
    os.set_blocking(reading, False)
    keeper.recall()  # by then it has the descriptor
    with pytest.raises(BlockingIOError):
        os.read(reading, 1)
    os.close(reading)
    keeper.end()


def test_keeping_again_replaces(keeper: LastingKeeper, pipe: tuple[int, int]) -> None:
    keeper.keep("a/b", pipe, "first")
    keeper.keep("a/b", pipe[:1], "second")
    kept = keeper.recall()
    assert [(len(each.fds), each.note) for each in kept.values()] == [(1, "second")]
    channel.close_all(kept["a/b"].fds)
    keeper.end()


def test_forgetting_closes_one_name_or_all_below_one(
    keeper: LastingKeeper, pipe: tuple[int, int]
) -> None:
    for name in ("a/1", "a/2", "a/2/3", "ab/1", "b/1"):
        keeper.keep(name, pipe)
    names_of(keeper)
    before = descriptors_of(keeper)
    keeper.forget("a/2")
    assert names_of(keeper) == {"a/1", "a/2/3", "ab/1", "b/1"}
    keeper.forget("a/")
    assert names_of(keeper) == {"ab/1", "b/1"}
    assert descriptors_of(keeper) == before - 6
    keeper.end()


@pytest.mark.parametrize("name", ["", "a", "a/", "/a", "a/" + "b" * 95])
def test_names_have_a_form(keeper: LastingKeeper, name: str) -> None:
    with pytest.raises(InvalidRequest):
        keeper.keep(name)
    keeper.end()


def test_too_many_descriptors_at_once_are_refused(
    keeper: LastingKeeper, pipe: tuple[int, int]
) -> None:
    with pytest.raises(InvalidRequest):
        keeper.keep("a/b", [pipe[0]] * (MAX_KEPT_FDS + 1))
    keeper.end()


def test_what_has_no_room_is_refused_and_the_rest_stays(
    directory: Path, pipe: tuple[int, int]
) -> None:
    limited = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))"
    opening = f"from {__name__} import *; print(open_keeper(Path({str(directory)!r})).pid)"
    subprocess.run([sys.executable, "-c", f"{limited}\n{opening}"], check=True, cwd=ROOT)
    keeper = open_keeper(directory)
    with pytest.raises(LimitExceeded, match="the most is"):
        for number in range(256):
            keeper.keep(f"a/{number}", [pipe[0]])
    kept = keeper.recall()
    assert len(kept) > 128
    assert all(each.is_whole for each in kept.values())
    for each in kept.values():
        channel.close_all(each.fds)
    keeper.forget("a/")
    keeper.keep("a/again", pipe)
    keeper.end()


def test_a_flood_is_survived(
    keeper: LastingKeeper, pipe: tuple[int, int], campaign: Campaign
) -> None:
    for number in range(campaign.count(100_000)):
        name = f"{campaign.random.randrange(50)}/{campaign.random.randrange(5)}"
        if number % 3:
            keeper.keep(name, pipe[: campaign.random.randrange(3)])
        else:
            keeper.forget(name)
    for group in range(50):
        keeper.forget(f"{group}/")
    assert names_of(keeper) == set()
    keeper.end()


def test_messages_of_no_known_kind_do_no_harm(
    keeper: LastingKeeper, directory: Path, pipe: tuple[int, int], campaign: Campaign
) -> None:
    keeper.keep("a/b", pipe)
    names_of(keeper)
    before = descriptors_of(keeper)
    keeper.leave()
    with connect(directory) as connection:
        connection.settimeout(60)
        assert channel.receive_only(connection, KeeperHello) is not None
        for _ in range(campaign.count(2000)):
            size = campaign.random.choice([1, 8, 100, 168, 4000])
            message = bytearray(campaign.random.randbytes(size))
            message[0] = 9  # none that is known
            channel.send(connection, bytes(message), pipe[: campaign.random.randrange(3)])
    again = open_keeper(directory)
    assert names_of(again) == {"a/b"}
    assert again.pid == keeper.pid
    assert descriptors_of(keeper) == before
    again.end()


# --- who may connect ------------------------------------------------------------------------------


def connect(directory: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    fd = os.open(directory, os.O_PATH)
    try:
        connection.connect(f"/proc/self/fd/{fd}/keeper.sock")
    finally:
        os.close(fd)
    return connection


def test_a_second_one_is_refused_while_the_first_is_connected(
    keeper: LastingKeeper, directory: Path
) -> None:
    with pytest.raises(Conflict, match="another program"):
        open_keeper(directory)
    keeper.keep("a/b")
    assert names_of(keeper) == {"a/b"}
    keeper.end()


# --- when it ends ---------------------------------------------------------------------------------


def test_it_ends_when_nobody_comes_back_in_time(directory: Path, pipe: tuple[int, int]) -> None:
    keeper = open_keeper(directory, LEASE_SECONDS)
    keeper.keep("a/b", pipe)
    keeper.leave()
    assert eventually(lambda: not is_running(keeper.pid), 60)
    fresh = open_keeper(directory)
    assert fresh.pid != keeper.pid
    assert names_of(fresh) == set()
    fresh.end()
    assert not is_running(fresh.pid)


def test_one_that_is_connected_has_all_the_time(directory: Path) -> None:
    keeper = open_keeper(directory, 0.0)
    keeper.keep("a/b")
    assert names_of(keeper) == {"a/b"}
    assert not keeper.is_gone
    keeper.end()
    assert keeper.is_gone


def test_a_killed_one_is_noticed_and_replaced(keeper: LastingKeeper, directory: Path) -> None:
    os.kill(keeper.pid, signal.SIGKILL)
    assert eventually(lambda: keeper.is_gone, 60)
    with pytest.raises(Unavailable, match="does not answer"):
        keeper.keep("a/b")
    keeper.forget("a/b")
    keeper.leave()
    fresh = open_keeper(directory)
    assert fresh.pid != keeper.pid
    fresh.end()


@pytest.mark.timeout(600)
def test_what_was_sent_before_a_kill_is_kept(directory: Path, campaign: Campaign) -> None:
    """The program says after each name that it was sent; all that it said are there."""
    program = (
        f"from {__name__} import *\nkeeper = open_keeper(Path({str(directory)!r}))\n"
        "for number in range(10**6):\n"
        "    keeper.keep(f'a/{number % 500}', [0], str(number))\n    print(number, flush=True)\n"
    )
    for _ in range(campaign.count(100)):
        with subprocess.Popen(
            [sys.executable, "-c", program],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            cwd=ROOT,
        ) as sender:
            assert sender.stdout is not None
            for _ in range(campaign.random.randrange(1, 2000)):
                sender.stdout.readline()
            sender.kill()
            said = [
                int(line)
                for line in sender.stdout.read().splitlines(keepends=True)
                if line.endswith(b"\n")
            ]
        keeper = open_keeper(directory)
        kept = keeper.recall()
        for number in said[-500:]:
            each = kept[f"a/{number % 500}"]
            assert int(each.note) >= number
            assert each.is_whole
        for each in kept.values():
            channel.close_all(each.fds)
        keeper.forget("a/")
        keeper.leave()
    open_keeper(directory).end()
