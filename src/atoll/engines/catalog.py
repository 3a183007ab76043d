"""The one place that names engines: engine name → engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from atoll.engines.contract import Engine
from atoll.errors import InvalidRequest

DEFAULT_ENGINE = "namespaces"


def engine_names() -> Sequence[str]:
    """Return the names of all engines, the default one first."""
    return tuple(_MAKERS)


def make_engine(name: str, *, data_dir: Path, mountable: Sequence[Path] = ()) -> Engine:
    """Return the engine of that name and no other; raise `InvalidRequest` if there is none."""
    if name not in _MAKERS:
        raise InvalidRequest(f"there is no engine {name!r}; there is: {', '.join(_MAKERS)}", engine=name)
    return _MAKERS[name](data_dir, mountable)


def _make_namespaces(data_dir: Path, mountable: Sequence[Path]) -> Engine:
    from atoll.engines.namespaces.engine import NamespaceEngine, NamespaceSettings

    return NamespaceEngine(NamespaceSettings(data_dir, mountable))


_MAKERS: dict[str, Callable[[Path, Sequence[Path]], Engine]] = {"namespaces": _make_namespaces}
