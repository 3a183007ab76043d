"""The files of one book of logs, each opened when it is first needed."""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType
from typing import Self

from atoll.errors import NotFound
from atoll.node.spool import write_error

_WRITING = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
_READING = os.O_RDONLY | os.O_CLOEXEC


class LogFiles:
    """Descriptors of a folder's files; closing them is harmless, they open again when needed."""

    def __init__(self, folder: Path, *, writable: bool) -> None:
        self.folder = folder
        self._flags = _WRITING if writable else _READING
        self._descriptors: dict[str, int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def descriptor(self, name: str) -> int:
        """Return a file's descriptor; raise `NotFound` if there is no such file or folder, `Unavailable` on a full disk."""
        descriptor = self._descriptors.get(name)
        if descriptor is None:
            descriptor = self._descriptors[name] = self._open(name)
        return descriptor

    def read(self, name: str, offset: int, length: int) -> bytes:
        """Return what there is of `length` bytes."""
        return os.pread(self.descriptor(name), length, offset)

    def write(self, name: str, offset: int, data: bytes) -> None:
        """Write all of `data`, or raise `Unavailable` and be ready to write it there again."""
        descriptor = self.descriptor(name)
        try:
            written = os.pwrite(descriptor, data, offset)
            while written < len(data):
                written += os.pwrite(descriptor, data[written:], offset + written)
        except OSError as error:
            raise write_error(error) from error

    def size(self, name: str) -> int:
        """Return how many bytes a file holds; none if it is missing."""
        try:
            return os.stat(f"{self.folder}/{name}").st_size
        except FileNotFoundError:
            return 0

    def cut(self, name: str, length: int) -> None:
        """Leave the first `length` bytes of a file."""
        if self.size(name) > length:
            os.ftruncate(self.descriptor(name), length)

    def close(self) -> None:
        """Close all descriptors; safe to call twice."""
        while self._descriptors:
            os.close(self._descriptors.popitem()[1])

    def _open(self, name: str) -> int:
        try:
            return os.open(f"{self.folder}/{name}", self._flags, 0o600)
        except FileNotFoundError as error:
            raise NotFound(
                f"the execution's log in {self.folder} is gone; its output cannot be read again"
            ) from error
        except OSError as error:
            raise write_error(error) from error
