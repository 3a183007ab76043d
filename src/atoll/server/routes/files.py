"""Files of a sandbox's workspace: read, write, list, search, watch, remove, rename, whole trees as archives."""

from __future__ import annotations

import mimetypes
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from typing import Annotated, Any, Literal
from urllib.parse import quote

import anyio
from fastapi import APIRouter, Query, Request, Response, UploadFile
from starlette.convertors import Convertor, register_url_convertor
from starlette.responses import StreamingResponse

from atoll.errors import AtollError, Conflict, InvalidRequest
from atoll.model.file import FileChange, FileInfo, FileKind
from atoll.model.sizes import KIB, MIB
from atoll.node.residents import Resident
from atoll.node.search import SearchLimits
from atoll.server.answers import (
    DirectoryAnswer,
    FileAnswer,
    PageAnswer,
    SearchAnswer,
    TreeAnswer,
    timestamp,
)
from atoll.server.auth import Owner
from atoll.server.bodies import PathBody, RenameBody
from atoll.server.errors import Problem, Refusal, error_to_json
from atoll.server.json_bodies import JsonRoute
from atoll.server.parts import Here, Parts, SandboxKey
from atoll.server.routes.events import HEARTBEAT_SECONDS, SSE_ANSWER, UNBUFFERED
from atoll.server.routes.executions import RAW_BODY
from atoll.server.streams import SSE, Stream, sse_comment, sse_event
from atoll.server.versions import (
    Part,
    cut_part,
    find_part,
    has_conditions,
    is_known,
    meets_conditions,
    tag_of,
)


class _FilePath(Convertor[str]):
    """A path of a file, in which there may be anything; that of Starlette has no new lines."""

    regex = r"[\s\S]*"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("file", _FilePath())
router = APIRouter(prefix="/sandboxes/{sandbox}", tags=["files"], route_class=JsonRoute)
_MOST_ENTRIES = 1000
_CHUNK = 256 * 1024
_TAR = "application/x-tar"
_BYTES = "application/octet-stream"
Mode = Annotated[int, Query(ge=0, le=0o777)]
Glob = Annotated[str, Query(min_length=1, max_length=1000)]
_PARTS: dict[int | str, dict[str, Any]] = {
    200: {"content": {_BYTES: {}}},
    206: {"description": "Some bytes of the file.", "content": {_BYTES: {}}},
    304: {"description": "The caller has this version already."},
    416: {"model": Problem, "description": "The file has no such bytes."},
}
_CHANGED: dict[int | str, dict[str, Any]] = {
    412: {"model": Problem, "description": "The file is another version."}
}


@router.head("/files/{path:file}")
async def stat_file(sandbox: SandboxKey, path: str, parts: Here, owner: Owner) -> Response:
    """Tell about a file in headers."""
    resident = parts.node.find(sandbox, owner)
    with resident.hosted.activity:
        info = await resident.hosted.files.stat(path or ".")
    headers = {"Content-Length": str(info.size), "Accept-Ranges": "bytes", **_file_headers(info)}
    return Response(headers=headers, media_type=_media_type(info))


@router.get("/files/{path:file}", response_model=DirectoryAnswer, responses=_PARTS)
async def read_file(
    sandbox: SandboxKey,
    path: str,
    request: Request,
    parts: Here,
    owner: Owner,
    offset: Annotated[int, Query(ge=0, le=2**53)] = 0,
    length: Annotated[int | None, Query(ge=0, le=2**53)] = None,
) -> Any:
    """Give a file as it is, or list a directory: at most 1000 entries, links left out.

    A part of a file is asked for by `Range`, or by `offset` and `length`; a version that is known by `If-None-Match`.
    """
    resident = parts.node.find(sandbox, owner)
    files = resident.hosted.files
    with resident.hosted.activity:
        info = await files.stat(path or ".")
        if info.kind is FileKind.DIRECTORY:
            return await _list(resident, info.path)
    if info.kind is not FileKind.FILE:
        raise InvalidRequest(f"{info.path!r} is no file and no directory, but a {info.kind}")
    if is_known(request.headers, info):
        return Response(status_code=304, headers=_file_headers(info))
    part = find_part(request.headers, info)
    if part is not None:
        end = part.offset + part.length
        span = {"Content-Range": f"bytes {part.offset}-{end - 1}/{info.size}"}
        return await _file_answer(resident, info, part, span, 206)
    return await _file_answer(resident, info, cut_part(info, offset, length), {}, 200)


async def _file_answer(
    resident: Resident, info: FileInfo, part: Part, span: dict[str, str], status: int
) -> Stream:
    headers = {
        "Content-Length": str(part.length),
        "Content-Disposition": disposition(info, "attachment"),
        "Accept-Ranges": "bytes",
        **span,
        **_file_headers(info),
    }
    return await Stream(_read(resident, info, part), _media_type(info), headers, status).begun()


async def _list(resident: Resident, path: str) -> DirectoryAnswer:
    entries = await resident.hosted.files.list(path)
    shown = [each for each in entries if each.kind is not FileKind.SYMLINK][:_MOST_ENTRIES]
    return DirectoryAnswer(path=path, entries=[FileAnswer.of(each) for each in shown])


async def _read(resident: Resident, info: FileInfo, part: Part) -> AsyncGenerator[bytes, None]:
    left = part.length
    stream = resident.hosted.files.stream
    with resident.hosted.activity:
        async with aclosing(stream(info.path, offset=part.offset, length=left)) as chunks:
            async for chunk in chunks:
                left -= len(chunk)
                yield chunk
    if left:
        raise Conflict(f"{info.path!r} became shorter while it was read; read it again")


@router.put("/files/{path:file}", status_code=201, responses=_CHANGED, openapi_extra=RAW_BODY)
async def write_file(
    sandbox: SandboxKey,
    path: str,
    request: Request,
    response: Response,
    parts: Here,
    owner: Owner,
    mode: Mode = 0o644,
) -> FileAnswer:
    """Replace a file by the raw body, of any size; parents are made.

    `If-Match` names the version that it may replace, and `If-None-Match: *` lets it replace none; 412 otherwise.
    """
    resident = parts.node.find(sandbox, owner)
    with resident.hosted.activity:
        info = await _write(resident, path, request, mode)
    response.headers["ETag"] = tag_of(info)
    return FileAnswer.of(info)


async def _write(resident: Resident, path: str, request: Request, mode: int) -> FileInfo:
    files, headers = resident.hosted.files, request.headers
    if not has_conditions(headers):
        return await files.write(path, request.stream(), mode=mode)
    try:
        return await files.write_if(
            path, request.stream(), lambda found: meets_conditions(headers, found), mode=mode
        )
    except Conflict as error:
        raise Refusal(error, 412) from error


@router.post("/files/{path:file}", status_code=201)
async def upload_files(
    sandbox: SandboxKey, path: str, files: list[UploadFile], parts: Here, owner: Owner
) -> Sequence[FileAnswer]:
    """Put the files of a form into a directory; their names may hold sub-paths."""
    resident = parts.node.find(sandbox, owner)
    folder = path.rstrip("/")
    written = []
    with resident.hosted.activity:
        for file in files:
            if not file.filename:
                raise InvalidRequest("a file of the form has no name; give each one a file name")
            target = f"{folder}/{file.filename}" if folder else file.filename
            written.append(await resident.hosted.files.write(target, _chunks(file)))
    return [FileAnswer.of(info) for info in written]


async def _chunks(file: UploadFile) -> AsyncIterator[bytes]:
    while chunk := await file.read(_CHUNK):
        yield chunk


@router.delete("/files/{path:file}", status_code=204)
async def remove_file(
    sandbox: SandboxKey, path: str, parts: Here, owner: Owner, recursive: bool = False
) -> None:
    """Remove a file, a link or an empty directory; a full one only with `recursive`."""
    resident = parts.node.find(sandbox, owner)
    with resident.hosted.activity:
        await resident.hosted.files.remove(path, recursive=recursive)


@router.get("/stat")
async def describe_file(
    sandbox: SandboxKey, parts: Here, owner: Owner, path: str = "."
) -> FileAnswer:
    """Tell about a file, a directory or a link."""
    resident = parts.node.find(sandbox, owner)
    with resident.hosted.activity:
        return FileAnswer.of(await resident.hosted.files.stat(path))


@router.get("/list")
async def list_directory(
    sandbox: SandboxKey,
    parts: Here,
    owner: Owner,
    path: str = ".",
    limit: Annotated[int, Query(ge=1, le=50_000)] = 10_000,
) -> Sequence[FileAnswer]:
    """List all of a directory by name, links included; refused if there is more than `limit`."""
    resident = parts.node.find(sandbox, owner)
    with resident.hosted.activity:
        entries = await resident.hosted.files.list(path, limit=limit)
    return [FileAnswer.of(each) for each in entries]


@router.get("/page")
async def read_page(
    sandbox: SandboxKey,
    parts: Here,
    owner: Owner,
    path: str,
    start_line: Annotated[int, Query(ge=1, le=2**53)] = 1,
    lines: Annotated[int, Query(ge=1, le=10_000)] = 500,
    max_bytes: Annotated[int, Query(ge=1, le=MIB)] = 64 * KIB,
) -> PageAnswer:
    """Give some lines of a text file, and where the next page begins."""
    resident = parts.node.find(sandbox, owner)
    with resident.hosted.activity:
        page = await resident.hosted.files.read_page(path, start_line, lines, max_bytes)
    return PageAnswer.of(page)


@router.get("/search")
async def search_lines(
    sandbox: SandboxKey,
    parts: Here,
    owner: Owner,
    pattern: Annotated[str, Query(min_length=1, max_length=1000)],
    path: str = ".",
    glob: Glob | None = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 200,
) -> SearchAnswer:
    """Give the lines of text files that match a regular expression; at most 10 s, 256 MiB and `limit` lines."""
    resident = parts.node.find(sandbox, owner)
    limits = SearchLimits(matches=limit)
    with resident.hosted.activity:
        found = await resident.hosted.files.search(pattern, path, glob=glob, limits=limits)
    return SearchAnswer.of(found)


@router.get("/search_names")
async def search_names(
    sandbox: SandboxKey,
    parts: Here,
    owner: Owner,
    glob: Glob,
    path: str = ".",
    limit: Annotated[int, Query(ge=1, le=10_000)] = 1000,
) -> Sequence[FileAnswer]:
    """List what matches a glob by name, or by path if the glob has a slash."""
    resident = parts.node.find(sandbox, owner)
    with resident.hosted.activity:
        found = await resident.hosted.files.search_names(glob, path, limit=limit)
    return [FileAnswer.of(each) for each in found]


@router.get("/watch", response_model=None, response_class=StreamingResponse, responses=SSE_ANSWER)
async def watch_files(sandbox: SandboxKey, parts: Here, owner: Owner, path: str = ".") -> Stream:
    """Send what changes below a directory as server-sent events: `created`, `changed` or `removed`, with the file.

    The tree is looked at about twice a second, less often if it is large; 5000 entries at most, and 8 watches for a sandbox.
    What comes and goes in between is not seen. It ends with an event `error`, or with the sandbox.
    """
    resident = parts.node.find(sandbox, owner)
    return await Stream(_watch(parts, resident, path), SSE, UNBUFFERED).begun()


async def _watch(parts: Parts, resident: Resident, path: str) -> AsyncGenerator[bytes, None]:
    async with aclosing(resident.hosted.files.watch(path)) as looks:
        await anext(looks)
        yield sse_event({"path": path}, kind="ready")
        last = anyio.current_time()
        while not parts.traffic.is_draining:
            try:
                changes = await anext(looks)
            except AtollError as error:
                yield sse_event(error_to_json(error), kind="error")
                return
            for change in changes:
                yield _change_event(change)
            if not changes and anyio.current_time() > last + HEARTBEAT_SECONDS:
                yield sse_comment("heartbeat")
                last = anyio.current_time()


def _change_event(change: FileChange) -> bytes:
    file = FileAnswer.of(change.info).model_dump(mode="json")
    return sse_event({"type": change.type.value, "file": file}, kind=change.type.value)


@router.post("/make_dir", status_code=204)
async def make_directory(sandbox: SandboxKey, body: PathBody, parts: Here, owner: Owner) -> None:
    """Make a directory and its parents."""
    resident = parts.node.find(sandbox, owner)
    with resident.hosted.activity:
        await resident.hosted.files.make_dir(body.path)


@router.post("/rename", status_code=204)
async def rename_file(sandbox: SandboxKey, body: RenameBody, parts: Here, owner: Owner) -> None:
    """Rename within the workspace, replacing a file."""
    resident = parts.node.find(sandbox, owner)
    with resident.hosted.activity:
        await resident.hosted.files.rename(body.source, body.target)


@router.get(
    "/archive",
    response_model=None,
    response_class=StreamingResponse,
    responses={200: {"content": {_TAR: {}}}},
)
async def read_archive(sandbox: SandboxKey, parts: Here, owner: Owner, path: str = ".") -> Stream:
    """Give a file or a tree as a tar archive; links are left out."""
    resident = parts.node.find(sandbox, owner)
    with resident.hosted.activity:
        # Now, while there is still an answer to say that it is not there.
        await resident.hosted.files.stat(path)
    return Stream(_read_archive(resident, path), _TAR)


async def _read_archive(resident: Resident, path: str) -> AsyncGenerator[bytes, None]:
    with resident.hosted.activity:
        async with aclosing(resident.hosted.files.read_archive(path)) as chunks:
            async for chunk in chunks:
                yield chunk


@router.put("/archive", openapi_extra=RAW_BODY)
async def write_archive(
    sandbox: SandboxKey, request: Request, parts: Here, owner: Owner, path: str = "."
) -> TreeAnswer:
    """Unpack a tar archive, plain or gzip, below a directory."""
    resident = parts.node.find(sandbox, owner)
    with resident.hosted.activity:
        return TreeAnswer.of(await resident.hosted.files.write_archive(request.stream(), path))


def _file_headers(info: FileInfo) -> dict[str, str]:
    return {
        "ETag": tag_of(info),
        "X-Content-Type-Options": "nosniff",
        "Atoll-Kind": info.kind.value,
        "Atoll-Mode": f"{info.mode & 0o7777:o}",
        "Atoll-Modified": timestamp(info.modified),
    }


def _media_type(info: FileInfo) -> str:
    return mimetypes.guess_type(info.name)[0] or "application/octet-stream"


def disposition(info: FileInfo, kind: Literal["attachment", "inline"]) -> str:
    """Return what a browser is to do with a file, and the name that it has."""
    name = quote(info.name.encode("utf-8", "surrogateescape"), safe="")
    return f"{kind}; filename*=UTF-8''{name}"
