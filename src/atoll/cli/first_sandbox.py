"""The first sandbox of `atoll up`: asked from inside what it is."""

from __future__ import annotations

import json
import sys
import time
from functools import partial
from typing import Any

import anyio

from atoll.cli.messages import printable
from atoll.cli.options import Wish
from atoll.cli.sandboxes import open_sandbox, run_until_stopped, tell_weak_limits
from atoll.node.commands import Commands

# Runs inside and prints one JSON object; the standard library is all it can count on.
_PROBE = """
import json, os, socket
status = dict(line.split(":", 1) for line in open("/proc/self/status") if ":" in line)
status = {name: value.strip() for name, value in status.items()}
def links():
    return {name: os.readlink("/proc/self/ns/" + name) for name in sorted(os.listdir("/proc/self/ns"))}
def network():
    # Asks for a route only: connecting a datagram socket sends nothing.
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
            return "there is a route out"
        except OSError as error:
            return "none (" + str(error.strerror or error) + ")"
print(json.dumps({
    "answer": 6 * 7,
    "uid": os.getuid(),
    "processes": sum(name.isdigit() for name in os.listdir("/proc")),
    "capabilities": status["CapEff"],
    "no_new_privs": status["NoNewPrivs"],
    "seccomp": status["Seccomp"],
    "namespaces": links(),
    "network": network(),
    "hostname": socket.gethostname(),
    "files": sorted(os.listdir("/")),
}))
"""


def show_first_sandbox(wish: Wish, *, as_json: bool) -> int:
    """Make a sandbox, ask it from inside, and show the answer."""
    return run_until_stopped(partial(_show, wish, as_json))


async def _show(wish: Wish, as_json: bool) -> int:
    begun = time.perf_counter()
    async with open_sandbox(wish) as sandbox:
        made = time.perf_counter()
        result = await Commands(sandbox).run(["python3", "-c", _PROBE], timeout=30)
        answered = time.perf_counter()
        limits = sandbox.info.limits
        facts = {
            "engine": sandbox.info.engine,
            "create_ms": round((made - begun) * 1000, 1),
            "run_ms": round((answered - made) * 1000, 1),
            "enforced_by": dict(limits.enforced_by),
            "inside": json.loads(result.check().stdout),
            "separate_namespaces": await _count_own(json.loads(result.stdout)["namespaces"]),
        }
    if as_json:
        print(json.dumps(facts))
    else:
        _print_facts(facts)
        tell_weak_limits(limits)
    sys.stdout.flush()
    return 0


async def _count_own(inside: dict[str, str]) -> list[str]:
    """Return the kinds of namespace in which the sandbox differs from this process."""
    own = []
    for name, link in inside.items():
        try:
            here = str(await anyio.Path("/proc/self/ns", name).readlink())
        except OSError:
            continue
        if link != here and not name.endswith("_for_children"):
            own.append(name)
    return own


def _print_facts(facts: dict[str, Any]) -> None:
    inside = facts["inside"]
    no_capabilities = int(inside["capabilities"], 16) == 0
    rows = {
        "engine": f"{facts['engine']}, ready in {facts['create_ms']} ms, answered {facts['run_ms']} ms later",
        "answer": f"6 * 7 = {inside['answer']}, from a Python inside",
        "user": f"{inside['uid']}, capabilities {'none' if no_capabilities else inside['capabilities']}",
        "filter": "system calls are filtered"
        if inside["seccomp"] == "2"
        else "NO system-call filter",
        "namespaces": f"its own {', '.join(facts['separate_namespaces'])}",
        "network": inside["network"],
        "sees": f"{inside['processes']} processes, files {' '.join(inside['files'])}",
    }
    print("A first sandbox ran on this machine:")
    for name, value in rows.items():
        print(f"  {name:<11}{printable(str(value))}")
    print("Next: atoll run -c 'print(1)'    atoll shell    atoll doctor")
