"""A keeper that lasts has nothing for strangers, and takes no stranger for a sandbox."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from atoll.engines.namespaces.engine import NamespaceEngine
from atoll.engines.namespaces.lasting_keeper import Kept, LastingKeeper
from atoll.engines.namespaces.wire import KeeperHello, KeeperOp, KeptEntry
from atoll.errors import NotFound, Unavailable
from atoll.model.ids import new_sandbox_id
from atoll.model.sandbox import SandboxSpec, SandboxState
from tests.engine_fixtures import skip_unless_usable
from tests.engines.namespaces.keepers import names_of, open_keeper
from tests.engines.namespaces.lasting_host import lasting_engine

# --- who may connect ------------------------------------------------------------------------------


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "keeper"


@pytest.mark.root_only  # who else could try as another user?
@pytest.mark.parametrize("is_open", [False, True])
def test_a_stranger_cannot_connect(keeper: LastingKeeper, directory: Path, is_open: bool) -> None:
    """Neither through the directory nor, if somebody opened that, past the keeper."""
    keeper.keep("a/b")
    keeper.leave()
    if is_open:
        for path in (directory, *directory.parents):
            mode = stat.S_IMODE(path.stat().st_mode)
            if (
                not mode & stat.S_IXOTH
            ):  # of all others nothing is changed: one is the machine's /tmp
                path.chmod(mode | 0o055)
        (directory / "keeper.sock").chmod(0o777)
    recall = bytes(KeptEntry(op=KeeperOp.RECALL))
    program = (
        "import os, socket, sys; os.setgroups([]);"
        " os.setresgid(61350, 61350, 61350); os.setresuid(61350, 61350, 61350);"
        " os.chdir(sys.argv[1]);"
        " s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); s.connect('keeper.sock');"
        " print(s.recv(100).hex()); s.send(bytes.fromhex(sys.argv[2])); print(s.recv(1000).hex())"
    )
    argv = [sys.executable, "-I", "-c", program, str(directory), recall.hex()]
    answer = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert answer.returncode != 0
    if is_open:
        hello = KeeperHello.from_buffer_copy(bytes.fromhex(answer.stdout.split()[0]))
        assert os.strerror(hello.error) == "Permission denied"
        assert len(answer.stdout.split()) == 1
    else:
        assert "PermissionError" in answer.stderr
    os.chmod(directory, 0o700)
    again = open_keeper(directory)
    assert names_of(again) == {"a/b"}
    again.end()


def test_a_directory_that_others_reach_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    with pytest.raises(Unavailable, match="this user's alone"):
        open_keeper(tmp_path)


# --- who may be adopted ---------------------------------------------------------------------------


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[NamespaceEngine]:
    """An engine whose sandboxes outlive it; skipped with the reason if this machine cannot run it."""
    engine = lasting_engine(tmp_path)
    await skip_unless_usable(engine)
    yield engine
    await engine.close()


def leave(keeper: LastingKeeper, kept: Mapping[str, Kept]) -> None:
    for each in kept.values():
        each.close()
    keeper.leave()


@contextmanager
def stranger_running() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "1000"]) as stranger:
        try:
            yield stranger
        finally:
            stranger.kill()


async def test_strangers_are_neither_adopted_nor_killed(
    engine: NamespaceEngine, tmp_path: Path
) -> None:
    """Somebody else's process in place of an init, beside a real jail and a real init's socket."""
    real = await engine.create(SandboxSpec())
    await engine.leave()
    forged, wrong_note = new_sandbox_id(), new_sandbox_id()
    with stranger_running() as stranger:
        keeper = open_keeper(tmp_path / "keeper")
        kept = keeper.recall()
        init = kept[f"{real.id}/init"]
        pidfd = os.pidfd_open(stranger.pid)
        keeper.keep(f"{forged}/init", [init.fds[0], pidfd], init.note)
        keeper.keep(f"{wrong_note}/init", [init.fds[0], pidfd], f"1 {os.getpid()}")
        os.close(pidfd)
        leave(keeper, kept)
        again = lasting_engine(tmp_path)
        with pytest.raises(NotFound):
            await again.adopt(SandboxSpec(id=forged))
        await again.discard(wrong_note)
        assert stranger.poll() is None
        assert (await again.adopt(SandboxSpec(id=real.id))).info.state is SandboxState.RUNNING
        await again.close()
        assert stranger.poll() is None


@pytest.mark.cgroups
async def test_another_sandbox_under_a_false_name_is_refused(
    engine: NamespaceEngine, tmp_path: Path
) -> None:
    """Its cgroup and id are another's, so that its limits would not be those that were asked for."""
    real = await engine.create(SandboxSpec())
    await engine.leave()
    keeper = open_keeper(tmp_path / "keeper")
    kept = keeper.recall()
    false_name = new_sandbox_id()
    keeper.keep(f"{false_name}/init", kept[f"{real.id}/init"].fds, kept[f"{real.id}/init"].note)
    leave(keeper, kept)
    again = lasting_engine(tmp_path)
    with pytest.raises(Unavailable, match="cgroup"):
        await again.adopt(SandboxSpec(id=false_name))
    await again.close()
