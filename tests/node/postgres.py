"""A PostgreSQL server of the tests' own: on a socket in a temporary folder, as an unprivileged user."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest

_UNPRIVILEGED = "nobody"
_PATIENCE_SECONDS = 60.0


class Postgres:
    """One server, which can be stopped, hung and started again."""

    def __init__(self, programs: Path, folder: Path) -> None:
        self._programs = programs
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self._names = 0
        self._hung: list[int] = []

    @property
    def is_running(self) -> bool:
        return self._process is not None

    def set_up(self) -> None:
        if os.geteuid() == 0:
            account = pwd.getpwnam(_UNPRIVILEGED)
            os.chown(self._folder, account.pw_uid, account.pw_gid)
        options = [
            "--auth=trust",
            "--encoding=UTF8",
            "--no-locale",
            "--no-sync",
            "--username=atoll",
        ]
        with self._popen(
            self._programs / "initdb", "-D", self._folder / "data", *options
        ) as process:
            assert process.wait() == 0, (self._folder / "log").read_text()

    def start(self) -> None:
        """Start the server and return once it answers."""
        deadline = time.monotonic() + _PATIENCE_SECONDS
        self._process = self._launch()
        while True:
            try:
                psycopg.connect(self._address("postgres")).close()
                return
            except psycopg.OperationalError:
                assert time.monotonic() < deadline, (self._folder / "log").read_text()
                if self._process.poll() is not None:
                    # Of a server that was killed, its children may not all have ended yet.
                    self._process = self._launch()
                time.sleep(0.02)

    def _launch(self) -> subprocess.Popen[bytes]:
        options = ["-h", "", "-k", str(self._folder), "-c", "fsync=off"]
        return self._popen(self._programs / "postgres", "-D", self._folder / "data", *options)

    def stop(self) -> None:
        """End the server at once, in its own way."""
        self._end(signal.SIGQUIT)

    def kill(self) -> None:
        """Kill the server, which leaves everything as it is."""
        self._end(signal.SIGKILL)

    def _end(self, number: signal.Signals) -> None:
        if self._process is not None:
            self.go_on()
            self._process.send_signal(number)
            self._process.wait()
            self._process = None

    def hang(self) -> None:
        """Stop every process of the server in place."""
        assert self._process is not None
        pid = self._process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        self._hung = [pid, *map(int, children)]
        for each in self._hung:
            os.kill(each, signal.SIGSTOP)

    def go_on(self) -> None:
        for each in self._hung:
            with suppress(ProcessLookupError):
                os.kill(each, signal.SIGCONT)
        self._hung = []

    def new_database(self) -> str:
        """Return the address of an empty database."""
        self._names += 1
        name = f"test{self._names}"
        with psycopg.connect(self._address("postgres"), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}".encode())
        return self._address(name)

    def _address(self, database: str) -> str:
        return f"postgresql://atoll@/{database}?host={self._folder}"

    def _popen(self, *command: str | Path) -> subprocess.Popen[bytes]:
        with (self._folder / "log").open("ab") as log:
            return subprocess.Popen(
                command,
                cwd=self._folder,
                user=_UNPRIVILEGED if os.geteuid() == 0 else None,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Postgres]:
    programs = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if not programs:
        pytest.skip("PostgreSQL is not installed")
    if not _has_name():
        pytest.skip("PostgreSQL wants a user with a name; the tests of root see to it")
    # Short enough for the path of a socket, and where another user can reach it.
    folder = Path(tempfile.mkdtemp(prefix="atoll-pg-"))
    server = Postgres(programs[-1].parent, folder)
    try:
        server.set_up()
        server.start()
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder)


def _has_name() -> bool:
    try:
        pwd.getpwuid(os.geteuid())
    except KeyError:
        return False
    return True


@pytest.fixture
def postgres(postgres_server: Postgres) -> Iterator[Postgres]:
    """A server that runs, whatever the test before did to it."""
    yield postgres_server
    postgres_server.go_on()
    if not postgres_server.is_running:
        postgres_server.start()
