"""The command line over the fake engine: `python fake_atoll.py run …`."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

from atoll.cli.main import main
from atoll.engines.contract import Engine
from atoll.testing.fake import FakeEngine

catalog = ModuleType("atoll.engines.catalog")
catalog.engine_names = lambda: ("fake",)  # type: ignore[attr-defined]


def make_engine(name: str, *, data_dir: Path) -> Engine:
    return FakeEngine()


catalog.make_engine = make_engine  # type: ignore[attr-defined]
sys.modules["atoll.engines.catalog"] = catalog

if __name__ == "__main__":
    sys.exit(main())
