"""Attacks that every engine has to hold, told so that they can be listed: what is tried, and by whom it is judged.

Each is one function of `Target`. What engines answer differs (a second kernel has other words than the host's), so
an attack is judged by what it got, and not by how it was refused.
"""

from __future__ import annotations

import ctypes
import os
import secrets
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from atoll.errors import AtollError
from atoll.model.process import EndReason
from atoll.node.commands import Commands
from tests.security.forbidden_calls import ESCAPES, HANDLES, MOUNTING
from tests.security.guest import Call, Guest

OWN_TREES = ("/workspace", "/tmp", "/home/sandbox", "/dev/shm")
# Host folders that images and templates have, too, and some that only a host has.
HOST_FOLDERS = (
    "/etc",
    "/root",
    "/home",
    "/tmp",
    "/var/tmp",
    "/opt",
    "/srv",
    "/mnt",
    "/run",
    "/dev/shm",
)
HARMLESS_DEVICES = frozenset(
    {"null", "zero", "full", "random", "urandom", "tty", "ptmx", "console"}
)
# What the kernel keeps of itself: memory, symbols, keys, its log.
KERNEL_FILES = (
    "kcore", "kmsg", "keys", "timer_list", "sched_debug", "scsi/scsi", "latency_stats", "kpagecount",
    "kpageflags", "slabinfo", "vmallocinfo", "acpi/wakeup",
)  # fmt: skip
SERVICE_SOCKETS = (
    "/var/run/docker.sock",
    "/run/docker.sock",
    "/run/podman/podman.sock",
    "/run/containerd/containerd.sock",
    "/run/systemd/private",
    "/run/dbus/system_bus_socket",
)
REFUSED = frozenset({"EPERM", "ENOSYS", "EACCES"})


@dataclass(frozen=True)
class Target:
    """An engine under attack: sandboxes of the attacker's, one of somebody else's, and a word of the host's."""

    guest: Guest
    small: Guest  # has little of everything, and may be ruined
    neighbour: Guest
    secret: str


Run = Callable[[Target], Awaitable[None]]


# --- files ------------------------------------------------------------------------------------------------


async def read_and_change_the_hosts_files(target: Target) -> None:
    word = f"atoll-canary-{secrets.token_hex(8)}"
    with ExitStack() as undo:
        planted = [Path(folder, word) for folder in HOST_FOLDERS if os.access(folder, os.W_OK)]
        for path in planted:
            path.write_bytes(b"host")
            undo.callback(path.unlink)
            path.chmod(0o666)
        assert len(planted) >= 5
        found = await target.guest.attack("look_around", word, *map(str, planted))
        assert found["seen"] > 100, "the search saw nothing at all"
        assert (found["hits"], found["opened"], found["changed"]) == ([], [], [])
        assert {path.read_bytes() for path in planted} == {b"host"}


async def write_outside_of_its_own_trees(target: Target) -> None:
    found = await target.guest.attack("look_around", "nothing")
    own = tuple(f"{tree}/" for tree in OWN_TREES)
    others = {path for path in found["writable"] if not path.startswith(own)}
    assert others >= {*OWN_TREES}
    # Podman gives every container these in memory, which counts as the container's own.
    assert others <= {*OWN_TREES, "/dev/mqueue", "/var/tmp", "/run", "/run/lock"}


async def find_another_sandboxs_files(target: Target) -> None:
    word = f"atoll-marker-{secrets.token_hex(8)}"
    dropped = await target.neighbour.attack("drop_markers", word)
    assert len(dropped["places"]) >= 3
    found = await target.guest.attack("look_around", word)
    assert found["seen"] > 100 and found["hits"] == []


async def lead_the_host_outside_by_links(target: Target) -> None:
    word = f"canary-{secrets.token_hex(8)}"
    path = Path("/var/tmp", f"atoll-canary-{secrets.token_hex(8)}")
    path.write_text(word)
    path.chmod(0o666)
    try:
        line = f"ln -s {path} link; ln -s /var/tmp folder; ln -s / root; ln -s /proc/1/root door"
        await Commands(target.guest.sandbox).run(line, check=True)
        names = ("link", f"folder/{path.name}", f"root{path}", f"door{path}")
        for name in names:
            with pytest.raises(AtollError):
                await target.guest.files.read(name)
            try:
                await target.guest.files.write(name, "changed")
            except AtollError:
                pass  # replacing the link itself is the sandbox's own affair
        assert path.read_text() == word
    finally:
        path.unlink()
        await Commands(target.guest.sandbox).run("rm -f link folder root door")


async def climb_above_its_root(target: Target) -> None:
    found = await target.guest.attack("climb")
    assert {tuple(place) for place in found["from_here"]} == {tuple(found["root"])}
    assert found["from_descriptors"] == []


# --- privileges -------------------------------------------------------------------------------------------


async def have_privileges(target: Target) -> None:
    found = await target.guest.attack("identity")
    for name in ("CapInh", "CapPrm", "CapEff", "CapBnd"):
        assert int(found["status"][name], 16) == 0, name
    assert found["no_new_privileges"] == 1
    assert found["ids"] == [65532] * 6
    assert set(found["groups"]) <= {65532}


async def gain_them_by_set_id_programs(target: Target) -> None:
    found = await target.guest.attack("set_id_programs")
    assert set(map(tuple, found["own"])) == {(65532, 65532)}
    assert found["gained"] == []


async def make_namespaces(target: Target) -> None:
    found = await target.guest.attack("new_namespaces")
    assert len(found["answers"]) > 20
    assert _gained(found["answers"]) == {}


async def mount(target: Target) -> None:
    assert await _got(target, MOUNTING) == []
    assert "OK" not in await target.guest.calls(HANDLES)


async def use_devices(target: Target) -> None:
    told = await Commands(target.guest.sandbox).run(["python3", "-c", _DEVICES])
    assert told.stdout == b"done\n", told
    found = await target.guest.attack("list_devices")
    # A second kernel has these, too, but they are its own.
    harmless = HARMLESS_DEVICES | (
        {"fuse", "net/tun"} if await _has_second_kernel(target) else set()
    )
    assert set(found["numbers"]) <= harmless
    assert {name for name, answer in found["answers"].items() if answer == "OK"} <= harmless


# A second kernel may let a node be made, of devices that it does not have.
_DEVICES = """
import os, stat
for kind, major, minor in ((stat.S_IFBLK, 8, 0), (stat.S_IFBLK, 254, 0), (stat.S_IFCHR, 1, 1), (stat.S_IFCHR, 10, 200)):
    try:
        os.mknod("/workspace/device", kind | 0o666, os.makedev(major, minor))
        os.read(os.open("/workspace/device", os.O_RDONLY), 1)
        print("read", kind, major, minor)
    except OSError:
        pass
    try:
        os.unlink("/workspace/device")
    except OSError:
        pass
print("done")
"""


# --- the kernel -------------------------------------------------------------------------------------------


async def make_the_calls_of_known_escapes(target: Target) -> None:
    got = await _got(target, ESCAPES)
    # Those that a second kernel answers never come to the host's.
    assert got == [] or await _has_second_kernel(target)


async def change_settings_of_the_kernel(target: Target) -> None:
    found = await target.guest.attack("writable_settings")
    assert found["tried"] > 20
    # These take a trigger of the writer's own, and set nothing.
    assert [path for path in found["opened"] if not path.startswith("/proc/pressure/")] == []


async def read_what_the_kernel_keeps_to_itself(target: Target) -> None:
    paths = [f"/proc/{name}" for name in KERNEL_FILES]
    found = await target.guest.attack("read_files", *paths, "/dev/kmsg", "/dev/mem")
    told = {path: text for path, text in found["contents"].items() if text and text[0] != "["}
    assert told == {}


async def set_the_clock(target: Target) -> None:
    found = await target.guest.attack("time_travel")
    assert _gained(found["answers"]) == {}


# --- others -----------------------------------------------------------------------------------------------


async def see_processes_and_secrets_of_the_host(target: Target) -> None:
    found = await target.guest.attack("look_at_processes")
    assert len(found["processes"]) < 20
    for facts in found["processes"].values():
        assert facts.get("kernel_thread", "0") == "0"
    line = "cat /proc/*/environ /proc/*/cmdline 2> /dev/null; env"
    told = await Commands(target.guest.sandbox).run(line)
    assert b"PATH=" in told.stdout
    assert target.secret.encode() not in told.stdout


async def reach_the_hosts_sockets_and_memory(target: Target) -> None:
    name, key = f"atoll-canary-{secrets.token_hex(8)}", secrets.randbelow(1 << 30) + 1
    memory = ctypes.CDLL(None, use_errno=True).shmget(key, 4096, 0o1666)
    assert memory >= 0
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind("\0" + name)
            listener.listen()
            line = _REACH.format(name=name, key=key, paths=SERVICE_SOCKETS)
            told = await Commands(target.guest.sandbox).run(["python3", "-c", line])
    finally:
        ctypes.CDLL(None).shmctl(memory, 0, 0)
    assert told.stdout == b"done\n", told


_REACH = """
import ctypes, socket
for path in ("\\0{name}", *{paths}):
    with socket.socket(socket.AF_UNIX) as client:
        try:
            client.connect(path)
            print("reached", path)
        except OSError:
            pass
if ctypes.CDLL(None).shmget({key}, 0, 0) >= 0:
    print("found the memory")
print("done")
"""


async def reach_a_network(target: Target) -> None:
    with socket.create_server(("0.0.0.0", 0)) as listener:
        port = listener.getsockname()[1]
        places = [
            ("127.0.0.1", port),
            (_own_address(), port),
            ("169.254.169.254", 80),
            ("172.17.0.1", port),
            ("10.0.0.1", 80),
        ]
        told = await Commands(target.guest.sandbox).run(["python3", "-c", _DIAL.format(places)])
    assert told.stdout == b"['lo']\ndone\n", told
    found = await target.guest.attack("sockets")
    assert (found["raw"], found["packets"]) == ([], [])


_DIAL = """
import socket
print(sorted(name for _number, name in socket.if_nameindex()))
for place in {}:
    try:
        socket.create_connection(place, timeout=2)
        print("reached", place)
    except OSError:
        pass
print("done")
"""


# --- bombs ------------------------------------------------------------------------------------------------


async def fill_every_disk(target: Target) -> None:
    trees = " ".join(OWN_TREES)
    line = f"for tree in {trees}; do head -c 600M /dev/zero > $tree/full; rm $tree/full; done; echo alive"
    told = await Commands(target.small.sandbox).run(line, timeout=120)
    assert told.stdout == b"alive\n", told
    assert told.stderr.count(b"No space left") == len(OWN_TREES)


async def fork_without_end(target: Target) -> None:
    commands = Commands(target.small.sandbox)
    for _ in range(5):
        told = await commands.run(["python3", "-c", _FORK_BOMB], timeout=60)
        assert b"no limit" not in told.stdout, told
        # At once: those who die have to make room by themselves.
        after = await commands.run("echo goes on", timeout=60)
        assert after.stdout == b"goes on\n", after


_FORK_BOMB = """
import os, time
for _ in range(1000):
    try:
        if os.fork() == 0:
            time.sleep(1000)
    except OSError:
        break
else:
    print("no limit")
os.kill(-1, 9)
"""


async def take_all_memory(target: Target) -> None:
    bomb = "held = []\nwhile True: held.append(bytearray(8 << 20))"
    told = await Commands(target.small.sandbox).run(["python3", "-c", bomb], timeout=120)
    # The host ends a second kernel as a whole, and an engine in between may not say why.
    assert told.reason in (EndReason.OUT_OF_MEMORY, EndReason.LOST), told
    unharmed = await Commands(target.neighbour.sandbox).run("echo unharmed", check=True)
    assert unharmed.stdout == b"unharmed\n"


# --- what came of it --------------------------------------------------------------------------------------


async def _got(target: Target, calls: Sequence[Call]) -> list[tuple[Call, str]]:
    answers = await target.guest.calls(calls)
    return [each for each in zip(calls, answers, strict=True) if each[1] not in REFUSED]


async def _has_second_kernel(target: Target) -> bool:
    told = await Commands(target.guest.sandbox).run("uname -r", check=True)
    return told.stdout.decode().strip() != os.uname().release


def _gained(answers: Mapping[str, str]) -> dict[str, str]:
    return {name: answer for name, answer in answers.items() if answer not in REFUSED}


def _own_address() -> str:
    """Return an address of this machine that is not its loopback, if it has one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])


# What is tried, in the words and the order in which it is listed.
ATTACKS: Mapping[str, Run] = {
    "read or change files of the host": read_and_change_the_hosts_files,
    "write outside of its own trees": write_outside_of_its_own_trees,
    "find files of another sandbox": find_another_sandboxs_files,
    "lead the host's file work outside by links": lead_the_host_outside_by_links,
    "climb above its root": climb_above_its_root,
    "have privileges, or keep groups": have_privileges,
    "gain privileges by set-id programs": gain_them_by_set_id_programs,
    "make namespaces": make_namespaces,
    "mount, or open files by handles": mount,
    "use devices": use_devices,
    "make the calls of known kernel exploits": make_the_calls_of_known_escapes,
    "change settings of the kernel": change_settings_of_the_kernel,
    "read what the kernel keeps to itself": read_what_the_kernel_keeps_to_itself,
    "set the clock": set_the_clock,
    "see processes, environment or secrets of the host": see_processes_and_secrets_of_the_host,
    "reach sockets and shared memory of the host": reach_the_hosts_sockets_and_memory,
    "reach a network": reach_a_network,
    "fill every disk": fill_every_disk,
    "fork without end": fork_without_end,
    "take all memory": take_all_memory,
}
