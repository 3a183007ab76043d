"""Whole trees between the host and a sandbox: the copier on this side, the file server inside on the other.

The two talk through a pipe. The copier is a process of its own: what it hears comes from inside, and it ends when the
caller gives up. Each side has memory of its own with limits, in which it reports; that of the inside is not trusted.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal, Self

import anyio
import anyio.to_thread

from atoll.engines.namespaces import wire
from atoll.engines.namespaces.file_errors import file_error
from atoll.errors import LimitExceeded, Unavailable
from atoll.model.tree import TreeLimits, TreeReport

_COPIER = Path(__file__).with_name("native") / "bin" / "copier"
_F_ADD_SEALS, _F_SEAL_SEAL, _F_SEAL_SHRINK, _F_SEAL_GROW = 1033, 1, 2, 4
# What one side hears when the other has stopped, which knows why.
_HUNG_UP = (errno.EPIPE, errno.ECONNRESET)


Role = Literal["send", "receive"]


class Work:
    """Memory with the limits of a copy, where one side reports; it neither grows nor shrinks."""

    def __init__(self, limits: TreeLimits, patience_seconds: float) -> None:
        patience = int(patience_seconds * 1000)
        bounds = wire.TreeBounds(limits.entries, limits.depth, limits.total_bytes, patience)
        self.memory = os.memfd_create("tree", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.pwrite(self.memory, bytes(wire.TreeWork(limits=bounds)), 0)
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


@asynccontextmanager
async def copier(
    role: Role, folder: int, pipe: int, work: Work
) -> AsyncIterator[subprocess.Popen[bytes]]:
    """The host's end of a copy; it does not outlive the block."""

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [_COPIER, role], stdin=folder, stdout=pipe, stderr=work.memory, env={}
        )

    with anyio.CancelScope(shield=True):
        process = await anyio.to_thread.run_sync(start)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


async def wait_for(process: subprocess.Popen[bytes]) -> None:
    """Return when a process has ended."""
    pidfd = os.pidfd_open(process.pid)
    try:
        await anyio.wait_readable(pidfd)
    finally:
        os.close(pidfd)
    if process.wait() != 0:
        raise Unavailable("the copier ended before its work was done; try again")


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
    if host.error and host.error not in _HUNG_UP:
        raise OSError(host.error, os.strerror(host.error), _text(host.path))
    if refused:
        raise file_error(refused, path)
    if inside.error:
        raise file_error(inside.error, _join(path, _text(inside.path)))
    if host.error:
        raise Unavailable(f"the sandbox stopped copying {path!r}; try again")


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
