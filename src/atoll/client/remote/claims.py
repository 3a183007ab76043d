"""A claim on a sandbox of a server, and the ways to it: from an event loop, and from threads that wait."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from inspect import isawaitable
from typing import Any, NoReturn, TypeVar
from urllib.parse import quote

import anyio

from atoll.client.errands import gone
from atoll.client.face import Listener, Prompter
from atoll.client.publishing import PublishedPort, publish
from atoll.client.remote.cells import InputWanted
from atoll.client.remote.portal import run_there, wait_for
from atoll.client.remote.sandbox import RemoteSandbox
from atoll.client.remote.transport import Server
from atoll.client.remote.values import to_attempt, to_sandbox
from atoll.client.remote.wishes import network_wish, sandbox_wish
from atoll.errors import AtollError, Conflict, NotFound
from atoll.model.attempt import NotedAttempt
from atoll.model.ids import SandboxId
from atoll.model.kernel import Cell
from atoll.model.network import Network
from atoll.model.notebook import Notebook
from atoll.model.process import CommandResult, EndReason
from atoll.model.sandbox import SandboxInfo, SandboxRequest, SandboxSpec, SandboxState

Answer = TypeVar("Answer")
_LIVE = ("creating", "running", "paused", "stopped")
_OVER = ("destroyed", "lost")
_PAGE = 1000
_LOOKS, _LOOK_SECONDS = 20, 0.05


class RemoteClaim:
    """One sandbox of a server: made once, by whoever needs it first, and never again once destroyed."""

    def __init__(
        self,
        server: Server,
        request: SandboxRequest,
        engine: str | None = None,
        *,
        is_there: bool = False,
    ) -> None:
        self.server = server
        self.request = request
        self._engine = engine
        self._id = request.spec.id
        self._base = f"/sandboxes/{self._id}"
        self._was_asked = is_there
        self._is_there = is_there
        self._over = False

    @property
    def async_way(self) -> AsyncRemote:
        """How an event loop reaches its server."""
        return AsyncRemote(self.server, self)

    @property
    def way(self) -> Remote:
        """How a thread that waits reaches its server."""
        return Remote(self.server, self)

    async def open(self) -> RemoteSandbox:
        """Return the sandbox; made if need be."""
        if self._over:
            raise gone(self._id)
        if not self._is_there:
            await self._create()
        return RemoteSandbox(self.server, self._id)

    async def _create(self) -> None:
        # However many ask at the same moment, and however often: one key makes one sandbox.
        http = await self.server.reach()
        was_asked, self._was_asked = self._was_asked, True
        wish = sandbox_wish(self.request, self._engine)
        key = f"create-{self._id}"
        await http.ask_safely("POST", "/sandboxes", key=key, was_sent=was_asked, body=wish)
        self._is_there = True

    async def end(self) -> None:
        """Let nobody use it any more, and destroy it; safe to call twice, and while it is being made."""
        self._over = True
        if not self._was_asked:
            return
        http = await self.server.reach()
        await http.close_channels(self._id)
        try:
            if not self._is_there:
                # Whether it was made is not known: asked once more, it is there, or never will be.
                await self._create()
            await http.ask_safely("DELETE", self._base, key=f"destroy-{self._id}")
        except NotFound:
            return
        except AtollError:
            if self._is_there:
                raise

    async def tell(self) -> SandboxInfo:
        """Return facts about the sandbox; raises `Conflict` if it is no more."""
        info = await self._describe()
        if info.state.is_over:
            raise _gone(info)
        return info

    async def stop(self) -> None:
        """End all that runs in the sandbox; its files are kept."""
        http = await self.server.reach()
        await http.close_channels(self._id)
        await http.ask_safely("PUT", f"{self._base}/stop")

    async def resume(self) -> None:
        """Let the sandbox go on, paused or stopped."""
        http = await self.server.reach()
        is_stopped = (await self.tell()).state is SandboxState.STOPPED
        await http.ask_safely("DELETE", f"{self._base}/{'stop' if is_stopped else 'pause'}")

    async def _describe(self) -> SandboxInfo:
        http = await self.server.reach()
        return to_sandbox(await http.ask_safely("GET", self._base))

    async def set_network(self, network: Network) -> None:
        """Change what the sandbox may reach."""
        http = await self.server.reach()
        body = {"network": network_wish(network)}
        await http.ask_safely("PUT", f"{self._base}/network", body=body)

    async def read_attempts(self, start: int, limit: int) -> Sequence[NotedAttempt]:
        """Return what the sandbox tried to reach."""
        http = await self.server.reach()
        params = {"start": start, "limit": limit}
        found = await http.ask_safely("GET", f"{self._base}/egress", params=params)
        return [to_attempt(each, SandboxId(self._id)) for each in found]

    async def install(
        self, packages: Sequence[str], language: str, timeout: float | None
    ) -> CommandResult:
        """Install packages into the sandbox; raises `CommandFailed`."""
        http = await self.server.reach()
        body = {"packages": list(packages), "language": language, "timeout": timeout}
        told = await http.call("POST", f"{self._base}/install", body=body)
        return CommandResult(
            exit_code=0,
            signal=None,
            reason=EndReason.EXITED,
            stdout=told["output"].encode(),
            stderr=told.get("stderr", "").encode(),
            stdout_truncated=False,
            stderr_truncated=False,
            duration=float(told.get("duration", 0.0)),
        )

    async def read_notebook(self) -> Notebook:
        """Return the cells that ran so far as a notebook; also after the sandbox's end."""
        http = await self.server.reach()
        notebook: Notebook = await http.ask_safely("GET", f"{self._base}/notebook")
        return notebook

    async def explain(self, error: NotFound | Conflict) -> NoReturn:
        """Raise why the sandbox is no more, if that is what an error tells; else the error."""
        is_missing = isinstance(error, NotFound) and error.details.get("sandbox") == self._id
        # So says an engine; the node writes down why a little later.
        is_over = error.details.get("state") in _OVER
        if not is_missing and not is_over:
            raise error
        for _ in range(_LOOKS):
            try:
                info = await self._describe()
            except NotFound:
                break
            if info.state.is_over:
                raise _gone(info) from error
            await anyio.sleep(_LOOK_SECONDS)
        raise gone(self._id) from error


def _gone(info: SandboxInfo) -> Conflict:
    return gone(info.id, info.reason, is_lost=info.state is SandboxState.LOST)


class AsyncRemote:
    """A server, asked from an event loop."""

    def __init__(self, server: Server, claim: RemoteClaim | None = None) -> None:
        self._server = server
        self._claim = claim

    async def call(
        self, function: Callable[..., Awaitable[Answer]], *args: object, **options: object
    ) -> Answer:
        """Run a function that asks the server; cancelling this call cancels it."""
        try:
            return await function(*args, **options)
        except (NotFound, Conflict) as error:
            if self._claim is None:
                raise
            await self._claim.explain(error)

    async def find(self, sandbox_id: str) -> RemoteClaim:
        """Return a claim on a live sandbox, or on one that is stopped and goes on now; raises `NotFound`."""
        http = await self._server.reach()
        info = to_sandbox(
            await http.ask_safely("GET", f"/sandboxes/{quote(str(sandbox_id), safe='')}")
        )
        if info.state.is_over:
            raise NotFound(
                f"sandbox {info.id} is no more; Sandbox.list() tells which there are",
                sandbox=info.id,
            )
        spec = SandboxSpec(id=info.id, template=info.template)
        claim = RemoteClaim(self._server, SandboxRequest(spec), is_there=True)
        if info.state is SandboxState.STOPPED:
            await claim.resume()
        return claim

    async def list(self) -> Sequence[SandboxInfo]:
        """Return facts about the live sandboxes of this user, the oldest first."""
        http = await self._server.reach()
        found: list[SandboxInfo] = []
        cursor: str | None = None
        while True:
            params = {"state": _LIVE, "limit": _PAGE, "cursor": cursor}
            answer = await http.try_again(partial(http.ask, "GET", "/sandboxes", params=params))
            found += [to_sandbox(each) for each in answer.json()]
            cursor = answer.headers.get("Atoll-Next-Cursor")
            if cursor is None:
                return found[::-1]

    async def open(self, claim: RemoteClaim) -> RemoteSandbox:
        """Return the sandbox of a claim, made if need be."""
        return await claim.open()

    async def end(self, claim: RemoteClaim) -> None:
        """Destroy the sandbox of a claim; safe to call twice, and while it is being made."""
        with anyio.CancelScope(shield=True):
            await claim.end()

    async def publish(self, hosted: RemoteSandbox, port: int, host_port: int) -> PublishedPort:
        """Have programs of this machine reach a port of a sandbox, by a thread of its own."""
        return await run_there(partial(publish, hosted.connect, port, host_port))

    async def run_cell(
        self,
        hosted: RemoteSandbox,
        code: str,
        kernel: str | None = None,
        language: str | None = None,
        *,
        timeout: float | None = None,
        listener: Listener | None = None,
        prompter: Prompter | None = None,
        track_files: bool = False,
    ) -> Cell:
        """Run a cell; callbacks are called here."""
        takes_input = prompter is not None
        run = hosted.begin_cell(
            code, kernel, language, timeout, track_files=track_files, takes_input=takes_input
        )
        if listener is None and prompter is None:
            return await self.call(run.finish)
        try:
            while not isinstance(happened := await self.call(run.next), Cell):
                if isinstance(happened, InputWanted):
                    await run.answer(await _ask(prompter, happened))
                elif listener is not None:
                    listener(happened)
            return happened
        finally:
            await run.close()


async def _ask(prompter: Prompter | None, wanted: InputWanted) -> str | None:
    if prompter is None:
        return None
    given: Any = prompter(wanted.prompt, wanted.is_secret)
    line: str | None = await given if isawaitable(given) else given
    return line


class Remote:
    """A server, asked from a thread that waits; a thread with an event loop, one for all, does it."""

    def __init__(self, server: Server, claim: RemoteClaim | None = None) -> None:
        self._way = AsyncRemote(server, claim)

    def call(
        self, function: Callable[..., Awaitable[Answer]], *args: object, **options: object
    ) -> Answer:
        """Run a function that asks the server."""
        return wait_for(partial(self._way.call, function, *args, **options))

    def find(self, sandbox_id: str) -> RemoteClaim:
        """Return a claim on a live sandbox; raises `NotFound`."""
        return wait_for(partial(self._way.find, sandbox_id))

    def list(self) -> Sequence[SandboxInfo]:
        """Return facts about the live sandboxes of this user, the oldest first."""
        return wait_for(self._way.list)

    def open(self, claim: RemoteClaim) -> RemoteSandbox:
        """Return the sandbox of a claim, made if need be."""
        return wait_for(claim.open)

    def end(self, claim: RemoteClaim) -> None:
        """Destroy the sandbox of a claim; safe to call twice, and while it is being made."""
        wait_for(partial(self._way.end, claim))

    def publish(self, hosted: RemoteSandbox, port: int, host_port: int) -> PublishedPort:
        """Have programs of this machine reach a port of a sandbox."""
        return self.call(publish, hosted.connect, port, host_port)

    def run_cell(
        self,
        hosted: RemoteSandbox,
        code: str,
        kernel: str | None = None,
        language: str | None = None,
        *,
        timeout: float | None = None,
        listener: Listener | None = None,
        prompter: Prompter | None = None,
        track_files: bool = False,
    ) -> Cell:
        """Run a cell; callbacks are called in this thread."""
        takes_input = prompter is not None
        run = hosted.begin_cell(
            code, kernel, language, timeout, track_files=track_files, takes_input=takes_input
        )
        if listener is None and prompter is None:
            return self.call(run.finish)
        try:
            while not isinstance(happened := self.call(run.next), Cell):
                if isinstance(happened, InputWanted):
                    given = prompter and prompter(happened.prompt, happened.is_secret)
                    self.call(run.answer, given)
                elif listener is not None:
                    listener(happened)
            return happened
        finally:
            wait_for(run.close)
