"""Kernels of R as such: what can be asked of them, how they are born, and that no two are alike."""

from __future__ import annotations

import json
import os
import socket
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from atoll import AsyncSandbox
from atoll.engines.catalog import make_engine
from atoll.engines.contract import Engine, Sandbox
from atoll.engines.namespaces.engine import BINARIES
from atoll.engines.namespaces.mounts import r_template
from atoll.errors import Conflict, Unsupported
from atoll.model.language import find_kernel_language
from atoll.model.sandbox import SandboxSpec
from atoll.model.template import R_TEMPLATE
from atoll.node.kernels import Kernel
from atoll.node.templates import Templates
from atoll_guest.frames import FrameDecoder
from atoll_guest.messages import VERSIONS, encode_message
from tests.kernels.r_presence import needs_r

pytestmark = needs_r

R = find_kernel_language("r")


@pytest.fixture(scope="module")
async def engine() -> AsyncIterator[Engine]:
    """An engine with templates for Python and R."""
    data_dir = Path(tempfile.gettempdir(), f"atoll-test-{os.geteuid()}")
    engine = make_engine(
        "namespaces", data_dir=data_dir, trees={"python": Templates(data_dir).python}
    )
    yield engine
    await engine.close()


@pytest.fixture
async def sandbox(engine: Engine) -> AsyncIterator[Sandbox]:
    """A sandbox that was made together with a kernel of R."""
    sandbox = await engine.create(SandboxSpec(template=R_TEMPLATE, kernel=True))
    yield sandbox
    await sandbox.destroy()


@pytest.fixture
async def kernel(sandbox: Sandbox) -> Kernel:
    """Its kernel."""
    return await Kernel.open(sandbox, language=R)


# --- questions ------------------------------------------------------------------------------------------------

# Code, and what it may go on with from its end; the last is where that begins.
COMPLETIONS = {
    "a variable": ("my_va", "my_variable", 0),
    "an element": ("my_variable$al", "my_variable$alpha", 0),
    "on the second line": ("x <- 1\nmy_va", "my_variable", 7),
    "after other letters": ("é; my_v", "my_variable", 3),
    "a function": ("nch", "nchar", 0),
    "of a package": ("base::nch", "base::nchar", 0),
    "an argument": ("own(fir", "first=", 4),
    "a file": ("'/usr/shar", "/usr/share/", 1),
}


async def test_words_are_completed(kernel: Kernel) -> None:
    await kernel.run("my_variable <- list(alpha = 1); own <- function(first) first")
    for code, match, start in COMPLETIONS.values():
        answer = await kernel.ask("complete", code=code, cursor=len(code))
        assert match in answer["matches"], code
        assert (answer["start"], answer["end"]) == (start, len(code))


# Code, where in it, and what the answer holds; None if nothing is known.
INSPECTIONS = {
    "a function of one's own": ("own(1)", 2, "own(first, second = 2)"),
    "a function with help": ("nchar", 5, "Count the Number of Characters"),
    "a value": ("table$a", 2, "num 1"),
    "an unknown name": ("nowhere", 3, None),
    "no name": ("1 + 1", 3, None),
    "nothing": ("", 0, None),
    "a call is not made": ("file.create('made')", 19, None),
}


async def test_names_are_told_about(kernel: Kernel) -> None:
    await kernel.run("own <- function(first, second = 2) first; table <- 1")
    for code, cursor, part in INSPECTIONS.values():
        answer = await kernel.ask("inspect", code=code, cursor=cursor)
        assert answer["found"] is (part is not None), code
        assert part is None or part in answer["data"]["text/plain"]
    assert (await kernel.run("file.exists('made')")).text == "[1] FALSE"


async def test_a_question_changes_nothing(kernel: Kernel) -> None:
    await kernel.run("x <- 1")
    assert await kernel.ask("ping") == {}
    await kernel.ask("complete", code="x", cursor=1)
    cell = await kernel.run("ls(all.names = TRUE)")
    assert (cell.text, cell.execution_count) == ('[1] "x"', 2)


# --- the protocol -----------------------------------------------------------------------------------------------


class Talk:
    """The host's end of a channel, word for word."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._decoder = FrameDecoder()
        self.heard: list[dict[str, Any]] = []

    def say(self, **message: Any) -> None:
        self._channel.setblocking(True)
        self._channel.sendall(encode_message(message))

    def hear(self, until: str) -> list[dict[str, Any]]:
        """Return all that is said up to a message of a kind."""
        self._channel.settimeout(60)
        said: list[dict[str, Any]] = []
        while not any(message["type"] == until for message in said):
            said += [json.loads(frame) for frame in self._decoder.feed(self._channel.recv(1 << 16))]
        return said

    def hear_nothing(self) -> bool:
        self._channel.settimeout(0.3)
        try:
            return not self._channel.recv(1)
        except TimeoutError:
            return True


async def test_what_the_host_has_not_taken_note_of_is_said_again(sandbox: Sandbox) -> None:
    process = await sandbox.fork_kernel()
    talk = Talk(process.channel)
    (hello,) = talk.hear("hello")
    assert (hello["versions"], hello["language"]) == (list(VERSIONS), "r")
    talk.say(type="welcome", version=1, env={}, acks=True)
    talk.say(type="execute", id="one", code="display_html('x')\n5", silent=False)
    said = talk.hear("end")
    assert [each["type"] for each in said] == ["display", "result", "end"]
    assert [(each["id"], each["seq"]) for each in said] == [("one", 1), ("one", 2), ("one", 3)]
    talk.say(type="resume", seq=0)
    assert talk.hear("end") == said
    talk.say(type="ack", seq=1)
    talk.say(type="resume", seq=1)
    assert talk.hear("end") == said[1:]
    talk.say(type="resume", seq=3)
    assert talk.hear_nothing()
    talk.say(type="ping", id="two")
    assert talk.hear("reply") == [{"type": "reply", "content": {}, "id": "two", "seq": 4}]
    await process.close()


async def test_a_silent_cell_is_not_counted(sandbox: Sandbox) -> None:
    process = await sandbox.fork_kernel()
    talk = Talk(process.channel)
    talk.hear("hello")
    talk.say(type="welcome", version=1)
    for silent in (True, False):
        talk.say(type="execute", id="x", code="1", silent=silent)
        assert talk.hear("end")[-1]["count"] == 1
    await process.close()


async def test_what_comes_in_pieces_is_put_together(sandbox: Sandbox) -> None:
    process = await sandbox.fork_kernel()
    talk = Talk(process.channel)
    talk.hear("hello")
    code = "nchar('" + "é" * 200_000 + "')"
    frame = encode_message({"type": "execute", "id": "x", "code": code, "silent": False})
    process.channel.setblocking(True)
    process.channel.sendall(encode_message({"type": "welcome", "version": 1})[:3])
    await anyio.sleep(0.05)
    process.channel.sendall(encode_message({"type": "welcome", "version": 1})[3:] + frame[:1000])
    await anyio.sleep(0.05)
    process.channel.sendall(frame[1000:])
    result, _end = talk.hear("end")
    assert result["data"] == {"text/plain": "[1] 200000"}
    await process.close()


# --- being born -------------------------------------------------------------------------------------------------


async def test_a_kernel_begins_with_its_own_directory_and_environment(engine: Engine) -> None:
    async with AsyncSandbox(template=R_TEMPLATE, envs={"OF_ALL": "a"}) as sandbox:
        await sandbox.files.write("deep/f.txt", b"")
        kernel = await sandbox.kernels.open("r", cwd="deep", envs={"OF_ONE": "ü b"})
        cell = await sandbox.run_code(
            "c(basename(getwd()), Sys.getenv(c('OF_ALL', 'OF_ONE')))", kernel=kernel.id
        )
        assert "deep" in (cell.text or "")
        assert '"a"' in (cell.text or "")
        assert '"ü b"' in (cell.text or "")


async def test_a_kernel_that_cannot_begin_where_it_should_ends(sandbox: Sandbox) -> None:
    kernel = await Kernel.open(sandbox, cwd="nowhere", language=R)
    with anyio.fail_after(60):
        await kernel.process.wait()
    printed = b"".join(each.data for each in kernel.process.take_output())
    assert b"the kernel cannot go on: cannot change working directory" in printed
    with pytest.raises(Conflict, match="this kernel has ended"):
        await kernel.run("1")


# What no two kernels may share, although they are copies of one R.
OWN = {
    "chance": "runif(1)",
    "whole numbers by chance": "sample.int(2^31 - 1, 1)",
    "the directory for temporary files": "tempdir()",
    "names of temporary files": "basename(tempfile())",
}


async def test_no_two_kernels_are_alike(engine: Engine, sandbox: Sandbox) -> None:
    drawn: list[str | None] = []
    for _ in range(6):
        other = await engine.create(SandboxSpec(template=R_TEMPLATE, kernel=True))
        for place in (other, sandbox):
            kernel = await Kernel.open(place, language=R)
            drawn += [(await kernel.run(code)).text for code in OWN.values()]
        await other.destroy()
    assert len(set(drawn)) == 12 * len(OWN)


async def test_the_directory_for_temporary_files_is_there_and_empty(kernel: Kernel) -> None:
    cell = await kernel.run("c(dir.exists(tempdir()), length(list.files(tempdir())) == 0)")
    assert cell.text == "[1] TRUE TRUE"
    cell = await kernel.run("system('echo $R_SESSION_TMPDIR', intern = TRUE) == tempdir()")
    assert cell.text == "[1] TRUE"


async def test_packages_are_installed_into_the_sandbox(kernel: Kernel) -> None:
    cell = await kernel.run(_PACKAGE, timeout=60)
    assert cell.text == '[1] "hi"'


_PACKAGE = """
dir.create("own/R", recursive = TRUE)
writeLines(c("Package: own", "Version: 1.0", "Title: T", "Description: D.", "Author: A", "License: MIT",
  "Maintainer: A <a@b.c>"), "own/DESCRIPTION")
writeLines("export(hello)", "own/NAMESPACE")
writeLines("hello <- function() 'hi'", "own/R/hello.R")
install.packages("own", repos = NULL, type = "source", quiet = TRUE)
own::hello()
"""


async def test_a_machine_without_r_says_what_to_install() -> None:
    with pytest.raises(Unsupported, match="apt-get install r-base-core"):
        r_template(BINARIES, homes=())


# --- being sealed -----------------------------------------------------------------------------------------------

_SEAL = (
    "CapInh",
    "CapPrm",
    "CapEff",
    "CapBnd",
    "CapAmb",
    "NoNewPrivs",
    "Seccomp",
    "Seccomp_filters",
    "Uid",
    "Gid",
)


async def test_a_kernel_of_r_is_sealed_as_one_of_python_is(engine: Engine, kernel: Kernel) -> None:
    other = await engine.create(SandboxSpec(template="python", kernel=True))
    python = await Kernel.open(other)
    theirs = await python.run("print(open('/proc/self/status').read())")
    ours = await kernel.run("cat(readLines('/proc/self/status'), sep = '\\n')")
    await other.destroy()
    assert seal_of(ours.stdout) == seal_of(theirs.stdout)
    assert seal_of(ours.stdout)["Seccomp"] == ["2"]
    assert seal_of(ours.stdout)["CapEff"] == ["0000000000000000"]


def seal_of(status: str) -> dict[str, list[str]]:
    lines = (line.partition(":") for line in status.splitlines())
    return {name: value.split() for name, _colon, value in lines if name in _SEAL}


# What code in a kernel may try, and has to fail at: each gives TRUE if it succeeds.
ATTEMPTS = {
    "write to the machine's programs": "suppressWarnings(file.create('/usr/lib/R/x'))",
    "write to the kernel's own code": "suppressWarnings(file.create('/opt/atoll/guest/atoll_guest/r/x'))",
    "replace the library": "suppressWarnings(file.remove('/.atoll/spawn.so'))",
    "have namespaces": "system('unshare -U true 2>/dev/null') == 0",
    "mount": "system('mount -t tmpfs none /mnt 2>/dev/null') == 0",
    "see other processes": "length(list.files('/proc', pattern = '^[0-9]+$')) > 3",
    "have descriptors of the zygote's": "any(grepl('memfd', Sys.readlink(list.files('/proc/self/fd', full.names = TRUE))))",
    "hand the channel to programs": "system('ls /proc/self/fd | grep -q 200') == 0",
    "find the library in the environment of programs": "nzchar(system('echo $LD_PRELOAD', intern = TRUE))",
    "reach the network": "inherits(try(suppressWarnings(socketConnection('192.0.2.1', 80, timeout = 2)), silent = TRUE),"
    " 'connection')",
}  # fmt: skip


@pytest.mark.parametrize("case", ATTEMPTS)
async def test_code_in_a_kernel_fails_to(kernel: Kernel, case: str) -> None:
    with anyio.fail_after(30):
        cell = await kernel.run(ATTEMPTS[case])
    assert (cell.text, cell.error) == ("[1] FALSE", None)
