"""Kernels whose sandbox runs out of memory: the cell tells, and the next one has a new kernel."""

from __future__ import annotations

import pytest

from atoll import Sandbox
from atoll.model.kernel import CellStatus
from tests.kernels.node_presence import needs_node

pytestmark = pytest.mark.cgroups

HOARDS = {
    "python": "hoard = []\nwhile True: hoard.append(bytearray(b'x') * (1 << 24))",
    "node": "const hoard = []; for (;;) hoard.push(Buffer.alloc(1 << 24, 1))",
}
AFTERWARDS = {"python": "'hoard' in globals()", "node": "typeof hoard !== 'undefined'"}


@needs_node
@pytest.mark.parametrize("language", HOARDS)
def test_a_kernel_that_runs_out_of_memory_says_so(language: str) -> None:
    with Sandbox(limits={"memory": "256m"}) as sandbox:
        sandbox.files.write("stays", "here")
        cell = sandbox.run_code(HOARDS[language], language=language, timeout=60)
        assert cell.status is CellStatus.DIED
        assert cell.death.startswith("the kernel ran out of memory")
        after = sandbox.run_code(AFTERWARDS[language], language=language)
        assert (after.text or "").lower() == "false"
        assert sandbox.files.read("stays") == b"here"
