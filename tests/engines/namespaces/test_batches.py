"""Answers about many files, from a side that may say anything."""

from __future__ import annotations

import os
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.engines.inside.batches import parse_answers
from atoll.engines.namespaces.batch_memory import Answers
from atoll.errors import Unavailable

HEAD = struct.Struct("=iI")


@given(contents=st.lists(st.one_of(st.binary(max_size=50), st.integers(1, 200)), max_size=20))
def test_answers_are_read_from_their_places(contents: list[bytes | int]) -> None:
    data, sizes = b"", []
    for content in contents:
        room = 60
        sizes.append(room)
        if isinstance(content, bytes):
            data += HEAD.pack(0, len(content)) + content.ljust(room, b"?")
        else:
            data += HEAD.pack(content, 0) + bytes(room)
    assert parse_answers(data, sizes) == contents


@given(data=st.data(), sizes=st.lists(st.integers(0, 100), max_size=20))
def test_whatever_is_answered_is_bounded(data: st.DataObject, sizes: list[int]) -> None:
    total = sum(sizes) + HEAD.size * len(sizes)
    noise = data.draw(st.binary(min_size=total, max_size=total))
    try:
        answers = parse_answers(noise, sizes)
    except Unavailable:
        return
    assert len(answers) == len(sizes)
    for answer, size in zip(answers, sizes, strict=True):
        assert isinstance(answer, int) or len(answer) <= size


def test_the_room_for_answers_neither_grows_nor_shrinks() -> None:
    with Answers([10, 20]) as answers:
        for size in (0, 1 << 20):
            with pytest.raises(PermissionError):
                os.ftruncate(answers.memory, size)
        with pytest.raises(PermissionError):
            os.pwrite(answers.memory, b"x", 1 << 20)
        assert answers.read() == [b"", b""]
