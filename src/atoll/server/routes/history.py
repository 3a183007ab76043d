"""What was carried out in a sandbox and what it printed, in the shapes that clients of `/execute` know."""

from __future__ import annotations

import json
import shlex
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel
from starlette.responses import PlainTextResponse

from atoll.errors import Conflict, NotFound
from atoll.model.execution import (
    EventType,
    ExecutionEvent,
    ExecutionInfo,
    ExecutionKind,
    shell_code,
)
from atoll.model.ids import ExecutionId
from atoll.model.process import Command
from atoll.node.idempotency import Answer, KeyedRequest
from atoll.server.answers import Time
from atoll.server.auth import Owner
from atoll.server.bodies import ShellBody
from atoll.server.keys import REPLAYED, IdempotencyKey, start_execution_once
from atoll.server.labels import INTERACTIVE
from atoll.server.parts import ExecutionKey, Here, Parts, SandboxKey
from atoll.server.streams import NDJSON, Stream
from atoll.server.waiting import follow_for, gather_for

router = APIRouter(prefix="/sandboxes/{sandbox}", tags=["history"])
_DESCRIPTORS = {EventType.STDOUT: 1, EventType.STDERR: 2}
_NOT_ENDED = -1
# What a shell line is run by; callers know only the line.
_SHELL = tuple(Command.shell("").argv[:-1])
_PLAIN = "text/plain; charset=utf-8"
Limit = Annotated[int, Query(ge=1, le=1000)]


class ShellAnswer(BaseModel):
    """What came of a shell line."""

    stdout: str
    stderr: str
    exit_code: int


class ChunkAnswer(BaseModel):
    """Some output of a command; ids grow."""

    id: int
    fd: int
    content: str
    timestamp: Time


class CommandAnswer(BaseModel):
    """A command that was carried out."""

    id: str
    command: str
    exit_code: int | None
    executed_at: Time
    ended_at: Time | None


class CommandLogAnswer(CommandAnswer):
    """A command with what it printed."""

    logs: Sequence[ChunkAnswer]


@router.post("/execute", response_model=ShellAnswer)
async def execute(
    sandbox: SandboxKey,
    body: ShellBody,
    request: Request,
    parts: Here,
    owner: Owner,
    stream: bool = False,
    key: IdempotencyKey = None,
) -> Any:
    """Run a shell line; with `stream` one JSON object per line: `type` stdout, stderr or exit, `output`, `exit_code`."""
    answer = await _run_once(parts, owner, sandbox, body, key)
    execution_id = ExecutionId(answer.id)
    headers = dict(REPLAYED) if answer.is_replay else {}
    if stream:
        return Stream(_lines(follow_for(parts, execution_id, None)), NDJSON, headers)
    gathered = await gather_for(request, parts, execution_id, None)
    shown = ShellAnswer(
        stdout=gathered.text(EventType.STDOUT),
        stderr=gathered.text(EventType.STDERR),
        exit_code=shell_code(gathered.outcome),
    )
    return Response(shown.model_dump_json(), headers=headers, media_type="application/json")


async def _run_once(
    parts: Parts, owner: str, sandbox: str, body: ShellBody, key: str | None
) -> Answer:
    content = f"{sandbox}\n{body.model_dump_json()}"
    request = None if key is None else KeyedRequest(owner, key, "POST execute", content)
    return await start_execution_once(parts, partial(_start, parts, owner, sandbox, body), request)


async def _start(parts: Parts, owner: str, sandbox: str, body: ShellBody, new_id: str) -> None:
    resident = parts.node.find(sandbox, owner)
    command = Command.shell(body.code)
    timeout = parts.timeout(body.timeout)
    await parts.executions.start_command(
        resident, command, timeout=timeout, execution_id=ExecutionId(new_id)
    )


async def _lines(events: AsyncGenerator[ExecutionEvent, None]) -> AsyncGenerator[bytes, None]:
    async with aclosing(events):
        async for event in events:
            if event.type.is_output:
                yield _line(event.type.value, event.data.decode("utf-8", "replace"), _NOT_ENDED)
            elif event.type is EventType.END:
                yield _line("exit", "", shell_code(event.value))


def _line(kind: str, output: str, exit_code: int) -> bytes:
    return json.dumps({"type": kind, "output": output, "exit_code": exit_code}).encode() + b"\n"


@router.get("/logs", response_class=PlainTextResponse)
async def read_logs(sandbox: SandboxKey, parts: Here, owner: Owner, stream: bool = False) -> Stream:
    """Give what the sandbox's own program printed, as text; with `stream` all to its end."""
    info = await parts.describe(sandbox, owner)
    if INTERACTIVE in info.labels:
        raise Conflict(f"sandbox {info.id} is interactive; attach to its terminal instead")
    try:
        program = parts.programs.find(info)
    except NotFound:
        return Stream(_nothing(), _PLAIN)
    events = parts.executions.follow(program) if stream else parts.present(program)
    return Stream(_output(events), _PLAIN)


async def _nothing() -> AsyncGenerator[bytes, None]:
    yield b""


async def _output(events: AsyncGenerator[ExecutionEvent, None]) -> AsyncGenerator[bytes, None]:
    async with aclosing(events):
        async for event in events:
            if event.type.is_output:
                yield event.data


@router.get("/command-executions")
async def list_commands(
    sandbox: SandboxKey, parts: Here, owner: Owner, limit: Limit = 100
) -> Sequence[CommandAnswer]:
    """List the commands of a sandbox, the newest first."""
    return [
        CommandAnswer(**_fields(info)) for info in await _commands(parts, sandbox, owner, limit)
    ]


@router.get("/command-executions/{execution}/logs")
async def read_command_logs(
    sandbox: SandboxKey,
    execution: ExecutionKey,
    parts: Here,
    owner: Owner,
    start_id: Annotated[int, Query(ge=0, le=2**53)] = 0,
    limit: Limit = 100,
) -> Sequence[ChunkAnswer]:
    """Give what a command printed, after the chunk of id `start_id`."""
    sandbox_info = await parts.describe(sandbox, owner)
    info = await parts.executions.describe(execution, owner)
    if info.sandbox != sandbox_info.id:
        raise NotFound(f"there is no execution {info.id} in sandbox {sandbox_info.id}")
    return await _chunks(parts, info, start_id, limit)


@router.get("/execution-logs")
async def read_all_logs(
    sandbox: SandboxKey, parts: Here, owner: Owner, limit: Limit = 1000
) -> Sequence[CommandLogAnswer]:
    """Give the commands of a sandbox with what they printed, at most `limit` chunks; also after its end."""
    answers = []
    for info in await _commands(parts, sandbox, owner, limit):
        chunks = await _chunks(parts, info, 0, limit) if limit else []
        limit -= len(chunks)
        answers.append(CommandLogAnswer(**_fields(info), logs=chunks))
    return answers


async def _commands(parts: Parts, sandbox: str, owner: str, limit: int) -> Sequence[ExecutionInfo]:
    info = await parts.describe(sandbox, owner)
    page = await parts.executions.list(sandbox=info.id, owner=owner, limit=limit)
    return [each for each in page.executions if each.kind is ExecutionKind.COMMAND]


async def _chunks(
    parts: Parts, info: ExecutionInfo, after: int, most: int
) -> Sequence[ChunkAnswer]:
    """Return chunks of output; their ids are the numbers of events counted from 1, so that 0 is before all."""
    events = await parts.executions.read(info.id, after, most)
    return [
        ChunkAnswer(
            id=event.seq + 1,
            fd=_DESCRIPTORS[event.type],
            content=event.data.decode("utf-8", "replace"),
            timestamp=info.started_at + event.t,
        )
        for event in events
        if event.type.is_output
    ]


def _fields(info: ExecutionInfo) -> dict[str, Any]:
    return {
        "id": info.id,
        "command": _command_line(info),
        "exit_code": None if info.ended_at is None else shell_code(info.outcome),
        "executed_at": info.started_at,
        "ended_at": info.ended_at,
    }


def _command_line(info: ExecutionInfo) -> str:
    argv = tuple(info.what.get("argv") or ())
    if argv[:-1] == _SHELL:
        return str(argv[-1])
    return shlex.join(map(str, argv))
