"""What an open engine holds: its keeper, ids, cgroups, jails and sandboxes, and what an earlier program left."""

from __future__ import annotations

import hashlib
import os
import resource
import secrets
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from atoll.engines.cgroups.claims import PREFIX
from atoll.engines.cgroups.contract import CgroupTree
from atoll.engines.cgroups.layout import detect
from atoll.engines.cgroups.trees import find_tree, most_memory
from atoll.engines.contract import Lasting
from atoll.engines.namespaces.attest import Host, look_at_host
from atoll.engines.namespaces.drains import Drains
from atoll.engines.namespaces.idmap import HostIds
from atoll.engines.namespaces.keeper import OwnedKeeper
from atoll.engines.namespaces.lasting_keeper import (
    Kept,
    LastingKeeper,
    find_lasting_keeper,
    open_lasting_keeper,
    prepare_directory,
)
from atoll.engines.namespaces.memory_guard import MemoryGuard
from atoll.engines.namespaces.sandbox import NamespaceSandbox
from atoll.engines.namespaces.shelf import Leftover, Shelf, parse_init_note, sort_by_group
from atoll.engines.namespaces.watchdog import Watchdog
from atoll.engines.namespaces.workspace_watch import WorkspaceWatch
from atoll.engines.namespaces.zygotes import Jail
from atoll.errors import Unavailable
from atoll.model.ids import SandboxId

Keeper: TypeAlias = OwnedKeeper | LastingKeeper

# What a keeper that lasts holds for the engine itself, and for its jails.
_ENGINE, _JAIL = "engine", "jail"


@dataclass(slots=True)
class Parts:
    """What an open engine holds."""

    keeper: Keeper
    host: Host
    zygote_id: int
    ids: HostIds | None
    tree: CgroupTree | None
    memory_bytes: int  # that all sandboxes together may have
    leftovers: dict[SandboxId, Leftover] = field(default_factory=dict)
    kept_jails: dict[int, Kept] = field(default_factory=dict)
    jail_digests: dict[int, str] = field(default_factory=dict)  # of those, adopted or not
    drains: Drains = field(default_factory=Drains)
    watchdog: Watchdog = field(default_factory=Watchdog)
    workspaces: WorkspaceWatch = field(default_factory=WorkspaceWatch)
    jails: dict[str, Jail] = field(default_factory=dict)  # those that new sandboxes come from
    jails_by_pid: dict[int, Jail] = field(default_factory=dict)
    making_jails: threading.Lock = field(default_factory=threading.Lock)
    sandboxes: dict[SandboxId, NamespaceSandbox] = field(default_factory=dict)
    guard: MemoryGuard = field(init=False)

    def __post_init__(self) -> None:
        self.guard = MemoryGuard(
            self.memory_bytes, self.used_bytes, lambda: list(self.sandboxes.values())
        )

    def used_bytes(self) -> int:
        """Return the memory of all sandboxes together, where cgroups count it."""
        return 0 if self.tree is None else self.tree.used_bytes()

    @property
    def lasting(self) -> LastingKeeper | None:
        """The keeper, if it outlives this program."""
        return self.keeper if isinstance(self.keeper, LastingKeeper) else None

    def shelf(self, sandbox_id: SandboxId) -> Shelf:
        """Return where things of a sandbox are kept."""
        return Shelf(self.lasting, sandbox_id)

    def keep_jail(self, jail: Jail) -> None:
        """Have a jail outlive this program, if anything does."""
        self.jails_by_pid[jail.pid] = jail
        if self.lasting is not None:
            shelf = Shelf(self.lasting, _JAIL)
            shelf.keep(str(jail.pid), [jail.fileno()], jail.template.digest)

    def forget_dead_jails(self) -> None:
        """Let go of jails that were killed, and all their sandboxes with them."""
        for pid, jail in list(self.jails_by_pid.items()):
            if jail.is_gone:
                jail.close()
                Shelf(self.lasting, _JAIL).forget(str(pid))
                del self.jails_by_pid[pid]
                self.jails = {name: each for name, each in self.jails.items() if each is not jail}

    def forget(self, sandbox: NamespaceSandbox) -> None:
        """Let a destroyed sandbox go."""
        self.sandboxes.pop(sandbox.id, None)

    def replace_keeper(self, binaries: Path, lasting: Lasting) -> None:
        """Go on after the keeper was killed, and all sandboxes with it."""
        self._let_go()
        tree = self.tree
        if tree is not None and not all(each.parent.is_dir() for each in tree.directories):
            # An earlier program had its cgroups there, in one that is gone with the last process in it.
            tree.release()
            tree = _find_tree(_tree_name(lasting))
        self.keeper = open_keeper(binaries, lasting, rootless=self.ids is None)
        self.tree = _open_tree(tree, self.keeper, self.memory_bytes)
        self.keep_engine()
        self.clean_tree()

    def keep_engine(self) -> None:
        """Have the engine's own locks outlive this program."""
        shelf = Shelf(self.lasting, _ENGINE)
        if self.ids is not None:
            shelf.keep("ids", [self.ids.fd], str(self.zygote_id))
        if self.tree is not None:
            shelf.keep("claims", self.tree.claims)

    def clean_tree(self) -> None:
        """Remove cgroups of sandboxes that are not there any more, or were never finished."""
        if self.tree is not None:
            with suppress(Unavailable):  # what still ends is removed with the keeper
                self.tree.remove_all_but({*self.leftovers, *self.sandboxes})

    def leave(self) -> None:
        """Close this side only: the keeper holds the rest."""
        self.guard.stop()
        self.keeper.leave()  # first, so that nothing is forgotten there
        for sandbox in list(self.sandboxes.values()):
            sandbox.leave()
        self._let_go()
        self.drains.close()
        if self.tree is not None:
            self.tree.release()
        if self.ids is not None:
            self.ids.close()

    def close(self) -> None:
        """End everything."""
        self.guard.stop()
        for jail in self.jails_by_pid.values():
            jail.close()
        self.keeper.end()
        self._let_go()
        self.drains.close()
        if self.tree is not None:
            self.tree.remove()
        if self.ids is not None:
            self.ids.close()

    def _let_go(self) -> None:
        self.keeper.leave()
        for jail in self.jails_by_pid.values():
            jail.close()
        for leftover in self.leftovers.values():
            leftover.close()
        for kept in self.kept_jails.values():
            kept.close()
        for each in (
            self.jails,
            self.jails_by_pid,
            self.leftovers,
            self.kept_jails,
            self.jail_digests,
        ):
            each.clear()


def open_parts(
    binaries: Path, data_dir: Path, lasting: Lasting | None, memory_bytes: int | None = None
) -> Parts:
    """Start what an engine needs, or go on with what an earlier program left."""
    rootless = os.geteuid() != 0
    if rootless or lasting is not None:
        _raise_descriptor_limit()
    with ExitStack() as undo:
        found = None if lasting is None else find_lasting_keeper(lasting)
        left = _recall(found, undo)
        tree = _find_tree(_tree_name(lasting), _places(left))
        if tree is not None:
            undo.callback(tree.release if lasting is not None else tree.remove)
        keeper: Keeper
        if found is None:
            # After the cgroups were found: it stays in the one that this process is in by then.
            keeper = open_keeper(binaries, lasting, rootless=rootless)
            left = _recall(keeper, undo)
        else:
            keeper = found
        most = memory_bytes or most_memory()
        ids, zygote_id = _open_ids(data_dir, left.get(_ENGINE, Leftover()))
        if ids is not None:
            undo.callback(ids.close)
        parts = Parts(keeper, look_at_host(), zygote_id, ids, _open_tree(tree, keeper, most), most)
        parts.keep_engine()
        _sort_out(parts, left)
        undo.pop_all()
    parts.clean_tree()
    return parts


def _recall(keeper: Keeper | None, undo: ExitStack) -> dict[str, Leftover]:
    """Return what a keeper holds, which is let go if the rest fails."""
    if keeper is None:
        return {}
    undo.callback(keeper.leave)
    return sort_by_group(keeper.recall()) if isinstance(keeper, LastingKeeper) else {}


def _places(left: Mapping[str, Leftover]) -> Iterator[Path]:
    """Yield where an earlier program has its cgroups: this one was perhaps started in another part of the hierarchy."""
    claims = left.get(_ENGINE, Leftover()).look("claims")
    for fd in () if claims is None else claims.fds:
        path = Path(os.readlink(f"/proc/self/fd/{fd}"))
        with suppress(OSError):  # it was removed, or cannot be reached from here
            if os.path.samestat(path.stat(), os.fstat(fd)):
                yield path


def open_keeper(binaries: Path, lasting: Lasting | None, *, rootless: bool) -> Keeper:
    """Return a keeper that ends with this program, or the one that lasts."""
    if lasting is None:
        return OwnedKeeper(binaries / "keeper", rootless=rootless)
    return open_lasting_keeper(binaries / "keeper", lasting, rootless=rootless)


def _sort_out(parts: Parts, left: dict[str, Leftover]) -> None:
    left.pop(_ENGINE, Leftover()).close()
    for pid, kept in left.pop(_JAIL, Leftover()).items():
        parts.kept_jails[int(pid)] = kept
        parts.jail_digests[int(pid)] = kept.note
    for name, leftover in left.items():
        parts.leftovers[SandboxId(name)] = leftover
        init = leftover.look("init")
        if init is not None and parts.ids is not None:
            parts.ids.take_over(parse_init_note(init.note)[0].host_id)


def _open_ids(data_dir: Path, left: Leftover) -> tuple[HostIds | None, int]:
    """Return the ids for sandboxes, and that of the zygotes; without root there is none but one's own."""
    if os.geteuid() != 0:
        return None, 0
    kept = left.take("ids")
    if kept is None:
        ids = HostIds(data_dir)
        return ids, ids.take()
    ids, zygote_id = HostIds(data_dir, kept.fds[0]), int(kept.note)
    ids.take_over(zygote_id)
    return ids, zygote_id


def _raise_descriptor_limit() -> None:
    """Let this process have as many descriptors as it may.

    Descriptors that are on their way through sockets are counted for the user, against the limit of whoever sends
    the next one. Code in a sandbox of the same user could send as many as its own limit, and with that limit here
    nothing could be passed into any sandbox any more. What an earlier program left has to fit, too.
    """
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _tree_name(lasting: Lasting | None) -> str:
    """Return the name of the engine's cgroups: for one that lasts, the same each time."""
    if lasting is None:
        return f"{PREFIX}{secrets.token_hex(6)}"
    directory = prepare_directory(lasting.directory)
    facts = directory.stat()
    # The path alone could be another's in a container that shares the cgroups.
    mark = f"{facts.st_dev} {facts.st_ino} {directory}"
    return PREFIX + hashlib.sha256(mark.encode()).hexdigest()[:12]


def _find_tree(name: str, places: Iterable[Path] = ()) -> CgroupTree | None:
    try:
        return find_tree(name, detect().around(places))
    except Unavailable:
        return None  # limits then say what enforces them instead, and the doctor says why


def _open_tree(tree: CgroupTree | None, keeper: Keeper, memory_bytes: int) -> CgroupTree | None:
    if tree is None:
        return None
    # Before they exist: whenever this process is killed, somebody knows of them.
    for directory in tree.directories:
        keeper.sweep_at_end(directory)
    try:
        tree.make_directories()
        tree.cap_memory(memory_bytes)
    except Unavailable:
        return None  # as above
    return tree
