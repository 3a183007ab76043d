"""The one place that names engines: engine name → engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from atoll.engines.containers.settings import PRESETS as CONTAINER_PRESETS
from atoll.engines.containers.settings import ContainerSettings, TlsFiles, usual_endpoint
from atoll.engines.contract import Engine, Lasting
from atoll.errors import InvalidRequest, Unsupported
from atoll.model.template import PYTHON_TEMPLATE, TemplateTree

DEFAULT_ENGINE = "namespaces"
# Whose sandboxes are containers: only these take a `ContainerOptions`.
CONTAINER_ENGINES = ("docker", "podman")
__all__ = [
    "CONTAINER_ENGINES",
    "CONTAINER_PRESETS",
    "DEFAULT_ENGINE",
    "ContainerSettings",
    "TlsFiles",
    "Trees",
    "engine_names",
    "make_engine",
    "usual_endpoint",
]
# R has no sockets; the library by which it speaks to the host is built with the first engine.
_R_CHANNEL = Path(__file__).parent / "namespaces" / "native" / "bin" / "spawn.so"


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
    containers: ContainerSettings | None = None,
) -> Engine:
    """Return the engine of that name and no other; raise `InvalidRequest` if there is none.

    `trees` are the templates that kernels can be forked from, each made when first needed. With `lasting`, sandboxes
    outlive this program where the engine has `Feature.ADOPTION`. `containers` is the operator's word on Docker or Podman.
    """
    if name not in _MAKERS:
        raise InvalidRequest(
            f"there is no engine {name!r}; there is: {', '.join(_MAKERS)}", engine=name
        )
    return _MAKERS[name](_Asked(data_dir, mountable, trees, lasting, containers))


class _Asked(NamedTuple):
    data_dir: Path
    mountable: Sequence[Path]
    trees: Trees
    lasting: Lasting | None
    containers: ContainerSettings | None


def _make_namespaces(asked: _Asked) -> Engine:
    from atoll.engines.namespaces.engine import NamespaceEngine, NamespaceSettings

    settings = NamespaceSettings(
        asked.data_dir, asked.mountable, asked.trees, lasting=asked.lasting
    )
    return NamespaceEngine(settings)


def _make_gvisor(asked: _Asked) -> Engine:
    from atoll.engines.gvisor.engine import GvisorEngine, GvisorSettings

    settings = GvisorSettings(asked.data_dir, asked.mountable, asked.trees, r_channel=_R_CHANNEL)
    return GvisorEngine(settings)


def _make_containers(name: str, asked: _Asked) -> Engine:
    try:
        from atoll.engines.containers.engine import ContainerEngine
    except ModuleNotFoundError as error:
        raise Unsupported(
            f"engine {name} needs {error.name}, which is not installed; install atoll[docker]"
        ) from error
    # Templates may be many; whether there is this one is known without looking.
    python = asked.trees[PYTHON_TEMPLATE] if asked.trees else None
    return ContainerEngine(
        name, asked.data_dir, asked.containers, asked.mountable, python, r_channel=_R_CHANNEL
    )


_MAKERS: dict[str, Callable[[_Asked], Engine]] = {
    "namespaces": _make_namespaces,
    "gvisor": _make_gvisor,
    **{name: partial(_make_containers, name) for name in CONTAINER_ENGINES},
}
