"""`atoll shell` at a real terminal."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Atoll
from tests.cli.screen import Screen


@pytest.fixture
def screen(real_atoll: Atoll) -> Iterator[Screen]:
    shown = Screen(real_atoll, "shell")
    yield shown
    shown.close()


def test_a_shell_answers_and_passes_its_exit_code_on(screen: Screen) -> None:
    screen.type("echo $((6 * 7))-$TERM; pwd\n")
    screen.expect("42-xterm")
    screen.expect("/workspace")
    screen.type("exit 7\n")
    assert screen.end() == 7
    assert screen.is_restored()


def test_the_size_of_the_window_is_followed(screen: Screen) -> None:
    screen.type("stty size\n")
    screen.expect("30 100")
    screen.resize(44, 123)
    # It goes another way than keys do, and may come after them.
    screen.type("until stty size | grep '44 123'; do sleep 0.1; done\n")
    screen.expect("44 123\r\n")


def test_keys_go_to_the_program_inside(screen: Screen) -> None:
    # The program says itself that it has begun: before that, the key would be the shell's.
    screen.type("sh -c \"echo be''gun; exec sleep 100\"; echo inter''rupted\n")
    screen.follow("begun")
    # Before its next prompt the shell does not read keys yet; and one that becomes another program may lose them.
    while b"$ " not in screen.shown[screen.followed :]:
        screen.type("\x03")
        screen.read_for(0.2)
    screen.follow("$ ")
    screen.type("echo go''on\n")
    screen.follow("goon")
    screen.follow("$ ")
    screen.type("\x04")
    screen.end()
    assert screen.is_restored()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_the_terminal_is_restored_when_we_are_stopped(
    screen: Screen, number: signal.Signals
) -> None:
    screen.type("echo ready''now\n")
    screen.expect("readynow")
    assert not screen.is_restored()
    screen.process.send_signal(number)
    assert screen.end() == 128 + number
    assert screen.is_restored()


def test_a_killed_shell_is_told(screen: Screen) -> None:
    screen.type("kill -9 $$\n")
    assert screen.end() == 128 + signal.SIGKILL
    screen.expect("atoll: the shell was")
    assert screen.is_restored()


def test_a_closed_window_ends_the_shell(real_atoll: Atoll) -> None:
    screen = Screen(real_atoll, "shell")
    screen.type("echo ready''now\n")
    screen.expect("readynow")
    screen.close_window()
    assert screen.process.wait(timeout=60) == 128 + signal.SIGHUP


def test_files_go_in_and_out(real_atoll: Atoll, tmp_path: Path) -> None:
    source, kept = tmp_path / "in", tmp_path / "out"
    source.mkdir()
    (source / "a").write_text("first")
    screen = Screen(real_atoll, "shell", "--files", str(source), "--keep", str(kept))
    try:
        screen.type("cat a > b; exit\n")
        assert screen.end() == 0
        assert (kept / "b").read_text() == "first"
    finally:
        screen.close()


def test_a_failure_of_ours_leaves_the_terminal_as_it_was(real_atoll: Atoll) -> None:
    screen = Screen(real_atoll, "shell", "--engine", "nonsense")
    try:
        assert screen.end() == 125
        screen.expect("nonsense", 1)
        assert screen.is_restored()
    finally:
        screen.close()


def test_without_a_terminal_the_way_out_is_named(fake_atoll: Atoll) -> None:
    done = fake_atoll("shell")
    assert done.returncode == 2
    assert b"needs a terminal" in done.stderr
    assert b"atoll run" in done.stderr


def test_without_a_terminal_a_sandbox_of_the_node_has_another_way_out(fake_atoll: Atoll) -> None:
    done = fake_atoll("shell", "lagoon")
    assert done.returncode == 2
    assert b"atoll exec" in done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("--memory", "256m"),
        ("--env", "A=b"),
        ("--files", "/etc"),
        ("--engine", "namespaces"),
        ("--best-effort",),
        ("--network", "open"),
    ],
)
def test_a_sandbox_that_is_there_takes_no_options(
    fake_atoll: Atoll, words: tuple[str, ...]
) -> None:
    for line in ((*words, "lagoon"), ("lagoon", *words)):
        done = fake_atoll("shell", *line)
        assert done.returncode == 2
        assert b"describe a fresh sandbox, and 'lagoon' is there already" in done.stderr
