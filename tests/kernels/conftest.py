"""What tests of kernels share: the engines that cells are tried on, one sandbox of each language on each of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from atoll.client.embedded import close_nodes
from atoll.engines.catalog import CONTAINER_ENGINES
from atoll.node import conversation
from tests.campaigns import SHARE, chance
from tests.cli.conftest import why_not
from tests.container_engines import CONTAINER_MARKS
from tests.kernels.differences import difference
from tools.container_daemons import ContainerDaemon
from tools.container_images import import_image

_OTHERS = ("gvisor", *CONTAINER_ENGINES)
_TEMPLATES = ("base", "python", "node", "deno", "r", "julia")


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupt a cell for as long as a busy machine may need to let its kernel run, before that is killed."""
    monkeypatch.setattr(conversation, "_INTERRUPT_SECONDS", (0.3, 1.0, 3.0, 10.0, 30.0))


@pytest.fixture(
    scope="module",
    params=["namespaces", *(pytest.param(name, marks=CONTAINER_MARKS) for name in _OTHERS)],
)
def engine(request: pytest.FixtureRequest) -> Iterator[str]:
    """Each engine in turn, by its name; one that this machine cannot run is skipped with the reason shown."""
    name: str = request.param
    if name in CONTAINER_ENGINES:
        with _containers(request.getfixturevalue(f"{name}_daemon")):
            yield name
    elif name in _OTHERS and (reason := why_not(name)):
        pytest.skip(f"engine {name} does not work here: {reason}")
    else:
        yield name


@contextmanager
def _containers(daemon: ContainerDaemon) -> Iterator[None]:
    """Have this process's node use a daemon, with one image for all languages; it ends before the daemon does."""
    image = import_image(daemon, "languages")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(f"ATOLL_CONTAINERS__{daemon.name.upper()}_ENDPOINT", daemon.url)
        images = ",".join(f"{template}={image}" for template in _TEMPLATES)
        patch.setenv("ATOLL_CONTAINERS__IMAGES", images)
        try:
            yield
        finally:
            close_nodes()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Try one case in twenty on other engines than our own, and all of them under `--long` or if some are named."""
    whole = config.option.long or any("::" in word for word in config.args)
    left_out = set()
    for item in items:
        callspec = getattr(item, "callspec", None)
        engine = callspec.params.get("engine") if callspec is not None else None
        if engine not in _OTHERS or item.path.parent.name != "kernels":
            continue
        if reason := difference(engine, item.name):
            item.add_marker(pytest.mark.skip(reason=reason))
        elif not whole and chance(config.option.seed, item.nodeid).random() > 1 / SHARE:
            left_out.add(item)
    if left_out:
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]
