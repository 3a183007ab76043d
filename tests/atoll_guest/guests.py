"""A guest kernel in an ordinary process, and the host's side of its channel in a few lines."""

from __future__ import annotations

import os
import secrets
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from atoll_guest.frames import FrameDecoder
from atoll_guest.messages import TO_HOST, Message, decode_message, encode_message

_SECONDS = 60.0


@dataclass
class Answer:
    """All that came of one cell."""

    messages: list[Message] = field(default_factory=list)
    stdout: bytes = b""
    stderr: bytes = b""

    @property
    def status(self) -> str:
        """How the cell ended."""
        return str(self.messages[-1]["status"])

    @property
    def text(self) -> Any:
        """The cell's value."""
        found = self.of_type("result")
        return found[0]["data"].get("text/plain") if found else None

    @property
    def error(self) -> str:
        """The name of the exception that ended the cell."""
        found = self.of_type("error")
        return str(found[0]["name"]) if found else ""

    @property
    def traceback(self) -> str:
        """Its traceback."""
        return "\n".join(self.of_type("error")[0]["traceback"])

    def of_type(self, kind: str) -> list[Message]:
        """The messages of one type."""
        return [message for message in self.messages if message["type"] == kind]


class Guest:
    """A kernel that runs as a child of this process, without a sandbox."""

    def __init__(self, command: Sequence[str] = (sys.executable, "-m", "atoll_guest")) -> None:
        self._channel, theirs = socket.socketpair()
        self._channel.settimeout(_SECONDS)
        self._decoder = FrameDecoder()
        self._messages: list[Message] = []
        with theirs:
            self.process = subprocess.Popen(
                command,
                stdin=theirs.fileno(),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        self.hello = self.receive()
        self.send({"type": "welcome", "version": 1, "env": {"GIVEN": "yes"}})

    def run(
        self,
        code: str,
        *,
        answer: Message | None = None,
        on_output: Callable[[], None] = lambda: None,
    ) -> Answer:
        """Run a cell; `answer` is for `input()`, `on_output` is called once the cell has printed something."""
        request = secrets.token_hex(8)
        self.send({"type": "execute", "id": request, "code": code, "silent": False})
        result = Answer()
        if self.wait_output():
            on_output()
        while not result.messages or result.messages[-1]["type"] != "end":
            message = self.receive()
            assert message["id"] == request
            result.messages.append(message)
            if message["type"] == "input_request":
                self.send({"type": "input", "id": request, **(answer or {})})
        result.stdout, result.stderr = _read_all(self._stdout), _read_all(self._stderr)
        return result

    def interrupt(self) -> None:
        """Do as Ctrl-C does."""
        self.process.send_signal(signal.SIGINT)

    def wait_output(self) -> bool:
        """Wait until something was printed or said; return whether it was printed."""
        ready, _, _ = select.select([self._stdout, self._channel.fileno()], [], [], _SECONDS)
        return self._stdout in ready

    def send(self, message: Message) -> None:
        """Send a message as it is."""
        self._channel.sendall(encode_message(message))

    def receive(self) -> Message:
        """Return the next message; raise `EOFError` at the channel's end."""
        while not self._messages:
            data = self._channel.recv(1 << 20)
            if not data:
                raise EOFError
            self._messages += [decode_message(frame, TO_HOST) for frame in self._decoder.feed(data)]
        return self._messages.pop(0)

    def close(self) -> None:
        """End the kernel, and programs that an interrupt kept it from ending: they would hold its output open."""
        self._channel.close()
        if self.process.returncode is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate()

    @property
    def _stdout(self) -> int:
        assert self.process.stdout is not None
        return self.process.stdout.fileno()

    @property
    def _stderr(self) -> int:
        assert self.process.stderr is not None
        return self.process.stderr.fileno()


def _read_all(descriptor: int) -> bytes:
    data = b""
    while select.select([descriptor], [], [], 0)[0]:
        part = os.read(descriptor, 1 << 16)
        if not part:
            break
        data += part
    return data
