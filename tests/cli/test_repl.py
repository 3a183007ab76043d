"""`atoll repl` at a real terminal and at the end of a pipe."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cli.conftest import Atoll, make_environment, own_words
from tests.cli.screen import Screen
from tests.kernels.julia_presence import needs_julia


@pytest.fixture
def prepared(real_atoll: Atoll, tmp_path_factory: pytest.TempPathFactory) -> Atoll:
    """The command line with a template that is made once for all these tests."""
    base = tmp_path_factory.getbasetemp() / "repl-data"
    env = make_environment(base)
    return Atoll(real_atoll.engine, real_atoll.words, env)


@pytest.fixture
def screen(prepared: Atoll) -> Iterator[Screen]:
    shown = Screen(prepared, "repl")
    shown.follow("In [1]:", 60)
    yield shown
    shown.close()


def history(prepared: Atoll) -> Path:
    return Path(prepared.env["ATOLL_DATA"], "repl_history")


def test_cells_run_and_keep_their_variables(screen: Screen) -> None:
    screen.type("x = 6\r")
    screen.follow("In [2]:")
    screen.type("x * 7\r")
    screen.follow("Out[2]: 42")
    screen.follow("In [3]:")
    screen.type("[list(range(30))] * 3\r")
    screen.follow("Out[3]: \r\n[[0,")
    screen.follow("In [4]:")
    screen.type("\x04")
    assert screen.end() == 0
    assert screen.is_restored()


def test_a_function_takes_several_lines(screen: Screen) -> None:
    screen.type("def double(a):\r")
    screen.follow("...:")
    # The line is indented already, and an empty one ends the function.
    screen.type("return a * 2\r\r")
    screen.follow("In [2]:")
    screen.type("double(21)\r")
    screen.follow("Out[2]: 42")


def test_tab_completes_by_what_is_alive(screen: Screen) -> None:
    screen.type("remarkable_name = 41\r")
    screen.follow("In [2]:")
    screen.type("remarkab\t")
    screen.follow("remarkab")
    screen.follow("le_name", 60)
    screen.type(" + 1\r")
    screen.follow("Out[2]: 42")


def test_typing_on_during_a_slow_completion_keeps_the_session(screen: Screen) -> None:
    screen.type("import time; x = 42\r")
    screen.follow("In [2]:")
    screen.type("class Slow:\rdef __dir__(self):\rtime.sleep(1.5); return []\r\r")
    screen.follow("In [3]:")
    screen.type("slow = Slow()\r")
    screen.follow("In [4]:")
    screen.type("slow.\t\x15x\r")
    screen.follow("Out[4]: 42")


def test_a_tab_at_the_beginning_indents(screen: Screen) -> None:
    screen.type("if True:\r")
    screen.follow("...:")
    screen.type("\x15\tprint(6 * 7)\r\r")
    screen.follow("42\r\n")


def test_control_c_interrupts_a_cell_and_keeps_variables(screen: Screen) -> None:
    screen.type("x = 5\r")
    screen.follow("In [2]:")
    screen.type("import time; print('be' + 'gun'); time.sleep(1000)\r")
    screen.follow("begun")
    screen.type("\x03")
    screen.follow("KeyboardInterrupt")
    screen.follow("In [3]:")
    screen.type("x\r")
    screen.follow("Out[3]: 5")


def test_a_cell_that_does_not_stop_loses_its_session_at_last(screen: Screen) -> None:
    deaf = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN)"
    screen.type(f"{deaf}; print('be' + 'gun'); time.sleep(1000)\r")
    screen.follow("begun")
    # However many of them are noticed as one, enough are noticed in the end.
    while b"variables are gone" not in screen.shown:
        screen.type("\x03")
        screen.read_for(0.2)
    screen.follow("variables are gone")
    screen.follow("In [1]:")
    screen.type("1 + 1\r")
    screen.follow("Out[1]: 2")


def test_a_completion_that_never_ends_does_not_end_everything(screen: Screen) -> None:
    screen.type("import time\r")
    screen.follow("In [2]:")
    screen.type("class Stuck:\rdef __dir__(self):\rwhile True: pass\r\r")
    screen.follow("In [3]:")
    screen.type("stuck = Stuck()\r")
    screen.follow("In [4]:")
    screen.type("stuck.\t\x156 * 7\r")
    screen.follow("7")
    while b"Out[" not in screen.shown:
        screen.type("\x03")
        screen.read_for(0.3)
        screen.type("6 * 7\r")
        screen.read_for(0.3)
    screen.follow(": 42")


def test_control_c_at_the_prompt_clears_the_line(screen: Screen) -> None:
    screen.type("nonsense(")
    screen.follow("nonsense(")
    screen.type("\x03")
    screen.type("6 * 7\r")
    screen.follow("Out[1]: 42")
    assert b"Error" not in screen.shown


def test_names_are_explained_and_errors_shown(screen: Screen) -> None:
    screen.type("def f(a):\r'Doub''les.'\r\r")
    screen.follow("In [2]:")
    screen.type("f?\r")
    screen.follow("Signature: f(a)")
    screen.follow("Doubles.")
    screen.follow("In [3]:")
    screen.type("1 / 0\r")
    screen.follow("ZeroDivisionError: division by zero")
    screen.follow("In [4]:")
    screen.type("exit\r")
    assert screen.end() == 0


def test_code_asks_and_the_person_answers(screen: Screen) -> None:
    screen.type("input('What' + ' now? ')\r")
    screen.follow("What now?")
    screen.type("this\r")
    screen.follow("Out[1]: 'this'")
    screen.follow("In [2]:")
    screen.type("x = 1; input('What' + ' else? ')\r")
    screen.follow("What else?")
    screen.type("\x03")
    screen.follow("In [3]:")
    screen.type("x\r")
    screen.follow("Out[3]: 1")


def test_output_appears_while_the_cell_runs(screen: Screen) -> None:
    screen.type("import time; print('part' + 'ial', end='', flush=True); time.sleep(1000)\r")
    screen.follow("partial")
    screen.type("\x03")
    screen.follow("In [2]:")


def test_the_terminal_is_calm_after_a_wild_cell(screen: Screen) -> None:
    screen.type("print('\\033[?1049h\\033[?25l\\033(0\\033[31m', 'wi' + 'ld', end='')\r")
    screen.follow(" wild")
    wild = screen.followed
    screen.follow("In [2]:")
    calmed = screen.shown[wild : screen.followed]
    for calming in (b"\033[?1047l", b"\033[?25h", b"\033(B", b"\033[0m"):
        assert calming in calmed
    screen.type("\x04")
    assert screen.end() == 0
    assert screen.is_restored()


def test_an_ended_kernel_is_replaced_and_said_so(screen: Screen) -> None:
    screen.type("open('kept', 'w').close(); import os; os._exit(3)\r")
    screen.follow("exited with 3")
    screen.follow("In [1]:")
    screen.type("os.path.exists('kept')\r")
    screen.follow("NameError")
    screen.type("import os; os.path.exists('kept')\r")
    screen.follow("Out[2]: True")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_the_terminal_is_restored_when_we_are_stopped(
    screen: Screen, number: signal.Signals
) -> None:
    assert not screen.is_restored()
    screen.process.send_signal(number)
    assert screen.end() == 128 + number
    assert screen.is_restored()


@pytest.mark.parametrize("doing", ["waiting", "running"])
def test_a_closed_window_ends_the_session(prepared: Atoll, doing: str) -> None:
    screen = Screen(prepared, "repl")
    screen.follow("In [1]:", 60)
    if doing == "running":
        screen.type("import time; print('be' + 'gun'); time.sleep(1000)\r")
        screen.follow("begun")
    screen.close_window()
    assert screen.process.wait(timeout=60) == 128 + signal.SIGHUP


def test_a_reader_who_has_gone_ends_it_quietly(prepared: Atoll) -> None:
    process = prepared.start(
        "repl", stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdin is not None and process.stdout is not None
    process.stdout.close()
    process.stdin.write(b"1\n")
    process.stdin.flush()
    assert process.wait(timeout=60) == 141
    process.stdin.close()
    assert process.stderr is not None
    assert own_words(process.stderr.read()) == b""
    process.stderr.close()


def test_an_interrupt_at_the_prompt_does_not_end_the_session(screen: Screen) -> None:
    screen.process.send_signal(signal.SIGINT)
    screen.type("6 * 7\r")
    screen.follow("Out[1]: 42")


def test_history_is_kept_from_one_run_to_the_next(prepared: Atoll) -> None:
    for prompt in ("'remem' + 'bered'\r", "\x1b[A\r"):
        screen = Screen(prepared, "repl")
        try:
            screen.follow("In [1]:", 60)
            screen.type(prompt)
            screen.follow("Out[1]: 'remembered'")
            screen.follow("In [2]:")
            screen.type("\x04")
            assert screen.end() == 0
        finally:
            screen.close()
    assert stat.S_IMODE(history(prepared).stat().st_mode) == 0o600


def test_files_variables_and_limits_are_those_asked_for(prepared: Atoll, tmp_path: Path) -> None:
    source, kept = tmp_path / "in", tmp_path / "out"
    source.mkdir()
    (source / "a").write_text("first")
    done = prepared(
        "repl",
        *("--files", str(source), "--keep", str(kept), "--env", "NAME=value"),
        stdin=b"import os; open('b', 'w').write(open('a').read() + os.environ['NAME'])\n",
    )
    assert done.returncode == 0
    assert (kept / "b").read_text() == "firstvalue"


def test_a_pipe_is_run_cell_by_cell(prepared: Atoll) -> None:
    code = """
def double(a):
    b = a

    return b * 2
# a comment in between
double(21)
if False:
    1
else:
    print('else')
%%bash
echo magic

'''text

of several lines'''
1 / 0
print('goes on')
"""
    done = prepared("repl", stdin=code.encode())
    assert done.returncode == 0
    assert done.stdout.decode().splitlines() == [
        "42", "else", "magic", r"'text\n\nof several lines'", "goes on",
    ]  # fmt: skip
    assert b"ZeroDivisionError" in done.stderr
    assert b"\033" not in done.stdout


def test_a_pipe_is_answered_line_by_line(prepared: Atoll) -> None:
    ours, theirs = os.pipe()
    answers, answering = os.pipe()
    process = prepared.start("repl", stdin=ours, stdout=answering)
    os.close(ours)
    os.close(answering)
    with os.fdopen(theirs, "wb", 0) as questions, os.fdopen(answers, "rb") as replies:
        questions.write(b"6 * 7\n")
        assert replies.readline() == b"42\n"
        questions.write(b"_ + 1\n")
        assert replies.readline() == b"43\n"
    assert process.wait(timeout=60) == 0


def test_an_unfinished_end_is_an_error_of_the_code(prepared: Atoll) -> None:
    done = prepared("repl", stdin=b"print(1)\nprint(")
    assert (done.returncode, done.stdout) == (0, b"1\n")
    assert b"SyntaxError" in done.stderr


def test_a_failure_of_ours_is_told(prepared: Atoll, fake_atoll: Atoll) -> None:
    done = prepared("repl", "--engine", "nonsense", stdin=b"1")
    assert done.returncode == 125
    assert b"nonsense" in own_words(done.stderr)
    done = fake_atoll("repl", stdin=b"1")
    assert done.returncode == 125
    assert done.stderr.startswith(b"atoll: ")


def test_a_shell_is_talked_to_as_well(prepared: Atoll) -> None:
    shown = Screen(prepared, "repl", "--language", "bash")
    shown.follow("Bash in a sandbox of its own", 60)
    shown.follow("In [1]:", 60)
    shown.type("x=6; cd /usr\r")
    shown.follow("In [2]:")
    shown.type("for i in 1 2; do\r")
    shown.follow("...:")
    shown.type("echo $((x * i))\r")
    shown.follow("...:")
    shown.type("done; pwd; false\r")
    shown.follow("12\r\n/usr\r\nExitCode 1")
    shown.follow("In [3]:")
    shown.type("echo up$x; sleep 1000\r")
    shown.follow("up6")
    shown.type("\x03")
    shown.follow("In [4]:")
    shown.type("exit\r")
    assert shown.end() == 0
    assert shown.is_restored()


@dataclass(frozen=True)
class Talk:
    """What a person types in a language, and what is seen of it."""

    name: str
    keep: str
    use: str
    value: str
    complete: tuple[str, str]  # Tab comes between both
    completed: str
    fail: str
    failure: str
    wait: str


TALKS = {
    "node": Talk(
        name="Node",
        keep="const xs = [20, 1]",
        use="xs[0] + xs[1]",
        value="21",
        complete=("xs.leng", " + 40"),
        completed="42",
        fail="nope()",
        failure="nope is not defined",
        wait="console.log('wait' + 'ing'); await new Promise(() => setInterval(() => 1, 1e6))",
    ),
    "r": Talk(
        name="R",
        keep="xs <- c(20, 1)",
        use="sum(xs)",
        value="[1] 21",
        complete=("is.numer", "(xs)"),
        completed="[1] TRUE",
        fail="stop('no ' , 'way')",
        failure="no way",
        wait=r"cat(paste0('wait', 'ing\n')); Sys.sleep(1000)",
    ),
    "julia": Talk(
        name="Julia",
        keep="xs = [20, 1]",
        use="sum(xs)",
        value="21",
        complete=("isnumer", "('7')"),
        completed="true",
        fail='error("no ", "way")',
        failure="no way",
        wait='println("wait" * "ing"); sleep(1000)',
    ),
}


@pytest.mark.parametrize("language", ["node", "r", pytest.param("julia", marks=needs_julia)])
def test_other_languages_are_talked_to_as_well(prepared: Atoll, language: str) -> None:
    talk = TALKS[language]
    shown = Screen(prepared, "repl", "--language", language)
    try:
        shown.follow(f"{talk.name} in a sandbox of its own")
        shown.follow("In [1]:")
        shown.type(f"{talk.keep}\r")
        shown.follow("In [2]:")
        shown.type(f"{talk.use}\r")
        shown.follow(talk.value)
        shown.follow("In [3]:")
        before, after = talk.complete
        shown.type(f"{before}\t")
        shown.read_for(1)
        shown.type(f"{after}\r")
        shown.follow(talk.completed)
        shown.follow("In [4]:")
        shown.type(f"{talk.fail}\r")
        shown.follow(talk.failure)
        shown.follow("In [5]:")
        shown.type(f"{talk.wait}\r")
        shown.follow("waiting")
        shown.type("\x03")
        shown.follow("In [6]:")
        shown.type(f"{talk.use}\r")
        shown.follow(talk.value)
        shown.follow("In [7]:")
        shown.type("\x04")
        assert shown.end() == 0
        assert shown.is_restored()
    finally:
        shown.close()


def test_a_language_without_kernels_is_refused(prepared: Atoll) -> None:
    result = prepared("repl", "--language", "cobol")
    assert result.returncode == 2
    assert b"cobol" in result.stderr
