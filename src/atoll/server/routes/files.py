"""Files of a sandbox's workspace: read, write, list, remove, rename, whole trees as archives."""

from __future__ import annotations

import mimetypes
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Query, Request, Response, UploadFile

from atoll.errors import Conflict, InvalidRequest
from atoll.model.file import FileInfo, FileKind
from atoll.node.residents import Resident
from atoll.server.answers import DirectoryAnswer, FileAnswer, TreeAnswer, timestamp
from atoll.server.auth import Owner
from atoll.server.bodies import PathBody, RenameBody
from atoll.server.parts import Here, SandboxKey
from atoll.server.streams import Stream

router = APIRouter(prefix="/sandboxes/{sandbox}", tags=["files"])
_MOST_ENTRIES = 1000
_CHUNK = 256 * 1024
_TAR = "application/x-tar"
Mode = Annotated[int, Query(ge=0, le=0o777)]


@router.head("/files/{path:path}")
async def stat_file(sandbox: SandboxKey, path: str, parts: Here, owner: Owner) -> Response:
    """Tell about a file in headers."""
    resident = parts.node.find(sandbox, owner)
    with resident.hosted.activity:
        info = await resident.hosted.files.stat(path or ".")
    headers = {"Content-Length": str(info.size), **_file_headers(info)}
    return Response(headers=headers, media_type=_media_type(info))


@router.get("/files/{path:path}", response_model=DirectoryAnswer)
async def read_file(sandbox: SandboxKey, path: str, parts: Here, owner: Owner) -> Any:
    """Give a file as it is, or list a directory: at most 1000 entries, links left out."""
    resident = parts.node.find(sandbox, owner)
    files = resident.hosted.files
    with resident.hosted.activity:
        info = await files.stat(path or ".")
        if info.kind is FileKind.DIRECTORY:
            return await _list(resident, info.path)
    if info.kind is not FileKind.FILE:
        raise InvalidRequest(f"{info.path!r} is no file and no directory, but a {info.kind}")
    headers = {
        "Content-Length": str(info.size),
        "Content-Disposition": f"attachment; filename*=UTF-8''{_quoted(info.name)}",
        **_file_headers(info),
    }
    return await Stream(_read(resident, info), _media_type(info), headers).begun()


async def _list(resident: Resident, path: str) -> DirectoryAnswer:
    entries = await resident.hosted.files.list(path)
    shown = [each for each in entries if each.kind is not FileKind.SYMLINK][:_MOST_ENTRIES]
    return DirectoryAnswer(path=path, entries=[FileAnswer.of(each) for each in shown])


async def _read(resident: Resident, info: FileInfo) -> AsyncGenerator[bytes, None]:
    left = info.size
    with resident.hosted.activity:
        async with aclosing(resident.hosted.files.stream(info.path, length=info.size)) as chunks:
            async for chunk in chunks:
                left -= len(chunk)
                yield chunk
    if left:
        raise Conflict(f"{info.path!r} became shorter while it was read; read it again")


@router.put("/files/{path:path}", status_code=201)
async def write_file(
    sandbox: SandboxKey, path: str, request: Request, parts: Here, owner: Owner, mode: Mode = 0o644
) -> FileAnswer:
    """Replace a file by the raw body, of any size; parents are made."""
    resident = parts.node.find(sandbox, owner)
    with resident.hosted.activity:
        info = await resident.hosted.files.write(path, request.stream(), mode=mode)
    return FileAnswer.of(info)


@router.post("/files/{path:path}", status_code=201)
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


@router.delete("/files/{path:path}", status_code=204)
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


@router.get("/archive", response_model=None)
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


@router.put("/archive")
async def write_archive(
    sandbox: SandboxKey, request: Request, parts: Here, owner: Owner, path: str = "."
) -> TreeAnswer:
    """Unpack a tar archive, plain or gzip, below a directory."""
    resident = parts.node.find(sandbox, owner)
    with resident.hosted.activity:
        return TreeAnswer.of(await resident.hosted.files.write_archive(request.stream(), path))


def _file_headers(info: FileInfo) -> dict[str, str]:
    return {
        "Atoll-Kind": info.kind.value,
        "Atoll-Mode": f"{info.mode & 0o7777:o}",
        "Atoll-Modified": timestamp(info.modified),
    }


def _media_type(info: FileInfo) -> str:
    return mimetypes.guess_type(info.name)[0] or "application/octet-stream"


def _quoted(name: str) -> str:
    return quote(name.encode("utf-8", "surrogateescape"), safe="")
