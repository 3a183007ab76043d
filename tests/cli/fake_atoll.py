"""The command line over the fake engine: `python fake_atoll.py run …`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from types import MappingProxyType

from atoll.cli.main import main
from atoll.engines import catalog
from atoll.engines.contract import Check, Engine, Lasting
from atoll.testing.fake import FakeEngine


class BrokenEngine(FakeEngine):
    """An engine that this machine cannot run."""

    async def check(self) -> Sequence[Check]:
        return [Check("luck", ok=False, found="none", fix="try another machine")]


def make_engine(
    name: str,
    *,
    data_dir: Path,
    mountable: Sequence[Path] = (),
    trees: catalog.Trees = MappingProxyType({}),
    lasting: Lasting | None = None,
    containers: catalog.ContainerSettings | None = None,
) -> Engine:
    return BrokenEngine() if os.environ.get("FAKE_ENGINE_BROKEN") else FakeEngine()


if __name__ == "__main__":
    catalog.engine_names = lambda: ("fake",)
    catalog.make_engine = make_engine
    main()
