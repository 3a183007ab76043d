"""What every peer does: get ready, run once, close."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from tools.places import Failed

# What every contestant is asked to compute, and what has to come back.
CODE = "print(1)"
ANSWER = b"1\n"


class Task(NamedTuple):
    """Something to compute, and what has to come back."""

    code: str = CODE
    answer: bytes = ANSWER


class Peer(Protocol):
    """Something that does the same job as Atoll."""

    @property
    def name(self) -> str:
        """Its key in the results."""
        ...

    def prepare(self) -> Mapping[str, str]:
        """Get ready, installing what is missing; return versions, or raise `Failed` with the reason."""
        ...

    def run_once(self) -> float:
        """Do the job once and return the seconds it took; raise `Failed` if it went wrong."""
        ...

    def close(self) -> None:
        """Leave nothing behind; safe after a `prepare` that failed."""
        ...


def time_program(
    argv: Sequence[str],
    *,
    expected: bytes | None = ANSWER,
    env: Mapping[str, str] | None = None,
    cwd: str | None = None,
    timeout: float = 120,
) -> float:
    """Run a program to its end and return the seconds until its caller has what it printed."""
    started = time.perf_counter()
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=env,
            cwd=cwd,
            timeout=timeout,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Failed(f"{argv[0]}: {error}") from error
    seconds = time.perf_counter() - started
    if done.returncode != 0 or (expected is not None and done.stdout != expected):
        words = (done.stderr or done.stdout).decode(errors="replace").strip()[-500:]
        raise Failed(f"{argv[0]} ended with {done.returncode}: {words}")
    return seconds
