"""A WebSocket that carries cells, one after the other: the quickest way to ask a kernel many times.

The caller sends `{"type": "run", "id": …, "code": …}` with what else a cell may have (`kernel`, `language`, `timeout`,
`track_files`, `ask_input`), and gets `{"type": "events", "id": …, "execution": …, "events": […]}` as often as there are new ones, up
to the end of that execution; or `{"type": "refused", "id": …, "error": …}`. Meanwhile `{"type": "input", "text": …}` answers code that asks for a line, and
`{"type": "cancel"}` interrupts it. The id is the caller's own and works as an `Idempotency-Key` of `POST …/executions` does: whoever
loses the connection asks that way, or for the events of the execution, and nothing runs twice. Executions go on without it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import anyio
from fastapi import APIRouter
from pydantic import Field, TypeAdapter, ValidationError
from starlette.websockets import WebSocket, WebSocketDisconnect

from atoll.errors import AtollError, Conflict, InvalidRequest, NotFound
from atoll.model.execution import ExecutionEvent, event_to_json
from atoll.model.ids import ExecutionId
from atoll.node.execution import Execution
from atoll.node.json_text import to_json
from atoll.node.short_log import ShortLog
from atoll.node.task_groups import single_errors
from atoll.server.auth import Owner
from atoll.server.bodies import ExecutionBody, InputMessage, Text
from atoll.server.direct_texts import find_direct_texts
from atoll.server.errors import error_to_json
from atoll.server.holds import asking
from atoll.server.json_bodies import parse_json
from atoll.server.keys import KeyHolder
from atoll.server.parts import Here, Parts, SandboxKey
from atoll.server.routes.executions import start_once, try_start_cell

router = APIRouter(tags=["kernels"])
# Cells that may wait on one connection; who sends more waits until one has ended.
_MOST_WAITING = 16
_MOMENT = 0.005


class RunMessage(ExecutionBody):
    """A cell to be run, under an id of the caller's choice."""

    type: Literal["run"]
    id: Annotated[Text, Field(min_length=1, max_length=255)]
    kind: Literal["cell"] = "cell"


class CancelMessage(InputMessage):
    """The cell that runs is to be interrupted."""

    type: Literal["cancel"]  # type: ignore[assignment]
    text: None = None


CellMessage = Annotated[RunMessage | InputMessage | CancelMessage, Field(discriminator="type")]
_MESSAGES: TypeAdapter[RunMessage | InputMessage | CancelMessage] = TypeAdapter(CellMessage)


@router.websocket("/sandboxes/{sandbox}/cells")
async def run_cells(
    socket: WebSocket, sandbox: SandboxKey, parts: Here, owner: Owner, holder: KeyHolder
) -> None:
    """Run cells as they are sent, and answer with their events."""
    # By its id from here on: who was let in to one sandbox must not get into another that has its name later.
    resident = parts.node.find(sandbox, owner)
    await socket.accept()
    await _Line(socket, parts, sandbox, resident.id, owner, holder).serve()


@dataclass(frozen=True, slots=True)
class _Begun:
    """A cell that runs, or has run, and whose events are to be shown; without an execution if another request began it."""

    message_id: str
    execution_id: ExecutionId
    execution: Execution | None

    @property
    def whole_answer(self) -> str | None:
        """All that is to be told of it, if that has ended and is little."""
        execution = self.execution
        if execution is None or not execution.has_ended or not isinstance(execution.log, ShortLog):
            return None
        return f'{to_json(self.head)[:-1]},"events":{execution.log.text}}}'

    @property
    def head(self) -> Mapping[str, Any]:
        """What every message about it begins with."""
        return {"type": "events", "id": self.message_id, "execution": self.execution_id}


class _Line:
    """One connection, and the cell that runs on it."""

    def __init__(
        self,
        socket: WebSocket,
        parts: Parts,
        sandbox: str,
        sandbox_id: str,
        owner: str,
        holder: str,
    ) -> None:
        self._socket = socket
        self._parts = parts
        self._sandbox = sandbox
        self._sandbox_id = sandbox_id
        self._owner = owner
        self._holder = holder
        self._asking = asking()
        self._texts = find_direct_texts(socket.scope)
        self._current: ExecutionId | None = None
        self._is_taking = False  # a message that was received
        self._waiting = 0  # cells that have been passed on and not shown to their ends
        self._pass_on, self._passed_on = anyio.create_memory_object_stream[RunMessage | _Begun](
            _MOST_WAITING
        )

    async def serve(self) -> None:
        """Run cells until the other side leaves, or the node is to end and none runs."""
        with single_errors():
            async with anyio.create_task_group() as tasks, self._pass_on, self._passed_on:
                tasks.start_soon(self._listen, tasks.cancel_scope)
                tasks.start_soon(self._leave_in_time, tasks.cancel_scope)
                self._texts.take_directly(self._take_directly)
                await self._run_all()
                tasks.cancel_scope.cancel()

    # --- at once -----------------------------------------------------------------------------------------------

    def _take_directly(self, text: str) -> bool:
        """Begin a cell as it comes, and answer if it ends within a moment; return whether it was taken.

        Whatever is not so plain, or has to wait for anything, is received as all messages are.
        """
        if self._waiting or self._is_taking or self._is_to_leave:
            return False
        try:
            message = _read(text)
        except AtollError:
            return False
        return isinstance(message, RunMessage) and self._run_directly(message)

    @property
    def _is_to_leave(self) -> bool:
        is_void = self._asking is not None and self._asking.is_void
        return is_void or self._parts.traffic.is_draining

    def _run_directly(self, message: RunMessage) -> bool:
        try:
            execution = try_start_cell(
                self._parts,
                self._owner,
                self._sandbox,
                message,
                message.id,
                self._holder,
                self._sandbox_id,
            )
        except AtollError as error:
            self._texts.send_directly(_refuse(message.id, error))
            return True
        if execution is None:
            return False
        begun = _Begun(message.id, execution.id, execution)
        answer = begun.whole_answer
        if answer is not None:
            self._texts.send_directly(answer)
        else:
            self._waiting += 1
            self._current = execution.id
            self._pass_on.send_nowait(begun)
        return True

    # --- one after the other -----------------------------------------------------------------------------------

    async def _listen(self, scope: anyio.CancelScope) -> None:
        try:
            while (message := await self._socket.receive())["type"] == "websocket.receive":
                self._is_taking = True
                try:
                    await self._take(_read(message.get("text")))
                except AtollError as error:
                    await self._socket.send_text(_refuse(None, error))
                finally:
                    self._is_taking = False
                if self._parts.traffic.is_draining and not self._waiting:
                    break
        except WebSocketDisconnect:
            pass
        scope.cancel()

    async def _take(self, message: RunMessage | InputMessage) -> None:
        if isinstance(message, RunMessage):
            await self._take_cell(message)
            return
        running = None if self._current is None else self._parts.running_or_none(self._current)
        if running is None:
            return  # it has just ended; its end is on the way
        try:
            if isinstance(message, CancelMessage):
                await running.cancel()
            else:
                await running.answer(message.text)
        except Conflict:
            return  # it asks for nothing any more

    async def _take_cell(self, message: RunMessage) -> None:
        cell: RunMessage | _Begun = message
        if not self._waiting:
            # Most end within a moment, and to pass them on would take as long.
            begun = await self._begin(message)
            if begun is None:
                return
            if begun.execution is not None and begun.execution.has_ended:
                await self._show(begun)
                return
            self._current, cell = begun.execution_id, begun
        self._waiting += 1
        await self._pass_on.send(cell)

    async def _leave_in_time(self, scope: anyio.CancelScope) -> None:
        await self._parts.traffic.begins_to_drain.wait()
        if self._current is None:
            scope.cancel()

    async def _run_all(self) -> None:
        try:
            async for cell in self._passed_on:
                begun = cell if isinstance(cell, _Begun) else await self._begin(cell)
                if begun is not None:
                    self._current = begun.execution_id
                    await self._show(begun)
                    self._current = None
                self._waiting -= 1
                if self._parts.traffic.is_draining:
                    return
        except WebSocketDisconnect:
            return  # whoever listens sees it, too

    async def _begin(self, message: RunMessage) -> _Begun | None:
        """Begin a cell, and return it unless that is refused."""
        executions: list[Execution] = []
        try:
            answer = await start_once(
                self._parts,
                self._owner,
                self._sandbox,
                message,
                message.id,
                self._holder,
                is_new=True,
                sandbox_id=self._sandbox_id,
                begun=executions.append,
            )
        except AtollError as error:
            await self._socket.send_text(_refuse(message.id, error))
            return None
        execution = executions[0] if executions else None
        return _Begun(message.id, ExecutionId(answer.id), execution)

    async def _show(self, begun: _Begun) -> None:
        # Most end soon, and what is not shown before that need not be written before.
        if begun.execution is not None and await begun.execution.ends_within(_MOMENT):
            answer = begun.whole_answer
            if answer is not None:
                await self._socket.send_text(answer)
                return
        try:
            async with aclosing(await self._batches(begun)) as batches:
                async for events in batches:
                    told = {**begun.head, "events": [event_to_json(each) for each in events]}
                    await self._socket.send_text(to_json(told))
        except NotFound as error:
            await self._socket.send_text(_refuse(begun.message_id, error))

    async def _batches(self, begun: _Begun) -> AsyncGenerator[Sequence[ExecutionEvent], None]:
        if begun.execution is not None:
            return begun.execution.log.follow_batches()
        return await self._parts.executions.open_batches(begun.execution_id)


def _refuse(message_id: str | None, error: AtollError) -> str:
    return to_json({"type": "refused", "id": message_id, "error": error_to_json(error)})


def _read(text: str | None) -> RunMessage | InputMessage:
    if text is None:
        raise InvalidRequest("messages about cells are texts")
    try:
        return _MESSAGES.validate_python(parse_json(text))
    except ValidationError as error:
        place, reason = error.errors()[0]["loc"], error.errors()[0]["msg"]
        raise InvalidRequest(f"this message is none that is known: {place}: {reason}") from error
