"""Workspaces that outlive their sandboxes, by owner and id: how much they may hold, and who has them now.

Each is a directory of the data directory: a file with facts, a lock, and `contents`, which is the engine's. That is all
there is to know of one, for every program that uses the data directory. What changes them is done under one lock of all;
whoever has one holds its own lock, for as long as its sandbox lives: so what was killed holds nothing. New ones are made
beside and moved into place, old ones moved away before they are removed: each is there wholly or not at all.

A directory is named by a hash of owner and id: so owners share no ids, and nothing that an owner chose is part of a path.
Earlier versions named it by the id, which was one space for all. Such a directory is used where it is while a sandbox has
it, and gets its new name when none does.
"""

from __future__ import annotations

import fcntl
import hashlib
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

# Under which name an engine keeps the lock on a sandbox's workspace for the next node.
LOCK_SLOT = "workspace"
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
    bytes_per_owner: int | None = None  # of all that one has


@dataclass(frozen=True, slots=True)
class _Facts:
    id: WorkspaceId
    owner: str
    size_bytes: int
    created_at: float
    last_used_at: float
    sandbox: SandboxId | None  # that had it last, and has it if the lock is taken
    removed_with_sandbox: bool = False
    # Nobody but `sandbox` may have it, whether that runs or is stopped.
    belongs_to_sandbox: bool = False


class Workspaces:
    """The workspaces of one data directory. All methods wait, and may be called in any thread."""

    def __init__(
        self, directory: Path, rules: WorkspaceRules | None = None, *, is_shared: bool = False
    ) -> None:
        """Use a directory, which is made with the first workspace.

        With `is_shared` those who ask are not told of the machine, such as where things lie and how full its disk is: that is
        in the log.
        """
        self._directory = directory
        self._rules = rules or WorkspaceRules()
        self._is_shared = is_shared
        # A lock of an open file keeps no other thread of this process out that opens it anew, but is slow to wait for.
        self._guard = threading.Lock()
        self._is_clean = False

    def take(self, request: SandboxRequest) -> WorkspaceHold:
        """Have the workspace that a request names for its sandbox, made if need be.

        Raises:
            Conflict: another sandbox has it.
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
            before = self._read(workspace_id, request.owner)
            if before is not None:
                self._check_free(before)
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
        return WorkspaceHold(self, facts, lock, self._kept(facts), before)

    def take_again(
        self, workspace_id: WorkspaceId, owner: str, sandbox: SandboxId
    ) -> WorkspaceHold:
        """Have the workspace of a sandbox that was stopped, for that sandbox.

        Raises:
            Conflict: it runs already, in another program.
            NotFound: it has no workspace of its own any more.
        """
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while True:
            try:
                with self._alone():
                    facts = self._read(workspace_id, owner)
                    if facts is None or (facts.sandbox, facts.belongs_to_sandbox) != (
                        sandbox,
                        True,
                    ):
                        raise NotFound(
                            f"workspace {workspace_id!r} of sandbox {sandbox} is no longer there; destroy the sandbox",
                            sandbox=sandbox,
                            workspace=workspace_id,
                        )
                    lock = self._lock(facts)
                return WorkspaceHold(self, facts, lock, self._kept(facts), facts)
            except _Held as error:
                if time.monotonic() > deadline:
                    raise error.conflict from None
            time.sleep(_MOMENT)

    def take_over(self, workspace_id: WorkspaceId, owner: str, lock: int) -> WorkspaceHold:
        """Go on holding a workspace by the lock that an earlier program had."""
        with self._alone():
            facts = self._find(workspace_id, owner)
        return WorkspaceHold(self, facts, lock, self._kept(facts), facts)

    def list(self, owner: str | None = None) -> Sequence[WorkspaceInfo]:
        """Return the workspaces of an owner, or of all, the newest first."""
        with self._alone():
            found = [facts for facts in self._all() if owner in (None, facts.owner)]
            holders = [self._holder(facts) for facts in found]
        infos = [self._describe(*each) for each in zip(found, holders, strict=True)]
        return sorted(infos, key=lambda info: (-info.created_at, info.id, info.owner))

    def find(self, workspace_id: str, owner: str) -> WorkspaceInfo:
        """Return facts about a workspace of an owner; raises `NotFound`."""
        with self._alone():
            facts = self._find(workspace_id, owner)
            holder = self._holder(facts)
        return self._describe(facts, holder)

    def remove(self, workspace_id: str, owner: str) -> None:
        """Remove a workspace of an owner and all files in it.

        Raises:
            NotFound: there is none.
            Conflict: a sandbox has it.
        """
        with self._alone() as top:
            facts = self._find(workspace_id, owner)
            self._check_free(facts)
            try:
                os.close(self._lock(facts))
            except _Held as error:
                raise error.conflict from None
            gone = self._move_away(top, facts)
        self._clear([gone])

    def clean(self) -> None:
        """Remove what was half made or half removed, and what should have gone with a sandbox that is no more.

        What an earlier version has made gets its new name, unless a sandbox has it.
        """
        self._is_clean = True
        if not self._directory.exists():
            return
        with self._alone() as top:
            # Nobody makes anything now, so what is half made stays so.
            gone = [name for name in os.listdir(top) if name.startswith((_NEW, _GONE))]
            for facts in list(self._all()):
                try:
                    gone += self._settle(top, facts)
                except OSError as error:
                    # Such as one without a lock: no reason to keep all others from being used.
                    reason = error.strerror or str(error)
                    place = {"owner": facts.owner, "workspace": facts.id}
                    _log.error("workspace.damaged", extra={**place, "reason": reason})
        self._clear(gone)

    def _settle(self, top: int, facts: _Facts) -> Sequence[str]:
        """Move a workspace away or rename it if it should be and nobody has it; return what was moved away."""
        is_named = self._folder(facts) == _name_of(facts.id, facts.owner)
        is_left = facts.removed_with_sandbox and not facts.belongs_to_sandbox
        if (is_named and not is_left) or self._is_held(facts):
            return ()
        if is_left:
            return (self._move_away(top, facts),)
        self._rename(top, facts)
        return ()

    # --- one that is held ------------------------------------------------------------------------------------

    def give_back(self, hold: WorkspaceHold) -> None:
        """Let the next sandbox have a workspace, or remove it if that was asked for."""
        with self._alone() as top:
            facts = self._read(hold.id, hold.owner)
            gone = []
            if facts is not None and facts.removed_with_sandbox:
                gone.append(self._move_away(top, facts))
            elif facts is not None:
                free = replace(facts, sandbox=None, belongs_to_sandbox=False)
                self._write(replace(free, last_used_at=time.time()), durable=False)
        self._clear(gone)

    def set_aside(self, hold: WorkspaceHold) -> None:
        """Keep a workspace for its sandbox, which was stopped."""
        with self._alone():
            facts = self._read(hold.id, hold.owner)
            if facts is not None:
                self._write(replace(facts, last_used_at=time.time()), durable=True)

    def undo(self, hold: WorkspaceHold) -> None:
        """Make a workspace what it was before it was taken for a sandbox that was never made."""
        with self._alone() as top:
            gone = [self._move_away(top, hold.facts)] if hold.before is None else []
            if hold.before is not None:
                # What it was given, it has: an image that was enlarged already stays so, and counts.
                size = max(hold.before.size_bytes, _largest_file(self._place(hold.facts)))
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
            belongs_to_sandbox=request.spec.persistent,
        )

    def _check_free(self, facts: _Facts) -> None:
        """Raise `Conflict` if a workspace is that of a stopped sandbox."""
        if facts.belongs_to_sandbox and not self._is_held(facts):
            raise Conflict(
                f"workspace {facts.id!r} belongs to sandbox {facts.sandbox}, which is stopped; resume or destroy that one"
                " first, or choose another id",
                workspace=facts.id,
                sandbox=facts.sandbox,
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
        own = [each.size_bytes for each in known if each.owner == facts.owner]
        self._check_share(facts.owner, own, growth, is_new=before is None)
        taken, total = sum(each.size_bytes for each in known), self._rules.total_bytes
        if total is not None and taken + growth > total:
            given = f"workspaces may take {format_size(total)} together, of which {format_size(taken)} are given away"
            raise self._no_room(growth, given)
        disk = os.statvfs(self._directory)
        free = disk.f_bavail * disk.f_frsize
        if free < growth:
            left = f"the disk of {self._directory} has {format_size(free)} left"
            raise self._no_room(growth, left)

    def _check_share(self, owner: str, own: Sequence[int], growth: int, *, is_new: bool) -> None:
        """Raise `LimitExceeded` if an owner would have more than he may; `own` are the sizes of what he has."""
        most = self._rules.per_owner
        if is_new and most is not None and len(own) >= most:
            raise LimitExceeded(
                f"{owner} has {len(own)} workspaces, the most is {most}; remove one first",
                owner=owner,
                limit=most,
            )
        given, most = sum(own), self._rules.bytes_per_owner
        if most is not None and given + growth > most:
            raise LimitExceeded(
                f"workspaces of {owner} may hold {format_size(most)} together, {format_size(given)} of that are given to"
                f" {len(own)}, and {format_size(growth)} more were asked for; remove one, ask for less workspace_bytes, or"
                " have workspaces.bytes_per_owner raised",
                owner=owner,
                limit=most,
                given_bytes=given,
            )

    def _no_room(self, growth: int, reason: str) -> AtollError:
        what = f"there is no room for {format_size(growth)} more of workspaces"
        way_out = "remove some, ask for less workspace_bytes, or have whoever runs this make room"
        return self._refusal(LimitExceeded, what, reason, way_out)

    def _refusal(self, kind: type[AtollError], what: str, reason: str, way_out: str) -> AtollError:
        """Return an error that says what can be done; a reason that tells of the machine is only for who has it to himself."""
        _log.warning("workspace.refused", extra={"refusal": what, "reason": reason})
        return kind(f"{what}; {way_out}" if self._is_shared else f"{what}: {reason}; {way_out}")

    def _make(self, top: int, facts: _Facts) -> None:
        fresh = f"{_NEW}{secrets.token_hex(8)}"
        place = self._directory / fresh
        try:
            (place / _CONTENTS).mkdir(mode=0o700, parents=True)
            (place / _LOCK).touch(mode=0o600)
            _write_file(place / _FACTS, _pack(facts))
            _sync_folder(place)
            os.rename(fresh, _name_of(facts.id, facts.owner), src_dir_fd=top, dst_dir_fd=top)
            os.fsync(top)
        except BaseException:
            remove_tree(top, fresh)
            raise

    def _all(self) -> Iterator[_Facts]:
        for path in self._directory.iterdir():
            if path.is_dir() and not path.name.startswith("."):
                try:
                    facts = self._read_in(path.name)
                    # A copy under another name is no second workspace.
                    if facts is not None and self._folder(facts) == path.name:
                        yield facts
                except AtollError:
                    continue  # it was logged; others are not harmed

    def _find(self, workspace_id: str, owner: str) -> _Facts:
        facts = self._read(WorkspaceId(workspace_id), owner)
        if facts is None:
            raise NotFound(
                f"there is no workspace {str(workspace_id)[:80]!r}; list them to see which there are",
                workspace=str(workspace_id)[:80],
            )
        return facts

    def _read(self, workspace_id: WorkspaceId, owner: str) -> _Facts | None:
        check_workspace(workspace_id)
        facts = self._read_in(_name_of(workspace_id, owner))
        return facts or self._read_unnamed(workspace_id, owner)

    def _read_unnamed(self, workspace_id: WorkspaceId, owner: str) -> _Facts | None:
        """Return the facts of a workspace that still has the name which an earlier version gave it."""
        try:
            facts = self._read_in(workspace_id)
        except Unavailable:
            return None  # whose it was cannot be told, so it is nobody's
        return facts if facts is not None and facts.owner == owner else None

    def _read_in(self, folder: str) -> _Facts | None:
        path = self._directory / folder / _FACTS
        try:
            with path.open("rb") as file:
                return _Facts(**json.loads(file.read(_MOST_FACTS_BYTES)))
        except FileNotFoundError:
            return None
        except (ValueError, TypeError) as error:
            _log.error("workspace.damaged", extra={"path": str(path), "reason": str(error)})
            way_out = "whoever runs this can put them back from a copy, or remove the directory"
            what = "the facts about this workspace are damaged"
            raise self._refusal(Unavailable, what, str(path), way_out) from error

    def _folder(self, facts: _Facts) -> str:
        """Return the name of a workspace's directory."""
        name = _name_of(facts.id, facts.owner)
        if (self._directory / name).is_dir() or self._read_unnamed(facts.id, facts.owner) is None:
            return name
        return facts.id

    def _rename(self, top: int, facts: _Facts) -> None:
        """Give what an earlier version has made the name that it would have now."""
        name = _name_of(facts.id, facts.owner)
        os.rename(self._folder(facts), name, src_dir_fd=top, dst_dir_fd=top)
        os.fsync(top)

    def _move_away(self, top: int, facts: _Facts) -> str:
        gone = f"{_GONE}{secrets.token_hex(8)}"
        os.rename(self._folder(facts), gone, src_dir_fd=top, dst_dir_fd=top)
        os.fsync(top)
        return gone

    def _write(self, facts: _Facts, *, durable: bool) -> None:
        """Replace the facts; who has it and since when may be lost with the machine, as the holder is then."""
        place = self._directory / self._folder(facts)
        _write_file(place / f"{_FACTS}.new", _pack(facts), durable=durable)
        os.replace(place / f"{_FACTS}.new", place / _FACTS)
        if durable:
            _sync_folder(place)

    def _kept(self, facts: _Facts) -> KeptWorkspace:
        return KeptWorkspace(str(self._place(facts)), facts.size_bytes)

    def _place(self, facts: _Facts) -> Path:
        return self._directory / self._folder(facts) / _CONTENTS

    def _describe(self, facts: _Facts, holder: SandboxId | None) -> WorkspaceInfo:
        return WorkspaceInfo(
            id=facts.id,
            owner=facts.owner,
            size_bytes=facts.size_bytes,
            used_bytes=_measure(self._place(facts)),
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
            raise self._unusable("opened", error) from error
        try:
            with self._guard:
                fcntl.flock(top, fcntl.LOCK_EX)
                yield top
        except AtollError:
            raise  # some are also an OSError
        except OSError as error:
            raise self._unusable("changed", error) from error
        finally:
            os.close(top)

    def _unusable(self, verb: str, error: OSError) -> AtollError:
        reason = f"{self._directory}: {error.strerror}"
        way_out = "try again later, or have whoever runs this look into it"
        return self._refusal(Unavailable, f"workspaces cannot be {verb}", reason, way_out)

    def _lock(self, facts: _Facts) -> int:
        """Take a workspace for oneself; raise `_Held` if somebody has it."""
        path = self._directory / self._folder(facts) / _LOCK
        lock = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            current = self._read(facts.id, facts.owner)
            raise _Held(facts.id, None if current is None else current.sandbox) from None
        return lock

    def _holder(self, facts: _Facts) -> SandboxId | None:
        return facts.sandbox if facts.belongs_to_sandbox or self._is_held(facts) else None

    def _is_held(self, facts: _Facts) -> bool:
        try:
            os.close(self._lock(facts))
        except _Held:
            return True
        return False

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
        facts: _Facts,
        lock: int,
        kept: KeptWorkspace,
        before: _Facts | None,
    ) -> None:
        self._workspaces = workspaces
        self.facts = facts
        self.kept = kept  # as the engine is told
        self.before = before  # what it was until then; None: there was none
        self._lock = lock
        self._guard = threading.Lock()

    @property
    def id(self) -> WorkspaceId:
        """Its id."""
        return self.facts.id

    @property
    def owner(self) -> str:
        """Whose it is."""
        return self.facts.owner

    @property
    def lock(self) -> int:
        """What has to be held by whoever keeps the sandbox alive."""
        return self._lock

    def put_into(self, request: SandboxRequest) -> SandboxRequest:
        """Return the request for a sandbox with it."""
        return replace(request, spec=replace(request.spec, workspace=self.kept))

    def release(self) -> None:
        """Let the next sandbox have it, or remove it if that was asked for; safe to call twice."""
        self._let_go(self._workspaces.give_back)

    def set_aside(self) -> None:
        """Let go, but for nobody else than the same sandbox."""
        self._let_go(self._workspaces.set_aside)

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


def _name_of(workspace_id: WorkspaceId, owner: str) -> str:
    """Return the name of the directory that a workspace gets: longer than any id, so that it is none."""
    return hashlib.sha256(f"{owner}\0{workspace_id}".encode("utf-8", "surrogatepass")).hexdigest()


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
