"""Turns, reasons, and one real run of a cheap peer."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

import anyio
import pytest

from atoll.engines.catalog import DEFAULT_ENGINE, make_engine
from atoll.errors import CommandFailed
from benchmarks.atoll_side import AtollSide
from benchmarks.contest import LEAST_PAIRS, contest, pairs_for
from benchmarks.memory import own_descendants, private_bytes, processes_since
from benchmarks.mounted_sandbox import MountedSandbox
from benchmarks.peers.peer import Peer
from benchmarks.peers.python_c import PythonC
from tools.places import Failed

pytestmark = pytest.mark.any_user


class FakePeer:
    """Notes its turns; fails from a given one on."""

    def __init__(self, name: str, log: list[str], fails_at: int | None = None) -> None:
        self.name = name
        self._log = log
        self._fails_at = fails_at
        self._runs = 0
        self.closed = False

    def prepare(self) -> Mapping[str, str]:
        if self._fails_at == 0:
            raise Failed("it is not installed")
        return {self.name: "1.0"}

    def run_once(self) -> float:
        self._runs += 1
        if self._fails_at is not None and self._runs >= self._fails_at:
            raise Failed("it broke")
        self._log.append(self.name)
        return 0.5

    def close(self) -> None:
        self.closed = True


def test_atoll_takes_turns_with_one_peer_after_the_other() -> None:
    log: list[str] = []

    def atoll() -> float:
        log.append("atoll")
        return 0.25

    peers = [FakePeer("a", log), FakePeer("b", log)]
    outcome = contest(atoll, peers, pairs=4)
    warm_ups = [["a", "a"], ["b", "b"]]
    assert log == ["atoll", *warm_ups[0], *["atoll", "a"] * 4, *warm_ups[1], *["atoll", "b"] * 4]
    assert len(outcome.atoll) == 8
    assert {name: len(pairs.peer) for name, pairs in outcome.peers.items()} == {"a": 4, "b": 4}
    assert outcome.versions == {"a": "1.0", "b": "1.0"}
    assert all(peer.closed for peer in peers)


@pytest.mark.parametrize("fails_at", [0, 1, 4])
def test_a_peer_that_fails_is_listed_with_its_reason_and_harms_no_other(fails_at: int) -> None:
    log: list[str] = []
    broken, sound = FakePeer("broken", log, fails_at), FakePeer("sound", log)
    found = contest(lambda: 0.25, [broken, sound], pairs=5).as_json()
    peers = found["peers"]
    assert isinstance(peers, dict)
    assert peers["broken"] == {"reason": "it is not installed" if fails_at == 0 else "it broke"}
    assert peers["sound"]["n"] == 5
    assert peers["sound"]["ratio_p50"] == 2
    assert broken.closed


def test_a_ratio_is_taken_to_the_samples_beside_that_peer() -> None:
    seconds = iter([9.0, 0.25, 0.25, 0.125, 0.125])
    outcome = contest(lambda: next(seconds), [FakePeer("a", []), FakePeer("b", [])], pairs=2)
    peers = outcome.as_json()["peers"]
    assert isinstance(peers, dict)
    assert {name: found["ratio_p50"] for name, found in peers.items()} == {"a": 2, "b": 4}
    assert {name: found["atoll_p50_ms"] for name, found in peers.items()} == {"a": 250, "b": 125}


def test_atoll_alone_is_measured_where_no_peer_can_run() -> None:
    outcome = contest(lambda: 0.25, [FakePeer("broken", [], 0)], pairs=3)
    assert outcome.atoll == [0.25] * 3


def test_a_failure_of_atoll_is_no_result() -> None:
    def atoll() -> float:
        raise Failed("no sandbox")

    with pytest.raises(Failed, match="no sandbox"):
        contest(atoll, [], pairs=1)


def test_a_failure_of_atoll_beside_a_peer_is_not_the_peers() -> None:
    runs = iter([0.25, 0.25])

    def atoll() -> float:
        for seconds in runs:
            return seconds
        raise Failed("no sandbox")

    peer = FakePeer("sound", [])
    with pytest.raises(Failed, match="no sandbox"):
        contest(atoll, [peer], pairs=2)
    assert peer.closed


def test_a_slow_peer_gets_fewer_pairs() -> None:
    assert pairs_for(0.01, 30, 60) == 30
    assert pairs_for(6, 30, 60) == 10
    assert pairs_for(1000, 30, 60) == LEAST_PAIRS
    assert pairs_for(1000, 3, 60) == 3


def test_a_real_peer_runs_beside_a_clock() -> None:
    def atoll() -> float:
        started = time.perf_counter()
        time.sleep(0.001)
        return time.perf_counter() - started

    peer: Peer = PythonC()
    outcome = contest(atoll, [peer], pairs=3)
    assert outcome.reasons == {}
    assert [seconds > 0 for seconds in outcome.peers["python3 -c"].peer] == [True] * 3
    assert outcome.versions["python3"].startswith("3.")


@pytest.fixture
def works(tmp_path: Path) -> None:
    """Skip where the engine cannot run."""
    engine = make_engine(DEFAULT_ENGINE, data_dir=tmp_path)
    missing = [check for check in anyio.run(engine.check) if check.required and not check.ok]
    if missing:
        pytest.skip(f"the engine cannot run here: {missing[0].name}: {missing[0].found}")


@pytest.mark.usefixtures("works")
def test_atoll_runs_beside_a_real_peer() -> None:
    with AtollSide() as atoll:
        outcome = contest(atoll.create_and_run, [PythonC()], pairs=2)
        found = atoll.conditions()
    assert len(outcome.atoll) == 2
    assert found["engine"] == DEFAULT_ENGINE
    assert found["inside"]["ipython"]
    assert found["inside"]["seccomp_mode"] == 2
    assert found["inside"]["no_new_privs"] == 1
    assert set(found["enforced_by"]) >= {"memory_bytes", "cpus", "processes"}


@pytest.mark.usefixtures("works")
def test_atoll_runs_cells_in_every_way_and_many_at_once() -> None:
    with AtollSide() as atoll:
        assert list(atoll.cells()) == ["embedded", "embedded-sync", "websocket", "http"]
        for name, open_kernel in atoll.cells().items():
            before = own_descendants()
            kernel = open_kernel()
            assert kernel.run_cell() > 0
            if name.startswith("embedded"):  # others have processes that are no children of ours
                assert private_bytes(processes_since(before, [kernel.id])) > 0
            with pytest.raises(Failed, match="ZeroDivisionError"):
                kernel.run("1 / 0")
            kernel.close()
        assert atoll.burst(clients=2, operations=3) > 0


@pytest.mark.usefixtures("works")
def test_atoll_copies_files(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    (source / "a.txt").write_text("a")
    with AtollSide() as atoll:
        copier = atoll.open_workspace()
        assert copier.copy(source, target) > 0
        copier.close()
    assert (target / "a.txt").read_text() == "a"


@pytest.mark.usefixtures("works")
def test_work_in_a_folder_of_the_host_is_done_there(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    folder = tmp_path / "folder"
    folder.mkdir()
    folder.chmod(0o777)
    with MountedSandbox(folder, tmp_path) as sandbox:
        assert sandbox.run(["sh", "-c", "echo done >file"], {}) > 0
        with pytest.raises(CommandFailed):
            sandbox.run(["false"], {})
    assert (folder / "file").read_text() == "done\n"
