"""Programs of another Debian release than this machine's, taken out of their packages: nothing is installed."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tools.places import Failed, made_once, must_run, own_folder, say

_KEYS = "/usr/share/keyrings/debian-archive-keyring.gpg"


def find_program(release: str, package: str, path: str) -> Path:
    """Return one file of a release's package, fetched on first use from where this machine gets its own packages."""
    folder = made_once(
        own_folder("atoll-programs") / f"{release}-{package}",
        lambda target: _unpack(release, package, target),
    )
    program = folder / path
    if not program.exists():
        raise Failed(f"{package} of {release} has no {path}")
    return program


def _unpack(release: str, package: str, target: Path) -> None:
    say(f"fetching {package} of {release}")
    with tempfile.TemporaryDirectory(dir=target.parent) as name:
        (archive,) = fetch(release, package, Path(name))
        must_run(["dpkg-deb", "-x", str(archive), str(target)])


def fetch(release: str, package: str, folder: Path) -> Sequence[Path]:
    """Return the archive of a release's package, put into an empty folder."""
    apt = _apt(release, folder)
    must_run(["env", "-C", str(folder), *apt, "download", package])
    return list(folder.glob("*.deb"))


def fetch_with_needed(release: str, package: str, folder: Path) -> Sequence[Path]:
    """Return the archives of a release's package and of all that it needs, put into an empty folder."""
    apt = _apt(release, folder)
    must_run([*apt, "--yes", "--no-install-recommends", "--download-only", "install", package])
    return sorted(folder.glob("archives/*.deb"))


def _apt(release: str, folder: Path) -> list[str]:
    """Return a command of apt's that knows one release and nothing that is installed here."""
    for part in ("lists/partial", "archives/partial"):
        (folder / part).mkdir(parents=True)
    sources, status = folder / "sources.list", folder / "status"
    sources.write_text(f"deb [signed-by={_KEYS}] {_archive()} {release} main\n")
    status.touch()
    options = {
        "APT::Sandbox::User": "root",
        "Debug::NoLocking": "true",
        "Dir::Etc::sourcelist": sources,
        "Dir::Etc::sourceparts": os.devnull,
        "Dir::State::lists": folder / "lists",
        "Dir::State::status": status,
        "Dir::Cache": folder,
    }
    apt = ["apt-get", "-qq", *(f"-o{name}={value}" for name, value in options.items())]
    must_run([*apt, "update"])
    return apt


def _archive() -> str:
    """Return the address of the archive that this machine's packages come from."""
    listed = must_run(["apt-get", "indextargets", "--format", "$(REPO_URI) $(SUITE)"]).decode()
    places = [line.split()[0] for line in listed.splitlines() if "security" not in line]
    if not places:
        raise Failed("apt-get knows no archive to fetch packages from; run apt-get update")
    return places[0]
