"""Opens an llm-sandbox session and runs code in it, for each line read. Arguments: socket, image.

Runs in an environment of its own, which has llm-sandbox; nothing of Atoll is there.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from typing import Any

CODE = "print(1)"

llm_sandbox = importlib.import_module("llm_sandbox")
docker = importlib.import_module("docker")


def run(client: Any, image: str) -> dict[str, Any]:
    """Open a session and run the code; closing it is not timed."""
    started = time.perf_counter()
    session = llm_sandbox.SandboxSession(
        client=client,
        image=image,
        lang="python",
        keep_template=True,
        # There is no index to install from, and nothing to install.
        skip_environment_setup=True,
        runtime_configs={
            "command": ["sleep", "infinity"],
            "network_mode": "none",
            "mem_limit": "1g",
            "nano_cpus": 1_000_000_000,
            "pids_limit": 256,
        },
    )
    session.open()
    result = session.run(CODE)
    seconds = time.perf_counter() - started
    # Otherwise closing waits ten seconds for a program that ignores being asked to stop.
    session.container.kill()
    session.close()
    if result.stdout.strip() != "1":
        raise RuntimeError(f"the session printed {result.stdout!r} {result.stderr!r}")
    return {"seconds": seconds}


def main(socket: str, image: str) -> None:
    client = docker.DockerClient(base_url=f"unix://{socket}")
    for _ in sys.stdin:
        try:
            answer = run(client, image)
        except Exception as error:  # noqa: BLE001 - it becomes the reason
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
