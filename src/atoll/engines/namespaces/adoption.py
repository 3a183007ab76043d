"""Takes over what an earlier program left of a sandbox, or clears it away; strangers are never touched."""

from __future__ import annotations

import os
import signal
import socket
from contextlib import suppress
from dataclasses import dataclass

from atoll.engines.cgroups.contract import SandboxCgroup
from atoll.engines.namespaces.boot import (
    Booted,
    is_over,
    kill_and_wait,
    receive_hello,
)
from atoll.engines.namespaces.lasting_keeper import Kept
from atoll.engines.namespaces.origins import is_sandbox_of, pid_of
from atoll.engines.namespaces.parts import Parts
from atoll.engines.namespaces.shelf import InitNote, Leftover, parse_init_note
from atoll.errors import NotFound, Unavailable
from atoll.model.ids import SandboxId, first_kernel_id
from atoll.model.limits import Limits

# How long a sandbox that was being made may take until it is ready.
_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class LeftInit:
    """The init of a sandbox, as an earlier program has kept it."""

    init: socket.socket
    pidfd: int
    note: InitNote

    def close(self) -> None:
        """Let go of it."""
        self.init.close()
        os.close(self.pidfd)

    def is_alive(self) -> bool:
        """Whether it has not ended."""
        return not is_over(self.pidfd)

    def is_stranger(self) -> bool:
        """Whether it is somebody else than a sandbox of its jail's, who runs."""
        pid = pid_of(self.pidfd)
        return not (pid and is_sandbox_of(pid, self.note.jail_pid)) and self.is_alive()

    def boot(self) -> Booted:
        """Return it as one that has said hello.

        Raises:
            NotFound: it was never finished.
        """
        self.init.settimeout(_SECONDS)
        try:
            hello = receive_hello(self.init)
        except Unavailable:
            hello = None
        if hello is None:
            raise NotFound("the sandbox was never finished; create a new one")
        return Booted(self.init, pid_of(self.pidfd), self.pidfd, hello)

    def end(self, cgroup: SandboxCgroup | None) -> None:
        """Kill it and wait until every process is gone."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
        if cgroup is not None and cgroup.can_freeze:
            with suppress(OSError):  # it is gone
                # A frozen process of the older cgroups does not even die.
                cgroup.freeze(False)
        kill_and_wait(self.pidfd)


def take_init(leftover: Leftover, sandbox_id: SandboxId) -> LeftInit | None:
    """Return the init of a sandbox that was left, if it got so far."""
    kept = leftover.take("init")
    if kept is None:
        return None
    init, pidfd, *kernel = kept.fds
    note, kinds = parse_init_note(kept.note)
    if kernel:
        slot = f"{first_kernel_id(sandbox_id)}/plumbing"
        leftover.put(slot, Kept(kernel, kinds, is_whole=True))
    return LeftInit(socket.socket(fileno=init), pidfd, note)


def take_leftover(parts: Parts, sandbox_id: SandboxId) -> Leftover:
    """Return what was left of a sandbox; only one caller gets it."""
    leftover = parts.leftovers.pop(sandbox_id, None)
    if leftover is None:
        raise NotFound(f"there is no sandbox {sandbox_id} to take over", sandbox=sandbox_id)
    return leftover


def discard(parts: Parts, sandbox_id: SandboxId) -> None:
    """End what was left of a sandbox and remove all of it.

    Raises:
        NotFound: nothing was left of it.
    """
    leftover = take_leftover(parts, sandbox_id)
    init = take_init(leftover, sandbox_id)
    leftover.close()
    clear_away(parts, sandbox_id, init)


def clear_away(parts: Parts, sandbox_id: SandboxId, init: LeftInit | None) -> None:
    """End a sandbox whose init is known, and remove what there is of it; a stranger's process is left alone."""
    tree = parts.tree
    cgroup = None if tree is None else tree.find(sandbox_id, Limits().resolve())
    if init is not None:
        if not init.is_stranger():
            init.end(cgroup)
            if parts.ids is not None:
                parts.ids.give_back(init.note.host_id)
        init.close()
    parts.shelf(sandbox_id).clear()
    if cgroup is not None:
        cgroup.remove()
