"""Cgroup layouts are understood from what the kernel says of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from atoll.engines.cgroups.layout import parse_layout
from atoll.engines.cgroups.settings import NEEDED

pytestmark = pytest.mark.any_user

V1_MOUNTS = """
30 23 0:26 / /sys/fs/cgroup ro shared:8 - tmpfs tmpfs ro,mode=755
31 30 0:27 / /sys/fs/cgroup/cpu,cpuacct rw shared:9 - cgroup cgroup rw,cpu,cpuacct
32 30 0:28 / /sys/fs/cgroup/memory rw shared:10 - cgroup cgroup rw,memory
33 30 0:29 / /sys/fs/cgroup/pids rw shared:11 - cgroup cgroup rw,pids
34 30 0:30 / /sys/fs/cgroup/freezer rw shared:12 - cgroup cgroup rw,freezer
"""
V1_MEMBERSHIP = (
    "4:freezer:/\n3:pids:/user.slice\n2:memory:/user.slice/a\n1:cpu,cpuacct:/user.slice\n"
)


def test_the_older_layout_has_a_directory_for_each_controller() -> None:
    layout = parse_layout(V1_MEMBERSHIP, V1_MOUNTS.strip())
    assert layout.name == "v1"
    assert layout.v1["memory"] == Path("/sys/fs/cgroup/memory/user.slice/a")
    assert layout.v1["cpu"] == Path("/sys/fs/cgroup/cpu,cpuacct/user.slice")
    assert layout.v1["freezer"] == Path("/sys/fs/cgroup/freezer")
    assert layout.v2 is None


def test_the_unified_layout_is_one_directory(tmp_path: Path) -> None:
    own = tmp_path / "user.slice"
    own.mkdir()
    (own / "cgroup.controllers").write_text("cpu memory pids io\n")
    mounts = f"30 23 0:26 / {tmp_path} rw - cgroup2 cgroup2 rw,nsdelegate"
    layout = parse_layout("0::/user.slice\n", mounts)
    assert (layout.name, layout.v2) == ("v2", own)
    assert all(layout.version_of(controller) == 2 for controller in NEEDED)


def test_controllers_on_both_sides_are_hybrid(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("hugetlb\n")
    mounts = V1_MOUNTS.strip() + f"\n40 30 0:40 / {tmp_path} rw - cgroup2 cgroup2 rw"
    layout = parse_layout(V1_MEMBERSHIP + "0::/\n", mounts)
    assert layout.name == "hybrid"
    assert layout.version_of("memory") == 1
    assert layout.version_of("hugetlb") == 2


def test_inside_a_container_only_a_part_is_mounted() -> None:
    mounts = "30 23 0:26 /docker/abc /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory"
    layout = parse_layout("2:memory:/docker/abc/inner\n", mounts)
    assert layout.v1["memory"] == Path("/sys/fs/cgroup/memory/inner")


def test_without_cgroups_there_is_none() -> None:
    assert parse_layout("", "1 0 0:1 / / rw - ext4 /dev/root rw").name == "none"
