"""Files as they travel between this machine and a node: one by one, or as tar archives.

What comes from a sandbox only ever makes new files, below a directory that was named here.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import sys
import tarfile
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote

import anyio
from anyio import to_thread

from atoll.cli.messages import notice
from atoll.cli.nodes import find_sandbox, run_on_node
from atoll.cli.streams import STDOUT, read_stdin, write_all
from atoll.client.http import HttpNode
from atoll.errors import AtollError, Conflict, InvalidRequest, NotFound
from atoll.node.host_trees import HostWriter

_CHUNK = 256 * 1024
_STREAM = "-"


@dataclass(frozen=True, slots=True)
class Copied:
    """What was copied, and how many links and special files were left out; None: nobody counted them."""

    files: int
    directories: int
    total_bytes: int
    skipped: int | None


def copy_in(source: str, sandbox: str, path: str, *, as_json: bool) -> int:
    """Copy a file, a directory or an archive on standard input into a sandbox."""
    if source == _STREAM:
        return run_on_node(partial(_copy_in, _send_stdin, Path(), sandbox, path, as_json))
    if not Path(source).exists():
        raise NotFound(f"there is no {source}", next_step="name a file or a directory that exists")
    send = send_tree if Path(source).is_dir() else _send_file
    return run_on_node(partial(_copy_in, send, Path(source), sandbox, path, as_json))


Send = Callable[[HttpNode, str, Path, str], Awaitable[Copied]]


async def _copy_in(
    send: Send, source: Path, sandbox: str, path: str, as_json: bool, node: HttpNode
) -> int:
    copied = await send(node, (await find_sandbox(node, sandbox))["id"], source, path)
    return _tell(copied, as_json)


def _tell(copied: Copied, as_json: bool) -> int:
    if as_json:
        print(json.dumps(asdict(copied)), flush=True)
    return 0


async def _send_stdin(node: HttpNode, sandbox_id: str, _source: Path, path: str) -> Copied:
    return await _send_archive(node, sandbox_id, read_stdin(), path, 0)


async def send_tree(node: HttpNode, sandbox_id: str, folder: Path, path: str) -> Copied:
    """Copy what a directory holds into one of a sandbox; links are left out."""
    with tempfile.TemporaryFile() as archive:
        skipped = await to_thread.run_sync(_pack, folder, archive)
        if skipped:
            notice(f"{skipped} links or special files were not copied with {folder}")
        return await _send_archive(node, sandbox_id, _read(archive), path, skipped)


def _pack(folder: Path, archive: IO[bytes]) -> int:
    """Pack what a directory holds; return how many links and special files were left out."""
    skipped = 0
    # dereference: otherwise the second name of a file would be packed as a link.
    with tarfile.open(fileobj=archive, mode="w", dereference=True) as tar:
        for place, folders, files in os.walk(folder):
            for path in (Path(place, name) for name in (*folders, *files)):
                skipped += not _pack_one(tar, path, str(path.relative_to(folder)))
    archive.seek(0)
    return skipped


def _pack_one(tar: tarfile.TarFile, path: Path, name: str) -> bool:
    mode = path.lstat().st_mode
    if stat.S_ISDIR(mode):
        tar.addfile(tar.gettarinfo(path, name))
    elif stat.S_ISREG(mode):
        with path.open("rb") as content:
            tar.addfile(tar.gettarinfo(arcname=name, fileobj=content), content)
    else:
        return False
    return True


async def _send_archive(
    node: HttpNode, sandbox_id: str, data: AsyncIterator[bytes], path: str, skipped: int
) -> Copied:
    place = f"/sandboxes/{sandbox_id}/archive"
    held = await node.call("PUT", place, data=data, params={"path": path})
    return Copied(held["files"], held["directories"], held["total_bytes"], skipped)


async def _send_file(node: HttpNode, sandbox_id: str, file: Path, path: str) -> Copied:
    target = await _target_inside(node, sandbox_id, path, file.name)
    with file.open("rb") as content:
        mode = os.fstat(content.fileno()).st_mode & 0o777
        written = await node.call(
            "PUT",
            f"/sandboxes/{sandbox_id}/files/{quote(target)}",
            data=_read(content),
            params={"mode": mode},
        )
    return Copied(1, 0, written["size"], 0)


async def _target_inside(node: HttpNode, sandbox_id: str, path: str, name: str) -> str:
    """Return where a file goes: into a directory that is there, else under this name."""
    if path.endswith("/"):
        return path + name
    try:
        info = await _stat(node, sandbox_id, path)
    except NotFound:
        return path
    return f"{path}/{name}" if info["is_dir"] else path


async def _stat(node: HttpNode, sandbox_id: str, path: str) -> dict[str, Any]:
    found: dict[str, Any] = await node.call(
        "GET", f"/sandboxes/{sandbox_id}/stat", params={"path": path}
    )
    return found


async def _read(content: IO[bytes]) -> AsyncIterator[bytes]:
    while chunk := await to_thread.run_sync(content.read, _CHUNK):
        yield chunk


def copy_out(sandbox: str, path: str, target: str, *, as_json: bool) -> int:
    """Copy a file or a directory of a sandbox to this machine, or as an archive to standard output."""
    return run_on_node(partial(_copy_out, sandbox, path, target, as_json))


async def _copy_out(sandbox: str, path: str, target: str, as_json: bool, node: HttpNode) -> int:
    sandbox_id = (await find_sandbox(node, sandbox))["id"]
    if target == _STREAM:
        if sys.stdout.isatty():
            raise InvalidRequest("a terminal cannot take an archive; send it to a file or a pipe")
        async with aclosing(_archive(node, sandbox_id, path)) as chunks:
            async for chunk in chunks:
                await write_all(STDOUT, chunk)
        return 0
    info = await _stat(node, sandbox_id, path)
    if info["is_dir"]:
        copied = await _receive_tree(node, sandbox_id, path, Path(target))
    else:
        copied = await _receive_file(node, sandbox_id, info, Path(target))
    return _tell(copied, as_json)


def _archive(node: HttpNode, sandbox_id: str, path: str) -> AsyncGenerator[bytes, None]:
    return node.read(f"/sandboxes/{sandbox_id}/archive", {"path": path})


async def _receive_tree(node: HttpNode, sandbox_id: str, path: str, target: Path) -> Copied:
    with tempfile.TemporaryFile() as archive:
        async with aclosing(_archive(node, sandbox_id, path)) as chunks:
            async for chunk in chunks:
                await to_thread.run_sync(archive.write, chunk)
        archive.seek(0)
        return await to_thread.run_sync(_unpack, archive, target)


def _unpack(archive: IO[bytes], target: Path) -> Copied:
    with _host_errors(target):
        target.mkdir(exist_ok=True)
        with HostWriter(target) as writer, tarfile.open(fileobj=archive, mode="r:") as tar:
            for member in tar:
                if member.isdir():
                    writer.make_directory(member.name)
                else:
                    _unpack_file(tar, member, writer)
            members = tar.getmembers()
    sizes = [member.size for member in members if member.isreg()]
    # The node leaves links out without a word.
    return Copied(len(sizes), len(members) - len(sizes), sum(sizes), None)


def _unpack_file(tar: tarfile.TarFile, member: tarfile.TarInfo, writer: HostWriter) -> None:
    content = tar.extractfile(member) if member.isreg() else None
    if content is None:
        raise InvalidRequest(f"the archive holds what is no file: {member.name[:200]!r}")
    fd = writer.open_new(member.name, member.mode & 0o777)
    with os.fdopen(fd, "wb") as file:
        shutil.copyfileobj(content, file, _CHUNK)


async def _receive_file(
    node: HttpNode, sandbox_id: str, info: dict[str, Any], target: Path
) -> Copied:
    if await anyio.Path(target).is_dir():
        target /= info["name"]
    chunks = node.read(f"/sandboxes/{sandbox_id}/files/{quote(info['path'])}")
    with _host_errors(target), HostWriter(target.parent) as writer:
        fd = writer.open_new(target.name, info["mode"] & 0o777)
        try:
            async with aclosing(chunks):
                async for chunk in chunks:
                    await to_thread.run_sync(_write_all, fd, chunk)
            return Copied(1, 0, os.fstat(fd).st_size, 0)
        except BaseException:
            writer.remove(target.name)
            raise
        finally:
            os.close(fd)


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


@contextmanager
def _host_errors(target: Path) -> Iterator[None]:
    """Raise this machine's failures as ours."""
    try:
        yield
    except FileExistsError as error:
        raise Conflict(
            f"{error.filename or target} exists already in {target}",
            next_step="choose another place; nothing is ever replaced here",
        ) from error
    except OSError as error:
        if isinstance(error, AtollError):
            raise
        raise InvalidRequest(f"cannot write {target}: {error.strerror}") from error
