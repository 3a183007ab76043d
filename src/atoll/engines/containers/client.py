"""The connection with a container engine: every call ends, and with an error of ours.

An engine may be slow because the machine is busy, or it may hang. Both look alike to one call, so a call that takes
long asks for a sign of life beside it: an engine that gives none within a few seconds hangs.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import aiodocker
import aiohttp

from atoll.engines.containers.settings import TlsFiles
from atoll.errors import AtollError, Conflict, InvalidRequest, NotFound, Unavailable

T = TypeVar("T")
Call = Callable[[aiodocker.Docker], Awaitable[T]]

# A call ends at the latest after this of an engine that lives.
_CALL_SECONDS = 60.0
_MOST_WORDS = 600
_UNREACHABLE = 900  # what aiodocker says instead of a status
# What an engine that is spoken to without it answers, as if the request were bad.
_WANTS_TLS = "Client sent an HTTP request to an HTTPS server"


class EngineClient:
    """One session with an engine, opened when first needed."""

    def __init__(
        self, name: str, endpoint: str, tls: TlsFiles | None, patience_seconds: float
    ) -> None:
        """Open none yet; of an engine that hangs, a call ends within twice the patience."""
        self._patience_seconds = patience_seconds
        self.name = name
        self.endpoint = endpoint
        self._tls = tls
        self._docker: aiodocker.Docker | None = None

    @property
    def socket(self) -> str | None:
        """The path of the engine's socket, if it has one on this machine."""
        return self.endpoint.removeprefix("unix://") if self._is_local else None

    @property
    def _is_local(self) -> bool:
        return self.endpoint.startswith("unix://")

    async def ask(self, what: str, call: Call[T], *, seconds: float = _CALL_SECONDS) -> T:
        """Return what a call answers.

        Raises:
            NotFound, Conflict, InvalidRequest: the engine says so.
            Unavailable: it cannot be reached, does not answer, or failed.
        """
        task = asyncio.ensure_future(self._translated(what, call))
        try:
            deadline = asyncio.get_running_loop().time() + seconds
            while True:
                await asyncio.wait({task}, timeout=self._patience_seconds)
                if task.done():
                    return task.result()
                if asyncio.get_running_loop().time() > deadline or not await self.is_alive():
                    if task.done():
                        return task.result()
                    raise Unavailable(
                        f"{self.name} at {self.endpoint} does not answer, asked to {what}; see whether it hangs, and try again",
                        engine=self.name,
                        is_silent=True,
                    )
        finally:
            await _end(task)

    async def is_alive(self) -> bool:
        """Whether the engine gives a sign of life in time."""
        task = asyncio.ensure_future(self._translated("tell its version", _sign))
        try:
            await asyncio.wait({task}, timeout=self._patience_seconds)
            return task.done() and task.exception() is None
        finally:
            await _end(task)

    async def _translated(self, what: str, call: Call[T]) -> T:
        with self.our_errors(what):
            return await call(self.docker())

    def docker(self) -> aiodocker.Docker:
        """Return the session."""
        if self._docker is None:
            with self.our_errors("open a connection"):
                self._docker = _open(self.endpoint, self._tls)
        return self._docker

    async def close(self) -> None:
        """End the session; the next call would open another."""
        docker, self._docker = self._docker, None
        if docker is not None:
            session, connector = docker.session, docker.connector
            await docker.close()
            await session.close()
            await connector.close()

    @contextmanager
    def our_errors(self, what: str) -> Iterator[None]:
        """Raise the engine's failures, and those of reaching it, as ours."""
        try:
            yield
        except aiodocker.DockerError as error:
            raise self._translate(what, error) from error
        except (TimeoutError, aiohttp.ClientError, OSError, ValueError) as error:
            if isinstance(error, AtollError):
                raise
            raise self._unreachable(what, str(error) or type(error).__name__) from error

    def _translate(self, what: str, error: aiodocker.DockerError) -> AtollError:
        why = str(error.message)
        wants_tls = error.status == 400 and why.startswith(_WANTS_TLS)
        if error.status == _UNREACHABLE or wants_tls:
            return self._unreachable(what, why.strip())
        kinds: dict[int, type[AtollError]] = {
            400: InvalidRequest,
            404: NotFound,
            409: Conflict,
        }
        kind = kinds.get(error.status, Unavailable)
        if len(why) > _MOST_WORDS:  # engines repeat what they were sent
            why = f"{why[: _MOST_WORDS // 2]} … {why[-_MOST_WORDS // 2 :]}"
        return kind(f"{self.name} could not {what}: {why}", engine=self.name)

    def _unreachable(self, what: str, why: str) -> Unavailable:
        return Unavailable(
            f"{self.name} cannot be reached at {self.endpoint} to {what}: {why}; {self._way_out}",
            engine=self.name,
        )

    @property
    def _way_out(self) -> str:
        setting = f"containers.{self.name}_tls"
        if self._is_local:
            return "start it, or set its endpoint"
        if self._tls is None:
            return f"start it, set its endpoint, or, if it wants TLS, the directory of certificates, {setting}"
        return f"start it, set its endpoint, or see whether the certificates of {setting} are those of its authority"


async def _sign(docker: aiodocker.Docker) -> Any:
    return await docker.version()


async def _end(task: asyncio.Future[Any]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError, AtollError):
        await task


def _open(endpoint: str, tls: TlsFiles | None) -> aiodocker.Docker:
    # Every sandbox keeps a connection, so there may be any number of them.
    scheme, _, place = endpoint.partition("://")
    if scheme == "unix":
        connector: aiohttp.BaseConnector = aiohttp.UnixConnector(place, limit=0)
        url = "unix://localhost"
    elif scheme == "tcp" and place:
        connector = aiohttp.TCPConnector(limit=0, ssl=True if tls is None else _context(tls))
        url = f"{'http' if tls is None else 'https'}://{place}"
    else:
        raise InvalidRequest(
            f"endpoint {endpoint!r} of a container engine has to be unix:///path or tcp://host:port"
        )
    timeout = aiohttp.ClientTimeout()  # `ask` has its own
    session = aiohttp.ClientSession(connector=connector, timeout=timeout)
    return aiodocker.Docker(url=url, connector=connector, session=session, timeout=timeout)


def _context(tls: TlsFiles) -> ssl.SSLContext:
    for path in (tls.authority, tls.certificate, tls.key):
        path.open("rb").close()  # OpenSSL would not say which one it cannot read
    context = ssl.create_default_context(cafile=tls.authority)
    # Else OpenSSL asks for a password at the terminal, and everything waits for it.
    context.load_cert_chain(tls.certificate, tls.key, partial(_refuse_password, tls.key))
    return context


def _refuse_password(key: Path) -> str:
    raise ValueError(f"{key} has a password; write the key without one")
