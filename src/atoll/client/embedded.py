"""A node in this process: one thread with an event loop, which owns the engine and all sandboxes.

Calls come from any thread and any event loop. Sandboxes are made and destroyed, and cells run, where the caller is;
all else is done over there. The node is made with the first sandbox and ends with the program. A forked copy of the
program has no such thread; it is told so.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup
from anyio.from_thread import BlockingPortal, start_blocking_portal

from atoll.client.places import data_directory
from atoll.errors import Conflict
from atoll.model.ids import KernelId
from atoll.model.kernel import Cell

# Only names for the rest of the client: what they stand for is loaded with the first sandbox.
if TYPE_CHECKING:
    from atoll.client.errands import Claim
    from atoll.node.attempt_log import NotedAttempt
    from atoll.node.background import BackgroundProcess
    from atoll.node.hosted import HostedSandbox
    from atoll.node.residents import Resident
    from atoll.node.search import SearchResult
    from atoll.node.terminals import Terminal as HostedTerminal
    from atoll.node.trees import TreeReport
else:
    BackgroundProcess = HostedSandbox = HostedTerminal = NotedAttempt = object
    Resident = SearchResult = TreeReport = object

__all__ = [
    "AsyncNode",
    "BackgroundProcess",
    "HostedSandbox",
    "HostedTerminal",
    "Node",
    "NotedAttempt",
    "Resident",
    "SearchResult",
    "TreeReport",
    "close_nodes",
    "nodes_here",
    "share_node",
]

Answer = TypeVar("Answer")


class EmbeddedNode:
    """The engine and its sandboxes, with a thread of their own for all that goes on in the background."""

    def __init__(self, engine: str, data_dir: Path) -> None:
        from atoll.engines.catalog import make_engine
        from atoll.node.attempt_log import MemoryAttempts
        from atoll.node.egress import Egress, EgressRules
        from atoll.node.network_files import NetworkFiles
        from atoll.node.node import Home, Node
        from atoll.node.records import MemoryRecords
        from atoll.node.secrets import KeyFile, SecretStore
        from atoll.node.templates import Templates
        from atoll.node.workspaces import Workspaces

        self._pid = os.getpid()
        self.engine_name = engine
        self._resources = ExitStack()
        self.portal: BlockingPortal = self._resources.enter_context(start_blocking_portal())
        templates = Templates(data_dir)
        self._engine = make_engine(engine, data_dir=data_dir, trees={"python": templates.python})
        owner = self._resources.enter_context(self.portal.wrap_async_context_manager(_Owner()))
        home = Home(owner.tasks, self.portal.start_task_soon, self.portal.call)
        workspaces = Workspaces(data_dir / "workspaces")
        # Who embeds a node is its operator: that he writes network="open" is his leave.
        rules = EgressRules(allow_open=True, environ=dict(os.environ))
        files = NetworkFiles.of_program(data_dir / "network")
        records = MemoryRecords()
        self.sandboxes = Node(
            self._engine,
            records,
            home,
            workspaces=workspaces,
            egress=Egress(rules, files, MemoryAttempts()),
            secrets=SecretStore(records, KeyFile()),
        )
        self.portal.start_task_soon(owner.tasks.start_soon, self.sandboxes.run)

    def check_process(self) -> None:
        """Raise `Conflict` in a fork of the process that made this."""
        if os.getpid() != self._pid:
            raise Conflict(
                "this sandbox belongs to another process, of which this one is a fork;"
                " create sandboxes after forking, or use spawn instead of fork"
            )

    def close(self) -> None:
        """Destroy everything; safe to call twice and in forks."""
        if os.getpid() == self._pid:
            self.portal.call(self.sandboxes.close)
            self.portal.call(self._engine.close)
            self._resources.close()


class AsyncNode:
    """The shared node, called from an event loop."""

    def __init__(self, node: EmbeddedNode) -> None:
        self._node = node
        self._activity: AbstractContextManager[None] = nullcontext()

    async def call(
        self, function: Callable[..., Awaitable[Answer]], *args: object, **options: object
    ) -> Answer:
        """Run a function of the node's in its thread; cancelling this call cancels it there."""
        self._node.check_process()
        with self._activity:
            future = self._node.portal.start_task_soon(partial(function, *args, **options))
            return await asyncio.wrap_future(future)

    async def open(self, claim: Claim) -> HostedSandbox:
        """Return the sandbox of a claim; made in a thread, so that this event loop goes on."""
        hosted = await anyio.to_thread.run_sync(claim.open)
        self._activity = hosted.activity
        return hosted

    async def end(self, claim: Claim) -> None:
        """Destroy the sandbox of a claim; safe to call twice, and while it is being made."""
        with anyio.CancelScope(shield=True):
            resident = await anyio.to_thread.run_sync(claim.end)
            if resident is not None:
                await self.call(self._node.sandboxes.end, resident, "asked")

    async def run_cell(
        self, hosted: HostedSandbox, code: str, kernel: str | None = None, **options: Any
    ) -> Cell:
        """Run a cell in this event loop, straight over the kernel's socket."""
        from atoll.node.visits import run_elsewhere

        self._node.check_process()
        kernel_id = None if kernel is None else KernelId(kernel)
        with hosted.activity:
            live = hosted.live_kernel(kernel_id)
            if live is None:
                live = await self.call(hosted.find_kernel, kernel_id)
            return await run_elsewhere(live, self.call, code, **options)


class Node:
    """The shared node, called from a thread that waits."""

    def __init__(self, node: EmbeddedNode) -> None:
        self._node = node
        self._activity: AbstractContextManager[None] = nullcontext()

    def call(
        self, function: Callable[..., Awaitable[Answer]], *args: object, **options: object
    ) -> Answer:
        """Run a function of the node's in its thread."""
        self._node.check_process()
        with self._activity:
            future = self._node.portal.start_task_soon(partial(function, *args, **options))
            try:
                return future.result()
            except BaseException:
                # Ctrl-C in the middle: nobody waits for it any more.
                future.cancel()
                raise

    def open(self, claim: Claim) -> HostedSandbox:
        """Return the sandbox of a claim; made in this thread."""
        hosted = claim.open()
        self._activity = hosted.activity
        return hosted

    def end(self, claim: Claim) -> None:
        """Destroy the sandbox of a claim; safe to call twice, and while it is being made."""
        resident = claim.end()
        if resident is not None:
            self.call(self._node.sandboxes.end, resident, "asked")

    def run_cell(
        self, hosted: HostedSandbox, code: str, kernel: str | None = None, **options: Any
    ) -> Cell:
        """Run a cell in this thread, straight over the kernel's socket."""
        from atoll.node.visits import run_here

        self._node.check_process()
        kernel_id = None if kernel is None else KernelId(kernel)
        with hosted.activity:
            live = hosted.live_kernel(kernel_id) or self.call(hosted.find_kernel, kernel_id)
            return run_here(live, self.call, code, **options)


_sharing = threading.Lock()
_shared: dict[tuple[int, str], EmbeddedNode] = {}


def share_node(engine: str) -> EmbeddedNode:
    """Return this process's node for an engine; made with the first sandbox, ended with the program."""
    key = (os.getpid(), engine)
    with _sharing:
        if key not in _shared:
            node = EmbeddedNode(engine, data_directory())
            atexit.register(node.close)
            _shared[key] = node
        return _shared[key]


def nodes_here() -> Sequence[EmbeddedNode]:
    """Return the nodes of this process."""
    with _sharing:
        return [node for (pid, _engine), node in _shared.items() if pid == os.getpid()]


def close_nodes() -> None:
    """End the nodes of this process before the program does."""
    for node in nodes_here():
        with _sharing:
            _shared.pop((os.getpid(), node.engine_name), None)
        atexit.unregister(node.close)
        node.close()


class _Owner:
    """Owns the tasks of all sandboxes."""

    tasks: TaskGroup

    async def __aenter__(self) -> Self:
        self.tasks = anyio.create_task_group()
        await self.tasks.__aenter__()
        return self

    async def __aexit__(self, *_error: object) -> None:
        self.tasks.cancel_scope.cancel()
        await self.tasks.__aexit__(None, None, None)
