"""A Docker behind TCP and TLS: it lets in who has a certificate of its authority, and is used if it has one itself."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from atoll import Sandbox
from atoll.client.containers import tls_files
from atoll.client.embedded import close_nodes
from atoll.engines.containers.engine import ContainerEngine
from atoll.engines.containers.settings import ContainerSettings
from atoll.errors import Unavailable
from atoll.model.sandbox import SandboxSpec
from tests.container_engines import CONTAINER_MARKS, leaving_nothing
from tests.engines.containers.certificates import Authority
from tools.container_daemons import DockerDaemon
from tools.container_images import BARE, BARE_PROGRAM, import_image

pytestmark = [*CONTAINER_MARKS]

_LISTENING_SECONDS = 60


class TlsDockerDaemon(DockerDaemon):
    """One that listens on the loopback, too, to those whom it can tell by their certificates."""

    certificates: Path

    def address(self) -> str:
        """Return host and port, which it says in its log."""
        deadline = time.monotonic() + _LISTENING_SECONDS
        while time.monotonic() < deadline:
            if said := re.search(r"API listen on (127\.0\.0\.1:[0-9]+)", self.log.read_text()):
                return said[1]
            time.sleep(0.05)
        raise TimeoutError(f"the daemon does not say where it listens: {self.log.read_text()}")

    def events(self, since: float) -> str:
        """Return what happened to containers since then, on its own clock; nothing if there were none."""
        query = {"since": f"{since:.6f}", "until": f"{time.time():.6f}"}
        answer = self.call("GET", "/events", filters='{"type": ["container"]}', **query)
        return answer.decode() if isinstance(answer, bytes) else json.dumps(answer)

    def _configure(self) -> tuple[list[str], dict[str, str]]:
        command, environment = super()._configure()
        command += ["--host", "tcp://127.0.0.1:0", "--tlsverify"]
        for option, name in {"cacert": "ca", "cert": "cert", "key": "key"}.items():
            command += [f"--tls{option}", str(self.certificates / f"{name}.pem")]
        return command, environment


@pytest.fixture(scope="module")
def ours() -> Authority:
    """The authority that a daemon and its clients have in common."""
    return Authority("ours")


@pytest.fixture(scope="module")
def daemon(ours: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsDockerDaemon]:
    """A daemon for these tests alone: all others do without a network."""
    if shutil.which("dockerd") is None:
        pytest.skip("there is no dockerd: apt-get install docker.io")

    class Daemon(TlsDockerDaemon):
        certificates = ours.write(tmp_path_factory.mktemp("daemon") / "tls", "daemon")

    with Daemon.running() as daemon:
        yield daemon


@pytest.fixture(scope="module")
def image(daemon: TlsDockerDaemon) -> str:
    return import_image(daemon, BARE)


@pytest.mark.parametrize("is_usual", [True, False], ids=["as Docker's own client", "by our words"])
def test_commands_and_files_go_both_ways(
    daemon: TlsDockerDaemon,
    image: str,
    ours: Authority,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    is_usual: bool,
) -> None:
    folder, address = ours.write(tmp_path / "tls", "client"), f"tcp://{daemon.address()}"
    if is_usual:
        monkeypatch.setenv("DOCKER_HOST", address)
    monkeypatch.setenv(
        "DOCKER_CERT_PATH" if is_usual else "ATOLL_CONTAINERS__DOCKER_TLS", str(folder)
    )
    data, begun = os.urandom(1 << 20), time.time()
    close_nodes()
    try:
        with Sandbox(
            engine="docker", image=image, url="" if is_usual else f"docker+{address}"
        ) as sandbox:
            result = sandbox.commands.run([BARE_PROGRAM, "copy"], stdin=data)
            assert (result.exit_code, result.stdout == data) == (0, True)
            sandbox.files.write("data", data)
            assert sandbox.files.read("data") == data
    finally:
        close_nodes()
    assert "start" in daemon.events(begun)


# --- who is refused, and what he is told -----------------------------------------------------------------

Write = Callable[[Authority, Path], Path | None]


def without(name: str) -> Write:
    def write(ours: Authority, folder: Path) -> Path:
        (ours.write(folder, "client") / name).unlink()
        return folder

    return write


TO_BLAME = "certificates of containers.docker_tls"
REFUSED: dict[str, tuple[Write, str]] = {
    "without TLS": (lambda _ours, _folder: None, "if it wants TLS, .* containers.docker_tls"),
    "without a certificate": (without("cert.pem"), "/cert.pem"),
    "without a key": (without("key.pem"), "/key.pem"),
    "without an authority": (without("ca.pem"), "/ca.pem"),
    "with a key that is locked": (
        lambda ours, folder: ours.write(folder, "client", password=b"secret"),
        "/key.pem has a password",
    ),
    "with a certificate of somebody else's": (
        lambda ours, folder: Authority("theirs").write(folder, "client", trusted=ours),
        TO_BLAME,
    ),
    "with one that is no more": (
        lambda ours, folder: ours.write(folder, "client", earlier=timedelta(days=9)),
        TO_BLAME,
    ),
    "with one for daemons": (lambda ours, folder: ours.write(folder, "daemon"), TO_BLAME),
    "trusting somebody else": (
        lambda ours, folder: ours.write(folder, "client", trusted=Authority("theirs")),
        f"certificate verify failed.*{TO_BLAME}",
    ),
}


async def refusal(
    daemon: TlsDockerDaemon, place: str, image: str, folder: Path | None, data_dir: Path
) -> str:
    """Return what whoever comes so is told; nothing has been made then, not even for a moment."""
    rules = ContainerSettings(
        endpoint=place, tls=tls_files(folder), images={"base": image}, patience_seconds=60
    )
    engine, begun = ContainerEngine("docker", data_dir, rules), time.time()
    with leaving_nothing(daemon):
        try:
            with pytest.raises(Unavailable) as caught:
                await engine.create(SandboxSpec())
            found = {check.name: check.ok for check in await engine.check()}
            assert found["socket"] is False
        finally:
            await engine.close()
    assert daemon.events(begun) == ""
    return caught.value.message


@pytest.mark.parametrize("how", REFUSED)
async def test_whoever_cannot_prove_who_he_is_gets_nothing(
    daemon: TlsDockerDaemon, image: str, ours: Authority, tmp_path: Path, how: str
) -> None:
    write, words = REFUSED[how]
    folder = write(ours, tmp_path / "tls")
    place = f"tcp://{daemon.address()}"
    assert re.search(words, await refusal(daemon, place, image, folder, tmp_path))


async def test_a_daemon_is_not_used_by_a_name_that_is_not_its_own(
    daemon: TlsDockerDaemon, image: str, ours: Authority, tmp_path: Path
) -> None:
    folder = ours.write(tmp_path / "tls", "client")
    place = f"tcp://localhost:{daemon.address().rpartition(':')[2]}"
    message = await refusal(daemon, place, image, folder, tmp_path)
    assert "not valid for 'localhost'" in message
