"""Commands on a running node: create, ls, exec, shell, logs, cp, pause, stop, resume, rm."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cgroup_access import has_cgroups
from tests.cli.conftest import REAL, Atoll
from tests.cli.screen import Screen
from tests.node_fixtures import node
from tests.running_node import RunningNode, make_environment, running_node

__all__ = ["node"]


class Commands:
    """The command line, with a node to talk to."""

    def __init__(self, node: RunningNode) -> None:
        self._env = node.environment

    def start(self, *words: str, **options: Any) -> subprocess.Popen[bytes]:
        options = {"stdout": subprocess.PIPE, "stdin": subprocess.DEVNULL, **options}
        return subprocess.Popen([*REAL, *words], env=self._env, **options)

    def run(self, *words: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [*REAL, *words], env=self._env, input=stdin, capture_output=True, timeout=60
        )

    def __call__(self, *words: str, stdin: bytes = b"") -> str:
        """Run a command that has to succeed, and return what it printed."""
        done = self.run(*words, stdin=stdin)
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout.decode()


@pytest.fixture
def atoll(node: RunningNode) -> Commands:
    return Commands(node)


@pytest.fixture
def box(atoll: Commands) -> Iterator[str]:
    """The id of a sandbox for one test."""
    made = atoll("create", "--template", "base").strip()
    yield made
    atoll("rm", made)


def test_a_sandbox_is_created_listed_and_removed(atoll: Commands) -> None:
    made = atoll("create", "--template", "base", "--name", "lagoon", "--label", "a=b").strip()
    assert len(made) == 26
    listed = {each["id"]: each for each in json.loads(atoll("ls", "--json"))}
    assert (listed[made]["name"], listed[made]["labels"]) == ("lagoon", {"a": "b"})
    assert any(made in line and "lagoon" in line for line in atoll("ls").splitlines())
    assert atoll("rm", "lagoon").strip() == made
    assert made not in atoll("ls")
    assert made in atoll("ls", "--all")


def test_a_sandbox_goes_by_the_beginning_of_its_id(atoll: Commands, box: str) -> None:
    assert atoll("exec", box[:12], "--", "echo", "found").strip() == "found"


def test_a_mistyped_name_removes_nothing(atoll: Commands, box: str) -> None:
    done = atoll.run("rm", box, "no-such-box")
    assert done.returncode == 125
    assert b"no-such-box" in done.stderr
    assert b"atoll ls" in done.stderr
    assert box in atoll("ls")


def test_all_sandboxes_are_removed_at_once(atoll: Commands) -> None:
    made = {atoll("create", "--template", "base").strip() for _ in range(2)}
    atoll("rm", "--all")
    assert not made & {each["id"] for each in json.loads(atoll("ls", "--json"))}


def test_exit_code_and_streams_are_passed_on(atoll: Commands, box: str) -> None:
    done = atoll.run("exec", box, "--", "sh", "-c", "echo out; echo err >&2; exit 9")
    assert (done.returncode, done.stdout, done.stderr) == (9, b"out\n", b"err\n")
    killed = atoll.run("exec", box, "--", "sh", "-c", "kill -KILL $$")
    assert killed.returncode == 137
    assert atoll.run("exec", "--timeout", "200ms", box, "sleep", "1000").returncode == 124
    assert atoll.run("exec", box, "--", "no-such-program").returncode == 127


def test_standard_input_is_passed_on(atoll: Commands, box: str) -> None:
    data = os.urandom(3_000_000)
    assert atoll.run("exec", box, "--", "cat", stdin=data).stdout == data


def test_variables_and_directory_are_passed_on(atoll: Commands, box: str) -> None:
    atoll("exec", box, "--", "mkdir", "place")
    printed = atoll("exec", "--env", "A=b", "--cwd", "place", box, "--", "sh", "-c", "echo $A; pwd")
    assert printed == "b\n/workspace/place\n"


def test_an_interrupt_goes_to_the_command(atoll: Commands, box: str) -> None:
    line = "trap 'echo interrupted; exit 3' INT; echo ready; while :; do sleep 0.05; done"
    with atoll.start("exec", box, "--", "sh", "-c", line) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == b"ready\n"
        running.send_signal(signal.SIGINT)
        assert running.stdout.read() == b"interrupted\n"
        assert running.wait(60) == 3


def test_a_command_ends_with_the_one_who_asked_for_it(atoll: Commands, box: str) -> None:
    with atoll.start("exec", box, "--", "sh", "-c", "echo ready; exec sleep 1000") as running:
        assert running.stdout is not None
        assert running.stdout.readline() == b"ready\n"
        running.terminate()
        assert running.wait(60) == 128 + signal.SIGTERM
    assert "sleep" not in atoll("exec", box, "--", "sh", "-c", "cat /proc/[0-9]*/comm")


def test_logs_are_read_afterwards(atoll: Commands, box: str) -> None:
    for number in range(2):
        atoll("exec", box, "--", "echo", f"line {number}")
    assert atoll("logs", box) == "line 0\nline 1\n"
    events = [json.loads(line) for line in atoll("logs", "--json", box).splitlines()]
    assert [each["text"] for each in events if each["type"] == "stdout"] == ["line 0\n", "line 1\n"]
    assert atoll("logs", events[0]["execution"]) == "line 0\n"


def test_logs_are_followed_to_the_end(atoll: Commands, box: str) -> None:
    line = "echo begun; while [ ! -e go-on ]; do sleep 0.05; done; echo ended"
    with atoll.start("exec", box, "--", "sh", "-c", line) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == b"begun\n"
        with atoll.start("logs", "--follow", box) as following:
            assert following.stdout is not None
            assert following.stdout.readline() == b"begun\n"
            atoll("exec", box, "--", "touch", "go-on")
            assert following.stdout.readline() == b"ended\n"
            assert (running.wait(60), following.wait(60)) == (0, 0)


def test_files_are_copied_in_and_out(atoll: Commands, box: str, tmp_path: Path) -> None:
    source = tmp_path / "a.txt"
    source.write_text("content")
    source.chmod(0o750)
    atoll("cp", str(source), f"{box}:b.txt")
    atoll("cp", str(source), f"{box}:")
    assert atoll("exec", box, "--", "sh", "-c", "ls; stat -c %a b.txt") == "a.txt\nb.txt\n750\n"
    atoll("cp", f"{box}:b.txt", str(tmp_path / "back.txt"))
    assert (tmp_path / "back.txt").read_text() == "content"
    refused = atoll.run("cp", f"{box}:b.txt", str(source))
    assert refused.returncode == 125
    assert b"exists already" in refused.stderr


def test_trees_are_copied_in_and_out(atoll: Commands, box: str, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "deep/empty").mkdir(parents=True)
    (tree / "deep/file").write_bytes(b"\0\1")
    (tree / "link").symlink_to("/etc/passwd")
    os.link(tree / "deep/file", tree / "twin")
    done = atoll.run("cp", str(tree), f"{box}:copy")
    assert (done.returncode, b"1 links" in done.stderr) == (0, True)
    atoll("cp", f"{box}:copy", str(tmp_path / "back"))
    found = sorted(
        str(path.relative_to(tmp_path / "back")) for path in (tmp_path / "back").rglob("*")
    )
    assert found == ["deep", "deep/empty", "deep/file", "twin"]
    assert (tmp_path / "back/twin").read_bytes() == b"\0\1"


def test_archives_are_copied_through_pipes(atoll: Commands, box: str) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        member = tarfile.TarInfo("inside")
        member.size = 2
        tar.addfile(member, io.BytesIO(b"hi"))
    atoll("cp", "-", f"{box}:", stdin=packed.getvalue())
    out = atoll.run("cp", f"{box}:.", "-")
    with tarfile.open(fileobj=io.BytesIO(out.stdout)) as tar:
        assert tar.getnames() == ["inside"]


def test_a_sandbox_is_filled_as_it_is_made(atoll: Commands, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    made = atoll("create", "--template", "base", "--files", str(tmp_path)).strip()
    assert atoll("exec", made, "--", "cat", "file") == "x"
    atoll("rm", made)


@pytest.mark.parametrize("words", [("ls",), ("create",), ("exec", "box", "true"), ("rm", "box")])
def test_without_a_node_the_next_step_is_told(tmp_path: Path, words: tuple[str, ...]) -> None:
    done = subprocess.run(
        [*REAL, *words], env=make_environment(tmp_path), capture_output=True, timeout=60
    )
    assert done.returncode == 125
    assert b"next: start one with 'atoll node'" in done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("rm",),
        ("rm", "--all", "box"),
        ("exec", "box"),
        ("exec", "-it", "box"),
        ("cp", "a", "b"),
        ("cp", "x:a", "y:b"),
        ("cp", "--json", "x:a", "-"),
        ("exec", "--json", "-t", "box", "true"),
        ("exec", "--json", "-it", "box"),
        ("create", "--label", "novalue"),
        ("create", "--memory", "lots"),
    ],
)
def test_a_misused_command_starts_nothing(tmp_path: Path, words: tuple[str, ...]) -> None:
    done = subprocess.run(
        [*REAL, *words],
        env=make_environment(tmp_path),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert not list(tmp_path.iterdir())


def test_an_address_that_is_none_is_refused(tmp_path: Path) -> None:
    done = subprocess.run(
        [*REAL, "ls"],
        env=make_environment(tmp_path, ATOLL_URL="ftp://somewhere"),
        capture_output=True,
        timeout=60,
    )
    assert done.returncode == 125
    assert b"ATOLL_URL" in done.stderr


def test_a_terminal_is_joined(node: RunningNode, box: str) -> None:
    screen = Screen(Atoll("namespaces", REAL, node.environment), "exec", "-it", box)
    try:
        screen.type("echo he''llo; stty size\r")
        screen.expect("hello")
        screen.expect("30 100")
        screen.type("exit 6\r")
        assert screen.end() == 6
        assert screen.is_restored()
    finally:
        screen.close()


def test_a_persistent_sandbox_is_stopped_and_resumed(atoll: Commands) -> None:
    made = atoll("create", "--template", "base", "--persistent").strip()
    try:
        atoll("exec", made, "--", "sh", "-c", "echo kept > file")
        assert atoll("stop", made).strip() == made
        assert any(made in line and "stopped" in line for line in atoll("ls").splitlines())
        refused = atoll.run("exec", made, "--", "true")
        assert refused.returncode == 125 and b"resume it first" in refused.stderr
        assert atoll("resume", made).strip() == made
        assert atoll("exec", made, "--", "cat", "file") == "kept\n"
    finally:
        atoll("rm", made)


def test_a_sandbox_that_is_not_persistent_is_not_stopped(atoll: Commands, box: str) -> None:
    refused = atoll.run("stop", box)
    assert refused.returncode == 125 and b"persistent" in refused.stderr
    nobody = atoll.run("stop", box, "nobody-at-all")
    assert b"there is no sandbox" in nobody.stderr


def test_a_shell_is_opened_in_a_sandbox_that_is_there(
    node: RunningNode, atoll: Commands, box: str
) -> None:
    atoll("exec", box, "--", "sh", "-c", "echo from''before > file")
    screen = Screen(Atoll("namespaces", REAL, node.environment), "shell", box[:12])
    try:
        screen.type("cat file; stty size; touch left\r")
        screen.expect("frombefore")
        screen.expect("30 100")
        screen.type("exit 6\r")
        assert screen.end() == 6
        assert screen.is_restored()
    finally:
        screen.close()
    assert "left" in atoll("exec", box, "--", "ls")


def test_a_shell_in_a_sandbox_that_is_not_there_is_refused(node: RunningNode) -> None:
    screen = Screen(Atoll("namespaces", REAL, node.environment), "shell", "no-such-box")
    try:
        assert screen.end() == 125
        screen.expect("there is no sandbox 'no-such-box'", 1)
        assert screen.is_restored()
    finally:
        screen.close()


def test_removals_are_told_as_json(atoll: Commands) -> None:
    one, two, three = (atoll("create", "--template", "base").strip() for _ in range(3))
    assert json.loads(atoll("rm", "--json", two, one[:12])) == {"destroyed": [two, one]}
    assert three in json.loads(atoll("rm", "--json", "--all"))["destroyed"]
    assert json.loads(atoll("ls", "--json")) == []
    assert json.loads(atoll("rm", "--json", "--all")) == {"destroyed": []}


def test_stops_are_told_as_json(atoll: Commands) -> None:
    made = atoll("create", "--template", "base", "--persistent", "--name", "reef").strip()
    try:
        for command, status in (("stop", "stopped"), ("resume", "running")):
            told = json.loads(atoll(command, "--json", made[:12]))
            assert told == {"sandboxes": [{"id": made, "name": "reef", "status": status}]}
    finally:
        atoll("rm", made)


@pytest.mark.skipif(not has_cgroups(), reason="without cgroups nothing is paused")
def test_pauses_are_told_as_json(atoll: Commands, box: str) -> None:
    for command, status in (("pause", "paused"), ("resume", "running")):
        told = json.loads(atoll(command, "--json", box))
        assert told == {"sandboxes": [{"id": box, "name": box, "status": status}]}


def test_copies_are_told_as_json(atoll: Commands, box: str, tmp_path: Path) -> None:
    tree, file, back = tmp_path / "tree", tmp_path / "tree/deep/file", tmp_path / "back"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"12345")
    (tree / "other").write_bytes(b"678")
    (tree / "link").symlink_to("/etc/passwd")
    both = {"files": 2, "directories": 1, "total_bytes": 8}
    single = {"files": 1, "directories": 0, "total_bytes": 5, "skipped": 0}
    assert json.loads(atoll("cp", "--json", str(tree), f"{box}:copy")) == {**both, "skipped": 1}
    # Nobody tells how many links the node left out.
    assert json.loads(atoll("cp", "--json", f"{box}:copy", str(back))) == {**both, "skipped": None}
    assert json.loads(atoll("cp", "--json", str(file), f"{box}:file")) == single
    assert json.loads(atoll("cp", "--json", f"{box}:file", str(tmp_path / "file"))) == single
    packed = atoll.run("cp", f"{box}:copy", "-").stdout
    told = json.loads(atoll("cp", "--json", "-", f"{box}:again", stdin=packed))
    assert told == {**both, "skipped": 0}


def test_a_command_is_told_as_json(atoll: Commands, box: str) -> None:
    line = "cat; echo err >&2; exit 3"
    done = atoll.run("exec", "--json", box, "--", "sh", "-c", line, stdin=b"given")
    told = json.loads(done.stdout)
    assert (done.returncode, done.stderr) == (3, b"")
    assert (told["exit_code"], told["signal"], told["reason"]) == (3, None, "exited")
    assert (told["stdout"], told["stderr"]) == ("given", "err\n")
    assert told["timed_out"] is told["stdout_truncated"] is told["stderr_truncated"] is False
    assert told["duration"] > 0
    assert told["sandbox"] == box


def test_a_command_is_told_with_the_keys_of_run(atoll: Commands, box: str) -> None:
    ran = json.loads(atoll("run", "--json", "--language", "sh", "-c", "true"))
    assert list(json.loads(atoll("exec", "--json", box, "--", "true"))) == list(ran)


def test_ends_by_signals_and_timeouts_are_told_as_json(atoll: Commands, box: str) -> None:
    killed = atoll.run("exec", "--json", box, "--", "sh", "-c", "kill -TERM $$")
    told = json.loads(killed.stdout)
    assert killed.returncode == 128 + signal.SIGTERM
    assert (told["exit_code"], told["signal"], told["reason"]) == (None, 15, "signalled")
    late = atoll.run("exec", "--json", "--timeout", "200ms", box, "sleep", "1000")
    told = json.loads(late.stdout)
    assert (late.returncode, late.stderr) == (124, b"")
    assert (told["exit_code"], told["reason"], told["timed_out"]) == (None, "timed_out", True)


def test_bytes_that_are_no_text_are_told_as_json(atoll: Commands, box: str) -> None:
    told = json.loads(atoll("exec", "--json", box, "--", "printf", r"\377\000"))
    assert (told["stdout"], told["stdout_base64"], told["stderr"]) == (None, "/wA=", "")


def test_output_that_is_cut_is_told_as_json(atoll: Commands, box: str) -> None:
    data = "xä".encode() * 600_000
    told = json.loads(atoll("exec", "--json", box, "--", "cat", stdin=data))
    assert (told["stdout_truncated"], told["stderr_truncated"]) == (True, False)
    assert set(told["stdout"]) == {"x", "ä"}


@pytest.mark.usefixtures("node")
def test_output_that_the_node_cut_is_told_as_json() -> None:
    with running_node(ATOLL_EXECUTION__LOG_BYTES="4096") as frugal:
        atoll = Commands(frugal)
        box = atoll("create", "--template", "base").strip()
        told = json.loads(atoll("exec", "--json", box, "--", "head", "-c", "9000", "/dev/zero"))
    assert (len(told["stdout"]), told["stdout_truncated"]) == (4096, True)


def test_our_own_failure_is_told_as_json(atoll: Commands) -> None:
    done = atoll.run("exec", "--json", "no-such-box", "true")
    error = json.loads(done.stdout)["error"]
    assert (done.returncode, error["code"]) == (125, "not_found")
    assert "no-such-box" in error["message"]
    assert b"next: 'atoll ls'" in done.stderr
