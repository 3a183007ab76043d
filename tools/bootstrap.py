"""Makes the environment in `.venv` and the C parts, or brings them up to date.

Standard library only: a fresh machine has Python and git. What is up to date is decided by the
content of a few files; `./atoll` looks only at their times and comes here when one is newer.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tools import system_packages

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin/python"
READY = VENV / "atoll-ready"
ENGINES = ROOT / "src/atoll/engines"


class SetupFailed(Exception):
    """A step of the setup failed; the message says which and shows its output."""


@dataclass(frozen=True)
class State:
    """What the environment was made from. Its first line is read by `./atoll`."""

    root: str
    environment: str
    native: str

    @classmethod
    def wanted(cls) -> State:
        environment = [ROOT / name for name in ("pyproject.toml", "requirements.lock")]
        # The C parts take the layout of their messages from the Python side.
        native = [*ENGINES.glob("*/wire.py"), *ENGINES.glob("*/native/*.*")]
        return cls(
            root=str(ROOT),
            environment=digest([*environment, ROOT / "hatch_build.py"]),
            native=digest(path for path in sorted(native) if path.is_file()),
        )

    @classmethod
    def found(cls) -> State:
        try:
            root, environment, native = READY.read_text().splitlines()
        except (OSError, ValueError):
            return cls("", "", "")
        return cls(root, environment, native)

    def save(self, seen_at: float) -> None:
        READY.write_text(f"{self.root}\n{self.environment}\n{self.native}\n")
        # A source that was edited meanwhile then counts as newer.
        os.utime(READY, (seen_at, seen_at))


def main() -> int:
    try:
        with only_one_at_a_time():
            set_up()
    except (SetupFailed, system_packages.MissingPackages) as error:
        print(f"atoll: {error}", file=sys.stderr)
        return 1
    return 0


@contextmanager
def only_one_at_a_time() -> Iterator[None]:
    """Hold a lock on the checkout's folder itself, which needs no file of its own."""
    descriptor = os.open(ROOT, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another setup of this checkout")
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def set_up() -> None:
    seen_at = time.time()
    found, wanted = State.found(), State.wanted()
    usable = found.root == wanted.root and is_working(PYTHON)
    if not (usable and found == wanted and are_built()):
        if not os.access(ROOT, os.W_OK):
            raise SetupFailed(f"this user can neither use the environment in {ROOT} nor renew it")
        started = time.monotonic()
        system_packages.ensure(system_packages.TO_SET_UP, "building Atoll")
        if not usable:
            make_environment()
        if not usable or found.environment != wanted.environment:
            # Whatever becomes of the next steps, the environment is no longer what it was.
            State(str(ROOT), "", "").save(seen_at=0)
            install()  # builds the C parts too
        else:
            build_native()
        say(f"ready after {time.monotonic() - started:.1f} s")
    wanted.save(seen_at)


def make_environment() -> None:
    say(f"making .venv with Python {sys.version.split()[0]}")
    step([sys.executable, "-m", "venv", "--clear", str(VENV)])
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as pinned:
        pinned.write(locked("uv"))
        pinned.flush()
        step([str(PYTHON), "-m", "pip", "install", "-q", "--require-hashes", "-r", pinned.name])


def install() -> None:
    say("installing what requirements.lock lists")
    step([*uv_pip("sync"), "--quiet", "requirements.lock"])
    say("installing Atoll and building its C parts")
    # Without isolation the build uses the locked hatchling and fetches nothing.
    step([*uv_pip("install"), "--quiet", "--no-deps", "--no-build-isolation", "--editable", "."])
    if sys.dont_write_bytecode:
        # Every start would compile everything again.
        step([str(PYTHON), "-m", "compileall", "-q", "-j", "0", "src", str(VENV / "lib")])


def build_native() -> None:
    say("building the C parts")
    for build in sorted(ENGINES.glob("*/native/build.py")):
        step([str(PYTHON), str(build), "--out", str(build.parent / "bin")])


def are_built() -> bool:
    return all((build.parent / "bin").is_dir() for build in ENGINES.glob("*/native/build.py"))


def uv_pip(verb: str) -> list[str]:
    return [str(VENV / "bin/uv"), "pip", verb, "--python", str(PYTHON)]


def locked(name: str) -> str:
    """Return the lines of `requirements.lock` that pin one package."""
    text = (ROOT / "requirements.lock").read_text()
    found = re.search(rf"^{re.escape(name)}==.*(?:\n +--hash.*)*", text, re.MULTILINE)
    if found is None:
        raise SetupFailed(f"requirements.lock does not list {name}")
    return found[0] + "\n"


def is_working(python: Path) -> bool:
    try:
        return subprocess.run([python, "-c", ""], stderr=subprocess.DEVNULL).returncode == 0
    except OSError:
        return False


def step(command: Sequence[str]) -> None:
    """Run one command, silent unless it fails."""
    done = subprocess.run(
        command,
        cwd=ROOT,
        # The system's interpreters only: uv would otherwise look elsewhere for one.
        env={**os.environ, "UV_PYTHON_DOWNLOADS": "never"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    if done.returncode != 0:
        raise SetupFailed(f"this failed: {' '.join(command)}\n{done.stdout.rstrip()}")


def digest(paths: Iterable[Path]) -> str:
    whole = hashlib.sha256()
    for path in sorted(paths):
        content = path.read_bytes()
        whole.update(f"{path.relative_to(ROOT)}\0{len(content)}\0".encode() + content)
    return whole.hexdigest()


def say(text: str) -> None:
    print(f"atoll: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
