"""Moves what a process prints into the log of its execution, to the last byte."""

from __future__ import annotations

import errno
import logging
import os
import select
from collections.abc import Callable, Mapping
from contextlib import ExitStack, aclosing
from functools import partial
from typing import TypeVar

import anyio
import anyio.lowlevel

from atoll.engines.contract import Process
from atoll.errors import Unavailable, Unsupported
from atoll.model.process import ProcessEnd, Stream
from atoll.node.execution_log import ExecutionLog

# How long output is still taken after the end of a process while something it left behind keeps it open.
_LINGER_SECONDS = 0.2
_RETRY_SECONDS = 0.25
# More than a pipe holds.
_LAST_MOVES = 32
_log = logging.getLogger(__name__)

Relays = Mapping[Stream, tuple[int, int]]
Made = TypeVar("Made")


class OutputPump:
    """One process and its log. Where the host holds the output's descriptors, it goes on where another pump was killed."""

    def __init__(self, process: Process, log: ExecutionLog, relays: Relays) -> None:
        self._process = process
        self._log = log
        self._relays = relays
        self._streams: dict[int, Stream] = {}
        self._drained = anyio.Event()
        self._is_held_up = False

    async def run(self) -> ProcessEnd:
        """Return how the process ended, once all that it printed is in the log."""
        try:
            descriptors = self._process.descriptors()
        except Unsupported:
            return await self._write_as_it_comes()
        with ExitStack() as owned:
            await self._attach(descriptors, owned)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._move_as_it_comes)
                end = await self._process.wait()
                with anyio.move_on_after(_LINGER_SECONDS):
                    await self._drained.wait()
                tasks.cancel_scope.cancel()
            await self._move_rest()
        return end

    async def _write_as_it_comes(self) -> ProcessEnd:
        """Take the output as messages; nobody but us could go on with it anyway."""
        async with aclosing(self._process.output()) as outputs:
            async for output in outputs:
                await self._when_there_is_room(partial(self._log.write, output.stream, output.data))
        return await self._process.wait()

    async def _attach(self, descriptors: Mapping[Stream, int], owned: ExitStack) -> None:
        # Duplicates: a sandbox may be destroyed at any moment, and the numbers that its process had may then be those of
        # somebody else's output.
        for stream, fd in descriptors.items():
            duplicate = await self._when_there_are_descriptors(partial(os.dup, fd))
            owned.callback(os.close, duplicate)
            self._streams[duplicate] = stream
            self._log.attach(stream, duplicate, self._relays.get(stream))

    async def _move_as_it_comes(self) -> None:
        with await self._when_there_are_descriptors(select.epoll) as watched:
            for fd in self._streams:
                watched.register(fd, select.EPOLLIN)
            while self._streams:
                await anyio.wait_readable(watched.fileno())
                for fd, _events in watched.poll(0):
                    if await self._move(self._streams[fd]) is None:
                        watched.unregister(fd)
                        del self._streams[fd]
        self._drained.set()

    async def _when_there_are_descriptors(self, make: Callable[[], Made]) -> Made:
        """Make something as soon as there is a descriptor for it; the program waits meanwhile, as on a full disk."""
        while True:
            try:
                return make()
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE):
                    raise
                self._note_held_up(error.strerror or "no descriptor is left")
                await anyio.sleep(_RETRY_SECONDS)

    async def _move_rest(self) -> None:
        for stream in self._streams.values():
            for _ in range(_LAST_MOVES):
                if not await self._move(stream):
                    break

    async def _move(self, stream: Stream) -> int | None:
        """Move what there is."""
        return await self._when_there_is_room(partial(self._log.move, stream))

    async def _when_there_is_room(self, put: Callable[[], Made]) -> Made:
        """Put something into the log; wait as long as the disk is full, and with this the program waits."""
        while True:
            try:
                done = put()
            except Unavailable as error:
                self._note_held_up(error.message)
                await anyio.sleep(_RETRY_SECONDS)
            else:
                self._is_held_up = False
                await anyio.lowlevel.checkpoint()
                return done

    def _note_held_up(self, reason: str) -> None:
        if not self._is_held_up:
            _log.warning("execution.held_up", extra={"reason": reason})
        self._is_held_up = True
