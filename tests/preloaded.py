"""Starts `atoll …` as a process of its own, forked from one that has loaded it already: loading takes most of a second."""

from __future__ import annotations

import atexit
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib import import_module
from typing import Any, NoReturn, TextIO, cast

_MODULES = ("atoll.cli.up", "atoll.cli.serving", "sqlalchemy.dialects.sqlite.aiosqlite")
_MESSAGE_BYTES = 1 << 16
_STREAMS = (0, 1, 2)
# In its environment: the list of a cgroup that it enters before anything else.
ENTER_CGROUP = "ENTER_CGROUP"


class Started:
    """A process, with what the tests use of `subprocess.Popen`."""

    def __init__(self, pid: int, handle: int, status: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._handle = handle
        self._status = status

    def poll(self) -> int | None:
        """Return how it ended, or None."""
        return self._look(0)

    def wait(self, timeout: float | None = None) -> int:
        """Return how it ended, once it has."""
        code = self._look(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(["atoll"], timeout or 0.0)
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            try:
                signal.pidfd_send_signal(self._handle, number)
            except ProcessLookupError:
                return  # it has just ended

    def terminate(self) -> None:
        """Ask it to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it."""
        self.send_signal(signal.SIGKILL)

    def _look(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._status], [], [], timeout)[0]:
            text = os.read(self._status, 16)
            assert text, "the process that had started it is gone"
            self.returncode = int(text)
            os.close(self._status)
            os.close(self._handle)
        return self.returncode

    def __del__(self) -> None:
        if self.returncode is None:
            os.close(self._status)
            os.close(self._handle)


def start(words: Sequence[str], env: Mapping[str, str], stdout: int, stderr: int) -> Started:
    """Start `atoll` with these words and nothing to read."""
    starter, process = _starter()
    # What the loader or the interpreter has to read takes a new program.
    is_anew = any(
        name.startswith(("LD_", "PYTHON")) and env[name] != os.environ.get(name) for name in env
    )
    request = json.dumps({"words": words, "env": dict(env), "is_anew": is_anew}).encode()
    with open(os.devnull, "rb") as nothing:
        streams = [nothing.fileno(), stdout, stderr]
        try:
            return _ask(starter, request, streams)
        except ConnectionError:
            # Whatever ended it is no fault of what is tested now, but should be known.
            sys.stderr.write(f"the process that had loaded everything ended: {process.wait()}\n")
            _starter.cache_clear()
            return _ask(_starter()[0], request, streams)


def _ask(starter: socket.socket, request: bytes, streams: Sequence[int]) -> Started:
    socket.send_fds(starter, [request], streams)
    answer, fds, _flags, _address = socket.recv_fds(starter, _MESSAGE_BYTES, 2)
    if not answer:
        raise ConnectionResetError("it ended before it answered")
    return Started(int(answer), *fds)


def helpers() -> frozenset[int]:
    """Return the processes that belong to no test."""
    return frozenset({_starter()[1].pid}) if _starter.cache_info().currsize else frozenset()


@cache
def _starter() -> tuple[socket.socket, subprocess.Popen[bytes]]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        command = [sys.executable, "-P", __file__, str(theirs.fileno())]
        process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
    atexit.register(_end, ours, process)
    return ours, process


def _end(starter: socket.socket, process: subprocess.Popen[bytes]) -> None:
    starter.close()
    process.wait()


# --- the process that has loaded everything -----------------------------------------------------------------


def serve(requests: socket.socket) -> None:
    """Fork for each request, and tell how those ended; until nobody is left to ask."""
    ended, wakeup = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wakeup)
    statuses: dict[int, int] = {}
    while True:
        ready, _, _ = select.select([requests.fileno(), ended], [], [])
        if ended in ready:
            os.read(ended, 4096)
            for pid, code in _reap():
                # Whoever had it started may not want to know any more.
                with suppress(BrokenPipeError):
                    os.write(statuses[pid], str(code).encode())
                os.close(statuses.pop(pid))
        if requests.fileno() in ready and not _answer(requests, statuses):
            return


def _answer(requests: socket.socket, statuses: dict[int, int]) -> bool:
    message, streams, _flags, _address = socket.recv_fds(requests, _MESSAGE_BYTES, len(_STREAMS))
    if not message:
        return False
    pid = os.fork()
    if not pid:
        _become(json.loads(message), streams)
    status, write_end = os.pipe2(os.O_CLOEXEC)
    handle = os.pidfd_open(pid)
    statuses[pid] = write_end
    socket.send_fds(requests, [str(pid).encode()], [handle, status])
    for fd in (*streams, handle, status):
        os.close(fd)
    return True


def _become(request: Mapping[str, Any], streams: Sequence[int]) -> NoReturn:
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for stream, fd in zip(_STREAMS, streams, strict=True):
        os.dup2(fd, stream)
    os.closerange(_STREAMS[-1] + 1, 1 << 16)
    if entry := request["env"].pop(ENTER_CGROUP, None):
        with open(entry, "w") as processes:
            processes.write("0")
    if request["is_anew"]:
        argv = [sys.executable, "-P", "-m", "atoll", *request["words"]]
        os.execve(sys.executable, argv, request["env"])
    # Those there are know too much about what they led to before.
    sys.stdin, sys.stdout = _open(0, "r"), _open(1, "w")
    sys.stderr = _open(2, "w", buffering=1)
    os.environ.clear()
    os.environ.update(request["env"])
    sys.argv = ["atoll", *request["words"]]
    import_module("atoll.cli.main").main()
    raise AssertionError("it leaves by itself")


def _open(stream: int, mode: str, buffering: int = -1) -> TextIO:
    return cast(TextIO, os.fdopen(stream, mode, buffering, closefd=False))


def _reap() -> Iterator[tuple[int, int]]:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        yield pid, os.waitstatus_to_exitcode(status)


if __name__ == "__main__":
    for name in _MODULES:
        import_module(name)
    gc.freeze()
    serve(socket.socket(fileno=int(sys.argv[1])))
