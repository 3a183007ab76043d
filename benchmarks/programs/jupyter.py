"""Starts and asks IPython kernels over jupyter_client. Orders: start, open N, execute, close.

Runs in an environment of its own, which has jupyter_client and ipykernel; nothing of Atoll is there.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from typing import Any

CODE = "print(1)"
TIMEOUT = 60

manager = importlib.import_module("jupyter_client.manager")
kernels: list[tuple[Any, Any]] = []


def start() -> dict[str, Any]:
    """Start a kernel and have it run one cell; ending it is not timed."""
    started = time.perf_counter()
    kernel, client = manager.start_new_kernel(startup_timeout=TIMEOUT, kernel_name="python3")
    execute_in(client)
    seconds = time.perf_counter() - started
    end(kernel, client)
    return {"seconds": seconds}


def open_kernels(count: int) -> dict[str, Any]:
    for _ in range(count):
        kernels.append(manager.start_new_kernel(startup_timeout=TIMEOUT, kernel_name="python3"))
        execute_in(kernels[-1][1])
    return {"pids": [kernel.provisioner.pid for kernel, _ in kernels]}


def execute(turn: int) -> dict[str, Any]:
    client = kernels[turn % len(kernels)][1]
    started = time.perf_counter()
    execute_in(client)
    return {"seconds": time.perf_counter() - started}


def execute_in(client: Any) -> None:
    """Run a cell and wait for its reply, its output and the kernel's being idle."""
    request = client.execute(CODE, store_history=False)
    printed, idle = "", False
    while not idle:
        message = client.get_iopub_msg(timeout=TIMEOUT)
        if message["parent_header"].get("msg_id") != request:
            continue
        if message["msg_type"] == "stream":
            printed += message["content"]["text"]
        idle = message["content"].get("execution_state") == "idle"
    while client.get_shell_msg(timeout=TIMEOUT)["parent_header"].get("msg_id") != request:
        pass
    if printed != "1\n":
        raise RuntimeError(f"the kernel printed {printed!r}")


def end(kernel: Any, client: Any) -> None:
    client.stop_channels()
    kernel.shutdown_kernel(now=True)


def close() -> dict[str, Any]:
    while kernels:
        end(*kernels.pop())
    return {}


def main() -> None:
    turn = 0
    for line in sys.stdin:
        order, *arguments = line.split()
        try:
            match order:
                case "start":
                    answer = start()
                case "open":
                    answer = open_kernels(int(arguments[0]))
                case "execute":
                    turn += 1
                    answer = execute(turn)
                case _:
                    answer = close()
        except Exception as error:  # noqa: BLE001 - it becomes the reason
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)
    close()


if __name__ == "__main__":
    main()
