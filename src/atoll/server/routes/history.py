"""What was carried out in a sandbox and what it printed, in the shapes that clients of `/execute` know."""

from __future__ import annotations

import codecs
import json
from base64 import b64encode
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from functools import partial
from typing import Annotated, Any

from anyio.lowlevel import checkpoint
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
from atoll.node.idempotency import KeyedRequest
from atoll.node.records import IdempotencyRecord
from atoll.server.answers import Time, command_line
from atoll.server.auth import Owner
from atoll.server.bodies import ShellBody
from atoll.server.json_bodies import JsonRoute
from atoll.server.keys import REPLAYED, IdempotencyKey, KeyHolder, start_execution_once
from atoll.server.labels import INTERACTIVE
from atoll.server.parts import ExecutionKey, Here, Parts, SandboxKey
from atoll.server.streams import NDJSON, Stream
from atoll.server.waiting import follow_for, gather_for

router = APIRouter(prefix="/sandboxes/{sandbox}", tags=["history"], route_class=JsonRoute)
_DESCRIPTORS = {EventType.STDOUT: 1, EventType.STDERR: 2}
_NOT_ENDED = -1
# The most pieces of output that a list of commands holds.
_MOST_CHUNKS = 1000
# So many events are in memory at once of an answer, and so many bytes are sent at least.
_PAGE, _SENT_BYTES = 32, 65536
_JSON = "application/json"
_PLAIN = "text/plain; charset=utf-8"
Limit = Annotated[int, Query(ge=1, le=1000)]


class ShellAnswer(BaseModel):
    """What came of a shell line; bytes that are no text also in base64, and the names of what was cut."""

    stdout: str
    stderr: str
    exit_code: int
    stdout_base64: str | None = None
    stderr_base64: str | None = None
    truncated: Sequence[str] | None = None


class ChunkAnswer(BaseModel):
    """Some output of a command, also in base64 if it is no text; ids grow."""

    id: int
    fd: int
    content: str
    base64: str | None = None
    created_at: Time


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


class CommandsAnswer(BaseModel):
    """Commands with what they printed."""

    executions: Sequence[CommandLogAnswer]


class CommandChunksAnswer(BaseModel):
    """A command, and some of what it printed."""

    execution: CommandAnswer
    logs: Sequence[ChunkAnswer]


@router.post("/execute", response_model=ShellAnswer)
async def execute(
    sandbox: SandboxKey,
    body: ShellBody,
    request: Request,
    parts: Here,
    owner: Owner,
    holder: KeyHolder,
    stream: bool = False,
    key: IdempotencyKey = None,
) -> Any:
    """Run a shell line; with `stream` one JSON object per line: `type` stdout, stderr or exit, `output`, `exit_code`.

    A character is never split between two lines; what is no text is also there in `base64`.
    """
    content = f"{sandbox}\n{body.model_dump_json()}"
    keyed = None if key is None else KeyedRequest(holder, key, "POST execute", content)
    start = partial(_start, parts, owner, parts.id_of(sandbox, owner), body)
    answer = await start_execution_once(parts, start, keyed)
    execution_id = ExecutionId(answer.id)
    headers = dict(REPLAYED) if answer.is_replay else {}
    if stream:
        return Stream(_lines(follow_for(parts, execution_id, None)), NDJSON, headers)
    gathered = await gather_for(request, parts, execution_id, None)
    fields = gathered.to_fields()
    shown = ShellAnswer(
        stdout=gathered.text(EventType.STDOUT),
        stderr=gathered.text(EventType.STDERR),
        exit_code=shell_code(gathered.outcome),
        stdout_base64=fields["stdout_base64"],
        stderr_base64=fields["stderr_base64"],
        truncated=fields["truncated"] or None,
    )
    content = shown.model_dump_json(exclude_none=True)
    return Response(content, headers=headers, media_type="application/json")


async def _start(
    parts: Parts,
    owner: str,
    sandbox: str,
    body: ShellBody,
    execution_id: ExecutionId,
    key: IdempotencyRecord | None,
) -> None:
    resident = parts.node.find(sandbox, owner)
    command = Command.shell(body.code)
    timeout = parts.timeout(body.timeout)
    await parts.executions.start_command(
        resident, command, timeout=timeout, execution_id=execution_id, key=key
    )


async def _lines(events: AsyncGenerator[ExecutionEvent, None]) -> AsyncGenerator[bytes, None]:
    texts = {kind: _Text() for kind in _DESCRIPTORS}
    async with aclosing(events):
        async for event in events:
            if event.type.is_output:
                for line in _output_lines(event.type, texts[event.type].take(event.data)):
                    yield line
            elif event.type is EventType.END:
                for kind, text in texts.items():
                    for line in _output_lines(kind, text.rest()):
                        yield line
                yield _line("exit", "", shell_code(event.value))


class _Text:
    """Output as text, whole characters at a time; bytes that are none come by themselves."""

    def __init__(self) -> None:
        self._left = b""  # of a character whose end is yet to come

    def take(self, data: bytes) -> bytes:
        """Return what can be shown by now."""
        whole = self._left + data
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        decoder.decode(whole)
        self._left = decoder.getstate()[0]
        return whole[: len(whole) - len(self._left)]

    def rest(self) -> bytes:
        """Return what is left, once nothing more comes."""
        return self._left


def _output_lines(kind: EventType, data: bytes) -> Iterator[bytes]:
    if data:
        text = data.decode("utf-8", "replace")
        yield _line(kind.value, text, _NOT_ENDED, **_exact(data, text))


def _exact(data: bytes, text: str) -> dict[str, str]:
    """Return the bytes of an output in base64, if its text does not hold them."""
    return {} if text.encode() == data else {"base64": b64encode(data).decode()}


def _line(kind: str, output: str, exit_code: int, **more: str) -> bytes:
    fields = {"type": kind, "output": output, "exit_code": exit_code, **more}
    return json.dumps(fields).encode() + b"\n"


@router.get("/logs", response_class=PlainTextResponse, response_model=None)
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


@router.get("/command-executions", response_model=CommandsAnswer)
async def list_commands(
    sandbox: SandboxKey, parts: Here, owner: Owner, limit: Limit = 100
) -> Stream:
    """List the commands of a sandbox, the newest first, with the beginning of what they printed."""
    commands = await _commands(parts, sandbox, owner, limit)
    return Stream(_gathered(_with_logs(parts, commands, _MOST_CHUNKS)), _JSON)


@router.get("/command-executions/{execution}/logs", response_model=CommandChunksAnswer)
async def read_command_logs(
    sandbox: SandboxKey,
    execution: ExecutionKey,
    parts: Here,
    owner: Owner,
    start_id: Annotated[int, Query(ge=0, le=2**53)] = 0,
    limit: Limit = 100,
) -> Stream:
    """Give what a command printed, after the chunk of id `start_id`."""
    sandbox_info = await parts.describe(sandbox, owner)
    info = await parts.executions.describe(execution, owner)
    if info.sandbox != sandbox_info.id:
        raise NotFound(f"there is no execution {info.id} in sandbox {sandbox_info.id}")
    return Stream(_gathered(_of_one(parts, info, start_id, limit)), _JSON)


@router.get("/execution-logs", response_model=CommandsAnswer)
async def read_all_logs(
    sandbox: SandboxKey, parts: Here, owner: Owner, limit: Limit = 1000
) -> Stream:
    """Give the commands of a sandbox, the oldest first, with what they printed, at most `limit` chunks; also after its end."""
    commands = await _commands(parts, sandbox, owner, limit)
    return Stream(_gathered(_with_logs(parts, commands[::-1], limit)), _JSON)


# Answers may hold all that a log does, and several times that as JSON. So they are written piece by piece: made at once, one would
# take its time from everybody else's requests, and its room for as long as its reader takes.


async def _with_logs(
    parts: Parts, commands: Sequence[ExecutionInfo], most: int
) -> AsyncGenerator[bytes, None]:
    """Yield a `CommandsAnswer`, with so many pieces of output in all."""
    yield b'{"executions":['
    for place, info in enumerate(commands):
        fields = CommandAnswer(**_fields(info)).model_dump_json().encode()
        yield (b"," if place else b"") + fields[:-1] + b',"logs":['
        async with aclosing(_chunks(parts, info, 0, most)) as chunks:
            async for chunk in chunks:
                yield chunk
                most -= 1
        yield b"]}"
    yield b"]}"


async def _of_one(
    parts: Parts, info: ExecutionInfo, after: int, most: int
) -> AsyncGenerator[bytes, None]:
    """Yield a `CommandChunksAnswer`."""
    fields = CommandAnswer(**_fields(info)).model_dump_json().encode()
    yield b'{"execution":' + fields + b',"logs":['
    async with aclosing(_chunks(parts, info, after, most)) as chunks:
        async for chunk in chunks:
            yield chunk
    yield b"]}"


async def _gathered(pieces: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """Yield the same bytes, of small pieces many at a time."""
    held = bytearray()
    async with aclosing(pieces):
        async for piece in pieces:
            held += piece
            if len(held) >= _SENT_BYTES:
                yield bytes(held)
                held.clear()
    yield bytes(held)


async def _commands(parts: Parts, sandbox: str, owner: str, limit: int) -> Sequence[ExecutionInfo]:
    info = await parts.describe(sandbox, owner)
    page = await parts.executions.list(sandbox=info.id, owner=owner, limit=limit)
    return [each for each in page.executions if each.kind is ExecutionKind.COMMAND]


async def _chunks(
    parts: Parts, info: ExecutionInfo, after: int, most: int
) -> AsyncGenerator[bytes, None]:
    """Yield chunks of output among `most` events, with commas between them, one step of the event loop for each.

    Their ids are the numbers of events counted from 1, so that 0 is before all.
    """
    start, end, comma = after, after + most, b""
    while start < end and (
        events := await _read_page(parts, info.id, start, min(end - start, _PAGE))
    ):
        for event in events:
            if event.type.is_output:
                yield comma + _chunk(info, event).model_dump_json().encode()
                comma = b","
            await checkpoint()
        start += len(events)


async def _read_page(
    parts: Parts, execution: ExecutionId, start: int, most: int
) -> Sequence[ExecutionEvent]:
    try:
        return await parts.executions.read(execution, start, most)
    except NotFound:
        return ()  # forgotten since it was listed


def _chunk(info: ExecutionInfo, event: ExecutionEvent) -> ChunkAnswer:
    text = event.data.decode("utf-8", "replace")
    return ChunkAnswer(
        id=event.seq + 1,
        fd=_DESCRIPTORS[event.type],
        content=text,
        created_at=info.started_at + event.t,
        **_exact(event.data, text),
    )


def _fields(info: ExecutionInfo) -> dict[str, Any]:
    return {
        "id": info.id,
        "command": command_line(info),
        "exit_code": None if info.ended_at is None else shell_code(info.outcome),
        "executed_at": info.started_at,
        "ended_at": info.ended_at,
    }
