"""Keeps one daemon with all that it starts, and ends them all when whoever started the guard is gone.

Runs as a program in a mount namespace of its own: `daemon_guard.py LOCK CGROUP COMMAND…`. Standard input is
the leash: a line on it starts the daemon (again), its end is the end. For each start the guard prints the
daemon's process number. It inherits the descriptor LOCK, so that the daemon's folder is taken until all
is gone. Standard library only.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36
_MNT_DETACH = 2
_STOP_SECONDS = 20
_CGROUPS = Path("/sys/fs/cgroup")


def main(arguments: list[str]) -> None:
    lock, cgroup, *command = arguments
    os.set_inheritable(int(lock), False)
    libc = ctypes.CDLL(None, use_errno=True)
    # Orphans among them (shims, monitors) become our children: we reap them at once, and none escapes the end.
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    # crun refuses to work where it sees both versions of cgroups. Gone in this namespace only.
    libc.umount2(os.fsencode(_CGROUPS / "unified"), _MNT_DETACH)
    wakeup = _wake_on_children()
    daemon = 0
    while _reap_until_told(wakeup):
        daemon = _start(command)
        print(daemon, flush=True)
    _remove_cgroups({Path(cgroup), *_end(daemon, cgroup)})


def _wake_on_children() -> int:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    os.set_blocking(reader, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    return reader


def _reap_until_told(wakeup: int) -> bool:
    """Return whether to start the daemon; else it is the end."""
    while True:
        _reap()
        ready, _, _ = select.select([0, wakeup], [], [])
        if wakeup in ready:
            os.read(wakeup, 4096)
        if 0 in ready:
            return bool(os.read(0, 4096))


def _start(command: list[str]) -> int:
    silence = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    streams = [(os.POSIX_SPAWN_DUP2, silence, 0), (os.POSIX_SPAWN_DUP2, 2, 1)]
    pid = os.posix_spawnp(
        command[0], command, os.environ, file_actions=streams, setsigdef=[signal.SIGCHLD]
    )
    os.close(silence)
    return pid


def _end(daemon: int, cgroup: str) -> set[Path]:
    """Let the daemon put things away, then kill what is left; return its cgroups below `cgroup`."""
    if daemon in _descendants():
        os.kill(daemon, signal.SIGTERM)
        os.kill(daemon, signal.SIGCONT)
    deadline = time.monotonic() + _STOP_SECONDS
    while daemon in _descendants() and time.monotonic() < deadline:
        time.sleep(0.02)
        _reap()
    cgroups: set[Path] = set()
    while left := _descendants():
        for pid in left:
            cgroups |= {path for path in _cgroups_of(pid) if Path(cgroup) in path.parents}
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass  # ended by itself meanwhile
        time.sleep(0.02)
        _reap()
    return cgroups


def _reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass  # none at all


def _descendants() -> set[int]:
    children: dict[int, list[int]] = {}
    for pid, parent in _processes():
        children.setdefault(parent, []).append(pid)
    found = list(children.get(os.getpid(), ()))
    for pid in found:
        found += children.get(pid, ())
    return set(found)


def _processes() -> Iterator[tuple[int, int]]:
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                fields = Path("/proc", name, "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # gone since
            yield int(name), int(fields[1])


def _cgroups_of(pid: int) -> list[Path]:
    try:
        lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    except OSError:
        return []  # gone since
    return [Path(line.split(":", 2)[2].lstrip("/")) for line in lines]


def _remove_cgroups(paths: set[Path]) -> None:
    """Remove these in every hierarchy; a name at the top may be shared and in use by somebody else."""
    for path in sorted(paths, key=lambda each: len(each.parts), reverse=True):
        for directory in (_CGROUPS / path, *_CGROUPS.glob(f"*/{path}")):
            try:
                directory.rmdir()
            except OSError:
                pass  # not in this hierarchy, or in use


if __name__ == "__main__":
    main(sys.argv[1:])
