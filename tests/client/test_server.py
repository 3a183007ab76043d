"""The SDK against a server: which way it takes, what it does when connections break, and that bytes arrive as they were written."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from functools import partial
from pathlib import Path

import anyio
import pytest

from atoll import AsyncSandbox, Progress, Sandbox
from atoll.client.remote.portal import _Errand
from atoll.errors import (
    Conflict,
    Forbidden,
    InvalidRequest,
    NotFound,
    Unauthorized,
    Unavailable,
)
from atoll.model.kernel import Cell
from atoll.model.process import CommandResult, Output
from tests.campaigns import Campaign
from tests.client.unsteady import unsteady
from tests.running_node import RunningNode, prepare_data, start_node
from tests.running_server import RunningServer

pytestmark = pytest.mark.any_user

# What no text is, characters that come in halves, ends of lines of all kinds, and none at the end.
HOSTILE = bytes(range(256)) + "é€𝄞\u2028\u0085".encode() + b"\r\n\x1c\xff\xfe\xc3"
PRINT = f"import sys, time\ndata = {HOSTILE!r}\nfor at in range(0, len(data), 7):\n    sys.stdout.buffer.write(data[at:at + 7])\n    sys.stdout.flush()"


def own_door(served: RunningServer) -> str:
    """The socket that only the server's own user can open; no token is needed there."""
    return f"unix://{served.socket_path}"


# --- who asks -------------------------------------------------------------------------------------------


async def make_token(served: RunningServer, scope: str) -> dict[str, str]:
    async with served.client() as http:
        made: dict[str, str] = await http.call(
            "POST", "/tokens", body={"name": "t", "scope": scope}
        )
        return made


async def test_a_token_says_who_asks(served: RunningServer) -> None:
    with pytest.raises(Unauthorized):
        await AsyncSandbox.create(url=served.url)
    with pytest.raises(Unauthorized):
        await AsyncSandbox.create(url=served.url, token="atoll_wrong")
    async with AsyncSandbox(url=served.url, token=served.token) as sandbox:
        reader = await make_token(served, "read")
        found = await AsyncSandbox.connect(sandbox.id, url=served.url, token=reader["token"])
        assert (await found.info()).id == sandbox.id
        with pytest.raises(Forbidden):
            await found.run_code("1")
        with pytest.raises(Unauthorized):
            await AsyncSandbox.connect(sandbox.id, url=served.url)


async def test_a_token_that_is_taken_back_opens_nothing_more(served: RunningServer) -> None:
    member = await make_token(served, "member")
    async with AsyncSandbox(url=served.url, token=served.token) as sandbox:
        used = await AsyncSandbox.connect(sandbox.id, url=served.url, token=member["token"])
        assert (await used.run_code("x = 1\nx")).text == "1"
        async with served.client() as http:
            await http.call("DELETE", f"/tokens/{member['id']}")
        with pytest.raises(Unauthorized):
            await used.run_code("x")
        assert (await sandbox.run_code("x")).text == "1"


# --- which way ------------------------------------------------------------------------------------------


async def test_all_cells_but_the_first_share_one_websocket(served: RunningServer) -> None:
    with unsteady(served.socket_path) as way:
        async with AsyncSandbox(url=way.address) as sandbox:
            for number in range(5):
                assert (await sandbox.run_code(str(number))).text == str(number)
        assert (way.upgrades, way.posts) == (1, 1)


# Comes to its end only if another cell runs beside it.
MEET = """
import os, time
open({own!r}, "w").close()
while not os.path.exists({other!r}): time.sleep(0.01)
"""


async def test_cells_at_once_have_one_each(served: RunningServer) -> None:
    with unsteady(served.socket_path) as way:
        async with AsyncSandbox(url=way.address) as sandbox:
            second = await sandbox.kernels.open()
            await sandbox.run_code("1")
            async with anyio.create_task_group() as tasks:
                for own, other, kernel in (("a", "b", None), ("b", "a", second.id)):
                    run = partial(sandbox.run_code, kernel=kernel)
                    tasks.start_soon(run, MEET.format(own=own, other=other))
            await sandbox.run_code("1")
        assert (way.upgrades, way.posts) == (2, 1)


async def test_where_no_websocket_gets_through_cells_are_requests(served: RunningServer) -> None:
    with unsteady(served.socket_path) as way:
        way.lets_upgrade = False
        async with AsyncSandbox(url=way.address) as sandbox:
            assert (await sandbox.run_code("x = 1\nx")).text == "1"
            assert (await sandbox.run_code("x + 1")).text == "2"
        assert (way.upgrades, way.posts) == (1, 2)


async def test_code_of_any_length_arrives(served: RunningServer) -> None:
    async with AsyncSandbox(url=own_door(served)) as sandbox:
        code = f"len({'é' * 700_000!r})"
        assert (await sandbox.run_code(code)).text == "700000"


def test_an_empty_address_means_this_process(
    served: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ATOLL_URL", own_door(served))
    with Sandbox(url="") as here, Sandbox() as there:
        assert here.id in [each.id for each in Sandbox.list(url="")]
        assert there.id in [each.id for each in Sandbox.list()]
        assert here.id not in [each.id for each in Sandbox.list()]
        with pytest.raises(NotFound):
            Sandbox.connect(here.id)


def test_what_cannot_be_meant_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="token is for a server"):
        Sandbox(token="x")
    with pytest.raises(Unavailable, match="no node answers"):
        Sandbox.create(url=f"unix://{tmp_path}/none.sock")
    with pytest.raises(InvalidRequest, match="ftp"):
        Sandbox.create(url="ftp://there")


def test_nothing_of_http_is_loaded_without_an_address() -> None:
    code = "import sys, atoll; atoll.Sandbox(); atoll.AsyncWorkspaces(); sys.exit('httpx2' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


# --- bytes ----------------------------------------------------------------------------------------------


async def test_bytes_of_commands_arrive_as_they_were_written(served: RunningServer) -> None:
    async with AsyncSandbox(url=own_door(served)) as sandbox:
        result = await sandbox.commands.run(["python3", "-c", PRINT])
        assert result.stdout == HOSTILE
        pieces = b""
        async for event in sandbox.commands.stream(["python3", "-c", PRINT]):
            if isinstance(event, Output):
                pieces += event.data
            else:
                assert isinstance(event, CommandResult) and event.stdout == HOSTILE
        assert pieces == HOSTILE
        assert (await sandbox.commands.run("cat", stdin=HOSTILE)).stdout == HOSTILE
        process = await sandbox.commands.start("cat", keep_stdin=True)
        await process.write(HOSTILE)
        await process.close_stdin()
        assert (await process.wait()).stdout == HOSTILE


@pytest.mark.parametrize("lets_upgrade", [True, False])
async def test_bytes_of_cells_arrive_as_they_were_written(
    served: RunningServer, lets_upgrade: bool
) -> None:
    with unsteady(served.socket_path) as way:
        way.lets_upgrade = lets_upgrade
        async with AsyncSandbox(url=way.address) as sandbox:
            pieces = b""
            async for event in sandbox.stream_code(PRINT):
                if isinstance(event, Output):
                    pieces += event.data
                elif isinstance(event, Cell):
                    assert event.stdout == HOSTILE.decode("utf-8", "replace")
            assert pieces == HOSTILE
            assert (await sandbox.run_code("'\\ud800 half'")).json is None


async def test_bytes_of_files_arrive_as_they_were_written(
    served: RunningServer, tmp_path: Path
) -> None:
    async with AsyncSandbox(url=own_door(served), files={"given": HOSTILE}) as sandbox:
        assert await sandbox.files.read("given") == HOSTILE
        name = "odd # name? 100%.bin"
        await sandbox.files.write(f"d/{name}", HOSTILE)
        await sandbox.files.download("d", tmp_path / "out")
        assert (tmp_path / "out" / name).read_bytes() == HOSTILE
        await sandbox.files.download(f"d/{name}", tmp_path / "one")
        assert (tmp_path / "one").read_bytes() == HOSTILE
        with pytest.raises(Conflict, match="one"):
            await sandbox.files.download(f"d/{name}", tmp_path / "one")
        await sandbox.files.upload(tmp_path / "one", "back")
        assert await sandbox.files.read("back") == HOSTILE


async def test_what_lies_in_a_sandbox_gets_nowhere_else(
    served: RunningServer, tmp_path: Path
) -> None:
    """Neither links nor odd names lead out of the directory that was asked for, and nothing there is replaced."""
    async with AsyncSandbox(url=own_door(served)) as sandbox:
        await sandbox.commands.run(
            "mkdir -p d/e; ln -s /etc d/link; ln -s . d/e/up; echo x > d/file; mkfifo d/pipe"
        )
        report = await sandbox.files.download("d", tmp_path / "out")
        assert report.files == 1
        assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["e", "file"]
        (tmp_path / "aim").mkdir()
        (tmp_path / "taken").mkdir()
        (tmp_path / "taken/e").symlink_to(tmp_path / "aim")
        await sandbox.commands.run("echo y > d/e/inner")
        with pytest.raises((Conflict, OSError)):
            await sandbox.files.download("d", tmp_path / "taken")
        assert list((tmp_path / "aim").iterdir()) == []


# --- connections that break -----------------------------------------------------------------------------


async def test_nothing_is_lost_or_done_twice_on_a_way_that_breaks(
    served: RunningServer, campaign: Campaign
) -> None:
    """Every connection breaks somewhere, most of them in the middle of an answer; what was asked for happens once."""
    with unsteady(served.socket_path) as way:
        async with AsyncSandbox(url=own_door(served)) as steady:
            sandbox = await AsyncSandbox.connect(steady.id, url=way.address)
            way.chance = campaign.random
            wanted = max(20, campaign.count(1000))
            turns = 0
            while way.cuts < wanted:
                await one_turn(sandbox, turns)
                turns += 1
            way.chance = None
            assert (await steady.run_code("count")).text == str(turns)
            lines = (await steady.files.read_text("log")).splitlines()
            assert lines == [str(turn) for turn in range(turns)]


async def one_turn(sandbox: AsyncSandbox, turn: int) -> None:
    code = "count = globals().get('count', 0) + 1\nfor n in range(300): print(n, flush=True)\ncount"
    cell = await sandbox.run_code(code)
    assert (cell.text, cell.stdout) == (str(turn + 1), "".join(f"{n}\n" for n in range(300)))
    result = await sandbox.commands.run(f"echo {turn} >> log; seq 1 300")
    assert result.stdout == b"".join(b"%d\n" % n for n in range(1, 301))


async def test_a_stream_that_is_left_on_a_broken_way_is_cancelled(served: RunningServer) -> None:
    with unsteady(served.socket_path) as way:
        async with AsyncSandbox(url=way.address) as sandbox:
            running = sandbox.commands.stream("echo x; exec sleep 1000")
            async with aclosing(running) as events:
                async for _ in events:
                    break
            assert (await sandbox.commands.run("pgrep -x sleep")).exit_code == 1


async def test_a_call_that_is_cancelled_leaves_nothing_running(served: RunningServer) -> None:
    async with AsyncSandbox(url=own_door(served)) as sandbox:
        await sandbox.run_code("x = 1")
        for _ in range(3):
            with anyio.move_on_after(0.3):
                await sandbox.commands.run(["sleep", "1000"])
            with anyio.move_on_after(0.3):
                await sandbox.run_code("import time; time.sleep(1000)")
        assert (await sandbox.commands.run("pgrep -x sleep")).exit_code == 1
        assert (await sandbox.run_code("x")).text == "1"
    with anyio.move_on_after(0.001):
        await AsyncSandbox.create(url=own_door(served), name="given-up")


async def test_a_cell_that_is_given_up_before_its_turn_leaves_the_one_that_runs_alone(
    served: RunningServer,
) -> None:
    async with AsyncSandbox(url=own_door(served)) as sandbox:
        await sandbox.run_code("import os, time")
        cells: list[Cell] = []

        async def run_long() -> None:
            code = "open('up', 'w')\nwhile not os.path.exists('go'): time.sleep(0.01)\n'whole'"
            cells.append(await sandbox.run_code(code))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run_long)
            while not await sandbox.files.exists("up"):
                await anyio.sleep(0.01)
            with anyio.move_on_after(0.3):
                await sandbox.run_code("ran = True")
            await sandbox.files.write("go", "")
        assert cells[0].text == "'whole'"
        assert (await sandbox.run_code("'ran' in globals()")).text == "False"


async def test_a_sandbox_that_is_given_up_while_it_is_made_is_no_more(
    served: RunningServer,
) -> None:
    for _ in range(5):
        with anyio.move_on_after(0.002):
            async with AsyncSandbox(url=own_door(served), name="given-up-early"):
                await anyio.sleep_forever()
    names = [each.name for each in await AsyncSandbox.list(url=own_door(served))]
    assert "given-up-early" not in names


def test_a_program_goes_on_over_the_end_of_a_node(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The node is ended and another one started in its place, while a command runs, and between cells."""
    data = tmp_path_factory.mktemp("n")
    prepare_data(data)
    node = start_node(data, ATOLL_NODE__ON_EXIT="keep")
    try:
        with Sandbox(url=node.address) as sandbox:
            sandbox.run_code("x = 41").check()
            first = node

            def replace() -> None:
                nonlocal node
                first.stop()
                node = start_node(data, ATOLL_NODE__ON_EXIT="keep")

            replacing = threading.Thread(target=replace)
            begun = threading.Event()

            def note(_text: str) -> None:
                if not begun.is_set():
                    begun.set()
                    replacing.start()

            line = "for i in $(seq 1 40); do echo $i; sleep 0.1; done"
            result = sandbox.commands.run(line, on_stdout=note)
            replacing.join()
            assert result.stdout == b"".join(b"%d\n" % n for n in range(1, 41))
            assert sandbox.run_code("x + 1").text == "42"
    finally:
        node.stop()


# --- threads, event loops, copies of the program --------------------------------------------------------


def test_many_threads_use_one_sandbox(served: RunningServer) -> None:
    with Sandbox(url=served.url, token=served.token) as sandbox:
        sandbox.run_code("total = 0").check()

        def work(number: int) -> None:
            for turn in range(5):
                sandbox.run_code("total += 1").check()
                path = f"{number}-{turn}"
                sandbox.files.write(path, path)
                assert sandbox.commands.run(["cat", path]).check().stdout == path.encode()

        with ThreadPoolExecutor(8) as pool:
            for done in [pool.submit(work, number) for number in range(8)]:
                done.result()
        assert sandbox.run_code("total").text == "40"


def test_event_loops_come_and_go(served: RunningServer) -> None:
    with Sandbox(url=served.url, token=served.token) as kept:
        kept.run_code("count = 0").check()

        async def use() -> None:
            found = await AsyncSandbox.connect(kept.id, url=served.url, token=served.token)
            await found.run_code("count += 1")
            await found.commands.run("true", check=True)

        for _ in range(3):
            asyncio.run(use())
        with ThreadPoolExecutor(3) as pool:
            for done in [pool.submit(asyncio.run, use()) for _ in range(3)]:
                done.result()
        assert kept.run_code("count").text == "6"


LONG = "import time\nprint('x', flush=True)\nopen('up', 'w').close()\ntime.sleep(1000)"


@pytest.mark.parametrize(
    "use",
    [
        lambda sandbox: sandbox.run_code(LONG),
        lambda sandbox: sandbox.run_code(LONG, on_stdout=lambda text: None),
        lambda sandbox: list(sandbox.stream_code(LONG)),
        lambda sandbox: sandbox.commands.run("touch up; sleep 1000"),
        lambda sandbox: list(sandbox.commands.stream("echo x; touch up; sleep 1000")),
    ],
)
def test_ctrl_c_interrupts_what_runs_and_nothing_else(
    served: RunningServer, use: Callable[[Sandbox], object]
) -> None:
    with Sandbox(url=served.url, token=served.token) as sandbox:
        sandbox.run_code("x = 1").check()
        other = Sandbox.connect(sandbox.id, url=served.url, token=served.token)

        def interrupt() -> None:
            while not other.files.exists("up"):
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGINT)

        interrupting = threading.Thread(target=interrupt)
        interrupting.start()
        with pytest.raises(KeyboardInterrupt):
            use(sandbox)
        interrupting.join()
        assert sandbox.run_code("x").text == "1"
        assert sandbox.commands.run("pgrep -x sleep").exit_code == 1


def test_a_forked_copy_of_a_program_has_connections_of_its_own(served: RunningServer) -> None:
    code = (
        "import os, sys, atoll\n"
        "sandbox = atoll.Sandbox.create()\n"
        "sandbox.run_code('x = 1')\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    os._exit(0 if sandbox.run_code('x + 1').text == '2' else 1)\n"
        "code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])\n"
        "assert sandbox.run_code('x').text == '1'\n"
        "sandbox.destroy()\n"
        "sys.exit(code)"
    )
    assert served.token is not None
    env = {**os.environ, "ATOLL_URL": served.url, "ATOLL_TOKEN": served.token}
    # A program with threads is warned when it forks; this one means to.
    argv = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", code]
    subprocess.run(argv, env=env, check=True, timeout=60)


def test_a_program_that_leaves_its_sandbox_open_ends_in_peace(served: RunningServer) -> None:
    code = "import atoll; print(atoll.Sandbox.create(lifetime='2m').run_code('6 * 7').text)"
    assert served.token is not None
    env = {**os.environ, "ATOLL_URL": served.url, "ATOLL_TOKEN": served.token}
    argv = [sys.executable, "-X", "dev", "-W", "error", "-c", code]
    done = subprocess.run(argv, env=env, check=True, timeout=60, capture_output=True)
    # On a busy machine anything may take asyncio too long, which it tells in this mode.
    complaints = re.sub(rb"Executing <.*> took [0-9.]+ seconds\n", b"", done.stderr)
    assert (done.stdout, complaints) == (b"42\n", b"")


# --- waiting --------------------------------------------------------------------------------------------


def test_a_server_is_waited_for(tmp_path_factory: pytest.TempPathFactory) -> None:
    data = tmp_path_factory.mktemp("w")
    prepare_data(data)
    address = f"unix://{data}/node.sock"
    with pytest.raises(Unavailable, match="no node answers"):
        Sandbox.wait_ready(address, timeout=0)
    started: list[RunningNode] = []
    starting = threading.Thread(target=lambda: started.append(start_node(data)))
    starting.start()
    seen: list[Progress] = []
    try:
        Sandbox.wait_ready(address, on_progress=seen.append)
        with Sandbox(url=address) as sandbox:
            assert sandbox.run_code("1").ok
    finally:
        starting.join()
        started[0].stop()
    assert [each.what for each in seen[:1]] == ["server"]
    Sandbox.wait_ready("", timeout=0)


def test_copies_tell_how_far_they_are(served: RunningServer, tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    for number in range(20):
        (tmp_path / f"tree/{number}").write_bytes(bytes(100_000))
    seen: list[Progress] = []
    with Sandbox(url=own_door(served)) as sandbox:
        assert sandbox.files.upload(tmp_path / "tree", "t", on_progress=seen.append).files == 20
        assert seen[-1].what == "upload" and seen[-1].moved_bytes >= 2_000_000
        sandbox.files.download("t", tmp_path / "back", on_progress=seen.append)
        assert seen[-1].what == "download" and seen[-1].moved_bytes >= 2_000_000
    assert len(list((tmp_path / "back").iterdir())) == 20


async def test_what_is_given_up_before_its_first_step_has_ended() -> None:
    async def never() -> None:
        raise AssertionError("nobody waits for it")

    errand = _Errand(never)
    errand.begin()
    errand.give_up()
    with anyio.fail_after(30):
        while not errand.has_ended.is_set():
            await anyio.sleep(0.01)
