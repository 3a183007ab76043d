"""WebSockets: a terminal's raw bytes, and an execution's events with its input."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from functools import partial
from typing import Annotated

import anyio
from fastapi import APIRouter, Query
from pydantic import TypeAdapter, ValidationError
from starlette.types import Message
from starlette.websockets import WebSocket, WebSocketDisconnect

from atoll.errors import AtollError, Conflict, InvalidRequest, NotFound
from atoll.model.execution import ExecutionEvent, ExecutionKind, event_to_json
from atoll.model.process import TerminalSize
from atoll.node.execution import Execution
from atoll.node.residents import Resident
from atoll.node.task_groups import single_errors
from atoll.server.auth import Owner
from atoll.server.bodies import (
    AttachMessage,
    InputMessage,
    OnDisconnect,
    ResizeMessage,
    SignalMessage,
)
from atoll.server.errors import error_to_json
from atoll.server.json_bodies import JsonRoute, parse_json
from atoll.server.parts import ExecutionKey, Here, Parts, SandboxKey
from atoll.server.routes.executions import EXECUTION, Start
from atoll.server.waiting import follow_for

router = APIRouter(tags=["terminals"], route_class=JsonRoute)
# A message about the size is no longer than this.
_RESIZE_CHARACTERS = 100
_MESSAGES: TypeAdapter[AttachMessage] = TypeAdapter(AttachMessage)
Cells = Annotated[int, Query(ge=1, le=4096)]
Take = Callable[[Message], Awaitable[None]]


@router.websocket("/sandboxes/{sandbox}/attach")
async def attach_terminal(
    socket: WebSocket,
    sandbox: SandboxKey,
    parts: Here,
    owner: Owner,
    rows: Cells | None = None,
    columns: Cells | None = None,
    on_disconnect: OnDisconnect | None = None,
) -> None:
    """Join the terminal that a sandbox was made for, else a new one: raw bytes both ways.

    A header of the answer names the execution. A text `{"type": "resize", "rows": 24, "columns": 80}` changes the size; every
    other message is typed.
    """
    resident = parts.node.find(sandbox, owner)
    terminal = _own_terminal(parts, resident)
    size = TerminalSize(rows or 24, columns or 80)
    if terminal is None:
        terminal = await parts.executions.open_terminal(resident, size=size)
    elif rows is not None and columns is not None:
        await terminal.resize(size)
    await socket.accept(headers=[(EXECUTION.lower().encode(), terminal.id.encode())])

    async def show(event: ExecutionEvent) -> None:
        if event.type.is_output:
            await socket.send_bytes(event.data)

    events = follow_for(parts, terminal.id, on_disconnect)
    await _join(socket, events, show, partial(_type, terminal))


@router.websocket("/executions/{execution}/attach")
async def attach_execution(
    socket: WebSocket,
    execution: ExecutionKey,
    parts: Here,
    owner: Owner,
    start: Start = 0,
    on_disconnect: OnDisconnect | None = None,
) -> None:
    """Follow an execution from event `start` on; each event is a text.

    Binary messages go to its standard input. Texts change it: `{"type": "resize", "rows": 24, "columns": 80}`,
    `{"type": "signal", "signal": 2}`, `{"type": "close_stdin"}`, `{"type": "cancel"}`.
    """
    info = await parts.executions.describe(execution, owner)
    running = parts.running_or_none(info.id)
    await socket.accept()

    async def show(event: ExecutionEvent) -> None:
        await socket.send_text(json.dumps(event_to_json(event)))

    events = follow_for(parts, info.id, on_disconnect, start)
    await _join(socket, events, show, partial(_obey, running))


def _own_terminal(parts: Parts, resident: Resident) -> Execution | None:
    try:
        found = parts.executions.find_running(parts.programs.find(resident.info))
    except NotFound:
        return None
    return found if found.info.kind is ExecutionKind.TERMINAL else None


async def _join(
    socket: WebSocket,
    events: AsyncGenerator[ExecutionEvent, None],
    show: Callable[[ExecutionEvent], Awaitable[None]],
    take: Take,
) -> None:
    """Show events and take messages until the execution ends or the other side leaves."""
    with single_errors():
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_take_all, socket, take, tasks.cancel_scope)
            async with aclosing(events):
                await _show_all(socket, events, show)
            tasks.cancel_scope.cancel()


async def _show_all(
    socket: WebSocket,
    events: AsyncGenerator[ExecutionEvent, None],
    show: Callable[[ExecutionEvent], Awaitable[None]],
) -> None:
    try:
        async for event in events:
            await show(event)
        await socket.close()
    except WebSocketDisconnect:
        return  # whoever takes the messages sees it, too


async def _take_all(socket: WebSocket, take: Take, scope: anyio.CancelScope) -> None:
    while (message := await socket.receive())["type"] == "websocket.receive":
        try:
            await take(message)
        except Conflict:
            continue  # it has just ended; its end is on the way
        except AtollError as error:
            await socket.send_text(json.dumps({"type": "refused", "error": error_to_json(error)}))
    scope.cancel()


async def _type(terminal: Execution, message: Message) -> None:
    data = message.get("bytes")
    if data is None and (size := _read_size(message["text"])) is not None:
        await terminal.resize(size)
    else:
        await terminal.write(data if data is not None else message["text"].encode())


def _read_size(text: str) -> TerminalSize | None:
    """Return the size that a message asks for, unless it is something to be typed."""
    if not text.startswith("{") or len(text) > _RESIZE_CHARACTERS:
        return None
    try:
        return ResizeMessage.model_validate_json(text).to_size()
    except ValidationError:
        return None


async def _obey(execution: Execution | None, message: Message) -> None:
    if execution is None:
        return
    data = message.get("bytes")
    if data is not None:
        await execution.write(data)
        return
    match _read(message["text"]):
        case ResizeMessage() as resize:
            await execution.resize(resize.to_size())
        case SignalMessage(signal=number):
            await execution.signal(number)
        case InputMessage(text=line):
            await execution.answer(line)
        case end if end.type == "close_stdin":
            await execution.close_stdin()
        case _:
            await execution.cancel()


def _read(text: str) -> AttachMessage:
    try:
        return _MESSAGES.validate_python(parse_json(text))
    except ValidationError as error:
        raise InvalidRequest(
            f"this message is none that is known: {error.errors()[0]['msg']}"
        ) from error
