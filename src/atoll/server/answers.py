"""What the node answers, as JSON; times are RFC 3339 in UTC."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated, Any

from pydantic import BaseModel, PlainSerializer, WithJsonSchema

from atoll.model.attempt import AttemptVerdict
from atoll.model.execution import ExecutionInfo
from atoll.model.file import FileInfo, FileKind
from atoll.model.kernel import KernelInfo
from atoll.model.sandbox import SandboxInfo, SandboxState, WorkspaceInfo
from atoll.model.secret import Place, SecretInfo
from atoll.model.tree import TreeReport
from atoll.node.attempt_log import NotedAttempt
from atoll.server.labels import INTERACTIVE, LABEL, shown_labels
from atoll.server.texts import plain

# Why a sandbox is no more, in the words of clients that know only these.
_DELETE_REASONS = {"asked": "user_deleted", "reset": "user_deleted"}


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
            delete_reason=_delete_reason(info),
            reason=info.reason,
        )


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


def _delete_reason(info: SandboxInfo) -> str | None:
    if info.ended_at is None:
        return None
    if info.state is SandboxState.LOST:
        return "container_stopped"
    return _DELETE_REASONS.get(info.reason, info.reason)


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

    @classmethod
    def of(cls, info: ExecutionInfo) -> ExecutionAnswer:
        """Return facts about an execution as they cross the wire."""
        return cls(**_execution_fields(info))


class FinishedAnswer(ExecutionAnswer):
    """An execution that was waited for, with what came of it: bytes as text, or in base64 where they are none."""

    stdout: str | None
    stdout_base64: str | None
    stderr: str | None
    stderr_base64: str | None
    results: Sequence[Mapping[str, Any]]
    error: Mapping[str, Any] | None
    truncated: Sequence[str]

    @classmethod
    def finished(cls, info: ExecutionInfo, **output: Any) -> FinishedAnswer:
        """Return an execution with its output."""
        return cls(**_execution_fields(info), **output)


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


class KernelAnswer(BaseModel):
    """A kernel of a sandbox."""

    id: str
    language: str
    is_main: bool
    is_busy: bool
    is_over: bool
    reason: str

    @classmethod
    def of(cls, info: KernelInfo) -> KernelAnswer:
        """Return facts about a kernel as they cross the wire."""
        return cls(**asdict(info))
