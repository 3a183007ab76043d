"""Fills the workspace with links that lead out of it, nowhere, in circles and into processes."""

from __future__ import annotations

import os
import sys

from tests.security.attacks.kernel import report

INSIDE_SECRET = "/home/sandbox/outside"


def main() -> None:
    word, host_folder = sys.argv[1:]
    os.makedirs(INSIDE_SECRET, exist_ok=True)
    for name in ("canary", "kept"):
        with open(f"{INSIDE_SECRET}/{name}", "w") as file:
            file.write(word)
    os.makedirs("/workspace/links/deep", exist_ok=True)
    links = {
        "absolute": f"{host_folder}/canary",
        "absolute-folder": host_folder,
        "relative": "../../home/sandbox/outside/canary",
        "relative-folder": "../../home/sandbox/outside",
        "home": f"{INSIDE_SECRET}/canary",
        "home-folder": INSIDE_SECRET,
        "root": "/",
        "up": "..",
        "up-and-up": "../..",
        "loop": "loop",
        "ping": "pong",
        "pong": "ping",
        "missing": "nowhere",
        "self": "/proc/self/cwd",
        "process-root": "/proc/self/root",
        "init-root": "/proc/1/root",
        "environment": "/proc/self/environ",
        "descriptor": "/proc/self/fd/0",
        "descriptors": "/proc/self/fd",
        "password": "/etc/passwd",
        "through": "absolute-folder/canary",
        "through-root": f"root{INSIDE_SECRET}/canary",
        "out-and-in": "../../workspace/links",
    }
    for name, target in links.items():
        os.symlink(target, f"/workspace/links/{name}")
    report(names=list(links))


if __name__ == "__main__":
    main()
