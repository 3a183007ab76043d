"""What the SDK uses of a sandbox and of those who hold it: a node in this process, or a server.

Both have the same verbs. Where one of them answers at once and the other has to ask, a method returns `Soon`, and `look`
(errands) makes one of both.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from socket import socket
from typing import Any, Protocol, TypeAlias, TypeVar

from atoll.client.publishing import PublishedPort
from atoll.model.attempt import NotedAttempt
from atoll.model.file import FileChange, FileInfo, TextPage
from atoll.model.ids import KernelId, ProcessId
from atoll.model.kernel import Cell, Event, KernelInfo
from atoll.model.network import Network
from atoll.model.notebook import Notebook
from atoll.model.process import Command, CommandResult, Output, ProcessEnd, Stream, TerminalSize
from atoll.model.sandbox import SandboxInfo, SandboxRequest, SandboxSpec, WorkspaceInfo
from atoll.model.search import SearchResult
from atoll.model.secret import Secret, SecretInfo
from atoll.model.template import TemplateInfo
from atoll.model.tree import TreeReport

Answer = TypeVar("Answer")
Value = TypeVar("Value")
Soon: TypeAlias = Value | Awaitable[Value]
Listener = Callable[[Event], None]
Prompter = Callable[[str, bool], Any]


class ReaderFace(Protocol):
    """Reads along what a process prints."""

    async def read(self) -> Output | None:
        """Return the next output, waiting for it; None at the end."""
        ...

    async def close(self) -> None:
        """Read no more."""
        ...


class ProcessFace(Protocol):
    """A command that goes on while its caller does other things."""

    @property
    def id(self) -> ProcessId:
        """The process's id."""
        ...

    @property
    def pid(self) -> int:
        """Its number inside the sandbox, or 0 if the program could not be started."""
        ...

    @property
    def command(self) -> Command:
        """What was asked for."""
        ...

    def is_running(self) -> Soon[bool]:
        """Whether it has not ended yet."""
        ...

    async def result(self, timeout: float | None = None) -> CommandResult | None:
        """Return what came of it with the end of each stream, or None if it still runs after `timeout`."""
        ...

    def read_output(self) -> ReaderFace:
        """Return a reader of both streams in order."""
        ...

    def logs(self, stream: Stream = "stdout", *, tail_bytes: int | None = None) -> Soon[bytes]:
        """Return the last bytes of a stream."""
        ...

    async def write(self, data: bytes) -> None:
        """Send bytes to standard input."""
        ...

    async def close_stdin(self) -> None:
        """Let standard input end."""
        ...

    async def signal(self, number: int) -> None:
        """Send a signal; nothing happens once it has ended."""
        ...

    async def stop(self, grace: float = 5.0) -> object:
        """Ask it to end; after `grace` seconds kill it."""
        ...

    async def kill(self) -> object:
        """End it and everything it started."""
        ...


class CommandsFace(Protocol):
    """Runs commands."""

    async def run(
        self,
        command: str | Sequence[str],
        *,
        cwd: str = ".",
        env: Mapping[str, str] | None = None,
        stdin: bytes | str | None = None,
        timeout: float | None = None,
        check: bool = False,
    ) -> CommandResult:
        """Run a command to its end."""
        ...

    def stream(
        self,
        command: str | Sequence[str],
        *,
        cwd: str = ".",
        env: Mapping[str, str] | None = None,
        stdin: bytes | str | None = None,
        timeout: float | None = None,
    ) -> AsyncGenerator[Output | CommandResult, None]:
        """Yield what a command prints as it comes, and last its result; closing kills it."""
        ...

    async def start(
        self,
        command: str | Sequence[str],
        *,
        cwd: str = ".",
        env: Mapping[str, str] | None = None,
        stdin: bytes | str | None = None,
        keep_stdin: bool = False,
    ) -> ProcessFace:
        """Start a command."""
        ...

    def list(self) -> Soon[Sequence[ProcessFace]]:
        """Return the started commands, oldest first."""
        ...

    def find(self, process_id: ProcessId) -> Soon[ProcessFace]:
        """Return a started command, or raise `NotFound`."""
        ...


class FilesFace(Protocol):
    """The files of a workspace."""

    async def read(self, path: str) -> bytes:
        """Return a file's bytes."""
        ...

    async def read_text(self, path: str) -> str:
        """Return a file's text."""
        ...

    async def read_page(self, path: str, start_line: int = 1, lines: int = 500) -> TextPage:
        """Return some lines of a text file."""
        ...

    def stream(
        self, path: str, *, offset: int = 0, length: int | None = None
    ) -> AsyncGenerator[bytes, None]:
        """Yield the bytes of a file of any size."""
        ...

    async def write(self, path: str, data: bytes | str, *, mode: int = 0o644) -> FileInfo:
        """Replace a file as a whole."""
        ...

    async def list(self, path: str = ".") -> Sequence[FileInfo]:
        """Return the entries of a directory by name."""
        ...

    async def stat(self, path: str) -> FileInfo:
        """Return facts about a file."""
        ...

    async def make_dir(self, path: str) -> None:
        """Make a directory and its parents."""
        ...

    async def remove(self, path: str, *, recursive: bool = False) -> None:
        """Remove a file, a link or a directory."""
        ...

    async def rename(self, source: str, target: str) -> None:
        """Rename within the workspace."""
        ...

    async def search(
        self, pattern: str, path: str = ".", *, glob: str | None = None
    ) -> SearchResult:
        """Return the lines that match a regular expression."""
        ...

    async def search_names(
        self, glob: str, path: str = ".", *, limit: int = 1000
    ) -> Sequence[FileInfo]:
        """Return what matches a glob."""
        ...

    def watch(self, path: str = ".") -> AsyncGenerator[Sequence[FileChange], None]:
        """Yield what changed below a directory; first of all nothing, once it was looked at."""
        ...

    async def upload(self, host_path: Path, path: str = ".") -> TreeReport:
        """Copy a file or a tree of this machine into the sandbox."""
        ...

    async def download(self, path: str, host_path: Path) -> TreeReport:
        """Copy a file or a tree of the sandbox to this machine."""
        ...


class TerminalFace(Protocol):
    """An interactive process."""

    @property
    def id(self) -> ProcessId:
        """The id of its process."""
        ...

    def read(self) -> AsyncGenerator[bytes, None]:
        """Yield what appears on the screen."""
        ...

    async def write(self, data: bytes) -> None:
        """Type."""
        ...

    async def resize(self, size: TerminalSize) -> None:
        """Change the size."""
        ...

    async def wait(self) -> ProcessEnd:
        """Return how the process ended."""
        ...

    async def close(self) -> None:
        """End everything that runs on it."""
        ...


class TerminalsFace(Protocol):
    """Opens terminals."""

    async def open(
        self,
        command: str | Sequence[str] | None = None,
        *,
        size: TerminalSize | None = None,
        cwd: str = ".",
        env: Mapping[str, str] | None = None,
    ) -> TerminalFace:
        """Start a shell, a shell line or an argument list on a terminal of its own."""
        ...


class SandboxFace(Protocol):
    """One sandbox, with all that people use in it."""

    @property
    def end_reason(self) -> str:
        """Why it is no more, if that is known."""
        ...

    @property
    def commands(self) -> CommandsFace:
        """Its commands."""
        ...

    @property
    def files(self) -> FilesFace:
        """Its files."""
        ...

    @property
    def terminals(self) -> TerminalsFace:
        """Its terminals."""
        ...

    def stream_code(
        self,
        code: str,
        *,
        kernel: KernelId | None = None,
        language: str | None = None,
        timeout: float | None = None,
    ) -> AsyncGenerator[Event | Cell, None]:
        """Yield what a cell gives as it comes, and last what came of it; closing interrupts it."""
        ...

    async def ask_kernel(
        self, kernel_id: KernelId | None, kind: str, language: str | None = None, **fields: Any
    ) -> Any:
        """Ask a kernel something other than to run a cell."""
        ...

    async def open_kernel(
        self,
        language: str | None = None,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> KernelInfo:
        """Open one more kernel."""
        ...

    def list_kernels(self) -> Soon[Sequence[KernelInfo]]:
        """Return all kernels, the oldest first."""
        ...

    async def restart_kernel(
        self, kernel_id: KernelId | None = None, language: str | None = None
    ) -> KernelInfo:
        """Put a fresh kernel in the place of one, else of the sandbox's own of a language."""
        ...

    async def interrupt_kernel(
        self, kernel_id: KernelId | None = None, language: str | None = None
    ) -> None:
        """Interrupt the cell that runs."""
        ...

    async def close_kernel(self, kernel_id: KernelId) -> None:
        """End a kernel."""
        ...

    async def connect(self, port: int) -> socket:
        """Return a stream connected to a port inside."""
        ...

    async def listen(self, port: int, address: str = "127.0.0.1") -> socket:
        """Return a socket that listens inside."""
        ...

    async def clean(self) -> None:
        """End every process and remove every file."""
        ...

    async def pause(self) -> None:
        """Stop every process in place."""
        ...


class ClaimFace(Protocol):
    """One sandbox of a node: made once, by whoever needs it first, and never again once destroyed."""

    @property
    def request(self) -> SandboxRequest:
        """What was asked for."""
        ...

    @property
    def async_way(self) -> AsyncWay:
        """How an event loop reaches its node."""
        ...

    @property
    def way(self) -> Way:
        """How a thread that waits reaches its node."""
        ...

    async def tell(self) -> SandboxInfo:
        """Return facts about the sandbox, which has to be open."""
        ...

    async def stop(self) -> None:
        """End all that runs in the sandbox, which has to be open; its files are kept."""
        ...

    async def resume(self) -> None:
        """Let the sandbox go on, paused or stopped."""
        ...

    async def set_network(self, network: Network) -> None:
        """Change what the sandbox may reach; it has to be open."""
        ...

    async def read_attempts(self, start: int, limit: int) -> Sequence[NotedAttempt]:
        """Return what the sandbox tried to reach; it has to be open."""
        ...

    async def install(
        self, packages: Sequence[str], language: str, timeout: float | None
    ) -> CommandResult:
        """Install packages into the sandbox; raises `CommandFailed`."""
        ...

    async def read_notebook(self) -> Notebook:
        """Return the cells that ran so far as a notebook; also after the sandbox's end."""
        ...


class Errands(Protocol):
    """What the SDK asks of a node besides."""

    @property
    def async_way(self) -> AsyncWay:
        """How an event loop reaches it."""
        ...

    @property
    def way(self) -> Way:
        """How a thread that waits reaches it."""
        ...

    def claim(self, request: SandboxRequest) -> ClaimFace:
        """Return a claim on a sandbox that is yet to be made."""
        ...

    async def wait_ready(self, timeout: float) -> None:
        """Return once it takes work; raises `Unavailable` after `timeout` seconds."""
        ...

    async def warm(self, spec: SandboxSpec, count: int, idle: float | None) -> None:
        """Keep sandboxes ready, as long as somebody comes for them within `idle` seconds."""
        ...

    async def list_workspaces(self) -> Sequence[WorkspaceInfo]:
        """Return the workspaces that outlive their sandboxes, the newest first."""
        ...

    async def find_workspace(self, workspace: str) -> WorkspaceInfo:
        """Return facts about a workspace; raises `NotFound`."""
        ...

    async def remove_workspace(self, workspace: str) -> None:
        """Remove a workspace; raises `NotFound` and `Conflict`."""
        ...

    async def list_templates(self) -> Sequence[TemplateInfo]:
        """Return the templates that were built, by name."""
        ...

    async def find_template(self, name: str) -> TemplateInfo:
        """Return facts about a template; raises `NotFound`."""
        ...

    async def build_template(
        self, name: str, packages: Sequence[str], language: str, preload: Sequence[str] | None
    ) -> TemplateInfo:
        """Build a template with packages, or build it anew."""
        ...

    async def build_image_template(self, name: str, image: str) -> TemplateInfo:
        """Build a template of an image, or build it anew."""
        ...

    async def build_dockerfile_template(
        self, name: str, folder: Path, is_unpacked: bool
    ) -> TemplateInfo:
        """Build a template of a Dockerfile, or build it anew."""
        ...

    async def pull_image(self, image: str) -> str:
        """Have the container engine fetch an image; return its id."""
        ...

    async def remove_template(self, name: str) -> None:
        """Remove a template; raises `NotFound`."""
        ...

    async def list_secrets(self) -> Sequence[SecretInfo]:
        """Return the stored secrets, without what they are worth."""
        ...

    async def set_secret(self, name: str, secret: Secret) -> SecretInfo:
        """Keep a secret; sandboxes that have one of this name use the new one."""
        ...

    async def remove_secret(self, name: str) -> None:
        """Remove a secret; no request of any sandbox carries it any more."""
        ...


class AsyncWay(Protocol):
    """How an event loop has work done by whoever holds sandboxes."""

    async def call(
        self, function: Callable[..., Awaitable[Answer]], *args: object, **options: object
    ) -> Answer:
        """Run a function of theirs; cancelling this call cancels it."""
        ...

    async def find(self, sandbox_id: str) -> ClaimFace:
        """Return a claim on a live sandbox, or on one that is stopped and goes on now; raises `NotFound`."""
        ...

    async def list(self) -> Sequence[SandboxInfo]:
        """Return facts about the live sandboxes, the oldest first."""
        ...

    async def open(self, claim: Any) -> SandboxFace:
        """Return the sandbox of a claim, made if need be."""
        ...

    async def end(self, claim: Any) -> None:
        """Destroy the sandbox of a claim; safe to call twice, and while it is being made."""
        ...

    async def publish(self, hosted: Any, port: int, host_port: int) -> PublishedPort:
        """Have programs of this machine reach a port of a sandbox, whatever this event loop is doing."""
        ...

    async def run_cell(
        self,
        hosted: Any,
        code: str,
        kernel: str | None = None,
        language: str | None = None,
        *,
        timeout: float | None = None,
        listener: Listener | None = None,
        prompter: Prompter | None = None,
        track_files: bool = False,
    ) -> Cell:
        """Run a cell; callbacks are called here."""
        ...


class Way(Protocol):
    """The same for a thread that waits."""

    def call(
        self, function: Callable[..., Awaitable[Answer]], *args: object, **options: object
    ) -> Answer:
        """Run a function of theirs."""
        ...

    def find(self, sandbox_id: str) -> ClaimFace:
        """Return a claim on a live sandbox; raises `NotFound`."""
        ...

    def list(self) -> Sequence[SandboxInfo]:
        """Return facts about the live sandboxes, the oldest first."""
        ...

    def open(self, claim: Any) -> SandboxFace:
        """Return the sandbox of a claim, made if need be."""
        ...

    def end(self, claim: Any) -> None:
        """Destroy the sandbox of a claim; safe to call twice, and while it is being made."""
        ...

    def publish(self, hosted: Any, port: int, host_port: int) -> PublishedPort:
        """Have programs of this machine reach a port of a sandbox."""
        ...

    def run_cell(
        self,
        hosted: Any,
        code: str,
        kernel: str | None = None,
        language: str | None = None,
        *,
        timeout: float | None = None,
        listener: Listener | None = None,
        prompter: Prompter | None = None,
        track_files: bool = False,
    ) -> Cell:
        """Run a cell in this thread; callbacks are called here."""
        ...
