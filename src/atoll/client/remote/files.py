"""Files of a sandbox on a server."""

from __future__ import annotations

import os
import stat
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any
from urllib.parse import quote

import anyio.to_thread
from httpx2 import Response

from atoll.client.calls import as_bytes
from atoll.client.http import error_from_json
from atoll.client.progress import note_bytes
from atoll.client.remote.transport import Server, Transport, read_sse
from atoll.client.remote.trees import (
    Unpacked,
    host_errors,
    open_new,
    pack,
    read_file,
    unpack,
)
from atoll.client.remote.values import to_file, to_page, to_search, to_tree
from atoll.errors import InvalidRequest, LimitExceeded
from atoll.model.file import ChangeType, FileChange, FileInfo, FileKind, TextPage, parse_path
from atoll.model.search import SearchResult
from atoll.model.sizes import MIB
from atoll.model.tree import TreeReport

_MOST_BYTES = 64 * MIB


class RemoteFiles:
    """The workspace of one sandbox."""

    def __init__(self, server: Server, sandbox_id: str) -> None:
        self._server = server
        self._base = f"/sandboxes/{sandbox_id}"

    async def read(self, path: str) -> bytes:
        """Return a file's bytes."""
        http = await self._server.reach()
        target = self._file(path)

        async def once() -> bytes:
            async with http.answer_to("GET", target) as answer:
                _check_file(answer, path)
                if int(answer.headers.get("Content-Length", 0)) > _MOST_BYTES:
                    raise _too_large(path)
                return await answer.aread()

        return await http.try_again(once)

    async def read_text(self, path: str) -> str:
        """Return a file's text."""
        data = await self.read(path)
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise InvalidRequest(
                f"{path!r} is not UTF-8 text: {error.reason} at byte {error.start}; use read()"
            ) from error

    async def read_page(self, path: str, start_line: int = 1, lines: int = 500) -> TextPage:
        """Return some lines of a text file."""
        params = {"path": path, "start_line": start_line, "lines": lines}
        return to_page(await self._get("page", params))

    async def stream(
        self, path: str, *, offset: int = 0, length: int | None = None
    ) -> AsyncGenerator[bytes, None]:
        """Yield the bytes of a file of any size."""
        http = await self._server.reach()
        params: dict[str, Any] = {"offset": offset} if offset else {}
        if length is not None:
            params["length"] = length
        async with http.answer_to("GET", self._file(path), params=params) as answer:
            _check_file(answer, path)
            async for chunk in answer.aiter_raw():
                yield chunk

    async def write(self, path: str, data: bytes | str, *, mode: int = 0o644) -> FileInfo:
        """Replace a file as a whole."""
        given = as_bytes(data)
        if len(given) > _MOST_BYTES:
            raise _too_large(path)
        http = await self._server.reach()
        return to_file(await http.put(self._file(path), given, {"mode": mode}))

    async def list(self, path: str = ".") -> Sequence[FileInfo]:
        """Return the entries of a directory by name."""
        return [to_file(each) for each in await self._get("list", {"path": path})]

    async def stat(self, path: str) -> FileInfo:
        """Return facts about a file."""
        return to_file(await self._get("stat", {"path": path}))

    async def make_dir(self, path: str) -> None:
        """Make a directory and its parents."""
        http = await self._server.reach()
        # One that is there already is fine, so it may be asked for twice.
        await http.ask_safely("POST", f"{self._base}/make_dir", body={"path": path})

    async def remove(self, path: str, *, recursive: bool = False) -> None:
        """Remove a file, a link or a directory."""
        http = await self._server.reach()
        await http.call("DELETE", self._file(path), params={"recursive": recursive})

    async def rename(self, source: str, target: str) -> None:
        """Rename within the workspace."""
        http = await self._server.reach()
        body = {"source": source, "target": target}
        await http.call("POST", f"{self._base}/rename", body=body)

    async def search(
        self, pattern: str, path: str = ".", *, glob: str | None = None
    ) -> SearchResult:
        """Return the lines that match a regular expression."""
        params = {"pattern": pattern, "path": path, "glob": glob}
        return to_search(await self._get("search", params))

    async def search_names(
        self, glob: str, path: str = ".", *, limit: int = 1000
    ) -> Sequence[FileInfo]:
        """Return what matches a glob."""
        params = {"glob": glob, "path": path, "limit": limit}
        return [to_file(each) for each in await self._get("search_names", params)]

    async def watch(self, path: str = ".") -> AsyncGenerator[Sequence[FileChange], None]:
        """Yield what changed below a directory; first of all nothing, once it was looked at."""
        params = {"path": parse_path(path)}
        http = await self._server.reach()
        async with http.answer_to("GET", f"{self._base}/watch", params=params) as answer:
            async for kind, data in read_sse(answer):
                match kind:
                    case "ready":
                        yield []
                    case "error":
                        raise error_from_json(data)
                    case _:
                        yield [FileChange(ChangeType(data["type"]), to_file(data["file"]))]

    async def upload(self, host_path: Path, path: str = ".") -> TreeReport:
        """Copy a file or a tree of this machine into the sandbox; links in it are skipped."""
        target = parse_path(path)
        http = await self._server.reach()
        with host_errors(host_path):
            facts = await anyio.to_thread.run_sync(host_path.stat)
            if stat.S_ISDIR(facts.st_mode):
                return await self._upload_tree(http, host_path, target)
            if not stat.S_ISREG(facts.st_mode):
                raise InvalidRequest(f"{str(host_path)!r} is not a regular file")
            report, mode = TreeReport(), {"mode": facts.st_mode & 0o777}
            async with aclosing(read_file(host_path, report)) as data:
                await http.put_stream(self._file(path), data, mode)
            return report

    async def _upload_tree(self, http: Transport, host_path: Path, target: str) -> TreeReport:
        report = TreeReport()
        async with aclosing(pack(host_path, report)) as archive:
            done = to_tree(
                await http.put_stream(f"{self._base}/archive", archive, {"path": target})
            )
        done.skipped += report.skipped
        done.skipped_paths += report.skipped_paths
        return done

    async def download(self, path: str, host_path: Path) -> TreeReport:
        """Copy a file or a tree of the sandbox to a new place on this machine; links are skipped."""
        info = await self.stat(path)
        http = await self._server.reach()
        with host_errors(host_path):
            if info.kind is FileKind.DIRECTORY:
                return await self._download_tree(http, info.path, host_path)
            return await self._download_file(info, host_path)

    async def _download_tree(self, http: Transport, path: str, host_path: Path) -> TreeReport:
        with Unpacked(host_path) as archive:
            params = {"path": path}
            async with http.answer_to("GET", f"{self._base}/archive", params=params) as answer:
                async for chunk in answer.aiter_raw():
                    await anyio.to_thread.run_sync(archive.write, chunk)
                    note_bytes(len(chunk))
            return await anyio.to_thread.run_sync(unpack, archive)

    async def _download_file(self, info: FileInfo, host_path: Path) -> TreeReport:
        report = TreeReport(files=1)
        fd = await anyio.to_thread.run_sync(open_new, host_path, info.mode & 0o777)
        with os.fdopen(fd, "wb") as file:
            try:
                async with aclosing(self.stream(info.path)) as chunks:
                    async for chunk in chunks:
                        report.total_bytes += await anyio.to_thread.run_sync(file.write, chunk)
                        note_bytes(len(chunk))
            except BaseException:
                os.unlink(host_path)  # whole, or not at all
                raise
        return report

    async def _get(self, what: str, params: dict[str, Any]) -> Any:
        parse_path(params["path"])
        http = await self._server.reach()
        return await http.ask_safely("GET", f"{self._base}/{what}", params=params)

    def _file(self, path: str) -> str:
        # Resolved here, too: a URL with '..' would be rewritten on its way.
        clean = parse_path(path)
        return f"{self._base}/files/{quote(clean.encode('utf-8', 'surrogateescape'))}"


def _check_file(answer: Response, path: str) -> None:
    if answer.headers.get("Atoll-Kind") != FileKind.FILE:
        raise InvalidRequest(f"{path!r} is a directory; list it, or remove it with recursive")


def _too_large(path: str) -> LimitExceeded:
    return LimitExceeded(
        f"{path!r} is larger than {_MOST_BYTES} bytes; read it with stream(), or copy it with upload() and download()",
        limit_bytes=_MOST_BYTES,
    )
