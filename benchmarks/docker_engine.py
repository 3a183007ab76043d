"""A Docker of our own: its daemon, data, socket and cgroups are private and gone at the end.

For benchmarks and for tests. There is no registry: the one image is made from the root tree and stays
in the data root for the next run. Only one user of it at a time; others wait at a file lock.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.places import Failed, locked, must_run, say
from benchmarks.root_tree import RootTree

PROGRAM = "/usr/bin/docker"  # the package's: another one on PATH may be of another version

# The same as a sandbox of Atoll has by default.
LIMITS = ("--memory", "1g", "--memory-swap", "1g", "--cpus", "1", "--pids-limit", "256")

_START_SECONDS = 60
_STOP_SECONDS = 30
_ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/nonexistent"}


@dataclass(frozen=True, slots=True)
class DockerEngine:
    """A running daemon with one image, which has Python in it."""

    socket: Path
    image: str
    versions: Mapping[str, str]

    def command(self, *arguments: str) -> list[str]:
        """Return the argument list of a docker command on this engine."""
        return [PROGRAM, "--host", f"unix://{self.socket}", *arguments]

    def start_container(self, *options: str) -> str:
        """Start a container that does nothing, with the usual limits, and return its name."""
        name = f"bench-{secrets.token_hex(4)}"
        idle = [self.image, "sleep", "infinity"]
        run = ["run", "--detach", "--init", "--name", name, "--network", "none"]
        must_run(self.command(*run, *LIMITS, *options, *idle))
        return name


@contextmanager
def docker_engine(place: Path, tree: RootTree) -> Iterator[DockerEngine]:
    """Run a daemon below `place` until the end; raise `Failed` if it does not come up.

    The docker.io package has to be there; `Workshop.docker` sees to that.
    """
    if os.geteuid() != 0:
        raise Failed("a Docker daemon of our own needs root")
    with locked(place / "docker.lock", "Docker"):
        daemon = _Daemon(place)
        daemon.end_leftover()
        daemon.start()
        try:
            yield DockerEngine(daemon.socket, daemon.import_image(tree), daemon.versions())
        finally:
            daemon.remove_containers()
            daemon.stop()


class _Daemon:
    """One dockerd. It lives in a mount namespace of its own, so that no mount can stay behind."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._process: subprocess.Popen[bytes] | None = None
        self._cgroup = place.name
        self._pid_file = place / "dockerd.pid"
        self._log = place / "dockerd.log"
        self.socket = place / "docker.sock"

    def start(self) -> None:
        say("starting a Docker daemon of our own")
        configuration = self._place / "dockerd.json"
        configuration.write_text("{}")
        # Should this process be killed, the daemon ends with it.
        command = ["setpriv", "--pdeathsig", "TERM", "unshare", "--mount", "dockerd"]
        command += ["--host", f"unix://{self.socket}", "--pidfile", str(self._pid_file)]
        command += ["--data-root", str(self._place / "docker")]
        command += ["--exec-root", str(self._place / "docker-run")]
        command += ["--config-file", str(configuration), "--bridge=none", "--iptables=false"]
        command += ["--ip6tables=false", "--ip-forward=false", "--ip-masq=false"]
        command += ["--cgroup-parent", f"/{self._cgroup}", "--storage-driver", self._storage()]
        command += ["--exec-opt", "native.cgroupdriver=cgroupfs"]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                env=_ENVIRONMENT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            self._await_answer()
        except BaseException:
            self.stop()
            raise

    def _storage(self) -> str:
        # On a file system that overlays cannot lie on, containers are whole copies.
        probe = self._place / "overlay-probe"
        names = ("lower", "upper", "work", "merged")
        for name in names:
            (probe / name).mkdir(parents=True, exist_ok=True)
        lower, upper, work, merged = (probe / name for name in names)
        options = f"lowerdir={lower},upperdir={upper},workdir={work}"
        mount = ["unshare", "--mount", "mount", "-t", "overlay", "overlay", "-o", options]
        done = subprocess.run([*mount, str(merged)], stderr=subprocess.DEVNULL)
        must_run(["rm", "-rf", "--", str(probe)])
        return "overlay2" if done.returncode == 0 else "vfs"

    def _await_answer(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                break
            if self.socket.exists() and self._docker("version").returncode == 0:
                return
            time.sleep(0.1)
        words = self._log.read_text(errors="replace").strip().splitlines()[-3:]
        raise Failed(f"dockerd did not come up: {' | '.join(words)}")

    def import_image(self, tree: RootTree) -> str:
        """Import the tree unless an earlier run did; return the image's name."""
        name = f"atoll-bench:{tree.digest}"
        if self._docker("image", "inspect", name).returncode != 0:
            say("importing the image")
            done = self._docker("import", str(tree.tarball), name)
            if done.returncode != 0:
                raise Failed(f"docker import failed: {done.stderr.decode(errors='replace')}")
        return name

    def versions(self) -> Mapping[str, str]:
        """Return the versions of the daemon and of what it runs containers with."""
        found = json.loads(self._docker("version", "--format", "{{json .Server}}").stdout)
        parts = {part["Name"].lower(): part["Version"] for part in found["Components"]}
        info = self._docker("info", "--format", "{{.Driver}}").stdout.decode().strip()
        return {
            "docker": f"{found['Version']} ({info})",
            "containerd": parts.get("containerd", "unknown"),
            "runc": parts.get("runc", "unknown"),
        }

    def remove_containers(self) -> None:
        """Remove every container, running or not."""
        names = self._docker("ps", "--all", "--quiet").stdout.decode().split()
        if names:
            self._docker("rm", "--force", "--volumes", *names)

    def stop(self) -> None:
        """End the daemon and remove its cgroups."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None
        self._remove_cgroups()

    def end_leftover(self) -> None:
        """End the daemon of a run that was killed: we hold the lock, so nobody uses it."""
        try:
            pid = int(self._pid_file.read_text())
            command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except (OSError, ValueError):
            return
        if os.fsencode(self._pid_file) not in command:
            return
        say(f"ending the Docker daemon of a killed run (pid {pid})")
        os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + _STOP_SECONDS
        while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
            time.sleep(0.1)

    def _remove_cgroups(self) -> None:
        for folder in Path("/sys/fs/cgroup").glob(f"**/{self._cgroup}"):
            children = sorted(folder.rglob("*/"), key=lambda path: len(path.parts), reverse=True)
            for directory in (*children, folder):
                try:
                    directory.rmdir()
                except OSError:
                    pass  # still in use by a process that is ending; an empty directory harms nobody

    def _docker(self, *arguments: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [PROGRAM, "--host", f"unix://{self.socket}", *arguments],
            env=_ENVIRONMENT,
            stdin=subprocess.DEVNULL,
            capture_output=True,
        )
