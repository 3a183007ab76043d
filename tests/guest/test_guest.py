"""The engine on other machines: guests with another kernel, other cgroups, or less than here."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.guest import image
from tests.guest.image import GuestImage
from tests.guest.machine import run_job

pytestmark = [pytest.mark.root_only, pytest.mark.timeout(1500)]

INSIDE = "tests/guest/inside"
CONTRACT = ("tests/engines/test_contract.py", "-k", "namespaces")
BOMBS = ("tests/security/test_resources.py", "-k", "cgroup")
ADOPTION = ("tests/engines/namespaces/test_adoption.py",)
HOGS = ("tests/end_to_end/test_memory_hogs.py",)
FORBID = "echo 0 >/proc/sys/user/max_user_namespaces"
ALLOW = "echo 1000 >/proc/sys/user/max_user_namespaces"
FORBID_USERS = "echo 0 >/proc/sys/kernel/unprivileged_userns_clone"


@dataclass(frozen=True)
class Stage:
    """Shell lines that set the guest up, and what pytest runs then."""

    prepare: str
    tests: Sequence[str]
    user: str = "root"

    def script(self, name: str) -> str:
        return f"{self.prepare}\nrun_tests {name} {self.user} {shlex.join(self.tests)}\n"


def inside(prepare: str, module: str, user: str = "root") -> Stage:
    """Return a stage that runs a module meant for guests alone, because loading is slow there."""
    alone = ["--confcutdir", INSIDE, "-p", "no:hypothesispytest", "--durations=5"]
    alone += ["-o", "timeout=600"]
    return Stage(prepare, [*alone, f"{INSIDE}/{module}"], user)


def ordinary(prepare: str, user: str, *tests: str) -> Stage:
    """Return a stage that runs tests which were not made for guests."""
    patient = ["-p", "tests.guest.inside.patience", "-o", "timeout=600"]
    # The guest's other places are in memory, which not every kernel shows under another owner.
    return Stage(prepare, [*patient, "--basetemp", f"/home/{user}/tmp/pytest", *tests], user)


@pytest.fixture(scope="session")
def guest() -> GuestImage:
    """What guests boot from; skipped with the reason where there is none."""
    if reason := image.why_not():
        pytest.skip(reason)
    return image.ready_image()


def run(
    guest: GuestImage,
    folder: Path,
    stages: Mapping[str, Stage],
    *,
    kernel_options: Sequence[str] = (),
    memory_mib: int = 1024,
    seconds: float = 1000,
) -> None:
    """Run stages one after another in one guest; all have to pass, with no test left out."""
    scripts = [stage.script(name) for name, stage in stages.items()]
    start = "\n".join([f". atoll/{INSIDE}/layouts.sh", *scripts])
    outcome = run_job(
        guest,
        start,
        folder,
        seconds=seconds,
        kernel_options=kernel_options,
        memory_mib=memory_mib,
    )
    print(outcome.console)
    for name in stages:
        assert f"{name}/exit" in outcome.files, outcome.console
        output = outcome.files[f"{name}/output"].decode()
        print(f"── {name}\n{output}")
        assert outcome.files[f"{name}/exit"] == b"0\n", f"{name}:\n{output}"
        suite = ElementTree.fromstring(outcome.files[f"{name}/junit.xml"]).find("testsuite")
        assert suite is not None
        assert int(suite.attrib["tests"]) > 0


def test_cgroup_v2_holds_limits(guest: GuestImage, tmp_path: Path) -> None:
    stages = {
        "as_root": inside("session", "limits_held.py"),
        "as_user": inside("delegated_leaf", "limits_held.py", "guest"),
    }
    run(guest, tmp_path, stages)


@pytest.mark.long  # it takes both processors for minutes, and everything beside it runs out of time
def test_a_served_node_is_followed_by_the_next_on_cgroup_v2(
    guest: GuestImage, tmp_path: Path
) -> None:
    stages = {
        # Each node in a cgroup of its own, which systemd removes after the last process in it.
        "as_user": inside("user_systemd", "served_node.py", "guest"),
        "as_root": inside("session", "served_node.py"),
    }
    run(guest, tmp_path, stages)


@pytest.mark.long
def test_a_service_is_followed_by_the_next_start_of_it(guest: GuestImage, tmp_path: Path) -> None:
    run(guest, tmp_path, {"service": inside("service", "served_node.py", "guest")})


@pytest.mark.long
@pytest.mark.parametrize(
    "stage",
    [
        ordinary("session", "root", *ADOPTION),
        ordinary("delegated_leaf", "guest", *ADOPTION, "-m", "not root_only"),
        ordinary("hybrid", "root", *ADOPTION),
    ],
    ids=["v2 as root", "v2 delegated", "hybrid"],
)
def test_sandboxes_outlive_nodes_that_are_killed(
    stage: Stage, guest: GuestImage, tmp_path: Path
) -> None:
    run(guest, tmp_path, {"adoption": stage}, seconds=1200)


@pytest.mark.long
def test_all_sandboxes_together_leave_memory_on_cgroup_v2(
    guest: GuestImage, tmp_path: Path
) -> None:
    stages = {"hogs": ordinary("session", "root", *HOGS)}
    run(guest, tmp_path, stages, memory_mib=2048, seconds=1400)


@pytest.mark.long
def test_a_delegated_scope_is_divided_and_put_back(guest: GuestImage, tmp_path: Path) -> None:
    stages = {"scope": inside("delegated_scope", "limits_held.py", "guest")}
    run(guest, tmp_path, stages)


@pytest.mark.long
def test_cgroup_v1_holds_limits(guest: GuestImage, tmp_path: Path) -> None:
    prepare = "older cpu,cpuacct memory pids freezer"
    run(guest, tmp_path, {"v1": inside(prepare, "limits_held.py")})


@pytest.mark.long
def test_without_cgroups_what_stands_in_is_named(guest: GuestImage, tmp_path: Path) -> None:
    stages = {
        "as_root": inside("none", "no_cgroup.py"),
        "as_user": inside("none", "no_cgroup.py", "guest"),
    }
    run(guest, tmp_path, stages)


@pytest.mark.long
def test_without_user_namespaces_nothing_starts(guest: GuestImage, tmp_path: Path) -> None:
    module = "no_user_namespaces.py"
    stages = {
        "none_as_root": inside(f"none; {FORBID}", module),
        "none_as_user": inside("", module, "guest"),
        "not_for_users_as_root": inside(f"{ALLOW}; {FORBID_USERS}", module),
        "not_for_users_as_user": inside("", module, "guest"),
    }
    run(guest, tmp_path, stages)


@pytest.mark.long
def test_without_landlock_the_rest_holds(guest: GuestImage, tmp_path: Path) -> None:
    stages = {"no_landlock": inside("none", "no_landlock.py", "guest")}
    run(guest, tmp_path, stages, kernel_options=["lsm=lockdown,yama"])


@pytest.mark.long
@pytest.mark.parametrize(
    "stage",
    [
        ordinary("session", "root", *CONTRACT),
        ordinary("delegated_leaf", "guest", *CONTRACT),
        ordinary("none", "guest", *CONTRACT),
        ordinary("older cpu,cpuacct memory pids", "root", *CONTRACT),
    ],
    ids=["v2 as root", "v2 delegated", "no cgroup", "v1 without freezer"],
)
def test_the_whole_contract_is_kept(stage: Stage, guest: GuestImage, tmp_path: Path) -> None:
    run(guest, tmp_path, {"contract": stage}, seconds=1200)


@pytest.mark.long
@pytest.mark.parametrize(
    "stage",
    [
        ordinary("session", "root", *BOMBS),
        ordinary("delegated_leaf", "guest", *BOMBS),
    ],
    ids=["v2 as root", "v2 delegated"],
)
def test_bombs_are_contained(stage: Stage, guest: GuestImage, tmp_path: Path) -> None:
    run(guest, tmp_path, {"bombs": stage}, seconds=1200)
