"""Threats B: the process file system, settings of the kernel, devices."""

from __future__ import annotations

import os
from pathlib import Path

from tests.security.guest import Guest

DEVICES = {
    "null": [1, 3],
    "zero": [1, 5],
    "full": [1, 7],
    "random": [1, 8],
    "urandom": [1, 9],
    "tty": [5, 0],
}
# Links and mount points of the sandbox's own.
OTHER_IN_DEV = {"fd", "stdin", "stdout", "stderr", "ptmx", "pts", "shm"}
KERNEL_FILES = (
    "acpi/wakeup", "bus/pci/devices", "cmdline", "config.gz", "diskstats", "driver/rtc",
    "interrupts", "kallsyms", "kcore", "key-users", "keys", "kmsg", "kpagecgroup", "kpagecount",
    "kpageflags", "latency_stats", "modules", "partitions", "sched_debug", "scsi/scsi", "slabinfo",
    "timer_list", "timer_stats", "vmallocinfo",
)  # fmt: skip
# What tells this machine from others, and can be kept back.
IDENTITY = (
    "/etc/machine-id",
    "/etc/hostname",
    "/etc/shadow",
    "/etc/fstab",
    "/etc/ssh/ssh_host_rsa_key.pub",
    "/var/lib/dbus/machine-id",
    "/sys/class/dmi/id/product_uuid",
    "/sys/class/dmi/id/product_serial",
    "/sys/class/net/eth0/address",
    "/sys/firmware/dmi/tables/DMI",
    "/proc/device-tree/serial-number",
    "/proc/bus/pci/devices",
    "/proc/partitions",
    "/proc/cmdline",
)


# --- T17, T18: settings ---------------------------------------------------------------------------


async def test_no_setting_of_the_kernel_can_be_written(probe: Guest) -> None:
    found = await probe.attack("writable_settings")
    assert found["tried"] > 100
    assert found["opened"] == []
    assert not found["sysfs"]


async def test_sysfs_is_not_mounted(guest: Guest) -> None:
    found = await guest.attack("mounts")
    kinds = {mount["kind"] for mount in found["mounts"]}
    forbidden = {
        "sysfs",
        "cgroup",
        "cgroup2",
        "debugfs",
        "tracefs",
        "securityfs",
        "bpf",
        "configfs",
    }
    assert kinds & forbidden == set()


# --- T19: what the kernel tells of itself ---------------------------------------------------------


async def test_files_of_the_kernel_say_nothing(probe: Guest) -> None:
    paths = [f"/proc/{name}" for name in KERNEL_FILES]
    found = await probe.attack("read_files", *paths, "/dev/kmsg")
    told = {path: text for path, text in found["contents"].items() if text and text[0] != "["}
    assert told == {}


async def test_page_frames_are_not_shown(guest: Guest) -> None:
    found = await guest.attack("page_frames")
    assert found["frames"] == [0] * 8


async def test_the_kernel_s_log_is_refused(probe: Guest) -> None:
    # 2: read, 3: read all, 9: how much is unread, 10: the size of the buffer.
    answers = await probe.calls([("syslog", [action, 0, 0]) for action in (2, 3, 9, 10)])
    assert answers == ["EPERM"] * 4


# --- T20: processes of the host -------------------------------------------------------------------


async def test_only_the_sandbox_s_own_processes_can_be_seen(probe: Guest, secret: str) -> None:
    found = await probe.attack("look_at_processes")
    for facts in found["processes"].values():
        assert facts["kernel_thread"] == "0"
        assert secret not in facts["command"]
        assert facts["seccomp"] == "2"
    names = {facts["name"] for facts in found["processes"].values()}
    assert names <= {"init", "supervisor", "files", "sh", "bash", "gone"}


# --- T21: devices ---------------------------------------------------------------------------------


async def test_devices_are_the_known_ones_and_no_more(probe: Guest) -> None:
    found = await probe.attack("list_devices")
    assert set(found["devices"]) == set(DEVICES) | OTHER_IN_DEV
    assert found["numbers"] == DEVICES
    assert set(found["answers"].values()) == {"ENOENT"}


async def test_devices_cannot_be_replaced(guest: Guest) -> None:
    script = "import os\nfor name in ('null', 'random', 'tty'): os.unlink(f'/dev/{name}')"
    printed = await guest.entry(guest.sandbox, ("python3", "-c", script))
    assert b"OSError" in printed or b"PermissionError" in printed
    found = await guest.attack("list_devices")
    assert found["numbers"] == DEVICES


# --- T22: which machine this is -------------------------------------------------------------------


async def test_nothing_tells_the_machine_that_could_be_kept_back(guest: Guest) -> None:
    found = await guest.attack("read_files", *IDENTITY)
    told = {path: text for path, text in found["contents"].items() if text and text[0] != "["}
    assert told == {}


# --- T23: being ended last ------------------------------------------------------------------------


async def test_the_out_of_memory_score_cannot_be_lowered(probe: Guest) -> None:
    found = await probe.attack("lower_oom_score")
    assert found["score"] == 300
    assert len(found["answers"]) >= 16
    assert "OK" not in found["answers"].values()


def test_a_host_without_memory_ends_sandboxes_before_itself() -> None:
    own = int(Path("/proc/self/oom_score_adj").read_text())
    assert own < 300


# --- T24: core dumps ------------------------------------------------------------------------------


async def test_a_crash_leaves_nothing(probe: Guest, tmp_path: Path) -> None:
    before = set(os.listdir("/")) | set(os.listdir(os.getcwd())) | set(os.listdir("/tmp"))
    found = await probe.attack("crash")
    assert found["limit"] == [0, 0]
    assert set(found["raised"]) == {"EPERM"}
    assert found["dumped"] == [False] * 3
    assert found["left"] == []
    after = set(os.listdir("/")) | set(os.listdir(os.getcwd())) | set(os.listdir("/tmp"))
    assert [name for name in after - before if name.startswith("core")] == []
