"""The node's socket, and the server that listens there until it is told to end."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import stat
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from signal import Signals

import anyio
from anyio.abc import TaskGroup
from starlette.types import ASGIApp
from uvicorn import Config, Server
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.wsproto_impl import WSProtocol

from atoll.errors import Conflict, Unavailable
from atoll.node.loop_watch import LoopWatch
from atoll.server.app import create_app
from atoll.server.parts import open_parts
from atoll.server.settings import Settings
from atoll.server.spare import turn_away_surplus
from atoll.server.traffic import Traffic

_DRAIN_SECONDS = 10.0
# How long requests that were cut off then may take to clean up.
_CUT_SECONDS = 2
_BACKLOG = 1024
_MOST_MESSAGE_BYTES = 1 << 20
_log = logging.getLogger(__name__)


async def serve(settings: Settings) -> None:
    """Run a node until it is told to end by SIGTERM or SIGINT; a second one does not wait for requests.

    Raises:
        Conflict: another node uses the data directory, or another program the socket.
    """
    # Before anything is there that would be left behind; a node that is told to end early starts, and ends.
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async with open_parts(settings) as parts:
            with (
                LoopWatch(blocked=parts.counters.loop_blocked.add),
                open_socket(settings.socket_path) as listener,
                turn_away_surplus(listener, parts.traffic.tell_refusal),
            ):
                _log.info("node.listens", extra={"socket": str(settings.socket_path)})
                config = _Config(create_app(parts), settings.execution.slow_reader_seconds)
                await _listen(_Server(config), listener, parts.traffic, signals)
            _log.info("node.ends", extra={"sandboxes": len(parts.node.living())})


async def _listen(
    server: Server, listener: socket.socket, traffic: Traffic, signals: AsyncIterator[Signals]
) -> None:
    """Answer requests until a signal, then let those that run come to their end."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_stop_on_signals, server, traffic, tasks, signals)
        await server.serve([listener])
        tasks.cancel_scope.cancel()


async def _stop_on_signals(
    server: Server, traffic: Traffic, tasks: TaskGroup, signals: AsyncIterator[Signals]
) -> None:
    async for number in signals:
        if traffic.is_draining:
            server.should_exit = True
            return
        _log.info("node.drains", extra={"signal": number.name, "requests": traffic.running})
        tasks.start_soon(_drain, server, traffic)


async def _drain(server: Server, traffic: Traffic) -> None:
    if not await traffic.drain(_DRAIN_SECONDS):
        _log.warning("node.cuts_off", extra={"requests": traffic.running})
    server.should_exit = True


@contextmanager
def open_socket(path: Path) -> Iterator[socket.socket]:
    """Listen at a path that only this user can reach; what a dead node left there is replaced.

    Raises:
        Conflict: something else is there.
        Unavailable: there cannot be a socket there.
    """
    _make_room(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _bind(listener, path)
        listener.listen(_BACKLOG)
        yield listener
    finally:
        listener.close()
        path.unlink(missing_ok=True)


def _bind(listener: socket.socket, path: Path) -> None:
    # Set before, for between bind and chmod others could connect.
    before = os.umask(0o177)
    try:
        listener.bind(str(path))
    except OSError as error:
        raise Unavailable(f"cannot listen at {path}: {error.strerror}") from error
    finally:
        os.umask(before)


def _make_room(path: Path) -> None:
    try:
        mode = path.lstat().st_mode
    except OSError:
        return  # nothing is there, or binding will say what is wrong
    if not stat.S_ISSOCK(mode):
        raise Conflict(f"{path} exists and is no socket; choose another with --socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
        except OSError as error:
            raise Unavailable(f"cannot listen at {path}: {error.strerror}") from error
    raise Conflict(f"another program listens at {path}; choose another path with --socket")


class _Config(Config):
    def __init__(self, app: ASGIApp, slow_reader_seconds: float) -> None:
        super().__init__(
            app,
            http=_PatientHttp,
            ws=_PatientWebSocket,
            ws_max_size=_MOST_MESSAGE_BYTES,
            # A reader that is only slow answers no pings either; `_Patience` tells who is too slow.
            ws_ping_interval=None,
            loop="none",
            lifespan="off",
            log_config=None,
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=_CUT_SECONDS,
        )
        self.slow_reader_seconds = slow_reader_seconds


class _Server(Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to `listen`, which drains first."""
        yield


class _Patience(asyncio.Protocol):
    """Cuts a connection off once its reader has taken nothing for too long, so that nothing piles up for it."""

    _timer: asyncio.TimerHandle | None = None
    config: Config
    transport: asyncio.Transport

    def pause_writing(self) -> None:
        super().pause_writing()
        self._expect_progress()

    def resume_writing(self) -> None:
        self._stop_waiting()
        super().resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(error)

    def _expect_progress(self) -> None:
        assert isinstance(self.config, _Config)
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self.config.slow_reader_seconds, self._cut_off)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _cut_off(self) -> None:
        _log.warning("reader.cut_off")
        # Closing would wait until all that is buffered has been read.
        self.transport.abort()


class _PatientHttp(_Patience, H11Protocol):
    """HTTP."""


class _PatientWebSocket(_Patience, WSProtocol):
    """WebSockets."""
