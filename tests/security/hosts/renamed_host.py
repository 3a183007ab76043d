"""A host with a name of its own; prints what a sandbox on it learns of that name."""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path

import anyio

from atoll.engines.namespaces.engine import NamespaceEngine, NamespaceSettings
from atoll.model.sandbox import SandboxSpec
from atoll.node.commands import Commands
from tests.security.hosts import namespaces

NAME, DOMAIN = "canary-machine", "canary-domain"
LINE = (
    "uname -a; hostname; domainname; cat /etc/hosts"
    " /proc/sys/kernel/hostname /proc/sys/kernel/domainname"
)


async def main() -> None:
    engine = NamespaceEngine(NamespaceSettings(Path(sys.argv[1])))
    try:
        sandbox = await engine.create(SandboxSpec())
        result = await Commands(sandbox).run(LINE)
        print(json.dumps({"inside": result.stdout.decode(), "outside": socket.gethostname()}))
    finally:
        await engine.close()


if __name__ == "__main__":
    namespaces.enter(namespaces.NEW_NAMES)
    namespaces.check(namespaces.libc.sethostname(NAME.encode(), len(NAME)))
    namespaces.check(namespaces.libc.setdomainname(DOMAIN.encode(), len(DOMAIN)))
    anyio.run(main)
