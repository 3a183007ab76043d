"""This process's own standard streams, read and written without stopping the event loop."""

from __future__ import annotations

import os
import select
import stat
from collections.abc import AsyncIterator

import anyio

STDIN, STDOUT, STDERR = 0, 1, 2
_CHUNK = 65536


def can_pass_stdin_on() -> bool:
    """Whether standard input is open and not a terminal, which stays with the person."""
    try:
        return not os.isatty(STDIN) and not stat.S_ISDIR(os.fstat(STDIN).st_mode)
    except OSError:
        return False


async def read_stdin() -> AsyncIterator[bytes]:
    """Yield standard input as it comes."""
    while True:
        await wait_readable(STDIN)
        data = os.read(STDIN, _CHUNK)
        if not data:
            return
        yield data


async def wait_readable(descriptor: int) -> None:
    """Return once a read will not block."""
    try:
        await anyio.wait_readable(descriptor)
    except PermissionError:
        # The kernel refuses to watch plain files and /dev/null, whose reads never block.
        return


async def write_all(descriptor: int, data: bytes) -> None:
    """Write everything; raises `BrokenPipeError` when nobody reads any more.

    A slow reader must not stop the loop, for then a timeout would not be noticed. Making the descriptor
    non-blocking is not ours to do: it is shared with the shell that started us. A pipe that is ready
    takes `PIPE_BUF` bytes without blocking, so that is how much goes at once.
    """
    rest = memoryview(data)
    while rest:
        if not _is_writable(descriptor):
            await anyio.wait_writable(descriptor)
        try:
            rest = rest[os.write(descriptor, rest[: select.PIPE_BUF]) :]
        except BlockingIOError:
            # Somebody else made it non-blocking and was quicker; wait again.
            continue


def _is_writable(descriptor: int) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    # Errors count as ready, too: the write will tell them.
    return bool(poll.poll(0))
