"""A manager of sessions: sandboxes by short ids, each of one conversation, with caps on how many there are.

A session is a sandbox with a live interpreter. What a program does is in the result; what cannot be done is an error:
`InvalidRequest` for a runtime that there is not, `LimitExceeded` past a cap, `NotFound` for an unknown session, `Forbidden` for
one of another conversation, `Conflict` for one whose sandbox is no more, `TimedOut` if it does not start in time.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Lock
from typing import Any, Literal, Self

from atoll import Cell, Sandbox
from atoll.errors import (
    AtollError,
    CommandFailed,
    Conflict,
    Forbidden,
    InvalidRequest,
    LimitExceeded,
    NotFound,
    TimedOut,
)
from atoll.model.cell_events import MAX_OUTPUT_BYTES
from atoll.model.cuts import CutLimits, cut_text
from atoll.model.language import home_of
from atoll.model.packages import parse_packages

MOST_SESSIONS = 5
MOST_PER_THREAD = 3
START_SECONDS = 60.0
LONGEST_SECONDS = 300.0

RUNTIMES = ("python", "node", "r")
_QUOTA_OF_A_CPU = 100_000
_MEMORY, _QUOTA, _PROCESSES = "2048m", 200_000, 512

_WAY_OUT = "write it to a file and read that in parts"

Status = Literal["starting", "running", "dead"]


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """Facts about a session at one moment; times are seconds since 1970."""

    session_id: str
    container_id: str
    container_name: str
    runtime: str
    status: Status
    thread_id: str
    dependencies: Mapping[str, str]
    stderr: str  # what the installer of its dependencies complained about
    created_at: float
    last_activity: float


@dataclass(frozen=True, slots=True)
class CodeError:
    """The exception that ended a piece of code."""

    type: str
    message: str
    traceback: str


@dataclass(frozen=True, slots=True)
class CodeResult:
    """What came of a piece of code."""

    success: bool
    stdout: str
    stderr: str
    result: Mapping[str, Any] | None  # the last expression's value, by MIME type
    error: CodeError | None
    display_outputs: list[Mapping[str, Any]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class TerminalResult:
    """What came of a shell line."""

    exit_code: int
    stdout: str
    stderr: str


@dataclass(slots=True)
class _Session:
    info: SessionInfo
    sandbox: Sandbox


class SandboxManager:
    """Makes and keeps sessions; may be used from any thread. Leaving its context ends them all."""

    def __init__(
        self,
        docker_dir: str | Path | None = None,
        *,
        url: str | None = None,
        token: str | None = None,
        network: str = "none",
        most_sessions: int = MOST_SESSIONS,
        most_per_thread: int = MOST_PER_THREAD,
        cut_limits: CutLimits | None = None,
    ) -> None:
        """Say where sandboxes are, as `Sandbox(url=…, token=…)` does.

        Longer texts than `cut_limits` lets through are cut: head and tail stay, and a note tells how long they were.
        `docker_dir` is accepted and means nothing: there are no images to be built.
        """
        self._url = url
        self._token = token
        self._network = network
        self._most = most_sessions
        self._most_per_thread = most_per_thread
        self._limits = cut_limits or CutLimits()
        self._sessions: dict[str, _Session] = {}
        self._starting: list[str] = []  # the conversations of those that are being made
        self._guard = Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.cleanup_all()

    @contextmanager
    def conversation(self, thread_id: str) -> Iterator[None]:
        """Let sessions that are made meanwhile belong to a conversation, and only its own be seen."""
        before = _thread.set(thread_id)
        try:
            yield
        finally:
            _thread.reset(before)

    def create_session(
        self,
        runtime: str = "python",
        dependencies: Mapping[str, Any] | None = None,
        mem_limit: str | int | None = None,
        cpu_quota: int | None = None,
    ) -> SessionInfo:
        """Make a session; what its dependencies' installer complains about does not end it."""
        if runtime not in RUNTIMES:
            raise InvalidRequest(
                f"there is no runtime {str(runtime)[:80]!r}; there is: {', '.join(RUNTIMES)}",
                runtime=str(runtime)[:80],
            )
        wanted = {name: _version(version) for name, version in (dependencies or {}).items()}
        packages = parse_packages(wanted, runtime)
        thread_id = _thread.get()
        self._reserve(thread_id)
        try:
            sandbox = self._make(runtime, mem_limit, cpu_quota, needs_index=bool(packages))
            try:
                stderr = _install(sandbox, packages, runtime)
            except BaseException:
                sandbox.destroy()
                raise
            info = _describe(sandbox, runtime, thread_id, wanted, stderr)
            with self._guard:
                self._sessions[info.session_id] = _Session(info, sandbox)
            return info
        finally:
            with self._guard:
                self._starting.remove(thread_id)

    def execute_code(self, session_id: str, code: str, timeout: float = 30) -> CodeResult:
        """Run code in a session, which keeps its variables; at most five minutes."""
        with self._using(session_id) as session:
            seconds = min(max(float(timeout), 1.0), LONGEST_SECONDS)
            return _to_result(session.sandbox.run_code(code, timeout=seconds), self._limits)

    def execute_terminal(self, session_id: str, command: str) -> TerminalResult:
        """Run a shell line in a session; at most five minutes."""
        with self._using(session_id) as session:
            result = session.sandbox.commands.run(command, timeout=LONGEST_SECONDS)
        stdout, stderr = (
            each.decode("utf-8", "replace") for each in (result.stdout, result.stderr)
        )
        limits = self._limits
        return TerminalResult(
            result.shell_code,
            _cut(stdout, limits.stdout, "stdout", is_part=result.stdout_truncated),
            _cut(stderr, limits.stderr, "stderr", is_part=result.stderr_truncated),
        )

    def get_session(self, session_id: str) -> SessionInfo:
        """Return facts about a session; raises `NotFound` and `Forbidden`."""
        return self._find(session_id).info

    def list_sessions(self, thread_id: str | None = None) -> list[SessionInfo]:
        """Return all sessions, or those of a conversation, the oldest first."""
        with self._guard:
            found = [each.info for each in self._sessions.values()]
        return [each for each in found if thread_id in (None, each.thread_id)]

    def stop_session(self, session_id: str) -> bool:
        """End a session; return whether there was one."""
        try:
            self._find(session_id)
        except NotFound:
            return False
        return self._end(session_id)

    def cleanup_thread_sessions(self, thread_id: str) -> int:
        """End the sessions of a conversation; return how many there were."""
        return sum(self._end(each.session_id) for each in self.list_sessions(thread_id))

    def cleanup_all(self) -> int:
        """End all sessions; return how many there were."""
        return sum(self._end(each.session_id) for each in self.list_sessions())

    # --- one session -----------------------------------------------------------------------------------------

    def _reserve(self, thread_id: str) -> None:
        """Take a place for one more session; raises `LimitExceeded`."""
        with self._guard:
            owners = [each.info.thread_id for each in self._sessions.values()] + self._starting
            if len(owners) >= self._most:
                raise LimitExceeded(
                    f"there are {self._most} sessions, the most there may be; stop one first",
                    limit=self._most,
                )
            if owners.count(thread_id) >= self._most_per_thread:
                raise LimitExceeded(
                    f"this conversation has {self._most_per_thread} sessions, the most that one may have; stop one first",
                    limit=self._most_per_thread,
                )
            self._starting.append(thread_id)

    def _make(
        self,
        runtime: str,
        mem_limit: str | int | None,
        cpu_quota: int | None,
        *,
        needs_index: bool,
    ) -> Sandbox:
        limits: dict[str, Any] = {
            "memory": mem_limit or _MEMORY,
            "cpus": (cpu_quota or _QUOTA) / _QUOTA_OF_A_CPU,
            "processes": _PROCESSES,
        }
        if mem_limit is None and cpu_quota is None:
            # Nobody insisted on them.
            limits["enforcement"] = "best_effort"
        network = "registries" if needs_index and self._network == "none" else self._network
        sandbox = Sandbox(
            home_of(runtime), url=self._url, token=self._token, limits=limits, network=network
        )
        try:
            cell = sandbox.run_code("", language=runtime, timeout=START_SECONDS)
        except BaseException:
            sandbox.destroy()
            raise
        if not cell.ok:
            sandbox.destroy()
            raise TimedOut(
                f"the {runtime} session did not start within {START_SECONDS:g} s: {cell.death or cell.status}"
            )
        return sandbox

    def _find(self, session_id: str) -> _Session:
        with self._guard:
            session = self._sessions.get(session_id)
        if session is None:
            raise NotFound(
                f"there is no session {str(session_id)[:80]!r}; create one first",
                session=str(session_id)[:80],
            )
        if session.info.thread_id != _thread.get():
            raise Forbidden(f"session {session_id} belongs to another conversation")
        return session

    @contextmanager
    def _using(self, session_id: str) -> Iterator[_Session]:
        session = self._find(session_id)
        session.info = replace(session.info, last_activity=time.time())
        try:
            yield session
        except Conflict as error:
            session.info = replace(session.info, status="dead")
            raise Conflict(
                f"session {session_id} has died: {error.message}", session=session_id
            ) from error

    def _end(self, session_id: str) -> bool:
        with self._guard:
            session = self._sessions.pop(session_id, None)
        if session is None:
            return False
        try:
            session.sandbox.destroy()
        except AtollError:
            with self._guard:
                self._sessions[session_id] = session  # still there: it can be tried again
            raise
        return True


# Whose sessions a program works with just now.
_thread: ContextVar[str] = ContextVar("atoll_thread", default="")


def _version(version: object) -> str:
    return "" if version is None else str(version)


def _install(sandbox: Sandbox, packages: tuple[str, ...], language: str) -> str:
    if not packages:
        return ""
    try:
        return sandbox.install(*packages, language=language).stderr.decode("utf-8", "replace")
    except CommandFailed as error:
        return error.message


def _describe(
    sandbox: Sandbox, runtime: str, thread_id: str, wanted: Mapping[str, str], stderr: str
) -> SessionInfo:
    now = time.time()
    session_id = secrets.token_hex(4)
    return SessionInfo(
        session_id=session_id,
        container_id=sandbox.id,
        container_name=f"{runtime}-{session_id}",
        runtime=runtime,
        status="running",
        thread_id=thread_id,
        dependencies=wanted,
        stderr=stderr,
        created_at=now,
        last_activity=now,
    )


def _to_result(cell: Cell, limits: CutLimits) -> CodeResult:
    main = next((each for each in cell.results if each.is_main), None)
    error = None
    if cell.error is not None:
        traceback = _cut("\n".join(cell.error.traceback), limits.traceback, "the traceback")
        error = CodeError(cell.error.name, cell.error.value, traceback)
    elif not cell.ok:
        error = CodeError(str(cell.status), cell.death or "the code was stopped", "")
    return CodeResult(
        success=cell.ok,
        stdout=_cut(cell.stdout, limits.stdout, "stdout", is_part=_was_cut(cell, cell.stdout)),
        stderr=_cut(cell.stderr, limits.stderr, "stderr", is_part=_was_cut(cell, cell.stderr)),
        result=None if main is None else _cut_forms(main.data, limits),
        error=error,
        display_outputs=[
            _cut_forms(each.data, limits) for each in cell.results if not each.is_main
        ],
    )


def _was_cut(cell: Cell, text: str) -> bool:
    """Whether a stream was cut before; a cell tells only that something of it was, which may be the middle of a character."""
    return cell.truncated and len(text.encode("utf-8", "replace")) > MAX_OUTPUT_BYTES - 4


def _cut_forms(forms: Mapping[str, Any], limits: CutLimits) -> Mapping[str, Any]:
    """Cut what is read as text; a picture is whole or nothing."""
    return {
        mime: _cut(form, limits.result, "the result")
        if mime.startswith("text/") and isinstance(form, str)
        else form
        for mime, form in forms.items()
    }


def _cut(text: str, most: int, what: str, *, is_part: bool = False) -> str:
    return cut_text(text, most, what, way_out=_WAY_OUT, is_part=is_part).text
