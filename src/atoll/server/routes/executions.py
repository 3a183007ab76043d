"""Executions: commands, cells and terminals in a sandbox, and the events that come of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from atoll.model.ids import ExecutionId, KernelId
from atoll.node.idempotency import Answer, KeyedRequest
from atoll.server.answers import ExecutionAnswer, FinishedAnswer
from atoll.server.auth import Owner
from atoll.server.bodies import ExecutionBody, SignalBody, SizeBody
from atoll.server.keys import REPLAYED, IdempotencyKey, start_execution_once
from atoll.server.parts import ExecutionKey, Here, Parts, SandboxKey
from atoll.server.routes.sandboxes import NEXT_CURSOR
from atoll.server.streams import Stream, first_event, stream_events
from atoll.server.waiting import follow_for, gather_for

router = APIRouter(tags=["executions"])
EXECUTION = "Atoll-Execution"
Start = Annotated[int, Query(ge=0, le=2**53)]


@router.post(
    "/sandboxes/{sandbox}/executions",
    status_code=201,
    response_model=FinishedAnswer | ExecutionAnswer,
)
async def start_execution(
    sandbox: SandboxKey,
    body: ExecutionBody,
    request: Request,
    parts: Here,
    owner: Owner,
    key: IdempotencyKey = None,
) -> Response:
    """Start a command, a cell or a terminal.

    Returns at once, or with `wait` at its end together with its output, or with `stream` all events as they come:
    NDJSON, or SSE for callers that accept `text/event-stream`.
    """
    answer = await _start_once(parts, owner, sandbox, body, key)
    execution_id = ExecutionId(answer.id)
    headers = {EXECUTION: execution_id, **(REPLAYED if answer.is_replay else {})}
    if body.stream:
        events = follow_for(parts, execution_id, body.on_disconnect)
        return stream_events(request, events, headers, status=201)
    if body.wait:
        gathered = await gather_for(request, parts, execution_id, body.on_disconnect)
        info = await parts.executions.describe(execution_id, owner)
        return _json(FinishedAnswer.finished(info, **gathered.to_fields()), headers)
    info = await parts.executions.describe(execution_id, owner)
    return _json(ExecutionAnswer.of(info), headers)


async def _start_once(
    parts: Parts, owner: str, sandbox: str, body: ExecutionBody, key: str | None
) -> Answer:
    content = f"{sandbox}\n{body.model_dump_json(exclude={'wait', 'stream', 'on_disconnect'})}"
    request = None if key is None else KeyedRequest(owner, key, "POST executions", content)
    return await start_execution_once(parts, partial(_start, parts, owner, sandbox, body), request)


async def _start(parts: Parts, owner: str, sandbox: str, body: ExecutionBody, new_id: str) -> None:
    resident = parts.node.find(sandbox, owner)
    timeout = parts.timeout(body.timeout)
    execution_id = ExecutionId(new_id)
    match body.kind:
        case "cell":
            await parts.executions.start_cell(
                resident,
                body.code or "",
                kernel=_kernel(body),
                timeout=timeout,
                execution_id=execution_id,
            )
        case "terminal":
            await parts.executions.open_terminal(
                resident,
                body.command if body.argv is None else body.argv,
                size=body.size.to_size(),
                cwd=body.cwd,
                env=body.env,
                execution_id=execution_id,
            )
        case "command":
            await parts.executions.start_command(
                resident,
                body.to_command(),
                stdin=body.input,
                keep_stdin=body.keep_stdin,
                timeout=timeout,
                execution_id=execution_id,
            )


@router.get("/sandboxes/{sandbox}/executions")
async def list_executions(
    sandbox: SandboxKey,
    parts: Here,
    owner: Owner,
    response: Response,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    cursor: str | None = None,
) -> Sequence[ExecutionAnswer]:
    """List what was carried out in a sandbox, the newest first; a header has the cursor of the next page."""
    info = await parts.describe(sandbox, owner)
    page = await parts.executions.list(sandbox=info.id, owner=owner, limit=limit, after=cursor)
    if page.after is not None:
        response.headers[NEXT_CURSOR] = page.after
    return [ExecutionAnswer.of(each) for each in page.executions]


@router.get("/executions/{execution}")
async def get_execution(execution: ExecutionKey, parts: Here, owner: Owner) -> ExecutionAnswer:
    """Tell about an execution, also about one that has ended."""
    return ExecutionAnswer.of(await parts.executions.describe(execution, owner))


@router.get("/executions/{execution}/events", response_model=None)
async def read_events(
    execution: ExecutionKey,
    request: Request,
    parts: Here,
    owner: Owner,
    start: Start = 0,
    follow: bool = True,
) -> Stream:
    """Give the events from number `start` on: those that there are, and with `follow` all to the end.

    NDJSON, or SSE for callers that accept `text/event-stream`; SSE resumes after the header `Last-Event-ID`.
    """
    info = await parts.executions.describe(execution, owner)
    begin = first_event(request, start)
    events = parts.executions.follow(info.id, begin) if follow else parts.present(info.id, begin)
    return stream_events(request, events)


@router.post("/executions/{execution}/stdin", status_code=204)
async def write_stdin(
    execution: ExecutionKey, request: Request, parts: Here, owner: Owner, close: bool = False
) -> None:
    """Send the raw body to standard input; with `close` that is the end of it."""
    running = await parts.find_running(execution, owner)
    async for data in request.stream():
        if data:
            await running.write(data)
    if close:
        await running.close_stdin()


@router.post("/executions/{execution}/signal", status_code=204)
async def send_signal(execution: ExecutionKey, body: SignalBody, parts: Here, owner: Owner) -> None:
    """Send a signal."""
    await (await parts.find_running(execution, owner)).signal(body.signal)


@router.post("/executions/{execution}/resize", status_code=204)
async def resize(execution: ExecutionKey, body: SizeBody, parts: Here, owner: Owner) -> None:
    """Change the size of a terminal."""
    await (await parts.find_running(execution, owner)).resize(body.to_size())


@router.delete("/executions/{execution}", status_code=204)
async def cancel_execution(execution: ExecutionKey, parts: Here, owner: Owner) -> None:
    """End an execution and all that it started; one that has ended is fine."""
    await parts.executions.describe(execution, owner)
    await parts.cancel(execution)


def _kernel(body: ExecutionBody) -> KernelId | None:
    return None if body.kernel is None else KernelId(body.kernel)


def _json(answer: ExecutionAnswer, headers: dict[str, Any]) -> Response:
    # In ASCII: what a cell shows may hold half characters, which no other way carries.
    return Response(json.dumps(answer.model_dump()), 201, headers, "application/json")
