"""Cells of Bash: one shell that keeps its state, tells its exit codes and heeds interrupts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from atoll import Sandbox
from atoll.errors import InvalidRequest
from atoll.model.kernel import Cell, CellStatus
from tests.kernels.interrupts import interrupted


@pytest.fixture(scope="module")
def sandbox(engine: str) -> Iterator[Sandbox]:
    with Sandbox(engine=engine) as sandbox:
        yield sandbox


@pytest.fixture(autouse=True)
def _fresh(request: pytest.FixtureRequest, sandbox: Sandbox) -> Iterator[None]:
    """Give each test a shell of its own."""
    yield
    for kernel in sandbox.kernels.list():
        if kernel.language == "bash":
            sandbox.kernels.close(kernel.id)


def bash(sandbox: Sandbox, code: str, timeout: float = 30.0) -> Cell:
    return sandbox.run_code(code, language="bash", timeout=timeout)


# What is run, one cell after the other, and what the last one prints.
STATE = {
    "variables": (["x=5", "echo $x"], "5\n"),
    "arrays": (["a=(1 2 3)", 'echo "${a[@]}" ${#a[@]}'], "1 2 3 3\n"),
    "associative arrays": (["declare -A m=([k]=v)", 'echo "${m[k]}"'], "v\n"),
    "integers": (["declare -i n=2", "n+=3; echo $n"], "5\n"),
    "exported variables": (["export E=yes", "sh -c 'echo $E'"], "yes\n"),
    "functions": (["f() { echo f$1; }", "f 3"], "f3\n"),
    "aliases": (["alias hi='echo hello'", "hi"], "hello\n"),
    "directory": (["mkdir -p deep; cd deep", "pwd"], "/workspace/deep\n"),
    "options": (["set -u", "(echo $nothing_here) 2>/dev/null; echo $?"], "1\n"),
    "shell options": (["shopt -s extglob", "shopt extglob"], "extglob        \ton\n"),
    "descriptors": (["exec 7<<<kept", "read line <&7; echo $line"], "kept\n"),
    "positional parameters": (["set -- a b", 'echo $# "$2"'], "2 b\n"),
    "the last exit code": (["(exit 3)", "echo $?"], "3\n"),
    "the last exit code of a success": (["true", "echo $?"], "0\n"),
    "umask": (["umask 027", "umask"], "0027\n"),
    "options, and a failure that ends nothing": (["set -e; false && true", "echo on"], "on\n"),
    "traps": (["trap 'echo bye' USR1", "kill -USR1 $$; :"], "bye\n"),
    "background jobs": (
        ["sleep 1000 & echo $! > pid", "kill -0 $(cat pid) && echo runs"],
        "runs\n",
    ),
    "here documents": (["cat <<END\none\ntwo\nEND"], "one\ntwo\n"),
    "several lines": (["for i in 1 2; do\n  echo $i\ndone"], "1\n2\n"),
    "case statements": (["case x in x) echo yes;; esac"], "yes\n"),
    "process substitution": (["cat <(echo sub)"], "sub\n"),
    "pipes": (["yes | head -n 2"], "y\ny\n"),
    "brace expansion": (["echo {a,b}{1,2}"], "a1 a2 b1 b2\n"),
    "exclamation marks": (["echo 'a!b' \"c!d\" !e"], "a!b c!d !e\n"),
    "backslashes": (["printf '%s\\n' 'a\\b'"], "a\\b\n"),
    "unicode": (["x=ü€𝄞; echo $x ${#x}"], "ü€𝄞 3\n"),
    "comments alone": (["# nothing"], ""),
    "nothing": ([""], ""),
    "no end of line": (["printf x"], "x"),
    "standard input is at its end": (["cat; read x; echo $?"], "1\n"),
    "what reads its input does not eat the next cell": (["cat > /dev/null", "echo here"], "here\n"),
    "quotes over lines": (["echo 'a\nb'"], "a\nb\n"),
    "arithmetic": (["echo $((6 * 7))"], "42\n"),
    "a dollar underscore": (["echo last; echo $_"], "last\nlast\n"),
    "the shell's own options": (["[[ $- == *i* ]] && echo interactive"], "interactive\n"),
    "a long cell": (["x=" + "a" * 200_000, "echo ${#x}"], "200000\n"),
}


@pytest.mark.parametrize("what", STATE)
def test_a_session_keeps(what: str, sandbox: Sandbox) -> None:
    cells, printed = STATE[what]
    for code in cells:
        cell = bash(sandbox, code)
    assert cell.stdout == printed


# What one cell prints: the language as people write it.
PRINTED = {
    "echo ${x:-none}": "none\n", "x=abc; echo ${x^^} ${x:1} ${x: -1} ${#x}": "ABC bc c 3\n",
    "x=a.b.c; echo ${x%.*} ${x%%.*} ${x#*.} ${x##*.}": "a.b a b.c c\n", "x=aXbX; echo ${x/X/-} ${x//X/-}": "a-bX a-b-\n",
    "a=(x y z); echo ${a[-1]} ${!a[@]} ${a[@]:1:2}": "z 0 1 2 y z\n", "a=(); a+=(1); a+=(2 3); echo ${#a[@]}": "3\n",
    "declare -A m; m[a]=1 m[b]=2; for k in $(printf '%s\\n' \"${!m[@]}\" | sort); do echo $k=${m[$k]}; done": "a=1\nb=2\n",
    "printf '%s-' a b c": "a-b-c-", "printf '%05.2f|%x|%o' 3.14159 255 8": "03.14|ff|10", "printf '%q' \"a b'c\"": "a\\ b\\'c",
    "echo $((2 ** 10)) $((7 % 3)) $((10 / 3)) $((1 << 4)) $((0xff)) $((2#101))": "1024 1 3 16 255 5\n",
    "i=1; ((i++)); ((i += 3)); echo $i": "5\n", "let 'x = 3 * 4'; echo $x": "12\n", "echo $(( 5 > 3 ? 1 : 0 ))": "1\n",
    "[[ abc == a* ]] && echo yes": "yes\n", "[[ abc =~ ^a(.)c$ ]] && echo ${BASH_REMATCH[1]}": "b\n",
    "[ 1 -lt 2 ] && echo less || echo not": "less\n", "test -d /usr && echo there": "there\n", "[[ -z '' && -n x ]]; echo $?": "0\n",
    "for ((i = 0; i < 3; i++)); do printf $i; done": "012", "for f in a b; do echo $f; done | tac": "b\na\n",
    "i=0; while ((i < 3)); do ((i++)); [ $i = 2 ] && continue; echo $i; done": "1\n3\n",
    "i=0; until [ $i = 2 ]; do i=$((i + 1)); done; echo $i": "2\n", "for i in 1 2 3; do [ $i = 2 ] && break; echo $i; done": "1\n",
    "select x in a b; do break; done < /dev/null 2> /dev/null; echo [$x]": "\n[]\n",
    "f() { local x=in; echo $x $# $1; }; x=out; f a b; echo $x": "in 2 a\nout\n", "f() { echo ${FUNCNAME[0]}; }; f": "f\n",
    "f() { return 3; }; f; echo $?": "3\n", "f() { echo \"$@\"; }; f 'a b' c": "a b c\n", "f() (cd /; pwd); f; pwd": "/\n/workspace\n",
    "fact() { (($1 < 2)) && echo 1 || echo $(($1 * $(fact $(($1 - 1))))); }; fact 5": "120\n",
    "cat <<'END'\n$x `y`\nEND": "$x `y`\n", "x=5; cat <<END\n$x\nEND": "5\n", "cat <<-END\n\tindented\n\tEND": "indented\n",
    "cat <<< 'a string'": "a string\n", "echo a > f; echo b >> f; cat f": "a\nb\n", "ls /no-such 2>&1 | grep -c no-such": "1\n",
    "{ echo out; echo err >&2; } 2> /dev/null": "out\n", "exec 3> three; echo kept >&3; exec 3>&-; cat three": "kept\n",
    "echo one two | { read a b; echo $b $a; }": "two one\n", "while read -r line; do echo [$line]; done <<< $'a\\nb'": "[a]\n[b]\n",
    "mapfile -t lines < <(printf '1\\n2\\n'); echo ${#lines[@]}": "2\n", "IFS=, read -ra parts <<< a,b,c; echo ${parts[1]}": "b\n",
    "read -r -d '' x <<< $'a\\nb' ; echo \"$x\"": "a\nb\n", "diff <(echo 1) <(echo 1) && echo same": "same\n", "echo x | tee >(cat > seen) | cat": "x\n",
    "echo $'tab\\there'": "tab\there\n", "echo \"a\\\\b\"": "a\\b\n", "echo 'it'\\''s'": "it's\n", "echo \"\\$x\"": "$x\n", "echo a\\ b": "a b\n",
    "echo ~": "/home/sandbox\n", "echo $HOME $USER": "/home/sandbox sandbox\n", "cd /tmp && cd - ": "/workspace\n", "pushd /usr > /dev/null; popd": "/workspace\n",
    "touch g1 g2; echo g?": "g1 g2\n", "shopt -s nullglob; echo no-*-such": "\n", "echo {1..5..2} {a..c}": "1 3 5 a b c\n",
    "(exit 3) || echo failed": "failed\n", "true && false || echo chain": "chain\n", "! false && echo negated": "negated\n",
    "set -e; true; echo on; set +e": "on\n", "set -o pipefail; false | true; echo $?; set +o pipefail": "1\n", "(set -u; echo $nothing) 2> /dev/null || echo unset": "unset\n",
    "trap 'echo left' EXIT; (trap 'echo sub' EXIT); trap - EXIT": "sub\n", "(sleep 0.1; echo late) & wait $!; echo $?": "late\n0\n",
    "sleep 1000 & kill $!; wait $! 2> /dev/null; echo $?": "143\n", "echo $(echo nested $(echo twice))": "nested twice\n", "x=`echo old`; echo $x": "old\n",
    "eval 'y=3; echo $y'": "3\n", "echo 'echo sourced' > s; . ./s": "sourced\n", "type -t echo if ls f_none; :": "builtin\nkeyword\nfile\n",
    "alias ll='echo listed'\nll": "listed\n", "command echo x; builtin echo y": "x\ny\n", "x=1 bash -c 'echo $x'; echo [$x]": "1\n[]\n",
    "case abc in a*) echo first;; *) echo other;; esac": "first\n", "case x in x) echo one;;& *) echo two;; esac": "one\ntwo\n",
    "declare -r c=1; (c=2) 2> /dev/null || echo constant": "constant\n", "declare -n ref=target; ref=5; echo $target": "5\n", "unset x; x+=a; x+=b; echo $x": "ab\n",
    "printf -v out '%03d' 7; echo $out": "007\n", "echo ${!HOM*}": "HOME\n", "name=HOME; echo ${!name}": "/home/sandbox\n", "echo a; # comment\necho b": "a\nb\n",
    "echo one \\\n  two": "one two\n", "time -p true 2> /dev/null; echo timed": "timed\n", "seq 3 | paste -sd+ | bc 2> /dev/null || echo 6": "6\n",
    "echo abc | sed s/b/X/ | tr a-z A-Z": "AXC\n", "printf 'b\\na\\n' | sort": "a\nb\n", "awk 'BEGIN { print 6 * 7 }'": "42\n", "python3 -c 'print(1 + 1)'": "2\n",
    "echo ünïcödé 日本 🐚": "ünïcödé 日本 🐚\n", "x='日本'; echo ${#x} ${x:1}": "2 本\n", "echo $BASH_VERSINFO | grep -c '[45]'": "1\n",
}  # fmt: skip


@pytest.mark.parametrize("code", PRINTED)
def test_a_cell_prints_as_bash_does(code: str, sandbox: Sandbox) -> None:
    cell = bash(sandbox, code)
    assert cell.stdout == PRINTED[code]
    assert cell.error is None or cell.error.name == "ExitCode"


# What is run, and the exit code of it.
CODES = {
    "true": 0, "false": 1, "(exit 77)": 77, "grep -q x /dev/null": 1, "no-such-program": 127,
    "/etc": 126, "true; false": 1, "false; true": 0, "false | true": 0, "kill -0 $$; :": 0,
    "sh -c 'kill -9 $$'": 137, "if": 2, "f() { return 9; }; f": 9, "set -o pipefail; false | true": 1,
    "! true": 1,
}  # fmt: skip


@pytest.mark.parametrize("code", CODES)
def test_a_cell_has_the_exit_code_of_its_last_command(code: str, sandbox: Sandbox) -> None:
    cell = bash(sandbox, code)
    assert cell.exit_code == CODES[code]
    assert cell.ok == (CODES[code] == 0)
    if not cell.ok:
        assert cell.error is not None
        assert (cell.error.name, cell.error.value) == ("ExitCode", str(CODES[code]))


def test_output_goes_to_its_stream_and_mistakes_are_told(sandbox: Sandbox) -> None:
    cell = bash(sandbox, "echo out; echo err >&2; ls /no-such-folder")
    assert cell.stdout == "out\n"
    assert cell.stderr.startswith("err\n")
    assert "/no-such-folder" in cell.stderr
    assert "unexpected end of file" in bash(sandbox, "if true; then").stderr


def test_any_bytes_can_be_printed_and_large_ones_too(sandbox: Sandbox) -> None:
    assert bash(sandbox, "printf '\\xff\\xfe ok\\n'").stdout == "\ufffd\ufffd ok\n"
    large = bash(sandbox, "head -c 10000000 /dev/zero | tr '\\0' x")
    assert large.ok
    assert large.truncated
    assert set(large.stdout) == {"x"}


ENDLESS = {
    "sleeping": "sleep 1000; echo after",
    "computing": "while :; do :; done",
    "in a function": "f() { while :; do :; done; }; f; echo after",
    "in a pipe": "sleep 1000 | cat; echo after",
    "in a subshell": "(while :; do :; done); echo after",
    "waiting for a job": "sleep 1000 & wait; echo after",
    "reading": "read x < <(sleep 1000); echo after",
    "in a substitution": "x=$(sleep 1000); echo after",
    "in a child": "python3 -c 'import time; time.sleep(1000)'; echo after",
    "in a loop of commands": "while :; do /bin/true; done",
}


@pytest.mark.parametrize("what", ENDLESS)
def test_a_timeout_ends_a_cell_and_keeps_the_session(
    what: str, sandbox: Sandbox, patient: None
) -> None:
    bash(sandbox, "kept=yes")
    cell = bash(sandbox, ENDLESS[what], timeout=0.3)  # it never ends by itself
    assert cell.status is CellStatus.TIMED_OUT
    assert "after" not in cell.stdout
    assert bash(sandbox, "echo $kept").stdout == "yes\n"


def test_a_cell_that_does_not_heed_interrupts_costs_its_kernel(sandbox: Sandbox) -> None:
    cell = bash(sandbox, "trap '' INT; sleep 1000", timeout=0.3)
    assert cell.status is CellStatus.DIED
    assert cell.death
    assert bash(sandbox, "echo new").stdout == "new\n"


STORMS = {
    "programs without end": "while :; do sleep 1000 & done",
    "copies without end": "storm() { storm | storm & }; storm; while :; do :; done",
}


@pytest.mark.parametrize("what", STORMS)
def test_a_storm_of_processes_ends_at_its_limit(what: str, sandbox: Sandbox) -> None:
    cell = bash(sandbox, STORMS[what], timeout=0.5)
    assert cell.status in (CellStatus.TIMED_OUT, CellStatus.DIED)
    assert bash(sandbox, "echo goes on").stdout == "goes on\n"


def test_an_interrupt_from_elsewhere_ends_the_cell(sandbox: Sandbox, patient: None) -> None:
    kernel = sandbox.kernels.open("bash")
    cell = interrupted(sandbox, "x=3; echo up; sleep 1000", kernel.id)
    assert cell.status is CellStatus.INTERRUPTED
    assert sandbox.run_code("echo $x", kernel=kernel.id).stdout == "3\n"


def test_an_interrupt_is_heeded_at_whatever_moment_it_comes(
    sandbox: Sandbox, patient: None
) -> None:
    kernel = sandbox.kernels.open("bash")
    sandbox.run_code("kept=yes", kernel=kernel.id)
    for moment in range(40):
        code = "echo up; sleep 1000; sleep 1000"
        cell = interrupted(sandbox, code, kernel.id, pause=moment * 0.0005)
        assert cell.status is CellStatus.INTERRUPTED
    assert sandbox.run_code("echo $kept", kernel=kernel.id).stdout == "yes\n"


# Interrupts a session again and again, so that some come while its shell reads what it is to do next.
_STORM = "import os, time\nfor _ in range(300): os.killpg(os.getpgid({pid}), 2); time.sleep(0.0002)"


def test_a_storm_of_interrupts_costs_the_cell_alone(sandbox: Sandbox, patient: None) -> None:
    shell = bash(sandbox, "kept=yes; echo $$").stdout.strip()

    def strike(_text: str) -> None:
        command = ["python3", "-c", _STORM.format(pid=shell)]
        sandbox.commands.run(command).check()

    for _ in range(3):
        cell = sandbox.run_code("echo up; sleep 1000", language="bash", on_stdout=strike)
        assert cell.status is CellStatus.INTERRUPTED
        assert bash(sandbox, "echo $kept").stdout == "yes\n"


def test_a_cell_may_end_its_shell_and_the_next_one_has_a_new_one(sandbox: Sandbox) -> None:
    bash(sandbox, "x=5")
    cell = bash(sandbox, "sleep 1000 & exit 4")
    assert cell.error is not None
    assert "exit code 4" in cell.error.value
    assert bash(sandbox, "echo [$x]").stdout == "[]\n"
    killed = bash(sandbox, "kill -9 $$")
    assert killed.error is not None
    assert "signal 9" in killed.error.value
    assert bash(sandbox, "echo again").stdout == "again\n"


def test_the_kernel_s_own_pipes_are_out_of_reach_of_what_a_cell_starts(sandbox: Sandbox) -> None:
    code = "python3 -c 'import os; print(*os.listdir(\"/proc/self/fd\"))'"
    seen = bash(sandbox, code).stdout.split()
    assert {int(each) for each in seen} == {0, 1, 2, 3}


def test_kernels_of_several_languages_live_side_by_side(sandbox: Sandbox) -> None:
    sandbox.run_code("x = 'python'")
    bash(sandbox, "x=bash; echo file > shared")
    assert sandbox.run_code("x").text == "'python'"
    assert bash(sandbox, "echo $x").stdout == "bash\n"
    assert sandbox.run_code("open('shared').read()").text == "'file\\n'"
    assert {each.language for each in sandbox.kernels.list() if each.is_main} == {"python", "bash"}


def test_a_kernel_begins_where_and_with_what_it_was_told(sandbox: Sandbox, engine: str) -> None:
    kernel = sandbox.kernels.open("shell", cwd="/usr/lib", envs={"GREETING": "hi there"})
    assert (kernel.language, kernel.is_warm) == ("bash", False)
    assert (
        sandbox.run_code('pwd; echo "$GREETING"', kernel=kernel.id).stdout == "/usr/lib\nhi there\n"
    )
    other = sandbox.kernels.open("python", cwd="/usr", envs={"GREETING": "ho"})
    assert other.is_warm is (engine == "namespaces")
    code = "import os\n(os.getcwd(), os.environ['GREETING'])"
    assert sandbox.run_code(code, kernel=other.id).text == "('/usr', 'ho')"
    sandbox.kernels.close(other.id)


def test_a_restarted_kernel_speaks_its_language_still(sandbox: Sandbox) -> None:
    kernel = sandbox.kernels.open("bash")
    sandbox.run_code("x=1", kernel=kernel.id)
    assert sandbox.kernels.restart(kernel.id).language == "bash"
    assert sandbox.run_code("echo [$x]", kernel=kernel.id).stdout == "[]\n"


def test_a_wrong_language_is_refused(sandbox: Sandbox) -> None:
    with pytest.raises(InvalidRequest, match=r"cobol.*bash"):
        sandbox.run_code("1", language="cobol")
    kernel = sandbox.kernels.open("bash")
    with pytest.raises(InvalidRequest, match="speaks bash"):
        sandbox.run_code("1", language="python", kernel=kernel.id)


def test_names_commands_and_files_are_completed(sandbox: Sandbox) -> None:
    bash(sandbox, "some_name=1; some_function() { :; }; touch some_file")
    kernel = next(each for each in sandbox.kernels.list() if each.language == "bash")
    found = sandbox.complete("some_", kernel=kernel.id).matches
    assert {"some_name", "some_function", "some_file"} <= set(found)
    assert sandbox.complete("echo $some_na", kernel=kernel.id).matches == ["$some_name"]
    about = sandbox.inspect("some_function", kernel=kernel.id)
    assert about is not None
    assert "some_function is a function" in about.data["text/plain"]
    assert sandbox.inspect("no-such-word-at-all", kernel=kernel.id) is None


def test_a_sandbox_without_a_python_session_has_bash(engine: str) -> None:
    with Sandbox(template="base", engine=engine) as base:
        assert bash(base, "echo here").stdout == "here\n"


def test_a_command_that_is_killed_leaves_no_complaint_of_a_terminal(sandbox: Sandbox) -> None:
    cell = bash(sandbox, "bash -c 'kill -SEGV $$'; (bash -c 'kill -9 $$'); echo $?")
    assert (cell.stdout, cell.stderr) == ("137\n", "")


def test_a_new_shell_remembers_nothing_that_was_typed(sandbox: Sandbox) -> None:
    assert bash(sandbox, "history").stdout == ""
