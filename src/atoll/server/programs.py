"""The program that a sandbox was made for: started with it, and where asked for its end."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import anyio
from anyio.abc import TaskGroup

from atoll.errors import AtollError, NotFound
from atoll.model.ids import ExecutionId
from atoll.model.process import Command
from atoll.model.sandbox import SandboxInfo, SandboxRequest
from atoll.node.execution import Execution
from atoll.node.executions import Executions
from atoll.node.node import Node
from atoll.node.residents import Resident
from atoll.node.sandbox_adoption import NEVER_MADE
from atoll.server.labels import ONE_SHOT, PLANNED, PROGRAM

_log = logging.getLogger(__name__)


class Programs:
    """The own programs of a node's sandboxes."""

    def __init__(self, node: Node, executions: Executions, tasks: TaskGroup) -> None:
        self._node = node
        self._executions = executions
        self._tasks = tasks

    async def start(self, resident: Resident, request: SandboxRequest) -> None:
        """Start the program that was asked for, if any; a sandbox whose program cannot start is destroyed."""
        command = _program_of(resident, request)
        if command is None:
            return
        try:
            execution = await self._start(resident, request, command)
            labels = {**resident.record.labels, PROGRAM: execution.id}
            labels.pop(PLANNED, None)
            self._node.label(resident, labels)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self._node.end(resident, "its program did not start")
            raise
        if request.one_shot:
            self._tasks.start_soon(self._end_with, resident, execution)

    async def adopt(self) -> None:
        """Go on waiting for the programs of sandboxes that an earlier node made; end those that it did not come to give one."""
        for resident in self._node.living():
            if PLANNED in resident.record.labels:
                await self._end(resident, NEVER_MADE)
            elif ONE_SHOT in resident.record.labels:
                self._tasks.start_soon(self._end_with, resident, self._running(resident))

    def find(self, info: SandboxInfo) -> ExecutionId:
        """Return the execution of a sandbox's own program; raises `NotFound` if it has none."""
        program = info.labels.get(PROGRAM)
        if program is None:
            raise NotFound(
                f"sandbox {info.id} was not made for a program; list its executions instead",
                sandbox=info.id,
            )
        return ExecutionId(program)

    async def _start(
        self, resident: Resident, request: SandboxRequest, program: Sequence[str] | str
    ) -> Execution:
        if request.interactive:
            return await self._executions.open_terminal(resident, program)
        command = Command.shell(program) if isinstance(program, str) else Command(tuple(program))
        return await self._executions.start_command(resident, command)

    def _running(self, resident: Resident) -> Execution | None:
        try:
            return self._executions.find_running(self.find(resident.info))
        except NotFound:
            return None

    async def _end_with(self, resident: Resident, execution: Execution | None) -> None:
        if execution is not None:
            await execution.wait()
        await self._end(resident, "its program ended")

    async def _end(self, resident: Resident, reason: str) -> None:
        try:
            await self._node.end(resident, reason)
        except AtollError as error:
            extra = {"sandbox": resident.id, "reason": error.message}
            _log.error("sandbox.not_destroyed", extra=extra)


def _program_of(resident: Resident, request: SandboxRequest) -> Sequence[str] | str | None:
    if request.command is None and request.image_command:
        return resident.hosted.image_command or None
    return request.command
