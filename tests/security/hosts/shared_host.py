"""A host whose mounts are shared, as systemd has them; prints how making a sandbox changes them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import anyio

from atoll.engines.namespaces.engine import NamespaceEngine, NamespaceSettings
from atoll.errors import AtollError
from atoll.model.sandbox import SandboxSpec
from tests.security.hosts import namespaces

RECURSIVE, SHARED = 1 << 14, 1 << 20


def mounts() -> int:
    return len(Path("/proc/self/mountinfo").read_text().splitlines())


async def main() -> None:
    data_dir, binaries, omit = sys.argv[1:]
    before = mounts()
    settings = NamespaceSettings(
        Path(data_dir), binaries=Path(binaries), omit=int(omit), attested=False
    )
    engine = NamespaceEngine(settings)
    try:
        await engine.create(SandboxSpec())
        outcome = "created"
    except AtollError as error:
        outcome = str(error.details.get("step"))
    finally:
        await engine.close()
    print(json.dumps({"outcome": outcome, "new_mounts": mounts() - before}))


if __name__ == "__main__":
    namespaces.enter(namespaces.NEW_MOUNTS)
    namespaces.check(namespaces.libc.mount(None, b"/", None, RECURSIVE | SHARED, None))
    anyio.run(main)
