"""The search helper: matches lines against a pattern in a process that can be killed at any time.

Standard library only; run as a file, never imported by the node. Pieces come in with four bytes of length
each: first the pattern, then the pieces of files, an empty one after each file. Out go lines of JSON,
`[number, text]`, and an empty line after each file.
"""

from __future__ import annotations

import json
import re
import resource
import sys
from collections.abc import Callable, Iterator
from typing import BinaryIO

MAX_LINE_BYTES = 4096
_MEMORY_BYTES = 1 << 30
_CPU_SECONDS = 60  # should the one that kills it be gone


def pieces(stream: BinaryIO) -> Iterator[bytes]:
    """Yield the pieces until the stream ends."""
    while len(head := stream.read(4)) == 4:
        yield stream.read(int.from_bytes(head, "big"))


def lines(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the lines of one file, each cut at `MAX_LINE_BYTES`; end at the empty piece."""
    begun = b""
    for chunk in chunks:
        if not chunk:
            break
        *whole, rest = chunk.split(b"\n")
        if whole:
            yield (begun + whole[0])[:MAX_LINE_BYTES]
            for line in whole[1:]:
                yield line[:MAX_LINE_BYTES]
            begun = b""
        begun = (begun + rest)[:MAX_LINE_BYTES]
    if begun:
        yield begun


def search_file(
    chunks: Iterator[bytes], pattern: re.Pattern[str], report: Callable[[int, str], None]
) -> None:
    """Report the matching lines of one file, all of which is read; one with NUL bytes is not text."""
    binary = False
    for number, line in enumerate(lines(chunks), start=1):
        binary = binary or b"\0" in line
        text = "" if binary else line.decode("utf-8", "replace")
        if not binary and pattern.search(text):
            report(number, text)


def main() -> None:
    """Serve until standard input ends."""
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (_CPU_SECONDS, _CPU_SECONDS))
    given = pieces(sys.stdin.buffer)
    pattern = re.compile(next(given).decode("utf-8", "surrogatepass"))
    out = sys.stdout

    def report(number: int, text: str) -> None:
        out.write(json.dumps([number, text]) + "\n")
        out.flush()

    for first in given:
        search_file(_with_first(first, given), pattern, report)
        out.write("\n")
        out.flush()


def _with_first(first: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
    yield first
    for piece in rest if first else ():  # noqa: UP028 - it would end `rest` for the next file, too
        yield piece


if __name__ == "__main__":
    main()
