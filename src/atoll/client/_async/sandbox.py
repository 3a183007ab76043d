"""The isolated place that a caller owns."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from threading import Lock
from types import TracebackType
from typing import Any, Self

from atoll.client._async.commands import AsyncCommands
from atoll.client._async.files import AsyncFiles
from atoll.client._async.kernels import AsyncKernels
from atoll.client._async.ports import AsyncPorts
from atoll.client._async.terminals import AsyncTerminals
from atoll.client.calls import (
    Completions,
    ErrorCallback,
    InputCallback,
    NetworkChoice,
    ResultCallback,
    TextCallback,
    check_callback,
    check_language,
    make_completions,
    make_inspection,
    make_listener,
    make_network,
    make_request,
    make_spec,
)
from atoll.client.embedded import AsyncNode, HostedSandbox, NotedAttempt, nodes_here, share_node
from atoll.client.errands import Claim, find_claim, gone, list_infos, look, take
from atoll.engines.catalog import DEFAULT_ENGINE
from atoll.model.ids import KernelId
from atoll.model.kernel import Bundle, Cell, Event
from atoll.model.limits import Limits
from atoll.model.sandbox import SandboxInfo
from atoll.model.secret import Secret
from atoll.model.template import PYTHON_TEMPLATE


class AsyncSandbox:
    """A sealed sandbox with a live Python session inside.

    It is made when it is first used, or entered, or by `create`, and ends when it is left.
    """

    def __init__(
        self,
        template: str = PYTHON_TEMPLATE,
        *,
        engine: str | None = None,
        name: str | None = None,
        limits: Limits | Mapping[str, Any] | None = None,
        envs: Mapping[str, str] | None = None,
        files: Mapping[str, bytes | str] | None = None,
        metadata: Mapping[str, str] | None = None,
        lifetime: float | str | None = None,
        idle: float | str | None = None,
        workspace: str | None = None,
        remove_workspace: bool = False,
        network: NetworkChoice = "none",
        secrets: Mapping[str, Secret | str] | None = None,
    ) -> None:
        """Describe a sandbox.

        Args:
            template: what it is made from.
            engine: how it is isolated.
            name: its name, unique among those of this process.
            limits: the most that it may use.
            envs: variables of everything that runs in it.
            files: what its workspace holds from the beginning.
            metadata: anything that is to be remembered with it.
            lifetime: how long it lives at most, in seconds or as "2h"; an hour if nothing is said.
            idle: how long it may be unused, likewise; half an hour if nothing is said.
            workspace: the id of a workspace that outlives it, made if there is none; see `AsyncWorkspaces`.
            remove_workspace: whether that workspace goes with it after all.
            network: what it may reach: "none", rules such as ["api.example", "tcp://db.example:5432"], "registries" for
                the package indexes of this machine, or "open".
            secrets: what it uses and never sees, by the variables that hold a placeholder inside; see `Secret`.
        """
        self._request = make_request(
            make_spec(template, limits, envs, network),
            name=name,
            files=files,
            metadata=metadata,
            lifetime=lifetime,
            idle=idle,
            workspace=workspace,
            remove_workspace=remove_workspace,
            secrets=secrets,
        )
        self._engine = engine or DEFAULT_ENGINE
        self._claim: Claim | None = None
        self._node: AsyncNode | None = None
        self._hosted: HostedSandbox | None = None
        self._claiming = Lock()
        self._over = False
        self.commands = AsyncCommands(self._open)
        self.files = AsyncFiles(self._open)
        self.kernels = AsyncKernels(self._open)
        self.ports = AsyncPorts(self._open)
        self.terminals = AsyncTerminals(self._open)

    @classmethod
    async def create(
        cls,
        template: str = PYTHON_TEMPLATE,
        *,
        engine: str | None = None,
        name: str | None = None,
        limits: Limits | Mapping[str, Any] | None = None,
        envs: Mapping[str, str] | None = None,
        files: Mapping[str, bytes | str] | None = None,
        metadata: Mapping[str, str] | None = None,
        lifetime: float | str | None = None,
        idle: float | str | None = None,
        workspace: str | None = None,
        remove_workspace: bool = False,
        network: NetworkChoice = "none",
        secrets: Mapping[str, Secret | str] | None = None,
    ) -> Self:
        """Make a sandbox now."""
        sandbox = cls(
            template,
            engine=engine,
            name=name,
            limits=limits,
            envs=envs,
            files=files,
            metadata=metadata,
            lifetime=lifetime,
            idle=idle,
            workspace=workspace,
            remove_workspace=remove_workspace,
            network=network,
            secrets=secrets,
        )
        await sandbox._open()
        return sandbox

    @classmethod
    async def connect(cls, sandbox_id: str) -> Self:
        """Return another handle on a live sandbox of this process; destroying one destroys both.

        Raises:
            NotFound: this process has no such sandbox.
        """
        claim = find_claim(sandbox_id)
        sandbox = cls()
        sandbox._request, sandbox._claim = claim.request, claim
        sandbox._node = AsyncNode(claim.node)
        return sandbox

    @classmethod
    async def list(cls) -> Sequence[SandboxInfo]:
        """Return facts about the live sandboxes of this process."""
        infos: Sequence[SandboxInfo] = ()
        for node in nodes_here():
            infos = [*infos, *(await AsyncNode(node).call(list_infos, node))]
        return infos

    @classmethod
    async def warm(
        cls,
        count: int,
        template: str = PYTHON_TEMPLATE,
        *,
        engine: str | None = None,
        limits: Limits | Mapping[str, Any] | None = None,
        envs: Mapping[str, str] | None = None,
    ) -> None:
        """Keep `count` sandboxes of one configuration ready; later ones of just that configuration take them.

        Each is used once, and replaced in the background. Returns when all are ready; 0 ends it.
        """
        shared = share_node(engine or DEFAULT_ENGINE)
        keep = shared.sandboxes.pool.keep
        await AsyncNode(shared).call(keep, make_spec(template, limits, envs), count)

    @property
    def id(self) -> str:
        """The sandbox's id."""
        return self._request.spec.id

    async def run_code(
        self,
        code: str,
        *,
        language: str = "python",
        kernel: str | None = None,
        timeout: float | None = None,
        on_stdout: TextCallback | None = None,
        on_stderr: TextCallback | None = None,
        on_result: ResultCallback | None = None,
        on_error: ErrorCallback | None = None,
        on_input: InputCallback | None = None,
    ) -> Cell:
        """Run code in the session, which keeps its variables; the last expression is the result.

        An exception in the code is a result, see `Cell.error`; so is a timeout. `on_input` answers `input()`: it gets
        the prompt and whether the answer is secret. Without it, or if it returns None, the code gets `EOFError`.
        """
        check_language(language)
        check_callback(on_input)
        listener = make_listener(on_stdout, on_stderr, on_result, on_error)
        node, hosted = await self._open()
        return await node.run_cell(
            hosted, code, kernel, timeout=timeout, listener=listener, prompter=on_input
        )

    async def stream_code(
        self,
        code: str,
        *,
        language: str = "python",
        kernel: str | None = None,
        timeout: float | None = None,
    ) -> AsyncGenerator[Event | Cell, None]:
        """Yield what code gives as it comes (output, values, the error), and last the cell.

        Leaving the loop early and closing the generator interrupts the code.
        """
        check_language(language)
        node, hosted = await self._open()
        chosen = None if kernel is None else KernelId(kernel)
        events = await node.call(look, hosted.stream_code, code, kernel=chosen, timeout=timeout)
        try:
            while (event := await node.call(take, events)) is not None:
                yield event
        finally:
            await node.call(events.aclose)

    async def complete(self, code: str, cursor: int | None = None) -> Completions:
        """Return what can stand at `cursor`, or at the end, by what the session knows."""
        at = len(code) if cursor is None else cursor
        return make_completions(await self._ask("complete", code, at), at)

    async def inspect(self, code: str, cursor: int | None = None) -> Bundle | None:
        """Return what the session knows of the name at `cursor`, or at the end."""
        at = len(code) if cursor is None else cursor
        return make_inspection(await self._ask("inspect", code, at))

    async def interrupt(self) -> None:
        """Interrupt the code that runs, as Ctrl-C would; variables stay."""
        node, hosted = await self._open()
        await node.call(hosted.interrupt_kernel)

    async def restart(self) -> None:
        """Begin the session anew: variables go, files stay."""
        node, hosted = await self._open()
        await node.call(hosted.restart_kernel)

    async def info(self) -> SandboxInfo:
        """Return facts about the sandbox."""
        await self._open()
        _node, claim = self._claimed()
        return claim.info

    async def set_network(self, network: NetworkChoice) -> None:
        """Let it reach something else from now on; what that forbids is cut off when this returns.

        Raises:
            Conflict: it was made without a network; one made with `network=[]` has one that allows nothing.
        """
        wanted = make_network(network)
        node, _hosted = await self._open()
        _node, claim = self._claimed()
        await node.call(claim.set_network, wanted)

    async def egress_log(self, start: int = 0, limit: int = 1000) -> Sequence[NotedAttempt]:
        """Return what it tried to reach and what came of it, from number `start` on; the newest 5,000 are kept."""
        node, _hosted = await self._open()
        _node, claim = self._claimed()
        return await node.call(claim.read_attempts, start, limit)

    async def pause(self) -> None:
        """Stop every process in place; raises `Unsupported` where the machine cannot do that."""
        node, hosted = await self._open()
        await node.call(hosted.pause)

    async def resume(self) -> None:
        """Let every process go on."""
        node, hosted = await self._open()
        await node.call(hosted.resume)

    async def destroy(self) -> None:
        """End the sandbox and remove everything; safe to call twice."""
        with self._claiming:
            self._over = True
        if self._node is not None and self._claim is not None:
            await self._node.end(self._claim)

    async def __aenter__(self) -> Self:
        try:
            await self._open()
        except BaseException:
            # Given up half-way: nobody else would destroy what is there by now.
            await self.destroy()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.destroy()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id}>"

    async def _open(self) -> tuple[AsyncNode, HostedSandbox]:
        if self._node is not None and self._hosted is not None and not self._over:
            if self._hosted.end_reason:
                raise gone(self.id, self._hosted.end_reason)
            return self._node, self._hosted
        node, claim = self._claimed()
        if self._hosted is None:
            self._hosted = await node.open(claim)
        return node, self._hosted

    def _claimed(self) -> tuple[AsyncNode, Claim]:
        # Threads may use a new sandbox at the same moment; all have to get the same one.
        with self._claiming:
            if self._over:
                raise gone(self.id)
            if self._node is None or self._claim is None:
                node = share_node(self._engine)
                self._node, self._claim = AsyncNode(node), Claim(node, self._request)
            return self._node, self._claim

    async def _ask(self, kind: str, code: str, cursor: int) -> Mapping[str, Any]:
        node, hosted = await self._open()
        answer: Mapping[str, Any] = await node.call(
            hosted.ask_kernel, None, kind, code=code, cursor=cursor
        )
        return answer
