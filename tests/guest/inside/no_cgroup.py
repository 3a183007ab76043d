"""In a guest without any cgroup: what stands in is named, and a written limit refused."""

from __future__ import annotations

from textwrap import dedent

import pytest

from atoll.engines.contract import Engine, Feature
from atoll.errors import Unsupported
from atoll.model.limits import Limits
from atoll.model.process import EndReason
from atoll.model.sandbox import SandboxSpec
from atoll.node.commands import Commands

# Each stays below the limit.
THREE_HOGS = """
    import os, signal, sys
    for _ in range(3):
        if os.fork() == 0:
            kept = b"x" * (24 << 20)
            signal.pause()
    _, status = os.wait()
    sys.exit(128 + os.WTERMSIG(status))
"""


async def test_the_machine_says_what_it_lacks(engine: Engine) -> None:
    checks = {check.name: check for check in await engine.check()}
    assert [check for check in checks.values() if check.required and not check.ok] == []
    lacking = checks["cgroup limits"]
    assert (lacking.ok, lacking.required) == (False, False)
    assert "memory" in lacking.found
    assert lacking.fix
    assert Feature.PAUSE not in engine.features


async def test_defaults_say_what_enforces_them(engine: Engine) -> None:
    sandbox = await engine.create(SandboxSpec())
    held = sandbox.info.limits.enforced_by
    assert (held["memory_bytes"], held["processes"]) == ("watchdog", "rlimit")
    assert held["cpus"] == "nothing"
    assert (await Commands(sandbox).run("echo alive")).stdout == b"alive\n"


@pytest.mark.parametrize(
    "limits",
    [Limits(memory_bytes=64 << 20), Limits(cpus=0.5), Limits(processes=16)],
    ids=["memory", "cpus", "processes"],
)
async def test_a_written_limit_is_refused(engine: Engine, limits: Limits) -> None:
    with pytest.raises(Unsupported, match=r"best_effort.*doctor") as caught:
        await engine.create(SandboxSpec(limits=limits))
    assert caught.value.details["limits"] == sorted(limits.written)


async def test_memory_is_held_by_the_watchdog(engine: Engine) -> None:
    limits = Limits(memory_bytes=48 << 20, enforcement="best_effort")
    sandbox = await engine.create(SandboxSpec(limits=limits))
    result = await Commands(sandbox).run(["python3", "-c", dedent(THREE_HOGS)], timeout=60)
    assert result.reason is EndReason.OUT_OF_MEMORY, result
    assert (await Commands(sandbox).run("echo alive")).stdout == b"alive\n"


async def test_processes_are_held_by_a_resource_limit(engine: Engine) -> None:
    limits = Limits(processes=16, enforcement="best_effort")
    sandbox = await engine.create(SandboxSpec(limits=limits))
    line = "for each in $(seq 100); do sleep 1000 & done"
    result = await Commands(sandbox).run(["sh", "-c", line], timeout=60)
    assert result.exit_code not in (0, None)
