"""`atoll run`, as a real process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.cli.conftest import Atoll, own_words
from tests.kernels.julia_presence import needs_julia

SH = ("--language", "sh", "-c")


def test_output_and_exit_code_are_the_programs(atoll: Atoll) -> None:
    done = atoll("run", *SH, "echo out; echo err >&2; exit 3")
    assert (done.returncode, done.stdout) == (3, b"out\n")
    assert own_words(done.stderr) == b"err\n"


def test_bytes_pass_through_unchanged(atoll: Atoll) -> None:
    data = bytes(range(256)) * 1000
    assert atoll("run", *SH, "cat", stdin=data).stdout == data


def test_standard_input_is_the_programs_when_a_file_is_given(atoll: Atoll, tmp_path: Path) -> None:
    script = tmp_path / "copy.sh"
    script.write_text("cat")
    assert atoll("run", "--language", "sh", str(script), stdin=b"abc").stdout == b"abc"


def test_a_program_on_standard_input(atoll: Atoll) -> None:
    for words in ((), ("-",)):
        assert atoll("run", "--language", "sh", *words, stdin=b"echo hello").stdout == b"hello\n"


def test_a_program_on_standard_input_has_no_input_itself(atoll: Atoll) -> None:
    assert atoll("run", "--language", "sh", stdin=b"cat; echo end").stdout == b"end\n"


def test_a_standard_input_that_stays_open_does_not_keep_us(atoll: Atoll) -> None:
    reading, writing = os.pipe()
    try:
        assert atoll("run", *SH, "echo done", stdin=reading).stdout == b"done\n"
    finally:
        os.close(reading)
        os.close(writing)


def test_programs_and_arguments_that_are_no_text(atoll: Atoll) -> None:
    done = atoll("run", *SH, os.fsdecode(b"echo \xff\xfe"))
    assert done.stdout == b"\xff\xfe\n"


def test_a_closed_standard_input_is_an_empty_one(atoll: Atoll) -> None:
    done = atoll("run", *SH, "cat; echo end", preexec_fn=lambda: os.close(0))
    assert (done.returncode, done.stdout) == (0, b"end\n")


def test_a_signal_is_told_as_shells_do(atoll: Atoll) -> None:
    done = atoll("run", *SH, "kill -TERM $$")
    assert done.returncode == 128 + signal.SIGTERM
    assert b"SIGTERM" in done.stderr


def test_a_timeout_ends_the_program_with_124(atoll: Atoll) -> None:
    # On a busy machine more than a second may pass before anything is printed.
    for seconds in ("1", "10", "30"):
        done = atoll("run", "--timeout", seconds, *SH, "echo started; sleep 1000")
        if done.stdout:
            break
    assert (done.returncode, done.stdout) == (124, b"started\n")
    assert f"atoll: stopped after {seconds} s".encode() in done.stderr


def test_a_timeout_is_noticed_while_nobody_reads(atoll: Atoll) -> None:
    process = atoll.start(
        "run", "--timeout", "1", *SH, "head -c 400000 /dev/zero; sleep 1000", stdout=subprocess.PIPE
    )
    with process:
        assert process.wait(timeout=60) == 124


def test_arguments_after_the_program_are_the_programs(real_atoll: Atoll, tmp_path: Path) -> None:
    script = tmp_path / "show.sh"
    script.write_text('echo "$1" "$2"')
    done = real_atoll("run", "--language", "sh", str(script), "--json", "-x")
    assert done.stdout == b"--json -x\n"


def test_environment_variables(atoll: Atoll) -> None:
    done = atoll("run", "--env", "A=1", "--env", "B=x=y", *SH, 'echo "$A" "$B"')
    assert done.stdout == b"1 x=y\n"


def test_files_are_copied_in_and_the_program_keeps_its_place(atoll: Atoll, tmp_path: Path) -> None:
    tree = tmp_path / "project"
    (tree / "tools").mkdir(parents=True)
    (tree / "data.txt").write_text("data")
    (tree / "tools/go.sh").write_text("cat data.txt; cat tools/go.sh")
    done = atoll("run", "--files", str(tree), "--language", "sh", str(tree / "tools/go.sh"))
    assert done.stdout.startswith(b"datacat data.txt")


def test_the_workspace_is_kept_on_demand(atoll: Atoll, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    done = atoll("run", "--keep", str(kept), *SH, "mkdir d; echo 1 > d/one; exit 4")
    assert done.returncode == 4, done.stderr
    assert (kept / "d/one").read_text() == "1\n"


def test_json_tells_everything(atoll: Atoll) -> None:
    limited = ("--json", "--best-effort", "--memory", "256m")
    done = atoll("run", *limited, *SH, "echo out; echo err >&2; exit 3")
    told = json.loads(done.stdout)
    assert (done.returncode, own_words(done.stderr)) == (3, b"")
    assert told["engine"] == atoll.engine
    assert told["limits"]["memory_bytes"] == 256 << 20
    assert set(told["enforced_by"]) == set(told["limits"])
    assert (told["exit_code"], told["signal"], told["reason"]) == (3, None, "exited")
    assert (told["stdout"], told["stderr"]) == ("out\n", "err\n")
    assert told["timed_out"] is told["stdout_truncated"] is told["stderr_truncated"] is False
    assert told["duration"] > 0


def test_json_keeps_bytes_that_are_no_text(atoll: Atoll) -> None:
    told = json.loads(atoll("run", "--json", *SH, r"printf '\377\000'").stdout)
    assert (told["stdout"], told["stdout_base64"]) == (None, "/wA=")


def test_json_of_a_cut_text_is_still_text(atoll: Atoll) -> None:
    program = "cat"
    told = json.loads(atoll("run", "--json", *SH, program, stdin="xä".encode() * 600_000).stdout)
    assert told["stdout_truncated"]
    assert set(told["stdout"]) == {"x", "ä"}


def test_json_of_a_timeout(atoll: Atoll) -> None:
    done = atoll("run", "--json", "--timeout", "0.5", *SH, "sleep 1000")
    told = json.loads(done.stdout)
    assert (done.returncode, told["exit_code"], told["reason"]) == (124, None, "timed_out")


def test_json_of_our_own_failure(real_atoll: Atoll) -> None:
    done = real_atoll("run", "--json", "--engine", "nonsense", "-c", "1")
    told = json.loads(done.stdout)
    assert done.returncode == 125
    assert told["error"]["code"] == "invalid_request"
    assert "nonsense" in told["error"]["message"]
    assert b"next: " in done.stderr


def test_a_missing_interpreter_is_named(atoll: Atoll) -> None:
    done = atoll("run", "--language", "ruby", "-c", "puts 1")
    if done.returncode == 0:
        pytest.skip("ruby is installed here")
    assert done.returncode == 127
    assert b"ruby" in done.stderr


def test_a_reader_that_leaves_ends_the_program(real_atoll: Atoll) -> None:
    process = real_atoll.start(
        "run", *SH, "while true; do echo y; done", stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None and process.stderr is not None
    process.stdout.read(2)
    process.stdout.close()
    assert process.wait(timeout=60) == 128 + signal.SIGPIPE
    assert own_words(process.stderr.read()) == b""
    process.stderr.close()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_us_ends_the_program_and_us(atoll: Atoll, number: signal.Signals) -> None:
    process = atoll.start("run", *SH, "echo started; sleep 1000", stdout=subprocess.PIPE)
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"started\n"
        process.send_signal(number)
        assert process.wait(timeout=60) == 128 + number


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--memory", "lots", "x.py"), "size 'lots' is not understood"),
        (("--memory", "1k", "x.py"), "limit memory_bytes is 1024"),
        (("--cpus", "0", "x.py"), "limit cpus is 0.0"),
        (("--processes", "many", "x.py"), "--processes"),
        (("--timeout", "-1", "x.py"), "seconds above 0"),
        (("--timeout", "nan", "x.py"), "seconds above 0"),
        (("--language", "cobol", "x.py"), "is none of python"),
        (("--env", "NOVALUE", "x.py"), "is not NAME=VALUE"),
        (("--files", "/nowhere", "x.py"), "--files /nowhere is not a directory"),
        (("--keep", "/etc", "x.py"), "--keep /etc is not empty"),
        (("--keep", "/nowhere/x", "x.py"), "/nowhere does not exist"),
        (("--keep", "/etc/passwd", "x.py"), "is not a directory"),
        (("/nowhere/x.py",), "cannot read /nowhere/x.py: No such file or directory"),
        (("/etc",), "Is a directory"),
        (("--jsn", "x.py"), "--jsn"),
        (("--image", "debian", "x.py"), "go with --engine docker or --engine podman"),
        (("--engine", "gvisor", "--runtime", "runsc", "x.py"), "gvisor makes no containers"),
        (("--engine", "docker", "--image", "a b", "x.py"), "--image: image 'a b' is no name"),
        (("--engine", "docker", "--pull", "sometimes", "x.py"), "--pull"),
    ],
)
def test_a_mistyped_command_line_is_explained(
    fake_atoll: Atoll, arguments: tuple[str, ...], says: str
) -> None:
    done = fake_atoll("run", *arguments)
    error = done.stderr.decode()
    assert done.returncode == 2
    assert done.stdout == b""
    assert says in error
    assert error.startswith("atoll: ")
    assert error.endswith("next: atoll run --help\n")


def test_an_unknown_engine_is_our_failure(real_atoll: Atoll) -> None:
    done = real_atoll("run", "--engine", "nonsense", "-c", "1")
    assert done.returncode == 125
    assert b"nonsense" in done.stderr


def test_limits_that_cannot_be_enforced_are_told_or_refused(real_atoll: Atoll) -> None:
    told = json.loads(real_atoll("run", "--json", "-c", "1").stdout)
    weak = told["enforced_by"]["memory_bytes"] != "cgroup"
    done = real_atoll("run", "--memory", "256m", "-c", "print(1)")
    assert (done.returncode == 125) is weak
    assert (b"--best-effort" in done.stderr) is weak
    accepted = real_atoll("run", "--best-effort", "--memory", "256m", "-c", "print(1)")
    assert accepted.stdout == b"1\n"
    assert (b"atoll: no control group" in accepted.stderr) is weak


def test_names_from_inside_cannot_steer_the_terminal(real_atoll: Atoll, tmp_path: Path) -> None:
    hostile = r"import os; os.symlink('/etc', 'x\x1b]52;c;aGk=\x07\nforged: line')"
    done = real_atoll("run", "--keep", str(tmp_path / "kept"), "-c", hostile)
    assert done.returncode == 0
    assert b"were not copied" in done.stderr
    assert b"\x1b" not in done.stderr and b"\x07" not in done.stderr
    assert not any(line.startswith(b"forged") for line in done.stderr.splitlines())


# From here on: what only a real engine can show.


def test_python_programs(real_atoll: Atoll, tmp_path: Path) -> None:
    script = tmp_path / "main.py"
    script.write_text("import sys, os; print(sys.argv, os.getcwd(), __file__)")
    done = real_atoll("run", str(script), "a", "-b")
    assert done.returncode == 0, done.stderr
    assert b"'a', '-b'] /workspace" in done.stdout
    assert real_atoll("run", "-c", "import sys; print(sys.argv)", "x").stdout == b"['-c', 'x']\n"


def test_the_language_is_guessed(real_atoll: Atoll, tmp_path: Path) -> None:
    (tmp_path / "a.sh").write_text("echo $BASH_VERSION")
    (tmp_path / "b").write_text("#!/usr/bin/env bash\necho $BASH_VERSION")
    for name in ("a.sh", "b"):
        assert real_atoll("run", str(tmp_path / name)).stdout.strip()


def test_a_memory_limit_is_named_when_it_is_met(real_atoll: Atoll) -> None:
    done = real_atoll(
        "run", "--best-effort", "--memory", "64m", "-c", "b = bytearray(1 << 30); print(1)"
    )
    assert done.returncode != 0
    assert b"emory" in done.stderr


def test_a_cold_start_loads_little(real_atoll: Atoll) -> None:
    """Most of its time goes into modules; how many it takes does not depend on how busy the machine is."""
    env = {**real_atoll.env, "PYTHONPROFILEIMPORTTIME": "1"}
    ended = real_atoll("run", "-c", "print(1)", env=env)
    assert ended.stdout == b"1\n"
    assert ended.stderr.count(b"import time:") < 320


@needs_julia
def test_a_program_of_julia_finds_it_wherever_it_lives(real_atoll: Atoll, tmp_path: Path) -> None:
    (tmp_path / "sum.jl").write_text("println(sum(parse.(Int, ARGS)))")
    done = real_atoll("run", str(tmp_path / "sum.jl"), "20", "22")
    assert (done.returncode, done.stdout) == (0, b"42\n")
    done = real_atoll("run", "--language", "julia", "-c", "print(ARGS)", "x")
    assert (done.returncode, done.stdout) == (0, b'["x"]')
