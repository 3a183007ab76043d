"""Sandboxes: create, find, list, change, pause, stop, destroy; and their forks, of which there are none yet."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any, NoReturn

from fastapi import APIRouter, Query, Response

from atoll.errors import Conflict, InvalidRequest, NotFound, Unsupported
from atoll.model.ids import SandboxId
from atoll.model.sandbox import SandboxRequest, SandboxState
from atoll.node.idempotency import KeyedRequest
from atoll.node.node import NOT_CREATED
from atoll.node.residents import Resident
from atoll.node.sandbox_adoption import NEVER_MADE
from atoll.server.answers import (
    ChangedAnswer,
    CountAnswer,
    DestroyedAnswer,
    SandboxAnswer,
    SandboxTreeAnswer,
    TreeNodeAnswer,
)
from atoll.server.auth import Owner
from atoll.server.bodies import ForkBody, SandboxBody, SandboxChange
from atoll.server.errors import Problem, Refusal
from atoll.server.json_bodies import JsonRoute
from atoll.server.keys import REPLAYED, FirstTry, IdempotencyKey, KeyHolder
from atoll.server.labels import LABEL, PUBLIC, own_labels
from atoll.server.parts import Here, Parts, SandboxKey

router = APIRouter(tags=["sandboxes"], route_class=JsonRoute)
NEXT_CURSOR = "Atoll-Next-Cursor"
# What is known to be missing, as an answer of its own.
NOT_YET: dict[int | str, dict[str, Any]] = {
    501: {"model": Problem, "description": "This cannot be done yet."}
}


@router.post("/sandboxes")
async def create_sandbox(
    body: SandboxBody,
    parts: Here,
    owner: Owner,
    holder: KeyHolder,
    response: Response,
    key: IdempotencyKey = None,
    is_new: FirstTry = False,
) -> SandboxAnswer:
    """Make a sandbox. With the header `Idempotency-Key` the same request makes only one."""
    settings = parts.settings
    request = parts.check_mounts(
        body.to_request(owner, settings.limits.chosen(), settings.node.engine)
    )
    create = partial(_create, parts, request, is_chosen=body.id is not None)
    if key is None:
        return SandboxAnswer.of((await create()).info)
    answer = await parts.idempotency.once(
        KeyedRequest(holder, key, "POST /sandboxes", body.model_dump_json()),
        request.spec.id,
        lambda _intent: create(),
        partial(_exists, parts),
        is_new=is_new,
    )
    if answer.is_replay:
        response.headers.update(REPLAYED)
    return SandboxAnswer.of(await parts.node.describe(SandboxId(answer.id), owner))


async def _create(parts: Parts, request: SandboxRequest, *, is_chosen: bool) -> Resident:
    if is_chosen:
        await _check_free(parts, request)
    begun = time.perf_counter()
    resident = await parts.node.create(request)
    parts.counters.create_seconds.observe(time.perf_counter() - begun, resident.info.engine)
    await parts.programs.start(resident, request)
    return resident


async def _check_free(parts: Parts, request: SandboxRequest) -> None:
    """Raise `Conflict` if there has been a sandbox of this id: it may be another's, whose history a new one would replace."""
    if not parts.records.may_have_sandbox(request.spec.id):
        return
    known = await parts.records.find_sandbox(request.spec.id)
    if known is not None and (known.owner != request.owner or _was_made(known.reason)):
        raise Conflict(f"there has been a sandbox {known.id}; leave the id out to get a new one")


async def _exists(parts: Parts, sandbox_id: str) -> bool:
    try:
        info = await parts.node.describe(SandboxId(sandbox_id))
    except NotFound:
        return False
    return _was_made(info.reason)


def _was_made(reason: str) -> bool:
    return not reason.startswith((NEVER_MADE, NOT_CREATED))


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
async def destroy_all(parts: Here, owner: Owner) -> CountAnswer:
    """Destroy all sandboxes of the caller."""
    return CountAnswer(destroyed=await parts.node.reset(owner))


@router.get("/sandboxes/{sandbox}")
async def get_sandbox(sandbox: SandboxKey, parts: Here, owner: Owner) -> SandboxAnswer:
    """Tell about a sandbox by its id, also about one that is no more, or by its name."""
    return SandboxAnswer.of(await parts.describe(sandbox, owner))


@router.patch("/sandboxes/{sandbox}")
async def change_sandbox(
    sandbox: SandboxKey, body: SandboxChange, parts: Here, owner: Owner
) -> ChangedAnswer:
    """Change a sandbox's name or labels, or whether strangers may reach what it serves, once something leads there."""
    resident = parts.node.find(sandbox, owner)
    labels = _changed_labels(resident, body)
    changed = None if labels == resident.record.labels else labels
    if body.name is not None or changed is not None:
        parts.node.update(resident, name=body.name, labels=changed)
    return ChangedAnswer.after(resident.info)


@router.delete("/sandboxes/{sandbox}")
async def destroy_sandbox(
    sandbox: SandboxKey,
    parts: Here,
    owner: Owner,
    holder: KeyHolder,
    response: Response,
    key: IdempotencyKey = None,
    is_new: FirstTry = False,
) -> DestroyedAnswer:
    """Destroy a sandbox; one that is no more is fine."""
    info = await parts.describe(sandbox, owner)
    gone = DestroyedAnswer(id=info.id, message=f"sandbox {info.id} is no more")
    if key is None:
        await parts.node.destroy(info.id, owner)
        return gone
    answer = await parts.idempotency.once(
        KeyedRequest(holder, key, "DELETE /sandboxes", info.id),
        info.id,
        lambda _intent: parts.node.destroy(info.id, owner),
        partial(_is_over, parts),
        is_new=is_new,
    )
    if answer.is_replay:
        response.headers.update(REPLAYED)
    return gone


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


@router.post("/sandboxes/{sandbox}/clean", status_code=204)
async def clean_sandbox(sandbox: SandboxKey, parts: Here, owner: Owner) -> None:
    """End every process of a sandbox and remove every file, so that it is as new for its owner."""
    await parts.node.find(sandbox, owner).hosted.clean()


@router.put("/sandboxes/{sandbox}/stop", status_code=204)
async def stop_sandbox(sandbox: SandboxKey, parts: Here, owner: Owner) -> None:
    """End every process of a persistent sandbox; its files stay, and it keeps its id until its lifetime is over."""
    found = parts.node.roster.find(sandbox, owner)
    if isinstance(found, Resident):
        await parts.node.stopping.stop(found)


@router.delete("/sandboxes/{sandbox}/stop", status_code=204)
async def resume_stopped_sandbox(sandbox: SandboxKey, parts: Here, owner: Owner) -> None:
    """Have a sandbox that was stopped go on with its files; one that runs is fine."""
    if not isinstance(parts.node.roster.find(sandbox, owner), Resident):
        await parts.node.stopping.resume(sandbox, owner)


@router.post("/sandboxes/{sandbox}/fork", responses=NOT_YET)
async def fork_sandbox(
    sandbox: SandboxKey, parts: Here, owner: Owner, body: ForkBody | None = None
) -> SandboxAnswer:
    """Make a second running sandbox from a running one; not yet."""
    parts.node.find(sandbox, owner)
    _refuse_yet("forked; make another one, and copy its files with /archive")


@router.post("/sandboxes/{sandbox}/coalesce/{final}", responses=NOT_YET)
async def coalesce_sandbox(
    sandbox: SandboxKey, final: SandboxKey, parts: Here, owner: Owner
) -> SandboxAnswer:
    """Keep one descendant of a sandbox and destroy the others; not yet, as there are no forks."""
    parts.node.find(sandbox, owner)
    _refuse_yet("forked, so none descends from another; destroy those that are not needed")


@router.get("/sandboxes/{sandbox}/tree")
async def get_tree(sandbox: SandboxKey, parts: Here, owner: Owner) -> SandboxTreeAnswer:
    """Draw a sandbox and its forks, also those that are no more, and tell the same as JSON."""
    info = await parts.describe(sandbox, owner)
    return SandboxTreeAnswer.of(TreeNodeAnswer.of(info))


def _refuse_yet(what: str) -> NoReturn:
    raise Refusal(Unsupported(f"sandboxes cannot yet be {what}"), 501)


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
    new = dict(old if body.labels is None else {**body.labels, **own_labels(old)})
    if body.label is not None:
        new[LABEL] = body.label
    if body.public:
        new[PUBLIC] = "true"
    elif body.public is False:
        new.pop(PUBLIC, None)
    return new
