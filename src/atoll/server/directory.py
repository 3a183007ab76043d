"""The data directory of a served node: made for its user alone, used by one node at a time."""

from __future__ import annotations

import fcntl
import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from atoll.errors import Conflict, InternalError, Unavailable

_FLAGS = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW


@contextmanager
def hold_directory(directory: Path) -> Iterator[None]:
    """Keep a data directory for this process; raise `Conflict` if another node uses it."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(directory / "lock", _FLAGS, 0o600)
    except OSError as error:
        raise Unavailable(
            f"the data directory {directory} cannot be used: {error.strerror}; choose another with --data"
        ) from error
    try:
        _take(lock, directory)
        yield
    finally:
        # The file stays: who removes it while another waits for it would let both in.
        os.close(lock)


def _take(lock: int, directory: Path) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        owner = os.pread(lock, 20, 0).decode("ascii", "replace").strip()
        raise Conflict(
            f"a node (process {owner or 'unknown'}) uses {directory} already; stop it, or choose another"
            " directory with --data",
            data=str(directory),
        ) from error
    os.ftruncate(lock, 0)
    os.pwrite(lock, str(os.getpid()).encode(), 0)


def read_node_id(directory: Path) -> str:
    """Return the id of the node that this directory belongs to; chosen at its first start."""
    path = directory / "node.json"
    try:
        node = json.loads(path.read_text())["id"]
    except FileNotFoundError:
        return _choose_node_id(path)
    except (ValueError, KeyError, TypeError) as error:
        raise InternalError(f"{path} does not hold a node's id; restore it from a copy") from error
    return str(node)


def _choose_node_id(path: Path) -> str:
    node = secrets.token_hex(8)
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps({"id": node}))
    # Whoever reads it sees all of it or nothing.
    fresh.rename(path)
    return node
