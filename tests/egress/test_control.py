"""Messages between node and proxy: whole with their descriptors, or refused with nothing left open."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator

import pytest

from atoll.egress import control
from atoll.errors import InvalidRequest

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    ours, theirs = control.socket_pair()
    with ours, theirs:
        yield ours, theirs


@pytest.mark.parametrize("size", [0, 1000, control.LONGEST_PACKET, 1_000_000])
def test_a_message_arrives_whole(pair: Pair, size: int) -> None:
    reading, writing = os.pipe()
    message = {"op": "add", "text": "é" * size}
    control.send(pair[0], message, [reading, reading])
    received = control.receive(pair[1])
    assert received is not None
    assert received[0] == message
    assert len(received[1]) == 2
    assert all(os.fstat(fd).st_ino == os.fstat(reading).st_ino for fd in received[1])
    assert not any(os.get_inheritable(fd) for fd in received[1])
    control.close_all([*received[1], reading, writing])


def test_the_end_is_told(pair: Pair) -> None:
    pair[0].close()
    assert control.receive(pair[1]) is None


def test_too_much_is_refused_by_the_sender(pair: Pair) -> None:
    with pytest.raises(InvalidRequest, match="too many"):
        control.send(pair[0], {"text": "x" * 9_000_000})


@pytest.mark.parametrize(
    "packet",
    [b"nonsense", b"[1]", b"1", b"memory", b"{" * 20_000, json.dumps("x" * 60_000).encode()],
    ids=["no JSON", "a list", "a number", "no memory", "deep", "long"],
)
def test_what_is_no_message_is_refused_and_its_descriptors_are_closed(
    pair: Pair, packet: bytes
) -> None:
    before = set(os.listdir("/proc/self/fd"))
    socket.send_fds(pair[0], [packet], [0, 0])
    with pytest.raises((InvalidRequest, RecursionError)):
        control.receive(pair[1])
    # Others in this process may close some of theirs meanwhile.
    assert set(os.listdir("/proc/self/fd")) <= before


def test_memory_that_can_still_change_is_refused(pair: Pair) -> None:
    memory = os.memfd_create("test")
    os.write(memory, b"{}")
    socket.send_fds(pair[0], [b"memory"], [memory])
    os.close(memory)
    with pytest.raises(InvalidRequest):
        control.receive(pair[1])
