"""A log is exact after any number of its writers were killed, as long as somebody held the descriptors."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import socket
import struct
import subprocess
import time
import tty
import zlib
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import NoReturn

import pytest

from atoll.model.execution import EventType, ExecutionEvent
from atoll.model.process import Stream
from atoll.node.execution_log import ExecutionLog
from tests.campaigns import Campaign
from tests.node.logs import create_log, resume_log

PROGRAM = 'cat "$1" & cat "$2" >&2; wait'
STREAMS: tuple[Stream, ...] = ("stdout", "stderr")
# What a logger shows of an event: its number and a digest of the rest.
SHOWN = struct.Struct("<QI")


@dataclass
class Line:
    """Where a stream comes from; the test holds it as a lasting keeper would."""

    source: int
    program: int
    relay: tuple[int, int] | None


@dataclass
class Execution:
    """A program that writes known bytes, and the folder of its log."""

    folder: Path
    lines: dict[Stream, Line]
    expected: dict[Stream, bytes]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["pipe", "socket", "terminal"])
def test_every_byte_is_logged_once_whoever_is_killed(
    kind: str, tmp_path: Path, campaign: Campaign
) -> None:
    """1,000 kills of processes that log a program's output, each going on where the last one was."""
    kills = 0
    for number in range(campaign.count(1000)):
        with ExitStack() as cleanup:
            execution = start(kind, tmp_path / str(number), campaign.random, cleanup)
            shown: dict[int, int] = {}
            while not log_until_killed(execution, campaign.random, shown):
                kills += 1
            check(execution, shown)
        if kills >= campaign.count(1000):
            return
    pytest.fail(f"only {kills} loggers were killed before they were done")


def start(kind: str, folder: Path, chance: Random, cleanup: ExitStack) -> Execution:
    """Start a program whose output waits for a logger."""
    folder.mkdir()
    expected: dict[Stream, bytes] = {}
    for stream, size in zip(STREAMS, (200_000, 50_000), strict=True):
        expected[stream] = chance.randbytes(size)
        (folder / f"expected-{stream}").write_bytes(expected[stream])
    lines = {"stdout": make_line(kind, cleanup), "stderr": make_line("pipe", cleanup)}
    files = [folder / f"expected-{stream}" for stream in STREAMS]
    program = subprocess.Popen(
        ["sh", "-c", PROGRAM, "sh", *files],
        stdout=lines["stdout"].program,
        stderr=lines["stderr"].program,
    )
    cleanup.callback(program.wait)
    for line in lines.values():
        os.close(line.program)
    create_log(folder / "log").close()
    return Execution(
        folder / "log", {"stdout": lines["stdout"], "stderr": lines["stderr"]}, expected
    )


def make_line(kind: str, cleanup: ExitStack) -> Line:
    if kind == "pipe":
        source, program = os.pipe()
        # So that there is much to do for little output.
        fcntl.fcntl(source, fcntl.F_SETPIPE_SZ, 4096)
    elif kind == "socket":
        source, program = (end.detach() for end in socket.socketpair())
    else:
        source, program = pty.openpty()
        tty.setraw(program)
    relay = None if kind == "pipe" else os.pipe()
    for end in (source, *(relay or ())):
        cleanup.callback(os.close, end)
    return Line(source, program, relay)


def log_until_killed(execution: Execution, chance: Random, shown: dict[int, int]) -> bool:
    """Let a new process go on with the log and kill it; return whether it had come to the end before."""
    screen, projector = os.pipe()
    logger = os.fork()
    if logger == 0:
        keep_logging(execution, projector)
    os.close(projector)
    with open(screen, "rb", buffering=0) as events:
        for _ in range(chance.choice((0, 1, 5, 20))):
            look(events.read(SHOWN.size), shown)
        time.sleep(chance.uniform(0, 0.0005))
        os.kill(logger, signal.SIGKILL)
        _, status = os.waitpid(logger, 0)
        while record := events.read(SHOWN.size):
            look(record, shown)
    assert status in (0, signal.SIGKILL), "the logger failed; its traceback is above"
    return status == 0


def look(record: bytes, shown: dict[int, int]) -> None:
    """Remember an event that was shown; what was shown before must be the same."""
    if record:
        seq, digest = SHOWN.unpack(record)
        assert shown.setdefault(seq, digest) == digest, f"event {seq} changed its meaning"


def keep_logging(execution: Execution, projector: int) -> NoReturn:
    """Log all there is, and a numbered value now and then; show every event."""
    status = 1
    try:
        log = resume_log(execution.folder)
        if not log.has_ended:
            log_to_the_end(log, execution, projector)
        status = 0
    finally:
        os._exit(status)


def log_to_the_end(log: ExecutionLog, execution: Execution, projector: int) -> None:
    for stream, line in execution.lines.items():
        log.attach(stream, line.source, line.relay)
    going = set(STREAMS)
    next_to_show = max(0, log.count - 10)
    said = sum(event.type is EventType.STATUS for event in read_all(log))
    while going:
        for stream in sorted(going):
            if log.move(stream) is None:
                going.remove(stream)
        if log.count % 3 == 0:
            log.append(EventType.STATUS, {"number": said})
            said += 1
        for event in log.read(next_to_show):
            os.write(projector, SHOWN.pack(event.seq, digest_of(event)))
            next_to_show = event.seq + 1
        select.select([execution.lines[stream].source for stream in going], [], [], 0.01)
    log.end({"said": said})


def check(execution: Execution, shown: dict[int, int]) -> None:
    events = read_all(resume_log(execution.folder))
    assert [event.seq for event in events] == list(range(len(events)))
    for stream in STREAMS:
        logged = b"".join(event.data for event in events if event.type == stream)
        assert logged == execution.expected[stream]
    numbers = [event.value["number"] for event in events if event.type is EventType.STATUS]
    assert numbers == list(range(len(numbers)))
    assert [event.value for event in events if event.type is EventType.END] == [
        {"said": len(numbers)}
    ]
    assert events[-1].type is EventType.END
    assert shown.items() <= {event.seq: digest_of(event) for event in events}.items()


def read_all(log: ExecutionLog) -> list[ExecutionEvent]:
    events: list[ExecutionEvent] = []
    while batch := log.read(len(events)):
        events += batch
    return events


def digest_of(event: ExecutionEvent) -> int:
    return zlib.crc32(repr((event.t, event.type, event.data, event.value)).encode())
