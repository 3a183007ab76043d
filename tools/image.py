"""`./atoll image`: builds the image of a server (`deploy/Dockerfile`) from a wheel of this checkout.

What Atoll needs comes in the versions of `requirements.lock`: from the package index while the image is built, or, with
`--offline`, as wheels that are collected here, and the build has no network at all.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
import tempfile
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path

from tools.bootstrap import PYTHON, ROOT
from tools.lock import LOCK
from tools.places import Failed, digest_of, made_once, must_run, own_folder, say

EXTRAS = ("docker", "egress", "otel", "postgres", "server")

_SOURCES = ("src", "hatch_build.py", "pyproject.toml", "README.md", "LICENSE")
_NOT_SOURCES = shutil.ignore_patterns("__pycache__", "bin")
_CHOSEN = re.compile(r"^([\w.-]+==[^\\]+?)\s*\\?$", re.MULTILINE)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="./atoll image", description=__doc__)
    parser.add_argument("--tag", default="atoll", help="what it is called; else atoll")
    parser.add_argument("--base", help="the image below it; else that of deploy/Dockerfile")
    parser.add_argument("--offline", action="store_true", help="collect all wheels first")
    options = parser.parse_args(arguments)
    try:
        build(options.tag, base=options.base, offline=options.offline)
    except Failed as error:
        print(f"atoll: {error}", file=sys.stderr)
        return 1
    print(options.tag)
    return 0


def build(tag: str, *, base: str | None = None, offline: bool = False) -> None:
    """Build the image with the `docker` of this machine; raise `Failed` with its last words."""
    with tempfile.TemporaryDirectory(prefix="atoll-image-") as folder:
        fill_context(Path(folder), offline=offline)
        build_context(Path(folder), tag, base=base, offline=offline)


def build_context(
    context: Path,
    tag: str,
    *,
    base: str | None,
    offline: bool,
    target: str | None = None,
    env: Mapping[str, str] | None = None,
) -> None:
    """Build the image, or one of its stages, of a folder that was filled."""
    say(f"building the image {tag}")
    arguments = [] if base is None else ["--build-arg", f"BASE={base}"]
    arguments += [] if target is None else ["--target", target]
    if offline:
        arguments += ["--network", "none", "--build-arg", "PIP_OPTIONS=--no-index"]
    command = ["docker", "build", "--quiet", "--tag", tag, *arguments, str(context)]
    must_run(command, env=None if env is None else dict(env))


def fill_context(context: Path, *, offline: bool) -> None:
    """Put all that the build reads into a folder: what is the same for many builds apart from what is not."""
    shutil.copy(ROOT / "deploy/Dockerfile", context)
    dependencies, constraints = _dependencies(), _constraints()
    (context / "dependencies.txt").write_text(dependencies)
    (context / "constraints.txt").write_text(constraints)
    if offline:
        shutil.copytree(_collected_wheels(dependencies, constraints), context / "wheels")
    else:
        (context / "wheels").mkdir()
    make_wheel(context / "atoll")


def make_wheel(target: Path) -> None:
    """Build Atoll's wheel; the checkout's own programs, which may run now, are left as they are."""
    with tempfile.TemporaryDirectory(prefix="atoll-wheel-") as folder:
        for name in _SOURCES:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, Path(folder, name), ignore=_NOT_SOURCES)
            else:
                shutil.copy(source, folder)
        command = [str(PYTHON), "-m", "pip", "wheel", "--quiet", "--no-deps"]
        must_run([*command, "--no-build-isolation", "--wheel-dir", str(target), folder])


def _collected_wheels(dependencies: str, constraints: str) -> Path:
    digest = digest_of(sys.version_info[:2], dependencies, constraints)
    return made_once(own_folder("atoll-wheels") / digest, _collect(dependencies, constraints))


def _collect(dependencies: str, constraints: str) -> Callable[[Path], None]:
    def collect(target: Path) -> None:
        say("collecting what Atoll needs, as wheels")
        with tempfile.TemporaryDirectory() as folder:
            wanted, chosen = Path(folder, "dependencies.txt"), Path(folder, "constraints.txt")
            wanted.write_text(dependencies)
            chosen.write_text(constraints)
            command = [str(PYTHON), "-m", "pip", "wheel", "--quiet", "--wheel-dir", str(target)]
            must_run([*command, "-r", str(wanted), "-c", str(chosen)])

    return collect


def _dependencies() -> str:
    """Return what Atoll and these of its extras ask for."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [each for name in EXTRAS for each in project["optional-dependencies"][name]]
    return "\n".join([*project["dependencies"], *extras]) + "\n"


def _constraints() -> str:
    """Return the versions of the lock."""
    return "\n".join(_CHOSEN.findall(LOCK.read_text())) + "\n"
