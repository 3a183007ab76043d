"""Memory that the host and a file server share for many small files at once (`inside.batches` says what lies in it).

What is asked for lies in memory that nobody can change any more; answers in memory that neither grows nor shrinks.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Self

from atoll.engines.inside.batches import parse_answers, room_for
from atoll.engines.namespaces import channel

_F_ADD_SEALS, _F_SEAL_SEAL, _F_SEAL_SHRINK, _F_SEAL_GROW = 1033, 1, 2, 4


@contextmanager
def sealed(batch: bytes) -> Iterator[int]:
    """Memory that holds a batch and can never change again."""
    memory = channel.sealed_memory("batch", batch)
    try:
        yield memory
    finally:
        os.close(memory)


class Answers:
    """Memory with a place for each answer; it neither grows nor shrinks."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self._sizes = sizes
        self.memory = os.memfd_create("answers", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(self.memory, self._total_bytes)
            seals = _F_SEAL_SEAL | _F_SEAL_SHRINK | _F_SEAL_GROW
            fcntl.fcntl(self.memory, _F_ADD_SEALS, seals)
        except BaseException:
            os.close(self.memory)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        os.close(self.memory)

    @property
    def _total_bytes(self) -> int:
        return room_for(self._sizes)

    def read(self) -> list[bytes | int]:
        """Return the content of each file, or its error number."""
        # Copied first: what is looked at twice must not change in between.
        return parse_answers(os.pread(self.memory, self._total_bytes, 0), self._sizes)
