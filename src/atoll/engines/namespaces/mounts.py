"""The tree that sandboxes see: a plan of entries from which the jail builds its root."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from atoll.engines import roots
from atoll.engines.namespaces.wire import MAX_TARGET, MAX_TEXT, PlanEntry, PlanFlag, PlanOp
from atoll.errors import Unsupported
from atoll.model.guest import GUEST, GUEST_SOURCE, SYSTEM_PATH
from atoll.model.template import (
    BASE_TEMPLATE,
    DENO_TEMPLATE,
    JULIA_TEMPLATE,
    NODE_TEMPLATE,
    PYTHON_TEMPLATE,
    R_TEMPLATE,
    TemplateTree,
)

_SPAWN_LIBRARY = "/.atoll/spawn.so"


@dataclass(frozen=True, slots=True)
class Template:
    """The recipe for new sandboxes: a tree and an environment."""

    name: str
    plan: tuple[PlanEntry, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    language: str | None = None  # of its zygote, if that is an interpreter that forks kernels
    built: Path | None = None  # the tree that was built for it alone
    # What that tree was then: one that is built anew may lie in the same place.
    built_mark: tuple[int, int] | None = None

    @property
    def digest(self) -> str:
        """Tells whether a jail that was made earlier would be made the same way now."""
        digest = hashlib.sha256(self.name.encode())
        for each in self.plan:
            digest.update(bytes(each))
            if each.op == PlanOp.COPY:
                with suppress(OSError):
                    facts = os.stat(each.source)
                    digest.update(f"{facts.st_ino} {facts.st_mtime_ns}".encode())
        digest.update(repr(self.built_mark).encode())
        return digest.hexdigest()[:32]

    @property
    def is_current(self) -> bool:
        """Whether the tree that it was built with is still the one in its place."""
        return self.built is None or mark_of(self.built) == self.built_mark


def base_template(init: Path) -> Template:
    """Return the template that holds this machine's programs; `init` is the program that is pid 1."""
    return Template(BASE_TEMPLATE, tuple(_base_plan(init)), roots.base_env())


def python_template(binaries: Path, tree: TemplateTree) -> Template:
    """Return the base with the packages of a tree, and a zygote that forks Python kernels."""
    base = base_template(binaries / "init")
    env = roots.python_env(tree)
    command = ("/.atoll/python", "python3", "-I", "-B", "/.atoll/zygote.py")
    plan = (*base.plan, *_python_zygote_entries(tree), *_zygote_entries(command, env))
    packages = tree.packages
    mark = None if packages is None else mark_of(packages)
    return Template(PYTHON_TEMPLATE, plan, env, "python", packages, mark)


def mark_of(packages: Path) -> tuple[int, int] | None:
    """Return what tells a tree from another one in the same place; None if there is none."""
    try:
        facts = packages.stat()
    except OSError:
        return None
    return facts.st_ino, facts.st_mtime_ns


def image_template(init: Path, tree: TemplateTree) -> Template:
    """Return a template whose root is that of an image; its interpreters are strangers, and none is a zygote."""
    plan = (*_planned(roots.image_entries(tree)), *_own_entries(init))
    root = tree.root
    mark = None if root is None else mark_of(root)
    return Template(tree.name, plan, roots.image_env(tree), None, root, mark)


def node_template(init: Path, path: str = SYSTEM_PATH) -> Template:
    """Return the base, where that has a Node; raise `Unsupported` elsewhere. Node cannot be forked: it has no zygote."""
    roots.check_node(path)
    base = base_template(init)
    return Template(NODE_TEMPLATE, base.plan, base.env)


def node_packages_template(init: Path, tree: TemplateTree) -> Template:
    """Return the base with the packages of a tree of Node's, where that has a Node; errors as `node_template`."""
    bare = node_template(init)
    plan = (*bare.plan, *_planned(roots.node_entries(tree)))
    packages = tree.packages
    mark = None if packages is None else mark_of(packages)
    return Template(tree.name, plan, roots.node_env(), None, packages, mark)


def deno_template(init: Path, tree: TemplateTree) -> Template:
    """Return the base with the Deno that a tree holds. Deno cannot be forked: it has no zygote."""
    plan = (*base_template(init).plan, *_planned(roots.deno_entries(tree)))
    return Template(DENO_TEMPLATE, plan, roots.deno_env())


def julia_template(init: Path, tree: TemplateTree) -> Template:
    """Return the base with the Julia that a tree holds. Julia has threads and cannot be forked: it has no zygote."""
    plan = (*base_template(init).plan, *_planned(roots.julia_entries(tree)))
    return Template(JULIA_TEMPLATE, plan, roots.julia_env())


def r_template(binaries: Path, homes: Sequence[Path] = roots.R_HOMES) -> Template:
    """Return the base with a zygote that forks R kernels; raise `Unsupported` where there is no R."""
    home = roots.find_r_home(homes)
    base = base_template(binaries / "init")
    script = f"--file={GUEST}/{GUEST_SOURCE.name}/r/zygote.R"
    options = ("--no-echo", "--no-save", "--no-restore", "--no-init-file", script)
    command = (f"{home}/bin/exec/R", "R", *options)
    plan = (*base.plan, *_zygote_entries(command, _r_env(home, base.env)))
    return Template(R_TEMPLATE, plan, base.env, "r")


def _r_env(home: Path, env: Mapping[str, str]) -> dict[str, str]:
    """What R's own front end would tell it, and what a zygote needs."""
    folders = {"R_SHARE_DIR": "share", "R_INCLUDE_DIR": "include", "R_DOC_DIR": "doc"}
    apart = Path("/usr/share/R")
    libraries = (f"{home}/lib", env.get("LD_LIBRARY_PATH"))
    return {
        **env,
        "R_HOME": str(home),
        **{
            name: str(apart / folder if (apart / folder).is_dir() else home / folder)
            for name, folder in folders.items()
        },
        "LD_LIBRARY_PATH": ":".join(filter(None, libraries)),
        # Loaded before R begins: see native/r_zygote.c.
        "LD_PRELOAD": _SPAWN_LIBRARY,
        # A zygote has one thread.
        **roots.ONE_THREAD,
    }


def _zygote_entries(command: Sequence[str], env: Mapping[str, str]) -> Iterator[PlanEntry]:
    """An interpreter's program, name and arguments, and its environment."""
    yield entry(PlanOp.TEXT, "/.atoll/interpreter", "".join(f"{each}\n" for each in command))
    yield entry(PlanOp.TEXT, "/.atoll/environment", "".join(f"{k}={v}\n" for k, v in env.items()))


def _python_zygote_entries(tree: TemplateTree) -> Iterator[PlanEntry]:
    prefix = roots.interpreter_prefix()
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    program = f"/usr/bin/{version}" if prefix is None else f"{roots.PYTHON}/bin/{version}"
    yield from _planned(roots.python_entries(tree))
    yield entry(PlanOp.SYMLINK, "/.atoll/python", program)
    yield entry(PlanOp.TEXT, "/.atoll/zygote.py", _ZYGOTE)


_ZYGOTE = f"""import sys
sys.path += [{roots.PACKAGES!r}, {roots.BUILT_PACKAGES!r}]
from atoll_guest.zygote import main
main()
"""


def _base_plan(init: Path) -> Iterator[PlanEntry]:
    yield from _planned(roots.base_entries())
    yield from _own_entries(init)


def _own_entries(init: Path) -> Iterator[PlanEntry]:
    yield entry(PlanOp.COPY, "/.atoll/init", str(init), PlanFlag.EXECUTABLE)
    # Not only for zygotes: R has no sockets, and speaks to the host by way of it.
    yield entry(PlanOp.COPY, _SPAWN_LIBRARY, str(init.with_name("spawn.so")), PlanFlag.EXECUTABLE)


def _planned(entries: Iterable[roots.Entry]) -> Iterator[PlanEntry]:
    for each in entries:
        flags = PlanFlag.EXECUTABLE * each.is_executable | PlanFlag.OPTIONAL * each.is_optional
        yield entry(PlanOp[each.op.name], each.target, each.source, flags)


def entry(op: PlanOp, target: str, source: str = "", flags: int = 0) -> PlanEntry:
    """Return one entry of a plan."""
    encoded_target, encoded_source = os.fsencode(target), os.fsencode(source)
    if len(encoded_target) >= MAX_TARGET or len(encoded_source) >= MAX_TEXT:
        raise Unsupported(f"path {source or target!r} is too long for a template")
    return PlanEntry(op=op, flags=flags, target=encoded_target, source=encoded_source)
