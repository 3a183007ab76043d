"""What an open engine holds: its `runsc`, its cgroups, its directory; and what an earlier program left, removed.

Every engine has a directory `run/<name>`, locked as long as its program lives, with one directory per sandbox, and cgroups of
the same names. Processes of `runsc` are bound to the program that started them. Whatever else a program leaves that was
killed, cgroups, directories and processes that were paused, the next one finds by directories that nobody has locked.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from atoll.engines.cgroups.claims import PREFIX
from atoll.engines.cgroups.contract import CgroupTree
from atoll.engines.cgroups.layout import detect
from atoll.engines.cgroups.trees import find_tree, most_memory, open_tree
from atoll.engines.gvisor.platforms import choose_platform
from atoll.engines.gvisor.runsc import Runsc, find_runsc
from atoll.errors import Unavailable
from atoll.model.ids import SandboxId
from atoll.model.limits import ResolvedLimits


@dataclass(slots=True)
class Parts:
    """What an open engine holds."""

    runsc: Runsc
    tree: CgroupTree
    directory: Path  # with one for each sandbox
    roots: Path  # trees that sandboxes see
    memory_bytes: int  # that all sandboxes together may have
    lock: int
    # One thread that lasts: what it starts ends with it.
    starter: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(1, "atoll-gvisor")
    )

    def make_directory(self, sandbox_id: SandboxId) -> Path:
        """Return a new directory for a sandbox, which nobody else may look into."""
        path = self.directory / sandbox_id
        path.mkdir(mode=0o700)
        return path

    def remove_directory(self, sandbox_id: SandboxId) -> None:
        """Remove the directory of a sandbox."""
        shutil.rmtree(self.directory / sandbox_id, ignore_errors=True)

    def close(self) -> None:
        """Release everything; the sandboxes have ended."""
        with ExitStack() as steps:
            steps.callback(os.close, self.lock)
            steps.callback(shutil.rmtree, self.directory, ignore_errors=True)
            steps.callback(self.tree.remove)
            self.starter.shutdown()


def open_parts(
    data_dir: Path, program: str, platform: str | None, memory_bytes: int | None
) -> Parts:
    """Return what an engine needs; raise `Unavailable` with what is missing."""
    place = prepare_place(data_dir)
    runsc = choose_platform(find_runsc(program), place, platform)
    name = f"{PREFIX}{secrets.token_hex(6)}"
    with ExitStack() as undo, _alone(place):
        remove_leftovers(place / "run")
        directory = place / "run" / name
        directory.mkdir(mode=0o700)
        undo.callback(directory.rmdir)
        lock = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        undo.callback(os.close, lock)
        fcntl.flock(lock, fcntl.LOCK_EX)
        tree = open_tree(name, detect())
        undo.callback(tree.remove)
        most = memory_bytes or most_memory()
        tree.cap_memory(most)
        undo.pop_all()
    return Parts(runsc, tree, directory, place / "roots", most, lock)


def prepare_place(data_dir: Path) -> Path:
    """Return the engine's part of the data directory, where only this user may look."""
    place = data_dir / "gvisor"
    try:
        (place / "run").mkdir(parents=True, exist_ok=True)
        place.chmod(0o700)
    except OSError as error:
        raise Unavailable(f"{place} cannot be used: {error.strerror}") from error
    return place


@contextmanager
def _alone(place: Path) -> Iterator[None]:
    """Keep other programs from taking a directory for abandoned before it is locked."""
    fd = os.open(place / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def remove_leftovers(run: Path) -> None:
    """Remove what programs that are gone have left: processes, cgroups and directories."""
    for directory in sorted(run.glob(f"{PREFIX}*")):
        if not _is_in_use(directory):
            with suppress(Unavailable):  # what stays is tried again by the next
                _remove_leftover(directory)


def _is_in_use(directory: Path) -> bool:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def _remove_leftover(directory: Path) -> None:
    tree = find_tree(directory.name, detect())
    for path in directory.iterdir():
        cgroup = tree.find(path.name, ResolvedLimits())
        cgroup.end_all()
        cgroup.remove()
    tree.remove()
    shutil.rmtree(directory, ignore_errors=True)
