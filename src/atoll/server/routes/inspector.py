"""A look into sandboxes without touching them: files, ports, processes and their logs, for pages that show these. Reads only."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing, contextmanager
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Response
from pydantic import BaseModel
from starlette.responses import StreamingResponse

from atoll.errors import Conflict, InvalidRequest, LimitExceeded, NotFound, Unsupported
from atoll.model.file import FileInfo, FileKind
from atoll.model.process import Stream as OutputStream
from atoll.model.sandbox import SandboxInfo, SandboxState
from atoll.model.sizes import KIB, MIB, format_size
from atoll.node.listening_ports import list_ports
from atoll.node.residents import Resident
from atoll.server.answers import FileAnswer, PortAnswer, ProcessAnswer, Time
from atoll.server.auth import Owner
from atoll.server.errors import Problem, Refusal
from atoll.server.json_bodies import JsonRoute
from atoll.server.parts import ExecutionKey, Here, Parts, SandboxKey
from atoll.server.routes.executions import tail_answer
from atoll.server.routes.files import disposition
from atoll.server.routes.processes import describe_processes
from atoll.server.streams import Stream

MOST_FILE_BYTES = 10 * MIB
_MOST_ENTRIES = 1000
_BYTES = "application/octet-stream"
_UNCACHED = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
_REFUSALS: dict[int | str, dict[str, Any]] = {
    409: {"model": Problem, "description": "The sandbox is no more."},
    501: {"model": Problem, "description": "This engine does not show that."},
}
_RAW: dict[int | str, dict[str, Any]] = {
    200: {"content": {_BYTES: {}}},
    413: {"model": Problem, "description": "The file is larger than 10 MiB."},
}
TailBytes = Annotated[int, Query(alias="tailBytes", ge=0, le=MIB)]


async def _keep_nothing(response: Response) -> None:
    response.headers.update(_UNCACHED)


router = APIRouter(
    prefix="/inspector/sandboxes",
    tags=["inspector"],
    dependencies=[Depends(_keep_nothing)],
    route_class=JsonRoute,
)


class CapabilitiesAnswer(BaseModel):
    """What can be looked at in a sandbox."""

    files: bool
    ports: bool
    processes: bool


class InspectedAnswer(BaseModel):
    """A sandbox that can be looked into; `ref` names it in all other paths."""

    ref: str
    name: str
    status: SandboxState
    engine: str
    template: str
    created_at: Time
    capabilities: CapabilitiesAnswer

    @classmethod
    def of(cls, info: SandboxInfo) -> InspectedAnswer:
        """Return facts about a sandbox as an inspector shows them."""
        seen = not info.state.is_over
        return cls(
            ref=info.id,
            name=info.name or info.id,
            status=info.state,
            engine=info.engine,
            template=info.template,
            created_at=info.created_at,
            capabilities=CapabilitiesAnswer(files=seen, ports=seen, processes=seen),
        )


class InspectedSandboxes(BaseModel):
    """The sandboxes that can be looked into."""

    sandboxes: Sequence[InspectedAnswer]


class InspectedFiles(BaseModel):
    """One level of a directory; `truncated`: there is more."""

    path: str
    entries: Sequence[FileAnswer]
    truncated: bool


class InspectedPorts(BaseModel):
    """The ports that something listens on."""

    ports: Sequence[PortAnswer]


class InspectedProcesses(BaseModel):
    """The processes, the oldest first."""

    processes: Sequence[ProcessAnswer]


@router.get("")
async def inspect_all(parts: Here, owner: Owner) -> InspectedSandboxes:
    """List the living sandboxes of the caller, the oldest first."""
    owned = [each for each in parts.node.living() if each.owner == owner]
    return InspectedSandboxes(sandboxes=[InspectedAnswer.of(each.info) for each in owned])


@router.get("/{sandbox}", responses=_REFUSALS)
async def inspect_one(sandbox: SandboxKey, parts: Here, owner: Owner) -> InspectedAnswer:
    """Tell about a sandbox; 409 once it is no more."""
    return InspectedAnswer.of((await _find(parts, sandbox, owner)).info)


@router.get("/{sandbox}/files", responses=_REFUSALS)
async def inspect_files(
    sandbox: SandboxKey, parts: Here, owner: Owner, path: str = "."
) -> InspectedFiles:
    """List one level of a directory, links included: at most 1000 entries."""
    resident = await _find(parts, sandbox, owner)
    with _told_missing(), resident.hosted.activity:
        entries = await resident.hosted.files.list(path)
    shown = [FileAnswer.of(each) for each in entries[:_MOST_ENTRIES]]
    return InspectedFiles(path=path, entries=shown, truncated=len(entries) > len(shown))


@router.get(
    "/{sandbox}/files/content",
    response_model=None,
    response_class=StreamingResponse,
    responses={**_REFUSALS, **_RAW},
)
async def inspect_file(
    sandbox: SandboxKey, path: str, parts: Here, owner: Owner, download: bool = False
) -> Stream:
    """Give what is in a file, at most 10 MiB, as bytes that no browser takes for anything else; `download` saves it."""
    resident = await _find(parts, sandbox, owner)
    with _told_missing(), resident.hosted.activity:
        info = await resident.hosted.files.stat(path)
    if info.kind is not FileKind.FILE:
        raise InvalidRequest(f"{path[:200]!r} is no file, but a {info.kind}; list it instead")
    if info.size > MOST_FILE_BYTES:
        raise Refusal(_too_large(info), 413)
    headers = {
        **_UNCACHED,
        "Content-Length": str(info.size),
        "Content-Disposition": disposition(info, "attachment" if download else "inline"),
    }
    return await Stream(_read(resident, info), _BYTES, headers).begun()


async def _read(resident: Resident, info: FileInfo) -> AsyncGenerator[bytes, None]:
    with resident.hosted.activity:
        async with aclosing(resident.hosted.files.stream(info.path, length=info.size)) as chunks:
            async for chunk in chunks:
                yield chunk


@router.get("/{sandbox}/ports", responses=_REFUSALS)
async def inspect_ports(sandbox: SandboxKey, parts: Here, owner: Owner) -> InspectedPorts:
    """List the ports that something inside listens on."""
    resident = await _find(parts, sandbox, owner)
    with _told_missing(), resident.hosted.activity:
        found = await list_ports(resident.hosted)
    return InspectedPorts(ports=[PortAnswer.of(each) for each in found])


@router.get("/{sandbox}/processes", responses=_REFUSALS)
async def inspect_processes(sandbox: SandboxKey, parts: Here, owner: Owner) -> InspectedProcesses:
    """List the processes: commands that run, and those of the background that have ended."""
    resident = await _find(parts, sandbox, owner)
    with _told_missing():
        found = await describe_processes(parts, resident.info, owner)
    return InspectedProcesses(processes=found)


@router.get(
    "/{sandbox}/processes/{execution}/logs",
    response_class=Response,
    responses={**_REFUSALS, 200: {"content": {_BYTES: {}}}},
)
async def inspect_logs(
    sandbox: SandboxKey,
    execution: ExecutionKey,
    parts: Here,
    owner: Owner,
    stream: OutputStream = "stdout",
    tail_bytes: TailBytes = 64 * KIB,
) -> Response:
    """Give the last bytes of what a process printed: 0 to 1 MiB, and 64 KiB unless `tailBytes` says otherwise."""
    resident = await _find(parts, sandbox, owner)
    info = await parts.executions.describe(execution, owner)
    if info.sandbox != resident.id:
        raise NotFound(f"there is no process {info.id} in sandbox {resident.id}")
    return await tail_answer(parts, info.id, stream, tail_bytes)


async def _find(parts: Parts, sandbox: str, owner: str) -> Resident:
    """Return a living sandbox; raises `Conflict` for one that is no more, and `NotFound` for one that never was."""
    try:
        return parts.node.find(sandbox, owner)
    except NotFound:
        info = await parts.describe(sandbox, owner)
    raise Conflict(f"sandbox {info.id} is no more: {info.reason}", sandbox=info.id)


@contextmanager
def _told_missing() -> Iterator[None]:
    """Answer 501 where an engine cannot show something."""
    try:
        yield
    except Unsupported as error:
        raise Refusal(error, 501) from error


def _too_large(info: FileInfo) -> LimitExceeded:
    most = format_size(MOST_FILE_BYTES)
    return LimitExceeded(
        f"{info.path[:200]!r} has {info.size} bytes, the most shown is {most}; download it from /sandboxes/…/files",
        limit_bytes=MOST_FILE_BYTES,
    )
