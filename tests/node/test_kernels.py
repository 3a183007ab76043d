"""Live Python: kernels forked from a warm zygote keep state, are sealed, and end as they should."""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from atoll.engines.catalog import make_engine
from atoll.engines.contract import Engine, Feature, Sandbox
from atoll.errors import Conflict, InvalidRequest, Unsupported
from atoll.model.kernel import CellStatus, Event
from atoll.model.limits import Limits
from atoll.model.process import Output
from atoll.model.sandbox import SandboxSpec
from atoll.node.call import Call
from atoll.node.commands import Commands
from atoll.node.drivers import drive
from atoll.node.kernels import Kernel
from atoll.node.needs import Asked, Ready
from atoll.node.templates import Templates


@pytest.fixture(scope="module")
async def python_engine() -> AsyncIterator[Engine]:
    """An engine with the Python template, which is made once for all runs."""
    data_dir = Path(tempfile.gettempdir(), f"atoll-test-{os.geteuid()}")
    engine = make_engine(
        "namespaces", data_dir=data_dir, trees={"python": Templates(data_dir).python}
    )
    yield engine
    await engine.close()


@pytest.fixture
async def sandbox(python_engine: Engine) -> AsyncIterator[Sandbox]:
    """A sandbox that was made together with a kernel."""
    sandbox = await python_engine.create(SandboxSpec(template="python", kernel=True))
    yield sandbox
    await sandbox.destroy()


@pytest.fixture
async def kernel(sandbox: Sandbox) -> Kernel:
    """Its kernel."""
    return await Kernel.open(sandbox)


async def test_the_last_expression_is_the_result_and_state_is_kept(kernel: Kernel) -> None:
    assert (await kernel.run("x = 20")).text is None
    assert (await kernel.run("y = x + 1\ny * 2")).text == "42"
    assert (await kernel.run("_ + 1")).text == "43"
    counts = [(await kernel.run("x")).execution_count for _ in range(2)]
    assert counts == [4, 5]


# A session that speaks for its kernel, and faster than anybody can listen.
_FLOOD = """
import os
from atoll_guest.channel import Channel
from atoll_guest.messages import encode_message
channels, send = [], Channel.send
Channel.send = lambda self, *rest: channels.append(self) or send(self, *rest)
display(0)
Channel.send = send
channel, first = channels[0], channels[0]._seq + 1
forged = {"type": "result", "id": channel.request, "data": {"text/plain": "0" * SIZE}, "metadata": {}}
frames = memoryview(b"".join(encode_message({**forged, "seq": first + n}) for n in range(COUNT)))
os.set_blocking(channel.descriptor, True)
while frames:
    frames = frames[os.write(channel.descriptor, frames) :]
channel._seq += COUNT
"""


@pytest.mark.parametrize(("count", "size", "most"), [(20_000, 1, 100), (50, 1_000_000, 1)])
async def test_a_session_that_never_stops_talking_leaves_others_their_turns(
    kernel: Kernel, count: int, size: int, most: int
) -> None:
    turns, said_in = 0, Counter[int]()

    async def take_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await anyio.lowlevel.checkpoint()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(take_turns)
        code = f"COUNT, SIZE = {count}, {size}{_FLOOD}"
        cell = await kernel.run(code, listener=lambda _event: said_in.update([turns]))
        tasks.cancel_scope.cancel()
    assert cell.ok
    assert said_in.total() >= count
    assert max(said_in.values()) <= most


async def test_a_cell_that_is_given_up_at_a_turn_of_others_costs_no_session(kernel: Kernel) -> None:
    await kernel.run("x = 1")
    call, turns = Call(), 0
    async with kernel.turns:
        for need in kernel.begin(call, "for n in range(100_000): display(n)", None):
            if isinstance(need, Ready):
                await anyio.wait_readable(need.descriptor)
            turns += isinstance(need, Asked)
            if turns == 3:
                break
        await drive(kernel.give_up(call), kernel.control)
    assert turns == 3
    assert (await kernel.run("x")).text == "1"


async def test_output_is_captured_and_streamed(kernel: Kernel) -> None:
    seen: list[Event] = []
    code = "import os, sys; print('out'); sys.stderr.write('err\\n'); os.system('echo sub'); print('end')"
    cell = await kernel.run(code, listener=seen.append)
    assert (cell.stdout, cell.stderr, cell.text) == ("out\nsub\nend\n", "err\n", None)
    assert (
        b"".join(each.data for each in seen if isinstance(each, Output) and each.stream == "stdout")
        == b"out\nsub\nend\n"
    )


async def test_output_comes_while_the_cell_runs(kernel: Kernel, sandbox: Sandbox) -> None:
    printed = anyio.Event()
    code = "import os, time\nprint('now')\nwhile not os.path.exists('go'): time.sleep(0.01)"
    run = partial(kernel.run, code, listener=lambda event: printed.set())
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run)
            await printed.wait()
            await sandbox.workspace.write("go", b"")


async def test_an_exception_is_a_result_with_a_traceback(kernel: Kernel) -> None:
    await kernel.run("def f(a):\n    return 1 / a")
    cell = await kernel.run("f(0)")
    assert cell.status is CellStatus.ERROR
    assert cell.error is not None
    assert (cell.error.name, cell.error.value) == ("ZeroDivisionError", "division by zero")
    text = "\n".join(cell.error.traceback)
    assert "return 1 / a" in text
    assert "atoll_guest" not in text
    assert (await kernel.run("f(1)")).text == "1.0"


async def test_what_ipython_adds_to_the_language_works(kernel: Kernel) -> None:
    assert "shell" in (await kernel.run("!echo shell")).stdout
    assert "Wall time" in (await kernel.run("%time 1")).stdout
    assert (await kernel.run("import asyncio\nawait asyncio.sleep(0, 7)")).text == "7"
    broken = await kernel.run("def f(:")
    assert broken.error is not None
    assert broken.error.name == "SyntaxError"
    assert not any("atoll_guest" in line for line in broken.error.traceback)


async def test_a_timeout_interrupts_and_keeps_state(kernel: Kernel) -> None:
    await kernel.run("x = 1")
    cell = await kernel.run("import time; time.sleep(100)", timeout=0.2)
    assert cell.status is CellStatus.TIMED_OUT
    assert (await kernel.run("x")).text == "1"


async def test_a_cell_that_ignores_interrupts_loses_its_kernel(
    kernel: Kernel, sandbox: Sandbox
) -> None:
    code = "import time\nwhile True:\n    try:\n        time.sleep(100)\n    except KeyboardInterrupt:\n        pass"
    with anyio.fail_after(60):
        cell = await kernel.run(code, timeout=0.2)
    assert cell.status is CellStatus.DIED
    with pytest.raises(Conflict, match="open another"):
        await kernel.run("1")
    assert (await (await Kernel.open(sandbox)).run("1 + 1")).text == "2"


@pytest.mark.parametrize(
    ("code", "death"),
    [
        ("import os; os._exit(3)", "exited with 3"),
        ("import ctypes; ctypes.string_at(0)", "SIGSEGV"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "SIGKILL"),
    ],
)
async def test_the_death_of_a_kernel_is_told_and_the_sandbox_lives(
    kernel: Kernel, sandbox: Sandbox, code: str, death: str
) -> None:
    await kernel.run("open('kept', 'w').write('file')")
    cell = await kernel.run(code)
    assert cell.status is CellStatus.DIED
    assert death in cell.death
    again = await Kernel.open(sandbox)
    assert (await again.run("open('kept').read()")).text == "'file'"


async def test_several_kernels_share_files_but_no_variables(
    kernel: Kernel, sandbox: Sandbox
) -> None:
    other = await Kernel.open(sandbox)
    await kernel.run("x = 1; open('f', 'w').write('shared')")
    cell = await other.run("x")
    assert cell.error is not None
    assert cell.error.name == "NameError"
    assert (await other.run("open('f').read()")).text == "'shared'"
    pids = [(await each.run("import os; os.getpid()")).text for each in (kernel, other)]
    assert pids[0] != pids[1]


FACTS = """
import os
status = dict(line.split(":", 1) for line in open("/proc/self/status").read().splitlines())
facts = {name: status[name].split()[0] for name in
         ("Uid", "Gid", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp")}
facts["namespaces"] = [os.readlink(f"/proc/self/ns/{n}") for n in ("user", "mnt", "pid", "net", "ipc", "uts")]
facts["cgroup"] = open("/proc/self/cgroup").read()
facts["fds"] = sorted(os.readlink(f"/proc/self/fd/{n}").split(":")[0] for n in (0, 1, 2, 200))
print(facts)
"""


async def test_every_kernel_is_sealed_like_every_command(kernel: Kernel, sandbox: Sandbox) -> None:
    joined = await Kernel.open(sandbox)
    first, second = (await kernel.run(FACTS)).stdout, (await joined.run(FACTS)).stdout
    assert first == second
    facts = eval(first)
    assert (facts["Uid"], facts["NoNewPrivs"], facts["Seccomp"]) == ("65532", "1", "2")
    assert all(int(facts[name], 16) == 0 for name in facts if name.startswith("Cap"))
    assert facts["fds"] == ["pipe", "pipe", "pipe", "socket"]
    host = [
        os.readlink(f"/proc/self/ns/{name}") for name in ("user", "mnt", "pid", "net", "ipc", "uts")
    ]
    assert not set(host) & set(facts["namespaces"])
    assert all(line.endswith(":/") for line in facts["cgroup"].splitlines())


@pytest.mark.parametrize(
    "code",
    [
        "import os; os.write(200, b'\\xff' * 100)",
        "import os; os.write(200, (1 << 30).to_bytes(4, 'little'))",
        (
            "import os, json; f = json.dumps({'type': 'end', 'id': 'forged', 'seq': 1, 'status': 'ok', 'count': 1}).encode();"
            " os.write(200, len(f).to_bytes(4, 'little') + f)"
        ),
        (
            "import os, json; f = json.dumps({'type': 'hello', 'versions': [1, 1], 'language': 'x'}).encode();"
            " os.write(200, len(f).to_bytes(4, 'little') + f)"
        ),
    ],
)
async def test_forged_and_broken_messages_end_only_that_kernel(
    kernel: Kernel, sandbox: Sandbox, code: str
) -> None:
    other = await Kernel.open(sandbox)
    with anyio.fail_after(60):
        cell = await kernel.run(code)
    assert cell.status is CellStatus.DIED
    assert "protocol" in cell.death
    assert (await other.run("1 + 1")).text == "2"


async def test_siblings_share_no_randomness_and_no_variables(python_engine: Engine) -> None:
    code = "import random, uuid, tempfile, secrets, ssl\n(random.random(), uuid.uuid4(), secrets.token_hex(), tempfile.mktemp(), ssl.RAND_bytes(8))"
    seen = set()
    for _ in range(20):
        sandbox = await python_engine.create(SandboxSpec(template="python", kernel=True))
        cell = await (await Kernel.open(sandbox)).run(code)
        assert cell.text not in seen
        seen.add(cell.text)
        await sandbox.destroy()


async def test_nothing_of_a_session_reaches_the_next(python_engine: Engine) -> None:
    poison = (
        "import builtins, sys, os, signal\nbuiltins.print = None\nsys.modules['json'] = None\nos.chdir('/tmp')\n"
        "os.umask(0)\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nos.environ['LEFT'] = 'behind'"
    )
    for _ in range(3):
        sandbox = await python_engine.create(SandboxSpec(template="python", kernel=True))
        kernel = await Kernel.open(sandbox)
        code = "import os, json, signal\nprint(os.getcwd(), os.environ.get('LEFT'), oct(os.umask(18)), signal.getsignal(15) == signal.SIG_DFL)"
        assert (await kernel.run(code)).stdout == "/workspace None 0o22 True\n"
        assert (await kernel.run(poison)).ok
        await sandbox.destroy()


async def test_running_out_of_memory_is_the_kernels_death_only(python_engine: Engine) -> None:
    limits = Limits(memory_bytes=256 << 20, enforcement="best_effort")
    sandbox = await python_engine.create(SandboxSpec(template="python", kernel=True, limits=limits))
    kernel = await Kernel.open(sandbox)
    cell = await kernel.run("x = []\nwhile True: x.append(bytearray(1 << 20))")
    assert not cell.ok
    assert "memory" in cell.death or (cell.error and cell.error.name == "MemoryError")
    assert (await Commands(sandbox).run("echo alive")).stdout == b"alive\n"
    await sandbox.destroy()


async def test_completion_and_inspection(kernel: Kernel) -> None:
    await kernel.run("some_long_name = 1")
    found = await kernel.ask("complete", code="some_lo", cursor=7)
    assert "some_long_name" in found["matches"]
    about = await kernel.ask("inspect", code="len", cursor=3)
    assert about["found"]
    assert await kernel.ask("ping") == {}


async def test_bad_code_is_refused_and_a_base_sandbox_has_no_kernels(
    kernel: Kernel, python_engine: Engine
) -> None:
    with pytest.raises(InvalidRequest):
        await kernel.run(b"1")  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="too long"):
        await kernel.run("#" * (9 << 20))
    assert (await kernel.run("1")).text == "1"
    assert Feature.KERNEL_FORK in python_engine.features
    base = await python_engine.create(SandboxSpec())
    with pytest.raises(Unsupported, match="python"):
        await base.fork_kernel()
    await base.destroy()


async def test_a_rehearsal_leaves_nothing_behind(kernel: Kernel) -> None:
    await kernel.rehearse()
    cell = await kernel.run("[name for name in dir() if not name.startswith('_')]")
    assert (cell.execution_count, cell.stdout) == (1, "")
    fresh = "['In', 'Out', 'exit', 'get_ipython', 'open', 'quit']"
    assert cell.text == fresh
