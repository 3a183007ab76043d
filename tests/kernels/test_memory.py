"""Kernels whose sandbox runs out of memory: the cell tells, and the next one has a new kernel."""

from __future__ import annotations

import pytest

from atoll import Sandbox
from atoll.model.kernel import CellStatus
from atoll.model.language import home_of
from tests.kernels.deno_presence import needs_deno
from tests.kernels.julia_presence import needs_julia
from tests.kernels.node_presence import needs_node
from tests.kernels.r_presence import needs_r

pytestmark = [pytest.mark.cgroups, pytest.mark.timeout(180)]

# A second kernel is one process of the machine's: there, the whole sandbox ends.
ENDS_SANDBOX = "gvisor"
HOARDS = {
    "python": "hoard = []\nwhile True: hoard.append(bytearray(b'x') * (1 << 24))",
    "node": "const hoard = []; for (;;) hoard.push(Buffer.alloc(1 << 24, 1))",
    "deno": "const hoard = []; for (;;) hoard.push(new Uint8Array(1 << 24).fill(1))",
    "r": "hoard <- list(); repeat hoard[[length(hoard) + 1]] <- rep(1, 2e6)",
    "julia": "hoard = []; while true push!(hoard, ones(2 * 10^6)) end",
}
AFTERWARDS = {
    "python": "print('hoard' in globals())",
    "node": "console.log(typeof hoard !== 'undefined')",
    "deno": "console.log(typeof hoard !== 'undefined')",
    "r": "cat(exists('hoard'), '\\n', sep='')",
    "julia": "println(@isdefined hoard)",
}
HOARDING_COMMAND = "python3 -c 'b\"x\" * (1 << 30)'"


@pytest.mark.parametrize(
    "language",
    [
        "python",
        pytest.param("node", marks=needs_node),
        pytest.param("deno", marks=needs_deno),
        pytest.param("r", marks=needs_r),
        pytest.param("julia", marks=needs_julia),
    ],
)
def test_a_kernel_that_runs_out_of_memory_says_so(engine: str, language: str) -> None:
    with Sandbox(home_of(language), engine=engine, limits={"memory": "256m"}) as sandbox:
        sandbox.files.write("stays", "here")
        cell = sandbox.run_code(HOARDS[language], language=language, timeout=110)
        assert cell.status is CellStatus.DIED
        assert cell.death.startswith("the kernel ran out of memory")
        if engine == ENDS_SANDBOX:
            return
        after = sandbox.run_code(AFTERWARDS[language], language=language)
        assert after.stdout.lower() == "false\n"
        assert sandbox.files.read("stays") == b"here"


def test_a_shell_that_is_killed_for_its_memory_says_so_and_is_replaced(engine: str) -> None:
    with Sandbox(engine=engine, limits={"memory": "256m"}) as sandbox:
        code = "hoard=x; while :; do hoard=$hoard$hoard; done"
        cell = sandbox.run_code(code, language="bash", timeout=60)
        if engine == ENDS_SANDBOX:
            assert "ran out of memory" in cell.death
            return
        assert cell.error is not None
        assert cell.error.value.startswith(
            "the shell ran out of memory; variables are gone, files are there; give the sandbox more"
        )
        after = sandbox.run_code("[[ -v hoard ]] || echo new", language="bash")
        assert after.stdout == "new\n"


def test_a_command_of_a_shell_that_is_killed_for_its_memory_says_so(engine: str) -> None:
    with Sandbox(engine=engine, limits={"memory": "256m"}) as sandbox:
        sandbox.run_code("here=1", language="bash")
        cell = sandbox.run_code(HOARDING_COMMAND, language="bash", timeout=60)
        if engine == ENDS_SANDBOX:
            assert "ran out of memory" in cell.death
            return
        assert cell.error is not None
        assert (cell.error.name, cell.exit_code) == ("ExitCode", 137)
        (line,) = cell.error.traceback
        assert line.startswith("ExitCode 137: the command ran out of memory; give the sandbox more")
        assert sandbox.run_code("echo $here", language="bash").stdout == "1\n"
        # Whoever is killed by somebody else was not killed for that.
        cell = sandbox.run_code("bash -c 'kill -9 $$'", language="bash")
        assert cell.error is not None
        assert (cell.error.value, *cell.error.traceback) == ("137",)
        cell = sandbox.run_code("kill -9 $$", language="bash")
        assert cell.error is not None
        assert "killed by signal 9" in cell.error.value
