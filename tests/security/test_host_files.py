"""Threats A: the host's files, devices and sockets, and ways back out of the sandbox's root."""

from __future__ import annotations

import os
import secrets
import socket
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from atoll.engines.namespaces.engine import NamespaceEngine, NamespaceSettings
from atoll.errors import InvalidRequest
from atoll.model.process import Command
from atoll.model.sandbox import Mount, SandboxSpec
from atoll.node.commands import Commands
from tests.security.forbidden_calls import HANDLES, MOUNTING
from tests.security.guest import Call, Guest
from tests.security.hosts import run_host
from tests.security.words import Words

# Those of them that exist here and that whoever runs the tests may write.
HOST_FOLDERS = (
    "/etc", "/root", "/home", "/tmp", "/var/tmp", "/opt", "/srv", "/mnt", "/media", "/run",
    "/var/lib", "/var/log",
    "/dev/shm", "/boot",
)  # fmt: skip
WRITABLE_INSIDE = {"/workspace", "/tmp", "/home/sandbox", "/dev/shm"}
SERVICE_SOCKETS = (
    "/var/run/docker.sock",
    "/run/docker.sock",
    "/run/podman/podman.sock",
    "/run/containerd/containerd.sock",
    "/run/crio/crio.sock",
    "/run/systemd/private",
    "/run/systemd/notify",
    "/run/dbus/system_bus_socket",
    "/run/snapd.socket",
    "/run/lxd.socket",
    "/var/lib/lxd/unix.socket",
    "/run/libvirt/libvirt-sock",
    "/run/udev/control",
    "/run/systemd/journal/socket",
)


@pytest.fixture
def planted() -> Iterator[list[Path]]:
    """Files that everybody may read and write, in as many folders of the host as possible."""
    word = f"atoll-canary-{secrets.token_hex(8)}"
    folders = (*HOST_FOLDERS, tempfile.gettempdir(), os.path.expanduser("~"))
    with ExitStack() as undo:
        paths = []
        for folder in dict.fromkeys(os.path.realpath(each) for each in folders):
            path = Path(folder, word)
            with suppress(OSError):
                path.write_bytes(b"host")
                undo.callback(path.unlink)
                path.chmod(0o666)
                paths.append(path)
        assert len(paths) >= (10 if os.geteuid() == 0 else 3)
        yield paths


# --- T1, T2: files of the host --------------------------------------------------------------------


async def test_no_file_of_the_host_can_be_found_or_read(guest: Guest, planted: list[Path]) -> None:
    found = await guest.attack("search_tree", planted[0].name, *map(str, planted))
    assert found["seen"] > 1000, "the search saw nothing at all"
    assert found["hits"] == []
    assert found["opened"] == []


async def test_no_file_of_the_host_can_be_changed(guest: Guest, planted: list[Path]) -> None:
    found = await guest.attack("write_everywhere", *map(str, planted))
    assert [path.read_bytes() for path in planted] == [b"host"] * len(planted)
    # Paths that exist inside as well are the sandbox's own.
    assert {path for path in found["changed"] if not path.startswith(("/tmp/", "/dev/shm/"))} <= {
        str(path) for path in planted if str(path).startswith("/var/tmp")
    }


async def test_only_the_sandbox_s_own_trees_can_be_written(guest: Guest) -> None:
    found = await guest.attack("write_everywhere")
    assert found["folders_seen"] > 100
    own = ("/workspace/", "/tmp/", "/home/sandbox/", "/dev/shm/")
    assert {path for path in found["writable"] if not path.startswith(own)} == WRITABLE_INSIDE


# --- T3, T4: back above the root ------------------------------------------------------------------


async def test_climbing_ends_at_the_sandbox_s_own_root(probe: Guest) -> None:
    found = await probe.attack("climb")
    assert {tuple(place) for place in found["from_here"]} == {tuple(found["root"])}
    assert found["from_descriptors"] == []


async def test_a_second_root_cannot_be_entered(probe: Guest) -> None:
    assert await probe.calls([("chroot", ["/tmp"]), ("pivot_root", [".", "."])]) == ["EPERM"] * 2


# --- T5, T6: other processes' doors ---------------------------------------------------------------


async def test_processes_of_the_engine_open_no_door(probe: Guest) -> None:
    # So that there is a file server and, for the first kernel, too, a supervisor.
    await probe.files.list()
    await probe.sandbox.start(Command(("sleep", "1000")))
    found = await probe.attack("look_at_processes")
    ours = {
        facts["name"]: facts
        for facts in found["processes"].values()
        if facts["name"] in ("init", "supervisor", "files")
    }
    assert set(ours) == {"init", "supervisor", "files"}
    for facts in ours.values():
        doors = {
            **facts["links"],
            **{
                name: facts[name] for name in facts if name.startswith(("through", "exe", "memory"))
            },
            **facts["folders"],
            **facts["secrets"],
        }
        del doors["ns"]  # shows names of namespaces, its links do not resolve
        assert {name: answer for name, answer in doors.items() if answer == "OK"} == {}, facts[
            "name"
        ]


async def test_the_launcher_cannot_be_opened_for_writing(guest: Guest) -> None:
    found = await guest.attack("look_at_processes")
    for facts in found["processes"].values():
        assert facts["exe_write"] in ("EACCES", "EPERM", "EROFS"), facts
    script = "try:\n open('/.atoll/init', 'r+b')\nexcept OSError as error:\n print(error.errno)"
    printed = await guest.entry(guest.sandbox, ("python3", "-c", script))
    assert int(printed) in (1, 13, 30)


# --- T7: sockets of services ----------------------------------------------------------------------


async def test_no_socket_of_a_service_manager_is_there(guest: Guest) -> None:
    found = await guest.attack("connect_sockets", *SERVICE_SOCKETS)
    assert set(found["answers"].values()) == {"ENOENT"}
    assert found["sockets"] == []


@pytest.mark.parametrize(
    "source", ["/run", "/var", "/", "/run/systemd", "/var/run", "/var/lib/lxd"]
)
async def test_a_directory_with_such_a_socket_is_not_mounted(source: str, data_dir: Path) -> None:
    engine = NamespaceEngine(NamespaceSettings(data_dir, mountable=[Path("/")]))
    try:
        with pytest.raises(InvalidRequest, match="rules the host"):
            await engine.create(SandboxSpec(mounts=[Mount(source, "/mnt/run")]))
    finally:
        await engine.close()


async def test_sockets_of_the_host_are_not_reachable_by_their_paths(
    guest: Guest, planted: list[Path]
) -> None:
    with ExitStack() as undo:
        paths = [str(path) + ".socket" for path in planted]
        for path in paths:
            listener = undo.enter_context(socket.socket(socket.AF_UNIX))
            listener.bind(path)
            undo.callback(os.unlink, path)
            listener.listen()
        found = await guest.attack("connect_sockets", *paths)
    assert "OK" not in found["answers"].values()


# --- T8, T9, T10: handles, devices, mounts --------------------------------------------------------


async def test_file_handles_are_refused(probe: Guest) -> None:
    assert await probe.calls(HANDLES) == ["EPERM"] * len(HANDLES)


async def test_mounting_in_every_way_is_refused(probe: Guest) -> None:
    answers = await probe.calls(MOUNTING)
    assert dict(zip([name for name, _ in MOUNTING], answers, strict=True)) == {
        name: "EPERM" for name, _ in MOUNTING
    }


async def test_devices_cannot_be_made(guest: Guest) -> None:
    disk, character = os.makedev(8, 0), os.makedev(1, 1)
    calls: list[Call] = [
        (name, [*where, kind | 0o666 | high, device])
        for name, where in (("mknod", ["/workspace/d"]), ("mknodat", [-100, "/workspace/d"]))
        for kind, device in ((stat.S_IFBLK, disk), (stat.S_IFCHR, character))
        for high in (0, 1 << 32)
    ]
    assert set(await guest.calls(calls)) == {"EPERM"}


async def test_a_device_on_the_workspace_could_not_be_opened(guest: Guest) -> None:
    """The mounts are nodev, should a device come into being by another way."""
    found = await guest.attack("mounts")
    for mount in found["mounts"]:
        if mount["kind"] not in ("devtmpfs", "devpts"):
            assert "nodev" in mount["options"], mount
        assert "nosuid" in mount["options"], mount


# --- T11: set-id programs -------------------------------------------------------------------------


async def test_programs_get_no_privileges(probe: Guest) -> None:
    found = await probe.attack("identity")
    status = found["status"]
    for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert int(status[name], 16) == 0, name
    assert status["NoNewPrivs"] == "1"
    assert found["no_new_privileges"] == 1
    assert found["ids"] == [65532] * 6
    # noroot, no_setuid_fixup, keep_caps' lock and no_cap_ambient_raise, each locked.
    assert found["securebits"] == 0b11101111
    if os.geteuid() == 0:
        assert found["groups"] == []


async def test_a_set_id_program_runs_as_whoever_starts_it(guest: Guest) -> None:
    found = await guest.attack("set_id_programs")
    assert len(found["own"]) >= 2
    assert set(map(tuple, found["own"])) == {(65532, 65532)}
    assert found["gained"] == []


async def test_set_id_programs_cannot_be_made(probe: Guest) -> None:
    """Else one that is made on a mounted directory of the host would be the operator's there."""
    await probe.files.write("program", "x")
    calls: list[Call] = [
        (name, [*where, 0o755 | bits | high, 0])
        for name, where in (
            ("chmod", ["/workspace/program"]),
            ("fchmodat", [-100, "/workspace/program"]),
            ("fchmodat2", [-100, "/workspace/program"]),
            ("fchmod", [0]),
        )
        for bits in (0o4000, 0o2000, 0o6000)
        for high in (0, 1 << 32)
    ]
    answers = await probe.calls(calls)
    assert set(answers) <= {"EPERM", "ENOSYS"}
    assert (await probe.files.stat("program")).mode & 0o6000 == 0


async def test_a_mounted_directory_gets_no_set_id_program(data_dir: Path, tmp_path: Path) -> None:
    engine = NamespaceEngine(NamespaceSettings(data_dir, mountable=[tmp_path]))
    try:
        mount = Mount(str(tmp_path), "/mnt/shared", read_only=False)
        guest = Guest(await engine.create(SandboxSpec(mounts=[mount])))
        line = (
            "cp /bin/sh /mnt/shared/a; chmod 6755 /mnt/shared/a; chmod u+s,g+s /mnt/shared/a;"
            " cp -p /usr/bin/su /mnt/shared/b; install -m 4755 /bin/sh /mnt/shared/c;"
            " python3 -c 'import os; os.open(\"/mnt/shared/d\", os.O_CREAT | os.O_WRONLY, 0o6755)'"
        )
        await Commands(guest.sandbox).run(line)
    finally:
        await engine.close()
    made = {path.name: path.stat() for path in tmp_path.iterdir()}
    assert "a" in made
    # A new file may have the bits as long as nothing is in it: the first byte takes them away.
    assert {
        name for name, found in made.items() if found.st_mode & 0o6000 and found.st_size
    } == set()


# --- T12, T13: files that outlive or outwit -------------------------------------------------------


async def test_system_files_cannot_be_linked_or_changed(guest: Guest) -> None:
    found = await guest.attack("touch_system_files")
    assert found["tried"] > 20
    assert set(found["links"]) <= {"EXDEV", "EROFS", "EPERM", "EACCES"}
    assert set(found["changes"]) <= {"EROFS", "EPERM", "EACCES", "ENOTSUP"}


async def test_files_cannot_be_made_immutable(guest: Guest) -> None:
    found = await guest.attack("make_immutable")
    assert set(found["answers"].values()) <= {"EPERM", "ENOSYS"}
    await guest.sandbox.workspace.remove("held", recursive=True)
    assert "held" not in [info.name for info in await guest.sandbox.workspace.list()]


# --- T14: names of the host -----------------------------------------------------------------------


async def test_no_name_or_path_of_the_host_shows(guest: Guest, secret: str, data_dir: Path) -> None:
    checkout = Path(__file__).parents[2]
    words = Words(
        secret=secret,
        data_dir=data_dir.name,
        checkout=str(checkout),
        home=os.path.expanduser("~"),
        interpreter=sys.base_prefix,
        user=os.environ.get("USER", ""),
        machine=socket.gethostname(),
    )
    found = await guest.attack("leaks", await words.put(guest))
    assert found["looked_at"] > 200
    assert found["hits"] == []


async def test_the_machine_s_names_do_not_show(engine: NamespaceEngine, tmp_path: Path) -> None:
    found = await run_host("renamed_host", str(tmp_path))
    assert found["outside"] == "canary-machine"
    assert "atoll" in found["inside"]
    assert "canary" not in found["inside"]


# --- T15: siblings --------------------------------------------------------------------------------


async def test_one_sandbox_finds_nothing_of_another(engine: NamespaceEngine) -> None:
    word = f"atoll-marker-{secrets.token_hex(8)}"
    first = Guest(await engine.create(SandboxSpec()))
    second = Guest(await engine.create(SandboxSpec()))
    try:
        dropped = await first.attack("drop_markers", word)
        assert len(dropped["places"]) >= len(WRITABLE_INSIDE)
        while_it_lives = await second.attack("search_tree", word)
        await first.sandbox.destroy()
        after_its_end = await second.attack("search_tree", word)
        third = Guest(await engine.create(SandboxSpec()))
        in_a_later_one = await third.attack("search_tree", word)
        await third.sandbox.destroy()
    finally:
        await first.sandbox.destroy()
        await second.sandbox.destroy()
    for found in (while_it_lives, after_its_end, in_a_later_one):
        assert found["hits"] == []


@pytest.mark.root_only
async def test_every_sandbox_has_an_id_of_its_own(engine: NamespaceEngine) -> None:
    async def outer_id() -> str:
        sandbox = await engine.create(SandboxSpec())
        try:
            found = await Guest(sandbox).attack("mounts")
            (options,) = [m["details"] for m in found["mounts"] if m["point"] == "/workspace"]
            (uid,) = [each for each in options if each.startswith("uid=")]
            return str(uid)
        finally:
            await sandbox.destroy()

    assert len({await outer_id() for _ in range(5)}) == 5


# --- T16: helpers that the kernel starts ----------------------------------------------------------


async def test_no_helper_of_the_kernel_can_be_set(probe: Guest) -> None:
    found = await probe.attack("kernel_helpers")
    assert len(found["answers"]) >= 7
    assert set(found["answers"].values()) <= {"ENOENT", "EACCES", "EROFS", "EPERM"}
