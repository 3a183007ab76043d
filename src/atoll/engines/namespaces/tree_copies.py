"""Whole trees between the host and a sandbox: the copier on this side, the file server inside on the other.

The two talk through a pipe. The copier is a process of its own: what it hears comes from inside, and it ends when the
caller gives up. Each side has memory of its own with limits, in which it reports; that of the inside is not trusted.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import signal
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Literal, Self

import anyio

from atoll.engines.inside import wire
from atoll.engines.inside.file_errors import file_error
from atoll.engines.namespaces.transfers import Pipe
from atoll.errors import LimitExceeded, Unavailable
from atoll.model.tree import TreeLimits, TreeReport

_COPIER = Path(__file__).with_name("native") / "bin" / "copier"
_F_ADD_SEALS, _F_SEAL_SEAL, _F_SEAL_SHRINK, _F_SEAL_GROW = 1033, 1, 2, 4
# What the host's side tells when the other one has stopped, which may know why, or talks nonsense.
_OTHERS_FAULT = (errno.EPIPE, errno.ECONNRESET, errno.ETIMEDOUT, errno.EPROTO)


Role = Literal["send", "receive"]


class Work:
    """Memory with the limits of a copy, where one side reports; it neither grows nor shrinks."""

    def __init__(self, limits: TreeLimits, patience_seconds: float) -> None:
        patience = int(patience_seconds * 1000)
        bounds = wire.TreeBounds(limits.entries, limits.depth, limits.total_bytes, patience)
        self.memory = os.memfd_create("tree", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        # Whoever dies has not reported success.
        nothing = wire.TreeReport(error=errno.ECANCELED)
        os.pwrite(self.memory, bytes(wire.TreeWork(bounds, nothing)), 0)
        fcntl.fcntl(self.memory, _F_ADD_SEALS, _F_SEAL_SEAL | _F_SEAL_SHRINK | _F_SEAL_GROW)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        os.close(self.memory)

    def report(self) -> wire.TreeReport:
        """Return what was reported."""
        data = os.pread(self.memory, ctypes.sizeof(wire.TreeWork), 0)
        report: wire.TreeReport = wire.TreeWork.from_buffer_copy(data).report
        return report


async def run_copier(
    role: Role, folder: int, work: Work, give: Callable[[int], Awaitable[None]]
) -> None:
    """Let the copier do its part; `give` hands the other end of its pipe to the other side."""
    with Pipe() as pipe:
        os.set_blocking(pipe.read_end, False)
        ends = pipe.read_end, pipe.write_end
        outer, inner = ends if role == "receive" else ends[::-1]
        await give(inner)
        with _copier(role, folder, outer, work.memory) as pidfd:
            pipe.close()
            await anyio.wait_readable(pidfd)


@contextmanager
def _copier(role: Role, *descriptors: int) -> Iterator[int]:
    """The host's end of a copy, which does not outlive the block; yields a descriptor of the process."""
    pid = _start(role, descriptors)
    pidfd = os.pidfd_open(pid)
    try:
        yield pidfd
    finally:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        os.close(pidfd)
        with suppress(ChildProcessError):
            os.waitpid(pid, 0)


def _start(role: Role, descriptors: Sequence[int]) -> int:
    with ExitStack() as copies:
        actions = []
        for number, descriptor in enumerate(descriptors):
            # Away from 0, 1 and 2, which it may be itself where the program has closed its own.
            copy = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, len(descriptors))
            copies.callback(os.close, copy)
            actions.append((os.POSIX_SPAWN_DUP2, copy, number))
        return os.posix_spawn(_COPIER, [os.fspath(_COPIER), role], {}, file_actions=actions)


def check(
    path: str, limits: TreeLimits, host: wire.TreeReport, inside: wire.TreeReport, refused: int
) -> None:
    """Raise what went wrong; `refused` is the file server's own error number.

    Raises:
        OSError: on the host.
    """
    for report in (host, inside):
        if report.limit:
            raise _limit_error(report, limits)
    if host.error == errno.ECANCELED:
        raise Unavailable(f"the copier ended before {path!r} was copied; try again")
    if host.error and host.error not in _OTHERS_FAULT:
        raise OSError(host.error, os.strerror(host.error), _text(host.path))
    if refused:
        raise file_error(refused, path)
    if inside.error and inside.error != errno.ECANCELED:
        raise file_error(inside.error, _join(path, _text(inside.path)))
    if host.error or inside.error:
        raise Unavailable(f"the sandbox stopped in the midst of copying {path!r}; try again")


def _limit_error(report: wire.TreeReport, limits: TreeLimits) -> LimitExceeded:
    if report.limit == wire.TreeLimit.ENTRIES:
        return limits.too_many()
    if report.limit == wire.TreeLimit.DEPTH:
        return limits.too_deep(_text(report.path))
    return limits.too_large()


def summary(path: str, report: wire.TreeReport) -> TreeReport:
    """Return what the host's end has done, with paths as they are in the workspace."""
    skipped = bytes(report)[wire.TreeReport.skipped_paths.offset :][: report.skipped_bytes]
    return TreeReport(
        report.files,
        report.directories,
        report.total_bytes,
        report.skipped,
        sorted(_join(path, _text(name)) for name in skipped.split(b"\0")[:-1]),
    )


def _text(name: bytes) -> str:
    return os.fsdecode(name)


def _join(folder: str, path: str) -> str:
    return path if folder == "." else f"{folder}/{path}" if path else folder
