"""Timeouts at every moment, whatever a cell of Node, Deno, R, Julia or Bash is about: it ends, and what the session had stays."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import pytest

from atoll import Sandbox
from atoll.model.kernel import CellStatus
from tests.campaigns import Campaign
from tests.kernels.deno_presence import needs_deno
from tests.kernels.julia_presence import needs_julia
from tests.kernels.node_presence import needs_node
from tests.kernels.r_presence import needs_r

pytestmark = pytest.mark.timeout(3600)

# Of a hundred, one may lose its kernel: some things heed no interrupt at some moments.
SHARE_KEPT = 0.99


class Session(NamedTuple):
    """A language, what is kept in its session, and what cells of it may be about when their time is up."""

    language: str
    template: str
    keep: str
    kept: str
    occupations: tuple[str, ...]


NODE = Session(
    "node",
    "node",
    "let kept = 'all of it'",
    "console.log(kept)",
    (
        "await new Promise((done) => setTimeout(done, 1e6))",
        "for (;;);",
        "for (;;) await null",
        "require('child_process').execSync('sleep 1000')",
        "for (;;) require('child_process').spawnSync('true')",
        "require('fs').readFileSync('/dev/zero').length",
        "for (;;) console.log('x'.repeat(100))",
    ),
)
# Deno reads files in code of its own, which looks up only at their end.
DENO = NODE._replace(
    language="deno",
    template="deno",
    occupations=tuple(each for each in NODE.occupations if "readFileSync" not in each),
)
R = Session(
    "r",
    "r",
    "kept <- 'all of it'",
    "cat(kept, '\\n', sep = '')",
    (
        "Sys.sleep(1000)",
        "repeat {}",
        "while (TRUE) x <- sort(runif(1e5))",
        "system('sleep 1000')",
        "readLines(pipe('sleep 1000'))",
        "repeat cat('y')",
    ),
)
JULIA = Session(
    "julia",
    "julia",
    'kept = "all of it"',
    "println(kept)",
    (
        "sleep(1000)",
        "while true end",
        "while true; sort(rand(10^5)); end",
        "run(`sleep 1000`)",
        "while true; run(`true`); end",
        "@sync begin @async sleep(1000); @async while true; sleep(0.01); end; end",
        'while true; println("y"); end',
    ),
)
BASH = Session(
    "bash",
    "base",
    "kept='all of it'",
    'echo "$kept"',
    (
        "sleep 1000",
        "while :; do :; done",
        "while :; do /bin/true; done",
        "read x < <(sleep 1000)",
        "sleep 1000 | cat",
        "x=$(sleep 1000)",
        "while :; do echo y; done",
    ),
)
SESSIONS = [
    pytest.param(NODE, marks=needs_node, id="node"),
    pytest.param(DENO, marks=needs_deno, id="deno"),
    pytest.param(R, marks=needs_r, id="r"),
    pytest.param(JULIA, marks=needs_julia, id="julia"),
    pytest.param(BASH, id="bash"),
]


@pytest.mark.parametrize("session", SESSIONS)
def test_timeouts_leave_variables_alone(
    session: Session, campaign: Campaign, patient: None
) -> None:
    count = campaign.count(500)
    lost: Counter[str] = Counter()
    with Sandbox(template=session.template) as sandbox:
        sandbox.run_code(session.keep, language=session.language).check()
        for turn in range(count):
            occupation = session.occupations[turn % len(session.occupations)]
            timeout = campaign.random.uniform(0.02, 0.1)
            cell = sandbox.run_code(occupation, language=session.language, timeout=timeout)
            found = sandbox.run_code(session.kept, language=session.language)
            if cell.status is not CellStatus.TIMED_OUT or found.stdout != "all of it\n":
                lost[f"{occupation}: {cell.status} {cell.death} {found.stdout!r}"] += 1
                sandbox.run_code(session.keep, language=session.language).check()
    print(f"{session.language}: {count} timeouts, variables lost {lost.total()}: {dict(lost)}")
    assert lost.total() <= max(1, (1 - SHARE_KEPT) * count), lost
