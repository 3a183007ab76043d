"""Runs cells and keeps their state: the loop of an interpreter that serves one channel.

The channel is a socket to the host. What cells print goes to the process's own output; results, displays and
errors go through the channel. A cell is interrupted by SIGINT, as on a terminal.
"""

from __future__ import annotations

import io
import os
import signal
import socket
import sys
from collections import deque
from typing import Any, Callable

from atoll_guest.frames import MAX_FRAME_BYTES, FrameDecoder
from atoll_guest.messages import TO_KERNEL, VERSIONS, Message, decode_message, encode_message, mark

# What may wait for the host's word that it took note, before a cell has to wait, too.
_MOST_KEPT_BYTES = 32 << 20
_CHUNK = 1 << 16
# Room for the rest of a message around its data.
_MOST_DATA_BYTES = MAX_FRAME_BYTES - 65536


class Kernel:
    """One interpreter behind one channel."""

    def __init__(self, channel: socket.socket, executor: Any) -> None:
        self._channel = channel
        self._executor = executor
        self._decoder = FrameDecoder()
        self._waiting: deque[Message] = deque()
        self._kept: deque[tuple[int, bytes]] = deque()
        self._kept_bytes = 0
        self._seq = 0
        self._current = ""

    def serve(self) -> None:
        """Say hello and serve until the channel ends."""
        self._channel.sendall(
            encode_message({"type": "hello", "versions": list(VERSIONS), "language": "python"})
        )
        handlers: dict[str, Callable[[Message], None]] = {
            "execute": self._execute,
            "complete": self._complete,
            "inspect": self._inspect,
            "ping": self._ping,
        }
        while True:
            message = self._receive()
            if message is None:
                return
            handler = handlers.get(message["type"])
            if handler is not None:
                handler(message)

    # --- cells -------------------------------------------------------------------------------------------

    def _execute(self, message: Message) -> None:
        self._current = message["id"]
        count = self._executor.count
        error = self._run_interruptible(message["code"])
        _flush_output()
        if error is None:
            status = "ok"
        else:
            status = "interrupted" if isinstance(error, KeyboardInterrupt) else "error"
            self._report(error)
        self._send("end", {"status": status, "count": count})
        self._current = ""

    def _run_interruptible(self, code: str) -> BaseException | None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            return self._executor.run(code, self._show)  # type: ignore[no-any-return]
        except KeyboardInterrupt as interrupt:
            return interrupt
        finally:
            # Between cells there is nothing to interrupt; a late signal must not end the kernel.
            signal.signal(signal.SIGINT, signal.SIG_IGN)

    def _show(self, bundle: tuple[dict[str, Any], dict[str, Any]]) -> None:
        data, metadata = bundle
        self._send("result", {"data": data, "metadata": metadata})

    def display(self, data: dict[str, Any], metadata: dict[str, Any]) -> None:
        """Show something in the midst of a cell, at this place in its output."""
        _flush_output()
        os.write(1, mark(self._current, self._seq + 1))
        self._send("display", {"data": data, "metadata": metadata})

    def _report(self, error: BaseException) -> None:
        try:
            traceback = self._executor.traceback(error)
        except Exception as failure:  # noqa: BLE001 - the error may be of any make
            traceback = [f"(the traceback could not be formatted: {type(failure).__name__})"]
        self._send(
            "error",
            {"name": type(error).__name__, "value": _safe_text(error), "traceback": traceback},
        )

    # --- questions -----------------------------------------------------------------------------------------

    def _complete(self, message: Message) -> None:
        self._current = message["id"]
        self._answer(lambda: self._executor.complete(message["code"], message["cursor"]))

    def _inspect(self, message: Message) -> None:
        self._current = message["id"]
        self._answer(lambda: self._executor.inspect(message["code"], message["cursor"]))

    def _ping(self, message: Message) -> None:
        self._current = message["id"]
        self._answer(dict)

    def _answer(self, ask: Callable[[], dict[str, Any]]) -> None:
        try:
            content = ask()
        except Exception as error:  # noqa: BLE001 - what is asked about may be of any make
            content = {"error": f"{type(error).__name__}: {_safe_text(error)}"}
        self._send("reply", {"content": content})

    def ask_input(self, prompt: str, password: bool) -> str:
        """Ask the host for a line of input, for `input()` and `getpass()`."""
        _flush_output()
        self._send("input_request", {"prompt": prompt, "password": password})
        while True:
            message = self._receive_one()
            if message is None:
                raise EOFError("nobody is there to answer")
            if message["type"] == "input" and message["id"] == self._current:
                return str(message["text"])
            self._waiting.append(message)

    # --- channel -------------------------------------------------------------------------------------------

    def _send(self, kind: str, fields: Message) -> None:
        self._seq += 1
        message = {"type": kind, "id": self._current, "seq": self._seq, **fields}
        frame = _encode_bounded(message)
        self._kept.append((self._seq, frame))
        self._kept_bytes += len(frame)
        self._channel.sendall(frame)
        while self._kept_bytes > _MOST_KEPT_BYTES:
            received = self._receive_one()
            if received is None:
                raise SystemExit(0)
            self._waiting.append(received)

    def _receive(self) -> Message | None:
        """Return the next request, or None at the channel's end."""
        if self._waiting:
            return self._waiting.popleft()
        return self._receive_one()

    def _receive_one(self) -> Message | None:
        while True:
            try:
                data = self._channel.recv(_CHUNK)
            except InterruptedError:
                continue
            except OSError:
                return None
            if not data:
                return None
            for frame in self._decoder.feed(data):
                message = decode_message(frame, TO_KERNEL)
                if not self._take_note(message):
                    self._waiting.append(message)
            if self._waiting:
                return self._waiting.popleft()

    def _take_note(self, message: Message) -> bool:
        """Handle what is not a request; a request may carry a note, too."""
        seen = message.get("seq", message.get("ack"))
        if type(seen) is int:
            while self._kept and self._kept[0][0] <= seen:
                self._kept_bytes -= len(self._kept.popleft()[1])
        if message["type"] == "welcome":
            os.environ.update(message.get("env", {}))
        if message["type"] == "resume":
            for _seq, frame in self._kept:
                self._channel.sendall(frame)
        return message["type"] in ("ack", "resume", "welcome")


def open_output() -> None:
    """Make standard output and error as Python has them on a terminal: shown line by line."""
    for descriptor, name in ((1, "stdout"), (2, "stderr")):
        raw = io.FileIO(descriptor, "w", closefd=False)
        stream = io.TextIOWrapper(
            io.BufferedWriter(raw, _CHUNK), "utf-8", "backslashreplace", "\n", line_buffering=True
        )
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _flush_output() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:  # noqa: BLE001, S112 - a cell may have put anything there
            continue


def _encode_bounded(message: Message) -> bytes:
    """Return the frame; what is too large, or no JSON, becomes a note that says so."""
    try:
        frame = encode_message(message)
    except (TypeError, ValueError, RecursionError) as error:
        note = f"(left out: {type(error).__name__}: {_safe_text(error)[:200]})"
    else:
        return frame
    if "data" in message:
        message = {**message, "data": {"text/plain": note}, "metadata": {}}
    elif "traceback" in message:
        message = {**message, "value": message["value"][:10000], "traceback": [note]}
    else:
        message = {**message, "content": {"error": note}}
    return encode_message(message)


def _safe_text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - its own text is what fails
        return f"<{type(error).__name__} whose text cannot be shown>"
