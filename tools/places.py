"""Where benchmarks and tests keep what is slow to make: folders of this user's outside the checkout.

Standard library only.
"""

from __future__ import annotations

import fcntl
import hashlib
import itertools
import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

PLACES = Path("/var/tmp")


class Failed(Exception):
    """Something that a peer or the harness needs could not be made; the message says what."""


def digest_of(*parts: object) -> str:
    """Return a short name for what these values describe."""
    return hashlib.sha256(json.dumps(parts, default=str).encode()).hexdigest()[:12]


def own_folder(name: str, parent: Path = PLACES) -> Path:
    """Return a folder that is ours alone; raise `Failed` if somebody else made it."""
    path = parent / name
    path.mkdir(mode=0o700, exist_ok=True)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise Failed(f"{path} belongs to somebody else or is open to others; remove it")
    return path


@contextmanager
def locked(path: Path, purpose: str) -> Iterator[int]:
    """Hold a file lock; say so when somebody else has it first.

    A process that inherits the descriptor holds the lock, too.
    """
    descriptor = _open_lock(path)
    try:
        if not _lock(descriptor):
            say(f"waiting for another run to finish with {purpose}")
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def free_folder(name: str) -> Iterator[tuple[Path, int]]:
    """Hold the first folder `name-0`, `name-1`, … that nobody uses; yield it and its lock's descriptor.

    So runs side by side wait for nobody, and each finds what an earlier one left in its folder.
    """
    for number in itertools.count():
        folder = own_folder(f"{name}-{number}")
        descriptor = _open_lock(folder / "lock")
        try:
            if _lock(descriptor):
                yield folder, descriptor
                return
        finally:
            os.close(descriptor)


def _open_lock(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def _lock(descriptor: int) -> bool:
    """Return whether nobody else had the lock."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def made_once(target: Path, make: Callable[[Path], None]) -> Path:
    """Return `target`, made by `make` under another name unless it is there: half of it never is."""
    with locked(target.with_name(target.name + ".lock"), target.name):
        if not target.exists():
            unfinished = target.with_name(target.name + ".unfinished")
            must_run(["rm", "-rf", "--", str(unfinished)])
            make(unfinished)
            unfinished.rename(target)
    return target


def must_run(
    command: list[str], *, env: dict[str, str] | None = None, timeout: float = 900
) -> bytes:
    """Run a program and return what it printed; raise `Failed` with its last words if it fails."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=env,
            timeout=timeout,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Failed(f"{command[0]}: {error}") from error
    if done.returncode != 0:
        words = (done.stderr or done.stdout).decode(errors="replace").strip()[-1000:]
        raise Failed(f"{' '.join(command[:4])} … failed: {words}")
    return done.stdout


def say(text: str) -> None:
    """Tell progress, on stderr: stdout is for the result."""
    print(f"atoll: {text}", file=sys.stderr, flush=True)
