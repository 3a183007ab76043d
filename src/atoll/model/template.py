"""Templates: recipes for new sandboxes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

BASE_TEMPLATE = "base"
PYTHON_TEMPLATE = "python"
NODE_TEMPLATE = "node"
DENO_TEMPLATE = "deno"
R_TEMPLATE = "r"
JULIA_TEMPLATE = "julia"


@dataclass(frozen=True, slots=True)
class TemplateTree:
    """An immutable tree of a template, made on this machine; its digest says what is in it."""

    name: str
    digest: str
    path: Path
    distributions: tuple[str, ...]
    packages: Path | None = None  # another tree, of what was built for this template alone
    preload: tuple[str, ...] = ()  # modules that kernels find loaded
    root: Path | None = None  # an image's tree, seen instead of this machine's programs
    env: Mapping[str, str] = field(default_factory=dict)  # of that image
    language: str = "python"  # of the packages that were built for it

    @property
    def built(self) -> Path | None:
        """The tree that was built for this template alone, if there is one."""
        return self.packages if self.root is None else self.root


@dataclass(frozen=True, slots=True)
class TemplateInfo:
    """Facts about a template that was built here."""

    name: str
    digest: str
    owner: str
    packages: Sequence[str]  # as they were asked for
    distributions: Sequence[str]  # all that is in it
    preload: Sequence[str]
    interpreter: str  # that it was made for; empty for an image, which has its own
    made_at: float
    image: str = ""  # what it was unpacked from; empty: it was built of packages
    env: Mapping[str, str] = field(default_factory=dict)  # the image's
    size_bytes: int = 0  # of the image's files
    engines: Mapping[str, str] = field(
        default_factory=dict
    )  # container engines that have the image, and its id there
    language: str = "python"  # of its packages, and of cells that name none
