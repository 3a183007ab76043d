"""A program in a peer's own environment, given orders over its standard input."""

from __future__ import annotations

import json
import select
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tools.places import Failed

PROGRAMS = Path(__file__).parent.parent / "programs"

_ORDER_SECONDS = 180


class DrivenProgram:
    """Runs one of `programs/`; a line goes in, a JSON object comes out."""

    def __init__(self, python: Path, name: str, arguments: Sequence[str] = ()) -> None:
        self._process = subprocess.Popen(
            [str(python), "-I", str(PROGRAMS / f"{name}.py"), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            # Ctrl-C is for us; the program ends when its input does, and so do its kernels.
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        """The program's process id."""
        return self._process.pid

    def order(self, line: str) -> dict[str, Any]:
        """Send an order and return the answer; raise `Failed` if the program could not follow it."""
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        except OSError as error:
            raise Failed(f"the peer's program is gone: {error}") from error
        # Not select(), which takes no descriptor past the first thousand.
        waiting = select.poll()
        waiting.register(self._process.stdout, select.POLLIN)
        answer = self._process.stdout.readline() if waiting.poll(_ORDER_SECONDS * 1000) else ""
        if not answer:
            raise Failed(f"the peer's program gave no answer to {line!r}")
        decoded: dict[str, Any] = json.loads(answer)
        if "error" in decoded:
            raise Failed(decoded["error"])
        return decoded

    def seconds(self, line: str) -> float:
        """Send an order that answers with a time."""
        return float(self.order(line)["seconds"])

    def close(self) -> None:
        """Let the program end, and what it started with it."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
