"""Host ids for sandboxes: with root every sandbox runs as a user id that nobody else has.

Ids come from one range per data directory. An id in use is a locked byte of a file, so that several programs
can share the range and a killed one gives its ids back; the next id to try is kept, so that none is
reused soon.
"""

from __future__ import annotations

import fcntl
import os
import struct
from pathlib import Path

from atoll.errors import LimitExceeded, Unavailable

# Above what distributions and container engines hand out as subordinate ids.
FIRST_ID = 0x70000000
COUNT = 65536

_FLOCK = "hhqqi4x"
_F_OFD_SETLK = 37
_LOCKS_AT = 4096


class HostIds:
    """The ids of one data directory."""

    def __init__(self, data_dir: Path, fd: int | None = None) -> None:
        """Open the range; `fd` is what an earlier program had it open by, with all its locks."""
        self._own: set[int] = set()
        if fd is not None:
            self._fd = fd
            return
        path = data_dir / "ids"
        try:
            data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise Unavailable(
                f"{path} cannot be opened: {error.strerror}; set ATOLL_DATA"
            ) from error

    @property
    def fd(self) -> int:
        """The open file that the locks belong to: they last as long as anybody holds it."""
        return self._fd

    def take_over(self, host_id: int) -> None:
        """Go on with an id that an earlier program took."""
        if 0 <= host_id - FIRST_ID < COUNT:
            self._own.add(host_id - FIRST_ID)

    def take(self) -> int:
        """Return an id that no other sandbox on this machine has."""
        start = self._next()
        for offset in range(COUNT):
            slot = (start + offset) % COUNT
            # A lock never stands in the way of its own holder.
            if slot not in self._own and self._lock(slot, fcntl.F_WRLCK):
                self._own.add(slot)
                os.pwrite(self._fd, struct.pack("<I", (slot + 1) % COUNT), 0)
                return FIRST_ID + slot
        raise LimitExceeded(
            f"all {COUNT} sandbox ids of this machine are in use; destroy some sandboxes"
        )

    def give_back(self, host_id: int) -> None:
        """Free an id whose sandbox is wholly gone."""
        if host_id - FIRST_ID not in self._own:
            return
        self._lock(host_id - FIRST_ID, fcntl.F_UNLCK)
        self._own.discard(host_id - FIRST_ID)

    def close(self) -> None:
        """Let go of all ids."""
        os.close(self._fd)

    def _next(self) -> int:
        kept = os.pread(self._fd, 4, 0)
        return int(struct.unpack("<I", kept)[0]) % COUNT if len(kept) == 4 else 0

    def _lock(self, slot: int, kind: int) -> bool:
        # Locks of the open file, not of the process: two engines in one program exclude each other, too.
        request = struct.pack(_FLOCK, kind, os.SEEK_SET, _LOCKS_AT + slot, 1, 0)
        try:
            fcntl.fcntl(self._fd, _F_OFD_SETLK, request)
        except (BlockingIOError, PermissionError):
            return False
        return True
