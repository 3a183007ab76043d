"""What the fake engine has beyond the contract."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from atoll.errors import Conflict, InvalidRequest, Unsupported
from atoll.model.process import Command
from atoll.model.sandbox import Mount, SandboxSpec
from atoll.node.commands import Commands
from atoll.testing.fake import FakeEngine, InnerProcess

pytestmark = pytest.mark.any_user


@pytest.fixture
async def engine() -> AsyncIterator[FakeEngine]:
    engine = FakeEngine()
    yield engine
    await engine.close()


@pytest.fixture
async def commands(engine: FakeEngine) -> Commands:
    return Commands(await engine.create(SandboxSpec()))


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("echo one; echo two", "one\ntwo\n"),
        ("true && echo yes || echo no", "yes\n"),
        ("false && echo yes || echo no", "no\n"),
        ("echo 'a  b' \"c $HOME\" d\\ e", "a  b c /home/sandbox d e\n"),
        ("X=1; echo $X ${X}2 '$X' \"\\$X\"", "1 12 $X $X\n"),
        ("X=1 env | cat > f; cat < f | cat", None),
        ("echo a > f; echo b >> f; cat f", "a\nb\n"),
        ("echo out 2> f; cat missing 2> f; test -s f && echo told", "out\ntold\n"),
        ("sh -c 'exit 3'; echo $?", "3\n"),
        ("cd /tmp; pwd; cd missing; echo $?", "/tmp\n2\n"),
        ("echo x | cat | cat", "x\n"),
        ("exec echo replaced; echo never", "replaced\n"),
        ("command -v sh; command -v none; echo $?", "sh\n2\n"),
        ("# a comment\necho after", "after\n"),
    ],
)
async def test_the_small_shell_does_what_a_shell_does(
    commands: Commands, line: str, shown: str | None
) -> None:
    result = await commands.run(line)
    assert result.ok
    assert shown is None or result.stdout.decode() == shown


@pytest.mark.parametrize("line", ["for x in y; do :; done", "if true; then :; fi", "echo 'open"])
async def test_what_the_small_shell_does_not_know_is_an_error(
    commands: Commands, line: str
) -> None:
    result = await commands.run(line)
    assert result.exit_code == 2
    assert b"syntax error" in result.stderr


async def test_programs_can_be_added() -> None:
    async def shout(me: InnerProcess) -> int:
        while data := await me.read():
            await me.write(data.upper())
        return 9

    engine = FakeEngine(programs={"shout": shout})
    result = await Commands(await engine.create(SandboxSpec())).run("shout", stdin="quiet")
    assert (result.stdout, result.exit_code) == (b"QUIET", 9)
    await engine.close()


async def test_a_stubborn_program_has_to_be_killed(engine: FakeEngine) -> None:
    sandbox = await engine.create(SandboxSpec())
    process = await sandbox.start(Command(("stubborn",)))
    assert (await anext(process.output())).data == b"ready\n"
    for number in (1, 2, 15):
        await process.signal(number)
    assert (await Commands(sandbox).run(f"kill -0 {process.pid}")).ok
    await process.kill()
    assert (await process.wait()).signal == 9


async def test_mounts_are_copies_and_read_only(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d/file").write_bytes(b"x\n")
    engine = FakeEngine(mountable=[tmp_path])
    with pytest.raises(Unsupported, match="read-only"):
        await engine.create(SandboxSpec(mounts=[Mount(str(tmp_path), "/mnt", read_only=False)]))
    with pytest.raises(InvalidRequest, match="absolute"):
        await engine.create(SandboxSpec(mounts=[Mount(str(tmp_path), "mnt")]))
    sandbox = await engine.create(SandboxSpec(mounts=[Mount(str(tmp_path), "/mnt/x")]))
    assert (await Commands(sandbox).run("cat /mnt/x/d/file")).stdout == b"x\n"
    await engine.close()


async def test_an_id_is_used_once_and_a_closed_engine_never(engine: FakeEngine) -> None:
    spec = SandboxSpec()
    sandbox = await engine.create(spec)
    with pytest.raises(Conflict, match="exists"):
        await engine.create(spec)
    await sandbox.destroy()
    await engine.create(spec)
    await engine.close()
    with pytest.raises(Conflict, match="closed"):
        await engine.create(SandboxSpec())


async def test_output_is_read_once(engine: FakeEngine) -> None:
    sandbox = await engine.create(SandboxSpec())
    process = await sandbox.start(Command(("echo", "x")))
    assert [output.data async for output in process.output()] == [b"x\n"]
    with pytest.raises(Conflict, match="once"):
        await anext(process.output())
