"""A session that speaks for its kernel: forged, broken and endless words are its own loss alone."""

from __future__ import annotations

import ast
import secrets
from pathlib import Path

import pytest

from atoll import Sandbox
from atoll.model.kernel import Cell, CellStatus
from tests.campaigns import Campaign
from tests.security import measured
from tests.security.attacks import flood_host, forge_frames
from tests.security.sessions import (
    Growth,
    attack_cell,
    neighbours,
    put_attacks,
    run_within,
    until_alone,
)

pytestmark = pytest.mark.usefixtures("sdk")

SOURCES = Path(__file__).parents[2] / "src"

_FRAMES = 20
_TIMEOUT = 1.0
# Words of these are held up as soon as nobody takes them in, and then nothing happens before the timeout.
_STALLING = {"print_marks": 5.0, "ask_for_ever": 5.0}
# Far above what a cell takes that is killed after its timeout.
_BOUND_SECONDS = 30.0
# What the host may hold of one cell: frames being read, results, and what both become in Python.
_MOST_GROWTH_MIB = 768
# Far below the depth at which Python itself gives up on walking through a value.
_MOST_DEPTH = 100


def forge(sandbox: Sandbox, way: str, seed: int, frames: int = _FRAMES) -> Cell:
    """Let the first cell of a kernel forge; whatever comes of it has to be a result."""
    code = attack_cell("forge_frames", way=way, seed=seed, frames=frames)
    return run_within(_BOUND_SECONDS, sandbox, code, timeout=_TIMEOUT)


def check_truth(sandbox: Sandbox, attack: str) -> None:
    """The next cells get true answers, or are told that their kernel is gone; a fresh one answers."""
    for _ in range(2):
        truth = secrets.token_hex(8)
        cell = run_within(_BOUND_SECONDS, sandbox, f"{truth!r}", timeout=_TIMEOUT)
        assert (cell.ok and cell.text == repr(truth)) or cell.death, (attack, cell)
        if cell.ok:
            return
    raise AssertionError(f"no fresh kernel after {attack}: {cell}")


def test_a_session_can_forge_only_its_own_answer() -> None:
    """That it can forge this one shows that the attacks below speak the protocol."""
    with Sandbox() as sandbox:
        put_attacks(sandbox, "forge_frames")
        cell = forge(sandbox, "answer_oneself", seed=1, frames=1)
        assert (cell.status, cell.text) == (CellStatus.OK, "forged")
        check_truth(sandbox, "answer_oneself")


@pytest.mark.timeout(3600)
def test_no_forged_or_broken_frame_harms_anybody_else(campaign: Campaign) -> None:
    left = campaign.count(100_000)
    statuses: dict[str, int] = {}
    with neighbours(), Sandbox() as sandbox:
        put_attacks(sandbox, "forge_frames")
        while left > 0:
            for way in forge_frames.WAYS:
                seed = campaign.random.getrandbits(32)
                attack = f"{way}, seed {seed}"
                cell = forge(sandbox, way, seed)
                assert cell.status is not CellStatus.DIED or cell.death, (attack, cell)
                check_truth(sandbox, attack)
                sandbox.restart()
                statuses[cell.status] = statuses.get(cell.status, 0) + 1
                left -= _FRAMES
    measured.FIGURES["cells that forged frames, by status"] = str(statuses)
    assert statuses["died"] > statuses.get("ok", 0)


@pytest.mark.parametrize("way", ["mistake_ids", "mistake_numbers", "say_hello_again", "say_junk"])
def test_a_kernel_that_broke_the_protocol_is_ended_with_all_it_started(way: str) -> None:
    with Sandbox() as sandbox:
        put_attacks(sandbox, "forge_frames")
        child = "import subprocess\nsubprocess.Popen(['sleep', '1000'])\n"
        code = attack_cell("forge_frames", way=way, seed=2, frames=_FRAMES)
        cell = run_within(_BOUND_SECONDS, sandbox, child + code)
        assert "protocol" in cell.death
        assert until_alone(sandbox) == []


def test_a_kernel_that_answers_another_question_is_ended() -> None:
    with Sandbox() as sandbox:
        put_attacks(sandbox, "forge_frames")
        cell = forge(sandbox, "answer_another_question", seed=1)
        assert cell.status is CellStatus.DIED
        assert "protocol" in cell.death
        assert until_alone(sandbox) == []


def test_what_is_nested_too_deeply_is_not_handed_over() -> None:
    """Whoever prints or stores it would run out of stack, with an error of his own making."""
    with Sandbox() as sandbox:
        put_attacks(sandbox, "forge_frames")
        cell = forge(sandbox, "nest_deeply", seed=1)
        assert all(depth(bundle.data) <= _MOST_DEPTH for bundle in cell.results)
        check_truth(sandbox, "nest_deeply")


def depth(value: object) -> int:
    """Return how many containers lie in each other."""
    levels, layer = 0, [value]
    while layer:
        within = [each for each in layer if isinstance(each, dict | list)]
        layer = [
            child
            for each in within
            for child in (each.values() if isinstance(each, dict) else each)
        ]
        levels += bool(within)
    return levels


@pytest.mark.parametrize("way", list(flood_host.WAYS))
def test_what_a_session_says_does_not_fill_the_host(way: str) -> None:
    with neighbours(), Sandbox() as sandbox:
        put_attacks(sandbox, "forge_frames", "flood_host")
        growth = Growth()
        code = attack_cell("flood_host", way=way)
        timeout = _STALLING.get(way, _BOUND_SECONDS / 2)
        cell = run_within(2 * _BOUND_SECONDS, sandbox, code, timeout=timeout)
        mib = growth.mib
        measured.FIGURES[f"host memory, {way}"] = f"{mib:.0f} MiB more, cell {cell.status}"
        assert mib < _MOST_GROWTH_MIB
        assert len(cell.stdout) <= 1 << 20
        check_truth(sandbox, way)


def test_the_sources_unpickle_nothing() -> None:
    forbidden = {
        "pickle", "_pickle", "cPickle", "cloudpickle", "dill", "shelve", "marshal", "joblib",
        "multiprocessing",
    }  # fmt: skip
    found = [
        f"{path.relative_to(SOURCES)} imports {name}"
        for path in SOURCES.rglob("*.py")
        for name in imported(ast.parse(path.read_text()))
        if name.partition(".")[0] in forbidden
    ]
    assert found == []


def imported(tree: ast.Module) -> set[str]:
    """Return the names of the modules that a module imports anywhere."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
            names |= dynamically_imported(node)
    return names


def dynamically_imported(call: ast.Call) -> set[str]:
    """Return what `__import__` or `import_module` with a constant would import."""
    function = call.func
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    if name not in ("__import__", "import_module") or not call.args:
        return set()
    first = call.args[0]
    return (
        {first.value} if isinstance(first, ast.Constant) and isinstance(first.value, str) else set()
    )


def test_the_search_for_pickle_would_find_it() -> None:
    for source in ("import pickle", "from pickle import loads", "__import__('pickle')"):
        assert imported(ast.parse(source)) == {"pickle"}
