"""A namespaces sandbox: its init, its cgroup, its id, its workspace."""

from __future__ import annotations

import os
import posixpath
import signal
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from functools import partial

import anyio
import anyio.lowlevel
import anyio.to_thread

from atoll.engines.cgroups.contract import Events, SandboxCgroup
from atoll.engines.inside.commands import payload
from atoll.engines.inside.wire import SupervisorOp, SupervisorRequest
from atoll.engines.namespaces import channel
from atoll.engines.namespaces.attest import Place
from atoll.engines.namespaces.boot import (
    Birth,
    Booted,
    is_over,
    join_kernel,
    kill,
    kill_and_wait,
    offer_init,
)
from atoll.engines.namespaces.drains import Drains
from atoll.engines.namespaces.plumbing import (
    Plumbing,
    open_plumbing,
    restore_plumbing,
)
from atoll.engines.namespaces.ports import Ports
from atoll.engines.namespaces.process import KERNEL, NamespaceProcess
from atoll.engines.namespaces.refusals import our_errors
from atoll.engines.namespaces.shelf import InitNote, Leftover
from atoll.engines.namespaces.wire import InitOp, InitRequest
from atoll.engines.namespaces.workspace import NamespaceWorkspace
from atoll.engines.namespaces.zygotes import Jail
from atoll.errors import Conflict, InvalidRequest, LimitExceeded, NotFound, Unavailable, Unsupported
from atoll.model.file import WORKSPACE
from atoll.model.ids import ProcessId, SandboxId, first_kernel_id, new_process_id
from atoll.model.limits import LimitsInfo
from atoll.model.process import Command, EndReason, ProcessEnd
from atoll.model.sandbox import SandboxInfo, SandboxState

_SECONDS = 10.0
_START_SECONDS = 30.0
_USERS = (None, "sandbox", "65532")


class NamespaceSandbox:
    """The isolated place that a caller owns, made of namespaces."""

    def __init__(
        self,
        birth: Birth,
        limits: LimitsInfo,
        *,
        booted: Booted,
        place: Place | None,
        jail: Jail,
        drains: Drains,
        forget: Callable[[NamespaceSandbox], None],
        leftover: Leftover | None = None,
    ) -> None:
        booted.init.setblocking(False)
        self._birth = birth
        self._spec = birth.spec
        self._shelf = birth.shelf
        self._leftover = leftover or Leftover()
        self._place = place
        self._jail = jail
        self._limits = limits
        self._init = booted.init
        self._pidfd = booted.pidfd
        self._env = {**jail.template.env, **birth.spec.env}
        self._cgroup = birth.cgroup
        self._ready_kernels: list[Plumbing] = []
        self._drains = drains
        self._resources = ExitStack()
        self._forget = forget
        self._was_lost = False  # before it was destroyed
        self._ended_for_memory = False
        self._kills_when_offered: int | None = None  # to the kernel, should all run out of memory
        self._state = SandboxState.RUNNING
        self._processes: set[NamespaceProcess] = set()
        self._seen = Events()
        self._kills_by_watchdog = 0
        self._guard = threading.Lock()
        self._is_used_at_home = False
        self._gone = threading.Event()
        self._ending = anyio.Lock()
        self._freezing = anyio.Lock()
        self._may_be_frozen = False
        self._calls: set[anyio.CancelScope] = set()
        self._waiting = anyio.Lock()
        self._workspace = NamespaceWorkspace(self, limits.limits.file_bytes)
        self._ports = Ports(self, birth.spec.lowest_port)

    @property
    def id(self) -> SandboxId:
        """The sandbox's id."""
        return self._spec.id

    @property
    def info(self) -> SandboxInfo:
        """Facts at this moment."""
        if self._state in (SandboxState.RUNNING, SandboxState.PAUSED) and self._has_ended():
            self._state = SandboxState.LOST
            # Now, while its cgroup is there to tell.
            self._ended_for_memory = self._ended_for_memory or self._was_taken()
        return SandboxInfo(
            self.id,
            "namespaces",
            self._spec.template,
            self._state,
            self._limits,
            reason=self._why_lost() if self._state is SandboxState.LOST else "",
        )

    def _why_lost(self) -> str:
        if self._ended_for_memory:
            return "it had the most when all sandboxes together ran out of memory"
        return "its keeper was killed" if self._shelf.is_gone else ""

    @property
    def workspace(self) -> NamespaceWorkspace:
        """The sandbox's files."""
        return self._workspace

    def own(self, resources: ExitStack) -> None:
        """Take over what has to be released at the end."""
        self._resources = resources

    def restore(self) -> None:
        """Go on from what an earlier program has left."""
        offer_init(self._pidfd, 0)
        if self._cgroup is not None and self._cgroup.is_frozen:
            self._state, self._may_be_frozen = SandboxState.PAUSED, True
        seen = self._leftover.take("seen")
        if seen is not None:
            self._seen = Events(*map(int, seen.note.split()))
        for kept in self._leftover.take_all("drains"):
            self._drains.add(kept.fds)

    async def start(
        self, command: Command, process_id: ProcessId | None = None
    ) -> NamespaceProcess:
        """Start a process."""
        await anyio.lowlevel.checkpoint_if_cancelled()
        if not isinstance(command, Command):
            raise InvalidRequest(f"a sandbox starts a Command, not {type(command).__name__}")
        self._check_running()
        if command.user not in _USERS:
            raise Unsupported(
                f"the namespaces engine runs everything as user 'sandbox', not {command.user!r}: processes here hold"
                " no privileges that another name could stand for; use a container engine for root"
            )
        process = self._launch(command, process_id or new_process_id())
        await self._await_start(process)
        return process

    async def _await_start(self, process: NamespaceProcess) -> None:
        try:
            with anyio.fail_after(_START_SECONDS):
                await process.started()
        except BaseException as error:
            # A start that is given up leaves nothing running: the supervisor sees its socket end.
            process.release()
            if isinstance(error, TimeoutError):
                # Whoever stops supervisors from inside goes, too; else nothing could be started any more.
                self.kill_everything()
                raise Unavailable(
                    f"the process did not start within {_START_SECONDS:g} s; everything in the sandbox was killed"
                ) from error
            if isinstance(error, anyio.ClosedResourceError | ConnectionError):
                raise self.ended_error() from error
            raise

    async def find_process(self, process_id: ProcessId, command: Command) -> NamespaceProcess:
        """Return a process that an earlier program started here."""
        started, end = (self._leftover.look(f"{process_id}/{slot}") for slot in ("started", "end"))
        if started is None and end is None:
            self._check_running()  # it has yet to be waited for
        process = self._restore_process(process_id, command)
        if end is None:
            try:
                await self._await_start(process)
            except Conflict as error:
                raise NotFound(
                    f"process {process_id} ended before it ran", process=process_id
                ) from error
        return process

    async def find_kernel(self, process_id: ProcessId) -> NamespaceProcess:
        """Return a kernel that an earlier program opened here."""
        return self._restore_process(process_id, KERNEL)

    def _restore_process(self, process_id: ProcessId, command: Command) -> NamespaceProcess:
        self._use_at_home()
        slots = (f"{process_id}/{name}" for name in ("plumbing", "stdin", "started", "end"))
        plumbing, stdin, started, end = map(self._leftover.take, slots)
        if plumbing is None or (command is KERNEL and started is None):
            for each in (plumbing, stdin, started, end):
                if each is not None:
                    each.close()
            # This ends it: a kernel that was not looked at is nobody's to use.
            self._forget_kept(process_id)
            raise NotFound(f"there is no process {process_id} here", process=process_id)
        process = NamespaceProcess(
            command,
            restore_plumbing(plumbing, stdin),
            self,
            process_id,
            self._shelf.below(process_id),
        )
        process.restore(started, end)
        self._processes.add(process)
        return process

    def _forget_kept(self, process_id: ProcessId) -> None:
        self._shelf.below(process_id).clear()
        if process_id == first_kernel_id(self.id):
            # It was kept together with init.
            note = InitNote(self._birth.host_id, self._jail.pid)
            self._shelf.keep_init(note, [self._init.fileno(), self._pidfd], None)

    def keep(self, slot: str, fds: Sequence[int]) -> None:
        """Have descriptors kept for whoever takes the sandbox over."""
        if not self._shelf.lasts:
            raise Unsupported("sandboxes of this engine end with the program that made them")
        if fds:
            self._shelf.keep(f"kept/{slot}", fds)
        else:
            self._shelf.forget(f"kept/{slot}")

    def kept(self, slot: str) -> Sequence[int]:
        """Return descriptors that an earlier program has had kept, once."""
        kept = self._leftover.take(f"kept/{slot}")
        return () if kept is None else kept.fds

    @property
    def warm_language(self) -> str | None:
        """The language of its zygote."""
        return self._jail.template.language

    @property
    def image_command(self) -> Sequence[str]:
        """None: there is no image."""
        return ()

    def keep_kernel(self, plumbing: Plumbing) -> None:
        """Keep a kernel that was made together with the sandbox for the first who asks."""
        self._ready_kernels.append(plumbing)

    async def fork_kernel(self, process_id: ProcessId | None = None) -> NamespaceProcess:
        """Fork a kernel from the template's warm interpreter."""
        await anyio.lowlevel.checkpoint_if_cancelled()
        self._check_running()
        if self.warm_language is None:
            raise Unsupported(
                f"template {self._spec.template!r} has no interpreter to fork kernels from; create the sandbox"
                " with template='python'"
            )
        process_id = process_id or new_process_id()
        return self._kernel_process(await self._join_kernel(process_id), process_id)

    async def start_kernel(
        self, command: Command, process_id: ProcessId | None = None
    ) -> NamespaceProcess:
        """Start a program that becomes a kernel."""
        await anyio.lowlevel.checkpoint_if_cancelled()
        self._check_running()
        process = self._launch(command, process_id or new_process_id(), with_channel=True)
        await self._await_start(process)
        return process

    def take_kernel(self) -> NamespaceProcess | None:
        """Return the kernel that was made together with the sandbox, once."""
        self._check_state()
        if not self._ready_kernels:
            return None
        return self._kernel_process(self._ready_kernels.pop(), first_kernel_id(self.id))

    def _kernel_process(self, plumbing: Plumbing, process_id: ProcessId) -> NamespaceProcess:
        shelf = self._shelf.below(process_id)
        process = NamespaceProcess(KERNEL, plumbing, self, process_id, shelf)
        process.note_attested()
        self._processes.add(process)
        return process

    async def _join_kernel(self, process_id: ProcessId) -> Plumbing:
        join = partial(
            join_kernel,
            self._jail,
            self._birth,
            self._pidfd,
            self._place,
            self._shelf.below(process_id),
            rootless=os.geteuid() != 0,
        )
        with self.call():
            return await anyio.to_thread.run_sync(join)

    def _launch(
        self, command: Command, process_id: ProcessId, *, with_channel: bool = False
    ) -> NamespaceProcess:
        # Checked as a whole: the sandbox's variables count, too.
        whole = replace(command, env={**self._env, **command.env})
        directory = posixpath.join(WORKSPACE, command.cwd)
        with our_errors(), ExitStack() as given:
            memory = channel.sealed_memory("command", payload(whole, directory))
            given.callback(os.close, memory)
            plumbing, control, streams = open_plumbing(command, with_channel=with_channel)
            given.callback(channel.close_all, streams)
            given.callback(control.close)
            shelf = self._shelf.below(process_id)
            try:
                shelf.keep("plumbing", *plumbing.to_keep())
                if plumbing.stdin is not None:
                    shelf.keep("stdin", [plumbing.stdin])
                # It finds the word to go when it gets there: there is no moment at which it waits for somebody
                # who may be killed meanwhile.
                channel.send(plumbing.control, SupervisorRequest(op=SupervisorOp.GO))
                self._ask_init(InitOp.RUN, [control.fileno(), memory, *streams])
            except BaseException:
                shelf.clear()
                plumbing.close()
                raise
        process = NamespaceProcess(command, plumbing, self, process_id, shelf)
        self._processes.add(process)
        return process

    async def connect(self, port: int) -> socket.socket:
        """Return a stream connected to a port on the sandbox's own loopback."""
        return await self._ports.connect(port)

    async def listen(self, port: int, address: str = "127.0.0.1") -> socket.socket:
        """Return a socket that listens on the sandbox's own loopback."""
        return await self._ports.listen(port, address)

    async def clean(self) -> None:
        """A new one is as quick."""
        raise Unsupported(
            "engine 'namespaces' makes a new sandbox in milliseconds rather than cleaning one; create another one"
        )

    async def pause(self) -> None:
        """Stop every process in place."""
        self._use_at_home()
        async with self._freezing:
            if self.info.state is SandboxState.PAUSED:
                return
            self._check_running()
            self._may_be_frozen = True
            await anyio.to_thread.run_sync(self._freezer().freeze, True)
            self._go_over(SandboxState.RUNNING, SandboxState.PAUSED)

    async def resume(self) -> None:
        """Let every process go on."""
        self._use_at_home()
        async with self._freezing:
            if self.info.state is SandboxState.PAUSED:
                await anyio.to_thread.run_sync(self._freezer().freeze, False)
                self._go_over(SandboxState.PAUSED, SandboxState.RUNNING)
            self._check_running()
            self._freezer()

    def _go_over(self, before: SandboxState, after: SandboxState) -> None:
        """Take another state; raises why not if it was destroyed meanwhile, which nothing may undo."""
        with self._guard:
            if self._state is before:
                self._state = after
                return
        raise self.ended_error()

    @asynccontextmanager
    async def awake(self) -> AsyncIterator[None]:
        """Let a paused sandbox run for a moment."""
        self._use_at_home()
        async with self._freezing:
            if self._state is not SandboxState.PAUSED or self._cgroup is None:
                yield
                return
            await anyio.to_thread.run_sync(self._cgroup.freeze, False)
            try:
                yield
            finally:
                if self._state is SandboxState.PAUSED:
                    with anyio.CancelScope(shield=True):
                        await anyio.to_thread.run_sync(self._cgroup.freeze, True)

    def _freezer(self) -> SandboxCgroup:
        if self._cgroup is None or not self._cgroup.can_freeze:
            raise Unsupported(
                "pausing needs a cgroup, and none is writable for this user; run `atoll doctor`"
            )
        return self._cgroup

    async def stop(self) -> None:
        """Nothing is kept of one that ends but its workspace."""
        raise Unsupported(
            "engine 'namespaces' destroys a sandbox that is stopped, and makes it anew"
        )

    async def wait_ended(self) -> None:
        """Return once the sandbox is destroyed or lost."""
        if self._use_at_home():
            await self._wait_gone()

    async def _wait_gone(self) -> None:
        # One task at a time may wait for a descriptor; the next looks for itself.
        async with self._waiting:
            while not is_over(self._pidfd):
                with suppress(anyio.ClosedResourceError):
                    await anyio.wait_readable(self._pidfd)

    async def destroy(self) -> None:
        """End every process, abort running calls and remove everything."""
        with anyio.CancelScope(shield=True):
            async with self._ending:
                if self._use_at_home():
                    self._was_lost = self.info.state is SandboxState.LOST
                    with self._guard:
                        self._state = SandboxState.DESTROYED
                    for call in list(self._calls):
                        call.cancel()
                    await self._kill()
                    # Whoever reads or waits notices the end before its descriptors go.
                    await anyio.lowlevel.checkpoint()
                    self._release()
                    anyio.notify_closing(self._pidfd)
                    await anyio.to_thread.run_sync(self._remove)
                elif not self._gone.is_set():
                    await anyio.to_thread.run_sync(self._gone.wait)

    def destroy_here(self) -> bool:
        """Destroy it in this thread, if the event loop has nothing to do with it."""
        with self._guard:
            if self._is_used_at_home:
                return False
            self._is_used_at_home, self._state = True, SandboxState.DESTROYED
        with our_errors():
            kill(self._pidfd)
            # While they die: nobody here waits for anything of theirs.
            self._release()
            kill_and_wait(self._pidfd)
            self._remove()
        return True

    def leave(self) -> None:
        """Let go without ending anything; the keeper holds what the next program needs."""
        self._use_at_home()
        with self._guard:
            self._state = SandboxState.DESTROYED  # as far as this program is concerned
        for call in list(self._calls):
            call.cancel()
        self._release()
        anyio.notify_closing(self._pidfd)
        self._init.close()
        os.close(self._pidfd)
        self._gone.set()

    def _use_at_home(self) -> bool:
        """Have it ended in the event loop from now on; return False if that was done elsewhere."""
        with self._guard:
            self._is_used_at_home = True
            return self._state is not SandboxState.DESTROYED

    def _remove(self) -> None:
        try:
            self._resources.close()
        finally:
            self._forget(self)
            self._gone.set()

    async def _kill(self) -> None:
        kill(self._pidfd)
        with anyio.move_on_after(_SECONDS):
            if self._may_be_frozen and self._cgroup is not None:
                # A frozen process of the older cgroups does not even die; and somebody may be about to freeze it.
                async with self._freezing:
                    # What cannot be thawed is told by its cgroup, which cannot be removed then.
                    with suppress(OSError, Unavailable):
                        await anyio.to_thread.run_sync(self._cgroup.freeze, False)
            await self._wait_gone()

    def _release(self) -> None:
        for process in list(self._processes):
            process.release()
        for plumbing in self._ready_kernels:
            plumbing.close()
        self._leftover.close()
        self._workspace.close()

    def note_watchdog_kill(self) -> None:
        """Remember that the next process to die was killed for its memory."""
        self._kills_by_watchdog += 1

    def note_size(self, is_full: bool, is_growing: bool) -> None:
        """Take note of what the watch has seen of a workspace that is kept in a folder."""
        self._workspace.is_full = is_full
        if is_growing:
            self.kill_everything()

    def explain(self, end: ProcessEnd) -> ProcessEnd:
        """Tell deaths apart by what the limits have counted since the last one."""
        if end.reason is EndReason.LOST and self._ended_for_memory:
            return replace(end, reason=EndReason.OUT_OF_MEMORY)
        if end.exit_code == 0 or self._state is SandboxState.DESTROYED:
            destroyed = end.reason is EndReason.LOST and not self._was_lost
            return replace(end, reason=EndReason.KILLED) if destroyed else end
        now = self._cgroup.events() if self._cgroup is not None else Events(self._kills_by_watchdog)
        seen, self._seen = self._seen, now
        if now != seen:
            self._shelf.keep("seen", note=f"{now.out_of_memory} {now.too_many_processes}")
        killed = end.signal == signal.SIGKILL or end.exit_code == 128 + signal.SIGKILL
        if killed and now.out_of_memory > seen.out_of_memory and end.reason is not EndReason.KILLED:
            return replace(end, reason=EndReason.OUT_OF_MEMORY)
        if now.too_many_processes > seen.too_many_processes and end.reason is EndReason.EXITED:
            return replace(end, reason=EndReason.TOO_MANY_PROCESSES)
        # A jail that ends takes its sandboxes along; whoever goes first in there, the jail's socket went before.
        if end.reason is EndReason.LOST and not (self._has_ended() or self._jail.is_gone):
            return replace(end, reason=EndReason.KILLED)
        return end

    def used_bytes(self) -> int:
        """Return the memory that it has, as far as a cgroup counts it."""
        return 0 if self._cgroup is None else self._cgroup.used_bytes()

    def end_for_memory(self) -> None:
        """End it because all sandboxes together have too much memory, and it has the most; in any thread."""
        with self._guard:
            # From then on others may close the descriptor.
            if self._state is SandboxState.DESTROYED:
                return
            self._ended_for_memory = True
            kill(self._pidfd)
        if self._cgroup is not None and self._cgroup.is_frozen:
            with suppress(OSError, Unavailable):
                self._cgroup.freeze(False)  # a frozen process does not even die

    def offer(self, rank: int) -> None:
        """Have the kernel end it before those of a lower rank if all together have too much memory; in any thread."""
        with self._guard:
            if self._state is SandboxState.DESTROYED or self._cgroup is None or self._has_ended():
                return
            if rank and self._kills_when_offered is None:
                self._kills_when_offered = self._cgroup.events().out_of_memory
            elif not rank and not self._was_taken():
                self._kills_when_offered = None
            offer_init(self._pidfd, rank)

    def _was_taken(self) -> bool:
        """Whether the kernel has ended it because all together had too much memory."""
        if self._kills_when_offered is None or self._cgroup is None:
            return False
        return self._cgroup.events().out_of_memory > self._kills_when_offered

    def kill_everything(self) -> None:
        """Kill every process of the sandbox but its init."""
        if self._state is not SandboxState.DESTROYED:
            with suppress(OSError, Conflict):
                self._ask_init(InitOp.KILL_ALL, [])

    def wake_supervisors(self) -> None:
        """Let supervisors that somebody inside has stopped go on."""
        with suppress(OSError, Conflict):
            self._ask_init(InitOp.WAKE, [])

    def released(self, process: NamespaceProcess, leftover: list[int]) -> None:
        """Forget a process and read its open outputs to nowhere."""
        self._processes.discard(process)
        if self._state not in (SandboxState.RUNNING, SandboxState.PAUSED):
            channel.close_all(leftover)  # nobody prints any more
            return
        if leftover:
            slot = f"drains/{process.id}"
            self._shelf.keep(slot, leftover)
            self._drains.add(leftover, partial(self._shelf.forget, slot))
        self._forget_kept(process.id)

    @contextmanager
    def call(self) -> Iterator[None]:
        """A call that the end of the sandbox aborts."""
        self._check_running()
        with anyio.CancelScope() as scope:
            self._calls.add(scope)
            try:
                with our_errors():
                    yield
            finally:
                self._calls.discard(scope)
        if scope.cancelled_caught:
            raise self.ended_error()

    def open_files(self) -> socket.socket:
        """Return a socket to a new file server."""
        ours, theirs = channel.socket_pair()
        ours.setblocking(False)
        try:
            with theirs:
                self._ask_init(InitOp.FILES, [theirs.fileno()])
        except BaseException:
            ours.close()
            raise
        return ours

    def ask_for_port(self, op: InitOp, theirs: int, port: int, address: int) -> None:
        """Have init answer with a socket of the sandbox's own loopback."""
        self._check_running()
        self._ask_init(op, [theirs], port, address)

    def _ask_init(self, op: InitOp, fds: list[int], port: int = 0, address: int = 0) -> None:
        try:
            channel.send(self._init, InitRequest(op=op, port=port, address=address), fds)
        except BlockingIOError as error:
            raise LimitExceeded(
                "too many requests to this sandbox are waiting; try again"
            ) from error
        except ConnectionError as error:
            raise self.ended_error() from error

    def _has_ended(self) -> bool:
        return self._state is SandboxState.DESTROYED or is_over(self._pidfd)

    def _check_running(self) -> None:
        self._use_at_home()
        self._check_state()

    def _check_state(self) -> None:
        state = self.info.state
        if state is SandboxState.PAUSED:
            raise Conflict(f"sandbox {self.id} is paused; resume it first", sandbox=self.id)
        if state is not SandboxState.RUNNING:
            raise self.ended_error()

    def ended_error(self) -> Conflict:
        """Return what to raise once the sandbox is no more."""
        info = self.info
        how = "was destroyed" if info.state is SandboxState.DESTROYED else "has ended"
        if info.reason:
            how += f", because {info.reason}"
        return Conflict(
            f"sandbox {self.id} {how}; create a new one", sandbox=self.id, state=info.state.value
        )
