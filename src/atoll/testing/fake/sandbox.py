"""A fake sandbox: a table of processes and a tree of files in memory."""

from __future__ import annotations

import errno
import ipaddress
import secrets
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from typing import NoReturn

import anyio
import anyio.lowlevel

from atoll.errors import Conflict, InvalidRequest, LimitExceeded, NotFound, Unavailable, Unsupported
from atoll.model.file import WORKSPACE
from atoll.model.ids import ProcessId, SandboxId, new_process_id
from atoll.model.limits import EnforcedBy, LimitsInfo, ResolvedLimits
from atoll.model.process import Command
from atoll.model.sandbox import SandboxInfo, SandboxSpec, SandboxState
from atoll.testing.fake.process import FakeProcess
from atoll.testing.fake.processes import ProcessTable, Program
from atoll.testing.fake.tree import Tree
from atoll.testing.fake.workspace import FakeWorkspace

_USERS = (None, "sandbox", "root")
_ENV = {
    "PATH": "/usr/bin:/bin",
    "HOME": "/home/sandbox",
    "USER": "sandbox",
    "LANG": "C.UTF-8",
}


class FakeSandbox:
    """A place in memory that behaves like an isolated one."""

    def __init__(
        self, spec: SandboxSpec, limits: ResolvedLimits, programs: Mapping[str, Program]
    ) -> None:
        self._spec = spec
        self._limits = limits
        self.tree = Tree(limits)
        self._table = ProcessTable(self.tree, programs, limits.processes)
        self._workspace = FakeWorkspace(self.tree, self._call)
        self._state = SandboxState.RUNNING
        self._calls: set[anyio.CancelScope] = set()
        self._listeners: dict[int, socket.socket] = {}
        self._ended = anyio.Event()

    @property
    def id(self) -> SandboxId:
        """The sandbox's id."""
        return self._spec.id

    @property
    def info(self) -> SandboxInfo:
        """Facts at this moment."""
        enforced: dict[str, EnforcedBy] = {name.name: "engine" for name in fields(ResolvedLimits)}
        limits = LimitsInfo(self._limits, enforced)
        return SandboxInfo(self.id, "fake", self._spec.template, self._state, limits)

    @property
    def workspace(self) -> FakeWorkspace:
        """The sandbox's files."""
        return self._workspace

    def destroy_here(self) -> bool:
        """Nothing: tasks of the event loop have to do with everything here."""
        return False

    @property
    def warm_language(self) -> None:
        """None: there is no interpreter here."""

    @property
    def image_command(self) -> Sequence[str]:
        """None: there is no image."""
        return ()

    def take_kernel(self) -> None:
        """Return nothing: there are no kernels here."""

    async def start_kernel(self, command: Command, process_id: ProcessId | None = None) -> NoReturn:
        """Refuse: nothing here is a program that could speak."""
        raise Unsupported("the fake engine has no kernels")

    async def fork_kernel(self, process_id: ProcessId | None = None) -> NoReturn:
        """There is no interpreter to fork."""
        with self._call():
            raise Unsupported("a fake sandbox has no interpreter to fork kernels from")

    async def find_process(self, process_id: ProcessId, command: Command) -> NoReturn:
        """Nothing here was left by an earlier program."""
        raise NotFound(f"there is no process {process_id} here")

    async def find_kernel(self, process_id: ProcessId) -> NoReturn:
        """Nothing here was left by an earlier program."""
        raise NotFound(f"there is no process {process_id} here")

    def keep(self, slot: str, fds: Sequence[int]) -> NoReturn:
        """Refuse: nothing here outlives its process."""
        raise Unsupported("sandboxes of the fake engine end with the program that made them")

    def kept(self, slot: str) -> Sequence[int]:
        """Return nothing: there was no earlier program."""
        return ()

    async def start(self, command: Command, process_id: ProcessId | None = None) -> FakeProcess:
        """Start a process."""
        with self._call():
            await anyio.lowlevel.checkpoint()
            if command.user not in _USERS:
                raise Unsupported(f"there is no user {command.user!r}; leave it out or say 'root'")
            cwd = self._find_cwd(command.cwd)
            try:
                env = {**_ENV, **self._spec.env, **command.env}
                return FakeProcess(command, env, cwd, self._table, process_id or new_process_id())
            except OSError as error:
                if error.errno != errno.EAGAIN:
                    raise
                raise LimitExceeded(
                    f"the sandbox has no room for another process; the most is {self._limits.processes}",
                    sandbox=self.id,
                ) from error

    async def connect(self, port: int) -> socket.socket:
        """Return a stream connected to a port inside."""
        with self._call():
            _check_port(port, lowest=1)
            listener = self._find_listener(port)
            if listener is None:
                raise Unavailable(f"nothing listens on port {port}; start a server there first")
            stream = socket.socket(socket.AF_UNIX)
            stream.connect(listener.getsockname())
            return stream

    async def listen(self, port: int, address: str = "127.0.0.1") -> socket.socket:
        """Return a socket that listens inside."""
        with self._call():
            _check_port(port, lowest=self._spec.lowest_port)
            _check_loopback(address)
            if self._find_listener(port) is not None:
                raise Conflict(f"port {port} is taken; choose another")
            listener = socket.socket(socket.AF_UNIX)
            # A name without a file, which no two sandboxes share.
            listener.bind(f"\0atoll-fake-{secrets.token_hex(16)}")
            listener.listen()
            self._listeners[port] = listener
            return listener

    async def clean(self) -> NoReturn:
        """Refuse: a new one costs nothing."""
        raise Unsupported("the fake engine cleans no sandboxes; create another one")

    async def pause(self) -> None:
        """Stop every process in place."""
        with self._call():
            self._table.paused = True
            self._state = SandboxState.PAUSED

    async def resume(self) -> None:
        """Let every process go on."""
        with self._call():
            self._table.paused = False
            self._table.changed.wake()
            self._state = SandboxState.RUNNING

    async def stop(self) -> None:
        """Refuse: nothing is kept here."""
        raise Unsupported("the fake engine keeps nothing of a sandbox that ends")

    async def wait_ended(self) -> None:
        """Return once the sandbox is destroyed."""
        await self._ended.wait()

    async def destroy(self) -> None:
        """End every process, abort running calls and remove everything."""
        self._state = SandboxState.DESTROYED
        for call in list(self._calls):
            call.cancel()
        with anyio.CancelScope(shield=True):
            await self._table.kill()
        self._ended.set()

    @contextmanager
    def _call(self) -> Iterator[None]:
        """Let a call run until the sandbox is destroyed."""
        self._check_alive()
        scope = anyio.CancelScope()
        self._calls.add(scope)
        try:
            with scope:
                yield
        finally:
            self._calls.discard(scope)
        if scope.cancelled_caught:
            self._check_alive()

    def _check_alive(self) -> None:
        if self._state is SandboxState.DESTROYED:
            raise Conflict(f"sandbox {self.id} is destroyed; create a new one", sandbox=self.id)

    def _find_cwd(self, path: str) -> str:
        try:
            place = self.tree.find(path, cwd=WORKSPACE)
            place.existing_directory()
        except OSError as error:
            raise InvalidRequest(f"working directory {path!r}: {error.strerror}") from error
        return place.path

    def _find_listener(self, port: int) -> socket.socket | None:
        listener = self._listeners.get(port)
        return listener if listener is not None and listener.fileno() >= 0 else None


def _check_port(port: int, lowest: int) -> None:
    if type(port) is not int or not lowest <= port <= 65535:
        raise InvalidRequest(f"port {port!r} has to be a whole number from {lowest} to 65535")


def _check_loopback(address: str) -> None:
    try:
        loopback = ipaddress.ip_address(address).is_loopback
    except ValueError:
        loopback = False
    if not loopback:
        raise InvalidRequest(f"address {address!r} is not a loopback address such as 127.0.0.1")
