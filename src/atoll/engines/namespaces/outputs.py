"""What a process prints: the host's ends of its outputs, read without waiting."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Sequence

from atoll.model.process import Output, Stream

_CHUNK = 65536
# More than a pipe holds.
_LAST_CHUNKS = 32


class Outputs:
    """The outputs of one process, by descriptor; those that have ended are closed and forgotten."""

    def __init__(self, streams: dict[int, Stream]) -> None:
        self._streams = streams
        self._started = time.monotonic()

    def take(self) -> Sequence[Output]:
        """Return all that is there."""
        taken: list[Output] = []
        for fd in list(self._streams):
            for _ in range(_LAST_CHUNKS):
                data = self.read_chunk(fd)
                if data == b"":
                    self.forget(fd)
                elif data:
                    taken.append(self.output(fd, data))
                if not data or len(data) < _CHUNK:
                    break  # all that was there
        return taken

    def read_rest(self, fd: int) -> Sequence[Output]:
        """Return all that is there, and leave it open."""
        taken: list[Output] = []
        while len(taken) < _LAST_CHUNKS and (data := self.read_chunk(fd)):
            taken.append(self.output(fd, data))
        return taken

    def read_chunk(self, fd: int) -> bytes | None:
        """Return bytes, b'' at the end, None if there are none at present."""
        try:
            return os.read(fd, _CHUNK)
        except BlockingIOError:
            return None
        except OSError as error:
            # The last process has let go of a terminal.
            if error.errno == errno.EIO:
                return b""
            raise

    def output(self, fd: int, data: bytes) -> Output:
        """Return bytes with the stream that they came by, and when."""
        return Output(self._streams[fd], data, time.monotonic() - self._started)

    def forget(self, fd: int) -> None:
        """Close an output that has ended."""
        del self._streams[fd]
        os.close(fd)
