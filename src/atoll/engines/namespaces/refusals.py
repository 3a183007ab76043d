"""What this machine refuses, raised as an error of ours."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from atoll.errors import AtollError, Unavailable

_WAYS_OUT = {
    errno.EMFILE: "destroy some sandboxes, or raise this process's limit of open files (ulimit -n)",
    errno.ENFILE: "the whole machine has too many; close some, or raise fs.file-max",
    errno.ENOMEM: "the machine is short of memory; destroy some sandboxes",
    errno.ENOSPC: "make room on the machine",
}


@contextmanager
def our_errors() -> Iterator[None]:
    """Raise a refused system call as `Unavailable`; what is ours already stays what it is."""
    try:
        yield
    except AtollError:
        raise
    except OSError as error:
        way_out = _WAYS_OUT.get(error.errno or 0, "try again")
        reason = error.strerror or str(error)
        raise Unavailable(
            f"this machine refused: {reason}; {way_out}", errno=error.errno
        ) from error
