"""What cells do to their own interpreter harms them, and not the kernel's answers."""

from __future__ import annotations

import pytest

from tests.atoll_guest.guests import Guest
from tests.campaigns import Campaign

DAMAGE = {
    "closed descriptors": "import os\nfor n in range(100):\n    try: os.close(n)\n    except OSError: pass",
    "closed stdout": "import sys; sys.stdout.close(); sys.stderr.close(); sys.stdin.close()",
    "recursion limit": "import sys; sys.setrecursionlimit(40)",
    "json": "import json\nfor n in dir(json):\n    if n[0] != '_': setattr(json, n, None)",
    "linecache": "import linecache; linecache.cache = linecache.getlines = None",
    "ast": "import ast; ast.parse = ast.Expr = ast.Expression = None",
    "socket": "import socket; socket.socket = None",
    "os": "import os; os.write = os.read = os.dup2 = os.getpid = None",
    "signal": "import signal; signal.signal = signal.getsignal = None",
    "modules": "import sys; sys.modules.clear()",
    "a built-in name": "import builtins; builtins.repr = builtins.type = None",
    "many built-in names": "import builtins\nfor n in ('len', 'type', 'isinstance', 'str', 'getattr', 'dict'): delattr(builtins, n)",
    "hooks": "import sys; sys.displayhook = sys.excepthook = None",
    "garbage": "import gc; gc.disable(); gc.set_threshold(1)",
}


@pytest.mark.parametrize("code", DAMAGE.values(), ids=DAMAGE.keys())
def test_the_kernel_outlives_damage(guest: Guest, code: str) -> None:
    guest.run("x = 40")
    assert guest.run(code).status == "ok"
    assert guest.run("x + 2").text == "42"
    assert guest.run("print('shown')").stdout == b"shown\n"
    assert guest.run("1 / 0").error == "ZeroDivisionError"
    assert guest.run("x + 2").text == "42"


def test_output_that_was_sent_elsewhere_stays_there(guest: Guest, tmp_path: object) -> None:
    guest.run(f"import os; os.dup2(os.open('{tmp_path}/out', os.O_WRONLY | os.O_CREAT), 1)")
    answer = guest.run("print('there'); display(1)")
    assert b"there" not in answer.stdout
    assert answer.stdout.startswith(b"\x1e")  # the display's mark is for the host
    assert guest.run(f"open('{tmp_path}/out').read()").text == "'there\\n'"


def test_the_channel_is_out_of_the_way(guest: Guest) -> None:
    assert guest.run("import os; f = os.open('/', 0); f").text == "3"
    assert guest.run("os.system('ls /proc/self/fd')").stdout.split() == [b"0", b"1", b"2", b"3"]


def test_a_closed_channel_is_the_kernels_end_and_told(guest: Guest) -> None:
    guest.send({"type": "execute", "id": "a", "code": "import os; os.close(200)", "silent": False})
    with pytest.raises(EOFError):
        guest.receive()
    _, stderr = guest.process.communicate()
    assert b"cannot go on" in stderr


@pytest.mark.parametrize(
    ("child", "exit_code", "told"),
    [
        ("print('from the copy')", 0, b"forked copy"),
        ("1 / 0", 1, b"ZeroDivisionError"),
        ("display(1)", 1, b"cannot display"),
        ("input()", 1, b"cannot ask"),
        ("raise SystemExit(3)", 3, b""),
        ("%time 1", 0, b"forked copy"),
    ],
)
def test_a_forked_copy_has_no_part_in_the_protocol(
    guest: Guest, child: str, exit_code: int, told: bytes
) -> None:
    code = f"import os\npid = os.fork()\nif pid == 0:\n    {child}\nelse:\n    _, status = os.waitpid(pid, 0)"
    answer = guest.run(code)
    assert (answer.status, len(answer.messages)) == ("ok", 1)
    assert told in answer.stderr
    assert guest.run("os.waitstatus_to_exitcode(status)").text == str(exit_code)


def test_a_copy_that_python_knows_nothing_of_ends_too(guest: Guest) -> None:
    code = "import ctypes, os\npid = ctypes.CDLL(None).fork()\nif pid: _ = os.waitpid(pid, 0)"
    answer = guest.run(code)
    assert (answer.status, len(answer.messages)) == ("ok", 1)
    assert b"forked copy" in answer.stderr


def test_threads_may_go_on_after_their_cell(guest: Guest) -> None:
    code = (
        "import threading\ngo = threading.Event()\n"
        "def work():\n    go.wait(); print('printed'); display('displayed'); done.set()\n"
        "done = threading.Event()\nthreading.Thread(target=work).start()"
    )
    guest.run(code)
    # Between cells, from which nobody can see this; a later cell waits for it.
    guest.run("threading.Timer(0.1, go.set).start()")
    answer = guest.run("done.wait(); 1 + 1")
    assert answer.text == "2"
    assert guest.run("1 + 1").text == "2"


def test_displays_of_threads_belong_to_the_cell_that_runs(guest: Guest, campaign: Campaign) -> None:
    code = (
        "import threading, time\nstop = False\n"
        "def work():\n    while not stop: display(1); time.sleep(0.0002)\nthreading.Thread(target=work).start()"
    )
    guest.run(code)
    for _ in range(campaign.count(2000)):
        assert guest.run("1 + 1").text == "2"
    guest.run("stop = True")


def test_running_out_of_memory_is_an_error_like_others(guest: Guest) -> None:
    code = (
        "import resource\n"
        "now = int(open('/proc/self/statm').read().split()[0]) * 4096\n"
        "resource.setrlimit(resource.RLIMIT_AS, (now + (64 << 20), -1))\n"
        "def fill():\n    kept = []\n    while True: kept.append(bytearray(100_000))\n"
        "fill()"
    )
    assert guest.run(code).error == "MemoryError"
    assert guest.run("len(bytearray(32 << 20))").text == str(32 << 20)
