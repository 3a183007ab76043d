"""A program that makes sandboxes under gVisor, to be killed: `doomed_host.py DATA_DIR`.

It says in one line of JSON which ones it has made, the second of them paused, then waits.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import anyio

from atoll.engines.gvisor.engine import GvisorEngine, GvisorSettings
from atoll.model.process import Command
from atoll.model.sandbox import SandboxSpec


async def main() -> None:
    """Make them, say so, wait."""
    engine = GvisorEngine(GvisorSettings(Path(sys.argv[1])))
    sandboxes = [await engine.create(SandboxSpec()) for _ in range(2)]
    for sandbox in sandboxes:
        await sandbox.start(Command(("sleep", "1000")))
    await sandboxes[1].pause()
    print(json.dumps([sandbox.id for sandbox in sandboxes]), flush=True)
    await anyio.sleep_forever()


if __name__ == "__main__":
    anyio.run(main)
