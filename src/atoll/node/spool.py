"""Output on its way from a program into a file, without a moment in which a kill could lose or double it.

splice(2) takes bytes out of a pipe and puts them into a file within one system call: a process that is killed meanwhile
leaves every byte in exactly one of both. A terminal or a socket goes through a relay pipe, by two such steps. Seen on Linux
6.18: nothing lost or doubled by 1,000 kills for each of pipe, socket and terminal on ext4 and on tmpfs (overlay: 300, pipe);
a full disk leaves in the pipe what did not fit; a terminal's master heeds O_NONBLOCK, not SPLICE_F_NONBLOCK.
"""

from __future__ import annotations

import errno
import os

from atoll.errors import Unavailable

# As much as a pipe holds unless somebody enlarges it.
PIECE_BYTES = 64 * 1024

_AT_ONCE = os.SPLICE_F_NONBLOCK | os.SPLICE_F_MOVE
_MAY_PASS = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EMFILE, errno.ENFILE)
# A terminal whose programs are gone; a socket whose other end left without reading.
_ENDS = (errno.EIO, errno.ECONNRESET)


class Spool:
    """Moves what a program writes to the end of a file; another on the same descriptors goes on where this one was.

    A socket or a terminal needs a relay: both ends of a pipe that holds nothing else. The file holds at most `limit_bytes`
    and one byte more, which proves to whoever opens it later that output was cut; what follows is dropped.
    The descriptors stay the caller's.
    """

    def __init__(
        self,
        source_fd: int,
        file_fd: int,
        relay: tuple[int, int] | None = None,
        *,
        limit_bytes: int | None = None,
    ) -> None:
        self._source = source_fd
        self._file = file_fd
        self._relay = relay
        self._limit = limit_bytes
        self._thrown_away = 0
        self._begin = 0  # from where on the limit counts
        self.end = os.fstat(file_fd).st_size  # how many bytes the file holds
        if os.isatty(source_fd):
            os.set_blocking(source_fd, False)

    def restart(self, begin: int) -> None:
        """Count what the file holds from a place in it on, as though it began there."""
        self._begin = begin
        self._thrown_away = 0

    @property
    def dropped(self) -> int:
        """How many bytes beyond the limit this spool knows of."""
        beyond = 0 if self._limit is None else max(0, self.end - self._begin - self._limit)
        return beyond + self._thrown_away

    def move(self) -> int | None:
        """Move what is there, at most a pipe full; return how many bytes: 0 if there are none now, None at the end.

        Raises `Unavailable` while the disk takes no more. Nothing is lost then: try again when there is room.
        """
        if self._relay is None:
            return self._pour(self._source)
        relay_end, relay_start = self._relay
        has_ended = self._fill(relay_start)
        moved = self._pour(relay_end)
        return None if has_ended and not moved else moved

    def _fill(self, relay_start: int) -> bool:
        """Move from the source into the relay; return whether the source has come to its end."""
        try:
            return os.splice(self._source, relay_start, PIECE_BYTES, flags=_AT_ONCE) == 0
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno in _ENDS:
                return True
            raise

    def _pour(self, pipe: int) -> int | None:
        try:
            return self._keep_or_drop(pipe) or None
        except BlockingIOError:
            return 0
        except OSError as error:
            raise write_error(error) from error

    def _keep_or_drop(self, pipe: int) -> int:
        room = PIECE_BYTES if self._limit is None else self._limit + 1 - self.end + self._begin
        if room <= 0:
            moved = _throw_away(pipe)
            self._thrown_away += moved
        else:
            most = min(room, PIECE_BYTES)
            moved = os.splice(pipe, self._file, most, offset_dst=self.end, flags=_AT_ONCE)
            self.end += moved
        return moved


def write_error(error: OSError) -> Exception:
    """Return what to raise for a file that takes nothing: `Unavailable` if it may do so later."""
    if error.errno not in _MAY_PASS:
        return error
    return Unavailable(
        f"output cannot be kept now ({error.strerror}); it can again once there is room in the data directory",
        errno=error.errno,
    )


def _throw_away(pipe: int) -> int:
    nothing = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    try:
        return os.splice(pipe, nothing, PIECE_BYTES, flags=_AT_ONCE)
    finally:
        os.close(nothing)
