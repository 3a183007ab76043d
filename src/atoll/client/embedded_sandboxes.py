"""Sandboxes of the node in this process: claims on them, which any thread may use, and the ways to their node."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, TypeVar

import anyio
import anyio.to_thread

from atoll.client.embedded import EmbeddedNode, kept_sandboxes, nodes_here, share_node
from atoll.client.errands import gone, stopped
from atoll.client.face import Listener, Prompter
from atoll.client.places import data_directory
from atoll.client.progress import note_step
from atoll.client.publishing import PublishedPort, publish
from atoll.errors import NotFound
from atoll.model.attempt import NotedAttempt
from atoll.model.ids import KernelId
from atoll.model.kernel import Cell
from atoll.model.network import Network
from atoll.model.notebook import Notebook, make_notebook
from atoll.model.process import CommandResult
from atoll.model.sandbox import (
    LOCAL_OWNER,
    SandboxInfo,
    SandboxRequest,
    SandboxSpec,
    SandboxState,
    WorkspaceInfo,
)
from atoll.model.secret import Secret, SecretInfo
from atoll.model.template import TemplateInfo

# What they stand for is loaded with the first sandbox.
if TYPE_CHECKING:
    from atoll.node.hosted import HostedSandbox
    from atoll.node.kernels import Kernel
    from atoll.node.residents import Resident

Answer = TypeVar("Answer")


class Claim:
    """One sandbox of a node: made once, by whoever needs it first, and never again once destroyed."""

    def __init__(
        self, node: EmbeddedNode, request: SandboxRequest, resident: Resident | None = None
    ) -> None:
        self.node = node
        self.request = request
        self._guard = Lock()
        self._resident = resident
        self._over = False
        self._is_stopped = False

    @property
    def async_way(self) -> AsyncEmbedded:
        """How an event loop reaches its node."""
        return AsyncEmbedded(lambda: self.node)

    @property
    def way(self) -> Embedded:
        """How a thread that waits reaches its node."""
        return Embedded(lambda: self.node)

    def open(self) -> HostedSandbox:
        """Return the sandbox; made in this thread if need be."""
        self.node.check_process()
        with self._guard:
            if self._over:
                raise gone(self.request.spec.id)
            if self._is_stopped:
                raise stopped(self.request.spec.id)
            if self._resident is None:
                self._resident = self.node.sandboxes.create_here(self.request)
            return self._resident.hosted

    async def tell(self) -> SandboxInfo:
        """Return facts about the sandbox, which has to be open."""
        assert self._resident is not None
        return self._resident.info

    async def stop(self) -> None:
        """End all that runs in the sandbox, which has to be open; its files are kept."""
        assert self._resident is not None
        await self.node.sandboxes.stopping.stop(self._resident)
        with self._guard:
            self._is_stopped = True

    async def resume(self) -> None:
        """Let the sandbox go on, paused or stopped."""
        sandboxes = self.node.sandboxes
        if not self._is_stopped:
            if self._resident is not None:
                await self._resident.hosted.resume()
            return
        resident = await sandboxes.stopping.resume(self.request.spec.id)
        with self._guard:
            self._resident, self._is_stopped = resident, False

    async def set_network(self, network: Network) -> None:
        """Change what the sandbox may reach; it has to be open."""
        assert self._resident is not None
        await self.node.sandboxes.set_network(self._resident, network)

    async def read_attempts(self, start: int, limit: int) -> Sequence[NotedAttempt]:
        """Return what the sandbox tried to reach; it has to be open."""
        assert self._resident is not None
        return await self.node.sandboxes.outlets.read_attempts(self._resident.id, start, limit)

    async def install(
        self, packages: Sequence[str], language: str, timeout: float | None
    ) -> CommandResult:
        """Install packages into the sandbox, which has to be open; raises `CommandFailed`."""
        from atoll.node import installs

        assert self._resident is not None
        return await installs.install(self._resident.hosted, packages, language, timeout)

    async def read_notebook(self) -> Notebook:
        """Return the cells that ran so far as a notebook; the sandbox has to be, or to have been, open."""
        assert self._resident is not None
        history = self._resident.hosted.history
        return make_notebook(history.cells(), left_out=history.left_out)

    def end(self) -> Resident | None:
        """Let nobody use it any more, and destroy it; return what has to be destroyed in the node's event loop."""
        self.node.check_process()
        with self._guard:
            self._over = True
            resident = self._resident
        if self._is_stopped:
            self.node.portal.call(self.node.sandboxes.destroy, self.request.spec.id)
            return None
        if resident is None or self.node.sandboxes.destroy_here(resident):
            return None
        return resident


def find_claim(sandbox_id: str) -> Claim:
    """Return a claim on a sandbox of this process, or on a persistent one, which is resumed; or raise `NotFound`."""
    for node in nodes_here():
        for resident in node.sandboxes.living():
            if resident.id == sandbox_id:
                return _claim_on(node, resident)
    from atoll.node.program_records import find_kept

    kept = find_kept(kept_sandboxes(data_directory()), sandbox_id)
    if kept is not None:
        node = share_node(kept.engine)
        return _claim_on(node, node.portal.call(node.sandboxes.stopping.resume, kept.id))
    raise NotFound(
        f"there is no sandbox {str(sandbox_id)[:80]!r} in this process; Sandbox.list() tells which there are",
        sandbox=str(sandbox_id)[:80],
    )


def _claim_on(node: EmbeddedNode, resident: Resident) -> Claim:
    return Claim(node, SandboxRequest(SandboxSpec(id=resident.id)), resident)


class EmbeddedErrands:
    """What the SDK asks of the node of this process, which is made once that is needed."""

    def __init__(self, engine: str, endpoint: str = "") -> None:
        self._engine = engine
        self._endpoint = endpoint

    @property
    def _node(self) -> EmbeddedNode:
        return share_node(self._engine, self._endpoint)

    @property
    def async_way(self) -> AsyncEmbedded:
        """How an event loop reaches it."""
        return AsyncEmbedded(partial(share_node, self._engine, self._endpoint))

    @property
    def way(self) -> Embedded:
        """How a thread that waits reaches it."""
        return Embedded(partial(share_node, self._engine, self._endpoint))

    def claim(self, request: SandboxRequest) -> Claim:
        """Return a claim on a sandbox that is yet to be made."""
        return Claim(self._node, request)

    async def wait_ready(self, timeout: float) -> None:
        """Return at once: whoever asks is in the process that does the work."""

    async def warm(self, spec: SandboxSpec, count: int, idle: float | None) -> None:
        """Keep sandboxes of one configuration ready."""
        await self._node.sandboxes.warm(SandboxRequest(spec), count, idle)

    async def list_workspaces(self) -> Sequence[WorkspaceInfo]:
        """Return the workspaces that outlive their sandboxes, the newest first."""
        workspaces = self._node.sandboxes.workspaces
        return await anyio.to_thread.run_sync(workspaces.list, LOCAL_OWNER)

    async def find_workspace(self, workspace: str) -> WorkspaceInfo:
        """Return facts about a workspace; raises `NotFound`."""
        workspaces = self._node.sandboxes.workspaces
        return await anyio.to_thread.run_sync(workspaces.find, workspace, LOCAL_OWNER)

    async def remove_workspace(self, workspace: str) -> None:
        """Remove a workspace; raises `NotFound` and `Conflict`."""
        workspaces = self._node.sandboxes.workspaces
        await anyio.to_thread.run_sync(workspaces.remove, workspace, LOCAL_OWNER)

    async def list_templates(self) -> Sequence[TemplateInfo]:
        """Return the templates that were built, by name."""
        return await anyio.to_thread.run_sync(self._node.sandboxes.templates.list)

    async def find_template(self, name: str) -> TemplateInfo:
        """Return facts about a template; raises `NotFound`."""
        return await anyio.to_thread.run_sync(self._node.sandboxes.templates.find, name)

    async def build_template(
        self, name: str, packages: Sequence[str], language: str, preload: Sequence[str] | None
    ) -> TemplateInfo:
        """Build a template with packages, or build it anew."""
        return await self._node.sandboxes.builds.build(
            name, packages, language=language, preload=preload, report=note_step
        )

    async def build_image_template(self, name: str, image: str) -> TemplateInfo:
        """Build a template of an image, or build it anew."""
        return await self._node.sandboxes.builds.build_image(name, image, report=note_step)

    async def build_dockerfile_template(
        self, name: str, folder: Path, is_unpacked: bool
    ) -> TemplateInfo:
        """Build a template of a Dockerfile, by the container engine."""
        return await self._node.sandboxes.builds.build_dockerfile(
            name, folder, engine=self._engine, is_unpacked=is_unpacked, report=note_step
        )

    async def pull_image(self, image: str) -> str:
        """Have the container engine fetch an image; return its id."""
        return await self._node.sandboxes.image_work(self._engine).pull_image(image, note_step)

    async def remove_template(self, name: str) -> None:
        """Remove a template; raises `NotFound`."""
        await anyio.to_thread.run_sync(self._node.sandboxes.templates.remove, name)

    async def list_secrets(self) -> Sequence[SecretInfo]:
        """Return the stored secrets, without what they are worth."""
        return await self._node.sandboxes.outlets.secrets.list(LOCAL_OWNER)

    async def set_secret(self, name: str, secret: Secret) -> SecretInfo:
        """Keep a secret for as long as this process lives."""
        sandboxes = self._node.sandboxes
        info = await sandboxes.outlets.secrets.set(LOCAL_OWNER, name, secret)
        await sandboxes.refresh_secret(LOCAL_OWNER, name)
        return info

    async def remove_secret(self, name: str) -> None:
        """Remove a secret; no request of any sandbox carries it any more."""
        sandboxes = self._node.sandboxes
        await sandboxes.outlets.secrets.remove(LOCAL_OWNER, name)
        await sandboxes.refresh_secret(LOCAL_OWNER, name)


class AsyncEmbedded:
    """The node of this process, called from an event loop."""

    def __init__(self, share: Callable[[], EmbeddedNode]) -> None:
        self._share = share
        self._activity: AbstractContextManager[None] = nullcontext()

    async def call(
        self, function: Callable[..., Awaitable[Answer]], *args: object, **options: object
    ) -> Answer:
        """Run a function of the node's in its thread; cancelling this call cancels it there."""
        node = self._share()
        node.check_process()
        with self._activity:
            future = node.portal.start_task_soon(partial(function, *args, **options))
            return await asyncio.wrap_future(future)

    async def find(self, sandbox_id: str) -> Claim:
        """Return a claim on a sandbox of this process, or a persistent one; raises `NotFound`."""
        return await anyio.to_thread.run_sync(find_claim, sandbox_id)

    async def list(self) -> Sequence[SandboxInfo]:
        """Return facts about the live sandboxes of this process, the oldest first."""
        return _list_infos()

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
                await self.call(claim.node.sandboxes.end, resident, "asked")

    async def publish(self, hosted: HostedSandbox, port: int, host_port: int) -> PublishedPort:
        """Have programs of this machine reach a port of a sandbox, by the node's thread."""
        return await self.call(publish, hosted.connect, port, host_port)

    async def run_cell(
        self,
        hosted: HostedSandbox,
        code: str,
        kernel: str | None = None,
        language: str | None = None,
        *,
        timeout: float | None = None,
        listener: Listener | None = None,
        prompter: Prompter | None = None,
        track_files: bool = False,
    ) -> Cell:
        """Run a cell in this event loop, straight over the kernel's socket."""
        from atoll.node.visits import run_elsewhere

        self._share().check_process()
        before = await self.call(hosted.files.survey) if track_files else None
        with hosted.activity:
            live = await self._find_kernel(hosted, kernel, language)
            cell = await run_elsewhere(
                live, self.call, code, timeout=timeout, listener=listener, prompter=prompter
            )
            hosted.history.add(code, live.language, cell)
        if before is None:
            return cell
        return replace(cell, files_changed=await self.call(hosted.files.changed_since, before))

    async def _find_kernel(
        self, hosted: HostedSandbox, kernel: str | None, language: str | None
    ) -> Kernel:
        kernel_id = None if kernel is None else KernelId(kernel)
        live = hosted.live_kernel(kernel_id, language)
        return await self.call(hosted.find_kernel, kernel_id, language) if live is None else live


class Embedded:
    """The node of this process, called from a thread that waits."""

    def __init__(self, share: Callable[[], EmbeddedNode]) -> None:
        self._share = share
        self._activity: AbstractContextManager[None] = nullcontext()

    def call(
        self, function: Callable[..., Awaitable[Answer]], *args: object, **options: object
    ) -> Answer:
        """Run a function of the node's in its thread."""
        node = self._share()
        node.check_process()
        with self._activity:
            future = node.portal.start_task_soon(partial(function, *args, **options))
            try:
                return future.result()
            except BaseException:
                # Ctrl-C in the middle: nobody waits for it any more.
                future.cancel()
                raise

    def find(self, sandbox_id: str) -> Claim:
        """Return a claim on a sandbox of this process, or a persistent one; raises `NotFound`."""
        return find_claim(sandbox_id)

    def list(self) -> Sequence[SandboxInfo]:
        """Return facts about the live sandboxes of this process, the oldest first."""
        return _list_infos()

    def open(self, claim: Claim) -> HostedSandbox:
        """Return the sandbox of a claim; made in this thread."""
        hosted = claim.open()
        self._activity = hosted.activity
        return hosted

    def end(self, claim: Claim) -> None:
        """Destroy the sandbox of a claim; safe to call twice, and while it is being made."""
        resident = claim.end()
        if resident is not None:
            self.call(claim.node.sandboxes.end, resident, "asked")

    def publish(self, hosted: HostedSandbox, port: int, host_port: int) -> PublishedPort:
        """Have programs of this machine reach a port of a sandbox, by the node's thread."""
        return self.call(publish, hosted.connect, port, host_port)

    def run_cell(
        self,
        hosted: HostedSandbox,
        code: str,
        kernel: str | None = None,
        language: str | None = None,
        *,
        timeout: float | None = None,
        listener: Listener | None = None,
        prompter: Prompter | None = None,
        track_files: bool = False,
    ) -> Cell:
        """Run a cell in this thread, straight over the kernel's socket."""
        from atoll.node.visits import run_here

        self._share().check_process()
        before = self.call(hosted.files.survey) if track_files else None
        with hosted.activity:
            live = self._find_kernel(hosted, kernel, language)
            cell = run_here(
                live, self.call, code, timeout=timeout, listener=listener, prompter=prompter
            )
            hosted.history.add(code, live.language, cell)
        if before is None:
            return cell
        return replace(cell, files_changed=self.call(hosted.files.changed_since, before))

    def _find_kernel(
        self, hosted: HostedSandbox, kernel: str | None, language: str | None
    ) -> Kernel:
        kernel_id = None if kernel is None else KernelId(kernel)
        live = hosted.live_kernel(kernel_id, language)
        return self.call(hosted.find_kernel, kernel_id, language) if live is None else live


def _list_infos() -> Sequence[SandboxInfo]:
    from atoll.node.program_records import list_kept
    from atoll.node.residents import describe

    living = [resident.info for node in nodes_here() for resident in node.sandboxes.living()]
    here = {info.id for info in living}
    kept = list_kept(kept_sandboxes(data_directory()))
    stopped = [each for each in kept if each.state is SandboxState.STOPPED and each.id not in here]
    return [*map(describe, stopped), *living]
