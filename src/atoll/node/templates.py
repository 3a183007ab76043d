"""Template trees, never changed again: packages at a neutral place, compiled for it, and images; the usual one, and those built for a name."""

from __future__ import annotations

import compileall
import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, replace
from functools import lru_cache, partial
from importlib import metadata
from pathlib import Path
from py_compile import PycInvalidationMode

from atoll.errors import Conflict, InvalidRequest, NotFound, Unavailable, Unsupported
from atoll.model.guest import GUEST_SOURCE, SYSTEM_PATH, guest_files, portable_files
from atoll.model.language import PYTHON, language_of
from atoll.model.sandbox import LOCAL_OWNER
from atoll.model.template import (
    BASE_TEMPLATE,
    DENO_TEMPLATE,
    JULIA_TEMPLATE,
    NODE_TEMPLATE,
    PYTHON_TEMPLATE,
    R_TEMPLATE,
    TemplateInfo,
    TemplateTree,
)
from atoll.node.julia_home import copy_home, find_home

# Where trees are seen inside; compiled files hold no other paths.
INNER_PATH = "/opt/template"
PACKAGES_PATH = "/opt/packages"
INTERPRETER = sys.implementation.cache_tag

# What a Python kernel needs.
_KERNEL_DISTRIBUTIONS = ("ipython", "matplotlib-inline")
# What people expect to find, if it is there.
_WELCOME_DISTRIBUTIONS = ("pip",)
# Bumped when trees have to be made in another way.
_FORMAT, _BUILT_FORMAT = 1, 2
_MANIFEST = "manifest.json"
_MAKING = ".making-"
_OWN_TEMPLATES = (
    BASE_TEMPLATE,
    PYTHON_TEMPLATE,
    NODE_TEMPLATE,
    DENO_TEMPLATE,
    R_TEMPLATE,
    JULIA_TEMPLATE,
)
# Those of them that are more than this machine's programs.
_WITH_TREES = (PYTHON_TEMPLATE, DENO_TEMPLATE, JULIA_TEMPLATE)
_BUILT_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")
_PIN = "@sha256:"
# Where the tree of an image lies below its folder.
_ROOT = "root"

_REQUIREMENT = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)")


class Templates(Mapping[str, Callable[[], TemplateTree]]):
    """The template trees of one data directory by name, each made or found when it is asked for."""

    def __init__(
        self,
        data_dir: Path,
        packages: Sequence[str] = (),
        report: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._folder = data_dir / "templates"
        self._names = self._folder / "names"
        self._packages = tuple(packages)
        self._report = report
        self._usual: TemplateTree | None = None

    def __getitem__(self, name: str) -> Callable[[], TemplateTree]:
        if name == PYTHON_TEMPLATE:
            return self.python
        if name == DENO_TEMPLATE:
            return self.deno
        if name == JULIA_TEMPLATE:
            return self.julia
        try:
            return partial(self._tree, self.find(name))
        except NotFound as error:
            raise KeyError(name) from error

    def __iter__(self) -> Iterator[str]:
        yield from _WITH_TREES
        yield from (info.name for info in self.list())

    def __len__(self) -> int:
        return len(_WITH_TREES) + len(self.list())

    def __bool__(self) -> bool:
        # Some come with Atoll, however many were built; to count those takes a while.
        return True

    # --- those that were built -------------------------------------------------------------------------------

    def list(self) -> Sequence[TemplateInfo]:
        """Return facts about those that were built, by name."""
        with suppress(FileNotFoundError):
            return [_read_info(str(path)) for path in sorted(self._names.glob("*.json"))]
        return ()

    def check_owner(self, name: str, owner: str) -> None:
        """Raise `InvalidRequest` if there is no template of this name for an owner; those of the operator are everybody's.

        One that somebody else has built is as good as none, and no names are told but the owner's own.
        """
        if name in _OWN_TEMPLATES:
            return
        with suppress(NotFound):
            if self.find(name).owner in (LOCAL_OWNER, owner):
                return
        built = (info.name for info in self.list() if info.owner in (LOCAL_OWNER, owner))
        raise InvalidRequest(
            f"there is no template {str(name)[:80]!r}; there is: {', '.join((*_OWN_TEMPLATES, *built))}",
            template=str(name)[:80],
        )

    def find(self, name: str) -> TemplateInfo:
        """Return facts about one that was built, by NAME, or NAME@sha256:DIGEST if it has to be just that; raises `NotFound`."""
        bare, pinned, digest = str(name).partition(_PIN)
        if _BUILT_NAME.fullmatch(bare):
            with suppress(FileNotFoundError):
                info = _read_info(f"{self._names}/{bare}.json")
                if not pinned or digest == info.digest:
                    return info
        raise NotFound(
            f"there is no template {str(name)[:160]!r} that was built here; `atoll template ls` tells which there are"
        )

    def version(self, name: str) -> str:
        """Return a digest of what goes by a name now; nothing for one whose files are the machine's own."""
        if name not in _WITH_TREES:
            try:
                info = self.find(name)
            except NotFound:
                return ""
            usual = f"{self.python().digest}+" if _needs_usual(info) else ""
            return f"{usual}{info.digest}"
        return self[name]().digest

    def language(self, name: str) -> str:
        """Return the language of cells that name none, in a sandbox of this template."""
        if name not in _OWN_TEMPLATES:
            with suppress(NotFound):
                return self.find(name).language
        return language_of(name)

    def interpreter(self, language: str) -> str:
        """Return what packages of a language are installed for on this machine; raise `Unsupported` without one."""
        return INTERPRETER if language == PYTHON.name else _find_node()

    def is_image(self, name: str) -> bool:
        """Whether a template is an image that was unpacked, whose interpreters are its own affair."""
        if name in _OWN_TEMPLATES:
            return False
        with suppress(NotFound):
            return bool(self.find(name).image)
        return False

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        """Give a new folder for what is to be published."""
        with ExitStack() as held:
            with self._locked():
                folder = held.enter_context(self._making())
            yield folder

    def remove_leftovers(self) -> None:
        """Remove what was being made by programs that were killed meanwhile."""
        with self._locked():
            self._remove_unheld()

    def _remove_unheld(self) -> None:
        for folder in self._folder.glob(f"{_MAKING}*"):
            with suppress(BlockingIOError), _held(folder, fcntl.LOCK_EX | fcntl.LOCK_NB):
                shutil.rmtree(folder, ignore_errors=True)

    @contextmanager
    def _making(self) -> Iterator[Path]:
        """Give a new folder, which is held so that nobody takes it for a leftover; for whoever has the lock."""
        self._remove_unheld()
        folder = Path(tempfile.mkdtemp(dir=self._folder, prefix=_MAKING))
        with _held(folder, fcntl.LOCK_EX):
            try:
                yield folder
            finally:
                shutil.rmtree(folder, ignore_errors=True)

    def publish(self, info: TemplateInfo, made: Path) -> TemplateInfo:
        """Let a folder, made in `scratch`, be found by a name: of compiled packages, for the usual tree, or of an image.

        Raises `Unavailable` if there is no room, and `Conflict` if the name is somebody else's.
        """
        if not info.image:
            info = replace(info, digest=_digest_built(info))
        try:
            with self._locked():
                self.check_free(info.name, info.owner)
                if not (self._folder / info.digest).is_dir():
                    (made / _MANIFEST).write_text(json.dumps({"preload": info.preload}))
                    made.chmod(0o755)
                    os.rename(made, self._folder / info.digest)
                self._write_info(info)
        except OSError as error:
            raise Unavailable(f"template {info.name!r} cannot be made: {error}") from error
        return info

    def note(self, info: TemplateInfo) -> TemplateInfo:
        """Let facts be found by a name, whether or not there is a tree to them; errors as `publish`."""
        try:
            with self._locked():
                self.check_free(info.name, info.owner)
                self._write_info(info)
        except OSError as error:
            raise Unavailable(f"template {info.name!r} cannot be made: {error}") from error
        return info

    def _write_info(self, info: TemplateInfo) -> None:
        self._names.mkdir(exist_ok=True)
        fresh = self._names / f".{info.name}.new"
        fresh.write_text(json.dumps(asdict(info)))
        fresh.rename(self._names / f"{info.name}.json")

    def check_free(self, name: str, owner: str) -> None:
        """Raise `Conflict` if a name for a template is taken by somebody else."""
        try:
            found = self.find(name)
        except NotFound:
            return
        if found.owner != owner:
            raise Conflict(f"a template {name!r} exists already; choose another name")

    def remove(self, name: str, owner: str | None = None) -> None:
        """Forget one that was built, by `owner` if one is named, and remove its tree unless another name has it.

        Raises `NotFound`.

        Sandboxes that were made from it keep what they have loaded, and find no more files of it.
        """
        with self._locked():
            info = self.find(name)
            if owner not in (None, info.owner):
                raise NotFound(f"there is no template {name!r} of {owner}")
            (self._names / f"{info.name}.json").unlink(missing_ok=True)
            if all(each.digest != info.digest for each in self.list()):
                shutil.rmtree(self._folder / info.digest, ignore_errors=True)

    def _tree(self, info: TemplateInfo) -> TemplateTree:
        if info.image:
            return self._image_tree(info)
        packages = self._folder / info.digest
        if info.interpreter != self.interpreter(info.language) or not packages.is_dir():
            raise Unavailable(
                f"template {info.name!r} was built for another {info.language.title()}, or its files are gone;"
                " build it anew"
            )
        if not _needs_usual(info):
            return TemplateTree(
                info.name, info.digest, packages, (), packages, language=info.language
            )
        usual = self.python()
        return replace(usual, name=info.name, packages=packages, preload=tuple(info.preload))

    def _image_tree(self, info: TemplateInfo) -> TemplateTree:
        root = self._folder / info.digest / _ROOT
        if not root.is_dir():
            if info.engines:
                raise Unsupported(
                    f"template {info.name!r} was built for {', '.join(info.engines)} alone; name that engine, or"
                    " build it without --no-unpack",
                    template=info.name,
                )
            raise Unavailable(f"the files of template {info.name!r} are gone; build it anew")
        portable = self._portable()
        return TemplateTree(info.name, info.digest, portable, (), root=root, env=dict(info.env))

    def _portable(self) -> Path:
        """Return the tree of what kernels need beyond the standard library, as any interpreter can load it; made on first use."""
        usual = self.python()
        folder = self._folder / f"{usual.digest}-portable"
        if not folder.is_dir():
            with self._locked():
                if not folder.is_dir():
                    self._copy_portable(usual.path, folder)
        return folder

    def _copy_portable(self, tree: Path, folder: Path) -> None:
        try:
            with self._making() as scratch:
                for path in portable_files(tree):
                    target = scratch / path
                    target.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(tree / path, target)
                scratch.chmod(0o755)
                os.rename(scratch, folder)
        except OSError as error:
            raise Unavailable(f"packages for kernels cannot be copied: {error}") from error

    # --- the usual one ---------------------------------------------------------------------------------------

    def python(self) -> TemplateTree:
        """Return the tree for Python kernels; made on first use, which takes some seconds."""
        # What it is made from is read once: that takes as long as several sandboxes.
        if self._usual is None or not self._usual.path.is_dir():
            self._usual = self._find_usual()
        return self._usual

    def _find_usual(self) -> TemplateTree:
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

    def deno(self, path: str | None = None) -> TemplateTree:
        """Return the tree that holds this machine's Deno, copied on first use; raise `Unsupported` if there is none."""
        program = _find_deno(path)
        facts = program.stat()
        digest = hashlib.sha256(f"{program} {facts.st_size} {facts.st_mtime_ns}".encode())
        folder = self._folder / digest.hexdigest()[:32]
        if not folder.is_dir():
            with self._locked():
                if not folder.is_dir():
                    self._copy(DENO_TEMPLATE, program, folder, _copy_program)
        return TemplateTree(DENO_TEMPLATE, folder.name, folder, ())

    def julia(self, path: str | None = None) -> TemplateTree:
        """Return the tree that holds this machine's Julia, copied on first use; raise `Unsupported` if there is none."""
        home = find_home(path)
        folder = self._folder / home.digest
        if not folder.is_dir():
            with self._locked():
                if not folder.is_dir():
                    self._copy(JULIA_TEMPLATE, home.path, folder, copy_home)
        return TemplateTree(JULIA_TEMPLATE, folder.name, folder, ())

    def _copy(
        self, name: str, source: Path, folder: Path, copy: Callable[[Path, Path], None]
    ) -> None:
        self._report(f"making template {name!r} from {source}, once")
        try:
            with self._making() as scratch:
                copy(source, scratch)
                scratch.chmod(0o755)
                os.rename(scratch, folder)
        except OSError as error:
            raise Unavailable(f"template {name!r} cannot be made: {error}") from error

    def _make(self, tree: TemplateTree, distributions: Sequence[metadata.Distribution]) -> None:
        self._report(f"making template {tree.name!r} from {len(distributions)} packages, once")
        try:
            with self._making() as scratch:
                for distribution in distributions:
                    _copy_distribution(distribution, scratch)
                _copy_guest(scratch)
                _compile(scratch)
                (scratch / _MANIFEST).write_text(json.dumps({"distributions": tree.distributions}))
                scratch.chmod(0o755)
                os.rename(scratch, tree.path)
        except OSError as error:
            raise Unavailable(f"template {tree.name!r} cannot be made: {error}") from error

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


@contextmanager
def _held(folder: Path, how: int) -> Iterator[None]:
    """Hold a folder by a lock of its own; raises `BlockingIOError` if it is not to wait for somebody who does."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, how)
        yield
    finally:
        os.close(fd)


def _needs_usual(info: TemplateInfo) -> bool:
    """Whether sandboxes of a template have what Python's kernels need, as well."""
    return bool(info.image) or info.language == PYTHON.name


def check_built_name(name: str) -> None:
    """Raise `InvalidRequest` unless a template can be built under this name."""
    if not isinstance(name, str) or not _BUILT_NAME.fullmatch(name) or name in _OWN_TEMPLATES:
        raise InvalidRequest(
            f"template name {str(name)[:80]!r} is taken, or not 1 to 64 characters of a-z, 0-9 and '-'"
        )


def _find_node() -> str:
    """Return which Node sandboxes find; raise `Unsupported` if there is none."""
    program = shutil.which("node", path=SYSTEM_PATH)
    if program is None:
        raise Unsupported(
            "there is no Node on this machine; install version 20.12 or newer, for example with: apt-get install nodejs npm",
            template=NODE_TEMPLATE,
        )
    facts = os.stat(program)
    return _ask_node(program, facts.st_ino, facts.st_mtime_ns)


@lru_cache(maxsize=8)
def _ask_node(program: str, _inode: int, _mtime_ns: int) -> str:
    said = subprocess.run([program, "--version"], stdout=subprocess.PIPE, timeout=60, check=True)
    # What was compiled for one of them works with all of the same first number.
    return "node-" + said.stdout.decode().strip().lstrip("v").partition(".")[0]


def _find_deno(path: str | None) -> Path:
    """Return Deno's program: the one installed beside Atoll, else that of the machine."""
    beside = os.path.dirname(sys.executable)
    found = shutil.which("deno", path=path or beside) or shutil.which("deno", path=path)
    program = None if found is None else _behind_script(Path(found).resolve())
    if program is None:
        raise Unsupported(
            "there is no Deno on this machine; install version 2.9 or newer, for example with: pip install deno,"
            " or: npm install -g deno",
            template=DENO_TEMPLATE,
        )
    return program


def _copy_program(program: Path, folder: Path) -> None:
    (folder / "bin").mkdir(0o755)
    shutil.copyfile(program, folder / "bin" / program.name)
    (folder / "bin" / program.name).chmod(0o755)


def _behind_script(program: Path) -> Path | None:
    """Return the program itself: what npm installs under its name is a script that looks for it."""
    places = ("deno", "node_modules/@deno/linux-*/deno", "../@deno/linux-*/deno")
    found = (program, *(each for place in places for each in program.parent.glob(place)))
    return next((each for each in found if _is_program(each)), None)


def _is_program(path: Path) -> bool:
    with suppress(OSError), path.open("rb") as file:
        return file.read(4) == b"\x7fELF"
    return False


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
    for path in _guest_modules():
        digest.update(path.read_bytes())
    return digest.hexdigest()[:32]


def _digest_built(info: TemplateInfo) -> str:
    facts = [_BUILT_FORMAT, info.interpreter, info.owner, [*info.distributions], [*info.preload]]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]


def _read_info(path: str) -> TemplateInfo:
    facts = os.stat(path)
    return _read_version(path, facts.st_ino, facts.st_mtime_ns)


@lru_cache(maxsize=256)  # every create reads it several times; it is never changed, but replaced
def _read_version(path: str, _inode: int, _mtime_ns: int) -> TemplateInfo:
    return TemplateInfo(**json.loads(Path(path).read_text()))


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
    for path in _guest_modules():
        shutil.copyfile(path, target / path.name)


def _guest_modules() -> list[Path]:
    return [GUEST_SOURCE / path for path in guest_files() if path.suffix == ".py"]


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
