"""The isolated place that a caller owns."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Any, Self

from atoll.client._async.commands import AsyncCommands
from atoll.client._async.files import AsyncFiles
from atoll.client._async.kernels import AsyncKernels
from atoll.client._async.ports import AsyncPorts
from atoll.client._async.terminals import AsyncTerminals
from atoll.client._async.watching import watch
from atoll.client.calls import (
    Completions,
    ErrorCallback,
    InputCallback,
    Mounts,
    NetworkChoice,
    ResultCallback,
    TextCallback,
    check_callback,
    check_language,
    make_completions,
    make_container,
    make_inspection,
    make_listener,
    make_network,
    make_request,
    make_spec,
)
from atoll.client.errands import gone, look, take, write_text
from atoll.client.face import AsyncWay, ClaimFace, SandboxFace
from atoll.client.nodes import find_errands
from atoll.client.progress import ProgressCallback
from atoll.model.attempt import NotedAttempt
from atoll.model.container import ContainerOptions
from atoll.model.durations import parse_duration
from atoll.model.ids import KernelId
from atoll.model.kernel import Bundle, Cell, Event
from atoll.model.limits import Limits
from atoll.model.notebook import Notebook, format_notebook
from atoll.model.packages import Packages, parse_packages
from atoll.model.process import CommandResult
from atoll.model.sandbox import SandboxInfo
from atoll.model.secret import Secret
from atoll.model.template import PYTHON_TEMPLATE


class AsyncSandbox:
    """A sealed sandbox with a live Python session inside.

    It is made when it is first used, or entered, or by `create`, and ends when it is left, unless it is stopped then.
    """

    def __init__(
        self,
        template: str = PYTHON_TEMPLATE,
        *,
        engine: str | None = None,
        image: str | None = None,
        container: ContainerOptions | Mapping[str, Any] | None = None,
        url: str | None = None,
        token: str | None = None,
        name: str | None = None,
        limits: Limits | Mapping[str, Any] | None = None,
        envs: Mapping[str, str] | None = None,
        files: Mapping[str, bytes | str] | None = None,
        metadata: Mapping[str, str] | None = None,
        lifetime: float | str | None = None,
        idle: float | str | None = None,
        workspace: str | None = None,
        remove_workspace: bool = False,
        persistent: bool = False,
        network: NetworkChoice = "none",
        private_network: str | None = None,
        ports: Sequence[int] = (),
        secrets: Mapping[str, Secret | str] | None = None,
        packages: Packages = (),
        mounts: Mounts = (),
    ) -> None:
        """Describe a sandbox.

        Args:
            template: what it is made from.
            engine: how it is isolated: "namespaces", "gvisor", "docker" or "podman"; a server that has another one refuses.
            image: the container image that it is made from, for engines docker and podman.
            container: everything else about its container, see `ContainerOptions`; likewise.
            url: the server that holds it, "http://127.0.0.1:8000" or "unix:///path/of/node.sock". If nothing is said, that of
                ATOLL_URL; without one, and for "", it is held by this process. So it is for a container engine that is not at
                its usual place: "docker+unix:///run/other.sock", "podman+tcp://host:2375".
            token: what the server is shown, else ATOLL_TOKEN.
            name: its name, unique among those of its owner.
            limits: the most that it may use.
            envs: variables of everything that runs in it.
            files: what its workspace holds from the beginning.
            metadata: anything that is to be remembered with it.
            lifetime: how long it lives at most, in seconds or as "2h"; an hour if nothing is said.
            idle: how long it may be unused, likewise; half an hour if nothing is said.
            workspace: the id of a workspace that outlives it, made if there is none; see `AsyncWorkspaces`.
            remove_workspace: whether that workspace goes with it after all.
            persistent: whether it can be stopped, and go on later, also in another program; its files are then on disk.
            network: what it may reach: "none", rules such as ["api.example", "tcp://db.example:5432"], "registries" for
                the package indexes of this machine, or "open".
            private_network: the name of a network that it shares with others of this process, by whose names it finds them.
            ports: those that it serves there, under its own name.
            secrets: what it uses and never sees, by the variables that hold a placeholder inside; see `Secret`.
            packages: what is installed besides, such as ["pandas==2.2.3", "matplotlib"] or {"pandas": "2.2.3"}, of npm with
                template "node"; a template with them is built once, which takes a while, and used from then on.
            mounts: directories of the machine that it is made on, such as {"source": "/srv/data", "target": "/mnt/data"}, read-only
                unless they say otherwise; the operator lists which may be (ATOLL_NODE__MOUNTS).
        """
        self._request = make_request(
            make_spec(
                template,
                limits,
                envs,
                make_network(network, private_network, ports),
                make_container(image, container),
                mounts,
                persistent=persistent,
            ),
            name=name,
            files=files,
            metadata=metadata,
            lifetime=lifetime,
            idle=idle,
            workspace=workspace,
            remove_workspace=remove_workspace,
            secrets=secrets,
            packages=packages,
        )
        self._errands = find_errands(url, token, engine)
        self._claim: ClaimFace | None = None
        self._way: AsyncWay | None = None
        self._hosted: SandboxFace | None = None
        self._claiming = Lock()
        self._over = False
        self._stopped = False
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
        image: str | None = None,
        container: ContainerOptions | Mapping[str, Any] | None = None,
        url: str | None = None,
        token: str | None = None,
        name: str | None = None,
        limits: Limits | Mapping[str, Any] | None = None,
        envs: Mapping[str, str] | None = None,
        files: Mapping[str, bytes | str] | None = None,
        metadata: Mapping[str, str] | None = None,
        lifetime: float | str | None = None,
        idle: float | str | None = None,
        workspace: str | None = None,
        remove_workspace: bool = False,
        persistent: bool = False,
        network: NetworkChoice = "none",
        private_network: str | None = None,
        ports: Sequence[int] = (),
        secrets: Mapping[str, Secret | str] | None = None,
        packages: Packages = (),
        mounts: Mounts = (),
    ) -> Self:
        """Make a sandbox now."""
        sandbox = cls(
            template,
            engine=engine,
            image=image,
            container=container,
            url=url,
            token=token,
            name=name,
            limits=limits,
            envs=envs,
            files=files,
            metadata=metadata,
            lifetime=lifetime,
            idle=idle,
            workspace=workspace,
            remove_workspace=remove_workspace,
            persistent=persistent,
            network=network,
            private_network=private_network,
            ports=ports,
            secrets=secrets,
            packages=packages,
            mounts=mounts,
        )
        await sandbox._open()
        return sandbox

    @classmethod
    async def connect(
        cls, sandbox_id: str, *, url: str | None = None, token: str | None = None
    ) -> Self:
        """Return another handle on a live sandbox of this process, or of a server; destroying one destroys both.

        A persistent one that is stopped goes on, whichever program stopped it.

        Raises:
            NotFound: there is no such sandbox.
            Conflict: another program has it.
        """
        sandbox = cls(url=url, token=token)
        claim = await sandbox._errands.async_way.find(sandbox_id)
        sandbox._request, sandbox._claim, sandbox._way = claim.request, claim, claim.async_way
        return sandbox

    @classmethod
    async def list(
        cls, *, url: str | None = None, token: str | None = None
    ) -> Sequence[SandboxInfo]:
        """Return facts about the live sandboxes of this process, or of this user on a server, and those that are stopped."""
        return await find_errands(url, token).async_way.list()

    @classmethod
    async def wait_ready(
        cls,
        url: str | None = None,
        *,
        token: str | None = None,
        timeout: float = 60.0,
        on_progress: ProgressCallback | None = None,
    ) -> None:
        """Return once a server takes work, as after its start; this process always does.

        Raises:
            Unavailable: it does not after `timeout` seconds; the message says why.
        """
        errands = find_errands(url, token)
        await watch(errands.async_way, on_progress, "server", errands.wait_ready, timeout)

    @classmethod
    async def warm(
        cls,
        count: int,
        template: str = PYTHON_TEMPLATE,
        *,
        engine: str | None = None,
        image: str | None = None,
        container: ContainerOptions | Mapping[str, Any] | None = None,
        url: str | None = None,
        token: str | None = None,
        limits: Limits | Mapping[str, Any] | None = None,
        envs: Mapping[str, str] | None = None,
        mounts: Mounts = (),
        idle: float | str | None = None,
    ) -> None:
        """Keep `count` sandboxes of one configuration ready; later ones of just that configuration take them.

        Each is used once, and replaced in the background. Returns when all are ready; 0 ends it. When none was taken for
        as long as `idle`, they are destroyed, and made again when one is asked for. A server keeps them for its user
        alone, says how many those may be, and for how long at most.

        Raises:
            LimitExceeded: more than a server allows.
        """
        errands = find_errands(url, token, engine)
        chosen = make_container(image, container)
        spec = make_spec(template, limits, envs, container=chosen, mounts=mounts)
        seconds = None if idle is None else parse_duration(idle)
        await errands.async_way.call(errands.warm, spec, count, seconds)

    @property
    def id(self) -> str:
        """The sandbox's id."""
        return self._request.spec.id

    async def run_code(
        self,
        code: str,
        *,
        language: str | None = None,
        kernel: str | None = None,
        timeout: float | None = None,
        on_stdout: TextCallback | None = None,
        on_stderr: TextCallback | None = None,
        on_result: ResultCallback | None = None,
        on_error: ErrorCallback | None = None,
        on_input: InputCallback | None = None,
        track_files: bool = False,
    ) -> Cell:
        """Run code in the session, which keeps its variables; the last expression is the result.

        It is Python, or what the template is about, unless a `language` is named; each has a session of its own.
        An exception in the code is a result, see `Cell.error`; so is a timeout. `on_input` answers `input()`: it gets
        the prompt and whether the answer is secret. Without it, or if it returns None, the code gets `EOFError`.
        With `track_files` the cell tells which files of the workspace changed meanwhile, for which all are looked at;
        that raises `LimitExceeded` where there are too many.
        """
        spoken = check_language(language)
        check_callback(on_input)
        listener = make_listener(on_stdout, on_stderr, on_result, on_error)
        way, hosted = await self._open()
        return await way.run_cell(
            hosted,
            code,
            kernel,
            spoken,
            timeout=timeout,
            listener=listener,
            prompter=on_input,
            track_files=track_files,
        )

    async def stream_code(
        self,
        code: str,
        *,
        language: str | None = None,
        kernel: str | None = None,
        timeout: float | None = None,
    ) -> AsyncGenerator[Event | Cell, None]:
        """Yield what code gives as it comes (output, values, the error), and last the cell.

        Leaving the loop early and closing the generator interrupts the code.
        """
        spoken = check_language(language)
        way, hosted = await self._open()
        chosen = None if kernel is None else KernelId(kernel)
        events = await way.call(
            look, hosted.stream_code, code, kernel=chosen, language=spoken, timeout=timeout
        )
        try:
            while (event := await way.call(take, events)) is not None:
                yield event
        finally:
            await way.call(events.aclose)

    async def complete(
        self,
        code: str,
        cursor: int | None = None,
        *,
        language: str | None = None,
        kernel: str | None = None,
    ) -> Completions:
        """Return what can stand at `cursor`, or at the end, by what the session knows."""
        at = len(code) if cursor is None else cursor
        return make_completions(await self._ask("complete", code, at, language, kernel), at)

    async def inspect(
        self,
        code: str,
        cursor: int | None = None,
        *,
        language: str | None = None,
        kernel: str | None = None,
    ) -> Bundle | None:
        """Return what the session knows of the name at `cursor`, or at the end."""
        at = len(code) if cursor is None else cursor
        return make_inspection(await self._ask("inspect", code, at, language, kernel))

    async def install(
        self, *packages: str, language: str = "python", timeout: float | None = 600
    ) -> CommandResult:
        """Install packages into this sandbox alone, by pip, npm or R; kernels find them at once.

        Its network has to allow the package indexes: `network="registries"`, or that among its rules.

        Raises:
            CommandFailed: the installer failed; the message has its words.
            InvalidRequest: what is no package.
        """
        wanted = parse_packages(packages, language)
        await self._open()
        way, claim = self._claimed()
        return await way.call(claim.install, wanted, language, timeout)

    async def to_notebook(self, path: str | Path | None = None) -> Notebook:
        """Return the cells that ran so far as a Jupyter notebook, and write it to `path` if one is given.

        Of very long sessions the oldest outputs, and then the oldest cells, are left out. It can be had after the end, too.
        """
        if self._hosted is None:
            await self._open()
        way, claim = self._claimed(also_over=True)
        notebook = await way.call(claim.read_notebook)
        if path is not None:
            await way.call(write_text, path, format_notebook(notebook))
        return notebook

    async def interrupt(self, language: str | None = None) -> None:
        """Interrupt the code that runs, as Ctrl-C would; variables stay."""
        spoken = check_language(language)
        way, hosted = await self._open()
        await way.call(hosted.interrupt_kernel, language=spoken)

    async def restart(self, language: str | None = None) -> None:
        """Begin the session anew: variables go, files stay."""
        spoken = check_language(language)
        way, hosted = await self._open()
        await way.call(hosted.restart_kernel, language=spoken)

    async def info(self) -> SandboxInfo:
        """Return facts about the sandbox."""
        await self._open()
        way, claim = self._claimed()
        return await way.call(claim.tell)

    async def set_network(
        self,
        network: NetworkChoice,
        *,
        private_network: str | None = None,
        ports: Sequence[int] = (),
    ) -> None:
        """Let it reach something else from now on; what that forbids is cut off when this returns.

        All of it is said anew: a private network that is left out is left.

        Raises:
            Conflict: it was made without a network; one made with `network=[]` has one that allows nothing.
        """
        wanted = make_network(network, private_network, ports)
        await self._open()
        way, claim = self._claimed()
        await way.call(claim.set_network, wanted)

    async def egress_log(self, start: int = 0, limit: int = 1000) -> Sequence[NotedAttempt]:
        """Return what it tried to reach and what came of it, from number `start` on; the newest 5,000 are kept."""
        await self._open()
        way, claim = self._claimed()
        return await way.call(claim.read_attempts, start, limit)

    async def clean(self) -> None:
        """End every process and remove every file, sessions too: the sandbox is as new, and quicker to have than one.

        Raises:
            Unsupported: the engine is `namespaces`, where a new one takes milliseconds; or code could write elsewhere, too,
                as in a volume, with a root that can be written, or as root.
            Unavailable: it cannot be made as new; destroy it.
        """
        way, hosted = await self._open()
        await way.call(hosted.clean)

    async def pause(self) -> None:
        """Stop every process in place; raises `Unsupported` where the machine cannot do that."""
        way, hosted = await self._open()
        await way.call(hosted.pause)

    async def stop(self) -> None:
        """End every process of a persistent sandbox and keep its files; `resume`, or `connect` elsewhere, has it go on.

        Unlike after a pause, sessions begin anew. It keeps its place among those of its owner, and ends with its lifetime.

        Raises:
            Conflict: it was not made with `persistent=True`.
        """
        await self._open()
        way, claim = self._claimed()
        await way.call(claim.stop)
        self._hosted, self._stopped = None, True

    async def resume(self) -> None:
        """Let every process go on after a pause; have a sandbox that was stopped go on with its files."""
        way, claim = self._claimed()
        await way.call(claim.resume)
        self._hosted, self._stopped = None, False

    async def destroy(self) -> None:
        """End the sandbox and remove everything; safe to call twice."""
        with self._claiming:
            self._over = True
        self.ports.close()
        if self._way is not None and self._claim is not None:
            await self._way.end(self._claim)

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
        # Whoever has stopped it wants to have it later.
        if not self._stopped:
            await self.destroy()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id}>"

    async def _open(self) -> tuple[AsyncWay, SandboxFace]:
        if self._way is not None and self._hosted is not None and not self._over:
            if self._hosted.end_reason:
                raise gone(self.id, self._hosted.end_reason)
            return self._way, self._hosted
        way, claim = self._claimed()
        if self._hosted is None:
            self._hosted = await way.open(claim)
        return way, self._hosted

    def _claimed(self, *, also_over: bool = False) -> tuple[AsyncWay, ClaimFace]:
        # Threads may use a new sandbox at the same moment; all have to get the same one.
        with self._claiming:
            if self._over and not also_over:
                raise gone(self.id)
            if self._way is None or self._claim is None:
                self._claim = self._errands.claim(self._request)
                self._way = self._claim.async_way
            return self._way, self._claim

    async def _ask(
        self, kind: str, code: str, cursor: int, language: str | None, kernel: str | None
    ) -> Mapping[str, Any]:
        spoken = check_language(language)
        chosen = None if kernel is None else KernelId(kernel)
        way, hosted = await self._open()
        answer: Mapping[str, Any] = await way.call(
            hosted.ask_kernel, chosen, kind, spoken, code=code, cursor=cursor
        )
        return answer
