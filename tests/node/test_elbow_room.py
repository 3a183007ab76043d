"""Whoever looks out for an answer leaves the processor that the other side is on, and only then."""

from __future__ import annotations

import os
import threading

import pytest

from atoll.node import elbow_room
from atoll.node.elbow_room import ElbowRoom, leave_processor

SHARED, APART = (1, 50e-6), (40, 50e-6)


@pytest.fixture
def left(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """One entry for each time that the processor was left."""
    times: list[None] = []
    monkeypatch.setattr(elbow_room, "leave_processor", lambda: times.append(None))
    return times


def test_a_processor_that_is_shared_is_left(left: list[None]) -> None:
    room = ElbowRoom()
    room.note(*SHARED)
    assert left == []  # once may be anything
    room.note(*SHARED)
    assert left == [None]


def test_one_that_is_not_shared_is_kept(left: list[None]) -> None:
    room = ElbowRoom()
    for _ in range(100):
        room.note(*APART)
        room.note(*SHARED)
    assert left == []


def test_what_was_looked_for_in_vain_tells_nothing(left: list[None]) -> None:
    room = ElbowRoom()
    for _ in range(100):
        room.note(0, 300e-6)
    assert left == []


def test_where_all_are_busy_it_is_tried_ever_less_often(left: list[None]) -> None:
    room = ElbowRoom()
    for _ in range(1024):
        room.note(*SHARED)
    assert len(left) == 10


def in_a_thread(*processors: int) -> tuple[int, int, set[int]]:
    """Return where a thread that may use these was before and after it left, and what it may use then."""
    seen: list[tuple[int, int, set[int]]] = []

    def run() -> None:
        os.sched_setaffinity(0, processors)
        before = elbow_room._processor()
        leave_processor()
        seen.append((before, elbow_room._processor(), os.sched_getaffinity(0)))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return seen[0]


def test_a_thread_that_leaves_may_use_all_that_it_might_before() -> None:
    allowed = sorted(os.sched_getaffinity(0))
    assert in_a_thread(*allowed)[2] == {*allowed}


def test_the_only_processor_is_not_left() -> None:
    only = min(os.sched_getaffinity(0))
    assert in_a_thread(only) == (only, only, {only})


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="there is one processor only")
def test_a_thread_goes_on_elsewhere() -> None:
    # The system may move it again at once, for reasons of its own.
    allowed = os.sched_getaffinity(0)
    moves = [in_a_thread(*allowed) for _ in range(20)]
    assert any(before != after for before, after, _ in moves)
