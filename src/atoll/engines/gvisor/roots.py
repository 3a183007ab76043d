"""Roots of sandboxes as `runsc` takes them: a small tree of the host, named by what is in it, and what is bound over it."""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from atoll.engines import roots
from atoll.engines.gvisor.bundle import STEWARD_PATH, Bind
from atoll.engines.roots import Entry, Op
from atoll.model.template import (
    DENO_TEMPLATE,
    JULIA_TEMPLATE,
    NODE_TEMPLATE,
    R_TEMPLATE,
    TemplateTree,
)

# R has no sockets, and speaks to the host by way of this library.
_R_CHANNEL = "/.atoll/spawn.so"
_BOUND = (Op.BIND, Op.OVERLAY, Op.MASK)


@dataclass(frozen=True, slots=True)
class Template:
    """The recipe for new sandboxes: a tree and an environment."""

    entries: tuple[Entry, ...]
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """Names the tree by all that is in it."""
        digest = hashlib.sha256()
        for each in self.entries:
            digest.update(repr(each).encode())
            if each.op is Op.COPY:
                with suppress(OSError):
                    facts = os.stat(each.source)
                    digest.update(f"{facts.st_ino} {facts.st_mtime_ns} {facts.st_size}".encode())
        return digest.hexdigest()[:32]

    def binds(self, root: Path) -> Sequence[Bind]:
        """Return what is bound over the tree at `root`, outer ones first; a mask is an empty directory of the tree itself."""
        empty = f"{root}{roots.EMPTY}"
        return [
            Bind(empty if each.op is Op.MASK else each.source, each.target)
            for each in self.entries
            if each.op in _BOUND
        ]


def find_template(
    name: str,
    trees: Mapping[str, Callable[[], TemplateTree]],
    steward: Path,
    r_channel: Path | None,
) -> Template:
    """Return the template of that name; raise `Unsupported` where this machine lacks its interpreter."""
    own = (*_steward_entries(steward), *_r_entries(r_channel))
    base = (*_without_devices(roots.base_entries()), *own)
    if name == DENO_TEMPLATE and name in trees:
        return Template((*base, *roots.deno_entries(trees[name]())), roots.deno_env())
    if name == JULIA_TEMPLATE and name in trees:
        return Template((*base, *roots.julia_entries(trees[name]())), roots.julia_env())
    if name in trees:
        tree = trees[name]()
        if tree.root is not None:
            entries = (*_without_devices(roots.image_entries(tree)), *own)
            return Template(entries, roots.image_env(tree))
        if tree.language == "node":
            roots.check_node()
            return Template((*base, *roots.node_entries(tree)), roots.node_env())
        return Template((*base, *roots.python_entries(tree)), roots.python_env(tree))
    if name == NODE_TEMPLATE:
        roots.check_node()
    if name == R_TEMPLATE:
        roots.find_r_home()
    return Template(base, roots.base_env())


def _without_devices(entries: Iterable[Entry]) -> Iterable[Entry]:
    # The second kernel has devices of its own.
    return (
        each for each in entries if each.op is not Op.DEVICE and not each.target.startswith("/dev/")
    )


def _steward_entries(steward: Path) -> Iterable[Entry]:
    yield Entry(Op.DIRECTORY, "/sys")
    yield Entry(Op.COPY, STEWARD_PATH, str(steward), is_executable=True)


def _r_entries(library: Path | None) -> Iterable[Entry]:
    if library is not None:
        yield Entry(Op.COPY, _R_CHANNEL, str(library), is_executable=True)


def build_root(template: Template, directory: Path) -> Path:
    """Return the tree of a template below `directory`, made if it is not there yet."""
    path = directory / template.digest
    if path.is_dir():
        return path
    directory.mkdir(parents=True, exist_ok=True)
    scratch = directory / f".new-{secrets.token_hex(6)}"
    try:
        make_tree(template, scratch)
        scratch.rename(path)
    except OSError:
        shutil.rmtree(scratch, ignore_errors=True)
        # Another program may have made it meanwhile.
        if not path.is_dir():
            raise
    return path


def make_tree(template: Template, path: Path) -> None:
    """Make the tree of a template at `path`: what is written, and where the rest is bound to."""
    path.mkdir(parents=True)
    path.chmod(0o755)
    for each in template.entries:
        _make(each, path / each.target.lstrip("/"))


def _make(entry: Entry, path: Path) -> None:
    match entry.op:
        case Op.BIND if Path(entry.source).is_file():
            path.touch()
        case Op.DIRECTORY | Op.BIND | Op.OVERLAY:
            _make_directories(path)
        case Op.SYMLINK:
            path.symlink_to(entry.source)
        case Op.TEXT:
            path.write_text(entry.source)
            path.chmod(0o755 if entry.is_executable else 0o644)
        case Op.COPY:
            _copy(entry, path)


def _make_directories(path: Path) -> None:
    # Whatever this process keeps from others by default, sandboxes have to get in.
    for each in (*reversed(path.parents), path):
        if not each.exists():
            each.mkdir()
            each.chmod(0o755)


def _copy(entry: Entry, path: Path) -> None:
    if entry.is_optional and not Path(entry.source).is_file():
        return
    shutil.copyfile(entry.source, path)
    path.chmod(0o755 if entry.is_executable else 0o644)
