"""One program uses sandboxes from many threads and event loops at once, is forked, and gets Ctrl-C in the middle."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import anyio
import pytest

from atoll import AsyncSandbox, Sandbox
from atoll.errors import Conflict
from atoll.model.kernel import Cell, CellStatus

_SECONDS = 60.0


def at_once(*jobs: Callable[[], object]) -> None:
    """Run all in threads of their own, begun together; raise what any of them raises."""
    together = threading.Barrier(len(jobs))

    def run(job: Callable[[], object]) -> None:
        together.wait(_SECONDS)
        job()

    with ThreadPoolExecutor(len(jobs)) as pool:
        for done in [pool.submit(run, job) for job in jobs]:
            done.result()


# --- threads ----------------------------------------------------------------------------------------------


def test_many_threads_use_one_sandbox_for_everything() -> None:
    with Sandbox() as sandbox:
        sandbox.run_code("total = 0").check()

        def work(number: int) -> None:
            for turn in range(10):
                sandbox.run_code("total += 1").check()
                path = f"{number}-{turn}"
                sandbox.files.write(path, path)
                assert sandbox.files.read(path) == path.encode()
                printed = sandbox.commands.run(["cat", path]).check().stdout
                assert printed == path.encode()

        at_once(*(lambda number=number: work(number) for number in range(8)))
        assert sandbox.run_code("total").text == "80"


def test_threads_get_the_answers_to_their_own_cells() -> None:
    with Sandbox() as sandbox:

        def ask(number: int) -> None:
            for turn in range(50):
                printed: list[str] = []
                cell = sandbox.run_code(
                    f"print({number}, {turn})\n({number}, {turn})", on_stdout=printed.append
                )
                assert cell.text == f"({number}, {turn})"
                assert cell.stdout == "".join(printed) == f"{number} {turn}\n"

        at_once(*(lambda number=number: ask(number) for number in range(8)))


def test_threads_that_use_a_sandbox_first_at_the_same_moment_get_one() -> None:
    for _ in range(10):
        sandbox = Sandbox()
        texts: list[str | None] = []
        at_once(*[lambda: texts.append(sandbox.run_code("id(get_ipython())").text)] * 6)  # noqa: B023
        sandbox.destroy()
        assert len(set(texts)) == 1


def test_a_thread_may_destroy_what_another_uses() -> None:
    for _ in range(10):
        sandbox = Sandbox.create()
        ready = threading.Event()
        ends: list[object] = []

        def use() -> None:
            try:
                code = "print(1, flush=True)\nimport time\ntime.sleep(1000)"
                ends.append(sandbox.run_code(code, on_stdout=lambda _: ready.set()))  # noqa: B023
            except Conflict as error:
                ends.append(error)  # noqa: B023

        thread = threading.Thread(target=use)
        thread.start()
        assert ready.wait(_SECONDS)
        sandbox.destroy()
        thread.join(_SECONDS)
        assert not thread.is_alive()
        assert len(ends) == 1


# --- event loops ------------------------------------------------------------------------------------------


def test_event_loops_and_threads_work_side_by_side() -> None:
    async def in_loop() -> None:
        async with AsyncSandbox() as one, AsyncSandbox() as other:
            for turn in range(10):
                cells = await asyncio.gather(
                    one.run_code(f"x = {turn}\nx"), other.run_code(f"x = -{turn}\nx")
                )
                assert [cell.text for cell in cells] == [str(turn), str(-turn)]

    def in_thread() -> None:
        with Sandbox() as sandbox:
            for turn in range(10):
                assert sandbox.run_code(f"{turn} * 2").text == str(turn * 2)

    at_once(*[lambda: asyncio.run(in_loop()), in_thread] * 4)


def test_one_sandbox_may_be_used_from_several_event_loops() -> None:
    sandbox = asyncio.run(AsyncSandbox.create())

    async def add() -> None:
        for _ in range(10):
            (await sandbox.run_code("total = globals().get('total', 0) + 1")).check()

    at_once(*[lambda: asyncio.run(add())] * 6)
    assert asyncio.run(sandbox.run_code("total")).text == "60"
    asyncio.run(sandbox.destroy())


async def test_waiting_for_a_cell_leaves_the_event_loop_free() -> None:
    async with AsyncSandbox() as sandbox:
        running, ready = start_endless(sandbox)
        await asyncio.wait_for(ready.wait(), _SECONDS)
        for _ in range(100):
            await asyncio.sleep(0)
        assert not running.done()
        await sandbox.interrupt()
        assert (await running).status is CellStatus.INTERRUPTED


def start_endless(sandbox: AsyncSandbox) -> tuple[asyncio.Task[Cell], asyncio.Event]:
    """Run a cell that never ends by itself; return it with the event that it has begun."""
    ready = asyncio.Event()
    loop = asyncio.get_running_loop()
    cell = sandbox.run_code(
        "print(1, flush=True)\nwhile True: pass",
        on_stdout=lambda _: loop.call_soon_threadsafe(ready.set),
    )
    return asyncio.create_task(cell), ready


async def test_quick_cells_in_a_row_leave_others_their_turns() -> None:
    async with AsyncSandbox() as sandbox:
        turns = 0

        async def count_turns() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        counting = asyncio.create_task(count_turns())
        for _ in range(200):
            before = turns
            await sandbox.run_code("pass")
            assert turns > before
        counting.cancel()


async def test_a_cell_that_is_cancelled_before_it_begins_does_not_run() -> None:
    async with AsyncSandbox() as sandbox:
        await sandbox.run_code("begun = False")
        with anyio.CancelScope() as scope:
            scope.cancel()
            await sandbox.run_code("begun = True")
        assert scope.cancelled_caught
        assert (await sandbox.run_code("begun")).text == "False"


async def test_the_waiting_kind_works_inside_a_running_loop() -> None:
    """As in a notebook, where there is always one."""
    with Sandbox() as sandbox:
        assert sandbox.run_code("6 * 7").text == "42"
        assert sandbox.commands.run("echo hello").stdout == b"hello\n"
        async with AsyncSandbox() as other:
            assert (await other.run_code("1")).text == sandbox.run_code("1").text


async def test_a_cancelled_cell_is_interrupted_and_the_session_goes_on() -> None:
    async with AsyncSandbox() as sandbox:
        (await sandbox.run_code("kept = 1")).check()
        running, ready = start_endless(sandbox)
        await asyncio.wait_for(ready.wait(), _SECONDS)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert (await sandbox.run_code("kept")).text == "1"


# --- forks ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "use",
    [
        lambda sandbox: sandbox.run_code("1"),
        lambda sandbox: sandbox.commands.run("true"),
        lambda sandbox: sandbox.files.list(),
        lambda sandbox: sandbox.interrupt(),
        lambda sandbox: sandbox.restart(),
        lambda sandbox: sandbox.destroy(),
    ],
    ids=["run_code", "commands", "files", "interrupt", "restart", "destroy"],
)
def test_a_fork_cannot_use_its_parent_s_sandbox(use: Callable[[Sandbox], object]) -> None:
    def conflicts() -> bool:
        try:
            use(sandbox)
        except Conflict as error:
            return "fork" in error.message
        return False

    with Sandbox() as sandbox:
        sandbox.run_code("x = 1").check()
        assert in_fork(conflicts)
        assert sandbox.run_code("x").text == "1"


def test_a_fork_makes_sandboxes_of_its_own() -> None:
    def make() -> bool:
        with Sandbox() as own:
            return own.run_code("6 * 7").text == "42"

    with Sandbox() as sandbox:
        sandbox.run_code("x = 1").check()
        assert in_fork(make)
        assert sandbox.run_code("x").text == "1"


def in_fork(question: Callable[[], bool]) -> bool:
    """Return what a forked copy of this process answers."""
    pid = os.fork()
    if pid == 0:
        signal.alarm(int(_SECONDS))
        try:
            os._exit(0 if question() else 1)
        finally:
            os._exit(2)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


# --- Ctrl-C -----------------------------------------------------------------------------------------------


@contextmanager
def pressed_once(ready: threading.Event) -> Iterator[None]:
    """Send Ctrl-C to this thread as soon as something is ready."""

    def press() -> None:
        if ready.wait(_SECONDS):
            os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=press)
    thread.start()
    try:
        yield
    finally:
        thread.join()


@pytest.mark.parametrize(
    "code",
    ["import time\ntime.sleep(1000)", "while True: pass", "import os\nos.read(os.pipe()[0], 1)"],
)
def test_ctrl_c_interrupts_the_cell_and_keeps_variables(code: str) -> None:
    with Sandbox() as sandbox:
        for turn in range(5):
            sandbox.run_code(f"kept = {turn}").check()
            ready = threading.Event()
            with pressed_once(ready), pytest.raises(KeyboardInterrupt):
                begun = "print(1, flush=True)\n" + code
                sandbox.run_code(begun, on_stdout=lambda _, ready=ready: ready.set())  # type: ignore[misc]
            assert sandbox.run_code("kept").text == str(turn)


def test_ctrl_c_on_a_terminal_reaches_every_process_and_harms_none() -> None:
    """There it is sent to the whole process group, Atoll's own parts included."""
    program = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert program.stdout is not None
    for _ in range(3):
        assert program.stdout.readline() == "running\n"
        time.sleep(0.05)
        os.killpg(program.pid, signal.SIGINT)
        assert program.stdout.readline() == "interrupted, kept 1\n"
    out, errors = program.communicate(timeout=_SECONDS)
    assert (program.returncode, out, errors) == (0, "", "")


_PROGRAM = """
from atoll import Sandbox
sandbox = Sandbox.create()
sandbox.run_code("kept = 1")
say = lambda text: print(text.strip(), flush=True)
for _ in range(3):
    try:
        sandbox.run_code("print('running', flush=True)\\nwhile True: pass", on_stdout=say)
    except KeyboardInterrupt:
        print("interrupted, kept", sandbox.run_code("kept").text, flush=True)
"""
