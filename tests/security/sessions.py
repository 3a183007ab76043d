"""Live Python sessions under attack: attacks as cells, and a neighbour who must not notice."""

from __future__ import annotations

import ctypes
import gc
import queue
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from atoll import Sandbox
from atoll.model.kernel import Cell
from tests.security.guest import ATTACKS, FOLDER, PACKAGE

_MIB = 1 << 20
_PAUSE_SECONDS = 0.01


def put_attacks(sandbox: Sandbox, *names: str) -> None:
    """Write Python attacks into a sandbox, under the names that they have here."""
    for name in ("kernel", *names):
        source = (ATTACKS / f"{name}.py").read_bytes()
        sandbox.files.write(f"{FOLDER}/{name}.py", source)


def attack_cell(name: str, **options: object) -> str:
    """Return a cell that runs `main` of an attack that was put there, in the kernel's own process."""
    arguments = ", ".join(f"{option}={value!r}" for option, value in options.items())
    return (
        "import sys\n"
        "sys.path.insert(0, '/workspace')\n"
        f"from {PACKAGE}.{name} import main\n"
        f"main({arguments})\n"
    )


def run_within(seconds: float, sandbox: Sandbox, code: str, **options: Any) -> Cell:
    """Run a cell in a thread that may be left behind, so that one that hangs fails a test but does not hang it."""
    answers: queue.SimpleQueue[Cell | BaseException] = queue.SimpleQueue()

    def run() -> None:
        try:
            answers.put(sandbox.run_code(code, **options))
        except BaseException as error:  # noqa: BLE001 - it is raised where it was waited for
            answers.put(error)

    threading.Thread(target=run, daemon=True).start()
    try:
        answer = answers.get(timeout=seconds)
    except queue.Empty:
        raise AssertionError(f"no answer within {seconds:g} s") from None
    if isinstance(answer, BaseException):
        raise answer
    return answer


class Neighbour:
    """Somebody else's session, which counts in a thread of its own until it is told to stop."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.count = 0
        self.surprises: list[str] = []
        self._sandbox = sandbox
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._work)

    def start(self) -> None:
        """Begin to count."""
        self._sandbox.run_code("n = 0").check()
        self._thread.start()

    def stop(self) -> None:
        """End, and fail if anything was not as it should have been."""
        self._stopped.set()
        self._thread.join()
        assert self.surprises == []
        assert self.count > 0

    def _work(self) -> None:
        while not self._stopped.wait(_PAUSE_SECONDS) and not self.surprises:
            try:
                text = self._sandbox.run_code("n += 1\nn").text
            except Exception as error:  # noqa: BLE001 - whatever it is, it is told to the test
                self.surprises.append(repr(error))
                return
            self.count += 1
            if text != str(self.count):
                self.surprises.append(f"{text} instead of {self.count}")


@contextmanager
def neighbours(count: int = 1) -> Iterator[list[Neighbour]]:
    """Let neighbours work beside what is done here; fail if they notice anything."""
    sandboxes = [Sandbox.create() for _ in range(count)]
    working = [Neighbour(sandbox) for sandbox in sandboxes]
    try:
        for each in working:
            each.start()
        try:
            yield working
        finally:
            for each in working:
                each.stop()
    finally:
        for sandbox in sandboxes:
            sandbox.destroy()


class Growth:
    """How far this process's memory has grown at most since this was made."""

    def __init__(self) -> None:
        # What earlier tests have used and given back must not hide what this one uses.
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
        self._before = _status_bytes("VmRSS")

    @property
    def mib(self) -> float:
        """The growth at its peak."""
        return (_status_bytes("VmHWM") - self._before) / _MIB


def _status_bytes(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"the kernel does not tell {name}")


def until_alone(sandbox: Sandbox, patience: float = 60.0) -> list[str]:
    """Wait until a session has no processes beside it but Atoll's own; return what is left."""
    deadline = time.monotonic() + patience
    while True:
        others = sandbox.run_code(_LIST_OTHERS).check().stdout.splitlines()
        if not others or time.monotonic() > deadline:
            return others
        time.sleep(0.05)


_LIST_OTHERS = """
import os
for pid in filter(str.isdigit, os.listdir("/proc")):
    try:
        with open(f"/proc/{pid}/stat") as file:
            facts = file.read()
    except OSError:
        continue
    if int(pid) not in (1, os.getpid(), os.getppid()) and "(files)" not in facts:
        print(facts.strip())
"""
