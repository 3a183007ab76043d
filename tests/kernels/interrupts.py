"""Interrupts that come while a cell runs, however long it takes a busy machine to begin with it."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

from atoll import Sandbox
from atoll.model.kernel import Cell

_SECONDS = 60.0


def interrupted(sandbox: Sandbox, code: str, kernel: str, pause: float = 0.0) -> Cell:
    """Run a cell and interrupt it some time after it has printed something; return what came of it."""
    begun = threading.Event()

    def interrupt() -> None:
        assert begun.wait(_SECONDS), "the cell printed nothing"
        time.sleep(pause)
        sandbox.kernels.interrupt(kernel)

    with ThreadPoolExecutor(1) as pool:
        interrupting = pool.submit(interrupt)
        cell = sandbox.run_code(
            code, kernel=kernel, timeout=_SECONDS, on_stdout=lambda _: begun.set()
        )
        interrupting.result()
    return cell
