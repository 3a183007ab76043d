"""Workspaces by id: one owner, one sandbox at a time, a budget, and nothing half made, whoever is killed when."""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from atoll.errors import (
    AtollError,
    Conflict,
    InvalidRequest,
    LimitExceeded,
    NotFound,
    Unavailable,
)
from atoll.model.ids import WorkspaceId, new_sandbox_id
from atoll.model.limits import Limits
from atoll.model.sandbox import SandboxRequest, SandboxSpec
from atoll.model.sizes import GIB, MIB
from atoll.node.workspaces import WorkspaceRules, Workspaces
from tests.campaigns import Campaign

LAGOON = WorkspaceId("lagoon")

# Takes, fills, releases and removes without end; what it says is done.
BUSY = """
import sys
from pathlib import Path
from atoll.model.sandbox import SandboxRequest, SandboxSpec
from atoll.model.ids import WorkspaceId
from atoll.node.workspaces import Workspaces
workspaces = Workspaces(Path(sys.argv[1]))
for number in range(1_000_000):
    request = SandboxRequest(SandboxSpec(), workspace=WorkspaceId(f"w{number % 5}"))
    hold = workspaces.take(request)
    place = Path(hold.kept.directory)
    (place / "first").write_text(str(number))
    (place / "second").write_text(str(number))
    hold.release()
    print("kept", number, flush=True)
    if number % 3 == 0:
        workspaces.remove(f"w{number % 5}", "local")
        print("removed", number, flush=True)
"""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "workspaces"


@pytest.fixture
def workspaces(directory: Path) -> Workspaces:
    return Workspaces(directory)


def request(
    workspace: str = LAGOON, *, owner: str = "ada", size: int | None = None, remove: bool = False
) -> SandboxRequest:
    spec = SandboxSpec(id=new_sandbox_id(), limits=Limits(workspace_bytes=size))
    return SandboxRequest(
        spec, owner=owner, workspace=WorkspaceId(workspace), remove_workspace=remove
    )


def test_what_was_left_is_found_again(workspaces: Workspaces, directory: Path) -> None:
    first = workspaces.take(request())
    Path(first.kept.directory, "file").write_text("x")
    first.release()
    again = Workspaces(directory).take(request())
    assert Path(again.kept.directory, "file").read_text() == "x"
    assert again.kept.size_bytes == WorkspaceRules().size_bytes
    again.release()


def test_a_second_sandbox_is_refused_and_told_who_has_it(workspaces: Workspaces) -> None:
    one = request()
    hold = workspaces.take(one)
    for other in (workspaces, Workspaces(Path(hold.kept.directory).parents[1])):
        with pytest.raises(Conflict, match=one.spec.id) as caught:
            other.take(request())
        assert caught.value.details["sandbox"] == one.spec.id
    hold.release()
    workspaces.take(request()).release()


def test_other_processes_are_kept_out(workspaces: Workspaces, directory: Path) -> None:
    hold = workspaces.take(request("w0", owner="local"))
    done = subprocess.run(
        [sys.executable, "-c", BUSY, str(directory)], capture_output=True, text=True, timeout=60
    )
    assert "is in use by sandbox" in done.stderr
    assert done.stdout == ""
    hold.release()


def test_who_was_killed_holds_nothing(workspaces: Workspaces, directory: Path) -> None:
    code = BUSY.replace(
        "    place =",
        "    print('held', flush=True); import time; time.sleep(1000)\n    place =",
        1,
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(directory)], stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(Conflict):
            workspaces.take(request("w0", owner="local"))
        holder.kill()
        holder.wait()
    workspaces.take(request("w0", owner="local")).release()


def test_a_lock_that_somebody_else_holds_too_ends_with_its_release(workspaces: Workspaces) -> None:
    hold = workspaces.take(request())
    keepers = os.dup(hold.lock)
    hold.release()
    workspaces.take(request()).release()
    os.close(keepers)


def test_one_that_is_left_behind_stays_held(workspaces: Workspaces) -> None:
    hold = workspaces.take(request())
    keepers = os.dup(hold.lock)
    hold.leave()
    with pytest.raises(Conflict):
        workspaces.take(request())
    workspaces.take_over(LAGOON, "ada", keepers).release()
    workspaces.take(request()).release()


def test_others_neither_see_nor_use_it(workspaces: Workspaces) -> None:
    workspaces.take(request()).release()
    with pytest.raises(NotFound):
        workspaces.find(LAGOON, "bob")
    with pytest.raises(NotFound):
        workspaces.remove(LAGOON, "bob")
    assert workspaces.list("bob") == []
    assert [info.id for info in workspaces.list("ada")] == [LAGOON]


def test_each_owner_has_ids_of_his_own(workspaces: Workspaces, directory: Path) -> None:
    adas, bobs = workspaces.take(request()), workspaces.take(request(owner="bob"))
    Path(adas.kept.directory, "file").write_text("ada's")
    assert list(Path(bobs.kept.directory).iterdir()) == []
    assert workspaces.find(LAGOON, "bob").sandbox != workspaces.find(LAGOON, "ada").sandbox
    bobs.release()
    with pytest.raises(Conflict):
        workspaces.take(request())
    workspaces.remove(LAGOON, "bob")
    adas.release()
    again = Workspaces(directory).take(request())
    assert Path(again.kept.directory, "file").read_text() == "ada's"
    assert [(info.id, info.owner) for info in workspaces.list()] == [(LAGOON, "ada")]
    again.release()


def test_nothing_that_an_owner_chose_is_part_of_a_path(
    workspaces: Workspaces, directory: Path
) -> None:
    for owner in ("..", ".new-1", "lagoon", "A:b@c.d"):
        hold = workspaces.take(request("reef", owner=owner))
        place = Path(hold.kept.directory)
        assert place.parents[1] == directory
        assert re.fullmatch(r"[0-9a-f]{64}", place.parent.name)
        hold.release()
    assert len(workspaces.list()) == len(list(directory.iterdir())) == 4


# --- directories of earlier versions -------------------------------------------------------------------------


def make_older(directory: Path, workspace: str = LAGOON, owner: str = "ada") -> Path:
    """Make a workspace as versions did for which ids were one space for all; return its directory."""
    place = directory / workspace
    (place / "contents").mkdir(parents=True)
    (place / "contents/file").write_text("old")
    (place / "lock").touch()
    facts = {"id": workspace, "owner": owner, "size_bytes": 32 * MIB, "sandbox": None}
    times = {"created_at": 1.0, "last_used_at": 2.0, "removed_with_sandbox": False}
    (place / "facts.json").write_text(json.dumps({**facts, **times}))
    return place


def test_one_of_an_earlier_version_is_its_owners(workspaces: Workspaces, directory: Path) -> None:
    older = make_older(directory)
    assert workspaces.find(LAGOON, "ada").size_bytes == 32 * MIB
    assert workspaces.list("bob") == []
    bobs = workspaces.take(request(owner="bob"))
    assert list(Path(bobs.kept.directory).iterdir()) == []
    adas = workspaces.take(request())
    assert Path(adas.kept.directory, "file").read_text() == "old"
    assert not older.exists()
    assert adas.kept.size_bytes == 32 * MIB
    for hold in (adas, bobs):
        hold.release()
    workspaces.remove(LAGOON, "ada")
    assert [info.owner for info in Workspaces(directory).list()] == ["bob"]


def test_one_of_an_earlier_version_stays_where_it_is_while_a_sandbox_has_it(
    workspaces: Workspaces, directory: Path
) -> None:
    older = make_older(directory)
    lock = os.open(older / "lock", os.O_RDWR)
    fcntl.flock(lock, fcntl.LOCK_EX)
    workspaces.clean()
    assert (older / "contents/file").is_file()
    with pytest.raises(Conflict, match="in use"):
        workspaces.remove(LAGOON, "ada")
    hold = workspaces.take_over(LAGOON, "ada", lock)
    assert hold.kept.directory == str(older / "contents")
    hold.release()
    Workspaces(directory).clean()
    assert not older.exists()
    again = workspaces.take(request())
    assert Path(again.kept.directory, "file").read_text() == "old"
    again.release()


def test_one_of_an_earlier_version_goes_with_its_sandbox(
    workspaces: Workspaces, directory: Path
) -> None:
    older = make_older(directory)
    facts = json.loads((older / "facts.json").read_text())
    (older / "facts.json").write_text(json.dumps({**facts, "removed_with_sandbox": True}))
    workspaces.clean()
    assert list(directory.iterdir()) == []


def test_an_older_one_without_a_lock_keeps_no_other_from_being_used(
    workspaces: Workspaces, directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (make_older(directory, "broken") / "lock").unlink()
    older = make_older(directory)
    workspaces.clean()
    assert "workspace.damaged" in caplog.messages
    assert not older.exists()
    workspaces.take(request()).release()
    assert (directory / "broken/contents/file").is_file()


def test_an_older_copy_hides_no_newer_one(workspaces: Workspaces, directory: Path) -> None:
    hold = workspaces.take(request())
    Path(hold.kept.directory, "file").write_text("new")
    hold.release()
    older = make_older(directory)
    again = Workspaces(directory).take(request())
    assert Path(again.kept.directory, "file").read_text() == "new"
    again.release()
    assert [info.id for info in workspaces.list("ada")] == [LAGOON]
    assert (older / "contents/file").read_text() == "old"


def test_an_older_one_that_is_damaged_is_nobodys(
    workspaces: Workspaces, directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    older = make_older(directory)
    (older / "facts.json").write_text("{")
    workspaces.take(request(owner="bob")).release()
    assert "workspace.damaged" in caplog.messages
    assert (older / "contents/file").is_file()


@pytest.mark.parametrize(
    "name", ["..", ".", "", "a/b", "/etc", ".new-1", "A", "a\0b", "x" * 64, "-a"]
)
def test_ids_that_lead_elsewhere_are_refused(workspaces: Workspaces, name: str) -> None:
    with pytest.raises(InvalidRequest, match="workspace id"):
        request(name)
    for call in (workspaces.find, workspaces.remove):
        with pytest.raises(InvalidRequest, match="workspace id"):
            call(name, "ada")


def test_facts_tell_what_is_known(workspaces: Workspaces) -> None:
    before = time.time()
    one = request(size=64 * MIB)
    hold = workspaces.take(one)
    Path(hold.kept.directory, "file").write_bytes(b"x" * 100_000)
    held = workspaces.find(LAGOON, "ada")
    assert (held.owner, held.size_bytes, held.sandbox) == ("ada", 64 * MIB, one.spec.id)
    assert 100_000 <= held.used_bytes < MIB
    assert before <= held.created_at <= held.last_used_at
    hold.release()
    free = workspaces.find(LAGOON, "ada")
    assert free.sandbox is None
    assert free.last_used_at >= held.last_used_at


def test_one_in_use_is_not_removed(workspaces: Workspaces, directory: Path) -> None:
    hold = workspaces.take(request())
    with pytest.raises(Conflict, match="in use"):
        workspaces.remove(LAGOON, "ada")
    hold.release()
    workspaces.remove(LAGOON, "ada")
    assert list(directory.iterdir()) == []
    with pytest.raises(NotFound):
        workspaces.remove(LAGOON, "ada")


def test_one_goes_with_its_sandbox_if_asked_for(workspaces: Workspaces, directory: Path) -> None:
    workspaces.take(request()).release()
    workspaces.take(request(remove=True)).release()
    assert list(directory.iterdir()) == []


def test_one_that_should_have_gone_with_a_killed_sandbox_goes_later(
    workspaces: Workspaces, directory: Path
) -> None:
    hold = workspaces.take(request(remove=True))
    Workspaces(directory).clean()
    assert workspaces.find(LAGOON, "ada").sandbox is not None
    hold.leave()
    Workspaces(directory).clean()
    assert list(directory.iterdir()) == []


def test_a_sandbox_that_was_not_made_leaves_it_as_it_was(
    workspaces: Workspaces, directory: Path
) -> None:
    workspaces.take(request()).undo()
    assert list(directory.iterdir()) == []
    workspaces.take(request(size=32 * MIB)).release()
    before = workspaces.find(LAGOON, "ada")
    workspaces.take(request(size=64 * MIB, remove=True)).undo()
    assert workspaces.find(LAGOON, "ada") == before
    workspaces.take(request()).release()


def test_what_was_enlarged_for_a_sandbox_that_was_not_made_counts(directory: Path) -> None:
    """Else whoever breaks sandboxes off in time would have more than he was given."""
    workspaces = Workspaces(directory, WorkspaceRules(total_bytes=100 * MIB))
    workspaces.take(request(size=32 * MIB)).release()
    grown = workspaces.take(request(size=64 * MIB))
    with Path(grown.kept.directory, "image").open("wb") as image:
        image.truncate(64 * MIB)
    grown.undo()
    assert workspaces.find(LAGOON, "ada").size_bytes == 64 * MIB
    with pytest.raises(LimitExceeded, match="of which 64 MiB"):
        workspaces.take(request("reef", size=48 * MIB))
    workspaces.take(request()).release()


def test_a_deep_tree_is_told_without_a_descriptor_for_each_level(
    workspaces: Workspaces, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold = workspaces.take(request())
    hold.release()
    top = os.open(hold.kept.directory, os.O_RDONLY)
    Path(hold.kept.directory, "first").write_bytes(b"x" * 100_000)
    fd = os.dup(top)
    for _ in range(1500):
        os.mkdir("d", dir_fd=fd)
        inner = os.open("d", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = inner
    os.close(fd)
    os.close(top)
    opened: list[int] = []
    really_open = os.open

    def note(*arguments: Any, **options: Any) -> int:
        opened.append(really_open(*arguments, **options))
        return opened[-1]

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", note)
        used = workspaces.find(LAGOON, "ada").used_bytes
    workspaces.remove(
        LAGOON, "ada"
    )  # in any case: it is too deep for whoever tidies up after tests
    assert used >= 100_000
    # The lowest number is always taken that is free.
    assert 200 < max(opened) < 500


def test_it_grows_but_does_not_shrink(workspaces: Workspaces) -> None:
    workspaces.take(request(size=32 * MIB)).release()
    grown = workspaces.take(request(size=64 * MIB))
    assert grown.kept.size_bytes == 64 * MIB
    grown.release()
    with pytest.raises(InvalidRequest, match="not shrink to 32 MiB"):
        workspaces.take(request(size=32 * MIB))
    same = workspaces.take(request())
    assert same.kept.size_bytes == 64 * MIB
    same.release()


def test_an_owner_has_no_more_than_he_may(directory: Path) -> None:
    workspaces = Workspaces(directory, WorkspaceRules(per_owner=2))
    for name in ("a", "b"):
        workspaces.take(request(name)).release()
    with pytest.raises(LimitExceeded, match="ada has 2 workspaces, the most is 2"):
        workspaces.take(request("c"))
    workspaces.take(request("a")).release()
    workspaces.take(request("c", owner="bob")).release()


def test_all_of_an_owner_hold_no_more_than_they_may(directory: Path) -> None:
    rules = WorkspaceRules(size_bytes=32 * MIB, bytes_per_owner=100 * MIB)
    workspaces = Workspaces(directory, rules, is_shared=True)
    for name in ("a", "b", "c"):
        workspaces.take(request(name)).release()
    told = r"ada may hold 100 MiB together, 96 MiB of that are given to 3, and 32 MiB more .*bytes_per_owner"
    with pytest.raises(LimitExceeded, match=told) as caught:
        workspaces.take(request("d"))
    assert caught.value.details == {"owner": "ada", "limit": 100 * MIB, "given_bytes": 96 * MIB}
    with pytest.raises(LimitExceeded, match="and 8 MiB more"):
        workspaces.take(request("a", size=40 * MIB))
    workspaces.take(request("a", size=36 * MIB)).release()
    workspaces.take(request("d", owner="bob")).release()
    workspaces.remove("b", "ada")
    workspaces.take(request("d")).release()


def test_who_has_more_than_he_may_since_lately_keeps_it(directory: Path) -> None:
    for name in ("a", "b"):
        Workspaces(directory).take(request(name, size=64 * MIB)).release()
    workspaces = Workspaces(directory, WorkspaceRules(bytes_per_owner=100 * MIB))
    workspaces.take(request("a")).release()
    with pytest.raises(LimitExceeded):
        workspaces.take(request("c", size=16 * MIB))


def test_all_together_have_no_more_than_they_may(directory: Path) -> None:
    workspaces = Workspaces(directory, WorkspaceRules(size_bytes=64 * MIB, total_bytes=100 * MIB))
    workspaces.take(request("a")).release()
    with pytest.raises(LimitExceeded, match="100 MiB together, of which 64 MiB"):
        workspaces.take(request("b", owner="bob"))
    with pytest.raises(LimitExceeded, match="no room for 64 MiB more"):
        workspaces.take(request("a", size=128 * MIB))
    workspaces.take(request("b", owner="bob", size=36 * MIB)).release()


def test_more_than_the_disk_has_is_refused(workspaces: Workspaces, directory: Path) -> None:
    with pytest.raises(LimitExceeded, match=rf"disk of {directory} has .* left; .* make room"):
        workspaces.take(request(size=1_000_000 * GIB))
    assert list(directory.iterdir()) == []


def test_those_who_share_a_machine_are_told_what_to_do_and_nothing_of_it(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What the operator needs to know is in the log."""
    total = Workspaces(directory, WorkspaceRules(total_bytes=100 * MIB), is_shared=True)
    place = total.take(request("a", size=64 * MIB))
    place.release()
    told = []
    with pytest.raises(LimitExceeded, match="no room for 48 MiB more") as caught:
        total.take(request("b", owner="bob", size=48 * MIB))
    told.append(caught.value)
    disk = Workspaces(directory, is_shared=True)
    with pytest.raises(LimitExceeded, match="ask for less workspace_bytes") as caught:
        disk.take(request("b", owner="bob", size=1_000_000 * GIB))
    told.append(caught.value)
    (Path(place.kept.directory).parent / "facts.json").write_text("{")
    with pytest.raises(Unavailable, match="damaged") as damaged:
        disk.find("a", "ada")
    with pytest.raises(Unavailable, match="cannot be opened") as unusable:
        Workspaces(Path("/proc/self/none"), is_shared=True).list()
    for error in (*told, damaged.value, unusable.value):
        assert not re.search(r"/|100 MiB|64 MiB|left|No such", str(error)), error
        assert error.details == {}
    logged = " ".join(str(getattr(each, "reason", "")) for each in caplog.records)
    for reason in ("of which 64 MiB", f"disk of {directory}", "/proc/self/none"):
        assert reason in logged


def test_damaged_facts_are_told_and_harm_no_other(workspaces: Workspaces) -> None:
    holds = [workspaces.take(request(name)) for name in ("a", "b")]
    for hold in holds:
        hold.release()
    place = Path(holds[0].kept.directory)
    (place.parent / "facts.json").write_text("{")
    with pytest.raises(Unavailable, match="damaged"):
        workspaces.take(request("a"))
    assert [info.id for info in workspaces.list()] == ["b"]
    workspaces.clean()
    assert place.is_dir()


def test_nobody_else_can_look_into_the_directory(workspaces: Workspaces, directory: Path) -> None:
    workspaces.take(request()).release()
    assert directory.stat().st_mode & 0o077 == 0


@pytest.mark.timeout(600)
def test_kills_leave_each_one_whole_or_gone(directory: Path, campaign: Campaign) -> None:
    for _ in range(campaign.count(200)):
        with subprocess.Popen(
            [sys.executable, "-c", BUSY, str(directory)], stdout=subprocess.PIPE, text=True
        ) as busy:
            assert busy.stdout is not None
            said = [busy.stdout.readline()]
            time.sleep(campaign.random.uniform(0, 0.1))
            busy.send_signal(signal.SIGKILL)
            said += busy.stdout.readlines()
        workspaces = Workspaces(directory)
        workspaces.clean()
        check_whole(directory, workspaces)
        check_acknowledged(directory, [line.split() for line in said if line.endswith("\n")])


def check_whole(directory: Path, workspaces: Workspaces) -> None:
    found = workspaces.list("local")
    assert len(list(directory.iterdir())) == len(found)
    for info in found:
        assert info.sandbox is None
        workspaces.take(request(info.id, owner="local")).release()


def place_of(directory: Path, workspace: str) -> Path:
    """Return where the contents of a workspace lie; a path that is not there if there is none."""
    for facts in directory.glob("*/facts.json"):
        if json.loads(facts.read_text())["id"] == workspace:
            return facts.parent / "contents"
    return directory / "none"


def check_acknowledged(directory: Path, said: list[list[str]]) -> None:
    words = [(word, int(number)) for word, number in said]
    word, number = words[-1]
    under_way = number % 5 if word == "kept" and number % 3 == 0 else (number + 1) % 5
    for place, (word, number) in {number % 5: (word, number) for word, number in words}.items():
        contents = place_of(directory, f"w{place}")
        if place != under_way and word == "kept":
            assert {(contents / name).read_text() for name in ("first", "second")} == {str(number)}
        elif place != under_way:
            assert not contents.exists()


def test_the_lock_of_all_is_held_for_a_moment_only(workspaces: Workspaces, directory: Path) -> None:
    hold = workspaces.take(request())
    fd = os.open(directory, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(fd)
    hold.release()
    with pytest.raises(AtollError):
        workspaces.find("missing", "ada")
