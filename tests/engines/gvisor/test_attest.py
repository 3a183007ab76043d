"""What a sandbox must not be: each difference is found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from atoll.engines.gvisor.attest import Expected, inside, parse_cgroups
from atoll.engines.steward.hello import Hello

pytestmark = pytest.mark.any_user

_MOUNTS = """none / 9p ro,trans=fd,cache=fscache 0 0
none /sys sysfs rw,dentry_cache_limit=1000 0 0
none /dev tmpfs rw,mode=0755 0 0
none /usr 9p ro,trans=fd 0 0
none /mnt/data 9p rw,trans=fd 0 0
none /proc proc rw 0 0
none /dev/pts devpts rw 0 0
none /workspace tmpfs rw,size=8388608,uid=65532 0 0
"""
_HELLO = Hello(
    uid=65532,
    gid=65532,
    hostname="atoll",
    kernel="#1 SMP Sun Jan 10 15:06:54 PST 2016",
    no_new_privileges=True,
    uses_marks=True,
    status={
        **dict.fromkeys(("CapInh", "CapPrm", "CapEff", "CapBnd"), "0000000000000000"),
        "Seccomp": "2",
    },
    mounts=_MOUNTS,
    sizes={"/workspace": 8 << 20},
)
_EXPECTED = Expected(
    hostname="atoll",
    sizes={"/workspace": 8 << 20},
    writable_mounts=frozenset({"/mnt/data"}),
    cgroups={},
    is_rootless=False,
)


def test_what_was_asked_for_is_found_so() -> None:
    assert list(inside(_HELLO, _EXPECTED)) == []


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"uid": 0}, "runs as"),
        ({"gid": 0}, "runs as"),
        ({"hostname": "host"}, "name"),
        ({"kernel": "#1 SMP PREEMPT_DYNAMIC Debian"}, "gVisor"),
        ({"status": {**_HELLO.status, "CapEff": "0000000000000001"}}, "capabilities"),
        ({"status": {}}, "capabilities"),
        ({"status": {**_HELLO.status, "Seccomp": "0"}}, "filter"),
        ({"sizes": {"/workspace": 1 << 40}}, "/workspace"),
        ({"sizes": {}}, "/workspace"),
        ({"mounts": _MOUNTS.replace("/usr 9p ro", "/usr 9p rw")}, "/usr can be written"),
        ({"mounts": _MOUNTS.replace("/ 9p ro", "/ 9p rw")}, "/ can be written"),
        ({"mounts": _MOUNTS + "none /etc tmpfs rw 0 0\n"}, "/etc"),
    ],
)
def test_every_difference_is_told(changes: Mapping[str, Any], word: str) -> None:
    differences = list(inside(replace(_HELLO, **changes), _EXPECTED))
    assert differences
    assert word in " ".join(differences)


def test_a_mount_is_writable_only_if_that_was_asked_for() -> None:
    expected = replace(_EXPECTED, writable_mounts=frozenset())
    assert list(inside(_HELLO, expected)) == ["/mnt/data can be written"]


def test_cgroups_are_told_by_controller() -> None:
    assert parse_cgroups("9:cpu,cpuacct:/a/b\n0::/c\n") == {
        "cpu": "/a/b",
        "cpuacct": "/a/b",
        "": "/c",
    }
