"""Commands in containers of a pool: one executor, and a manager that knows defaults and which engines may be used.

The engine that is asked for is the one that runs a command. Another one does only if the caller has listed it as a fallback, and the
answer names the engine that ran. There is no way to the machine itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

from atoll import CommandResult
from atoll.client.containers import is_answering
from atoll.errors import AtollError, InvalidRequest, Unavailable, Unsupported
from atoll.integrations.container_pool import ContainerPool, Place, PooledContainer
from atoll.integrations.shapes import (
    IMAGE,
    ExecutionRequest,
    ExecutionResult,
    SandboxAnswer,
    SandboxConfig,
    read_fields,
)
from atoll.model.process import EndReason

OUTPUT_CHARACTERS = 50_000
WORKDIR = "/workspace"
TYPES = ("docker", "podman")
_MISSING = {
    "native": "type 'native' would run code on this machine without any isolation, which Atoll does not do",
    "wasm": "type 'wasm' has no engine here",
}


class DockerSandboxExecutor:
    """Runs commands in hardened containers, which are used again for the same configuration."""

    def __init__(
        self, options: Mapping[str, Any] | None = None, *, place: Place | None = None
    ) -> None:
        """Say where containers are, and how many are kept: `{"docker": {"socketPath": …}, "pool": {"maxSize": 5}}`.

        With `place` they are those of another engine, or of a server.
        """
        given = read_fields("executor", options or {}, ("docker", "pool"))
        self._place = place or Place.of(given.get("docker"))
        self._options = given.get("pool", {})
        self._pool: ContainerPool | None = None
        ContainerPool(self._place, self._options)  # what cannot be is told at once

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.disconnect()

    async def is_available(self) -> bool:
        """Whether the engine answers."""
        return await is_answering(self._place.engine, self._place.url)

    async def connect(self) -> None:
        """Be ready to run commands; raises `Unavailable` if the engine does not answer."""
        if not await self.is_available():
            raise Unavailable(f"engine {self._place.engine!r} does not answer; is it running?")
        if self._pool is None:
            self._pool = ContainerPool(self._place, self._options)

    async def disconnect(self) -> None:
        """Destroy all containers; safe to call twice."""
        pool, self._pool = self._pool, None
        if pool is not None:
            await pool.destroy_all()

    async def execute(
        self,
        request: ExecutionRequest | Mapping[str, Any],
        config: SandboxConfig | Mapping[str, Any] | None = None,
    ) -> SandboxAnswer:
        """Run a command; what it does is a success, whatever its exit code, and what cannot be done a failure with its reason."""
        try:
            return await self._execute(ExecutionRequest.of(request), SandboxConfig.of(config or {}))
        except AtollError as error:
            return SandboxAnswer(success=False, error=error.message)

    async def _execute(self, request: ExecutionRequest, config: SandboxConfig) -> SandboxAnswer:
        if self._pool is None:
            raise Unavailable("the executor is not connected; call connect() first")
        if config.type not in (None, self._place.engine):
            raise InvalidRequest(
                f"this executor runs type {self._place.engine!r}, not {config.type!r}"
            )
        seconds = config.seconds(request)
        container = await self._pool.acquire(config.image or IMAGE, config.container())
        result = None
        try:
            result = await _run(container, request, config, seconds)
        finally:
            # Whatever was not seen to its end may still go on, or have broken something.
            is_whole = result is not None and result.reason is EndReason.EXITED
            await self._pool.release(container, corrupted=not is_whole)
        return SandboxAnswer(success=True, data=_to_data(result), engine=self._place.engine)


async def _run(
    container: PooledContainer, request: ExecutionRequest, config: SandboxConfig, seconds: float
) -> CommandResult:
    return await container.sandbox.commands.run(
        list(request.command),
        cwd=request.cwd or config.workdir or WORKDIR,
        envs=request.env,
        stdin=request.stdin,
        timeout=seconds,
    )


def _to_data(result: CommandResult) -> ExecutionResult:
    return ExecutionResult(
        stdout=_cut(result.stdout),
        stderr=_cut(result.stderr),
        exit_code=result.shell_code,
        timed_out=result.timed_out,
        duration=result.duration * 1000,
    )


def _cut(output: bytes) -> str:
    return output.decode("utf-8", "replace")[:OUTPUT_CHARACTERS]


class SandboxManager:
    """Runs commands with defaults, by the type that is asked for; leaving its context ends everything."""

    def __init__(self, options: Mapping[str, Any] | None = None) -> None:
        """Say where engines are, how many containers are kept, what is usual, and what may stand in.

        `options` has `docker` and `podman` (see `Place.of`), `pool`, `defaults` (a configuration) and `fallbacks`: the types that may be
        used, in this order, where the one that is asked for is not available. Without that list nothing stands in.
        """
        known = ("docker", "podman", "pool", "defaults", "fallbacks", "wasm")
        given = read_fields("manager", options or {}, known)
        self._executors = {
            engine: DockerSandboxExecutor(
                {"pool": given.get("pool", {})}, place=Place.of(given.get(engine), engine)
            )
            for engine in TYPES
        }
        self._defaults = SandboxConfig.of(given.get("defaults", {}))
        self._fallbacks = _check_types(given.get("fallbacks", ()))
        self._available: set[str] = set()
        self._is_initialized = False

    async def __aenter__(self) -> Self:
        await self.initialize()
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.shutdown()

    async def initialize(self) -> None:
        """Find out which engines answer; done once."""
        if not self._is_initialized:
            self._is_initialized = True
            for engine, executor in self._executors.items():
                if await executor.is_available():
                    await executor.connect()
                    self._available.add(engine)

    async def is_docker_available(self) -> bool:
        """Whether commands can be run in containers of Docker."""
        await self.initialize()
        return "docker" in self._available

    async def is_wasm_available(self) -> bool:
        """Whether there is an engine for WebAssembly: there is none yet."""
        return False

    async def execute(
        self,
        request: ExecutionRequest | Mapping[str, Any],
        config: SandboxConfig | Mapping[str, Any] | None = None,
    ) -> SandboxAnswer:
        """Run a command; the answer names the engine that did."""
        await self.initialize()
        try:
            asked = SandboxConfig.of(config or {}).over(self._defaults)
            engine = self._choose(asked.type or TYPES[0])
        except AtollError as error:
            return SandboxAnswer(success=False, error=error.message)
        return await self._executors[engine].execute(request, replace(asked, type=engine))

    async def shutdown(self) -> None:
        """Destroy all containers; safe to call twice."""
        for executor in self._executors.values():
            await executor.disconnect()
        self._available, self._is_initialized = set(), False

    def _choose(self, asked: str) -> str:
        """Return the engine that is asked for, or the first of the fallbacks that is available; raises why there is none."""
        for engine in (asked, *self._fallbacks):
            if engine in self._available:
                return engine
        why = _MISSING.get(asked) or f"engine {asked!r} is not available"
        if asked not in (*TYPES, *_MISSING):
            raise InvalidRequest(
                f"type {str(asked)[:40]!r} is none of {', '.join((*TYPES, *_MISSING))}"
            )
        tried = f", nor are its fallbacks: {', '.join(self._fallbacks)}" if self._fallbacks else ""
        raise Unsupported(f"{why}{tried}; ask for {' or '.join(TYPES)}, or list them as fallbacks")


def _check_types(names: Sequence[str]) -> tuple[str, ...]:
    if isinstance(names, str) or not all(name in TYPES for name in names):
        raise InvalidRequest(f"fallbacks have to be a list of {', '.join(TYPES)}")
    return tuple(names)
