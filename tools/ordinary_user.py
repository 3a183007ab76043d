"""The tests once more, as root's stand-in for an ordinary user: a throw-away uid and its own checkout.

Everything lies below one folder of root's in /var/tmp, which every user can reach. The user's
copy and temporary files go at the end; the download cache stays for the next run.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from tools.bootstrap import ROOT

# Above Debian's ordinary users and outside the ranges that systemd hands out.
UIDS = range(61357, 61373)
PLACES = Path("/var/tmp")
_GRACE_SECONDS = 3.0

# What a program needs to reach the package index from here; the rest of root's environment stays.
KEPT_VARIABLES = ("LANG", "LC_", "TZ", "TERM", "SSL_CERT_", "REQUESTS_CA_BUNDLE", "PIP_", "UV_")


def run_tests(arguments: list[str], output: IO[str], selection: str, failures: Path) -> int:
    """Run `./atoll test`, those tests that a selection of markers names, in a copy of this checkout as a user that owns nothing else.

    The names of those that failed are written to a file.
    """
    with throw_away_user() as (uid, place):
        print(f"── as an ordinary user (uid {uid}): {selection}", file=output, flush=True)
        checkout, home, temporary, cache = folders = [
            place / name for name in ("atoll", "home", "tmp", "cache")
        ]
        environment = {
            **{name: value for name, value in os.environ.items() if is_kept(name)},
            "HOME": str(home),
            "LOGNAME": "atoll-test",
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "PIP_CACHE_DIR": str(cache / "pip"),
            "TMPDIR": str(temporary),
            "USER": "atoll-test",
            "UV_CACHE_DIR": str(cache / "uv"),
            "npm_config_cache": str(cache / "npm"),
        }
        failed = temporary / "failures"
        commands = [
            ["git", "init", "--quiet", "."],
            ["git", "add", "--all"],
            ["./atoll", "test", "--here", "-m", selection, f"--failures={failed}", *arguments],
        ]
        with nothing_left(uid, [checkout, home, temporary]):
            for folder in folders:
                folder.mkdir(mode=0o700, exist_ok=True)
                os.chown(folder, uid, uid)
            copy_checkout(checkout, uid)
            codes = (run_as(uid, command, checkout, environment, output) for command in commands)
            code = next((code for code in codes if code != 0), 0)
            if failed.exists():
                shutil.copyfile(failed, failures)
            return code


@contextmanager
def nothing_left(uid: int, folders: list[Path]) -> Iterator[None]:
    """Remove the user's processes and files at the end, and first what a killed run left."""
    try:
        remove_everything(uid, folders)
        yield
    finally:
        remove_everything(uid, folders)


def remove_everything(uid: int, folders: list[Path]) -> None:
    end_processes_of(uid)
    # Tests make trees too deep for Python's own removal.
    subprocess.run(["rm", "-rf", "--", *folders], check=True)


@contextmanager
def throw_away_user() -> Iterator[tuple[int, Path]]:
    """Hold a uid that nobody else uses, and its folder, until the end."""
    for uid in UIDS:
        place = PLACES / f"atoll-test-{uid}"
        place.mkdir(mode=0o755, exist_ok=True)
        found = place.lstat()
        # Somebody else may have made it first, or put a link there.
        if found.st_uid != 0 or not stat.S_ISDIR(found.st_mode):
            continue
        descriptor = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            os.chmod(descriptor, 0o755)
            yield uid, place
            return
        finally:
            os.close(descriptor)
    raise RuntimeError(f"every uid from {UIDS[0]} to {UIDS[-1]} is in use by another test run")


def copy_checkout(to: Path, uid: int) -> None:
    """Copy what git tracks or would track, owned by the user."""
    listing = subprocess.run(
        [
            "git",
            "-c",
            "safe.directory=*",
            "ls-files",
            "-z",
            "--cached",
            "--others",
            "--exclude-standard",
        ],
        cwd=ROOT,
        check=True,
        stdout=subprocess.PIPE,
    ).stdout
    for name in sorted(set(os.fsdecode(listing).split("\0")) - {""}):
        source, target = ROOT / name, to / name
        if not os.path.lexists(source):
            continue  # deleted, but not yet in the index
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, target, follow_symlinks=False)
    for folder, _, files in os.walk(to):
        for path in (folder, *(os.path.join(folder, name) for name in files)):
            os.chown(path, uid, uid, follow_symlinks=False)


def is_kept(name: str) -> bool:
    return name.startswith(KEPT_VARIABLES) or name.lower().endswith("_proxy")


def run_as(
    uid: int, command: list[str], folder: Path, environment: dict[str, str], output: IO[str]
) -> int:
    return subprocess.run(
        command,
        cwd=folder,
        env=environment,
        user=uid,
        group=uid,
        extra_groups=[],
        umask=0o022,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
    ).returncode


def end_processes_of(uid: int) -> None:
    """Kill what the tests left behind; the uid is ours alone, so nothing else can have it."""
    deadline = time.monotonic() + _GRACE_SECONDS
    # What notices the end of its owner takes a moment to tidy up.
    while processes_of(uid) and time.monotonic() < deadline:
        time.sleep(0.05)
    for folder in processes_of(uid):
        try:
            name = (folder / "comm").read_text().strip()
            os.kill(int(folder.name), signal.SIGKILL)
            print(f"atoll: the tests left {name} running; killed", file=sys.stderr)
        except (FileNotFoundError, ProcessLookupError):
            pass  # it ended by itself


def processes_of(uid: int) -> list[Path]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if folder.stat().st_uid == uid:
                found.append(folder)
        except FileNotFoundError:
            pass  # it ended by itself
    return found
