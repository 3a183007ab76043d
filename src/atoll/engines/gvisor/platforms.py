"""Which of gVisor's platforms works here: tried by a real run once per boot, then remembered.

A platform that is offered need not work: under another hypervisor KVM may hang for ever.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import select
import shutil
import signal
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from atoll.engines.gvisor.bundle import STEWARD_PATH, make_config
from atoll.engines.gvisor.launch import Launched, launch, write_bundle
from atoll.engines.gvisor.runsc import Runsc
from atoll.engines.steward import STEWARD
from atoll.errors import Unavailable
from atoll.model.limits import ResolvedLimits
from atoll.model.sandbox import SandboxSpec

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
# The last one is waited for: a machine may be busy.
_TRIAL_SECONDS = 8.0
_LAST_TRIAL_SECONDS = 60.0
_TREES = ("workspace", "tmp", "home/sandbox", "dev/shm", "proc", "sys", "opt/atoll")


def choose_platform(runsc: Runsc, directory: Path, wanted: str | None = None) -> Runsc:
    """Return it with the platform that works here; raise `Unavailable` with what each answered if none does.

    `directory` is this user's alone; what was found out is kept there until the next boot or another `runsc`.
    """
    names = (wanted,) if wanted else runsc.platforms
    known = directory / f"platform-{_mark(runsc, names)}"
    with suppress(OSError):
        return replace(runsc, platform=json.loads(known.read_text()))
    refusals = []
    for name in names:
        chosen = replace(runsc, platform=name)
        seconds = _LAST_TRIAL_SECONDS if name == names[-1] else _TRIAL_SECONDS
        refusal = _try(chosen, directory, seconds)
        if refusal is None:
            known.write_text(json.dumps(name))
            return chosen
        refusals.append(f"{name}: {refusal}")
    raise Unavailable(
        f"no platform of {runsc.path} works here ({'; '.join(refusals) or 'it offers none'}); ask for another engine"
    )


def _mark(runsc: Runsc, names: tuple[str, ...]) -> str:
    """Names all that the answer depends on."""
    facts = os.stat(runsc.path)
    parts = (
        _BOOT_ID.read_text(),
        os.geteuid(),
        (runsc.path, facts.st_size, facts.st_mtime_ns),
        names,
        os.access("/dev/kvm", os.R_OK | os.W_OK),
    )
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def _try(runsc: Runsc, directory: Path, seconds: float) -> str | None:
    """Run a steward until its first word; return why that did not come."""
    name = f"trial-{secrets.token_hex(6)}"
    place = directory / name
    place.mkdir(mode=0o700)
    try:
        root = place / "root"
        for tree in _TREES:
            (root / tree).mkdir(parents=True, exist_ok=True)
        shutil.copy(STEWARD, root / STEWARD_PATH.lstrip("/"))
        write_bundle(place, make_config(SandboxSpec(), ResolvedLimits(), root, ()))
        launched = launch(runsc, place, name, ())
        try:
            return _hear(launched, time.monotonic() + seconds)
        finally:
            _end(launched)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _hear(launched: Launched, deadline: float) -> str | None:
    heard = b""
    poller = select.poll()
    for fd in (launched.stdout, launched.stderr):
        poller.register(fd, select.POLLIN)
    while (left := deadline - time.monotonic()) > 0:
        ready = dict(poller.poll(left * 1000))
        if launched.stdout in ready and os.read(launched.stdout, 1):
            return None
        if launched.stderr in ready:
            data = os.read(launched.stderr, 4096)
            heard += data
            if not data:
                return heard.decode("utf-8", "replace").strip()[-500:] or "it ended"
        elif launched.stdout in ready:
            poller.unregister(launched.stdout)
    return "it did not come up in time"


def _end(launched: Launched) -> None:
    """End it with all of its own: those that have changed who they are do not die with it by themselves."""
    family = _family(launched.process.pid)
    launched.process.kill()
    for pid in family:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    launched.process.wait()
    for fd in (launched.stdin, launched.stdout, launched.stderr):
        os.close(fd)


def _family(pid: int) -> list[int]:
    """Return the descendants of a process."""
    parents: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, ValueError, IndexError):
            fields = path.read_text(errors="replace").rpartition(")")[2].split()
            parents[int(path.parent.name)] = int(fields[1])
    found = [pid]
    for each in found:
        found += [child for child, parent in parents.items() if parent == each]
    return found[1:]
