"""The parts of a served node: what routes work with, and how it is put together."""

from __future__ import annotations

import asyncio
import os
import pathlib
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Annotated

import anyio
import anyio.from_thread
from anyio.abc import TaskGroup
from fastapi import Depends, Path
from starlette.requests import HTTPConnection

from atoll.engines.catalog import make_engine
from atoll.engines.contract import Engine, Feature, Lasting
from atoll.errors import InvalidRequest, NotFound
from atoll.model.execution import ExecutionEvent
from atoll.model.ids import ExecutionId, KernelId, SandboxId
from atoll.model.sandbox import LOCAL_OWNER, SandboxInfo, SandboxRequest
from atoll.model.template import BASE_TEMPLATE
from atoll.node.attempt_log import KeptAttempts
from atoll.node.clock import Calendar
from atoll.node.counters import Counters
from atoll.node.egress import Egress
from atoll.node.execution import Execution
from atoll.node.execution_adoption import ExecutionAdoption
from atoll.node.executions import Executions
from atoll.node.home import Home
from atoll.node.hooks import Hooks
from atoll.node.housekeeping import Housekeeping
from atoll.node.idempotency import Idempotency
from atoll.node.kept_records import KeptRecords
from atoll.node.log_books import LogBooks
from atoll.node.network_files import NetworkFiles
from atoll.node.node import Node, NodeRules
from atoll.node.records import Records
from atoll.node.secrets import KeyFile, SecretStore
from atoll.node.templates import Templates
from atoll.node.workspaces import Workspaces
from atoll.server.access import Access
from atoll.server.bodies import ReadyBody
from atoll.server.counting import Counting, count_reports
from atoll.server.directory import hold_directory, read_node_id
from atoll.server.feed import Feed
from atoll.server.programs import Programs
from atoll.server.settings import Settings
from atoll.server.traffic import Traffic

_PAGE = 1000
_KEYS = "secrets.key"

# A sandbox goes by its id or its name.
SandboxKey = Annotated[str, Path(pattern="^[a-z0-9-]{1,40}$")]
ExecutionKey = Annotated[ExecutionId, Path(pattern="^[a-z0-9]{26}$")]
KernelKey = Annotated[KernelId, Path(pattern="^[a-z0-9]{26}$")]


@dataclass(frozen=True, slots=True)
class Parts:
    """What the routes of one node work with."""

    settings: Settings
    node: Node
    executions: Executions
    programs: Programs
    records: Records
    idempotency: Idempotency
    counters: Counters
    traffic: Traffic
    feed: Feed
    access: Access

    async def describe(self, key: str, owner: str) -> SandboxInfo:
        """Return facts about a sandbox by its id, living or not, or a living one by its name; raises `NotFound`."""
        try:
            return self.node.roster.find(key, owner).info
        except NotFound:
            return await self.node.describe(SandboxId(key), owner)

    def check_mounts(self, request: SandboxRequest) -> SandboxRequest:
        """Return a request; raises `InvalidRequest` if it would write to directories of the machine, and may not."""
        for mount in request.spec.mounts:
            if not mount.read_only and not self.settings.node.writable_mounts:
                raise InvalidRequest(
                    f"host directory {mount.source[:80]!r} can only be mounted read-only;"
                    " the operator can allow more by node.writable_mounts",
                    path=mount.source[:80],
                )
        return request

    def timeout(self, asked: float | None) -> float | None:
        """Return how long an execution may take; raises `InvalidRequest` for more than there may be."""
        rules = self.settings.execution
        most = rules.most_timeout_seconds
        chosen = rules.timeout_seconds if asked is None else asked
        if most is None or (chosen is not None and chosen <= most):
            return chosen
        if asked is None:
            return most
        raise _too_long(asked, most, "most_timeout_seconds")

    def cell_timeout(self, asked: float | None) -> float:
        """Return how long a cell may take; raises `InvalidRequest` for more than there may be."""
        rules = self.settings.execution
        most = rules.most_cell_timeout_seconds
        if asked is None:
            return min(rules.cell_timeout_seconds, most)
        if asked > most:
            raise _too_long(asked, most, "most_cell_timeout_seconds")
        return asked

    def id_of(self, sandbox: str, owner: str) -> str:
        """Return the id of a living sandbox that is named by it or by its name; else the name itself."""
        try:
            return self.node.roster.find(sandbox, owner).id
        except NotFound:
            return sandbox

    async def has_execution(self, execution_id: str) -> bool:
        """Whether there is, or was, such an execution."""
        try:
            await self.executions.describe(ExecutionId(execution_id))
        except NotFound:
            return False
        return True

    async def find_running(self, execution_id: ExecutionId, owner: str) -> Execution:
        """Return an execution of the caller's that has not ended; raises `NotFound`."""
        await self.executions.describe(execution_id, owner)
        return self.executions.find_running(execution_id)

    def running_or_none(self, execution_id: ExecutionId) -> Execution | None:
        """Return an execution unless it has ended."""
        try:
            return self.executions.find_running(execution_id)
        except NotFound:
            return None

    async def cancel(self, execution_id: ExecutionId) -> None:
        """End an execution; one that has ended is fine."""
        running = self.running_or_none(execution_id)
        if running is not None:
            await running.cancel()

    async def present(
        self, execution_id: ExecutionId, start: int = 0
    ) -> AsyncGenerator[ExecutionEvent, None]:
        """Yield the events that there are, from number `start` on."""
        while events := await self.executions.read(execution_id, start, _PAGE):
            for event in events:
                yield event
            start = events[-1].seq + 1


def _too_long(asked: float, most: float, setting: str) -> InvalidRequest:
    return InvalidRequest(
        f"timeout is {asked:g} s; the most here is {most:g} s, which the operator can raise by execution.{setting}",
        most=most,
    )


async def _parts_of(connection: HTTPConnection) -> Parts:
    parts: Parts = connection.app.state.parts
    return parts


Here = Annotated[Parts, Depends(_parts_of)]


@asynccontextmanager
async def open_parts(settings: Settings) -> AsyncIterator[Parts]:
    """Put a node together from its settings, go on with what the last one left, and look after it all meanwhile."""
    async with AsyncExitStack() as stack:
        counters = Counters()
        stack.enter_context(count_reports(counters))
        stack.enter_context(hold_directory(settings.data))
        records = await _open_records(settings, stack)
        tasks = await stack.enter_async_context(_own_tasks())
        tasks.start_soon(records.settle_forever)
        access = Access(records, settings.auth.rules(is_secure=settings.server.is_secure))
        await access.open()
        home = Home(tasks, asyncio.get_running_loop().call_soon_threadsafe, anyio.from_thread.run)
        attempts = KeptAttempts(settings.data / "attempts")
        feed = Feed()
        node = await _open_node(settings, records, home, counters, feed, attempts, stack)
        hooks = Hooks([], tasks, home.wake, witnesses=[Counting(counters).count])
        books = LogBooks(settings.data / "executions")
        stack.callback(books.close)
        log_bytes = settings.execution.log_bytes
        executions = Executions(books, records, hooks, tasks, log_bytes=log_bytes)
        if _leaves(settings, node):
            stack.callback(executions.leave)  # before the node does
        adoption = ExecutionAdoption(executions, records, hooks, tasks)
        await adoption.adopt(await node.adopt())
        programs = Programs(node, executions, tasks)
        await programs.adopt()
        tasks.start_soon(node.run)
        _fill_pools(settings, node)
        tasks.start_soon(_keep_house(settings, records, books, attempts, node).run)
        idempotency = Idempotency(records)
        yield Parts(
            settings,
            node,
            executions,
            programs,
            records,
            idempotency,
            counters,
            Traffic(),
            feed,
            access,
        )


async def _open_records(settings: Settings, stack: AsyncExitStack) -> KeptRecords:
    url = settings.store.url
    database = None if url is None else url.get_secret_value()
    records = KeptRecords.at(settings.data, read_node_id(settings.data), database)
    await records.open()
    stack.push_async_callback(records.close)
    return records


async def _open_node(
    settings: Settings,
    records: Records,
    home: Home,
    counters: Counters,
    feed: Feed,
    attempts: KeptAttempts,
    stack: AsyncExitStack,
) -> Node:
    templates = Templates(settings.data)
    names = dict.fromkeys((settings.node.engine, *settings.node.engines))
    engine, *others = (
        make_engine(
            name,
            data_dir=settings.data,
            mountable=[pathlib.Path(each) for each in settings.node.mounts],
            trees=templates,
            lasting=Lasting(settings.data / "keeper", settings.node.lease_seconds),
            containers=settings.containers.rules(name),
        )
        for name in names
    )
    rules = NodeRules(
        settings.lifetimes.rules(),
        settings.quotas.rules(),
        settings.pools.rules(),
        settings.execution.log_bytes,
    )
    spools = settings.data / "kernels"
    node = Node(
        engine,
        records,
        home,
        others=others,
        rules=rules,
        hooks=[Counting(counters).tell, feed.tell],
        hook_failed=counters.hooks_failed.add,
        spools=spools,
        workspaces=Workspaces(
            settings.data / "workspaces", settings.workspaces.rules(), is_shared=True
        ),
        egress=Egress(
            settings.egress.rules(dict(os.environ)),
            NetworkFiles(settings.data / "network" / "node"),
            attempts,
        ),
        secrets=SecretStore(records, KeyFile(settings.store.key_file or settings.data / _KEYS)),
        templates=templates,
        counters=counters,
    )
    stack.push_async_callback(_end, node, [engine, *others], settings)
    return node


def _fill_pools(settings: Settings, node: Node) -> None:
    """Have made ahead, in the background, what the operator wants to be ready for everybody."""
    for wish in settings.pools.wishes():
        body = ReadyBody(
            engine=wish.engine,
            template=wish.template,
            image=wish.image,
            # As the SDK asks for them.
            kernel=wish.image is None and wish.template != BASE_TEMPLATE,
        )
        spec = body.to_request(LOCAL_OWNER, settings.limits.chosen(), settings.node.engine).spec
        node.pool.want(spec, wish.count, idle_seconds=settings.pools.ready_idle_seconds)
    node.pool.refill()


def _leaves(settings: Settings, node: Node) -> bool:
    return settings.node.on_exit == "keep" and node.keeps_sandboxes


async def _end(node: Node, engines: Sequence[Engine], settings: Settings) -> None:
    """Leave sandboxes to the next node as far as their engines can, or end them."""
    if _leaves(settings, node):
        await node.leave()
        engines = [each for each in engines if Feature.ADOPTION not in each.features]
    else:
        await node.close()
    for engine in engines:
        await engine.close()


def _keep_house(
    settings: Settings, records: Records, books: LogBooks, attempts: KeptAttempts, node: Node
) -> Housekeeping:
    rules, calendar = settings.node.housekeeping(), Calendar(settings.data / "clock")
    kernels = settings.data / "kernels"
    return Housekeeping(rules, records, books, attempts, kernels, node.is_hosted, calendar)


@asynccontextmanager
async def _own_tasks() -> AsyncIterator[TaskGroup]:
    async with anyio.create_task_group() as tasks:
        yield tasks
        tasks.cancel_scope.cancel()
