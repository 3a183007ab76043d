"""Makes template trees: packages copied to a neutral place, compiled there, never changed again."""

from __future__ import annotations

import compileall
import fcntl
import hashlib
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from py_compile import PycInvalidationMode

from atoll.errors import InvalidRequest, Unavailable
from atoll.model.template import PYTHON_TEMPLATE, TemplateTree

# Where the tree is seen inside; compiled files hold no other path.
INNER_PATH = "/opt/template"

# What a Python kernel needs.
_KERNEL_DISTRIBUTIONS = ("ipython", "matplotlib-inline")
# What people expect to find, if it is there.
_WELCOME_DISTRIBUTIONS = ("pip",)
# Bumped when trees have to be made in another way.
_FORMAT = 1

_REQUIREMENT = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)")


class Templates:
    """The template trees of one data directory."""

    def __init__(
        self,
        data_dir: Path,
        packages: Sequence[str] = (),
        report: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._folder = data_dir / "templates"
        self._packages = tuple(packages)
        self._report = report

    def python(self) -> TemplateTree:
        """Return the tree for Python kernels; made on first use, which takes some seconds."""
        usual = (*_KERNEL_DISTRIBUTIONS, *filter(_is_installed, _WELCOME_DISTRIBUTIONS))
        found = _closure((*usual, *self._packages))
        digest = _digest(found)
        names = tuple(f"{each.name}=={each.version}" for each in found)
        tree = TemplateTree(PYTHON_TEMPLATE, digest, self._folder / digest, names)
        if not tree.path.is_dir():
            with self._locked():
                if not tree.path.is_dir():
                    self._make(tree, found)
        return tree

    def _make(self, tree: TemplateTree, distributions: Sequence[metadata.Distribution]) -> None:
        self._report(f"making template {tree.name!r} from {len(distributions)} packages, once")
        scratch = Path(tempfile.mkdtemp(dir=self._folder, prefix=".making-"))
        try:
            for distribution in distributions:
                _copy_distribution(distribution, scratch)
            _copy_guest(scratch)
            _compile(scratch)
            (scratch / "manifest.json").write_text(
                json.dumps({"distributions": tree.distributions})
            )
            scratch.chmod(0o755)
            os.rename(scratch, tree.path)
        except OSError as error:
            raise Unavailable(f"template {tree.name!r} cannot be made: {error}") from error
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        try:
            self._folder.mkdir(mode=0o755, parents=True, exist_ok=True)
            fd = os.open(self._folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise Unavailable(
                f"{self._folder} cannot be used: {error.strerror}; set ATOLL_DATA"
            ) from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)


def _closure(names: Sequence[str]) -> list[metadata.Distribution]:
    """Return the named distributions and all they require, as installed beside Atoll."""
    found: dict[str, metadata.Distribution] = {}
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        key = _canonical(name)
        if key in found:
            continue
        try:
            found[key] = metadata.distribution(name)
        except metadata.PackageNotFoundError as error:
            raise InvalidRequest(
                f"package {name!r} is not installed beside Atoll; install it with pip first"
            ) from error
        waiting += _requirements(found[key])
    return [found[key] for key in sorted(found)]


def _requirements(distribution: metadata.Distribution) -> Iterator[str]:
    for text in distribution.requires or ():
        requirement, _, marker = text.partition(";")
        match = _REQUIREMENT.match(requirement.strip())
        # A requirement that does not apply here is one that is not installed here.
        if match and "extra ==" not in marker and _is_installed(match[1]):
            yield match[1]


def _is_installed(name: str) -> bool:
    try:
        metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _digest(distributions: Sequence[metadata.Distribution]) -> str:
    facts = [
        _FORMAT,
        sys.implementation.cache_tag,
        *(f"{d.name}=={d.version}" for d in distributions),
    ]
    digest = hashlib.sha256(json.dumps(facts).encode())
    for path in _guest_files():
        digest.update(path.read_bytes())
    return digest.hexdigest()[:32]


def _copy_distribution(distribution: metadata.Distribution, folder: Path) -> None:
    for file in distribution.files or ():
        # Scripts lie elsewhere and carry the host's paths; compiled files are made anew.
        if ".." in file.parts or file.parts[0].startswith("/") or file.suffix == ".pyc":
            continue
        source, target = Path(str(file.locate())), folder / file
        if source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)


def _copy_guest(folder: Path) -> None:
    target = folder / "atoll_guest"
    target.mkdir()
    for path in _guest_files():
        shutil.copyfile(path, target / path.name)


def _guest_files() -> list[Path]:
    import atoll_guest

    return sorted(Path(atoll_guest.__file__).parent.glob("*.py"))


def _compile(folder: Path) -> None:
    compileall.compile_dir(
        folder,
        ddir=INNER_PATH,
        quiet=2,
        # By itself: programs that use Atoll have threads, and must not be forked.
        workers=1,
        # Neither times nor sources are looked at again: the tree never changes.
        invalidation_mode=PycInvalidationMode.UNCHECKED_HASH,
    )
