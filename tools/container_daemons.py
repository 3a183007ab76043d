"""Docker and Podman daemons of our own, for benchmarks and tests: socket, data and cgroups are private.

Each lives below a `daemon_guard`, which ends it with all that it started when the run ends, however that
happens; its mounts are in a namespace of its own. There is no registry: images are imported from archives,
and stay in the data root for the next run.
"""

from __future__ import annotations

import http.client
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, Self
from urllib.parse import quote, urlencode

from tools import daemon_guard
from tools.places import Failed, free_folder, must_run, say

_API = "/v1.41"  # the newest that the Docker and the Podman of Debian 12 both have
_START_SECONDS = 60
_STOP_SECONDS = 60
_CALL_SECONDS = 300
_LAST_CALL_SECONDS = 10
_BTRFS_BYTES = 8 << 30
_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"

# On a machine whose processor is itself virtual, runsc's other platforms may hang instead of failing.
RUNSC_PLATFORM = "ptrace"
_RUNTIME_FLAGS = {
    "crun": [],
    # Its own network wants a bridge. The filter that a container's options name is loaded on demand only.
    "runsc": [f"--platform={RUNSC_PLATFORM}", "--network=none", "--oci-seccomp"],
}


@dataclass(frozen=True, slots=True)
class Holdings:
    """What a daemon has at one moment, by name, to see whether anything is left."""

    containers: frozenset[str]
    volumes: frozenset[str]
    networks: frozenset[str]

    def growth(self, before: Holdings) -> dict[str, list[str]]:
        """Return what there is now and was not before."""
        names = [field.name for field in fields(self)]
        more = {name: sorted(getattr(self, name) - getattr(before, name)) for name in names}
        return {name: found for name, found in more.items() if found}


class ContainerDaemon(ABC):
    """One daemon below a folder that nobody else uses now."""

    name: ClassVar[str]

    def __init__(self, place: Path, lock: int) -> None:
        if os.geteuid() != 0:
            raise Failed(f"a {self.name} daemon of our own needs root")
        self.place = place
        self.socket = place / f"{self.name}.sock"
        self.log = place / f"{self.name}.log"
        self.pid = 0
        self._lock = lock
        self._call_seconds = _CALL_SECONDS
        self._guard: subprocess.Popen[bytes] | None = None

    @classmethod
    @contextmanager
    def running(cls) -> Iterator[Self]:
        """Run one until the end, in the first folder that is free; raise `Failed` if it does not come up."""
        with free_folder(f"atoll-{cls.name}") as (place, lock):
            daemon = cls(place, lock)
            daemon.start()
            try:
                yield daemon
            finally:
                daemon.stop()

    @property
    def url(self) -> str:
        """Return the address of its API."""
        return f"unix://{self.socket}"

    @property
    @abstractmethod
    def runtimes(self) -> tuple[str, ...]:
        """The names of the runtimes that its API takes, which this machine has."""

    @property
    @abstractmethod
    def cgroup(self) -> str:
        """The name of the cgroup, at the top of each hierarchy, that its containers' are in."""

    @abstractmethod
    def _configure(self) -> tuple[list[str], dict[str, str]]:
        """Write its configuration; return its command line and environment."""

    # --- its life -----------------------------------------------------------------------------

    def start(self) -> None:
        """Start it, also when it was killed; then its containers, volumes and mounts are as it left them."""
        self._call_seconds = _CALL_SECONDS
        if self._guard is None:
            say(f"starting a {self.name} daemon of our own")
            self._guard = self._start_guard()
        assert self._guard.stdin is not None and self._guard.stdout is not None
        try:
            self._guard.stdin.write(b"start\n")
            self.pid = int(self._guard.stdout.readline())
            self._await_answer()
        except BaseException:
            self._end_guard()
            raise

    def stop(self) -> None:
        """End it with all that it holds but images; safe to call twice."""
        if self._guard is None:
            return
        self._call_seconds = _LAST_CALL_SECONDS
        try:
            self.clear()
        except (OSError, Failed):
            pass  # killed or hung by a test: the guard ends what runs, the next start clears the rest
        finally:
            self._end_guard()

    def clear(self) -> None:
        """Remove every container, volume and network that somebody made."""
        for kind, names in self._found().items():
            options = "?force=1&v=1" if kind == "containers" else ""
            for name in names:
                self.call("DELETE", f"/{kind}/{quote(name)}{options}")

    def _start_guard(self) -> subprocess.Popen[bytes]:
        command, environment = self._configure()
        guard = [sys.executable, "-I", daemon_guard.__file__, str(self._lock), self.cgroup]
        with self.log.open("wb") as log:
            return subprocess.Popen(
                ["unshare", "--mount", *guard, *command],
                cwd=self.place,  # conmon leaves a file there when memory ran out
                env={"PATH": _PATH, "HOME": "/nonexistent", **environment},
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                pass_fds=[self._lock],
                start_new_session=True,
            )

    def _await_answer(self) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while Path(f"/proc/{self.pid}/exe").exists() and time.monotonic() < deadline:
            try:
                self.call("GET", "/_ping")
                return
            except (OSError, Failed):
                time.sleep(0.05)
        words = self.log.read_text(errors="replace").strip().splitlines()[-3:]
        raise Failed(f"{self.name} did not come up: {' | '.join(words)}")

    def _end_guard(self) -> None:
        guard, self._guard, self.pid = self._guard, None, 0
        assert guard is not None and guard.stdin is not None and guard.stdout is not None
        guard.stdin.close()
        guard.stdout.close()
        guard.wait(_STOP_SECONDS)

    # --- its API ------------------------------------------------------------------------------

    def call(self, method: str, path: str, body: object = None, **query: str) -> Any:
        """Send a request and return the answer, read as JSON where it is; raise `Failed` if refused."""
        content = None if body is None else json.dumps(body).encode()
        return self._send(method, path, content, "application/json", query)

    def put_archive(self, container: str, path: str, archive: bytes) -> None:
        """Unpack a tar archive in a container."""
        put = f"/containers/{container}/archive"
        self._send("PUT", put, archive, "application/x-tar", {"path": path})

    def _send(self, method: str, path: str, body: Any, kind: str, query: Mapping[str, str]) -> Any:
        separator = "&" if "?" in path else "?"
        target = f"{_API}{path}{separator}{urlencode(query)}" if query else f"{_API}{path}"
        connection = _UnixConnection(self.socket, self._call_seconds)
        try:
            connection.request(method, target, body, {"Content-Type": kind})
            response = connection.getresponse()
            answer = response.read()
        finally:
            connection.close()
        if response.status >= 400:
            words = answer.decode(errors="replace").strip()
            raise Failed(f"{self.name} refused {method} {path}: {response.status} {words}")
        try:
            return json.loads(answer)
        except ValueError:
            return answer

    def import_image(self, archive: Path, name: str) -> str:
        """Make an image of a root tree's archive unless an earlier run did; return its name."""
        # Without a host's name Podman would look for it in registries.
        full_name = f"localhost/{name}"
        if not self.has_image(full_name):
            say(f"importing the image {name} into {self.name}")
            query = {"fromSrc": "-", "repo": full_name, "changes": f"ENV PATH={_PATH}"}
            with archive.open("rb") as content:
                self._send("POST", "/images/create", content, "application/x-tar", query)
            if not self.has_image(full_name):
                raise Failed(f"{self.name} took {archive}, but has no image {full_name}")
        return full_name

    def has_image(self, name: str) -> bool:
        """Return whether there is an image of that name."""
        try:
            self.call("GET", f"/images/{name}/json")
        except Failed:
            return False
        return True

    def run(self, image: str, *command: str, **host: object) -> tuple[int, str]:
        """Run a command in a container without network until its end; return exit code and output."""
        # Left to itself, Podman asks for more than a root without all capabilities may give.
        ulimits = [{"Name": name, "Soft": 1024, "Hard": 1024} for name in ("nofile", "nproc")]
        settings = {"NetworkMode": "none", "Ulimits": ulimits, **host}
        options = {"Image": image, "Cmd": command, "HostConfig": settings}
        name = f"atoll-{secrets.token_hex(4)}"
        self.call("POST", "/containers/create", options, name=name)
        try:
            self.call("POST", f"/containers/{name}/start")
            code = int(self.call("POST", f"/containers/{name}/wait")["StatusCode"])
            return code, self._output_of(name)
        finally:
            self.call("DELETE", f"/containers/{name}?force=1&v=1")

    def _output_of(self, container: str) -> str:
        frames = self._send(
            "GET", f"/containers/{container}/logs", None, "", {"stdout": "1", "stderr": "1"}
        )
        text = b""
        while frames:
            size = int.from_bytes(frames[4:8])
            text, frames = text + frames[8 : 8 + size], frames[8 + size :]
        return text.decode(errors="replace")

    def holdings(self) -> Holdings:
        """Return what it has now."""
        return Holdings(**{kind: frozenset(names) for kind, names in self._found().items()})

    def _found(self) -> dict[str, list[str]]:
        containers = [each["Id"] for each in self.call("GET", "/containers/json?all=1")]
        volumes = [each["Name"] for each in self.call("GET", "/volumes")["Volumes"] or ()]
        networks = [each["Name"] for each in self.call("GET", "/networks")]
        made = [name for name in networks if name not in ("none", "host", "bridge", "podman")]
        return {"containers": containers, "volumes": volumes, "networks": made}

    def versions(self) -> Mapping[str, str]:
        """Return the versions of the daemon and of what it runs containers with."""
        found = self.call("GET", "/version")
        parts = {part["Name"].lower(): part["Version"] for part in found["Components"]}
        driver = self.call("GET", "/info")["Driver"]
        known = {name: parts[name] for name in ("containerd", "runc") if name in parts}
        return {self.name: f"{found['Version']} ({driver})", **known}


class DockerDaemon(ContainerDaemon):
    """A dockerd with its containerd, without bridge and packet filter rules."""

    name = "docker"

    @property
    def runtimes(self) -> tuple[str, ...]:
        return ("runc", *_installed_runtimes())

    @property
    def cgroup(self) -> str:
        return self.place.name

    def _configure(self) -> tuple[list[str], dict[str, str]]:
        runtimes = {
            name: {"path": path, "runtimeArgs": _RUNTIME_FLAGS[name]}
            for name, path in _installed_runtimes().items()
        }
        configuration = self.place / "dockerd.json"
        configuration.write_text(json.dumps({"runtimes": runtimes}))
        # What a killed run left there is of no use, and names processes that are somebody else's now.
        must_run(["rm", "-rf", "--", str(self.place / "docker-run"), str(self.place / "pid")])
        command = ["dockerd", "--host", self.url, "--pidfile", str(self.place / "pid")]
        command += ["--data-root", str(self.place / "docker")]
        command += ["--exec-root", str(self.place / "docker-run")]
        command += ["--config-file", str(configuration), "--bridge=none", "--iptables=false"]
        command += ["--ip6tables=false", "--ip-forward=false", "--ip-masq=false"]
        command += ["--cgroup-parent", f"/{self.cgroup}", "--shutdown-timeout", "5"]
        command += ["--exec-opt", "native.cgroupdriver=cgroupfs"]
        command += ["--storage-driver", "overlay2" if can_overlay(self.place) else "vfs"]
        return command, {}


class BtrfsDockerDaemon(DockerDaemon):
    """A dockerd whose data is on a btrfs of its own, made anew at each start."""

    def _configure(self) -> tuple[list[str], dict[str, str]]:
        command, environment = super()._configure()
        disk, folder = self.place / "btrfs.disk", self.place / "btrfs"
        folder.mkdir(exist_ok=True)
        with disk.open("wb") as file:
            file.truncate(_BTRFS_BYTES)
        command[command.index("--data-root") + 1] = str(folder / "docker")
        command[command.index("--storage-driver") + 1] = "btrfs"
        make = 'mkfs.btrfs -q -f "$0.disk" && mount -o loop "$0.disk" "$0" || exit'
        return ["sh", "-c", f'{make}; exec "$@"', str(folder), *command], environment


class MappingDockerDaemon(DockerDaemon):
    """A dockerd for whose containers ids of the host are others inside."""

    def _configure(self) -> tuple[list[str], dict[str, str]]:
        command, environment = super()._configure()
        self.place.chmod(0o711)  # roots of containers are others' than root's
        command += ["--userns-remap", "daemon:daemon"]
        return with_subordinate_ids(self.place, "daemon:1000000000:65536", command), environment


class PodmanDaemon(ContainerDaemon):
    """A Podman service; its API takes one runtime only."""

    name = "podman"
    runtimes = ("runc",)
    cgroup = "libpod_parent"  # Podman's own word: no option changes it

    def _configure(self) -> tuple[list[str], dict[str, str]]:
        place = self.place
        for name in ("run", "tmp", "copies"):
            # As after a start of the machine: what a killed run had running, or had come in half, is not.
            must_run(["rm", "-rf", "--", str(place / name)])
        (place / "copies").mkdir()
        driver = "overlay" if can_overlay(place) else "vfs"
        settings = {
            "containers.conf": _containers_conf(place, _installed_runtimes()),
            "storage.conf": f"[storage]\ndriver = '{driver}'\ngraphroot = '{place}/root'\n"
            f"runroot = '{place}/run'\n",
            "registries.conf": "unqualified-search-registries = []\n",
        }
        for name, text in settings.items():
            (place / name).write_text(text)
        environment = {
            "CONTAINERS_CONF": str(place / "containers.conf"),
            "CONTAINERS_STORAGE_CONF": str(place / "storage.conf"),
            "CONTAINERS_REGISTRIES_CONF": str(place / "registries.conf"),
        }
        command = ["podman", "system", "service", "--time", "0", self.url]
        return with_subordinate_ids(place, "containers:2147483648:1073741824", command), environment


def with_subordinate_ids(place: Path, line: str, command: list[str]) -> list[str]:
    """Return a daemon's command line by which it sees these ids listed, and the machine does not."""
    (place / "subids").write_text(f"{line}\n")
    mount = 'for file in subuid subgid; do touch /etc/$file && mount --bind "$0" /etc/$file || exit; done'
    return ["sh", "-c", f'{mount}; exec "$@"', str(place / "subids"), *command]


def _containers_conf(place: Path, runtimes: Mapping[str, str]) -> str:
    known = {"runc": shutil.which("runc", path=_PATH), **runtimes}
    lines = [f"{name} = ['{path}']" for name, path in known.items() if path]
    return "\n".join(
        [
            "[engine]",
            "cgroup_manager = 'cgroupfs'",
            "events_logger = 'file'",
            "lock_type = 'file'",  # the usual shared memory is that of all Podmans of the machine
            "runtime = 'runc'",
            f"static_dir = '{place}/static'",
            f"tmp_dir = '{place}/tmp'",
            f"image_copy_tmp_dir = '{place}/copies'",
            f"volume_path = '{place}/volumes'",
            "[engine.runtimes]",
            *lines,
            "[network]",
            f"network_config_dir = '{place}/networks'",
        ]
    )


def _installed_runtimes() -> dict[str, str]:
    found = {name: shutil.which(name, path=_PATH) for name in _RUNTIME_FLAGS}
    return {name: path for name, path in found.items() if path}


def can_overlay(place: Path) -> bool:
    """Return whether overlays can lie on a folder's file system; else containers are whole copies."""
    probe = place / "overlay-probe"
    names = ("lower", "upper", "work", "merged")
    for name in names:
        (probe / name).mkdir(parents=True, exist_ok=True)
    lower, upper, work, merged = (probe / name for name in names)
    options = f"lowerdir={lower},upperdir={upper},workdir={work}"
    mount = ["unshare", "--mount", "mount", "-t", "overlay", "overlay", "-o", options]
    done = subprocess.run([*mount, str(merged)], stderr=subprocess.DEVNULL)
    must_run(["rm", "-rf", "--", str(probe)])
    return done.returncode == 0


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path, seconds: float) -> None:
        super().__init__("localhost", timeout=seconds)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))
