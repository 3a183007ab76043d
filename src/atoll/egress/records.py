"""Records of attempts: one for each, whatever becomes of it, and their way to the node."""

from __future__ import annotations

import asyncio
import socket
import time
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from atoll.egress import control
from atoll.egress.refusals import Refused
from atoll.egress.tunnels import TunnelEnded
from atoll.model.attempt import AttemptInfo, AttemptVerdict
from atoll.model.ids import SandboxId

_LONGEST_TEXT = 1024
# Attempts that wait for a node which does not read; with more nobody is let out any more.
_MOST_WAITING = 10_000
_MOST_IN_PACKET = 16
# So that what ends together travels together.
_PAUSE_SECONDS = 0.005


class Record:
    """One attempt under way; leaving the block hands it on, exactly once."""

    def __init__(
        self, sandbox: SandboxId, scheme: str, emit: Callable[[AttemptInfo], None]
    ) -> None:
        self._sandbox = sandbox
        self._emit = emit
        self._begun = time.time()
        self._clock = time.monotonic()
        self.scheme = scheme
        self.host = ""
        self.port = 0
        self.method = ""
        self.path = ""
        self.address = ""
        self.verdict: AttemptVerdict = "allowed"
        self.reason = ""
        self.up_bytes = 0
        self.down_bytes = 0

    def refuse(self, refused: Refused) -> None:
        """Note that it ends here."""
        self.verdict, self.reason = refused.verdict, refused.reason

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None and self.verdict == "allowed":
            self.verdict, self.reason = _judge(error)
        self._emit(
            AttemptInfo(
                sandbox=self._sandbox,
                time=self._begun,
                scheme=self.scheme,
                host=_short(self.host),
                port=self.port,
                method=_short(self.method),
                path=_short(self.path.partition("?")[0]),
                address=self.address,
                verdict=self.verdict,
                reason=_short(self.reason),
                up_bytes=self.up_bytes,
                down_bytes=self.down_bytes,
                seconds=round(time.monotonic() - self._clock, 6),
            )
        )


def _judge(error: BaseException) -> tuple[AttemptVerdict, str]:
    if isinstance(error, TunnelEnded):
        return "ended", str(error)
    if isinstance(error, asyncio.CancelledError):
        return "ended", str(error) or "the proxy let go of it"
    if isinstance(error, TimeoutError):
        return "failed", "nothing came in time"
    if isinstance(error, OSError):
        return "failed", f"the connection broke off: {error.strerror or error}"
    return "failed", "the proxy made a mistake"


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST_TEXT else f"{text[: _LONGEST_TEXT - 1]}…"


class Reports:
    """What the proxy tells the node: in order, in packets, never waiting."""

    def __init__(self, channel: socket.socket, drained: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._channel = channel
        self._drained = drained
        self._messages: deque[dict[str, Any]] = deque()
        self._attempts: deque[dict[str, Any]] = deque()
        self._is_scheduled = False
        self._is_waiting = False

    @property
    def is_full(self) -> bool:
        """Whether nothing more may happen until the node has read what happened."""
        return len(self._attempts) >= _MOST_WAITING

    def tell(self, message: dict[str, Any]) -> None:
        """Send a message soon, after all attempts that came before it."""
        while self._attempts:
            self._pack()
        self._messages.append(message)
        self._flush()

    def emit(self, attempt: AttemptInfo) -> None:
        """Send an attempt with others in a moment."""
        self._attempts.append(attempt.to_json())
        if not self._is_scheduled and not self._is_waiting:
            self._is_scheduled = True
            self._loop.call_later(_PAUSE_SECONDS, self._flush)

    def _pack(self) -> None:
        size = min(_MOST_IN_PACKET, len(self._attempts))
        taken = [self._attempts.popleft() for _ in range(size)]
        self._messages.append({"event": "attempts", "attempts": taken})

    def _flush(self) -> None:
        self._is_scheduled = False
        was_full = self.is_full
        try:
            while self._messages or self._attempts:
                if not self._messages:
                    self._pack()
                control.send(self._channel, self._messages[0])
                self._messages.popleft()
        except BlockingIOError:
            self._wait(True)
        except OSError:
            return  # the node is gone, and this process is about to end
        else:
            self._wait(False)
        if was_full and not self.is_full:
            self._drained()

    def _wait(self, waiting: bool) -> None:
        if waiting and not self._is_waiting:
            self._loop.add_writer(self._channel, self._flush)
        elif self._is_waiting and not waiting:
            self._loop.remove_writer(self._channel)
        self._is_waiting = waiting
