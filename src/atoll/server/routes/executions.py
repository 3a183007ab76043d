"""Executions: commands, cells and terminals in a sandbox, and the events that come of them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Annotated, Any

import anyio
from fastapi import APIRouter, Query, Request, Response
from pydantic import ValidationError
from starlette.responses import JSONResponse

from atoll.model.ids import ExecutionId, KernelId, new_execution_id
from atoll.model.process import Stream as OutputStream
from atoll.model.sizes import MIB
from atoll.node.execution import Execution
from atoll.node.idempotency import Answer, KeyedRequest
from atoll.node.records import IdempotencyRecord
from atoll.server.answers import EventAnswer, ExecutionAnswer, FinishedAnswer
from atoll.server.auth import Owner, find_owner
from atoll.server.bodies import ExecutionBody, InputBody, SignalBody, SizeBody, StopBody
from atoll.server.json_bodies import JsonRoute, StrictRequest
from atoll.server.keys import (
    REPLAYED,
    FirstTry,
    IdempotencyKey,
    KeyHolder,
    find_key_holder,
    start_execution_once,
)
from atoll.server.parts import ExecutionKey, Here, Parts, SandboxKey
from atoll.server.routes.sandboxes import NEXT_CURSOR
from atoll.server.streams import (
    NDJSON,
    SSE,
    Stream,
    answer_events,
    first_event,
    stream_events,
)
from atoll.server.waiting import follow_for, gather_ended, gather_for

router = APIRouter(tags=["executions"], route_class=JsonRoute)
EXECUTION = "Atoll-Execution"
Start = Annotated[int, Query(ge=0, le=2**53)]
TailBytes = Annotated[int, Query(ge=0, le=MIB)]
_BYTES = "application/octet-stream"
_JSON = "application/json"
_KEY, _FIRST_TRY = "idempotency-key", "atoll-first-try"
# What of a request says how it is asked or answered, and not what is to be done: by whichever way it comes, it is the same.
_HOW = {"wait", "stream", "on_disconnect", "type", "id"}
# How long the first events of a stream may wait for its end.
_MOMENT = 0.005
_PLAIN_NAME = re.compile(r"[a-z0-9-]{1,40}")


class EventStream(JSONResponse):
    """Events as they come, as far as the description of the API goes: one JSON object per line."""

    media_type = NDJSON


_EVENTS: dict[int | str, dict[str, Any]] = {200: {"model": EventAnswer, "content": {SSE: {}}}}
_STREAMED: dict[int | str, dict[str, Any]] = {
    201: {"content": {NDJSON: {"schema": {"$ref": "#/components/schemas/EventAnswer"}}, SSE: {}}}
}
RAW_BODY: dict[str, Any] = {
    "requestBody": {"content": {_BYTES: {"schema": {"type": "string", "format": "binary"}}}}
}


async def start_execution(
    sandbox: SandboxKey,
    body: ExecutionBody,
    request: Request,
    parts: Here,
    owner: Owner,
    holder: KeyHolder,
    key: IdempotencyKey = None,
    is_new: FirstTry = False,
) -> Response:
    """Start a command, a cell or a terminal.

    Returns at once, or with `wait` at its end together with its output, or with `stream` all events as they come:
    NDJSON, or SSE for callers that accept `text/event-stream`.
    """
    begun: list[Execution] = []
    answer = await start_once(
        parts, owner, sandbox, body, key, holder, is_new=is_new, begun=begun.append
    )
    execution_id = ExecutionId(answer.id)
    headers = {EXECUTION: execution_id, **(REPLAYED if answer.is_replay else {})}
    if body.stream:
        # Most cells: to send an answer while it is made costs more than they do.
        if begun and (whole := await begun[0].whole_log(_MOMENT)) is not None:
            return answer_events(request, whole, headers, 201)
        events = follow_for(parts, execution_id, body.on_disconnect)
        return stream_events(request, events, headers, status=201)
    if body.wait and begun and begun[0].has_ended:
        gathered = await gather_ended(parts, begun[0])
        return _json(FinishedAnswer.fields(begun[0].info, gathered.to_fields()), headers)
    if body.wait:
        gathered = await gather_for(request, parts, execution_id, body.on_disconnect)
        info = await parts.executions.describe(execution_id, owner)
        return _json(FinishedAnswer.fields(info, gathered.to_fields()), headers)
    return _json((await _describe(parts, execution_id, owner)).model_dump(), headers)


class _QuickRoute(JsonRoute):
    """Takes a plain request for an execution apart by itself, as FastAPI needs as long for that as a cell takes to run.

    Whatever is not plain about one is left to FastAPI, which takes or refuses it as those of every other route.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return what answers a request."""
        handle = super().get_route_handler()

        async def handle_quickly(request: Request) -> Response:
            asked = StrictRequest.of(request)
            plain = await _read_plain(asked)
            return await handle(asked) if plain is None else await start_execution(**plain)

        return handle_quickly


async def _read_plain(request: StrictRequest) -> dict[str, Any] | None:
    """Return what `start_execution` is to be called with; None if there is anything about it that is not plain."""
    sandbox, headers = request.path_params["sandbox"], request.headers
    keys, tries = headers.getlist(_KEY), headers.getlist(_FIRST_TRY)
    if headers.getlist("content-type") != [_JSON] or not _PLAIN_NAME.fullmatch(sandbox):
        return None
    if len(keys) > 1 or keys == [""] or tries not in ([], ["true"]):
        return None
    fields = await request.json()
    owner = await find_owner(request)
    try:
        body = ExecutionBody.model_validate(fields)
    except ValidationError:
        return None
    return {
        "sandbox": sandbox,
        "body": body,
        "request": request,
        "parts": request.app.state.parts,
        "owner": owner,
        "holder": await find_key_holder(request),
        "key": keys[0] if keys else None,
        "is_new": bool(tries),
    }


router.add_api_route(
    "/sandboxes/{sandbox}/executions",
    start_execution,
    methods=["POST"],
    status_code=201,
    response_model=FinishedAnswer | ExecutionAnswer,
    responses=_STREAMED,
    route_class_override=_QuickRoute,
)


async def start_once(
    parts: Parts,
    owner: str,
    sandbox: str,
    body: ExecutionBody,
    key: str | None,
    holder: str,
    *,
    is_new: bool = False,
    sandbox_id: str | None = None,
    begun: Callable[[Execution], None] = lambda _execution: None,
) -> Answer:
    """Begin an execution; of requests with the same key of one holder only the first one. As for `is_new`, see `Idempotency.once`.

    `sandbox` is how the caller names it, by which requests are compared; `sandbox_id` which one that is, if it is known. `begun` is
    given the execution if this request begins it; it may have ended by then.
    """
    request = None if key is None else _keyed(sandbox, body, key, holder)
    # Found before anything is waited for: meanwhile another one may have got its name.
    found = sandbox_id or parts.id_of(sandbox, owner)

    async def start(execution_id: ExecutionId, key: IdempotencyRecord | None) -> None:
        begun(await _start(parts, owner, found, body, execution_id, key))

    return await start_execution_once(parts, start, request, is_new=is_new)


def try_start_cell(
    parts: Parts,
    owner: str,
    sandbox: str,
    body: ExecutionBody,
    key: str,
    holder: str,
    sandbox_id: str,
) -> Execution | None:
    """Begin a cell that its caller never asked for before, if nothing has to be waited for; see `start_once`. None: nothing has happened."""
    if body.track_files or body.ask_input or body.code is None:
        return None
    resident = parts.node.find(sandbox_id, owner)
    execution_id = new_execution_id()
    intent = parts.idempotency.first(_keyed(sandbox, body, key, holder), execution_id)
    if intent is None:
        return None
    with parts.idempotency.free_on_error(intent):
        return parts.executions.try_start_cell(
            resident,
            body.code,
            kernel=_kernel(body),
            language=body.language,
            timeout=parts.cell_timeout(body.timeout),
            execution_id=execution_id,
            key=intent,
        )


def _keyed(sandbox: str, body: ExecutionBody, key: str, holder: str) -> KeyedRequest:
    content = f"{sandbox}\n{body.model_dump_json(exclude=_HOW)}"
    return KeyedRequest(holder, key, "POST executions", content)


async def _start(
    parts: Parts,
    owner: str,
    sandbox: str,
    body: ExecutionBody,
    execution_id: ExecutionId,
    key: IdempotencyRecord | None,
) -> Execution:
    resident = parts.node.find(sandbox, owner)
    match body.kind:
        case "cell":
            return await parts.executions.start_cell(
                resident,
                body.code or "",
                kernel=_kernel(body),
                language=body.language,
                timeout=parts.cell_timeout(body.timeout),
                track_files=body.track_files,
                asks=body.ask_input,
                execution_id=execution_id,
                key=key,
            )
        case "terminal":
            return await parts.executions.open_terminal(
                resident,
                body.command if body.argv is None else body.argv,
                size=body.size.to_size(),
                cwd=body.cwd,
                env=body.env,
                execution_id=execution_id,
                key=key,
            )
        case _:
            return await parts.executions.start_command(
                resident,
                body.to_command(),
                stdin=body.input,
                keep_stdin=body.keep_stdin,
                background=body.background,
                timeout=parts.timeout(body.timeout),
                execution_id=execution_id,
                key=key,
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
async def get_execution(
    execution: ExecutionKey,
    parts: Here,
    owner: Owner,
    wait: Annotated[float, Query(ge=0, le=300)] = 0.0,
) -> ExecutionAnswer:
    """Tell about an execution, also about one that has ended; with `wait` at its end, or after so many seconds."""
    answer = await _describe(parts, execution, owner)
    running = parts.running_or_none(execution)
    if not wait or running is None:
        return answer
    with anyio.move_on_after(wait):
        await running.wait()
    return await _describe(parts, execution, owner)


async def _describe(parts: Parts, execution: ExecutionId, owner: str) -> ExecutionAnswer:
    info = await parts.executions.describe(execution, owner)
    running = parts.running_or_none(execution)
    return ExecutionAnswer.of(info, None if running is None else running.pid)


@router.get(
    "/executions/{execution}/logs",
    response_class=Response,
    responses={200: {"content": {_BYTES: {}}}},
)
async def read_output(
    execution: ExecutionKey,
    parts: Here,
    owner: Owner,
    stream: OutputStream = "stdout",
    tail_bytes: TailBytes = MIB,
) -> Response:
    """Give the last bytes of what was printed so far; headers tell how many there are in all, and if more were cut off."""
    info = await parts.executions.describe(execution, owner)
    return await tail_answer(parts, info.id, stream, tail_bytes)


async def tail_answer(
    parts: Parts, execution: ExecutionId, stream: OutputStream, tail_bytes: int
) -> Response:
    """Return the end of an output as an answer."""
    tail = await parts.executions.read_tail(execution, stream, tail_bytes)
    headers = {
        "Atoll-Total-Bytes": str(tail.total_bytes),
        "Atoll-Truncated": str(tail.truncated).lower(),
        "Cache-Control": "no-store",
        "X-Content-Type-Options": "nosniff",
    }
    return Response(tail.data, headers=headers, media_type=_BYTES)


@router.get(
    "/executions/{execution}/events",
    response_model=None,
    response_class=EventStream,
    responses=_EVENTS,
)
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


@router.post("/executions/{execution}/stdin", status_code=204, openapi_extra=RAW_BODY)
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


@router.post("/executions/{execution}/input", status_code=204)
async def answer_input(execution: ExecutionKey, body: InputBody, parts: Here, owner: Owner) -> None:
    """Give a cell the line that it asks for with `input()`, as one of its events told; 409 if it asks for none."""
    await (await parts.find_running(execution, owner)).answer(body.text)


@router.post("/executions/{execution}/stop")
async def stop_execution(
    execution: ExecutionKey, parts: Here, owner: Owner, body: StopBody | None = None
) -> ExecutionAnswer:
    """Ask an execution to end with TERM, and after `grace` seconds end it and all that it started; answers at its end."""
    await parts.executions.describe(execution, owner)
    running = parts.running_or_none(execution)
    if running is not None:
        await running.stop((body or StopBody()).grace)
    return await _describe(parts, execution, owner)


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


def _json(answer: Mapping[str, Any], headers: dict[str, Any]) -> Response:
    # In ASCII: what a cell shows may hold half characters, which no other way carries.
    return Response(json.dumps(answer), 201, headers, _JSON)
