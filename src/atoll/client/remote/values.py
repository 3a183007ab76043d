"""What a server answers, as the values that the rest of the SDK knows; pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from atoll.model.attempt import AttemptInfo, NotedAttempt
from atoll.model.file import FileInfo, FileKind, TextPage
from atoll.model.ids import KernelId, SandboxId, WorkspaceId
from atoll.model.kernel import KernelInfo
from atoll.model.limits import LimitsInfo, ResolvedLimits
from atoll.model.network import Network
from atoll.model.process import Command, CommandResult, EndReason, ProcessEnd
from atoll.model.sandbox import LOCAL_OWNER, SandboxInfo, SandboxState, WorkspaceInfo
from atoll.model.search import Match, SearchResult
from atoll.model.secret import SecretInfo
from atoll.model.template import TemplateInfo
from atoll.model.tree import TreeReport

Fields = Mapping[str, Any]


def to_instant(text: str | None) -> float:
    """Return an instant that crossed the wire."""
    return 0.0 if text is None else datetime.fromisoformat(text).timestamp()


def to_sandbox(fields: Fields) -> SandboxInfo:
    """Return facts about a sandbox."""
    ended, active = fields["deleted_at"], fields["last_active_at"]
    workspace = fields["workspace"]
    return SandboxInfo(
        id=SandboxId(fields["id"]),
        engine=fields["engine"],
        template=fields["template"],
        state=SandboxState(fields["status"]),
        limits=LimitsInfo(ResolvedLimits(**fields["limits"]), fields["enforced_by"]),
        owner=fields["owner"],
        # One without a name goes by its id.
        name=None if fields["name"] == fields["id"] else fields["name"],
        labels=fields["labels"],
        metadata=fields["metadata"],
        reason=fields["reason"],
        created_at=to_instant(fields["created_at"]),
        ended_at=None if ended is None else to_instant(ended),
        last_active_at=None if active is None else to_instant(active),
        workspace=None if workspace is None else WorkspaceId(workspace),
        hostname=fields["hostname"],
        network=Network.from_json(fields["network"]),
    )


def to_workspace(fields: Fields) -> WorkspaceInfo:
    """Return facts about a workspace."""
    sandbox = fields["sandbox"]
    return WorkspaceInfo(
        id=WorkspaceId(fields["id"]),
        owner=fields["owner"],
        size_bytes=fields["size_bytes"],
        used_bytes=fields["used_bytes"],
        created_at=to_instant(fields["created_at"]),
        last_used_at=to_instant(fields["last_used_at"]),
        sandbox=None if sandbox is None else SandboxId(sandbox),
    )


def to_template(fields: Fields) -> TemplateInfo:
    """Return facts about a template; whose it is, is not told."""
    return TemplateInfo(
        name=fields["name"],
        digest=fields["digest"],
        owner=fields.get("owner", LOCAL_OWNER),
        packages=fields["packages"],
        distributions=fields["distributions"],
        preload=fields["preload"],
        interpreter=fields["interpreter"],
        # Older servers have templates with packages of Python's alone.
        language=fields.get("language", "python"),
        made_at=to_instant(fields["made_at"]),
        image=fields["image"],
        env=fields["env"],
        size_bytes=fields["size_bytes"],
        engines=fields["engines"],
    )


def to_secret(fields: Fields) -> SecretInfo:
    """Return facts about a secret."""
    used = fields["last_used_at"]
    return SecretInfo(
        name=fields["name"],
        owner=fields["owner"],
        hosts=fields["hosts"],
        place=fields["place"],
        field=fields["field"],
        template=fields["template"],
        created_at=to_instant(fields["created_at"]),
        changed_at=to_instant(fields["changed_at"]),
        last_used_at=None if used is None else to_instant(used),
    )


def to_attempt(fields: Fields, sandbox: SandboxId) -> NotedAttempt:
    """Return an attempt to reach something."""
    rest = {name: value for name, value in fields.items() if name not in ("number", "time")}
    return NotedAttempt(
        fields["number"],
        AttemptInfo(sandbox=sandbox, time=to_instant(fields["time"]), **rest),
    )


def to_kernel(fields: Fields) -> KernelInfo:
    """Return facts about a kernel."""
    return KernelInfo(**{**fields, "id": KernelId(fields["id"])})


def to_file(fields: Fields) -> FileInfo:
    """Return facts about a file."""
    return FileInfo(
        path=fields["path"],
        kind=FileKind(fields["kind"]),
        size=fields["size"],
        mode=fields["mode"],
        modified=to_instant(fields["modified_at"]),
    )


def to_page(fields: Fields) -> TextPage:
    """Return some lines of a file."""
    return TextPage(**fields)


def to_search(fields: Fields) -> SearchResult:
    """Return what a search found."""
    return SearchResult([Match(**each) for each in fields["matches"]], fields["cut_by"])


def to_tree(fields: Fields) -> TreeReport:
    """Return what was copied."""
    return TreeReport(**{**fields, "skipped_paths": list(fields["skipped_paths"])})


def to_command(what: Fields) -> Command:
    """Return the command of an execution; its variables are not told."""
    return Command(tuple(what["argv"]), cwd=what["cwd"], stdin=what["stdin"])


def to_end(outcome: Fields) -> ProcessEnd:
    """Return how a process ended."""
    return ProcessEnd(outcome.get("exit_code"), outcome.get("signal"), _reason(outcome))


def to_result(
    outcome: Fields, stdout: tuple[bytes, bool], stderr: tuple[bytes, bool]
) -> CommandResult:
    """Return what came of a command, with what is kept of each stream and whether that is not all."""
    reason = _reason(outcome)
    return CommandResult(
        exit_code=outcome.get("exit_code"),
        signal=outcome.get("signal"),
        reason=reason,
        stdout=stdout[0],
        stderr=stderr[0],
        stdout_truncated=stdout[1],
        stderr_truncated=stderr[1],
        duration=float(outcome.get("duration") or 0.0),
        aborted=reason in (EndReason.KILLED, EndReason.LOST),
    )


def _reason(outcome: Fields) -> EndReason:
    try:
        return EndReason(outcome.get("reason", EndReason.LOST))
    except ValueError:
        return EndReason.LOST
