"""A sandbox that has a steward inside, whatever is round it."""

from __future__ import annotations

import posixpath
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import replace

import anyio
import anyio.lowlevel

from atoll.engines.inside.commands import payload
from atoll.engines.steward.hello import Hello, parse_hello
from atoll.engines.steward.link import Link
from atoll.engines.steward.ports import Ports
from atoll.engines.steward.process import StewardProcess
from atoll.engines.steward.transport import Transport
from atoll.engines.steward.wall import Wall
from atoll.engines.steward.wire import Order, StartKind
from atoll.engines.steward.workspace import StewardWorkspace
from atoll.errors import AtollError, Conflict, InvalidRequest, NotFound, Unavailable, Unsupported
from atoll.model.file import WORKSPACE
from atoll.model.ids import ProcessId, SandboxId, new_process_id
from atoll.model.limits import LimitsInfo
from atoll.model.process import Command, EndReason, ProcessEnd
from atoll.model.sandbox import SandboxInfo, SandboxSpec, SandboxState

_HELLO_SECONDS = 30.0
_START_SECONDS = 30.0
_END_SECONDS = 30.0
_THAW_SECONDS = 2.0
USERS = ("sandbox", "65532")
# What every process finds, unless the image or the caller says otherwise.
ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/home/sandbox",
    "LANG": "C.UTF-8",
    "USER": "sandbox",
}


class StewardSandbox:
    """The isolated place that a caller owns, with a steward inside."""

    def __init__(
        self,
        spec: SandboxSpec,
        limits: LimitsInfo,
        *,
        engine: str,
        wall: Wall,
        can_pause: bool,
        forget: Callable[[SandboxId], None],
        env: Mapping[str, str],
        users: Sequence[str],
        transport: Transport,
        trees: Mapping[str, int] | None,
    ) -> None:
        self._spec = spec
        self._limits = limits
        self._engine = engine
        self._wall = wall
        self._can_pause = can_pause
        self._forget = forget
        self._env = {**ENVIRONMENT, **env, **spec.env}
        self._users = (None, *users)
        self._trees = trees
        self.image_command: Sequence[str] = ()
        self._state = SandboxState.RUNNING
        self._reason = ""
        self._gone = anyio.Event()
        self._ending = anyio.Lock()
        self._freezing = anyio.Lock()
        self._removed = False
        self._failures = 0  # of attempts to remove it
        self._last_failure: AtollError | None = None
        self._calls: set[anyio.CancelScope] = set()
        self._processes: set[StewardProcess] = set()
        self._link = Link(transport, self.lost)
        self._workspace = StewardWorkspace(self._link, self, limits.limits.file_bytes)
        self._ports = Ports(self._link, spec.lowest_port, self.ended_error)
        self._hello: Hello | None = None

    @classmethod
    async def open(
        cls,
        spec: SandboxSpec,
        limits: LimitsInfo,
        *,
        engine: str,
        transport: Transport,
        wall: Wall,
        can_pause: bool,
        forget: Callable[[SandboxId], None],
        env: Mapping[str, str] | None = None,
        users: Sequence[str] = USERS,
        trees: Mapping[str, int] | None = None,
    ) -> StewardSandbox:
        """Return a sandbox once its steward has said its first word; what is round it stays the caller's if that fails.

        `trees` are the modes of all that can be written in it, by path; None if that cannot all be emptied.

        Raises:
            Unavailable: the steward did not come up.
        """
        sandbox = cls(
            spec,
            limits,
            engine=engine,
            wall=wall,
            can_pause=can_pause,
            forget=forget,
            env=env or {},
            users=users,
            transport=transport,
            trees=trees,
        )
        try:
            await sandbox._greet()
        except BaseException:
            with anyio.CancelScope(shield=True):
                await sandbox._link.close()
            raise
        return sandbox

    async def _greet(self) -> None:
        self._link.open()
        with anyio.move_on_after(_HELLO_SECONDS):
            greeting = await self._link.greeting()
            if greeting is None:
                raise Unavailable(f"the sandbox ended before it came up: {self._reason}")
            self._hello = parse_hello(greeting)
            return
        raise Unavailable(f"the sandbox did not come up within {_HELLO_SECONDS:g} s")

    @property
    def hello(self) -> Hello:
        """What the steward saw inside, before anything of the user's ran."""
        assert self._hello is not None
        return self._hello

    @property
    def id(self) -> SandboxId:
        """The sandbox's id."""
        return self._spec.id

    @property
    def info(self) -> SandboxInfo:
        """Facts at this moment."""
        return SandboxInfo(
            self.id,
            self._engine,
            self._spec.template,
            self._state,
            self._limits,
            reason=self._reason if self._state is SandboxState.LOST else "",
        )

    @property
    def workspace(self) -> StewardWorkspace:
        """The sandbox's files."""
        return self._workspace

    # --- processes ---------------------------------------------------------------------------------------

    async def start(self, command: Command, process_id: ProcessId | None = None) -> StewardProcess:
        """Start a process."""
        await anyio.lowlevel.checkpoint_if_cancelled()
        if not isinstance(command, Command):
            raise InvalidRequest(f"a sandbox starts a Command, not {type(command).__name__}")
        if command.user not in self._users:
            raise Unsupported(
                f"this sandbox runs everything as user {self._users[1]!r}, not {command.user!r};"
                " create it with the user that it is to have"
            )
        return await self._start(command, process_id, StartKind.STREAMS)

    async def start_kernel(
        self, command: Command, process_id: ProcessId | None = None
    ) -> StewardProcess:
        """Start a program that becomes a kernel."""
        await anyio.lowlevel.checkpoint_if_cancelled()
        return await self._start(command, process_id, StartKind.CHANNEL)

    async def _start(
        self, command: Command, process_id: ProcessId | None, kind: StartKind
    ) -> StewardProcess:
        self._check_running()
        # Checked as a whole: the sandbox's variables count, too.
        whole = replace(command, env={**self._env, **command.env})
        directory = posixpath.join(WORKSPACE, command.cwd)
        process = StewardProcess(
            command,
            process_id or new_process_id(),
            self._link,
            self,
            with_channel=kind is StartKind.CHANNEL,
        )
        self._processes.add(process)
        process.begin(kind, payload(whole, directory))
        try:
            with anyio.fail_after(_START_SECONDS):
                await process.started()
        except BaseException as error:
            # A start that is given up leaves nothing running: the steward kills what nobody wants.
            process.release()
            if isinstance(error, TimeoutError):
                raise Unavailable(
                    f"the process did not start within {_START_SECONDS:g} s; try again, or destroy the sandbox"
                ) from error
            raise
        return process

    @property
    def warm_language(self) -> str | None:
        """There is no warm interpreter."""
        return None

    def take_kernel(self) -> StewardProcess | None:
        """There is none: kernels are started."""
        self._check_running()
        return None

    async def fork_kernel(self, process_id: ProcessId | None = None) -> StewardProcess:
        """There is nothing to fork one from."""
        raise Unsupported(f"engine {self._engine!r} starts kernels, it does not fork them")

    async def find_process(self, process_id: ProcessId, command: Command) -> StewardProcess:
        """There are none of an earlier node."""
        raise NotFound(f"there is no process {process_id} here", process=process_id)

    async def find_kernel(self, process_id: ProcessId) -> StewardProcess:
        """There are none of an earlier node."""
        raise NotFound(f"there is no process {process_id} here", process=process_id)

    def keep(self, slot: str, fds: Sequence[int]) -> None:
        """Nothing can be kept."""
        raise Unsupported("sandboxes of this engine end with the program that made them")

    def kept(self, slot: str) -> Sequence[int]:
        """Nothing was kept."""
        return ()

    # --- ports -------------------------------------------------------------------------------------------

    async def connect(self, port: int) -> socket.socket:
        """Return a stream connected to a port on the sandbox's own loopback."""
        self._check_running()
        return await self._ports.connect(port)

    async def listen(self, port: int, address: str = "127.0.0.1") -> socket.socket:
        """Return a socket that listens on the sandbox's own loopback."""
        self._check_running()
        return await self._ports.listen(port, address)

    async def clean(self) -> None:
        """End every process and remove every file."""
        self._check_running()
        if self._trees is None:
            raise Unsupported(
                f"sandbox {self.id} can write more than its own trees, so it cannot be made as new; create another one"
            )
        self._link.tell(Order.KILL_ALL)
        for path, mode in self._trees.items():
            await self._workspace.clear(path, mode)
        with anyio.move_on_after(_END_SECONDS):
            for process in list(self._processes):
                await process.wait()
            return
        raise Unavailable("the sandbox did not tell of the end of its processes; destroy it")

    # --- pausing -----------------------------------------------------------------------------------------

    async def pause(self) -> None:
        """Stop every process in place."""
        async with self._freezing:
            if self._state is SandboxState.PAUSED:
                return
            self._check_running()
            self._check_pausing()
            await self._wall.pause()
            self._go_over(SandboxState.RUNNING, SandboxState.PAUSED)

    async def resume(self) -> None:
        """Let every process go on."""
        async with self._freezing:
            if self._state is SandboxState.PAUSED:
                await self._wall.resume()
                self._go_over(SandboxState.PAUSED, SandboxState.RUNNING)
            self._check_running()
            self._check_pausing()

    def _check_pausing(self) -> None:
        if not self._can_pause:
            raise Unsupported(f"engine {self._engine!r} cannot pause sandboxes on this machine")

    def _go_over(self, before: SandboxState, after: SandboxState) -> None:
        """Take another state; raises why not if it ended meanwhile, which nothing may undo."""
        if self._state is not before:
            raise self.ended_error()
        self._state = after

    @asynccontextmanager
    async def awake(self) -> AsyncIterator[None]:
        """Let a paused sandbox run for a moment."""
        async with self._freezing:
            if self._state is not SandboxState.PAUSED:
                yield
                return
            await self._wall.resume()
            try:
                yield
            finally:
                if self._state is SandboxState.PAUSED:
                    with anyio.CancelScope(shield=True):
                        await self._wall.pause()

    # --- its end -----------------------------------------------------------------------------------------

    def lost(self, reason: str) -> None:
        """Take note that everything inside has ended, other than by `destroy`."""
        if self._state.is_over or self._state is SandboxState.STOPPED:
            return
        self._state, self._reason = SandboxState.LOST, reason
        self._abort_calls()
        self._gone.set()

    async def wait_ended(self) -> None:
        """Return once the sandbox is stopped, destroyed or lost."""
        await self._gone.wait()

    async def stop(self) -> None:
        """End every process, abort running calls and keep what it is made of."""
        with anyio.CancelScope(shield=True):
            async with self._ending:
                if self._state in (SandboxState.STOPPED, SandboxState.DESTROYED):
                    return self._check_not_destroyed()
                if not self._spec.persistent:
                    raise Unsupported(
                        f"sandbox {self.id} was not made to be stopped; create it with persistent=True",
                        sandbox=self.id,
                    )
                was_paused = self._state is SandboxState.PAUSED
                self._leave(SandboxState.STOPPED)
                try:
                    if was_paused:
                        await self._wall.resume()
                    await self._wall.stop()
                except BaseException:
                    self._state, self._reason = SandboxState.LOST, "it could not be stopped"
                    raise
                finally:
                    await self._let_go()
                self._forget(self.id)

    async def abandon(self) -> None:
        """Let go of it before anybody has it; what is round it stays the caller's."""
        with anyio.CancelScope(shield=True):
            self._leave(SandboxState.DESTROYED)
            await self._let_go()

    def _check_not_destroyed(self) -> None:
        if self._state is SandboxState.DESTROYED:
            raise self.ended_error()

    def _leave(self, state: SandboxState) -> None:
        """Take a state in which nothing can be done any more."""
        self._state = state
        self._abort_calls()
        self._gone.set()

    async def _let_go(self) -> None:
        """Release what this end has of all that ran."""
        await self._link.close()
        for process in list(self._processes):
            process.release()
        self._ports.close()

    async def destroy(self) -> None:
        """End every process, abort running calls and remove everything."""
        with anyio.CancelScope(shield=True):
            before = self._failures
            async with self._ending:
                if self._removed:
                    return
                if self._last_failure is not None and self._failures > before:
                    # Somebody else has tried while this one waited, and it would take as long to hear the same.
                    raise self._last_failure
                was_paused = self._state is SandboxState.PAUSED
                self._leave(SandboxState.DESTROYED)
                try:
                    if was_paused:
                        await self._thaw()
                    await self._wall.remove()
                    self._removed = True
                except AtollError as error:
                    self._failures, self._last_failure = self._failures + 1, error
                    raise
                finally:
                    await self._let_go()
                    if self._removed:
                        self._forget(self.id)

    async def _thaw(self) -> None:
        """Let what is paused go on, as far as that is quick: some engines do not get it killed otherwise."""
        with anyio.move_on_after(_THAW_SECONDS), suppress(AtollError):
            await self._wall.resume()

    def destroy_here(self) -> bool:
        """It takes the event loop."""
        return False

    def _abort_calls(self) -> None:
        for call in list(self._calls):
            call.cancel()

    def explain(self, end: ProcessEnd) -> ProcessEnd:
        """Tell deaths apart by what the limits have counted."""
        if self._state in (SandboxState.DESTROYED, SandboxState.STOPPED):
            lost = end.reason is EndReason.LOST
            return replace(end, reason=EndReason.KILLED) if lost else end
        explained = self._wall.explain(end)
        if explained.reason is EndReason.LOST and self._state is SandboxState.RUNNING:
            # The sandbox goes on: somebody inside killed what watched over it.
            return replace(explained, reason=EndReason.KILLED)
        return explained

    @property
    def uses_marks(self) -> bool:
        """Whether what a process left behind can only be found by its mark."""
        return self.hello.uses_marks

    def released(self, process: StewardProcess) -> None:
        """Forget a process."""
        self._processes.discard(process)

    @contextmanager
    def call(self) -> Iterator[None]:
        """A call that the end of the sandbox aborts."""
        self._check_running()
        with anyio.CancelScope() as scope:
            self._calls.add(scope)
            try:
                yield
            except anyio.ClosedResourceError as error:
                raise self.ended_error() from error
            finally:
                self._calls.discard(scope)
        if scope.cancelled_caught:
            raise self.ended_error()

    def _check_running(self) -> None:
        if self._state is SandboxState.PAUSED:
            raise Conflict(f"sandbox {self.id} is paused; resume it first", sandbox=self.id)
        if self._state is not SandboxState.RUNNING:
            raise self.ended_error()

    def ended_error(self) -> Conflict:
        """Return what to raise once the sandbox is no more."""
        info = self.info
        if info.state is SandboxState.STOPPED:
            return Conflict(
                f"sandbox {self.id} is stopped; resume it first",
                sandbox=self.id,
                state=info.state.value,
            )
        how = "was destroyed" if info.state is SandboxState.DESTROYED else "has ended"
        if info.reason:
            how += f", because {info.reason}"
        return Conflict(
            f"sandbox {self.id} {how}; create a new one", sandbox=self.id, state=info.state.value
        )
