"""Functions of the node's user that are told what happens to sandboxes, one thing after the other."""

from __future__ import annotations

import inspect
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup

from atoll.model.attempt import AttemptInfo
from atoll.model.ids import ExecutionId, SandboxId
from atoll.model.sandbox import SandboxInfo

_MOST_WAITING = 10_000
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SandboxCreated:
    """A sandbox is ready."""

    sandbox: SandboxInfo


@dataclass(frozen=True, slots=True)
class ExecutionStarted:
    """A command, a cell or a terminal has begun."""

    sandbox: SandboxId
    execution: ExecutionId
    kind: str
    what: str  # the command or the code, shortened


@dataclass(frozen=True, slots=True)
class ExecutionEnded:
    """A command, a cell or a terminal has ended; `result` is what its caller gets."""

    sandbox: SandboxId
    execution: ExecutionId
    kind: str
    result: Any


@dataclass(frozen=True, slots=True)
class FileWritten:
    """A file was written through the node."""

    sandbox: SandboxId
    path: str
    size: int


@dataclass(frozen=True, slots=True)
class EgressAttempted:
    """A sandbox tried to reach something outside; `attempt.verdict` says what came of it."""

    attempt: AttemptInfo


class SandboxChange(StrEnum):
    """What became otherwise about a sandbox."""

    PAUSED = "paused"
    RESUMED = "resumed"  # after a pause, or after it was stopped
    STOPPED = "stopped"
    UPDATED = "updated"  # its name, its labels or its network


@dataclass(frozen=True, slots=True)
class SandboxChanged:
    """A sandbox was paused, stopped, resumed, or is called otherwise than before."""

    sandbox: SandboxInfo
    change: SandboxChange


@dataclass(frozen=True, slots=True)
class SandboxDestroyed:
    """A sandbox is no more; `sandbox.reason` says why."""

    sandbox: SandboxInfo


Happening = (
    SandboxCreated
    | ExecutionStarted
    | ExecutionEnded
    | FileWritten
    | EgressAttempted
    | SandboxChanged
    | SandboxDestroyed
)
# Plain or a coroutine function; a plain one runs in a thread, so that it may wait.
Hook = Callable[[Happening], Any]


class Hooks:
    """Tells hooks what happens, in order, without anybody waiting for them. `tell` may be called in any thread.

    A hook that fails is reported and harms nothing. Hooks that are far too slow miss the oldest of what they have not seen.
    """

    def __init__(
        self,
        hooks: Sequence[Hook],
        tasks: TaskGroup,
        wake: Callable[..., object],
        failed: Callable[[], object] = lambda: None,
        witnesses: Sequence[Callable[[Happening], None]] = (),
    ) -> None:
        self._hooks = tuple(hooks)
        # Parts of the node itself, told at once and where it happens: they neither wait nor fail, and a task would cost more.
        self._witnesses = tuple(witnesses)
        self._tasks = tasks
        self._wake = wake  # runs a function in the node's event loop
        self._failed = failed
        self._waiting: deque[Happening] = deque(maxlen=_MOST_WAITING)
        self._guard = threading.Lock()
        self._is_telling = False

    def tell(self, happening: Happening) -> None:
        """Have all hooks told, soon."""
        for witness in self._witnesses:
            witness(happening)
        if not self._hooks:
            return
        with self._guard:
            self._waiting.append(happening)
            if self._is_telling:
                return
            self._is_telling = True
        self._wake(self._tasks.start_soon, self._tell_all)

    def tell_of(self, describe: Callable[[], Happening]) -> None:
        """Have all hooks told, soon, what `describe` returns; if there are none, nobody has to describe it."""
        if self._hooks or self._witnesses:
            self.tell(describe())

    async def _tell_all(self) -> None:
        while (happening := self._next()) is not None:
            for hook in self._hooks:
                await self._tell(hook, happening)

    def _next(self) -> Happening | None:
        with self._guard:
            if self._waiting:
                return self._waiting.popleft()
            self._is_telling = False
            return None

    async def _tell(self, hook: Hook, happening: Happening) -> None:
        try:
            if inspect.iscoroutinefunction(hook):
                await hook(happening)
            else:
                answer = await anyio.to_thread.run_sync(hook, happening)
                if inspect.isawaitable(answer):
                    await answer
        except Exception as error:  # noqa: BLE001 - whatever a stranger's function raises
            self._failed()
            _log.warning(
                "hook.failed",
                extra={"happening": type(happening).__name__, "reason": repr(error)[:500]},
            )
