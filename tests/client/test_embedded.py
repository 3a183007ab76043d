"""The embedded node works from many threads and loops, and says so where it cannot."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading

from atoll import AsyncSandbox, Sandbox
from atoll.errors import Conflict


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
