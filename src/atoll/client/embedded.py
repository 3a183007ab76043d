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
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Self

import anyio
from anyio.abc import TaskGroup
from anyio.from_thread import BlockingPortal, start_blocking_portal

from atoll.client.places import data_directory
from atoll.errors import Conflict


class EmbeddedNode:
    """The engine and its sandboxes, with a thread of their own for all that goes on in the background."""

    def __init__(self, engine: str, data_dir: Path, endpoint: str = "") -> None:
        from atoll.client.containers import container_settings, mountable_directories
        from atoll.engines.catalog import CONTAINER_ENGINES, make_engine
        from atoll.node.attempt_log import MemoryAttempts
        from atoll.node.egress import Egress, EgressRules
        from atoll.node.home import Home
        from atoll.node.network_files import NetworkFiles
        from atoll.node.node import Node
        from atoll.node.program_records import ProgramRecords, list_kept
        from atoll.node.secrets import KeyFile, SecretStore
        from atoll.node.templates import Templates
        from atoll.node.workspaces import Workspaces

        self._pid = os.getpid()
        self.place = (engine, endpoint)
        self._resources = ExitStack()
        self.portal: BlockingPortal = self._resources.enter_context(start_blocking_portal())
        self._loop = self.portal.call(asyncio.get_running_loop)
        templates = Templates(data_dir)
        containers = None
        if engine in CONTAINER_ENGINES:
            containers = container_settings(engine, endpoint=endpoint)
        self._engine = make_engine(
            engine,
            data_dir=data_dir,
            mountable=mountable_directories(),
            trees=templates,
            containers=containers,
        )
        owner = self._resources.enter_context(self.portal.wrap_async_context_manager(_Owner()))
        home = Home(owner.tasks, self._wake, self.portal.call)
        workspaces = Workspaces(data_dir / "workspaces")
        # Who embeds a node is its operator: that he writes network="open" is his leave.
        rules = EgressRules(allow_open=True, environ=dict(os.environ))
        files = NetworkFiles.of_program(data_dir / "network")
        kept = kept_sandboxes(data_dir)
        records = ProgramRecords(kept)
        self.sandboxes = Node(
            self._engine,
            records,
            home,
            workspaces=workspaces,
            egress=Egress(rules, files, MemoryAttempts()),
            secrets=SecretStore(records, KeyFile()),
            templates=templates,
        )
        self.portal.start_task_soon(owner.tasks.start_soon, self.sandboxes.run)
        over = [each for each in list_kept(kept) if each.engine == engine]
        if over:
            self.portal.start_task_soon(
                owner.tasks.start_soon, self.sandboxes.stopping.end_kept, over
            )

    def _wake(self, function: Callable[..., object], *args: object) -> None:
        """Run a function in the node's event loop, soon; in that loop or any thread."""
        self._loop.call_soon_threadsafe(partial(function, *args))

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


def kept_sandboxes(data_dir: Path) -> Path:
    """Return the folder of persistent sandboxes of all programs that use a data directory."""
    return data_dir / "sandboxes"


_sharing = threading.Lock()
_shared: dict[tuple[int, tuple[str, str]], EmbeddedNode] = {}


def share_node(engine: str, endpoint: str = "") -> EmbeddedNode:
    """Return this process's node for an engine; made with the first sandbox, ended with the program.

    `endpoint` says where a container engine listens, if not at its usual place.
    """
    key = (os.getpid(), (engine, endpoint))
    with _sharing:
        if key not in _shared:
            node = EmbeddedNode(engine, data_directory(), endpoint)
            atexit.register(node.close)
            _shared[key] = node
        return _shared[key]


def nodes_here() -> Sequence[EmbeddedNode]:
    """Return the nodes of this process."""
    with _sharing:
        return [node for (pid, _place), node in _shared.items() if pid == os.getpid()]


def close_nodes() -> None:
    """End the nodes of this process before the program does."""
    for node in nodes_here():
        with _sharing:
            _shared.pop((os.getpid(), node.place), None)
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
