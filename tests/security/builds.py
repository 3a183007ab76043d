"""Native programs that a release never holds: with failpoints, with a defence less, or evil."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

from atoll.engines.namespaces.engine import BINARIES
from atoll.engines.namespaces.native import build
from atoll.model.template import TemplateTree
from tests.security.guest import ATTACKS

# Templates with kernels, by name; made when first needed.
Trees = Mapping[str, Callable[[], TemplateTree]]


class Builds:
    """Makes each build once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made: dict[tuple[str, ...], Path] = {}

    def make(self, *defines: str) -> Path:
        """Return the folder of the programs built with `defines`."""
        if defines not in self._made:
            target = self._folder / ("-".join(defines) or "plain")
            build.build(target, *defines)
            self._made[defines] = target
        return self._made[defines]

    def make_evil(self, kind: int) -> Path:
        """Return the folder of programs whose init lies to the host, see `attacks/evil_init.c`."""
        target = self._folder / f"evil-{kind}"
        target.mkdir(exist_ok=True)
        build.write_headers(target)
        for name in ("keeper", "spawn.so"):
            shutil.copy(BINARIES / name, target / name)
        source = str(ATTACKS / "evil_init.c")
        flags = ("-O2", "-static", "-Wall", "-Wextra", "-Werror", f"-DEVIL={kind}", f"-I{target}")
        compiler = build.find_compiler()
        subprocess.run([compiler, *flags, source, "-o", str(target / "init")], check=True)
        return target

    def make_hijacked_copier(self, *without: str) -> Path:
        """Return a copier that obeys its stream, see `attacks/evil_trees.c`; `without` names walls left out."""
        target = self._folder / "-".join(("copier", *without))
        if not target.exists():
            build.write_headers(self._folder)
            native = Path(build.__file__).parent
            sources = [native / "copier.c", native / "walls.c", ATTACKS / "evil_trees.c"]
            macro = f"-DATOLL_WITHOUT={'|'.join(without) or 0}"
            flags = (
                *build.COPIER_FLAGS,
                macro,
                f"-I{self._folder}",
                f"-I{native}",
                f"-I{build.INSIDE}",
            )
            compiler = build.find_compiler()
            subprocess.run([compiler, *flags, *map(str, sources), "-o", str(target)], check=True)
        return target

    @property
    def failing(self) -> Path:
        """Programs in which each step can be made to fail or be left out."""
        return self.make("ATOLL_FAILPOINTS")
