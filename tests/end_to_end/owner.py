"""A program that owns sandboxes, to be killed: `owner.py DATA_DIR MARK TOKEN`.

The engine's cgroups are named after the mark and its commands carry the token, so that whoever
killed it can look for what is left. It says `creating` and
then, sandbox by sandbox, the id of each.
"""

from __future__ import annotations

import secrets
import sys
from pathlib import Path

import anyio

from atoll.engines.namespaces.engine import NamespaceEngine, NamespaceSettings
from atoll.model.process import Command
from atoll.model.sandbox import SandboxSpec

SANDBOXES = 3


async def main(data_dir: str, mark: str, token: str) -> None:
    secrets.token_hex = lambda nbytes=None: mark
    engine = NamespaceEngine(NamespaceSettings(Path(data_dir)))
    print("creating", flush=True)
    for _ in range(SANDBOXES):
        sandbox = await engine.create(SandboxSpec())
        await sandbox.start(Command(("sh", "-c", f"setsid sleep {token} & sleep {token}")))
        print(sandbox.id, flush=True)
    await anyio.sleep_forever()


if __name__ == "__main__":
    data_dir, mark, token = sys.argv[1:]
    anyio.run(main, data_dir, mark, token)
