"""Templates: recipes for new sandboxes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

BASE_TEMPLATE = "base"
PYTHON_TEMPLATE = "python"


@dataclass(frozen=True, slots=True)
class TemplateTree:
    """An immutable tree of a template, made on this machine; its digest says what is in it."""

    name: str
    digest: str
    path: Path
    distributions: tuple[str, ...]
