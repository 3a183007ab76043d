"""Searching the lines of files, bounded in matches, bytes and time.

A regular expression can take longer than the universe lasts and cannot be interrupted inside this process.
So it runs in a helper process (`matcher.py`), which is killed at the deadline; what it found until then stays.
"""

from __future__ import annotations

import fnmatch
import json
import re
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio
from anyio.abc import Process as HostProcess
from anyio.streams.buffered import BufferedByteReceiveStream

from atoll.engines.contract import Workspace
from atoll.errors import InvalidRequest, NotFound, Unavailable
from atoll.model.file import FileInfo, FileKind
from atoll.model.search import CutBy, Match, SearchResult
from atoll.model.sizes import MIB
from atoll.node.task_groups import single_errors
from atoll.node.trees import TreeLimits, walk

MAX_PATTERN_CHARACTERS = 1000
_MAX_ANSWER_BYTES = 64 * 1024
_CHUNK = 64 * 1024
_MATCHER = Path(__file__).with_name("matcher.py")


@dataclass(frozen=True, slots=True)
class SearchLimits:
    """The most that one search reads, finds and takes."""

    matches: int = 200
    total_bytes: int = 256 * MIB
    seconds: float = 10.0


def matches_glob(path: str, glob: str | None) -> bool:
    """Whether a path matches: the whole of it if the glob has a slash, else its name."""
    if glob is None:
        return True
    text = path if "/" in glob else path.rpartition("/")[2]
    return fnmatch.fnmatchcase(text, glob)


async def search(
    workspace: Workspace,
    pattern: str,
    path: str,
    glob: str | None,
    limits: SearchLimits,
    tree_limits: TreeLimits,
) -> SearchResult:
    """Return the lines below `path` that match a regular expression; binary files are passed over."""
    check_pattern(pattern)
    matches: list[Match] = []
    cut_by: CutBy | None = None
    with anyio.move_on_after(limits.seconds) as patience, single_errors():
        async with (
            _open_matcher(pattern) as matcher,
            aclosing(_files(workspace, path, tree_limits)) as files,
        ):
            async for info in files:
                if not matches_glob(info.path, glob):
                    continue
                cut_by = await _search_file(workspace, info, matcher, matches, limits)
                if cut_by is not None:
                    break
    return SearchResult(matches, "time" if patience.cancelled_caught else cut_by)


def check_pattern(pattern: str) -> None:
    """Raise `InvalidRequest` unless `pattern` is a regular expression of decent length."""
    if not isinstance(pattern, str) or not pattern:
        raise InvalidRequest("a search needs a regular expression")
    if len(pattern) > MAX_PATTERN_CHARACTERS:
        raise InvalidRequest(f"the pattern is longer than {MAX_PATTERN_CHARACTERS} characters")
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise InvalidRequest(
            f"pattern {pattern[:80]!r} is no regular expression: {error}"
        ) from error


async def _files(
    workspace: Workspace, path: str, limits: TreeLimits
) -> AsyncGenerator[FileInfo, None]:
    start = await workspace.stat(path)
    if start.kind is FileKind.FILE:
        yield start
        return
    async for info in walk(workspace, path, limits):
        if info.kind is FileKind.FILE:
            yield info


class _Matcher:
    """The helper process: takes a file's bytes, answers with its matching lines."""

    def __init__(self, process: HostProcess) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._input = process.stdin
        self._output = BufferedByteReceiveStream(process.stdout)
        self.read_bytes = 0

    async def search(self, chunks: AsyncIterator[bytes], most: int) -> list[tuple[int, str]]:
        """Return number and text of the lines that match; after `most` it is of no use any more."""
        found: list[tuple[int, str]] = []
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._send, chunks)
            while len(found) < most and (answer := await self._receive()) is not None:
                found.append(answer)
            tasks.cancel_scope.cancel()
        return found

    async def _send(self, chunks: AsyncIterator[bytes]) -> None:
        try:
            async for chunk in chunks:
                self.read_bytes += len(chunk)
                await self.tell(chunk)
        except (NotFound, InvalidRequest):
            # Removed or replaced since it was listed; the next file follows.
            pass
        await self.tell(b"")

    async def tell(self, data: bytes) -> None:
        """Send one piece; an empty one ends a file."""
        with _our_errors():
            await self._input.send(len(data).to_bytes(4, "big") + data)

    async def _receive(self) -> tuple[int, str] | None:
        with _our_errors():
            line = await self._output.receive_until(b"\n", _MAX_ANSWER_BYTES)
        if not line:
            return None
        number, text = json.loads(line)
        return int(number), str(text)


@contextmanager
def _our_errors() -> Iterator[None]:
    try:
        yield
    except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.IncompleteRead) as error:
        raise Unavailable("the search helper ended; try a simpler pattern") from error


@asynccontextmanager
async def _open_matcher(pattern: str) -> AsyncIterator[_Matcher]:
    # Its environment is empty and it imports nothing but the standard library.
    command = [sys.executable, "-I", "-S", str(_MATCHER)]
    async with await anyio.open_process(command, env={}, stderr=None) as process:
        try:
            matcher = _Matcher(process)
            await matcher.tell(pattern.encode("utf-8", "surrogatepass"))
            yield matcher
        finally:
            if process.returncode is None:
                process.kill()


async def _search_file(
    workspace: Workspace,
    info: FileInfo,
    matcher: _Matcher,
    matches: list[Match],
    limits: SearchLimits,
) -> CutBy | None:
    room = limits.total_bytes - matcher.read_bytes
    if room <= 0:
        return "bytes"
    async with aclosing(workspace.read(info.path, length=min(info.size, room))) as chunks:
        # One more than wanted tells whether there are more.
        found = await matcher.search(chunks, limits.matches - len(matches) + 1)
    matches += [Match(info.path, number, text) for number, text in found]
    if len(matches) > limits.matches:
        del matches[limits.matches :]
        return "matches"
    return "bytes" if info.size > room else None
