"""The compose file: a server with PostgreSQL."""

from __future__ import annotations

import json
import secrets
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.container_engines import leaving_nothing
from tests.deploy.docker import Docker, run
from tools.container_daemons import DockerDaemon
from tools.debian_program import find_program
from tools.places import Failed

ROOT = Path(__file__).parent.parent.parent
DATABASE = Path(__file__).parent / "database"
COMPOSE_PATH = "usr/libexec/docker/cli-plugins/docker-compose"


class Compose:
    """The services of `deploy/compose.yaml`, under a name of their own."""

    def __init__(self, program: Path, env: Mapping[str, str]) -> None:
        self.command = [str(program), "--file", str(ROOT / "deploy/compose.yaml")]
        self.env = {**env, "COMPOSE_PROJECT_NAME": f"atoll-test-{secrets.token_hex(4)}"}

    def __call__(self, *words: str, may_fail: bool = False) -> str:
        return run([*self.command, *words], self.env, may_fail=may_fail)

    def atoll(self, *words: str) -> str:
        """Run a command of Atoll's in the server's container."""
        return self("exec", "--no-TTY", "server", "atoll", *words)


@pytest.fixture(scope="module")
def compose(
    docker_daemon: DockerDaemon, docker: Docker, server_image: str, base_image: str
) -> Iterator[Compose]:
    """Both services, running; removed with all that they hold."""
    try:
        program = find_program("trixie", "docker-compose", COMPOSE_PATH)
    except Failed as error:
        pytest.skip(f"there is no Compose of version 2: {error}")
    database = "atoll-test-database"
    arguments = ("--network=none", f"--build-arg=BASE={base_image}", f"--tag={database}")
    docker("build", "--quiet", *arguments, str(DATABASE))
    env = {
        **docker.env,
        "ATOLL_IMAGE": server_image,
        "ATOLL_DATABASE_IMAGE": database,
        "ATOLL_DATABASE_PASSWORD": secrets.token_hex(16),
        "ATOLL_ADDRESS": "127.0.0.1:0",
    }
    compose = Compose(program, env)
    with leaving_nothing(docker_daemon):
        try:
            compose("up", "--detach", "--wait", "--wait-timeout", "180")
            yield compose
        except BaseException:
            print(compose("logs", may_fail=True))
            raise
        finally:
            compose("down", "--volumes", "--timeout", "30")


def test_a_server_keeps_its_records_in_postgresql(compose: Compose) -> None:
    assert ask(compose, "/health")["ok"] is True
    token = compose.atoll("token", "create", "--scope", "admin").strip()
    sandbox = ask(compose, "/sandboxes", token, {"template": "base", "name": "lagoon"})["id"]
    assert compose.atoll("exec", "lagoon", "--", "id", "-u") == "65532\n"
    question = "SELECT count(*) FROM users"
    psql = ("psql", "--host=/tmp", "--username=atoll", "--tuples-only", "--command", question)
    password = f"PGPASSWORD={compose.env['ATOLL_DATABASE_PASSWORD']}"
    assert int(compose("exec", "--no-TTY", "--env", password, "database", *psql)) >= 1
    # Another server on the same database knows whom the first one let in, and what was there.
    compose("up", "--detach", "--wait", "--wait-timeout", "180", "--force-recreate", "server")
    (ended,) = ask(compose, "/sandboxes", token)
    assert (ended["id"], ended["status"]) == (sandbox, "destroyed")


def test_the_database_is_nobody_elses(compose: Compose) -> None:
    assert compose("port", "database", "5432", may_fail=True).strip() in ("", ":0")
    facts = json.loads(compose("config", "--format", "json"))
    assert facts["networks"]["inside"]["internal"] is True
    assert set(facts["services"]["database"]["networks"]) == {"inside"}
    sandbox = compose.atoll("create").strip()
    reach = "import socket; socket.create_connection(('database', 5432), timeout=5)"
    words = ("exec", "--no-TTY", "server", "atoll", "exec", sandbox, "--", "python3", "-c", reach)
    assert compose(*words, may_fail=True) == ""
    # From beside it, where that is no sandbox, it can be reached.
    compose("exec", "--no-TTY", "server", "python3", "-c", reach)


def test_without_a_password_nothing_is_started(compose: Compose) -> None:
    without = {**compose.env, "ATOLL_DATABASE_PASSWORD": ""}
    with pytest.raises(AssertionError, match=r"write it into deploy/\.env"):
        run([*compose.command, "config"], without)


def ask(
    compose: Compose, path: str, token: str | None = None, body: Mapping[str, str] | None = None
) -> Any:
    """Ask the server at the address that it has on this machine."""
    address = compose("port", "server", "8000").strip()
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    data = None if body is None else json.dumps(body).encode()
    if data is not None:
        headers["Content-Type"] = "application/json"
    request = urllib.request.Request(f"http://{address}{path}", data, headers)
    with urllib.request.urlopen(request, timeout=120) as answer:
        return json.loads(answer.read())
