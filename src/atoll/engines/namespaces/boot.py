"""Boots one sandbox: the host's half of the conversation with the child that becomes its init."""

from __future__ import annotations

import os
import select
import signal
import socket
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import TypeVar

from atoll.engines.cgroups.contract import SandboxCgroup
from atoll.engines.namespaces import channel
from atoll.engines.namespaces.attest import Expected, Place, attest_process
from atoll.engines.namespaces.limits import data_bytes
from atoll.engines.namespaces.memory_guard import FIRST_RANK
from atoll.engines.namespaces.origins import pid_of
from atoll.engines.namespaces.plumbing import Plumbing, open_kernel_plumbing
from atoll.engines.namespaces.shelf import Shelf
from atoll.engines.namespaces.wire import VERSION, InitHello, SpawnFlag, SpawnRequest
from atoll.engines.namespaces.zygotes import Jail, ZygoteEnded
from atoll.errors import Unavailable
from atoll.model.file import WORKSPACE
from atoll.model.limits import ResolvedLimits
from atoll.model.sandbox import NETWORK_FILES, UNPRIVILEGED_PORT, SandboxSpec

_SECONDS = 10.0
_INNER_ID = 65532
# High, so that a host short of memory ends sandboxes before anything else.
_OOM_SCORE = 300
_HIGHEST_OOM_SCORE = 1000
_CREDENTIALS = struct.Struct("3i")
_CREDENTIALS_ROOM = socket.CMSG_SPACE(_CREDENTIALS.size)

Seen = TypeVar("Seen")


@dataclass(frozen=True, slots=True)
class Birth:
    """How a sandbox was made, which is how its later kernels are made."""

    spec: SandboxSpec
    limits: ResolvedLimits
    host_id: int
    cgroup: SandboxCgroup | None
    expected: Expected
    shelf: Shelf


@dataclass(frozen=True, slots=True)
class Booted:
    """A sandbox that is set up and has said hello."""

    init: socket.socket
    pid: int
    pidfd: int
    hello: InitHello

    def end(self) -> None:
        """Kill it, wait until every process is gone, and let go."""
        try:
            kill_and_wait(self.pidfd)
        finally:
            self.init.close()
            os.close(self.pidfd)


def spawn_request(
    spec: SandboxSpec, resolved: ResolvedLimits, cgroup: SandboxCgroup | None, *, rootless: bool
) -> SpawnRequest:
    """Return what the zygote is told about a sandbox."""
    flags = SpawnFlag.SELF_MAP | SpawnFlag.RAISE_OOM_SCORE if rootless else 0
    if cgroup is not None and cgroup.cloned_into:
        flags |= SpawnFlag.CGROUP_INTO
    targets = [(mount.target, not mount.read_only) for mount in spec.mounts]
    if spec.workspace is not None:
        targets.insert(0, (WORKSPACE, True))
    if spec.network_files is not None:
        targets.append((NETWORK_FILES, False))
    if spec.lowest_port < UNPRIVILEGED_PORT:
        flags |= SpawnFlag.LOW_PORTS
    request = SpawnRequest(
        version=VERSION,
        flags=flags,
        outer_uid=os.geteuid(),
        outer_gid=os.getegid(),
        mounts=len(targets),
        inodes=resolved.inodes,
        open_files=resolved.open_files,
        file_bytes=resolved.file_bytes,
        workspace_bytes=0 if spec.workspace is not None else resolved.workspace_bytes,
        tmp_bytes=resolved.tmp_bytes,
        home_bytes=resolved.home_bytes,
        shm_bytes=resolved.shm_bytes,
        hostname=spec.hostname.encode(),
    )
    if cgroup is None:
        request.processes = resolved.processes
        request.data_bytes = data_bytes(resolved, spec.template)
    for slot, (target, writable) in zip(request.mount, targets, strict=False):
        slot.path, slot.writable = os.fsencode(target), writable
    return request


def boot(
    jail: Jail,
    request: SpawnRequest,
    fds: Sequence[int],
    *,
    host_id: int,
    cgroup: SandboxCgroup | None,
    keep: Callable[[int, int], None],
    look: Callable[[Booted], Seen],
) -> tuple[Booted, Seen]:
    """Make a sandbox; `host_id` is the id it runs as, or 0 if it maps itself to this user.

    `keep` gets its init's socket and pidfd before it is told to go on.

    `look` looks at its init while the zygote is still busy with its kernel.
    """
    try:
        return _boot(jail, request, fds, host_id, cgroup, keep, look)
    except ZygoteEnded:
        # Somebody killed it, before it got the request or half-way; what it had begun is gone.
        return _boot(jail, request, fds, host_id, cgroup, keep, look)


@contextmanager
def _entries(cgroup: SandboxCgroup | None) -> Iterator[Sequence[int]]:
    """Make the cgroup if need be, and give the descriptors by which a process enters."""
    if cgroup is None:
        yield ()
        return
    cgroup.make()
    fds = cgroup.open_entries()
    try:
        yield fds
    finally:
        channel.close_all(fds)


def _boot(
    jail: Jail,
    request: SpawnRequest,
    fds: Sequence[int],
    host_id: int,
    cgroup: SandboxCgroup | None,
    keep: Callable[[int, int], None],
    look: Callable[[Booted], Seen],
) -> tuple[Booted, Seen]:
    # A cgroup that is entered can be made while the kernel makes namespaces, which takes as long.
    born_in = cgroup if cgroup is not None and cgroup.cloned_into else None
    entered = cgroup if born_in is None else None
    ours, theirs = channel.socket_pair()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    ours.settimeout(_SECONDS)
    with ExitStack() as undo:
        undo.callback(ours.close)
        with theirs, _entries(born_in) as entries:
            request.cgroup_fds = len(entries)
            pending = jail.spawn(request, [theirs.fileno(), *entries, *fds])
        # Undone from below: the child gives up when its socket ends, and only then can the zygote answer.
        undo.callback(pending.abandon)
        undo.callback(ours.close)
        with _entries(entered) as entries:
            pid = _receive_pid(ours)
            # A child that is gone by now failed at a step, which the zygote names next.
            with suppress(FileNotFoundError, ProcessLookupError, ConnectionError):
                if pid:
                    pidfd = os.pidfd_open(pid)
                    undo.callback(os.close, pidfd)
                    undo.callback(kill_and_wait, pidfd)
                    if host_id:
                        _identify(pid, pidfd, host_id)
                    keep(ours.fileno(), pidfd)
                    channel.send(ours, b"g", entries)
        hello = receive_hello(ours)
        if hello is None:
            pending.finish()
            raise Unavailable("a new sandbox ended before it said hello; try again")
        booted = Booted(ours, pid, pidfd, hello)
        seen = look(booted)
        pending.finish()
        undo.pop_all()
    return booted, seen


def join_kernel(
    jail: Jail, birth: Birth, pidfd: int, place: Place | None, shelf: Shelf, *, rootless: bool
) -> Plumbing:
    """Fork a kernel into a sandbox that exists, attested before it is returned."""
    plumbing, fds = open_kernel_plumbing()
    with ExitStack() as undo:
        undo.callback(shelf.clear)
        undo.callback(plumbing.close)
        shelf.keep("plumbing", *plumbing.to_keep())
        with ExitStack() as handed_over:
            handed_over.callback(channel.close_all, fds)
            entries = handed_over.enter_context(_entries(birth.cgroup))
            request = spawn_request(birth.spec, birth.limits, birth.cgroup, rootless=rootless)
            request.cgroup_fds = len(entries)
            request.flags |= SpawnFlag.KERNEL | SpawnFlag.JOIN
            _spawn(jail, request, [pidfd, *entries, *fds])
        assert plumbing.channel is not None
        pid = receive_kernel_pid(plumbing.channel)
        if birth.host_id:
            raise_oom_score(pid)
        if place is not None:
            attest_process(pid, birth.expected, place)
        undo.pop_all()
    return plumbing


def _spawn(jail: Jail, request: SpawnRequest, fds: Sequence[int]) -> None:
    try:
        jail.spawn(request, fds).finish()
    except ZygoteEnded:
        jail.spawn(request, fds).finish()


def receive_kernel_pid(kernel_channel: socket.socket) -> int:
    """Wait for a kernel's first word and return its pid; the word stays to be read."""
    kernel_channel.settimeout(_SECONDS)
    try:
        data, ancillary, *_ = kernel_channel.recvmsg(1, _CREDENTIALS_ROOM, socket.MSG_PEEK)
    except OSError as error:
        raise Unavailable(f"a new kernel did not say hello: {error}; try again") from error
    kernel_channel.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 0)
    kernel_channel.setblocking(False)
    pid = _vouched_pid(ancillary) if data else 0
    if not pid:
        raise Unavailable("a new kernel ended before it said hello; try again")
    return pid


def raise_oom_score(pid: int) -> None:
    """Offer a process to the kernel's out-of-memory killer before anything of the host's."""
    _write(f"/proc/{pid}/oom_score_adj", str(_OOM_SCORE))


def offer_init(pidfd: int, rank: int) -> None:
    """Offer a sandbox's init, and with it all of the sandbox, to the out-of-memory killer before those of a lower rank."""
    value = _OOM_SCORE + (_HIGHEST_OOM_SCORE - _OOM_SCORE) * rank // FIRST_RANK
    with suppress(OSError):
        score = os.open(f"/proc/{pid_of(pidfd)}/oom_score_adj", os.O_WRONLY | os.O_CLOEXEC)
        try:
            # It still lives, so its number was nobody else's when this was opened.
            if not is_over(pidfd):
                os.write(score, str(value).encode())
        finally:
            os.close(score)


def kill(pidfd: int) -> None:
    """Kill a sandbox's init, and with it all its processes."""
    with suppress(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)


def kill_and_wait(pidfd: int) -> None:
    """Kill a sandbox's init, and with it all its processes; return when they are gone."""
    kill(pidfd)
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    if not poll.poll(_SECONDS * 1000):
        raise Unavailable(
            f"processes of a sandbox did not end within {_SECONDS:g} s of being killed"
        )


def is_over(pidfd: int, seconds: float = 0.0) -> bool:
    """Return whether the process has ended, or does within so many seconds."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(seconds * 1000))


def _receive_pid(boot_socket: socket.socket) -> int:
    """Return the child's pid as the kernel vouches for it, or 0 if the child failed before its hello."""
    try:
        data, ancillary, *_ = boot_socket.recvmsg(1, _CREDENTIALS_ROOM)
    except TimeoutError as error:
        raise Unavailable("a new sandbox did not say hello in time; try again") from error
    boot_socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 0)
    return _vouched_pid(ancillary) if data else 0


def _vouched_pid(ancillary: Sequence[tuple[int, int, bytes]]) -> int:
    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS:
            return int(_CREDENTIALS.unpack(content)[0])
    return 0


def _identify(pid: int, pidfd: int, host_id: int) -> None:
    """Give the child its id outside; only root can, for an id that is not its own."""
    try:
        for name in ("uid_map", "gid_map"):
            _write(f"/proc/{pid}/{name}", f"{_INNER_ID} {host_id} 1")
        raise_oom_score(pid)
    except OSError as error:
        # One that is gone has several names in there.
        if is_over(pidfd):
            raise ProcessLookupError from error
        raise Unavailable(f"a new sandbox could not be given its id: {error.strerror}") from error


def _write(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def receive_hello(boot_socket: socket.socket) -> InitHello | None:
    """Return what init says of itself; None if the child failed before it was init.

    It stays to be read by whoever takes the sandbox over; init says nothing else on this socket.
    """
    try:
        return channel.receive_only(boot_socket, InitHello, socket.MSG_PEEK)
    except OSError as error:
        raise Unavailable(f"a new sandbox did not start: {error.strerror}; try again") from error
