"""Runs cells and keeps their state: the loop of an interpreter that serves one channel.

The channel is a socket to the host. What cells print goes to the process's own output; results, displays and
errors go through the channel. A cell is interrupted by SIGINT, as on a terminal.

Cells share this process and may break anything in it. What they are likely to break by accident (built-in names,
modules, standard streams, descriptors, the recursion limit) does not end the kernel.
"""

from __future__ import annotations

import os
import select
import sys
from _thread import get_ident as _thread_id
from base64 import b64encode as _base64
from os import _exit, getpid
from os import close as _close
from os import dup2 as _dup2
from os import write as _write
from typing import Any, Callable, ContextManager

from atoll_guest.channel import Channel, ChannelClosed
from atoll_guest.interrupts import Interrupts
from atoll_guest.messages import Message, mark
from atoll_guest.own_builtins import use_own_builtins
from atoll_guest.streams import Streams
from atoll_guest.tracebacks import plain_traceback, release_memory, safe_text

use_own_builtins(globals())

_CHANNEL_NUMBERS = (200, 24)
# What the kernel's own work needs after a cell.
_LEAST_RECURSION = 500
_FAILED = 70

_get_recursion_limit, _set_recursion_limit = sys.getrecursionlimit, sys.setrecursionlimit
_poll = select.poll


class Kernel:
    """One interpreter behind one channel."""

    def __init__(self, executor: Any, language: str = "python") -> None:
        self._executor = executor
        self._language = language
        self._streams = Streams()
        self._interrupts = Interrupts()
        self._channel = Channel(-1)
        self._pid = 0
        self._main_thread = _thread_id()
        self._cells_recursion_limit = 0
        self._handlers: dict[str, Callable[[Message], None]] = {
            "welcome": self._welcome,
            "execute": self._execute,
            "complete": self._complete,
            "inspect": self._inspect,
            "ping": self._ping,
        }

    def install(self) -> None:
        """Make this process's streams and signals those of a kernel."""
        self._streams.install()
        self._interrupts.install()
        self._executor.connect(self)
        os.register_at_fork(after_in_child=self._become_copy)

    def serve(self, descriptor: int, *, has_said_hello: bool = False) -> None:
        """Say hello over a descriptor and serve until its end; this process has no other purpose."""
        reason = ""
        try:
            self._move(descriptor)
            if not has_said_hello:
                self._channel.hello(self._language)
            while True:
                self.serve_one()
        except ChannelClosed as error:
            reason = str(error)
        except BaseException as error:  # noqa: BLE001 - the host waits for an answer that will not come
            reason = f"{type(error).__name__}: {safe_text(error)}"
        if reason:
            _write(2, f"the kernel cannot go on: {reason}\n".encode("utf-8", "replace"))
        _exit(_FAILED if reason else 0)

    def attach(self, descriptor: int) -> None:
        """Begin anew with this as the channel's descriptor."""
        self._pid = getpid()
        self._channel = Channel(descriptor)

    def serve_one(self) -> None:
        """Wait for a request and answer it."""
        message = self._channel.receive()
        handler = self._handlers.get(message["type"])
        if handler is not None:
            handler(message)

    def _move(self, descriptor: int) -> None:
        """Take a channel out of the way of what cells open, and of what they close by number."""
        self._pid = getpid()
        self._channel.descriptor = descriptor
        for number in _CHANNEL_NUMBERS:
            try:
                self._streams.keep_copies(number + 1)
                self._channel.descriptor = _dup2(descriptor, number, False)
            except OSError:  # beyond what may be open here
                continue
            _close(descriptor)
            break

    def _welcome(self, message: Message) -> None:
        self._channel.acks = message.get("acks") is True
        if message.get("env"):
            os.environ.update(message["env"])
        if message.get("cwd"):
            os.chdir(message["cwd"])

    def as_a_whole(self) -> ContextManager[None]:
        """Return what holds a Ctrl-C back until a part of a cell's work is done."""
        return self._interrupts

    def is_interrupted(self) -> bool:
        """Whether a Ctrl-C has come that is held back."""
        return self._interrupts.is_pending

    # --- cells -------------------------------------------------------------------------------------------

    def _execute(self, message: Message) -> None:
        self._channel.request = message["id"]
        count = self._executor.count
        self._lower_recursion_limit()
        error = self._attempt(self._run_cell, message["code"])
        if getpid() != self._pid:
            self._streams.repair()
            _end_copy(error)
        if message["silent"]:
            self._executor.count = count
        if error is None:
            status = "ok"
        else:
            status = "interrupted" if isinstance(error, KeyboardInterrupt) else "error"
            self._report(error)
        end = {"type": "end", "status": status, "count": count}
        self._channel.send_last(end, self._streams.repair)

    def _run_cell(self, code: str) -> BaseException | None:
        try:
            error: BaseException | None = self._executor.run(code, self._show)
            return error
        finally:
            self._streams.flush()

    def _attempt(self, function: Callable[[Any], Any], argument: Any) -> Any:
        """Call a function that Ctrl-C may end; return what it does, or the exception that ended it."""
        interrupts = self._interrupts
        interrupts.forget()
        try:
            # Twice, because a signal may come in between.
            try:
                interrupts.allow()
                return function(argument)
            finally:
                interrupts.held = True
        except BaseException as error:  # noqa: BLE001 - whatever ended it is its result
            interrupts.held = True
            return error
        finally:
            interrupts.hold()
            self._raise_recursion_limit()

    def _raise_recursion_limit(self) -> None:
        limit = _get_recursion_limit()
        if limit < _LEAST_RECURSION:
            self._cells_recursion_limit = limit
            _set_recursion_limit(_LEAST_RECURSION)

    def _lower_recursion_limit(self) -> None:
        limit, self._cells_recursion_limit = self._cells_recursion_limit, 0
        if limit:
            _set_recursion_limit(limit)

    def _show(self, bundle: tuple[dict[str, Any], dict[str, Any]]) -> None:
        data, metadata = bundle
        message = {"type": "result", "data": as_text(data), "metadata": metadata}
        with self._interrupts:
            self._channel.put_off(message)

    def _report(self, error: BaseException) -> None:
        # What is opened for its traceback must not come to be a standard stream.
        self._streams.repair()
        if isinstance(error, MemoryError):
            release_memory(error)
        value = self._attempt(safe_text, error)
        traceback = None
        if isinstance(value, str):
            traceback = self._attempt(self._executor.traceback, error)
        else:
            value = "(interrupted while its text was made)"
        if not isinstance(traceback, list):
            traceback = plain_traceback(error, value)
        fields = {"name": type(error).__name__, "value": value, "traceback": traceback}
        self._channel.put_off({"type": "error", **fields})

    # --- displays ------------------------------------------------------------------------------------------

    def display(
        self,
        data: dict[str, Any],
        metadata: dict[str, Any],
        transient: dict[str, Any] | None = None,
        update: bool = False,
    ) -> None:
        """Show something in the midst of a cell, at this place in its output.

        Between cells, where a thread may still be at work, it is shown as text.
        """
        message: Message = {"type": "display", "data": as_text(data), "metadata": metadata}
        if transient:
            message["transient"] = transient
        if update:
            message["update"] = True
        if not self._send_here(message) and sys.stdout is not None:
            sys.stdout.write(f"{data.get('text/plain', '')}\n")

    def clear(self, wait: bool) -> None:
        """Ask for what was shown so far to be cleared: at once, or with the next that is shown."""
        self._send_here({"type": "clear", "wait": bool(wait)})

    def _send_here(self, message: Message) -> bool:
        """Send a message and mark its place in the output; False if no cell runs."""
        self._check_original("display; it can print")
        self._streams.flush()
        if _thread_id() != self._main_thread:
            # Signals are the main thread's; this one cannot be interrupted.
            return self._channel.send(message, self._mark)
        with self._interrupts:
            is_sent = self._channel.send(message, self._mark)
        while self._channel.has_to_wait:
            self._await("ack")
        return is_sent

    def _mark(self, request: str, seq: int) -> None:
        self._streams.write_out(mark(request, seq))

    # --- questions -----------------------------------------------------------------------------------------

    def _complete(self, message: Message) -> None:
        self._answer(message, lambda ask: self._executor.complete(ask["code"], ask["cursor"]))

    def _inspect(self, message: Message) -> None:
        self._answer(message, lambda ask: self._executor.inspect(ask["code"], ask["cursor"]))

    def _ping(self, message: Message) -> None:
        self._answer(message, lambda ask: {})

    def _answer(self, message: Message, find: Callable[[Message], dict[str, Any]]) -> None:
        self._channel.request = message["id"]
        content = self._attempt(find, message)
        if not isinstance(content, dict):
            content = {"error": f"{type(content).__name__}: {safe_text(content)}"}
        self._channel.send_last({"type": "reply", "content": content}, self._streams.repair)

    def ask_input(self, prompt: str, password: bool) -> str:
        """Ask the host for a line of input; raise `EOFError` if nobody is there."""
        self._check_original("ask for input")
        if _thread_id() != self._main_thread:
            raise EOFError("only a cell itself can ask for input, not a thread that it started")
        self._streams.flush()
        with self._interrupts:
            self._channel.send({"type": "input_request", "prompt": prompt, "password": password})
        while True:
            answer = self._await("input")
            if answer is not None and answer["id"] == self._channel.request:
                break
        if answer.get("eof") is True:
            raise EOFError("nobody is there to answer; give input in the code or in a file")
        return str(answer["text"])

    def _await(self, kind: str) -> Message | None:
        """Wait in the midst of a cell until the host says something; return it if it is of this kind."""
        waiting = _poll()
        waiting.register(self._channel.descriptor, select.POLLIN)
        # Ctrl-C may end this wait, but not come between reading and keeping what was read.
        waiting.poll()
        with self._interrupts:
            return self._channel.receive_if(kind)

    # --- copies --------------------------------------------------------------------------------------------

    def _become_copy(self) -> None:
        """Let a forked copy of this process have no part in the protocol."""
        descriptor, self._channel.descriptor = self._channel.descriptor, -1
        if descriptor >= 0:
            _close(descriptor)

    def _check_original(self, what: str) -> None:
        if self._channel.descriptor < 0:
            raise RuntimeError(f"this is a forked copy of the kernel, which cannot {what}")


def take_channel() -> int:
    """Return the channel that a program finds as its standard input, which is empty from then on."""
    channel = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    _close(nothing)
    return channel


def _end_copy(error: BaseException | None) -> None:
    """End a forked copy that came to the end of the cell."""
    if isinstance(error, SystemExit):
        _exit(error.code if type(error.code) is int else 0 if error.code is None else 1)
    lines = [] if error is None else plain_traceback(error, safe_text(error))
    lines.append("a forked copy of the kernel came to the end of its cell and ends; use os._exit()")
    _write(2, "".join(f"{line}\n" for line in lines).encode("utf-8", "replace"))
    _exit(0 if error is None else 1)


def as_text(data: dict[str, Any]) -> dict[str, Any]:
    """Return a bundle whose bytes are base64, as notebooks have them."""
    return {
        kind: _base64(value).decode("ascii") if type(value) is bytes else value
        for kind, value in data.items()
    }
