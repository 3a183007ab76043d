"""`--workspace` and `atoll workspace`: without a node, and with one on the same data directory."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator

import pytest

from tests.cli.conftest import REAL, Atoll
from tests.running_node import RunningNode, running_node

ADD = "open('lines', 'a').write('x'); print(open('lines').read())"


def test_what_a_program_leaves_the_next_one_finds(real_atoll: Atoll) -> None:
    for expected in (b"x\n", b"xx\n"):
        done = real_atoll("run", "--workspace", "lagoon", "-c", ADD)
        assert (done.returncode, done.stdout) == (0, expected), done.stderr
    told = json.loads(real_atoll("workspace", "ls", "--json").stdout)
    assert [(each["id"], each["sandbox"]) for each in told] == [("lagoon", None)]
    assert real_atoll("run", "-c", ADD).stdout == b"x\n"


def test_it_is_shown_to_people(real_atoll: Atoll) -> None:
    assert real_atoll("workspace", "ls").stdout.split() == [
        *(b"ID", b"SIZE", b"USED", b"LAST", b"USED", b"SANDBOX")
    ]
    words = ("run", "--workspace", "lagoon", "--workspace-size", "32m", "--best-effort")
    assert real_atoll(*words, "-c", ADD).returncode == 0
    _heading, row = real_atoll("workspace", "ls").stdout.decode().splitlines()
    assert row.startswith("lagoon  32 MiB")


def test_removal_removes_all_that_are_named_or_none(real_atoll: Atoll) -> None:
    for name in ("one", "two"):
        assert real_atoll("run", "--workspace", name, "-c", ADD).returncode == 0
    failed = real_atoll("workspace", "rm", "one", "missing")
    assert failed.returncode == 125
    assert b"no workspace 'missing'" in failed.stderr
    assert real_atoll("workspace", "rm", "one", "two").stdout == b"one\ntwo\n"
    assert json.loads(real_atoll("workspace", "ls", "--json").stdout) == []


@pytest.mark.parametrize(
    "words",
    [
        ("run", "--workspace", "../x", "-c", "1"),
        ("run", "--workspace", "a/b", "-c", "1"),
        ("run", "--workspace-size", "1g", "-c", "1"),
        ("run", "--workspace", "a", "--workspace-size", "much", "-c", "1"),
        ("create", "--remove-workspace"),
        ("workspace",),
        ("workspace", "rm"),
        ("workspace", "ls", "lagoon"),
        ("workspace", "burn", "lagoon"),
        ("workspace", "rm", "--all", "lagoon"),
    ],
    ids=" ".join,
)
def test_what_cannot_be_meant_starts_nothing(real_atoll: Atoll, words: tuple[str, ...]) -> None:
    done = real_atoll(*words)
    assert (done.returncode, done.stdout) == (2, b"")
    assert len(done.stderr) > 20


def test_an_engine_without_workspaces_says_so(atoll: Atoll) -> None:
    done = atoll("run", "--workspace", "lagoon", "--language", "sh", "-c", "true")
    if atoll.engine == "fake":
        assert done.returncode == 125
        assert b"keeps no workspaces" in done.stderr
    else:
        assert done.returncode == 0


# --- with a node -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def node() -> Iterator[RunningNode]:
    with running_node() as node:
        yield node


def test_a_node_and_programs_beside_it_share_workspaces(node: RunningNode) -> None:
    def atoll(*words: str, **more: str) -> subprocess.CompletedProcess[str]:
        env = {**node.environment, **more}
        return subprocess.run([*REAL, *words], env=env, capture_output=True, text=True, timeout=60)

    made = atoll("create", "--template", "base", "--workspace", "lagoon")
    assert made.returncode == 0, made.stderr
    box = made.stdout.strip()
    assert atoll("exec", box, "--", "sh", "-c", "echo by node > file").returncode == 0
    busy = atoll("run", "--workspace", "lagoon", "-c", "1")
    assert busy.returncode == 125
    assert box in busy.stderr
    for more in ({}, {"ATOLL_URL": node.address}):
        (told,) = json.loads(atoll("workspace", "ls", "--json", **more).stdout)
        assert (told["id"], told["sandbox"]) == ("lagoon", box)
        (listed,) = json.loads(atoll("workspace", "ls", "--all", "--json", **more).stdout)
        assert (listed["id"], listed["owner"]) == ("lagoon", "local")
        heading, row = atoll("workspace", "ls", "--all", **more).stdout.splitlines()
        assert (heading.split()[:2], row.split()[:2]) == (["OWNER", "ID"], ["local", "lagoon"])
        assert atoll("workspace", "rm", "lagoon", **more).returncode == 125
    assert atoll("rm", box).returncode == 0
    beside = atoll("run", "--workspace", "lagoon", "-c", "print(open('file').read())")
    assert beside.stdout == "by node\n\n"
    assert atoll("workspace", "rm", "lagoon", ATOLL_URL=node.address).stdout == "lagoon\n"
    assert atoll("workspace", "ls", "--json").stdout == "[]\n"
