"""The one place that names engines: engine name → engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from atoll.engines.contract import Engine, Lasting
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
    lasting: Lasting | None = None,
) -> Engine:
    """Return the engine of that name and no other; raise `InvalidRequest` if there is none.

    `trees` are the templates that kernels can be forked from, each made when first needed. With `lasting`, sandboxes
    outlive this program where the engine has `Feature.ADOPTION`.
    """
    if name not in _MAKERS:
        raise InvalidRequest(
            f"there is no engine {name!r}; there is: {', '.join(_MAKERS)}", engine=name
        )
    return _MAKERS[name](data_dir, mountable, trees, lasting)


def _make_namespaces(
    data_dir: Path, mountable: Sequence[Path], trees: Trees, lasting: Lasting | None
) -> Engine:
    from atoll.engines.namespaces.engine import NamespaceEngine, NamespaceSettings

    settings = NamespaceSettings(data_dir, mountable, trees, lasting=lasting)
    return NamespaceEngine(settings)


_Maker = Callable[[Path, Sequence[Path], Trees, Lasting | None], Engine]
_MAKERS: dict[str, _Maker] = {"namespaces": _make_namespaces}
