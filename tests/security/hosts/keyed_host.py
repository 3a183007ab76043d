"""A host with a key in its session keyring; prints whether a sandbox on it can read that key."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import anyio

from atoll.engines.namespaces.engine import NamespaceEngine, NamespaceSettings
from atoll.model.sandbox import SandboxSpec
from tests.security.guest import Guest, table
from tests.security.hosts import namespaces

KEY = "atoll-canary"
JOIN, SESSION = 1, -3


async def main() -> None:
    data_dir, binaries, omit = sys.argv[1:]
    settings = NamespaceSettings(
        Path(data_dir), binaries=Path(binaries), omit=int(omit), attested=False
    )
    engine = NamespaceEngine(settings)
    try:
        found = await Guest(await engine.create(SandboxSpec())).attack("find_key", KEY)
        print(json.dumps(found))
    finally:
        await engine.close()


def add_key() -> None:
    """Give this thread, and all that it starts, a keyring of its own with one key in it."""
    calls = table()
    assert namespaces.libc.syscall(calls["keyctl"], JOIN, b"atoll-test") >= 0
    assert namespaces.libc.syscall(calls["add_key"], b"user", KEY.encode(), b"x", 1, SESSION) >= 0


if __name__ == "__main__":
    add_key()
    anyio.run(main)
