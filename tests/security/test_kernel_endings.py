"""Cells that are interrupted, time out or lose their kernel: what may survive does, and nobody else notices."""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from atoll import Sandbox
from atoll.model.kernel import Cell, CellStatus
from tests.campaigns import Campaign
from tests.security import measured
from tests.security.sessions import neighbours

pytestmark = pytest.mark.usefixtures("sdk")

_READY = "print('ready', flush=True)\n"
# What a cell can be doing when it is interrupted.
_OCCUPATIONS = {
    "sleep": f"import time\n{_READY}time.sleep(1000)",
    "loop": f"{_READY}while True: pass",
    "comprehension": f"{_READY}[x for x in iter(int, 1)]",
    "pipe": f"import os\nend, other = os.pipe()\n{_READY}os.read(end, 1)",
    "fifo": f"import os\nos.path.exists('f') or os.mkfifo('f')\n{_READY}open('f').read()",
    "accept": f"import socket\nserver = socket.create_server(('127.0.0.1', 0))\n{_READY}server.accept()",
    "subprocess": f"import subprocess\n{_READY}subprocess.run(['sleep', '1000'])",
    "shell": f"import subprocess\n{_READY}subprocess.run('sleep 1000; sleep 1000', shell=True)",
    "lock": f"import threading\nlock = threading.Lock()\nlock.acquire()\n{_READY}lock.acquire()",
    "queue": f"import queue\n{_READY}queue.Queue().get()",
    "print": f"{_READY}while True: print('x' * 1000)",
    "regular expression": f"import re\n{_READY}re.match('(a+)+$', 'a' * 50 + 'b')",
    "magic": f"{_READY}%time while True: pass",
}
# What does not heed interrupts.
_DEAF = {
    "C loop": "import itertools\nall(itertools.repeat(True))",
    "signals blocked": (
        "import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())\n"
        "while True: pass"
    ),
    "signals ignored": (
        "import signal, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\ntime.sleep(1000)"
    ),
    "caught": ("import time\nwhile True:\n    try: time.sleep(1)\n    except BaseException: pass"),
    "printing": (
        "import subprocess, time\n"
        "for _ in range(8): subprocess.Popen(['sh', '-c', 'trap \"\" INT; exec yes'])\n"
        "while True: time.sleep(1000)"
    ),
    "stopped": "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)\nwhile True: pass",
    "parent stopped": "import os, signal\nos.kill(os.getppid(), signal.SIGSTOP)\nwhile True: pass",
}
_SHARE_KEPT = 0.99
_LIMIT_SECONDS = 0.2
# An interrupt, a second of patience and a kill, on a machine that does other things, too.
_BOUND_SECONDS = 30.0


class Session:
    """A sandbox with a variable in its session, which may get lost."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        self._word = ""

    def keep(self) -> None:
        """Put a new variable into the session."""
        self._word = secrets.token_hex(8)
        self.sandbox.run_code(f"kept = {self._word!r}").check()

    def is_kept(self) -> bool:
        """Whether the variable is there; the session answers in any case."""
        return self._look().check().text == repr(self._word)

    def is_kept_at_last(self) -> bool:
        """The same, once no interrupt is on its way any more."""
        while (cell := self._look()).status is CellStatus.INTERRUPTED:
            continue
        return cell.check().text == repr(self._word)

    def _look(self) -> Cell:
        return self.sandbox.run_code("globals().get('kept')")

    def run_until_ready(self, code: str, then: threading.Event) -> Cell:
        """Run a cell that says when it has begun."""
        return self.sandbox.run_code(code, timeout=_BOUND_SECONDS, on_stdout=lambda _: then.set())


@contextmanager
def session() -> Iterator[Session]:
    """A session with a variable."""
    with Sandbox() as sandbox:
        kept = Session(sandbox)
        kept.keep()
        yield kept


def interrupt_once(kept: Session, code: str, delay: float) -> Cell:
    """Interrupt a cell some time after it has begun."""
    ready = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(kept.run_until_ready, code, ready)
        assert ready.wait(_BOUND_SECONDS)
        time.sleep(delay)
        kept.sandbox.interrupt()
        return running.result()


@pytest.mark.timeout(3600)
def test_interrupts_leave_variables_alone(campaign: Campaign) -> None:
    count = campaign.count(1000)
    lost: Counter[str] = Counter()
    with neighbours(), session() as kept:
        for turn in range(count):
            occupation = list(_OCCUPATIONS)[turn % len(_OCCUPATIONS)]
            delay = campaign.random.choice([0, 0.0001, 0.001, 0.01])
            cell = interrupt_once(kept, _OCCUPATIONS[occupation], delay)
            if cell.status is not CellStatus.INTERRUPTED or not kept.is_kept():
                lost[f"{occupation}: {cell.status} {cell.death}"] += 1
                kept.keep()
    measured.FIGURES["interrupts"] = f"{count}, variables lost {lost.total()}: {dict(lost)}"
    assert lost.total() <= max(1, (1 - _SHARE_KEPT) * count)


@pytest.mark.timeout(3600)
def test_timeouts_leave_variables_alone(campaign: Campaign) -> None:
    count = campaign.count(500)
    lost: Counter[str] = Counter()
    with neighbours(), session() as kept:
        for turn in range(count):
            occupation = list(_OCCUPATIONS)[turn % len(_OCCUPATIONS)]
            timeout = campaign.random.uniform(0.02, 0.1)
            cell = kept.sandbox.run_code(_OCCUPATIONS[occupation], timeout=timeout)
            if cell.status is not CellStatus.TIMED_OUT or not kept.is_kept():
                lost[f"{occupation}: {cell.status} {cell.death}"] += 1
                kept.keep()
    measured.FIGURES["timeouts"] = f"{count}, variables lost {lost.total()}: {dict(lost)}"
    assert lost.total() <= max(1, (1 - _SHARE_KEPT) * count)


@pytest.mark.timeout(3600)
def test_a_burst_of_interrupts_leaves_variables_alone(campaign: Campaign) -> None:
    """As of somebody who keeps Ctrl-C pressed: the second one comes while the first is being dealt with."""
    count = campaign.count(1000)
    lost: Counter[str] = Counter()
    with session() as kept, ThreadPoolExecutor(1) as pool:
        for _ in range(count):
            running = pool.submit(kept.sandbox.run_code, "while True: pass", timeout=_BOUND_SECONDS)
            while not running.done():
                kept.sandbox.interrupt()
            cell = running.result()
            if cell.status is not CellStatus.INTERRUPTED or not kept.is_kept_at_last():
                lost[f"{cell.status} {cell.death}"] += 1
                kept.keep()
    measured.FIGURES["bursts of interrupts"] = f"{count}, variables lost: {dict(lost)}"
    assert lost.total() <= max(1, (1 - _SHARE_KEPT) * count)


@pytest.mark.timeout(3600)
def test_an_interrupt_before_the_first_cell_does_nothing(campaign: Campaign) -> None:
    for _ in range(campaign.count(400)):
        with Sandbox() as sandbox:
            sandbox.interrupt()
            time.sleep(0.01)
            cell = sandbox.run_code("6 * 7")
            assert (cell.text, cell.death) == ("42", "")


@pytest.mark.timeout(3600)
def test_an_interrupt_amid_a_large_result_leaves_variables_alone(campaign: Campaign) -> None:
    """Half of a frame would make the rest of the conversation unreadable."""
    with session() as kept:
        for _ in range(campaign.count(400)):
            delay = campaign.random.uniform(0, 0.03)
            cell = interrupt_once(kept, f"{_READY}'x' * 6_000_000", delay)
            assert cell.status in (CellStatus.OK, CellStatus.INTERRUPTED), cell.death
            assert kept.is_kept_at_last()


@pytest.mark.timeout(3600)
def test_an_interrupt_between_cells_does_nothing(campaign: Campaign) -> None:
    with session() as kept:
        for _ in range(campaign.count(1000)):
            kept.sandbox.interrupt()
            assert kept.is_kept()


@pytest.mark.timeout(3600)
def test_an_interrupt_that_comes_too_late_does_nothing(campaign: Campaign) -> None:
    """It is meant for the cell that ran when it was asked for, not for a later one."""
    with session() as kept:
        for _ in range(campaign.count(1000)):
            code = f"import time\n{_READY}time.sleep({campaign.random.uniform(0, 0.002)})"
            cell = interrupt_once(kept, code, campaign.random.uniform(0, 0.002))
            assert cell.status in (CellStatus.OK, CellStatus.INTERRUPTED)
            assert kept.is_kept()


@pytest.mark.parametrize("way", list(_DEAF))
def test_a_cell_that_heeds_nothing_loses_its_kernel_soon_after_its_timeout(way: str) -> None:
    with neighbours(), session() as kept:
        kept.sandbox.files.write("file", "content")
        begun = time.monotonic()
        cell = kept.sandbox.run_code(_DEAF[way], timeout=_LIMIT_SECONDS)
        late = time.monotonic() - begun - _LIMIT_SECONDS
        measured.FIGURES[f"answer after the timeout, {way}"] = f"{late:.2f} s late, {cell.status}"
        assert late < _BOUND_SECONDS
        assert cell.status in (CellStatus.DIED, CellStatus.TIMED_OUT)
        assert (cell.status is CellStatus.DIED) == bool(cell.death)
        assert kept.sandbox.run_code("open('file').read()").text == "'content'"


_EAT = "eaten = []\nwhile True: eaten.append(bytearray(1 << 20))"


# Without a cgroup it is Python that is refused memory, and it raises.
@pytest.mark.root_only
@pytest.mark.timeout(3600)
def test_sessions_that_run_out_of_memory_die_alone(campaign: Campaign) -> None:
    count = campaign.count(200)
    limits = {"memory": "96m", "workspace": "8m", "tmp": "8m", "home": "8m", "shm": "8m"}
    with neighbours(20), Sandbox(limits=limits) as sandbox:
        sandbox.files.write("file", "content")
        for _ in range(count):
            cell = sandbox.run_code(_EAT, timeout=_BOUND_SECONDS)
            assert cell.status is CellStatus.DIED, cell
            assert "ran out of memory" in cell.death
            assert sandbox.run_code("open('file').read()").text == "'content'"


_DEATHS = {
    "exit": "import os\nos._exit(3)",
    "crash": "import ctypes\nctypes.string_at(0)",
    "killed": "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)",
    "aborted": "import os\nos.abort()",
    "recursion in C": "import sys\nsys.setrecursionlimit(10**9)\nclass A:\n    def __repr__(self): return repr(self)\nrepr(A())",
    "replaced": "import os\nos.execv('/bin/true', ['true'])",
}  # fmt: skip


@pytest.mark.parametrize("way", list(_DEATHS))
def test_a_death_is_told_and_leaves_files_and_sandbox(way: str) -> None:
    with session() as kept:
        kept.sandbox.files.write("file", "content")
        process = kept.sandbox.commands.start("sleep 1000")
        cell = kept.sandbox.run_code(_DEATHS[way], timeout=_BOUND_SECONDS)
        assert cell.status is CellStatus.DIED, cell
        assert cell.death
        assert kept.sandbox.run_code("open('file').read()").text == "'content'"
        assert not kept.is_kept()
        assert kept.sandbox.commands.run(f"kill -0 {process.pid}").ok


@pytest.mark.timeout(3600)
def test_deaths_leave_nothing_on_the_host(campaign: Campaign) -> None:
    with Sandbox() as sandbox:
        sandbox.run_code("import os\nos._exit(1)")
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(campaign.count(2000)):
            assert sandbox.run_code("import os\nos._exit(1)").status is CellStatus.DIED
        sandbox.run_code("1").check()
        after = len(os.listdir("/proc/self/fd"))
    measured.FIGURES["descriptors of the host, before and after deaths"] = f"{before}, {after}"
    assert after < before + 20
