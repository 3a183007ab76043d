"""What the node answers, as JSON; times are RFC 3339 in UTC."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated, Any

from pydantic import BaseModel, PlainSerializer, WithJsonSchema

from atoll.model.attempt import AttemptVerdict, NotedAttempt
from atoll.model.execution import EventType, ExecutionInfo
from atoll.model.file import FileInfo, FileKind, TextPage
from atoll.model.kernel import KernelInfo
from atoll.model.process import Command, CommandResult
from atoll.model.sandbox import SandboxInfo, SandboxState, WorkspaceInfo
from atoll.model.search import CutBy, SearchResult
from atoll.model.secret import Place, SecretInfo
from atoll.model.template import TemplateInfo
from atoll.model.tree import TreeReport
from atoll.node.background import ProcessStatus
from atoll.node.listening_ports import ListeningPort
from atoll.node.pool import ShelfInfo
from atoll.node.sandbox_adoption import GONE_MEANWHILE, NEVER_MADE, NOT_TAKEN_OVER
from atoll.server.labels import INTERACTIVE, LABEL, PUBLIC, shown_labels
from atoll.server.texts import plain

# Why a sandbox is no more, in the words of clients that know only these; all else is `container_stopped`.
_DELETE_REASONS = {
    "asked": "user_deleted",
    "reset": "user_deleted",
    "idle": "idle",
    NEVER_MADE: "startup_sync",
    GONE_MEANWHILE: "startup_sync",
}
# What a shell line is run by; callers know only the line.
_SHELL = tuple(Command.shell("").argv[:-1])


def timestamp(seconds: float) -> str:
    """Return an instant as it crosses the wire."""
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


Time = Annotated[
    float,
    PlainSerializer(timestamp, return_type=str),
    WithJsonSchema({"type": "string", "format": "date-time"}, mode="serialization"),
]


class SandboxAnswer(BaseModel):
    """A sandbox, living or not."""

    id: str
    name: str  # the id, if it has no name
    label: str | None
    status: SandboxState
    hostname: str
    interactive: bool
    is_public: bool = False
    url: str | None = None
    ip_address: str | None = None
    parent_id: str | None = None
    child_ids: Sequence[str] = ()
    owner: str
    engine: str
    template: str
    labels: Mapping[str, str]
    metadata: Mapping[str, str]
    limits: Mapping[str, int | float]
    enforced_by: Mapping[str, str]
    workspace: str | None
    network: Mapping[str, Any]
    created_at: Time
    last_active_at: Time | None
    deleted_at: Time | None
    delete_reason: str | None
    reason: str

    @classmethod
    def of(cls, info: SandboxInfo) -> SandboxAnswer:
        """Return facts about a sandbox as they cross the wire."""
        return cls(
            id=info.id,
            name=info.name or info.id,
            label=info.labels.get(LABEL),
            status=info.state,
            hostname=info.hostname,
            interactive=INTERACTIVE in info.labels,
            is_public=PUBLIC in info.labels,
            owner=info.owner,
            engine=info.engine,
            template=info.template,
            labels=shown_labels(info.labels),
            metadata=info.metadata,
            limits=asdict(info.limits.limits),
            enforced_by=info.limits.enforced_by,
            workspace=info.workspace,
            network=info.network.to_json(),
            created_at=info.created_at,
            last_active_at=info.last_active_at,
            deleted_at=info.ended_at,
            delete_reason=delete_reason(info),
            reason=info.reason,
        )


class ChangedAnswer(SandboxAnswer):
    """A sandbox as it is after a change."""

    public: bool

    @classmethod
    def after(cls, info: SandboxInfo) -> ChangedAnswer:
        """Return facts about a sandbox that was changed."""
        return cls(**dict(SandboxAnswer.of(info)), public=PUBLIC in info.labels)


class DestroyedAnswer(BaseModel):
    """A sandbox that is no more."""

    id: str
    message: str


class CountAnswer(BaseModel):
    """How many sandboxes were destroyed."""

    destroyed: int


class TreeNodeAnswer(BaseModel):
    """A sandbox with those that were forked from it."""

    id: str
    label: str | None
    status: SandboxState
    children: Sequence[TreeNodeAnswer]

    @classmethod
    def of(cls, info: SandboxInfo) -> TreeNodeAnswer:
        """Return a sandbox of which there are no forks."""
        label = info.labels.get(LABEL)
        return cls(id=info.id, label=label, status=info.state, children=[])


class SandboxTreeAnswer(BaseModel):
    """A sandbox and its forks: drawn, and as they are."""

    tree: str
    tree_json: TreeNodeAnswer

    @classmethod
    def of(cls, root: TreeNodeAnswer) -> SandboxTreeAnswer:
        """Return a tree with its drawing."""
        return cls(tree="\n".join(_draw(root)), tree_json=root)


def _draw(node: TreeNodeAnswer) -> Iterator[str]:
    """Yield the lines of a tree; what is no more is marked."""
    dead = " (dead)" if node.status.is_over else ""
    yield f"{node.label or node.id} [{node.id}]{dead}"
    for child in node.children:
        is_last = child is node.children[-1]
        first, *rest = _draw(child)
        yield f"{'└── ' if is_last else '├── '}{first}"
        for line in rest:
            yield f"{'    ' if is_last else '│   '}{line}"


class WorkspaceAnswer(BaseModel):
    """A workspace that outlives its sandboxes."""

    id: str
    owner: str
    size_bytes: int
    used_bytes: int
    created_at: Time
    last_used_at: Time
    sandbox: str | None

    @classmethod
    def of(cls, info: WorkspaceInfo) -> WorkspaceAnswer:
        """Return facts about a workspace as they cross the wire."""
        return cls(**asdict(info))


class PoolAnswer(BaseModel):
    """Sandboxes of one configuration that are kept ready: how many are to be, and how many are."""

    engine: str
    template: str
    image: str | None
    wanted: int
    ready: int

    @classmethod
    def of(cls, info: ShelfInfo) -> PoolAnswer:
        """Return facts about ready sandboxes as they cross the wire."""
        return cls(**asdict(info))


class SecretAnswer(BaseModel):
    """A stored secret, without what it is worth."""

    name: str
    owner: str
    hosts: Sequence[str]
    place: Place
    field: str
    template: str
    created_at: Time
    changed_at: Time
    last_used_at: Time | None

    @classmethod
    def of(cls, info: SecretInfo) -> SecretAnswer:
        """Return facts about a secret as they cross the wire."""
        return cls(**asdict(info))


class AttemptAnswer(BaseModel):
    """Something that a sandbox tried to reach, and what came of it."""

    number: int
    time: Time
    scheme: str
    host: str
    port: int
    method: str
    path: str
    address: str
    verdict: AttemptVerdict
    reason: str
    up_bytes: int
    down_bytes: int
    seconds: float

    @classmethod
    def of(cls, noted: NotedAttempt) -> AttemptAnswer:
        """Return an attempt as it crosses the wire."""
        return cls(**noted.to_json())


def delete_reason(info: SandboxInfo) -> str | None:
    """Return why a sandbox is no more, in one of a few words; `reason` says it in its own."""
    if info.ended_at is None:
        return None
    if info.reason not in _DELETE_REASONS and info.reason.startswith(NOT_TAKEN_OVER):
        return "startup_sync_error"
    return _DELETE_REASONS.get(info.reason, "container_stopped")


class ExecutionAnswer(BaseModel):
    """A command, a cell or a terminal."""

    id: str
    sandbox_id: str
    owner: str
    kind: str
    what: Mapping[str, Any]
    state: str
    started_at: Time
    ended_at: Time | None
    outcome: Mapping[str, Any]
    pid: int | None = None  # of its process inside, while that runs

    @classmethod
    def of(cls, info: ExecutionInfo, pid: int | None = None) -> ExecutionAnswer:
        """Return facts about an execution as they cross the wire."""
        return cls(**_execution_fields(info), pid=pid)


class FinishedAnswer(ExecutionAnswer):
    """An execution that was waited for, with what came of it: bytes as text, or in base64 where they are none."""

    stdout: str | None
    stdout_base64: str | None
    stderr: str | None
    stderr_base64: str | None
    results: Sequence[Mapping[str, Any]]
    error: Mapping[str, Any] | None
    truncated: Sequence[str]

    @staticmethod
    def fields(info: ExecutionInfo, output: Mapping[str, Any]) -> dict[str, Any]:
        """Return an execution with its output as JSON has it; our own values, which need not be checked again."""
        times = {
            "started_at": timestamp(info.started_at),
            "ended_at": None if info.ended_at is None else timestamp(info.ended_at),
        }
        return {**_execution_fields(info), **times, "pid": None, **output}


class EventAnswer(BaseModel):
    """One thing that came of an execution: of an output its bytes, as text or else in base64; of all others a value."""

    seq: int
    t: float
    type: EventType
    text: str | None = None
    base64: str | None = None
    value: Mapping[str, Any] | None = None


def _execution_fields(info: ExecutionInfo) -> dict[str, Any]:
    return {
        "id": info.id,
        "sandbox_id": info.sandbox,
        "owner": info.owner,
        "kind": info.kind.value,
        "what": info.what,
        "state": info.state.value,
        "started_at": info.started_at,
        "ended_at": info.ended_at,
        "outcome": info.outcome,
    }


class ProcessAnswer(BaseModel):
    """A command that was started and goes on by itself; its id is that of its execution."""

    id: str
    pid: int | None
    command: str
    argv: Sequence[str]
    cwd: str
    status: ProcessStatus
    started_at: Time
    ended_at: Time | None
    exit_code: int | None
    signal: int | None
    reason: str | None

    @classmethod
    def of(cls, info: ExecutionInfo, pid: int | None = None) -> ProcessAnswer:
        """Return facts about a process as they cross the wire."""
        return cls(
            id=info.id,
            pid=pid,
            command=command_line(info),
            argv=[plain(str(each)) for each in info.what.get("argv") or ()],
            cwd=plain(str(info.what.get("cwd", "."))),
            status=_process_status(info),
            started_at=info.started_at,
            ended_at=info.ended_at,
            exit_code=info.outcome.get("exit_code"),
            signal=info.outcome.get("signal"),
            reason=info.outcome.get("reason"),
        )


def _process_status(info: ExecutionInfo) -> ProcessStatus:
    if info.ended_at is None:
        return ProcessStatus.RUNNING
    return ProcessStatus.STOPPED if info.outcome.get("stopped") else ProcessStatus.EXITED


def command_line(info: ExecutionInfo) -> str:
    """Return the shell line that was run, or an argument list as one."""
    argv = tuple(info.what.get("argv") or ())
    return plain(str(argv[-1]) if argv[:-1] == _SHELL else shlex.join(map(str, argv)))


class PortAnswer(BaseModel):
    """A port that something in the sandbox listens on."""

    port: int
    address: str
    is_loopback: bool

    @classmethod
    def of(cls, found: ListeningPort) -> PortAnswer:
        """Return a port as it crosses the wire."""
        return cls(port=found.port, address=found.address, is_loopback=found.is_loopback)


class PortWaitAnswer(BaseModel):
    """Whether something listens on a port by now."""

    port: int
    is_listening: bool
    address: str | None


class FileAnswer(BaseModel):
    """A file, a directory or a link."""

    name: str
    path: str
    kind: FileKind
    is_dir: bool
    size: int
    mode: int
    modified_at: Time

    @classmethod
    def of(cls, info: FileInfo) -> FileAnswer:
        """Return facts about a file as they cross the wire."""
        return cls(
            name=plain(info.name),
            path=plain(info.path),
            kind=info.kind,
            is_dir=info.kind is FileKind.DIRECTORY,
            size=info.size,
            mode=info.mode,
            modified_at=info.modified,
        )


class DirectoryAnswer(BaseModel):
    """What is in a directory."""

    path: str
    entries: Sequence[FileAnswer]


class PageAnswer(BaseModel):
    """Some lines of a text file; `next_line` is where the next page begins, if there is one."""

    text: str
    start_line: int
    end_line: int
    next_line: int | None
    cut_by: str | None

    @classmethod
    def of(cls, page: TextPage) -> PageAnswer:
        """Return a page as it crosses the wire."""
        return cls(**asdict(page))


class MatchAnswer(BaseModel):
    """A line that matches."""

    path: str
    line: int
    text: str


class SearchAnswer(BaseModel):
    """The lines found; `cut_by` says what ended the search before its time."""

    matches: Sequence[MatchAnswer]
    cut_by: CutBy | None

    @classmethod
    def of(cls, found: SearchResult) -> SearchAnswer:
        """Return what was found as it crosses the wire."""
        matches = [
            MatchAnswer(path=plain(each.path), line=each.line, text=plain(each.text))
            for each in found.matches
        ]
        return cls(matches=matches, cut_by=found.cut_by)


class TreeAnswer(BaseModel):
    """What an archive held."""

    files: int
    directories: int
    total_bytes: int
    skipped: int
    skipped_paths: Sequence[str]

    @classmethod
    def of(cls, report: TreeReport) -> TreeAnswer:
        """Return a report as it crosses the wire."""
        shown = [plain(path) for path in report.skipped_paths]
        return cls(**{**asdict(report), "skipped_paths": shown})


class TemplateAnswer(BaseModel):
    """A template that was built, of packages or of an image."""

    name: str
    digest: str
    packages: Sequence[str]
    distributions: Sequence[str]
    preload: Sequence[str]
    interpreter: str
    language: str
    made_at: Time
    image: str
    env: Mapping[str, str]
    size_bytes: int
    engines: Mapping[str, str]

    @classmethod
    def of(cls, info: TemplateInfo) -> TemplateAnswer:
        """Return facts about a template as they cross the wire."""
        fields = asdict(info)
        del fields["owner"]
        return cls(**fields)


class InstalledAnswer(BaseModel):
    """What an installer said."""

    output: str
    stderr: str
    duration: float

    @classmethod
    def of(cls, result: CommandResult) -> InstalledAnswer:
        """Return what came of an installer as it crosses the wire."""
        return cls(
            output=result.stdout.decode("utf-8", "replace"),
            stderr=result.stderr.decode("utf-8", "replace"),
            duration=result.duration,
        )


class KernelAnswer(BaseModel):
    """A kernel of a sandbox."""

    id: str
    language: str
    is_main: bool
    is_busy: bool
    is_over: bool
    reason: str
    is_warm: bool

    @classmethod
    def of(cls, info: KernelInfo) -> KernelAnswer:
        """Return facts about a kernel as they cross the wire."""
        return cls(**asdict(info))
