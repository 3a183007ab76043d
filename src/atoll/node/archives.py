"""Tar streams out of and into a workspace, member by member and never through the host's disk.

Nothing is unpacked by `tarfile` itself: it only makes and reads single headers.
"""

from __future__ import annotations

import tarfile
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Sequence
from contextlib import aclosing
from typing import Self

from atoll.engines.contract import NewFile, Workspace
from atoll.errors import AtollError, InvalidRequest
from atoll.model.file import FileInfo, FileKind, parse_path
from atoll.node.expander import GZIP, Expander
from atoll.node.tar_headers import (
    BLOCK,
    EXTENSIONS,
    check_extension,
    parse_header,
    parse_name,
    parse_pax,
    pax_size,
)
from atoll.node.trees import (
    SMALL_BYTES,
    UNREADABLE,
    Batch,
    TreeCount,
    TreeEntry,
    TreeLimits,
    TreeReport,
    is_small,
    read_tree,
    write_batch,
)

_CHUNK = 256 * 1024


async def read_archive(
    workspace: Workspace, path: str, limits: TreeLimits, report: TreeReport
) -> AsyncGenerator[bytes, None]:
    """Yield a tar archive of a directory or of one file; `report` says at the end what it holds.

    Links and devices are left out, and so is what cannot be read. A file has the size that its header says even if
    it changes meanwhile: it is cut or filled with zeros.
    """
    start = parse_path(path)
    info = await workspace.stat(start)
    if info.kind is FileKind.DIRECTORY:
        base = 0 if start == "." else len(start) + 1
        batches = read_tree(workspace, start, limits, report)
    else:
        base = len(start) - len(info.name)
        batches = _single(workspace, info, limits)
    async with aclosing(batches):
        async for entries in batches:
            for entry in entries:
                name = entry.info.path[base:]
                async with aclosing(_member(workspace, entry, name, report)) as parts:
                    async for data in parts:
                        yield data
    yield bytes(2 * BLOCK)


async def _single(
    workspace: Workspace, info: FileInfo, limits: TreeLimits
) -> AsyncGenerator[Sequence[TreeEntry], None]:
    if info.kind is not FileKind.FILE:
        raise InvalidRequest(f"{info.path!r} is no file and no directory, but a {info.kind}")
    TreeCount(limits).add_bytes(info.size)
    content = (await workspace.read_many([info]))[0] if is_small(info) else None
    if isinstance(content, AtollError):
        raise content
    yield [TreeEntry(info, content)]


async def _member(
    workspace: Workspace, entry: TreeEntry, name: str, report: TreeReport
) -> AsyncGenerator[bytes, None]:
    info, content = entry
    header = tarfile.TarInfo(name)
    header.mtime, header.mode = int(info.modified), info.mode & 0o777
    if info.kind is FileKind.DIRECTORY:
        header.type = tarfile.DIRTYPE
        report.directories += 1
        yield header.tobuf(tarfile.PAX_FORMAT)
    elif info.kind is not FileKind.FILE or isinstance(content, UNREADABLE):
        report.skip(info.path)
    elif isinstance(content, AtollError):
        raise content
    else:
        header.size = info.size
        source = (
            _whole(content) if content is not None else workspace.read(info.path, length=info.size)
        )
        async with (
            aclosing(source) as chunks,
            aclosing(_file_member(chunks, header, info.path, report)) as parts,
        ):
            async for data in parts:
                yield data


async def _whole(content: bytes) -> AsyncGenerator[bytes, None]:
    yield content


async def _file_member(
    chunks: AsyncIterator[bytes], header: tarfile.TarInfo, path: str, report: TreeReport
) -> AsyncGenerator[bytes, None]:
    try:
        data = await anext(chunks, b"")
    except UNREADABLE:
        # Removed, replaced or closed since it was listed: as if it had never been there.
        report.skip(path)
        return
    report.files += 1
    report.total_bytes += header.size
    yield header.tobuf(tarfile.PAX_FORMAT)
    missing = header.size
    while data:
        missing -= len(data)
        yield data
        data = await anext(chunks, b"")
    while missing > 0:
        yield bytes(min(missing, _CHUNK))
        missing -= _CHUNK
    yield bytes(-header.size % BLOCK)


async def write_archive(
    workspace: Workspace, data: AsyncIterable[bytes], path: str, limits: TreeLimits
) -> TreeReport:
    """Unpack a tar stream, plain or gzip, below `path`.

    A member with an absolute name or '..', a link or a device stops the call with `InvalidRequest`;
    the members before it are there by then.
    """
    target = parse_path(path)
    count, report = TreeCount(limits), TreeReport()
    async with (
        aclosing(_expand(data, limits)) as expanded,
        _Unpacker(workspace, report) as unpacker,
    ):
        source = _ByteSource(expanded)
        while (member := await _next_member(source)) is not None:
            name = _member_path(member)
            depth = name.count("/") + 1
            count.add_entry(name, depth)
            count.add_bytes(member.size)
            await unpacker.unpack(source, member, _join(target, name))
    return report


class _Unpacker:
    """Writes members, the small ones many at a time."""

    def __init__(self, workspace: Workspace, report: TreeReport) -> None:
        self._workspace = workspace
        self._report = report
        self._batch = Batch()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        # Members before a hostile one are there; one who gives up waits for nothing.
        if error is None or isinstance(error, AtollError):
            await self._flush()

    async def unpack(self, source: _ByteSource, member: tarfile.TarInfo, path: str) -> None:
        """Take one member, whose data comes next."""
        mode = member.mode & 0o777
        if member.type == tarfile.DIRTYPE:
            await self._add(NewFile(path, None))
        elif member.size <= SMALL_BYTES:
            await self._add(NewFile(path, await source.read(member.size), mode))
        else:
            await self._flush()
            info = await self._workspace.write(path, source.chunks(member.size), mode=mode)
            self._report.files += 1
            self._report.total_bytes += info.size
        await source.skip(-member.size % BLOCK)

    async def _add(self, file: NewFile) -> None:
        if self._batch.add(file):
            await self._flush()

    async def _flush(self) -> None:
        batch, self._batch = self._batch, Batch()
        await write_batch(self._workspace, batch, self._report)


async def _next_member(source: _ByteSource) -> tarfile.TarInfo | None:
    """Return the next file or directory, with the name that an extended header may have given it."""
    long_name: str | None = None
    size: int | None = None
    extensions = 0
    while True:
        block = await source.read(BLOCK)
        if not block.strip(b"\0"):
            return None
        member = parse_header(block)
        if member.type in EXTENSIONS:
            extensions += 1
            extra = await _read_extension(source, member, extensions)
            if member.type == tarfile.GNUTYPE_LONGNAME:
                long_name = parse_name(extra)
            elif member.type == tarfile.XHDTYPE:
                records = parse_pax(extra)
                long_name = records.get("path", long_name)
                size = pax_size(records, size)
            continue
        member.name = member.name if long_name is None else long_name
        member.size = member.size if size is None else size
        return member


async def _read_extension(source: _ByteSource, member: tarfile.TarInfo, number: int) -> bytes:
    check_extension(member, number)
    data = await source.read(member.size)
    await source.skip(-member.size % BLOCK)
    return data


_ALLOWED = {tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.CONTTYPE, tarfile.DIRTYPE}


def _member_path(member: tarfile.TarInfo) -> str:
    """Return where a member goes, or refuse it."""
    name = member.name
    shown = f"archive member {name[:200]!r}"
    if member.type not in _ALLOWED:
        kind = "link" if member.islnk() or member.issym() else "device or special file"
        raise InvalidRequest(f"{shown} is a {kind}; only files and directories are unpacked")
    if name.startswith("/"):
        raise InvalidRequest(f"{shown} has an absolute name; pack with relative ones")
    try:
        path = parse_path(name)
    except InvalidRequest as error:
        raise InvalidRequest(f"{shown} is refused: {error}") from error
    if path == "." and member.type != tarfile.DIRTYPE:
        raise InvalidRequest(f"{shown} has no name")
    if member.type == tarfile.DIRTYPE:
        member.size = 0
    return path


def _join(folder: str, name: str) -> str:
    return name if folder == "." else folder if name == "." else f"{folder}/{name}"


async def _expand(data: AsyncIterable[bytes], limits: TreeLimits) -> AsyncGenerator[bytes, None]:
    """Yield the plain bytes of a stream that may be gzip."""
    expander: Expander | None = None
    beginning = b""
    decided = False
    async for chunk in data:
        if not decided:
            beginning += chunk
            if len(beginning) < len(GZIP):
                continue
            decided = True
            chunk = beginning
            if chunk.startswith(GZIP):
                expander = Expander(limits.ratio)
        if expander is None:
            yield chunk
        else:
            for piece in expander.expand(chunk):
                yield piece
    if not decided and beginning:
        yield beginning
    if expander is not None and not expander.complete:
        raise InvalidRequest("the archive ends in the middle of its gzip stream")


class _ByteSource:
    """Reads exact numbers of bytes from a stream of chunks."""

    def __init__(self, chunks: AsyncIterator[bytes]) -> None:
        self._chunks = chunks
        self._rest = memoryview(b"")

    async def read(self, size: int) -> bytes:
        """Return exactly `size` bytes."""
        return b"".join([chunk async for chunk in self.chunks(size)])

    async def skip(self, size: int) -> None:
        """Pass over exactly `size` bytes."""
        async for _ in self.chunks(size):
            pass

    async def chunks(self, size: int) -> AsyncIterator[bytes]:
        """Yield exactly `size` bytes, in pieces as they come."""
        while size > 0:
            if not self._rest:
                chunk = await anext(self._chunks, None)
                if chunk is None:
                    raise InvalidRequest("the archive ends too early; was it sent whole?")
                self._rest = memoryview(chunk)
                continue
            piece, self._rest = self._rest[:size], self._rest[size:]
            size -= len(piece)
            yield bytes(piece)
