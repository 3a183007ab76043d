"""A host on which no more user namespaces can be made; prints what an engine says to that."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import anyio

from atoll.engines.namespaces.engine import NamespaceEngine, NamespaceSettings
from atoll.errors import AtollError
from atoll.model.sandbox import SandboxSpec
from tests.host_state import descendants
from tests.security.hosts import namespaces


async def main() -> None:
    engine = NamespaceEngine(NamespaceSettings(Path(sys.argv[1])))
    try:
        await engine.create(SandboxSpec())
    except AtollError as error:
        found = {
            "error": type(error).__name__,
            "message": error.message,
            "step": error.details.get("step"),
            "descendants": len(descendants(os.getpid())),
        }
        print(json.dumps(found))
    finally:
        await engine.close()


if __name__ == "__main__":
    namespaces.enter(0)
    Path("/proc/sys/user/max_user_namespaces").write_text("0")
    anyio.run(main)
