"""Processes inside a fake sandbox: small async programs with channels, groups and signals.

Each runs as an asyncio task that its table owns; a deadly signal cancels the task. What a started process
forks belongs to its family for ever, whatever group it moves to, so that all of it can be killed.
"""

from __future__ import annotations

import asyncio
import errno
import os
import signal as signals
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

import anyio
import anyio.lowlevel

from atoll.testing.fake.streams import Channel, Never, Null, OpenFile, Signal, Zero
from atoll.testing.fake.terminal import Terminal
from atoll.testing.fake.tree import File, Special, Tree, os_error

Program = Callable[["InnerProcess"], Awaitable[int]]
Channels = tuple[Channel, Channel, Channel]

_HARMLESS = {signals.SIGCHLD, signals.SIGWINCH, signals.SIGURG, signals.SIGCONT}
_CHUNK = 64 * 1024


@dataclass(frozen=True)
class Surroundings:
    """What a process gets from the one that starts it."""

    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: str
    channels: Channels


class ProcessTable:
    """All processes of one sandbox."""

    def __init__(self, tree: Tree, programs: Mapping[str, Program], limit: int) -> None:
        self.tree = tree
        self.paused = False
        self.changed = Signal()
        self._programs = programs
        self._limit = limit
        self._alive: dict[int, InnerProcess] = {}
        self._last_pid = 1

    @property
    def alive(self) -> Sequence[InnerProcess]:
        """The processes that have not ended."""
        return list(self._alive.values())

    def look_up(self, surroundings: Surroundings) -> tuple[Program, Surroundings]:
        """Return the program that an argument list names, with the arguments that it gets.

        Raises an `OSError` as execve does: ENOENT or EACCES.
        """
        name = surroundings.argv[0]
        if "/" not in name or name.startswith(("/bin/", "/usr/bin/")):
            if name.rpartition("/")[2] not in self._programs:
                raise os_error(errno.ENOENT, name)
            return self._programs[name.rpartition("/")[2]], surroundings
        node = self.tree.find(name, cwd=surroundings.cwd).existing()
        if not isinstance(node, File) or not node.mode & 0o111:
            raise os_error(errno.EACCES, name)
        argv = ("sh", name, *surroundings.argv[1:])
        return self._programs["sh"], Surroundings(
            argv, surroundings.env, surroundings.cwd, surroundings.channels
        )

    def start(
        self, program: Program, given: Surroundings, parent: InnerProcess | None = None
    ) -> InnerProcess:
        """Start a process; raise EAGAIN if there are too many."""
        if len(self._alive) >= self._limit:
            raise os_error(errno.EAGAIN)
        self._last_pid += 1
        process = InnerProcess(self, self._last_pid, program, given, parent)
        self._alive[process.pid] = process
        return process

    def find(self, pid: int) -> InnerProcess | None:
        """Return a process that has not ended."""
        return self._alive.get(pid)

    def forget(self, process: InnerProcess) -> None:
        """Note that a process has ended."""
        del self._alive[process.pid]

    async def kill(self, family: InnerProcess | None = None) -> None:
        """End a family, or everything, and wait until it is gone."""
        doomed = [one for one in self.alive if family in (None, one.family)]
        for process in doomed:
            process.killed = True
            process.send(signals.SIGKILL)
        for process in doomed:
            await process.ended.wait()


class InnerProcess:
    """One process inside; a program gets it as its view of the world."""

    def __init__(
        self,
        table: ProcessTable,
        pid: int,
        program: Program,
        given: Surroundings,
        parent: InnerProcess | None,
    ) -> None:
        self.table = table
        self.pid = pid
        self.argv = given.argv
        self.env = dict(given.env)
        self.cwd = given.cwd
        self.channels: Channels = given.channels
        self.family: InnerProcess = parent.family if parent else self
        self.group: int = parent.group if parent else pid
        self.ignored: set[int] = set(parent.ignored) if parent else set()
        self.caught = set[int]()  # unlike ignored ones not passed on to children
        self.exit_code: int | None = None
        self.signal: int | None = None
        self.killed = False
        self.ended = anyio.Event()
        self._stopped = False
        for channel in self.channels:
            channel.hold()
        self._task = asyncio.get_running_loop().create_task(self._run(program))
        # Not in `_run`: a task that is cancelled before its first step never gets there.
        self._task.add_done_callback(self._finish)

    @property
    def tree(self) -> Tree:
        """The sandbox's files."""
        return self.table.tree

    @property
    def terminal(self) -> Terminal | None:
        """The terminal on standard input, if there is one."""
        return self.channels[0] if isinstance(self.channels[0], Terminal) else None

    @property
    def shell_code(self) -> int:
        """How it ended, as a shell tells it."""
        return self.exit_code if self.exit_code is not None else 128 + (self.signal or 0)

    async def read(self, size: int = _CHUNK) -> bytes:
        """Read from standard input."""
        await self._may_run()
        data = await self.channels[0].read(size)
        await self._may_run()
        return data

    async def write(self, data: bytes | str) -> None:
        """Write to standard output."""
        await self._may_run()
        await self.channels[1].write(to_bytes(data))

    async def complain(self, text: str) -> None:
        """Write a line to standard error, after the program's name."""
        await self._may_run()
        await self.channels[2].write(to_bytes(f"{self.argv[0]}: {text}\n"))

    async def sleep(self, seconds: float) -> None:
        """Let time pass."""
        await anyio.sleep(seconds)
        await self._may_run()

    def open(self, path: str) -> Channel:
        """Open a file for reading."""
        node = self.tree.find(path, cwd=self.cwd).existing()
        if isinstance(node, File):
            return OpenFile(node)
        if isinstance(node, Special):
            return _open_special(node)
        raise os_error(errno.EISDIR, path)

    def open_to_write(self, path: str, *, append: bool) -> Channel:
        """Open a file for writing at its end, made empty first unless `append`."""
        place = self.tree.find(path, cwd=self.cwd)
        if isinstance(place.node, Special):
            return _open_special(place.node)
        if place.node is None:
            self.tree.add(place, File(place.directory.volume, 0o644))
        file = self.tree.find(path, cwd=self.cwd).existing()
        if not isinstance(file, File):
            raise os_error(errno.EISDIR, path)
        if not append:
            file.clear()
        return OpenFile(file)

    def fork(
        self,
        program: Program,
        *,
        argv: Sequence[str] | None = None,
        channels: Channels | None = None,
        env: Mapping[str, str] | None = None,
    ) -> InnerProcess:
        """Start a child that runs `program`."""
        given = Surroundings(
            argv or self.argv, env or self.env, self.cwd, channels or self.channels
        )
        return self.table.start(program, given, self)

    async def become(self, argv: Sequence[str]) -> int:
        """Go on as another program, as execve does; 127 or 126 if that cannot be run."""
        given = Surroundings(argv, self.env, self.cwd, self.channels)
        try:
            program, given = self.table.look_up(given)
        except PermissionError:
            return 126
        except (FileNotFoundError, NotADirectoryError):
            return 127
        self.argv = given.argv
        self.caught.clear()
        return await program(self)

    def replace_channels(self, channels: Channels) -> None:
        """Use other channels from now on."""
        for channel in channels:
            channel.hold()
        for channel in self.channels:
            channel.drop()
        self.channels = channels

    def send(self, number: int) -> None:
        """Receive a signal."""
        if number in (signals.SIGSTOP, signals.SIGCONT):
            self._stopped = number == signals.SIGSTOP
            self.table.changed.wake()
        elif number == signals.SIGKILL or number not in self.ignored | self.caught | _HARMLESS:
            self.signal = self.signal or int(number)
            self._task.cancel()

    def on_end(self, callback: Callable[[], None]) -> None:
        """Call `callback` once it has ended."""
        self._task.add_done_callback(lambda _: callback())

    async def _may_run(self) -> None:
        await anyio.lowlevel.checkpoint()
        while self._stopped or self.table.paused:
            await self.table.changed.wait()

    async def _run(self, program: Program) -> None:
        try:
            self.exit_code = await program(self) & 0xFF
        except BrokenPipeError:
            self.signal = int(signals.SIGPIPE)
        except OSError as error:
            await self.complain(f"{error.filename or ''}: {os.strerror(error.errno or 0)}")
            self.exit_code = 1

    def _finish(self, task: asyncio.Task[None]) -> None:
        if self.signal is not None:
            self.exit_code = None
        for channel in self.channels:
            channel.drop()
        self.table.forget(self)
        self.ended.set()


def to_bytes(text: str | bytes) -> bytes:
    """Return text as the bytes that a program would print."""
    return text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text


def _open_special(node: Special) -> Channel:
    return {"null": Null, "zero": Zero}.get(node.name, Never)()
