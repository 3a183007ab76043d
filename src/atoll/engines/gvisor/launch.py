"""Starting `runsc`: in its cgroup from the first moment, bound to this process, with pipes of ours and nothing else."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atoll.engines.gvisor.runsc import Runsc

LAUNCHER = Path(__file__).parent / "native" / "bin" / "launcher"
_PIPE_BYTES = 1 << 20
_F_SETPIPE_SZ = 1031


@dataclass(frozen=True, slots=True)
class Launched:
    """A `runsc` that was started, and our ends of its standard streams, which do not block."""

    process: subprocess.Popen[bytes]
    stdin: int
    stdout: int
    stderr: int


def write_bundle(directory: Path, config: Mapping[str, Any]) -> None:
    """Put a bundle and a place for the state into a directory that nobody else may look into."""
    (directory / "state").mkdir(mode=0o700)
    (directory / "config.json").write_text(json.dumps(config))


def launch(
    runsc: Runsc, directory: Path, name: str, entries: Sequence[int], *, is_shared: bool = False
) -> Launched:
    """Start the bundle in `directory`, by way of descriptors of a cgroup; ends when this thread does.

    The streams are pipes: `runsc` changes the owner of whatever it is given as one, so it never sees a file of the host.
    `is_shared`: others may change what is bound, so it is asked for anew each time.
    """
    with ExitStack() as ours, ExitStack() as theirs:
        stdin, our_stdin = _pipe(theirs, ours)
        our_stdout, stdout = _pipe(ours, theirs)
        our_stderr, stderr = _pipe(ours, theirs)
        command = [
            *(str(LAUNCHER), str(os.getpid()), str(int(not runsc.is_rootless))),
            ",".join(map(str, entries)),
            *runsc.command(directory / "state", is_shared=is_shared),
            *("run", "--bundle", str(directory), name),
        ]
        process = subprocess.Popen(
            command,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            pass_fds=entries,
            cwd="/",
            # Nothing of the operator\'s: keys live in variables.
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
            start_new_session=True,
        )
        ours.pop_all()
        return Launched(process, our_stdin, our_stdout, our_stderr)


def _pipe(reader: ExitStack, writer: ExitStack) -> tuple[int, int]:
    """Return a new pipe, reading end first; each end is owned by who is to have it."""
    reading, writing = os.pipe2(os.O_CLOEXEC)
    reader.callback(os.close, reading)
    writer.callback(os.close, writing)
    with suppress(OSError):  # fewer bytes at a time will do
        _set_size(writing)
    return reading, writing


def _set_size(fd: int) -> None:
    import fcntl

    fcntl.fcntl(fd, _F_SETPIPE_SZ, _PIPE_BYTES)
