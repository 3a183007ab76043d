# Generated from _async by tools/generate_sync.py; edit that.
"""The isolated place that a caller owns."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Any, Self

from atoll.client._sync.commands import Commands
from atoll.client._sync.files import Files
from atoll.client._sync.kernels import Kernels
from atoll.client._sync.ports import Ports
from atoll.client._sync.terminals import Terminals
from atoll.client._sync.watching import watch
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
from atoll.client.face import ClaimFace, SandboxFace, Way
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


class Sandbox:
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
            workspace: the id of a workspace that outlives it, made if there is none; see `Workspaces`.
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
        self._way: Way | None = None
        self._hosted: SandboxFace | None = None
        self._claiming = Lock()
        self._over = False
        self._stopped = False
        self.commands = Commands(self._open)
        self.files = Files(self._open)
        self.kernels = Kernels(self._open)
        self.ports = Ports(self._open)
        self.terminals = Terminals(self._open)

    @classmethod
    def create(
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
        sandbox._open()
        return sandbox

    @classmethod
    def connect(cls, sandbox_id: str, *, url: str | None = None, token: str | None = None) -> Self:
        """Return another handle on a live sandbox of this process, or of a server; destroying one destroys both.

        A persistent one that is stopped goes on, whichever program stopped it.

        Raises:
            NotFound: there is no such sandbox.
            Conflict: another program has it.
        """
        sandbox = cls(url=url, token=token)
        claim = sandbox._errands.way.find(sandbox_id)
        sandbox._request, sandbox._claim, sandbox._way = claim.request, claim, claim.way
        return sandbox

    @classmethod
    def list(cls, *, url: str | None = None, token: str | None = None) -> Sequence[SandboxInfo]:
        """Return facts about the live sandboxes of this process, or of this user on a server, and those that are stopped."""
        return find_errands(url, token).way.list()

    @classmethod
    def wait_ready(
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
        watch(errands.way, on_progress, "server", errands.wait_ready, timeout)

    @classmethod
    def warm(
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
        errands.way.call(errands.warm, spec, count, seconds)

    @property
    def id(self) -> str:
        """The sandbox's id."""
        return self._request.spec.id

    def run_code(
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
        way, hosted = self._open()
        return way.run_cell(
            hosted,
            code,
            kernel,
            spoken,
            timeout=timeout,
            listener=listener,
            prompter=on_input,
            track_files=track_files,
        )

    def stream_code(
        self,
        code: str,
        *,
        language: str | None = None,
        kernel: str | None = None,
        timeout: float | None = None,
    ) -> Generator[Event | Cell, None]:
        """Yield what code gives as it comes (output, values, the error), and last the cell.

        Leaving the loop early and closing the generator interrupts the code.
        """
        spoken = check_language(language)
        way, hosted = self._open()
        chosen = None if kernel is None else KernelId(kernel)
        events = way.call(
            look, hosted.stream_code, code, kernel=chosen, language=spoken, timeout=timeout
        )
        try:
            while (event := way.call(take, events)) is not None:
                yield event
        finally:
            way.call(events.aclose)

    def complete(
        self,
        code: str,
        cursor: int | None = None,
        *,
        language: str | None = None,
        kernel: str | None = None,
    ) -> Completions:
        """Return what can stand at `cursor`, or at the end, by what the session knows."""
        at = len(code) if cursor is None else cursor
        return make_completions(self._ask("complete", code, at, language, kernel), at)

    def inspect(
        self,
        code: str,
        cursor: int | None = None,
        *,
        language: str | None = None,
        kernel: str | None = None,
    ) -> Bundle | None:
        """Return what the session knows of the name at `cursor`, or at the end."""
        at = len(code) if cursor is None else cursor
        return make_inspection(self._ask("inspect", code, at, language, kernel))

    def install(
        self, *packages: str, language: str = "python", timeout: float | None = 600
    ) -> CommandResult:
        """Install packages into this sandbox alone, by pip, npm or R; kernels find them at once.

        Its network has to allow the package indexes: `network="registries"`, or that among its rules.

        Raises:
            CommandFailed: the installer failed; the message has its words.
            InvalidRequest: what is no package.
        """
        wanted = parse_packages(packages, language)
        self._open()
        way, claim = self._claimed()
        return way.call(claim.install, wanted, language, timeout)

    def to_notebook(self, path: str | Path | None = None) -> Notebook:
        """Return the cells that ran so far as a Jupyter notebook, and write it to `path` if one is given.

        Of very long sessions the oldest outputs, and then the oldest cells, are left out. It can be had after the end, too.
        """
        if self._hosted is None:
            self._open()
        way, claim = self._claimed(also_over=True)
        notebook = way.call(claim.read_notebook)
        if path is not None:
            way.call(write_text, path, format_notebook(notebook))
        return notebook

    def interrupt(self, language: str | None = None) -> None:
        """Interrupt the code that runs, as Ctrl-C would; variables stay."""
        spoken = check_language(language)
        way, hosted = self._open()
        way.call(hosted.interrupt_kernel, language=spoken)

    def restart(self, language: str | None = None) -> None:
        """Begin the session anew: variables go, files stay."""
        spoken = check_language(language)
        way, hosted = self._open()
        way.call(hosted.restart_kernel, language=spoken)

    def info(self) -> SandboxInfo:
        """Return facts about the sandbox."""
        self._open()
        way, claim = self._claimed()
        return way.call(claim.tell)

    def set_network(
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
        self._open()
        way, claim = self._claimed()
        way.call(claim.set_network, wanted)

    def egress_log(self, start: int = 0, limit: int = 1000) -> Sequence[NotedAttempt]:
        """Return what it tried to reach and what came of it, from number `start` on; the newest 5,000 are kept."""
        self._open()
        way, claim = self._claimed()
        return way.call(claim.read_attempts, start, limit)

    def clean(self) -> None:
        """End every process and remove every file, sessions too: the sandbox is as new, and quicker to have than one.

        Raises:
            Unsupported: the engine is `namespaces`, where a new one takes milliseconds; or code could write elsewhere, too,
                as in a volume, with a root that can be written, or as root.
            Unavailable: it cannot be made as new; destroy it.
        """
        way, hosted = self._open()
        way.call(hosted.clean)

    def pause(self) -> None:
        """Stop every process in place; raises `Unsupported` where the machine cannot do that."""
        way, hosted = self._open()
        way.call(hosted.pause)

    def stop(self) -> None:
        """End every process of a persistent sandbox and keep its files; `resume`, or `connect` elsewhere, has it go on.

        Unlike after a pause, sessions begin anew. It keeps its place among those of its owner, and ends with its lifetime.

        Raises:
            Conflict: it was not made with `persistent=True`.
        """
        self._open()
        way, claim = self._claimed()
        way.call(claim.stop)
        self._hosted, self._stopped = None, True

    def resume(self) -> None:
        """Let every process go on after a pause; have a sandbox that was stopped go on with its files."""
        way, claim = self._claimed()
        way.call(claim.resume)
        self._hosted, self._stopped = None, False

    def destroy(self) -> None:
        """End the sandbox and remove everything; safe to call twice."""
        with self._claiming:
            self._over = True
        self.ports.close()
        if self._way is not None and self._claim is not None:
            self._way.end(self._claim)

    def __enter__(self) -> Self:
        try:
            self._open()
        except BaseException:
            # Given up half-way: nobody else would destroy what is there by now.
            self.destroy()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # Whoever has stopped it wants to have it later.
        if not self._stopped:
            self.destroy()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id}>"

    def _open(self) -> tuple[Way, SandboxFace]:
        if self._way is not None and self._hosted is not None and not self._over:
            if self._hosted.end_reason:
                raise gone(self.id, self._hosted.end_reason)
            return self._way, self._hosted
        way, claim = self._claimed()
        if self._hosted is None:
            self._hosted = way.open(claim)
        return way, self._hosted

    def _claimed(self, *, also_over: bool = False) -> tuple[Way, ClaimFace]:
        # Threads may use a new sandbox at the same moment; all have to get the same one.
        with self._claiming:
            if self._over and not also_over:
                raise gone(self.id)
            if self._way is None or self._claim is None:
                self._claim = self._errands.claim(self._request)
                self._way = self._claim.way
            return self._way, self._claim

    def _ask(
        self, kind: str, code: str, cursor: int, language: str | None, kernel: str | None
    ) -> Mapping[str, Any]:
        spoken = check_language(language)
        chosen = None if kernel is None else KernelId(kernel)
        way, hosted = self._open()
        answer: Mapping[str, Any] = way.call(
            hosted.ask_kernel, chosen, kind, spoken, code=code, cursor=cursor
        )
        return answer
