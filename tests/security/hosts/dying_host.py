"""A host that leaves a daemon running in a sandbox, says so and waits to be killed."""

from __future__ import annotations

import sys
from pathlib import Path

import anyio

from atoll.engines.namespaces.engine import NamespaceEngine, NamespaceSettings
from atoll.model.sandbox import SandboxSpec
from atoll.node.commands import Commands
from tests.security.guest import ATTACKS


async def main() -> None:
    data_dir, marker = sys.argv[1:]
    engine = NamespaceEngine(NamespaceSettings(Path(data_dir)))
    sandbox = await engine.create(SandboxSpec())
    await sandbox.workspace.write("daemon.py", (ATTACKS / "daemon.py").read_bytes())
    result = await Commands(sandbox).run(["python3", "daemon.py", marker], timeout=60)
    print("ready" if result.ok else result, flush=True)
    await anyio.sleep_forever()


if __name__ == "__main__":
    anyio.run(main)
