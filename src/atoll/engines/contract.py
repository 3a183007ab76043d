"""What every engine must do: the waist between isolation and all that is built on it.

An engine makes sandboxes; a sandbox starts processes and holds a workspace. Kernels, terminals,
file pages, archives and previews are written once on top of this, in `atoll.node`.

Errors: every method may raise `Unavailable` when the machine below fails, and, once the sandbox is
destroyed or lost, `Conflict`. Others are named where they arise. What a program does is never an error.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from socket import socket
from types import MappingProxyType
from typing import NamedTuple, Protocol, runtime_checkable

from atoll.errors import AtollError, InvalidRequest
from atoll.model.file import FileInfo
from atoll.model.ids import ProcessId, SandboxId
from atoll.model.process import Command, Output, ProcessEnd, Stream, TerminalSize
from atoll.model.sandbox import SandboxInfo, SandboxSpec
from atoll.model.tree import TreeLimits, TreeReport


class Feature(StrEnum):
    """An ability that not every engine has; using one that is missing raises `Unsupported`."""

    TERMINALS = "terminals"
    TERMINAL_END = "terminal_end"  # the end of a terminal's input reaches the program that reads it
    PORTS = "ports"  # Sandbox.connect and Sandbox.listen
    PAUSE = "pause"
    MOUNTS = "mounts"
    PERSISTENT_WORKSPACES = "persistent_workspaces"  # SandboxSpec.workspace
    # Sandbox.stop and Engine.resume. Elsewhere a stopped sandbox is one that was destroyed and is made anew.
    STOP = "stop"
    ADOPTION = "adoption"  # sandboxes outlive the node and are found again
    FILE_SNAPSHOTS = "file_snapshots"
    MEMORY_SNAPSHOTS = "memory_snapshots"
    KERNELS = "kernels"  # Sandbox.start_kernel
    KERNEL_FORK = "kernel_fork"  # kernels are forks of a warm zygote
    CREATE_HERE = "create_here"  # sandboxes can be made in a thread that waits
    IMAGES = "images"  # SandboxSpec.container; templates are images that the engine knows
    CLEANING = "cleaning"  # Sandbox.clean


# What an engine of each name has to offer. The conformance suite compares; an engine cannot
# quietly offer less. More is allowed only where the machine decides (pausing needs a cgroup).
REQUIRED_FEATURES: Mapping[str, frozenset[Feature]] = MappingProxyType(
    {
        "fake": frozenset(
            {
                Feature.TERMINALS,
                Feature.TERMINAL_END,
                Feature.PORTS,
                Feature.PAUSE,
                Feature.MOUNTS,
                Feature.CREATE_HERE,
            }
        ),
        "namespaces": frozenset(
            {
                Feature.TERMINALS,
                Feature.TERMINAL_END,
                Feature.PORTS,
                Feature.MOUNTS,
                Feature.PERSISTENT_WORKSPACES,
                Feature.KERNELS,
                Feature.CREATE_HERE,
            }
        ),
        "gvisor": frozenset(
            {
                Feature.TERMINALS,
                Feature.PORTS,
                Feature.PAUSE,
                Feature.MOUNTS,
                Feature.KERNELS,
                Feature.CLEANING,
            }
        ),
        # Whether the end of a terminal's input is told, and whether workspaces are kept, is a matter of their runtime.
        **dict.fromkeys(
            ("docker", "podman"),
            frozenset(
                {
                    Feature.TERMINALS,
                    Feature.PORTS,
                    Feature.PAUSE,
                    Feature.MOUNTS,
                    Feature.KERNELS,
                    Feature.IMAGES,
                    Feature.CLEANING,
                }
            ),
        ),
    }
)


@dataclass(frozen=True, slots=True)
class Check:
    """One fact about this machine that an engine depends on, with the fix where it is missing."""

    name: str
    ok: bool
    found: str
    fix: str = ""
    required: bool = True


@dataclass(frozen=True, slots=True)
class Lasting:
    """How sandboxes outlive their node: the directory in which the next one finds them, and how long they wait for it."""

    directory: Path
    lease_seconds: float = 60.0


@runtime_checkable
class ImageWork(Protocol):
    """What engines with `Feature.IMAGES` do besides: images are theirs, known by ids that stand for every byte.

    `progress` is told what happens, line by line. Each may take long, and raises `Unavailable` if it fails.
    """

    async def pull_image(self, image: str, progress: Callable[[str], None]) -> str:
        """Fetch an image by its name, or that of a template, which is built from packages if nobody has it; return its id.

        Raises:
            InvalidRequest: no name of an image.
        """
        ...

    async def build_image(self, context: Path, tag: str, progress: Callable[[str], None]) -> str:
        """Build the image that a tar archive with a Dockerfile describes, and return its id.

        Raises:
            CommandFailed: a step of it failed; the message has its words.
        """
        ...

    def export_image(self, image: str) -> AsyncGenerator[bytes, None]:
        """Yield an image as `docker save` writes it; raises `NotFound`."""
        ...


class Engine(Protocol):
    """A way of making sandboxes on this machine."""

    @property
    def name(self) -> str:
        """The engine's name in `REQUIRED_FEATURES`."""
        ...

    @property
    def features(self) -> frozenset[Feature]:
        """What this engine can do on this machine beyond commands and files."""
        ...

    async def check(self) -> Sequence[Check]:
        """Return what this machine gives the engine; it works if every required check is ok."""
        ...

    async def create(self, spec: SandboxSpec) -> Sandbox:
        """Make a sandbox, attested before it is returned.

        The caller sees to it that no other sandbox has `spec.workspace` meanwhile.

        Raises:
            InvalidRequest: an unknown template, an impossible limit, a mount that is not allowed.
            Unsupported: this machine cannot give or enforce what was asked for.
            Conflict: the engine is closed, a sandbox of that id exists, or its workspace is found in use.
            Unavailable: a set-up step failed; nothing is left behind.
        """
        ...

    def create_here(self, spec: SandboxSpec) -> Sandbox:
        """Make a sandbox as `create` does, but in this thread, which waits: quicker, as nothing is passed on.

        Any thread may call it, at the same time as others; the sandbox belongs to the engine's event loop.

        Raises:
            Unsupported: without `Feature.CREATE_HERE`. Otherwise as `create`.
        """
        ...

    async def image_of(self, spec: SandboxSpec) -> str:
        """Return the id of the image that a sandbox would be made from now; it is fetched as the sandbox's policy says.

        Raises:
            Unsupported: without `Feature.IMAGES`. Otherwise as `create`.
        """
        ...

    async def resume(self, spec: SandboxSpec) -> Sandbox:
        """Start what `Sandbox.stop` kept of a sandbox that was made from `spec`, attested as at its birth.

        What has no container any more, or one that would be made otherwise now, is made anew if nothing is lost by that.

        Raises:
            Unsupported: without `Feature.STOP`.
            NotFound: what was kept is gone, and files with it.
            Conflict: what goes by its name is somebody else's, or was changed since; nothing of it was touched.
            Otherwise as `create`.
        """
        ...

    def free_bytes(self) -> int | None:
        """Return how much more memory all sandboxes together may have, as measured now, in any thread.

        None: nothing but the machine's own memory limits them.
        """
        ...

    async def leftovers(self) -> Sequence[SandboxId]:
        """Return the sandboxes that an earlier node left, in whatever state; each is to be adopted or discarded.

        Raises:
            Unsupported: without `Feature.ADOPTION`.
        """
        ...

    async def adopt(self, spec: SandboxSpec) -> Sandbox:
        """Take over a sandbox that an earlier node made from `spec`, attested as at its birth.

        Raises:
            Unsupported: without `Feature.ADOPTION`.
            NotFound: there is no such sandbox, it was never finished, or it has ended; nothing of it is left then.
            Unavailable: it is not what it was at birth, and was destroyed.
        """
        ...

    async def discard(self, sandbox_id: SandboxId) -> None:
        """End a sandbox that an earlier node left, or that was stopped, and remove everything of it.

        Raises:
            Unsupported: this engine never leaves or stops any.
            NotFound: there is no such sandbox.
        """
        ...

    async def leave(self) -> None:
        """Let go without ending anything, for a node that comes back; raises `Unsupported` without
        `Feature.ADOPTION`."""
        ...

    async def close(self) -> None:
        """Destroy every sandbox of this engine and release all it holds; safe to call twice."""
        ...


class Sandbox(Protocol):
    """The isolated place that a caller owns."""

    @property
    def id(self) -> SandboxId:
        """The sandbox's id."""
        ...

    @property
    def info(self) -> SandboxInfo:
        """Facts at this moment; works after the end, too."""
        ...

    @property
    def workspace(self) -> Workspace:
        """The sandbox's files."""
        ...

    async def start(self, command: Command, process_id: ProcessId | None = None) -> Process:
        """Start a process, under an id that may be chosen before. A missing program is not an error: it ends with exit code 127.

        Cancelling this call leaves nothing running.

        Raises:
            InvalidRequest: the working directory does not exist.
            Unsupported: the engine cannot run as that user.
            LimitExceeded: the sandbox has no room for another process.
        """
        ...

    @property
    def warm_language(self) -> str | None:
        """The language of its template's warm interpreter, whose kernels are forked; None without one."""
        ...

    @property
    def image_command(self) -> Sequence[str]:
        """What its image runs by itself; empty if it says nothing, or without `Feature.IMAGES`."""
        ...

    def take_kernel(self) -> KernelProcess | None:
        """Return the kernel that was made together with the sandbox, once; None if there is none left.

        Its process id is `first_kernel_id` of the sandbox's.
        """
        ...

    async def fork_kernel(self, process_id: ProcessId | None = None) -> KernelProcess:
        """Fork a kernel from the template's warm interpreter; its `channel` speaks `atoll_guest.messages`.

        Raises:
            Unsupported: without `Feature.KERNEL_FORK`, or the template has no interpreter.
            LimitExceeded: the sandbox has no room for another process.
        """
        ...

    async def start_kernel(
        self, command: Command, process_id: ProcessId | None = None
    ) -> KernelProcess:
        """Start a program that becomes a kernel: its standard input is its end of the `channel`, for both directions.

        The guest's own code is in `model.guest.GUEST`. A missing program ends with exit code 127, as with `start`.

        Raises:
            Unsupported: without `Feature.KERNELS`.
            LimitExceeded: the sandbox has no room for another process.
        """
        ...

    async def find_process(self, process_id: ProcessId, command: Command) -> Process:
        """Return a process of an adopted sandbox, once; it was started with `command` by an earlier node.

        What it printed and nobody read can still be read, and its end is known whenever it came.

        Raises:
            NotFound: there is none of that id, or it never ran.
        """
        ...

    async def find_kernel(self, process_id: ProcessId) -> KernelProcess:
        """Return a kernel of an adopted sandbox, once; raises `NotFound` as `find_process` does."""
        ...

    def keep(self, slot: str, fds: Sequence[int]) -> None:
        """Have up to 8 descriptors outlive this node, in place of what the slot held; none empties it.

        Raises:
            Unsupported: without `Feature.ADOPTION`.
            LimitExceeded: there is no room for more.
        """
        ...

    def kept(self, slot: str) -> Sequence[int]:
        """Return the descriptors that an earlier node had kept in a slot, once, for the caller to close."""
        ...

    async def connect(self, port: int) -> socket:
        """Return a stream connected to `port` on the sandbox's own loopback.

        Raises:
            InvalidRequest: not a port number.
            Unavailable: nothing listens there.
            Unsupported: without `Feature.PORTS`.
        """
        ...

    async def listen(self, port: int, address: str = "127.0.0.1") -> socket:
        """Return a socket that listens on the sandbox's own loopback, for the host to accept on.

        Raises:
            InvalidRequest: not a loopback address, or a port below 1024 although neither plain TCP of the sandbox's
                network nor a private one needs any.
            Conflict: the port is taken.
            Unsupported: without `Feature.PORTS`.
        """
        ...

    async def clean(self) -> None:
        """End every process and remove every file, so that it is as new for whoever has it; running calls are aborted.

        Other owners are never given it: what code inside may have learnt or hidden nobody can tell.

        Raises:
            Unsupported: without `Feature.CLEANING`, or what it could write lies elsewhere, too, as in a volume.
            Unavailable: it cannot be made as new; destroy it.
        """
        ...

    async def pause(self) -> None:
        """Stop every process in place; raises `Unsupported` without `Feature.PAUSE`."""
        ...

    async def resume(self) -> None:
        """Let every process go on; raises `Unsupported` without `Feature.PAUSE`."""
        ...

    async def stop(self) -> None:
        """End every process and abort running calls, but keep all that `Engine.resume` needs; safe to call twice.

        Also of one that was lost. What its workspace held is safely on disk when this returns.

        Raises:
            Unsupported: without `Feature.STOP`, or it was not made to be stopped (`SandboxSpec.persistent`).
        """
        ...

    async def wait_ended(self) -> None:
        """Return once the sandbox is stopped, destroyed or lost."""
        ...

    async def destroy(self) -> None:
        """End every process, abort running calls and remove everything; safe to call twice.

        A workspace that outlives it is safely on disk and free for the next one when this returns.
        """
        ...

    def destroy_here(self) -> bool:
        """Destroy it in this thread, which waits, if the event loop has nothing to do with it: no more than its first
        kernel was used. Else nothing happens and the answer is False; any thread may call it."""
        ...


class Process(Protocol):
    """A program running in a sandbox."""

    @property
    def id(self) -> ProcessId:
        """The process's id, unique for ever."""
        ...

    @property
    def pid(self) -> int:
        """Its number inside the sandbox, or 0 if the program could not be started."""
        ...

    @property
    def command(self) -> Command:
        """What was asked for."""
        ...

    def output(self) -> AsyncGenerator[Output, None]:
        """Yield both streams byte-exact, in order of arrival; may be read once.

        Ends when both streams have ended, or soon after the process has ended while something it left
        behind keeps them open. A second call raises `Conflict`. A terminal has one stream, stdout. A reader that stops reading stops
        the program, as a full pipe does.
        """
        ...

    def descriptors(self) -> Mapping[Stream, int]:
        """Return the outputs as descriptors that do not block, to be read instead of `output`.

        They are the process's: `close` closes them. Raises `Unsupported` if this engine has none.
        """
        ...

    def stdin_descriptor(self) -> int:
        """Return standard input as a descriptor that does not block, to be written instead of `write`.

        Raises:
            Unsupported: this engine has none. Otherwise as `write`.
        """
        ...

    async def write(self, data: bytes) -> None:
        """Send bytes to standard input.

        Raises:
            InvalidRequest: the command was started without `stdin`.
            Conflict: standard input is closed, by either side.
        """
        ...

    async def close_stdin(self) -> None:
        """Let standard input end; safe to call twice."""
        ...

    async def wait(self) -> ProcessEnd:
        """Return how the process ended; may be called by many and again."""
        ...

    async def signal(self, number: int) -> None:
        """Send a signal to the process and its group; nothing happens once it has ended.

        Raises:
            InvalidRequest: not a signal number.
        """
        ...

    async def kill(self) -> None:
        """End everything that the process started, also what left its group or session."""
        ...

    async def resize(self, size: TerminalSize) -> None:
        """Change the terminal's size; raises `InvalidRequest` if it has none."""
        ...

    async def close(self) -> None:
        """Kill it if it still runs and release what the host holds; safe to call twice."""
        ...


class KernelProcess(Process, Protocol):
    """The process of a kernel: it also has a channel, and can be followed without a task of its own.

    While it is held, `channel`, `end`, `take_output`, `activity`, `ending` and `explain` may be used in any one thread;
    everything else belongs to the event loop that made it.
    """

    @property
    def channel(self) -> socket:
        """A stream that does not block; what is said on it is `atoll_guest.messages`."""
        ...

    @property
    def end(self) -> ProcessEnd | None:
        """How it ended, as far as is known without waiting; None while it runs."""
        ...

    def take_output(self) -> Sequence[Output]:
        """Return what was printed and not read yet, without waiting; not beside `output`."""
        ...

    @property
    def activity(self) -> int:
        """A descriptor that is readable when the channel or an output is, or the process has ended."""
        ...

    @property
    def ending(self) -> int:
        """A descriptor that is readable when the process has ended."""
        ...

    def explain(self, end: ProcessEnd) -> ProcessEnd:
        """Return the end of something that the kernel ran, with the reason if a limit of the sandbox was that."""
        ...

    def hold(self) -> AbstractContextManager[None]:
        """Keep all descriptors open, so that another thread can use them; raises `Conflict` once it is closed."""
        ...


# The most that one call of `write_many` or `read_many` takes; both ends hold all of it in memory.
MANY_FILES = 4096
MANY_BYTES = 16 << 20


class NewFile(NamedTuple):
    """A file to be written; a directory if it has no data."""

    path: str
    data: bytes | None
    mode: int = 0o644


def check_many(sizes: Sequence[int]) -> None:
    """Raise `InvalidRequest` for more small files than one call takes."""
    if len(sizes) > MANY_FILES or sum(sizes) > MANY_BYTES:
        raise InvalidRequest(
            f"{len(sizes)} files of {sum(sizes)} bytes are too many at once;"
            f" the most is {MANY_FILES} files and {MANY_BYTES} bytes"
        )


class Workspace(Protocol):
    """The sandbox's files. Every path goes through `model.file.parse_path` first.

    Links are resolved inside the sandbox only and never lead out of the workspace. All methods raise
    `NotFound` for what is missing, `InvalidRequest` for a path that is malformed or names the wrong
    kind of thing, `LimitExceeded` when the disk is full.
    """

    async def stat(self, path: str) -> FileInfo:
        """Return facts about a file; a link is described itself, not followed."""
        ...

    async def list(self, path: str = ".", *, limit: int = 10_000) -> Sequence[FileInfo]:
        """Return the entries of a directory by name; raises `LimitExceeded` beyond `limit`."""
        ...

    def read(
        self, path: str, *, offset: int = 0, length: int | None = None
    ) -> AsyncGenerator[bytes, None]:
        """Yield the bytes of a regular file, at most up to the size it has at the start."""
        ...

    async def write(
        self, path: str, data: bytes | AsyncIterator[bytes], *, mode: int = 0o644
    ) -> FileInfo:
        """Replace a file as a whole, parents made: readers see the old or the new one, never a part."""
        ...

    async def write_many(self, files: Sequence[NewFile]) -> None:
        """Write small files and make directories, in this order; each file as `write` does.

        An error names the first that failed; those before it are there, those after it are not.

        Raises:
            InvalidRequest: more than `MANY_FILES` or `MANY_BYTES`; nothing was written.
        """
        ...

    async def read_many(self, files: Sequence[FileInfo]) -> Sequence[bytes | AtollError]:
        """Return the content of small files, each up to the size it is said to have.

        In the place of one that cannot be read is the error that `read` would have raised.

        Raises:
            InvalidRequest: more than `MANY_FILES` or `MANY_BYTES`.
        """
        ...

    async def write_from(self, path: str, descriptor: int, *, mode: int = 0o644) -> FileInfo:
        """Write what an open regular file of the host holds, as `write` does; for large files."""
        ...

    async def read_into(self, path: str, descriptor: int, *, length: int) -> int:
        """Copy a file, up to `length` bytes, to the start of an open file of the host; return how many."""
        ...

    async def copy_in(self, folder: int, path: str, limits: TreeLimits) -> TreeReport:
        """Copy what an open directory of the host holds to the directory `path`; links in it are left out.

        Files are replaced as `write` does. After an error, what was copied before it is there.

        Raises:
            Unsupported: this engine has no way of its own; copy file by file.
            LimitExceeded: it holds more than `limits` allow, too.
            OSError: the host's own files cannot be read.
        """
        ...

    async def copy_out(self, path: str, folder: int, limits: TreeLimits) -> TreeReport:
        """Copy what a directory holds into an open directory of the host.

        Links in it are left out, and so is what a mode keeps its owner out of. Only new files are made
        there, and no name from inside leads out of it.

        Raises:
            Unsupported: this engine has no way of its own; copy file by file.
            LimitExceeded: it holds more than `limits` allow.
            OSError: the host cannot write, or has a file of a name already (`FileExistsError`).
        """
        ...

    async def make_dir(self, path: str) -> None:
        """Make a directory and its parents; one that exists is fine."""
        ...

    async def remove(self, path: str, *, recursive: bool = False) -> None:
        """Remove a file, a link or an empty directory; a full one only if `recursive`."""
        ...

    async def rename(self, source: str, target: str) -> None:
        """Rename within the workspace, replacing a file; parents of the target are made."""
        ...
