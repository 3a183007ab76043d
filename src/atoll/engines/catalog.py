"""The one place that names engines: engine name → engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from atoll.engines.contract import Engine
from atoll.errors import InvalidRequest
from atoll.model.template import TemplateTree

DEFAULT_ENGINE = "namespaces"


def engine_names() -> Sequence[str]:
    """Return the names of all engines, the default one first."""
    return tuple(_MAKERS)


Trees = Mapping[str, Callable[[], TemplateTree]]


def make_engine(
    name: str,
    *,
    data_dir: Path,
    mountable: Sequence[Path] = (),
    trees: Trees = MappingProxyType({}),
) -> Engine:
    """Return the engine of that name and no other; raise `InvalidRequest` if there is none.

    `trees` are the templates that kernels can be forked from, each made when first needed.
    """
    if name not in _MAKERS:
        raise InvalidRequest(
            f"there is no engine {name!r}; there is: {', '.join(_MAKERS)}", engine=name
        )
    return _MAKERS[name](data_dir, mountable, trees)


def _make_namespaces(data_dir: Path, mountable: Sequence[Path], trees: Trees) -> Engine:
    from atoll.engines.namespaces.engine import NamespaceEngine, NamespaceSettings

    return NamespaceEngine(NamespaceSettings(data_dir, mountable, trees))


_MAKERS: dict[str, Callable[[Path, Sequence[Path], Trees], Engine]] = {
    "namespaces": _make_namespaces
}
