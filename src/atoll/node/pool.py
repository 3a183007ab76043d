"""Sandboxes made ahead, with their kernels: taken once, never given back, and replaced in the background."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace

import anyio

from atoll.errors import AtollError, InvalidRequest
from atoll.model.ids import SandboxId, new_sandbox_id
from atoll.model.sandbox import SandboxSpec, SandboxState
from atoll.model.sizes import MIB
from atoll.node.hosted import HostedSandbox
from atoll.node.hosting import Hosting

MOST_READY = 1000
# Whoever has just got a sandbox works with it now; making the next one can wait.
_REST_SECONDS = 0.02
_RETRY_SECONDS = 1.0
# The pool gives way while this much is left before anybody would be refused; it comes back only when there is more,
# for otherwise it would be made and thrown away in turn.
_SHED_BYTES, _REFILL_BYTES = 128 * MIB, 384 * MIB

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Shelf:
    """The sandboxes of one configuration."""

    spec: SandboxSpec
    wanted: int = 0
    ready: deque[HostedSandbox] = field(default_factory=deque)
    is_filling: bool = False


class Pool:
    """Ready sandboxes by their whole configuration. `take` may be called in any thread."""

    def __init__(
        self,
        hosting: Hosting,
        wake: Callable[..., object],
        has_room: Callable[[int], bool] = lambda _spare_bytes: True,
    ) -> None:
        """Keep sandboxes as long as `has_room` says that there is memory for one more, and so much to spare."""
        self._hosting = hosting
        self._tasks = hosting.tasks
        self._wake = wake  # runs a function in the node's event loop
        self._has_room = has_room
        self._shelves: dict[Hashable, _Shelf] = {}
        self._guard = threading.Lock()

    async def keep(self, spec: SandboxSpec, count: int) -> None:
        """Have `count` sandboxes of this configuration ready from now on; returns when they are.

        Raises:
            InvalidRequest: not a number that is possible, or a sandbox that is not.
        """
        if type(count) is not int or not 0 <= count <= MOST_READY:
            raise InvalidRequest(
                f"{count!r} sandboxes cannot be kept ready; it has to be 0 to {MOST_READY}"
            )
        shelf = self._shelves.setdefault(configuration(spec), _Shelf(spec))
        shelf.wanted = count
        while len(shelf.ready) > count:
            await shelf.ready.pop().destroy()
        while len(shelf.ready) < shelf.wanted:
            shelf.ready.append(await self._make(shelf))

    def take(self, spec: SandboxSpec) -> HostedSandbox | None:
        """Return a ready sandbox under the id that was asked for, or None if there is none."""
        shelf = self._shelves.get(configuration(spec)) if self._shelves else None
        if shelf is None or not shelf.wanted:
            return None
        found = self._take_good(shelf, spec.id)
        self._refill(shelf)
        return found

    async def shed(self) -> int:
        """Give up ready sandboxes while memory is short; return how many. They are made anew when it no longer is."""
        count = 0
        for shelf in list(self._shelves.values()):
            while shelf.ready and not self._has_room(_SHED_BYTES):
                await shelf.ready.pop().destroy()
                count += 1
                self._refill(shelf)
        if count:
            _log.warning("pool.shed", extra={"sandboxes": count})
        return count

    def ready(self) -> Sequence[HostedSandbox]:
        """Return the sandboxes that are ready."""
        return [hosted for shelf in list(self._shelves.values()) for hosted in list(shelf.ready)]

    def _take_good(self, shelf: _Shelf, sandbox_id: SandboxId) -> HostedSandbox | None:
        while True:
            try:
                hosted = shelf.ready.popleft()
            except IndexError:
                return None
            if hosted.info.state is SandboxState.RUNNING and hosted.has_kernel(shelf.spec):
                hosted.rename(sandbox_id)
                return hosted
            self._wake(self._tasks.start_soon, hosted.destroy)

    def _refill(self, shelf: _Shelf) -> None:
        with self._guard:
            if shelf.is_filling:
                return
            shelf.is_filling = True
        self._wake(self._tasks.start_soon, self._fill, shelf)

    async def _fill(self, shelf: _Shelf) -> None:
        try:
            await anyio.sleep(_REST_SECONDS)
            while len(shelf.ready) < shelf.wanted:
                if not self._has_room(_REFILL_BYTES):
                    await anyio.sleep(_RETRY_SECONDS)
                    continue
                try:
                    shelf.ready.append(await self._make(shelf))
                except AtollError as error:
                    # Whoever needs a sandbox meanwhile makes one, and is told of the reason.
                    _log.warning("pool.refill_failed", extra={"reason": error.message})
                    await anyio.sleep(_RETRY_SECONDS)
        finally:
            shelf.is_filling = False

    async def _make(self, shelf: _Shelf) -> HostedSandbox:
        spec = replace(shelf.spec, id=new_sandbox_id())
        hosted = await self._hosting.open(spec)
        kernel = hosted.live_kernel()
        if kernel is not None:
            await kernel.rehearse()
        return hosted


def configuration(spec: SandboxSpec) -> Hashable:
    """Return all that makes a sandbox what it is, but its id."""
    return (
        spec.template,
        spec.limits,
        tuple(sorted(spec.env.items())),
        spec.hostname,
        tuple(spec.mounts),
        spec.workspace,
        spec.kernel,
        spec.network,
    )
