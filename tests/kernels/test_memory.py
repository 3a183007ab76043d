"""Kernels whose sandbox runs out of memory: the cell tells, and the next one has a new kernel."""

from __future__ import annotations

import pytest

from atoll import Sandbox
from atoll.model.kernel import CellStatus
from atoll.model.language import home_of
from tests.kernels.deno_presence import needs_deno
from tests.kernels.node_presence import needs_node

pytestmark = pytest.mark.cgroups

HOARDS = {
    "python": "hoard = []\nwhile True: hoard.append(bytearray(b'x') * (1 << 24))",
    "node": "const hoard = []; for (;;) hoard.push(Buffer.alloc(1 << 24, 1))",
    "deno": "const hoard = []; for (;;) hoard.push(new Uint8Array(1 << 24).fill(1))",
}
AFTERWARDS = {
    "python": "print('hoard' in globals())",
    "node": "console.log(typeof hoard !== 'undefined')",
    "deno": "console.log(typeof hoard !== 'undefined')",
}


@pytest.mark.parametrize(
    "language",
    [
        "python",
        pytest.param("node", marks=needs_node),
        pytest.param("deno", marks=needs_deno),
    ],
)
def test_a_kernel_that_runs_out_of_memory_says_so(language: str) -> None:
    with Sandbox(home_of(language), limits={"memory": "256m"}) as sandbox:
        sandbox.files.write("stays", "here")
        cell = sandbox.run_code(HOARDS[language], language=language, timeout=60)
        assert cell.status is CellStatus.DIED
        assert cell.death.startswith("the kernel ran out of memory")
        after = sandbox.run_code(AFTERWARDS[language], language=language)
        assert after.stdout.lower() == "false\n"
        assert sandbox.files.read("stays") == b"here"


def test_a_shell_that_is_killed_for_its_memory_is_replaced() -> None:
    with Sandbox(limits={"memory": "256m"}) as sandbox:
        code = "hoard=x; while :; do hoard=$hoard$hoard; done"
        cell = sandbox.run_code(code, language="bash", timeout=60)
        assert cell.error is not None
        assert "killed by signal 9; variables are gone, files are there" in cell.error.value
        after = sandbox.run_code("[[ -v hoard ]] || echo new", language="bash")
        assert after.stdout == "new\n"
