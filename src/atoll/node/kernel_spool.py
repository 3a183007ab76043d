"""A kernel whose words are in files before anybody acts on them, so that another node can go on listening.

What it says on its channel and what it prints is moved into files without a moment in which a kill could lose it (see
`spool`), and read from there. What belongs to the request that is being carried out lies at their ends; where it begins is noted with the
request. Whoever takes the kernel over reads on from there, through the same conversation.

A request goes the other way, from memory that outlives the node: sendfile(2) moves its bytes and the position in it within one system
call, so that whoever holds it next sends just what is missing.

Requests follow each other in memory and files until there is a lot in one of them, since to empty a file takes as long as most cells. So
one write, the note, is what makes a request: before it, the last one is still the one that counts, and what was prepared behind it is not.
"""

from __future__ import annotations

import json
import os
import select
import struct
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

from atoll.engines.contract import KernelProcess
from atoll.errors import NotFound, Unavailable
from atoll.model.ids import KernelId, ProcessId, SandboxId
from atoll.model.language import PYTHON
from atoll.model.process import Output, Stream
from atoll.node.spool import Spool, write_error
from atoll.node.spool_folders import SpoolFolders

_STREAMS: tuple[Stream, ...] = ("stdout", "stderr")
_READ_BYTES = 1 << 18
# Of results and displays; what is kept of them is far less.
MOST_SAID_BYTES = 512 << 20
# Of `PIECE_BYTES` each: more than a pipe holds.
_MOST_MOVES = 32
# When memory or a file holds more, it is emptied before the next request.
_FULL_BYTES = 256 << 10
_STATE = struct.Struct("<II")


class SpoolFile:
    """A file into which one descriptor is moved, and from which it is read."""

    def __init__(
        self,
        path: Path,
        source_fd: int,
        relay: tuple[int, int] | None = None,
        limit_bytes: int | None = None,
    ) -> None:
        # Its own: the kernel's process may be closed at any moment, and that number then be somebody else's.
        self.source = os.dup(source_fd)
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except BaseException:
            os.close(self.source)
            raise
        self._spool = Spool(self.source, self._fd, relay, limit_bytes=limit_bytes)
        self._read = 0
        self._begin = 0  # where that begins which belongs to the request
        self._ended = False
        self.is_held_up = False

    def take(self) -> bytes | None:
        """Return what has come since, b'' at the end, None if there is nothing at present."""
        moves = 0
        # What is beyond the limit leaves nothing to be read, and must not be left for the next request.
        while not self.has_rest and not self._ended and moves < _MOST_MOVES:
            moves += 1
            if not self._move():
                break
        if self.has_rest:
            # No more than there is: a large buffer takes longer to get than to fill.
            length = min(self._spool.end - self._read, _READ_BYTES)
            data = os.pread(self._fd, length, self._read)
            self._read += len(data)
            return data
        return b"" if self._ended else None

    @property
    def end(self) -> int:
        """How many bytes the file holds."""
        return self._spool.end

    @property
    def size(self) -> int:
        """How many bytes belong to the request."""
        return self._spool.end - self._begin

    @property
    def has_rest(self) -> bool:
        """Whether the file holds something that was not read."""
        return self._read < self._spool.end

    def _move(self) -> int:
        """Move a piece into the file; return how much that was."""
        try:
            moved = self._spool.move()
        except Unavailable:
            self.is_held_up = True
            return 0
        self.is_held_up = False
        self._ended = moved is None
        return moved or 0

    def go_on(self, begin: int) -> None:
        """Read from here on what belongs to a request, and no more of what is before it."""
        self._begin = self._read = begin
        self._spool.restart(begin)

    def empty(self) -> None:
        """Forget what is in the file."""
        if self._spool.end:
            os.ftruncate(self._fd, 0)
            self._spool.end = 0
        self.go_on(0)

    def close(self) -> None:
        """Let go of both."""
        os.close(self.source)
        os.close(self._fd)


class Phase(StrEnum):
    """How far a request has come."""

    PREPARING = "preparing"  # the kernel has heard nothing of it
    ASKED = "asked"  # the kernel has heard all of it, but for what waits to be sent


class SpooledRequest(NamedTuple):
    """What has to be known to go on with the request that a kernel carries out, or carried out last."""

    call: str = ""  # empty before the first
    seq: int = 0  # of the last message before it
    last_word: str = "end"
    execution: str = ""
    deadline: float | None = None  # of the monotonic clock
    phase: Phase = Phase.ASKED
    frame_end: int = -1  # where in memory what is asked ends; -1: with all that there is
    said: int = 0  # where in its file begins what belongs to it
    stdout: int = 0
    stderr: int = 0


class KeptDescriptors(NamedTuple):
    """What of a spool is no file, and outlives the node by way of its engine."""

    relay_end: int
    relay_start: int
    request: int  # memory that holds what is asked; its position tells how much of that was sent

    @classmethod
    def make(cls) -> KeptDescriptors:
        """Return those of a new spool."""
        relay = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            return cls(*relay, os.memfd_create("request", os.MFD_CLOEXEC))
        except BaseException:
            for end in relay:
                os.close(end)
            raise


@dataclass(frozen=True, slots=True)
class KernelLabel:
    """Which kernel of its sandbox a folder belongs to."""

    kernel: KernelId
    is_main: bool
    language: str = PYTHON.name


class KernelSpool:
    """The files of one kernel, and what is known of its request."""

    def __init__(
        self,
        process: KernelProcess,
        folders: SpoolFolders,
        folder: Path,
        kept: KeptDescriptors,
        forget: Callable[[], None],
    ) -> None:
        self._folders = folders
        self._folder = folder
        self._frame_end = -1
        self._forget_kept = forget  # what is kept for a next node
        self._request = kept.request
        self._channel = process.channel
        self._started = time.monotonic()
        descriptors = process.descriptors()
        self._printed: dict[Stream, SpoolFile] = {}
        self._sources: dict[int, Stream] = {}
        self._printing = select.poll()
        with ExitStack() as opened:
            for each in kept:
                opened.callback(os.close, each)
            for stream in _STREAMS:
                # A flood beyond that is thrown away, or it would fill the disk.
                file = SpoolFile(
                    folder / stream, descriptors[stream], limit_bytes=folders.output_bytes
                )
                self._printed[stream] = opened.enter_context(closing(file))
                self._sources[file.source] = stream
                self._printing.register(file.source, select.POLLIN)
            relay = (kept.relay_end, kept.relay_start)
            said = SpoolFile(folder / "channel", self._channel.fileno(), relay)
            self._said = opened.enter_context(closing(said))
            self._state = os.open(folder / "state", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            opened.callback(os.close, self._state)
            # Never ready: what to wait on while the disk is full, for the kernel's own descriptors are ready all the time.
            self.nothing = os.eventfd(0, os.EFD_CLOEXEC)
            opened.callback(os.close, self.nothing)
            self._opened = opened.pop_all()

    @property
    def is_held_up(self) -> bool:
        """Whether the disk was full when something was last moved; nothing is lost, the kernel waits."""
        return any(file.is_held_up for file in (self._said, *self._printed.values()))

    @property
    def is_overfull(self) -> bool:
        """Whether the kernel has said more in answer to one request than anybody can have a use for."""
        return self._said.size > MOST_SAID_BYTES

    def receive(self, _most: int) -> bytes:
        """Return what the kernel has said, b'' at the end; raises `BlockingIOError` if that is nothing at present."""
        data = self._said.take()
        if data is None:
            raise BlockingIOError
        return data

    def take_output(self) -> Sequence[Output]:
        """Return what was printed and not read yet."""
        taken: list[Output] = []
        for stream, file in self._printed.items():
            while file.has_rest and (data := file.take()):
                taken.append(self._output(stream, data))
        # Not for as long as something comes: a flood has no end. One look at both is cheaper than to try each in vain.
        for _ in range(_MOST_MOVES):
            came = [self._take_from(descriptor, taken) for descriptor, _ in self._printing.poll(0)]
            if not any(came):
                break
        return taken

    def _take_from(self, descriptor: int, taken: list[Output]) -> bool:
        """Take what came from one descriptor; return whether that was anything."""
        stream = self._sources[descriptor]
        data = self._printed[stream].take()
        if data:
            taken.append(self._output(stream, data))
        elif data is not None:
            self._printing.unregister(descriptor)  # its end would be there again and again
        return bool(data)

    def _output(self, stream: Stream, data: bytes) -> Output:
        return Output(stream, data, time.monotonic() - self._started)

    def begin(self, request: SpooledRequest, frame: bytes = b"") -> None:
        """Write down what has to be known of the next request, and have its frame ready to be sent; the last one is forgotten."""
        files = (self._said, *self._printed.values())
        said, stdout, stderr = ends = [file.end for file in files]
        if not 0 <= self._frame_end < _FULL_BYTES or max(ends) > _FULL_BYTES:
            self._begin_anew(request, frame)
            return
        self._prepare(frame, self._frame_end)
        end = self._frame_end + len(frame)
        self._note(request._replace(frame_end=end, said=said, stdout=stdout, stderr=stderr))
        self._frame_end = end
        for file, place in zip(files, ends, strict=True):
            file.go_on(place)

    def _begin_anew(self, request: SpooledRequest, frame: bytes) -> None:
        """Do the same with everything emptied before."""
        self._note(request._replace(phase=Phase.PREPARING))
        self.forget()
        # Never over an older one: its pages may still be on their way, and what is sent is those, not a copy.
        os.ftruncate(self._request, 0)
        os.lseek(self._request, 0, os.SEEK_SET)
        self._prepare(frame, 0)
        self._note(request._replace(frame_end=len(frame)))
        self._frame_end = len(frame)

    def go_on(self, request: SpooledRequest) -> None:
        """Go on with the request that another node noted."""
        self._frame_end = request.frame_end
        self._said.go_on(request.said)
        self._printed["stdout"].go_on(request.stdout)
        self._printed["stderr"].go_on(request.stderr)

    def send(self) -> bool:
        """Send what the kernel has not got yet of the request; return whether some is left.

        Raises `BlockingIOError` if it takes nothing at present.
        """
        end = self._frame_end
        if end < 0:
            end = os.fstat(self._request).st_size
        left = end - os.lseek(self._request, 0, os.SEEK_CUR)
        if left > 0:
            left -= os.sendfile(self._channel.fileno(), self._request, None, left)
        if left <= 0 and end > _FULL_BYTES:
            # A large one must not hold memory; what is still on its way is not touched by that.
            os.ftruncate(self._request, 0)
        return left > 0

    def forget(self) -> None:
        """Empty the files."""
        for file in (self._said, *self._printed.values()):
            file.empty()

    def _prepare(self, frame: bytes, place: int) -> None:
        try:
            os.pwrite(self._request, frame, place)
        except OSError as error:
            raise write_error(error) from error

    def _note(self, request: SpooledRequest) -> None:
        """Write down what has to be known of a request; killed or not, all of it or nothing."""
        text = json.dumps(request).encode()
        try:
            os.pwrite(self._state, _STATE.pack(len(text), crc32(text)) + text, 0)
        except OSError as error:
            raise write_error(error) from error

    def label(self, label: KernelLabel) -> None:
        """Write down which kernel this is; raises `Unavailable` while the disk is full."""
        try:
            (self._folder / "label").write_text(
                json.dumps([label.kernel, label.is_main, label.language])
            )
        except OSError as error:
            raise write_error(error) from error

    def close(self) -> None:
        """Let go of the files; they stay for whoever takes the kernel over. Safe to call twice."""
        self._opened.close()

    def remove(self) -> None:
        """Remove the files of a kernel that is no more; safe to call twice."""
        self.close()
        self._forget_kept()
        self._folders.give_back(self._folder)


class Spools:
    """The spools of one sandbox's kernels, each in a folder named by sandbox and process."""

    def __init__(
        self,
        folders: SpoolFolders,
        sandbox_id: SandboxId,
        keep: Callable[[str, Sequence[int]], None],
    ) -> None:
        self._folders = folders
        self._sandbox = sandbox_id
        self._keep = keep  # holds descriptors for a next node

    def open(self, process: KernelProcess) -> KernelSpool:
        """Return the spool of a new kernel; raises `Unavailable` while the disk is full."""
        try:
            folder = self._folders.take(self._name(process.id))
            kept = KeptDescriptors.make()
            spool = KernelSpool(process, self._folders, folder, kept, self._forgetting(process.id))
        except OSError as error:
            self.remove(process.id)
            raise write_error(error) from error
        self._keep(spool_slot(process.id), kept)
        return spool

    def found(self) -> Sequence[ProcessId]:
        """Return the kernels that another node left, the oldest first."""
        folders = self._folders.find(self._name(""))
        return [ProcessId(folder.name.partition(".")[2]) for folder in folders]

    def adopt(
        self, process: KernelProcess, kept: KeptDescriptors
    ) -> tuple[KernelSpool, SpooledRequest]:
        """Return the spool of a kernel that another node left, and its last request; raises `NotFound`."""
        folder = self._folders.place(self._name(process.id))
        request = read_request(folder)
        spool = KernelSpool(process, self._folders, folder, kept, self._forgetting(process.id))
        if request.phase is Phase.PREPARING:
            # Nothing was asked, and of what was asked before all is known.
            spool.forget()
            request = SpooledRequest(seq=request.seq)
        else:
            spool.go_on(request)
        return spool, request

    def read_label(self, process_id: ProcessId) -> KernelLabel:
        """Return which kernel another node left in a folder; raises `NotFound`."""
        try:
            label = self._folders.place(self._name(process_id)) / "label"
            kernel, is_main, *language = json.loads(label.read_text())
        except (FileNotFoundError, ValueError) as error:
            raise NotFound(f"kernel {process_id} was not ready yet") from error
        return KernelLabel(KernelId(kernel), bool(is_main), *language)

    def remove(self, process_id: ProcessId) -> None:
        """Remove the files of a kernel that is no more."""
        self._folders.give_back(self._folders.place(self._name(process_id)))

    def _forgetting(self, process_id: ProcessId) -> Callable[[], None]:
        return partial(self._keep, spool_slot(process_id), ())

    def _name(self, process_id: str) -> str:
        return f"{self._sandbox}.{process_id}"


def spool_slot(process_id: ProcessId) -> str:
    """Return under which name the descriptors of a kernel's spool are kept."""
    return f"spool/{process_id}"


def read_request(folder: Path) -> SpooledRequest:
    """Return what was noted last in a kernel's folder; raises `NotFound` if nothing was."""
    try:
        data = (folder / "state").read_bytes()
    except FileNotFoundError:
        data = b""
    length, checksum = _STATE.unpack(data[: _STATE.size].ljust(_STATE.size, b"\0"))
    text = data[_STATE.size : _STATE.size + length]
    if not text or crc32(text) != checksum:
        raise NotFound(f"nothing is known of the kernel in {folder.name}")
    try:
        request = SpooledRequest(*json.loads(text))
        return request._replace(phase=Phase(request.phase))
    except (TypeError, ValueError) as error:
        raise NotFound(f"another version of Atoll noted the request in {folder.name}") from error
