"""The embedded node works from many threads and loops, and says so where it cannot."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest

from atoll import AsyncSandbox, Sandbox
from atoll.errors import AtollError, Conflict
from tests.campaigns import Campaign


def test_threads_and_event_loops_share_one_node() -> None:
    texts: list[str | None] = []

    def wait(number: int) -> None:
        with Sandbox() as sandbox:
            texts.append(sandbox.run_code(f"{number} * 2").text)

    async def await_(number: int) -> None:
        async with AsyncSandbox() as sandbox:
            texts.append((await sandbox.run_code(f"{number} * 2")).text)

    threads = [threading.Thread(target=wait, args=(n,)) for n in range(4)]
    threads += [threading.Thread(target=asyncio.run, args=(await_(n),)) for n in range(4, 8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(texts, key=lambda text: int(text or 0)) == [str(n * 2) for n in range(8)]


def test_one_sandbox_may_be_used_from_several_threads() -> None:
    with Sandbox() as sandbox:
        sandbox.run_code("total = 0")
        threads = [
            threading.Thread(target=sandbox.run_code, args=("total += 1",)) for _ in range(10)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sandbox.run_code("total").text == "10"


def test_threads_that_use_a_new_sandbox_at_once_get_the_same_one() -> None:
    with ThreadPoolExecutor(8) as threads:
        sandbox = Sandbox()
        barrier = threading.Barrier(8)

        def use(number: int) -> bool:
            barrier.wait()
            sandbox.files.write(f"file{number}", "")
            return sandbox.run_code(f"x{number} = 1").ok

        assert all(threads.map(use, range(8)))
        assert len(sandbox.files.list()) == 8
        assert sandbox.run_code("sum([x0, x1, x2, x3, x4, x5, x6, x7])").text == "8"
        sandbox.destroy()


def test_a_sandbox_destroyed_while_it_is_being_made_stays_destroyed(campaign: Campaign) -> None:
    for _ in range(campaign.count(200)):
        sandbox = Sandbox()
        maker = threading.Thread(target=_try_to_use, args=(sandbox,))
        maker.start()
        sandbox.destroy()
        maker.join()
        with pytest.raises(Conflict):
            sandbox.run_code("1")
        assert sandbox.id not in [info.id for info in Sandbox.list()]


def _try_to_use(sandbox: Sandbox) -> None:
    with suppress(AtollError):
        sandbox.run_code("1")


def test_one_sandbox_may_be_used_from_several_event_loops() -> None:
    sandbox = AsyncSandbox()

    async def use() -> bool:
        cells = await asyncio.gather(*(sandbox.run_code("total += 1") for _ in range(5)))
        return all(cell.ok for cell in cells)

    async def begin() -> None:
        await sandbox.run_code("total = 0")

    async def finish() -> str | None:
        text = (await sandbox.run_code("total")).text
        await sandbox.destroy()
        return text

    asyncio.run(begin())
    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(lambda _: asyncio.run(use()), range(4)))
    assert asyncio.run(finish()) == "20"


async def test_the_waiting_form_works_where_a_loop_runs_already() -> None:
    # As in a notebook, whose cells run inside an event loop.
    with Sandbox() as sandbox:
        assert sandbox.run_code("6 * 7").text == "42"
        printed: list[str] = []
        sandbox.run_code("print(1)", on_stdout=printed.append)
        assert printed == ["1\n"]
        assert [type(event).__name__ for event in sandbox.stream_code("1")] == ["Bundle", "Cell"]
        assert sandbox.commands.run("echo hi").stdout == b"hi\n"


def test_a_cell_shows_itself_in_a_notebook() -> None:
    from IPython.core.formatters import DisplayFormatter

    make: Any = DisplayFormatter
    with Sandbox() as sandbox:
        cell = sandbox.run_code("from IPython.display import HTML\nHTML('<b>bold</b>')")
    assert cell.html == "<b>bold</b>"
    data, _metadata = make().format(cell.result)
    assert 'srcdoc="<b>bold</b>"' in data["text/html"]


def test_callbacks_are_called_in_the_callers_thread_and_may_use_the_sandbox() -> None:
    with Sandbox() as sandbox:
        threads = set()
        found = []

        def note(text: str) -> None:
            threads.add(threading.get_ident())
            found.append(sandbox.files.read_text("made"))

        sandbox.run_code("open('made', 'w').write('inside')\nprint(1)", on_stdout=note)
        sandbox.commands.run("echo 1", on_stdout=note)
        assert found == ["inside", "inside"]
        assert threads == {threading.get_ident()}


def test_a_cancelled_call_interrupts_the_cell_and_keeps_variables() -> None:
    async def work() -> str | None:
        async with AsyncSandbox() as sandbox:
            await sandbox.run_code("x = 5")
            up = asyncio.Event()
            code = "import time\nprint('up', flush=True)\ntime.sleep(1000)"
            running = asyncio.create_task(sandbox.run_code(code, on_stdout=lambda _: up.set()))
            await up.wait()
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            return (await sandbox.run_code("x")).text

    assert asyncio.run(work()) == "5"


def test_a_forked_copy_is_told_that_it_is_one() -> None:
    with Sandbox() as sandbox:
        assert sandbox.run_code("1").ok
        pid = os.fork()
        if pid == 0:
            try:
                sandbox.run_code("1")
            except Conflict as error:
                os._exit(0 if "fork" in error.message else 2)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert sandbox.run_code("2").text == "2"


def test_importing_loads_nothing_heavy_and_a_program_ends_cleanly() -> None:
    light = "import sys, atoll; sys.exit('asyncio' in sys.modules or 'anyio' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", light]).returncode == 0
    program = "from atoll import Sandbox; s = Sandbox(); print(s.run_code('6 * 7').text)"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60)
    assert (result.returncode, result.stdout, result.stderr) == (0, b"42\n", b"")


_SIGNALS_IN_VAIN = """
import signal
for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD}:
    signal.signal(number, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
from atoll import Sandbox
look = "import re\\nre.findall('Sig(?:Ign|Blk):.*', open('/proc/self/status').read())"
for template in ("base", "python"):
    with Sandbox(template=template) as sandbox:
        print(sandbox.commands.run(["grep", "-E", "Sig(Ign|Blk)", "/proc/self/status"]).stdout)
        print(sandbox.commands.run("yes | head -n 1").stderr)
        if template == "python":
            print(sandbox.run_code(look).text)
"""


def test_signals_that_a_program_ignores_are_not_ignored_inside() -> None:
    result = subprocess.run(
        [sys.executable, "-c", _SIGNALS_IN_VAIN], capture_output=True, text=True, timeout=60
    )
    assert result.returncode == 0, result.stderr
    found = re.findall(r"Sig(?:Ign|Blk):(?:\t|\\t)([0-9a-f]{16})", result.stdout)
    nothing, of_python = "0" * 16, "0000000001001000"  # SIGPIPE and SIGXFSZ, as in any Python
    assert found == [nothing] * 5 + [of_python]
    assert result.stdout.count("b''") == 2
