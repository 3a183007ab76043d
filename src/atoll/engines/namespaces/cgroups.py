"""Cgroups: limits of memory, processes and cpu for each sandbox, on v1, v2 and hybrid layouts.

Every engine has one directory per hierarchy, every sandbox one below it. On v1 the child enters by writing to
`tasks` files that were opened here; on v2 it is cloned into its directory.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Protocol

from atoll.engines.namespaces.claims import Claims, remove_unclaimed
from atoll.engines.namespaces.spares import Spares
from atoll.errors import Unavailable
from atoll.model.limits import ResolvedLimits

NEEDED = ("memory", "pids", "cpu")
_FREEZE_SECONDS = 5.0
_ASK_AGAIN = 20
_NOT_FROZEN = f"the kernel did not freeze every process within {_FREEZE_SECONDS:g} s; try again"
_PERIOD_US = 100_000
_PAGE = os.sysconf("SC_PAGE_SIZE")
_MOST_TEXT = 65536
_ASIDE = "atoll-owner"
_REMOVE_SECONDS = 5.0
# What the kernel still counts for a cgroup whose processes have just ended; a new sandbox does not notice it.
_MOST_REMAINS = 1 << 20


@dataclass(frozen=True, slots=True)
class Layout:
    """Where each controller is: v1 by directory, v2 by one directory for those it has."""

    v1: Mapping[str, Path]
    v2: Path | None
    v2_controllers: frozenset[str]

    def version_of(self, controller: str) -> int | None:
        """Return 1, 2 or None for a controller."""
        if controller in self.v1:
            return 1
        return 2 if controller in self.v2_controllers else None

    @property
    def name(self) -> str:
        """v1, v2, hybrid or none."""
        versions = {self.version_of(controller) for controller in NEEDED} - {None}
        if not versions:
            return "none"
        return (
            "hybrid" if len(versions) > 1 or (1 in versions and self.v2) else f"v{versions.pop()}"
        )


@dataclass(frozen=True, slots=True)
class Events:
    """How often limits were hit so far."""

    out_of_memory: int = 0
    too_many_processes: int = 0


class SandboxCgroup(Protocol):
    """The cgroup of one sandbox."""

    @property
    def cloned_into(self) -> bool:
        """Whether processes are cloned into the (one) entry, or write themselves into several."""
        ...

    @property
    def can_freeze(self) -> bool:
        """Whether its processes can be stopped in place."""
        ...

    @property
    def paths(self) -> Mapping[str, str]:
        """What /proc/PID/cgroup has to show, by controller ('' is v2)."""
        ...

    def make(self) -> None:
        """Make it with its limits, unless that was done; raise `Unavailable` with the reason where it cannot be."""
        ...

    def open_entries(self) -> Sequence[int]:
        """Return descriptors by which one more process enters, for the caller to close."""
        ...

    def events(self) -> Events:
        """Return how often limits were hit."""
        ...

    @property
    def is_frozen(self) -> bool:
        """Whether its processes were told to stop in place."""
        ...

    def freeze(self, frozen: bool) -> None:
        """Stop all processes, or let them go on."""
        ...

    def differences(self) -> Iterator[str]:
        """Yield what of its limits is not as it was made."""
        ...

    def remove(self) -> None:
        """Remove it; its processes have ended."""
        ...


class CgroupTree(Protocol):
    """The engine's part of the cgroup hierarchy."""

    @property
    def controllers(self) -> frozenset[str]:
        """Controllers that limits can use here."""
        ...

    @property
    def directories(self) -> Sequence[Path]:
        """The engine's own directories, to be removed at its end."""
        ...

    def make_directories(self) -> None:
        """Make them; raise `Unavailable` with the reason where that cannot be."""
        ...

    def cap_memory(self, memory_bytes: int) -> None:
        """Let all sandboxes together have no more than this: beyond it one of them loses, never the host."""
        ...

    def admit_zygotes(self, pid: int, uid: int) -> None:
        """Let the jail `pid`, whose zygotes run as `uid`, make sandboxes here."""
        ...

    @property
    def claims(self) -> Sequence[int]:
        """Descriptors that keep other engines from taking the directories for abandoned."""
        ...

    def plan(self, name: str, limits: ResolvedLimits) -> SandboxCgroup:
        """Return the cgroup of a sandbox, yet to be made."""
        ...

    def find(self, name: str, limits: ResolvedLimits) -> SandboxCgroup:
        """Return the cgroup of a sandbox that was made with these limits."""
        ...

    def remove_all_but(self, names: Collection[str]) -> None:
        """Remove the cgroups of all other sandboxes; their processes have ended, or are about to."""
        ...

    def release(self) -> None:
        """Let go of the directories, which stay."""
        ...

    def remove(self) -> None:
        """Remove the engine's directories."""
        ...


# --- finding out what there is -------------------------------------------------------------------------


def detect(proc: Path = Path("/proc")) -> Layout:
    """Return where this process's controllers are, from /proc/self."""
    return parse_layout((proc / "self/cgroup").read_text(), (proc / "self/mountinfo").read_text())


def parse_layout(membership: str, mountinfo: str) -> Layout:
    """Return the layout that /proc/self/cgroup and /proc/self/mountinfo describe."""
    paths = _parse_membership(membership)
    v1: dict[str, Path] = {}
    v2: Path | None = None
    for line in mountinfo.splitlines():
        fields, _, tail = line.partition(" - ")
        kind, _source, options = ([*tail.split(), "", "", ""])[:3]
        root, mount_point = fields.split()[3:5]
        if kind == "cgroup2" and v2 is None and "" in paths:
            v2 = _below(mount_point, root, paths[""])
        for controller in options.split(",") if kind == "cgroup" else ():
            if controller in paths:
                v1[controller] = _below(mount_point, root, paths[controller])
    return Layout(v1, v2, _v2_controllers(v2))


def _parse_membership(text: str) -> dict[str, str]:
    paths = {}
    for line in text.splitlines():
        _number, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            paths[controller] = path
    return paths


def _below(mount_point: str, root: str, path: str) -> Path:
    """Return the directory of cgroup `path` where the part below `root` is mounted."""
    if root != "/" and (path == root or path.startswith(root + "/")):
        path = path[len(root) :]
    return Path(mount_point, path.lstrip("/"))


def _v2_controllers(own: Path | None) -> frozenset[str]:
    """Return what the engine could use: its place may have more than this process's own cgroup."""
    if own is None:
        return frozenset()
    return frozenset(_read_words((_v2_parent(own) or own) / "cgroup.controllers"))


def can_freeze() -> bool:
    """Return whether this machine has a freezer that this user can write."""
    layout = detect()
    if layout.name == "v2":
        return layout.v2 is not None and _v2_parent(layout.v2) is not None
    directories = [layout.v1.get(controller) for controller in (*NEEDED, "freezer")]
    return all(each is not None and os.access(each, os.W_OK) for each in directories)


def open_tree(name: str, layout: Layout) -> CgroupTree:
    """Return the engine's part with its directories made, or raise `Unavailable` with the reason."""
    tree = find_tree(name, layout)
    tree.make_directories()
    return tree


def find_tree(name: str, layout: Layout) -> CgroupTree:
    """Return the engine's part before its directories are made, or raise `Unavailable` with the reason."""
    version = {layout.version_of(controller) for controller in NEEDED}
    if version == {1}:
        return V1Tree(name, layout)
    if version == {2}:
        return V2Tree(name, layout)
    missing = [controller for controller in NEEDED if layout.version_of(controller) is None]
    raise Unavailable(
        f"cgroup controllers {', '.join(missing) or 'are split and'} not available",
        layout=layout.name,
    )


# --- v1 ------------------------------------------------------------------------------------------------


class V1Tree:
    """One hierarchy per controller."""

    def __init__(self, name: str, layout: Layout) -> None:
        wanted = [controller for controller in (*NEEDED, "freezer") if controller in layout.v1]
        # Controllers that are mounted together share their directory.
        self._directories = {controller: layout.v1[controller] / name for controller in wanted}
        self.controllers = frozenset(wanted)
        self._claims = Claims()
        self._spares = Spares([str(directory) for directory in self.directories])

    def make_directories(self) -> None:
        """Make the engine's own directories."""
        remove_unclaimed(directory.parent for directory in self.directories)
        try:
            for directory in self.directories:
                directory.mkdir(exist_ok=True)
            self._claims.claim(self.directories)
        except OSError as error:
            self.remove()
            raise Unavailable(
                f"cgroup {error.filename} cannot be made: {error.strerror}"
            ) from error

    @property
    def directories(self) -> Sequence[Path]:
        """The engine's own directories."""
        return tuple(dict.fromkeys(self._directories.values()))

    def cap_memory(self, memory_bytes: int) -> None:
        """Limit all sandboxes together."""
        _write(self._directories["memory"] / "memory.limit_in_bytes", str(memory_bytes))

    def admit_zygotes(self, pid: int, uid: int) -> None:
        """Nothing to do: descriptors opened here carry the right."""

    @property
    def claims(self) -> Sequence[int]:
        """Descriptors that keep others from taking the directories for abandoned."""
        return self._claims.fds

    def plan(self, name: str, limits: ResolvedLimits) -> V1Cgroup:
        """Return the cgroup of a sandbox, yet to be made."""
        directories = {each: f"{path}/{name}" for each, path in self._directories.items()}
        return V1Cgroup(name, directories, limits, self._spares)

    def find(self, name: str, limits: ResolvedLimits) -> V1Cgroup:
        """Return the cgroup of a sandbox that was made with these limits."""
        cgroup = self.plan(name, limits)
        cgroup.take_over()
        return cgroup

    def remove_all_but(self, names: Collection[str]) -> None:
        """Remove the cgroups of all other sandboxes."""
        left = [path for each in self.directories for path in _children(each, names)]
        for directory in left:
            # A frozen process does not even die.
            with suppress(OSError):
                _write(directory / "freezer.state", "THAWED")
        _remove_all(left)

    def release(self) -> None:
        """Let go of what stays."""
        self._claims.release()

    def remove(self) -> None:
        """Remove the engine's directories."""
        self._spares.remove()
        self._claims.release()
        _remove_all(self.directories)


class V1Cgroup:
    """A sandbox's directory in each hierarchy; as text, since every create builds a dozen paths."""

    cloned_into = False

    def __init__(
        self, name: str, directories: Mapping[str, str], limits: ResolvedLimits, spares: Spares
    ) -> None:
        self._name = name
        self._directories = directories
        self._distinct = tuple(dict.fromkeys(directories.values()))
        self._limits = limits
        self._spares = spares
        self._made = False
        self._was_frozen = False

    def make(self) -> None:
        """Make it with its limits."""
        if self._made:
            return
        try:
            if not self._spares.take(self._name, self._limits):
                for directory in self._distinct:
                    os.mkdir(directory)
            for controller, settings in _v1_settings(self._limits).items():
                _write_settings(self._directories[controller], settings)
        except OSError as error:
            self.remove()
            raise Unavailable(f"cgroup {error.filename or ''} refused: {error.strerror}") from error
        self._made = True

    def take_over(self) -> None:
        """Go on with what an earlier program made."""
        self._made = True
        self._was_frozen = True  # as far as is known

    @property
    def can_freeze(self) -> bool:
        """Whether there is a freezer."""
        return "freezer" in self._directories

    @property
    def paths(self) -> Mapping[str, str]:
        """Controllers and the name of the directory each process has to be in."""
        return dict.fromkeys(self._directories, self._name)

    def open_entries(self) -> tuple[int, ...]:
        """Return the task lists, to which a process writes itself."""
        with ExitStack() as undo:
            fds = []
            for directory in self._distinct:
                fds.append(os.open(f"{directory}/tasks", os.O_WRONLY | os.O_CLOEXEC))
                undo.callback(os.close, fds[-1])
            undo.pop_all()
        return tuple(fds)

    def events(self) -> Events:
        """Return how often limits were hit."""
        memory = _read_keyed(f"{self._directories['memory']}/memory.oom_control")
        pids = _read_keyed(f"{self._directories['pids']}/pids.events")
        return Events(memory.get("oom_kill", 0), pids.get("max", 0))

    @property
    def is_frozen(self) -> bool:
        """Whether its processes were told to stop in place."""
        return (
            self.can_freeze and _read(f"{self._directories['freezer']}/freezer.state") != "THAWED\n"
        )

    def differences(self) -> Iterator[str]:
        """Yield what of its limits is not as it was made."""
        for controller, settings in _v1_settings(self._limits).items():
            yield from _setting_differences(self._directories[controller], settings)

    def freeze(self, frozen: bool) -> None:
        """Stop all processes, or let them go on."""
        self._was_frozen = True
        state = Path(self._directories["freezer"], "freezer.state")
        wanted = "FROZEN" if frozen else "THAWED"
        state.write_text(wanted)
        deadline = time.monotonic() + _FREEZE_SECONDS
        for attempt in count(1):
            if state.read_text().strip() == wanted:
                return
            if time.monotonic() > deadline:
                state.write_text("THAWED")  # half frozen, nothing in it could even be killed
                raise Unavailable(_NOT_FROZEN)
            time.sleep(0.001)
            if frozen and not attempt % _ASK_AGAIN:
                # A process that was just being made may have missed it; those that sleep are asked anew, too.
                state.write_text("THAWED" if not attempt % (8 * _ASK_AGAIN) else wanted)
                state.write_text(wanted)

    def remove(self) -> None:
        """Remove it, or keep it for another sandbox; its processes have ended."""
        if self._made and self._is_as_new() and self._spares.keep(self._name, self._limits):
            return
        memory = self._directories["memory"]
        # Page cache that is left would keep the memory cgroup alive, out of sight. Emptying takes the kernel longer
        # than making a sandbox, so it is done only if there is something.
        if _read_keyed(f"{memory}/memory.stat").get("cache", 1):
            with suppress(OSError):
                _write(f"{memory}/memory.force_empty", "0")
        _remove_all(self._distinct)

    def _is_as_new(self) -> bool:
        """Whether another sandbox would find no trace: no process, no event, hardly any memory."""
        memory, pids = self._directories["memory"], self._directories["pids"]
        return (
            not self._was_frozen
            and self.events() == Events()
            and _read(f"{pids}/pids.current").strip() == "0"
            and int(_read(f"{memory}/memory.usage_in_bytes") or _MOST_REMAINS + 1) <= _MOST_REMAINS
        )


def _v1_settings(limits: ResolvedLimits) -> dict[str, dict[str, str]]:
    memory = str(limits.memory_bytes)
    return {
        "memory": {"memory.limit_in_bytes": memory, "?memory.memsw.limit_in_bytes": memory},
        "pids": {"pids.max": str(limits.processes)},
        "cpu": {"cpu.cfs_period_us": str(_PERIOD_US), "cpu.cfs_quota_us": str(_quota(limits))},
    }


# --- v2 ------------------------------------------------------------------------------------------------


class V2Tree:
    """The unified hierarchy."""

    def __init__(self, name: str, layout: Layout) -> None:
        parent = None if layout.v2 is None else _v2_parent(layout.v2)
        if parent is None:
            raise Unavailable(
                f"cgroup {layout.v2} and those above it are not this user's to divide"
            )
        self._parent = parent
        self._directory = parent / name
        self._zygotes = self._directory / "zygotes"
        self._claims = Claims()
        self.controllers = frozenset(NEEDED)
        try:
            _share_out(parent)
        except OSError as error:
            raise self._refused(error) from error

    def make_directories(self) -> None:
        """Make the engine's own directory."""
        remove_unclaimed([self._parent])
        try:
            self._directory.mkdir(exist_ok=True)
            self._claims.claim([self._directory])
            _share_out(self._directory)
            self._zygotes.mkdir(exist_ok=True)
        except OSError as error:
            raise self._refused(error) from error

    def _refused(self, error: OSError) -> Unavailable:
        self.remove()
        return Unavailable(f"cgroup {error.filename or self._parent} refused: {error.strerror}")

    @property
    def directories(self) -> Sequence[Path]:
        """The engine's own directory."""
        return (self._directory,)

    def cap_memory(self, memory_bytes: int) -> None:
        """Limit all sandboxes together."""
        _write(self._directory / "memory.max", str(memory_bytes))

    def admit_zygotes(self, pid: int, uid: int) -> None:
        """Move the jail here and let its zygotes clone into sibling directories."""
        _write(self._zygotes / "cgroup.procs", str(pid))
        if uid:
            # Cloning into a cgroup needs the right to write both that one's and the common parent's list.
            os.chown(self._directory / "cgroup.procs", uid, uid)
        self._uid = uid

    @property
    def claims(self) -> Sequence[int]:
        """Descriptors that keep others from taking the directory for abandoned."""
        return self._claims.fds

    def plan(self, name: str, limits: ResolvedLimits) -> V2Cgroup:
        """Return the cgroup of a sandbox, yet to be made."""
        return V2Cgroup(self._directory / name, limits, self._uid)

    def find(self, name: str, limits: ResolvedLimits) -> V2Cgroup:
        """Return the cgroup of a sandbox that was made with these limits."""
        cgroup = self.plan(name, limits)
        cgroup.take_over()
        return cgroup

    def remove_all_but(self, names: Collection[str]) -> None:
        """Remove the cgroups of all other sandboxes."""
        _remove_all(_children(self._directory, {*names, self._zygotes.name}))

    def release(self) -> None:
        """Let go of what stays."""
        self._claims.release()

    def remove(self) -> None:
        """Remove the engine's directory."""
        self._claims.release()
        _remove_all([self._zygotes, self._directory])
        _move_back(self._parent)


class V2Cgroup:
    """A sandbox's directory in the unified hierarchy."""

    cloned_into = True
    can_freeze = True

    def __init__(self, directory: Path, limits: ResolvedLimits, uid: int) -> None:
        self._directory = directory
        self._limits = limits
        self._uid = uid
        self._made = False

    def make(self) -> None:
        """Make it with its limits."""
        if self._made:
            return
        directory = self._directory
        try:
            os.mkdir(directory)
            _write_settings(directory, _v2_settings(self._limits))
            if self._uid:
                os.chown(directory / "cgroup.procs", self._uid, self._uid)
        except OSError as error:
            self.remove()
            raise Unavailable(
                f"cgroup {error.filename or directory} refused: {error.strerror}"
            ) from error
        self._made = True

    def take_over(self) -> None:
        """Go on with what an earlier program made."""
        self._made = True

    @property
    def paths(self) -> Mapping[str, str]:
        """The name of the directory each process has to be in."""
        return {"": self._directory.name}

    def open_entries(self) -> tuple[int, ...]:
        """Return the directory, into which a process is cloned."""
        return (os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC),)

    def events(self) -> Events:
        """Return how often limits were hit."""
        memory = _read_keyed(self._directory / "memory.events")
        pids = _read_keyed(self._directory / "pids.events")
        return Events(memory.get("oom_kill", 0), pids.get("max", 0))

    @property
    def is_frozen(self) -> bool:
        """Whether its processes were told to stop in place."""
        return _read(self._directory / "cgroup.freeze") == "1\n"

    def differences(self) -> Iterator[str]:
        """Yield what of its limits is not as it was made."""
        yield from _setting_differences(self._directory, _v2_settings(self._limits))

    def freeze(self, frozen: bool) -> None:
        """Stop all processes, or let them go on."""
        _write(self._directory / "cgroup.freeze", "1" if frozen else "0")
        deadline = time.monotonic() + _FREEZE_SECONDS
        while _read_keyed(self._directory / "cgroup.events").get("frozen") != int(frozen):
            if time.monotonic() > deadline:
                _write(self._directory / "cgroup.freeze", "0")
                raise Unavailable(_NOT_FROZEN)
            time.sleep(0.001)

    def remove(self) -> None:
        """Remove it; its processes have ended."""
        _remove_all([self._directory])


def _v2_settings(limits: ResolvedLimits) -> dict[str, str]:
    return {
        "memory.max": str(limits.memory_bytes),
        "?memory.swap.max": "0",
        "pids.max": str(limits.processes),
        "cpu.max": f"{_quota(limits)} {_PERIOD_US}",
    }


def _v2_parent(own: Path) -> Path | None:
    """Return the cgroup below which this user can have limits, or None.

    Root takes the topmost, so that limits of its own session do not weigh on sandboxes; others take the
    nearest of those that were delegated to them.
    """
    hierarchy = [own, *own.parents]
    inside = [path for path in hierarchy if (path / "cgroup.controllers").exists()]
    if os.geteuid() == 0:
        inside.reverse()
    return next(filter(_can_share_out, inside), None)


def _can_share_out(directory: Path) -> bool:
    """Whether this user may make cgroups there that have controllers."""
    control, members = directory / "cgroup.subtree_control", directory / "cgroup.procs"
    if not all(os.access(path, os.W_OK) for path in (directory, control, members)):
        return False
    if not set(NEEDED) <= _read_words(directory / "cgroup.controllers"):
        return False
    return (
        _is_top(directory)
        or set(NEEDED) <= _read_words(control)
        # One that holds processes cannot share out. If that is this process alone, it can move aside.
        or (_read_words(members) <= {str(os.getpid())} and directory.name != _ASIDE)
    )


def _is_top(directory: Path) -> bool:
    """Whether it is the kernel's own, which may hold processes and share out nevertheless."""
    return not (directory / "cgroup.type").exists()


def _share_out(directory: Path) -> None:
    """Let cgroups below have controllers."""
    control, process = directory / "cgroup.subtree_control", str(os.getpid())
    if set(NEEDED) <= _read_words(control):
        return
    if not _is_top(directory) and process in _read_words(directory / "cgroup.procs"):
        aside = directory / _ASIDE
        aside.mkdir(exist_ok=True)
        _write(aside / "cgroup.procs", process)
    _write(control, " ".join(f"+{controller}" for controller in NEEDED))


def _move_back(directory: Path) -> None:
    """Leave the cgroup that this process moved out of as it was, unless another engine needs it so."""
    aside, process = directory / _ASIDE, str(os.getpid())
    if process in _read_words(aside / "cgroup.procs"):
        with suppress(OSError):
            # The kernel refuses while anybody below uses them.
            controllers = " ".join(f"-{controller}" for controller in NEEDED)
            _write(directory / "cgroup.subtree_control", controllers)
            _write(directory / "cgroup.procs", process)
            aside.rmdir()


# --- shared ----------------------------------------------------------------------------------------------


def _quota(limits: ResolvedLimits) -> int:
    return max(1000, int(limits.cpus * _PERIOD_US))


def _write_settings(directory: str | Path, settings: Mapping[str, str]) -> None:
    for name, value in settings.items():
        try:
            _write(f"{directory}/{name.lstrip('?')}", value)
        except FileNotFoundError:
            # A question mark: not every kernel accounts for swap.
            if not name.startswith("?"):
                raise


def _setting_differences(directory: str | Path, settings: Mapping[str, str]) -> Iterator[str]:
    for name, value in settings.items():
        found = _read(f"{directory}/{name.lstrip('?')}").split()
        is_missing = name.startswith("?") and not found
        if found != _as_read(name, value).split() and not is_missing:
            yield f"{name.lstrip('?')} is {' '.join(found)}, not {value}"


def _as_read(name: str, value: str) -> str:
    # The kernel counts memory in pages.
    return str(int(value) // _PAGE * _PAGE) if "memory" in name else value


def _children(directory: Path, but: Collection[str]) -> list[Path]:
    with suppress(FileNotFoundError):
        return [path for path in directory.iterdir() if path.is_dir() and path.name not in but]
    return []


def _write(path: str | Path, value: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, value.encode())
    except OSError as error:
        error.filename = str(path)
        raise
    finally:
        os.close(fd)


def _read_words(path: Path) -> set[str]:
    try:
        return set(path.read_text().split())
    except OSError:
        return set()


def _read(path: str | Path) -> str:
    """Return one of the kernel's short files; nothing if it cannot be read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        return os.read(fd, _MOST_TEXT).decode()
    finally:
        os.close(fd)


def _read_keyed(path: str | Path) -> dict[str, int]:
    pairs = (line.split() for line in _read(path).splitlines())
    return {key: int(value) for key, value in pairs if value.isdigit()}


def _remove_all(directories: Iterable[str | Path]) -> None:
    """Remove directories; the kernel may need a moment after the last process."""
    deadline = time.monotonic() + _REMOVE_SECONDS
    for directory in directories:
        while True:
            try:
                os.rmdir(directory)
                break
            except FileNotFoundError:
                break
            except OSError as error:
                if time.monotonic() > deadline:
                    raise Unavailable(
                        f"cgroup {directory} cannot be removed: {error.strerror}"
                    ) from error
                time.sleep(0.001)
