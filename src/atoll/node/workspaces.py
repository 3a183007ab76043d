"""Workspaces that outlive their sandboxes, by id: whose they are, how much they may hold, and who has them now.

Each is a directory of the data directory: a file with facts, a lock, and `contents`, which is the engine's. That is all
there is to know of one, for every program that uses the data directory. What changes them is done under one lock of all;
whoever has one holds its own lock, for as long as its sandbox lives: so what was killed holds nothing. New ones are made
beside and moved into place, old ones moved away before they are removed: each is there wholly or not at all.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import secrets
import stat
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from atoll.errors import AtollError, Conflict, InvalidRequest, LimitExceeded, NotFound, Unavailable
from atoll.model.ids import SandboxId, WorkspaceId
from atoll.model.limits import Limits
from atoll.model.sandbox import KeptWorkspace, SandboxRequest, WorkspaceInfo, check_workspace
from atoll.model.sizes import MIB, format_size
from atoll.node.removal import remove_tree

_FACTS, _LOCK, _CONTENTS = "facts.json", "lock", "contents"
# No id begins so: what is being made, and what is being removed.
_NEW, _GONE = ".new-", ".gone-"
# What holds a workspace of a sandbox that has just ended goes a moment later.
_PATIENCE_SECONDS, _MOMENT = 0.5, 0.01
_MOST_FACTS_BYTES = 65536
# How deep is looked to tell what a workspace takes; no further, whatever somebody has dug.
_MOST_DEPTH = 256
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class WorkspaceRules:
    """How many workspaces may be kept, and how large."""

    size_bytes: int = 512 * MIB  # of one whose owner does not say
    total_bytes: int | None = None  # of all together
    per_owner: int | None = None  # how many


@dataclass(frozen=True, slots=True)
class _Facts:
    id: WorkspaceId
    owner: str
    size_bytes: int
    created_at: float
    last_used_at: float
    sandbox: SandboxId | None  # that had it last, and has it if the lock is taken
    removed_with_sandbox: bool = False


class Workspaces:
    """The workspaces of one data directory. All methods wait, and may be called in any thread."""

    def __init__(self, directory: Path, rules: WorkspaceRules | None = None) -> None:
        """Use a directory, which is made with the first workspace."""
        self._directory = directory
        self._rules = rules or WorkspaceRules()
        # A lock of an open file keeps no other thread of this process out that opens it anew, but is slow to wait for.
        self._guard = threading.Lock()
        self._is_clean = False

    def take(self, request: SandboxRequest) -> WorkspaceHold:
        """Have the workspace that a request names for its sandbox, made if need be.

        Raises:
            Conflict: another sandbox has it, or it is somebody else's.
            LimitExceeded: its owner, or the node, has no room for one more.
            InvalidRequest: it would have to shrink, or a limit is impossible.
        """
        if request.workspace is None:
            raise InvalidRequest("this request names no workspace")
        request.spec.limits.resolve(workspace_on_disk=True)
        if not self._is_clean:
            self.clean()
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while True:
            try:
                return self._take(request, request.workspace)
            except _Held as error:
                if time.monotonic() > deadline:
                    raise error.conflict from None
            time.sleep(_MOMENT)

    def _take(self, request: SandboxRequest, workspace_id: WorkspaceId) -> WorkspaceHold:
        with self._alone() as top:
            before = self._read(workspace_id)
            if before is not None and before.owner != request.owner:
                raise Conflict(
                    f"workspace id {workspace_id!r} is taken; choose another",
                    workspace=workspace_id,
                )
            facts = self._wanted(request, workspace_id, before)
            self._check_room(facts, before)
            if before is None:
                self._make(top, facts)
            lock = self._lock(facts)
            try:
                self._write(facts, durable=before is None or facts.size_bytes > before.size_bytes)
            except BaseException:
                os.close(lock)
                raise
        return WorkspaceHold(self, facts.id, lock, self._kept(facts), before)

    def take_over(self, workspace_id: WorkspaceId, lock: int) -> WorkspaceHold:
        """Go on holding a workspace by the lock that an earlier program had."""
        with self._alone():
            facts = self._find(workspace_id)
        return WorkspaceHold(self, workspace_id, lock, self._kept(facts), facts)

    def list(self, owner: str | None = None) -> Sequence[WorkspaceInfo]:
        """Return workspaces, the newest first."""
        with self._alone():
            found = [facts for facts in self._all() if owner in (None, facts.owner)]
            holders = [self._holder(facts) for facts in found]
        infos = [self._describe(*each) for each in zip(found, holders, strict=True)]
        return sorted(infos, key=lambda info: (-info.created_at, info.id))

    def find(self, workspace_id: str, owner: str | None = None) -> WorkspaceInfo:
        """Return facts about a workspace; raises `NotFound`, also if it is somebody else's."""
        with self._alone():
            facts = self._find(workspace_id, owner)
            holder = self._holder(facts)
        return self._describe(facts, holder)

    def remove(self, workspace_id: str, owner: str | None = None) -> None:
        """Remove a workspace and all files in it.

        Raises:
            NotFound: there is none, or it is somebody else's.
            Conflict: a sandbox has it.
        """
        with self._alone() as top:
            facts = self._find(workspace_id, owner)
            try:
                os.close(self._lock(facts))
            except _Held as error:
                raise error.conflict from None
            gone = _move_away(top, facts.id)
        self._clear([gone])

    def clean(self) -> None:
        """Remove what was half made or half removed, and what should have gone with a sandbox that is no more."""
        self._is_clean = True
        if not self._directory.exists():
            return
        with self._alone() as top:
            # Nobody makes anything now, so what is half made stays so.
            gone = [name for name in os.listdir(top) if name.startswith((_NEW, _GONE))]
            for facts in self._all():
                if facts.removed_with_sandbox and self._holder(facts) is None:
                    gone.append(_move_away(top, facts.id))
        self._clear(gone)

    # --- one that is held ------------------------------------------------------------------------------------

    def give_back(self, hold: WorkspaceHold) -> None:
        """Let the next sandbox have a workspace, or remove it if that was asked for."""
        with self._alone() as top:
            facts = self._read(hold.id)
            gone = []
            if facts is not None and facts.removed_with_sandbox:
                gone.append(_move_away(top, facts.id))
            elif facts is not None:
                self._write(replace(facts, sandbox=None, last_used_at=time.time()), durable=False)
        self._clear(gone)

    def undo(self, hold: WorkspaceHold) -> None:
        """Make a workspace what it was before it was taken for a sandbox that was never made."""
        with self._alone() as top:
            gone = [_move_away(top, hold.id)] if hold.before is None else []
            if hold.before is not None:
                # What it was given, it has: an image that was enlarged already stays so, and counts.
                size = max(hold.before.size_bytes, _largest_file(self._place(hold.id)))
                self._write(replace(hold.before, size_bytes=size), durable=True)
        self._clear(gone)

    # --- facts -----------------------------------------------------------------------------------------------

    def _wanted(
        self, request: SandboxRequest, workspace_id: WorkspaceId, before: _Facts | None
    ) -> _Facts:
        now = time.time()
        return _Facts(
            id=workspace_id,
            owner=request.owner,
            size_bytes=self._size(request.spec.limits, before),
            created_at=now if before is None else before.created_at,
            last_used_at=now,
            sandbox=request.spec.id,
            removed_with_sandbox=request.remove_workspace,
        )

    def _size(self, limits: Limits, before: _Facts | None) -> int:
        asked = limits.workspace_bytes
        if before is None:
            return self._rules.size_bytes if asked is None else asked
        if asked is not None and asked < before.size_bytes:
            raise InvalidRequest(
                f"workspace {before.id!r} was made for {format_size(before.size_bytes)} and can grow but not shrink to"
                f" {format_size(asked)}; leave workspace_bytes out, or remove it first",
                workspace=before.id,
                limit="workspace_bytes",
            )
        return max(asked or 0, before.size_bytes)

    def _check_room(self, facts: _Facts, before: _Facts | None) -> None:
        growth = facts.size_bytes - (0 if before is None else before.size_bytes)
        if not growth:
            return
        known = list(self._all())
        owned = sum(each.owner == facts.owner for each in known)
        most = self._rules.per_owner
        if before is None and most is not None and owned >= most:
            raise LimitExceeded(
                f"{facts.owner} has {owned} workspaces, the most is {most}; remove one first",
                owner=facts.owner,
                limit=most,
            )
        taken, total = sum(each.size_bytes for each in known), self._rules.total_bytes
        if total is not None and taken + growth > total:
            raise LimitExceeded(
                f"workspaces may take {format_size(total)} together, of which {format_size(taken)} are given away;"
                f" there is no room for {format_size(growth)} more: remove some, or ask for less workspace_bytes",
                limit=total,
            )
        disk = os.statvfs(self._directory)
        if disk.f_bavail * disk.f_frsize < growth:
            raise LimitExceeded(
                f"the disk of {self._directory} has {format_size(disk.f_bavail * disk.f_frsize)} left, and"
                f" {format_size(growth)} more were asked for; make room, or ask for less workspace_bytes"
            )

    def _make(self, top: int, facts: _Facts) -> None:
        fresh = f"{_NEW}{secrets.token_hex(8)}"
        place = self._directory / fresh
        try:
            (place / _CONTENTS).mkdir(mode=0o700, parents=True)
            (place / _LOCK).touch(mode=0o600)
            _write_file(place / _FACTS, _pack(facts))
            _sync_folder(place)
            os.rename(fresh, facts.id, src_dir_fd=top, dst_dir_fd=top)
            os.fsync(top)
        except BaseException:
            remove_tree(top, fresh)
            raise

    def _all(self) -> Iterator[_Facts]:
        for path in self._directory.iterdir():
            if path.is_dir() and not path.name.startswith("."):
                try:
                    facts = self._read(WorkspaceId(path.name))
                except AtollError as error:
                    _log.error("workspace.damaged", extra={"reason": error.message})
                else:
                    yield from () if facts is None else (facts,)

    def _find(self, workspace_id: str, owner: str | None = None) -> _Facts:
        facts = self._read(WorkspaceId(workspace_id))
        if facts is None or owner not in (None, facts.owner):
            raise NotFound(
                f"there is no workspace {str(workspace_id)[:80]!r}; list them to see which there are",
                workspace=str(workspace_id)[:80],
            )
        return facts

    def _read(self, workspace_id: WorkspaceId) -> _Facts | None:
        check_workspace(workspace_id)
        path = self._directory / workspace_id / _FACTS
        try:
            with path.open("rb") as file:
                return _Facts(**json.loads(file.read(_MOST_FACTS_BYTES)))
        except FileNotFoundError:
            return None
        except (ValueError, TypeError) as error:
            raise Unavailable(
                f"{path} is damaged; put it back from a copy, or remove the workspace's directory"
            ) from error

    def _write(self, facts: _Facts, *, durable: bool) -> None:
        """Replace the facts; who has it and since when may be lost with the machine, as the holder is then."""
        place = self._directory / facts.id
        _write_file(place / f"{_FACTS}.new", _pack(facts), durable=durable)
        os.replace(place / f"{_FACTS}.new", place / _FACTS)
        if durable:
            _sync_folder(place)

    def _kept(self, facts: _Facts) -> KeptWorkspace:
        return KeptWorkspace(str(self._place(facts.id)), facts.size_bytes)

    def _place(self, workspace_id: WorkspaceId) -> Path:
        return self._directory / workspace_id / _CONTENTS

    def _describe(self, facts: _Facts, holder: SandboxId | None) -> WorkspaceInfo:
        return WorkspaceInfo(
            id=facts.id,
            owner=facts.owner,
            size_bytes=facts.size_bytes,
            used_bytes=_measure(self._place(facts.id)),
            created_at=facts.created_at,
            last_used_at=facts.last_used_at,
            sandbox=holder,
        )

    # --- locks -----------------------------------------------------------------------------------------------

    @contextmanager
    def _alone(self) -> Iterator[int]:
        """Keep every other program out for a moment; yield the open directory."""
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            top = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise Unavailable(f"{self._directory} cannot be opened: {error.strerror}") from error
        try:
            with self._guard:
                fcntl.flock(top, fcntl.LOCK_EX)
                yield top
        except AtollError:
            raise  # some are also an OSError
        except OSError as error:
            raise Unavailable(
                f"the workspaces in {self._directory} cannot be changed: {error.strerror}"
            ) from error
        finally:
            os.close(top)

    def _lock(self, facts: _Facts) -> int:
        """Take a workspace for oneself; raise `_Held` if somebody has it."""
        lock = os.open(self._directory / facts.id / _LOCK, os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            current = self._read(facts.id)
            raise _Held(facts.id, None if current is None else current.sandbox) from None
        return lock

    def _holder(self, facts: _Facts) -> SandboxId | None:
        try:
            os.close(self._lock(facts))
        except _Held:
            return facts.sandbox
        return None

    def _clear(self, names: Sequence[str]) -> None:
        """Remove what was moved away; if that fails, whoever cleans next removes it."""
        if not names:
            return
        top = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for name in names:
                try:
                    remove_tree(top, name)
                except OSError as error:
                    reason = error.strerror or str(error)
                    _log.error("workspace.not_removed", extra={"folder": name, "reason": reason})
        finally:
            os.close(top)


class WorkspaceHold:
    """A workspace that one sandbox has. Any thread may use it."""

    def __init__(
        self,
        workspaces: Workspaces,
        workspace_id: WorkspaceId,
        lock: int,
        kept: KeptWorkspace,
        before: _Facts | None,
    ) -> None:
        self._workspaces = workspaces
        self.id = workspace_id
        self.kept = kept  # as the engine is told
        self.before = before  # what it was until then; None: there was none
        self._lock = lock
        self._guard = threading.Lock()

    @property
    def lock(self) -> int:
        """What has to be held by whoever keeps the sandbox alive."""
        return self._lock

    def release(self) -> None:
        """Let the next sandbox have it, or remove it if that was asked for; safe to call twice."""
        self._let_go(self._workspaces.give_back)

    def leave(self) -> None:
        """Let go on this side only: whoever else has the lock keeps it."""
        with self._guard:
            lock, self._lock = self._lock, -1
        if lock >= 0:
            os.close(lock)

    def undo(self) -> None:
        """Let go after its sandbox could not be made: what is new goes again."""
        self._let_go(self._workspaces.undo)

    def _let_go(self, change: Callable[[WorkspaceHold], None]) -> None:
        with self._guard:
            lock, self._lock = self._lock, -1
        if lock < 0:
            return
        try:
            change(self)
        except AtollError as error:
            _log.error(
                "workspace.not_settled", extra={"workspace": self.id, "reason": error.message}
            )
        finally:
            # Whoever else holds the same open file, such as a keeper, has no lock from here on either.
            with suppress(OSError):
                fcntl.flock(lock, fcntl.LOCK_UN)
            os.close(lock)


class _Held(Exception):
    def __init__(self, workspace_id: WorkspaceId, sandbox: SandboxId | None) -> None:
        self.conflict = Conflict(
            f"workspace {workspace_id!r} is in use by sandbox {sandbox}; destroy that one first, or choose another id",
            workspace=workspace_id,
            sandbox=sandbox,
        )


def _move_away(top: int, name: str) -> str:
    gone = f"{_GONE}{secrets.token_hex(8)}"
    os.rename(name, gone, src_dir_fd=top, dst_dir_fd=top)
    os.fsync(top)
    return gone


def _pack(facts: _Facts) -> bytes:
    return json.dumps(asdict(facts)).encode()


def _write_file(path: Path, data: bytes, *, durable: bool = True) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
    fd = os.open(path, flags, 0o600)
    try:
        os.write(fd, data)
        if durable:
            os.fsync(fd)
    finally:
        os.close(fd)


def _sync_folder(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _largest_file(path: Path) -> int:
    """Return the size of the largest file in a folder, holes included."""
    with os.scandir(path) as entries:
        return max((each.stat().st_size for each in entries if _is_file(each)), default=0)


def _is_file(entry: os.DirEntry[str]) -> bool:
    return entry.is_file(follow_symlinks=False)


def _measure(path: Path) -> int:
    """Return what a tree takes on disk, as far as it can be looked into; nothing is followed."""
    with suppress(OSError):
        folder = os.open(path, _FOLDER)
        try:
            return _tree_bytes(folder, set(), 0)
        finally:
            os.close(folder)
    return 0


def _tree_bytes(folder: int, seen: set[int], depth: int) -> int:
    """Return what is below a folder, each file once; each level costs a descriptor, so there is a deepest one."""
    total = 0
    for name in os.listdir(folder):
        with suppress(OSError):  # removed meanwhile, or shut by its owner
            facts = os.stat(name, dir_fd=folder, follow_symlinks=False)
            if facts.st_ino in seen:
                continue
            seen.add(facts.st_ino)
            total += facts.st_blocks * 512
            if stat.S_ISDIR(facts.st_mode) and depth < _MOST_DEPTH:
                total += _below(folder, name, seen, depth + 1)
    return total


def _below(folder: int, name: str, seen: set[int], depth: int) -> int:
    inner = os.open(name, _FOLDER, dir_fd=folder)
    try:
        return _tree_bytes(inner, seen, depth)
    finally:
        os.close(inner)
