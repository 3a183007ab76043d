"""Logs in a book that holds another one already, so that nothing passes which takes the beginning of a file for its own."""

from __future__ import annotations

from pathlib import Path

from atoll.node.execution_index import HEADER_BYTES, RECORD_BYTES
from atoll.node.execution_log import LIMIT_BYTES, ExecutionLog
from atoll.node.log_files import LogFiles

EARLIER = "e" * 26
EXECUTION = "x" * 26
# After the header, both outputs and the end of the earlier one.
SECTION = HEADER_BYTES + 3 * RECORD_BYTES


def create_log(folder: Path, *, limit_bytes: int = LIMIT_BYTES, given: bytes = b"") -> ExecutionLog:
    """Return a new log in a book that is made for it."""
    folder.mkdir()
    files = LogFiles(folder, writable=True)
    earlier = ExecutionLog.create(files, EARLIER)
    earlier.write("stdout", b"earlier output")
    earlier.write("stderr", b"earlier errors")
    earlier.end({"earlier": True})
    return ExecutionLog.create(files, EXECUTION, limit_bytes=limit_bytes, given=given)


def resume_log(folder: Path) -> ExecutionLog:
    """Return that log again, as a next node finds it."""
    return ExecutionLog.resume(LogFiles(folder, writable=True), SECTION, EXECUTION)


def append_to(path: Path, data: bytes) -> None:
    """Add to a file what nobody wrote down."""
    with path.open("ab") as file:
        file.write(data)
