"""Sandboxes: create, find, list, change, pause, destroy."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Query, Response

from atoll.errors import InvalidRequest, NotFound, Unsupported
from atoll.model.ids import SandboxId
from atoll.model.sandbox import SandboxRequest, SandboxState, check_labels
from atoll.node.idempotency import KeyedRequest
from atoll.node.node import NEVER_MADE, NOT_CREATED
from atoll.node.residents import Resident
from atoll.server.answers import SandboxAnswer
from atoll.server.auth import Owner
from atoll.server.bodies import SandboxBody, SandboxChange
from atoll.server.keys import REPLAYED, IdempotencyKey
from atoll.server.labels import LABEL, own_labels
from atoll.server.parts import Here, Parts, SandboxKey

router = APIRouter(tags=["sandboxes"])
NEXT_CURSOR = "Atoll-Next-Cursor"


@router.post("/sandboxes", status_code=201)
async def create_sandbox(
    body: SandboxBody, parts: Here, owner: Owner, response: Response, key: IdempotencyKey = None
) -> SandboxAnswer:
    """Make a sandbox. With the header `Idempotency-Key` the same request makes only one."""
    request = body.to_request(owner, parts.settings.limits.chosen())
    if key is None:
        return SandboxAnswer.of((await _create(parts, request, request.spec.id)).info)
    answer = await parts.idempotency.once(
        KeyedRequest(owner, key, "POST /sandboxes", body.model_dump_json()),
        request.spec.id,
        partial(_create, parts, request),
        partial(_exists, parts),
    )
    if answer.is_replay:
        response.headers.update(REPLAYED)
    return SandboxAnswer.of(await parts.node.describe(SandboxId(answer.id), owner))


async def _create(parts: Parts, request: SandboxRequest, _id: str) -> Resident:
    begun = time.perf_counter()
    resident = await parts.node.create(request)
    parts.counters.create_seconds.observe(time.perf_counter() - begun, resident.info.engine)
    await parts.programs.start(resident, request)
    return resident


async def _exists(parts: Parts, sandbox_id: str) -> bool:
    try:
        info = await parts.node.describe(SandboxId(sandbox_id))
    except NotFound:
        return False
    return not info.reason.startswith((NEVER_MADE, NOT_CREATED))


@router.get("/sandboxes")
async def list_sandboxes(
    parts: Here,
    owner: Owner,
    response: Response,
    state: Annotated[list[SandboxState] | None, Query()] = None,
    label: Annotated[list[str] | None, Query()] = None,
    name: str | None = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 1000,
    cursor: str | None = None,
) -> Sequence[SandboxAnswer]:
    """List sandboxes, the newest first, also those that are no more; a header has the cursor of the next page.

    `label` is `name=value` and may be given several times, `state` too.
    """
    page = await parts.node.list(
        owner=owner, states=state, labels=_read_labels(label), name=name, limit=limit, after=cursor
    )
    if page.after is not None:
        response.headers[NEXT_CURSOR] = page.after
    return [SandboxAnswer.of(info) for info in page.sandboxes]


@router.delete("/sandboxes")
async def destroy_all(parts: Here, owner: Owner) -> dict[str, int]:
    """Destroy all sandboxes of the caller."""
    return {"destroyed": await parts.node.reset(owner)}


@router.get("/sandboxes/{sandbox}")
async def get_sandbox(sandbox: SandboxKey, parts: Here, owner: Owner) -> SandboxAnswer:
    """Tell about a sandbox by its id, also about one that is no more, or by its name."""
    return SandboxAnswer.of(await parts.describe(sandbox, owner))


@router.patch("/sandboxes/{sandbox}")
async def change_sandbox(
    sandbox: SandboxKey, body: SandboxChange, parts: Here, owner: Owner
) -> SandboxAnswer:
    """Change a sandbox's name or labels."""
    resident = parts.node.find(sandbox, owner)
    if body.public:
        raise Unsupported("ports of sandboxes cannot be made public here; leave 'public' out")
    labels = _changed_labels(resident, body)
    # Looked at before anything is changed: all of it happens, or nothing.
    check_labels(labels)
    if body.name is not None:
        parts.node.rename(resident, body.name)
    if labels != resident.record.labels:
        parts.node.label(resident, labels)
    return SandboxAnswer.of(resident.info)


@router.delete("/sandboxes/{sandbox}", status_code=204)
async def destroy_sandbox(
    sandbox: SandboxKey, parts: Here, owner: Owner, key: IdempotencyKey = None
) -> Response:
    """Destroy a sandbox; one that is no more is fine."""
    info = await parts.describe(sandbox, owner)
    if key is None:
        await parts.node.destroy(info.id, owner)
        return Response(status_code=204)
    answer = await parts.idempotency.once(
        KeyedRequest(owner, key, "DELETE /sandboxes", info.id),
        info.id,
        partial(_destroy, parts, owner),
        partial(_is_over, parts),
    )
    return Response(status_code=204, headers=REPLAYED if answer.is_replay else None)


async def _destroy(parts: Parts, owner: str, sandbox_id: str) -> None:
    await parts.node.destroy(SandboxId(sandbox_id), owner)


async def _is_over(parts: Parts, sandbox_id: str) -> bool:
    return (await parts.node.describe(SandboxId(sandbox_id))).state.is_over


@router.put("/sandboxes/{sandbox}/pause", status_code=204)
async def pause_sandbox(sandbox: SandboxKey, parts: Here, owner: Owner) -> None:
    """Stop every process of a sandbox in place."""
    await parts.node.pause(parts.node.find(sandbox, owner))


@router.delete("/sandboxes/{sandbox}/pause", status_code=204)
async def resume_sandbox(sandbox: SandboxKey, parts: Here, owner: Owner) -> None:
    """Let every process of a sandbox go on."""
    await parts.node.resume(parts.node.find(sandbox, owner))


def _read_labels(texts: Sequence[str] | None) -> Mapping[str, str] | None:
    if texts is None:
        return None
    labels = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise InvalidRequest(f"label {text[:80]!r} is not name=value")
        labels[name] = value
    return labels


def _changed_labels(resident: Resident, body: SandboxChange) -> Mapping[str, str]:
    old = resident.record.labels
    new = old if body.labels is None else {**body.labels, **own_labels(old)}
    return {**new, LABEL: body.label} if body.label is not None else new
