"""A node in this process: one thread with an event loop, which owns the engine and all sandboxes.

Calls come from any thread and any event loop and are made over there. The node is made with the first sandbox
and ends with the program. A forked copy of the program has no such thread; it is told so.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeVar

import anyio
from anyio.abc import TaskGroup
from anyio.from_thread import BlockingPortal, start_blocking_portal

from atoll.client.places import data_directory
from atoll.errors import Conflict
from atoll.model.sandbox import SandboxSpec

# Only names for the rest of the client: what they stand for is loaded with the first sandbox.
if TYPE_CHECKING:
    from atoll.node.hosted import HostedSandbox
    from atoll.node.trees import TreeReport
else:
    HostedSandbox = TreeReport = object

__all__ = ["AsyncNode", "HostedSandbox", "Node", "TreeReport", "share_node"]

Answer = TypeVar("Answer")


class EmbeddedNode:
    """The engine and its sandboxes, in a thread of their own."""

    def __init__(self, engine: str, data_dir: Path) -> None:
        from atoll.engines.catalog import make_engine
        from atoll.node.templates import Templates

        self._pid = os.getpid()
        self._resources = ExitStack()
        self.portal: BlockingPortal = self._resources.enter_context(start_blocking_portal())
        templates = Templates(data_dir)
        self._engine = make_engine(engine, data_dir=data_dir, trees={"python": templates.python})
        self._owner = self._resources.enter_context(
            self.portal.wrap_async_context_manager(_Owner())
        )

    def check_process(self) -> None:
        """Raise `Conflict` in a fork of the process that made this."""
        if os.getpid() != self._pid:
            raise Conflict(
                "this sandbox belongs to another process, of which this one is a fork;"
                " create sandboxes after forking, or use spawn instead of fork"
            )

    async def create(self, spec: SandboxSpec) -> HostedSandbox:
        """Make a sandbox; runs in the node's thread."""
        from atoll.node.hosted import open_hosted

        return await open_hosted(self._owner.tasks, self._engine, spec)

    def close(self) -> None:
        """Destroy everything; safe to call twice and in forks."""
        if os.getpid() == self._pid:
            self.portal.call(self._engine.close)
            self._resources.close()


class AsyncNode:
    """The shared node, called from an event loop."""

    def __init__(self, node: EmbeddedNode) -> None:
        self._node = node

    async def create(self, spec: SandboxSpec) -> HostedSandbox:
        """Make a sandbox."""
        return await self.call(self._node.create, spec)

    async def call(
        self, function: Callable[..., Awaitable[Answer]], *args: object, **options: object
    ) -> Answer:
        """Run a function of the node's in its thread; cancelling this call cancels it there."""
        self._node.check_process()
        future = self._node.portal.start_task_soon(partial(function, *args, **options))
        return await asyncio.wrap_future(future)


class Node:
    """The shared node, called from a thread that waits."""

    def __init__(self, node: EmbeddedNode) -> None:
        self._node = node

    def create(self, spec: SandboxSpec) -> HostedSandbox:
        """Make a sandbox."""
        return self.call(self._node.create, spec)

    def call(
        self, function: Callable[..., Awaitable[Answer]], *args: object, **options: object
    ) -> Answer:
        """Run a function of the node's in its thread."""
        self._node.check_process()
        future = self._node.portal.start_task_soon(partial(function, *args, **options))
        try:
            return future.result()
        except BaseException:
            # Ctrl-C in the middle: nobody waits for it any more.
            future.cancel()
            raise


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
