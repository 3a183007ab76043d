"""Every step of making a sandbox is broken once: it is named, and nothing runs or is left."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from atoll.engines.namespaces import boot, seccomp, wire
from atoll.engines.namespaces.engine import NamespaceEngine, NamespaceSettings
from atoll.engines.namespaces.wire import Step
from atoll.errors import Unavailable
from atoll.model.sandbox import SandboxSpec
from atoll.model.template import PYTHON_TEMPLATE
from atoll.node.kernels import Kernel
from tests import host_state
from tests.host_state import eventually
from tests.security.builds import Builds, Trees
from tests.security.guest import Guest
from tests.security.hosts import run_host

ROOT = os.geteuid() == 0
# Steps that are not failed by request:
NOT_BY_REQUEST = {
    Step.NONE,  # is no step
    Step.JAIL_USER_NAMESPACE,  # comes before any request; see the crowded host below
    Step.UNDUMPABLE,  # init's own, it gets no request before; built without it in a test below
    Step.PROBE,  # is a question, not an action; answered wrongly in a test below
    Step.JOIN,  # only of kernels; see below
    Step.SUPERVISOR,  # the same
}
# What a kernel goes through that joins a sandbox. In the order of the code: entering, then both the
# kernel and its supervisor give up every privilege.
JOINING = (
    Step.CGROUP_ENTER,
    Step.JOIN,
    Step.RLIMITS,
    Step.WORKING_DIRECTORY,
    Step.KEYRING,
    Step.KERNEL_FORK,
    Step.SUPERVISOR,
)
SEALING = (
    Step.GROUPS,
    Step.GROUP_ID,
    Step.USER_ID,
    Step.BOUNDING_SET,
    Step.AMBIENT_SET,
    Step.SECUREBITS,
    Step.CAPABILITIES,
    Step.NO_NEW_PRIVILEGES,
    Step.LANDLOCK,
    Step.FILTER,
)
# Only without root does the child write its own id map.
STEPS = [
    step for step in Step if step not in NOT_BY_REQUEST and not (ROOT and step is Step.SELF_MAP)
]


def test_there_are_enough_steps() -> None:
    assert len(STEPS) >= 25


@asynccontextmanager
async def nothing_left(
    settings: NamespaceSettings,
) -> AsyncIterator[tuple[NamespaceEngine, SandboxSpec]]:
    """An engine that leaves nothing: not of what it could not make, nor at its end of itself."""
    spec = SandboxSpec()
    before = host_state.look(settings.data_dir, [spec.id])
    engine = NamespaceEngine(settings)
    try:
        yield engine, spec
        assert not host_state.cgroup_directories(spec.id)
        # The kernel may still be about to let go of one that was killed.
        assert eventually(lambda: inits(settings, spec) == before.processes.count("init"), 20)
    finally:
        await engine.close()
    assert eventually(lambda: not grown(settings, spec, before), 60), grown(settings, spec, before)


def inits(settings: NamespaceSettings, spec: SandboxSpec) -> int:
    """Return how many sandboxes there are."""
    return host_state.look(settings.data_dir, [spec.id]).processes.count("init")


def grown(
    settings: NamespaceSettings, spec: SandboxSpec, before: host_state.HostState
) -> dict[str, object]:
    """Return what there is more than before; files of other test runs come and go."""
    found = host_state.look(settings.data_dir, [spec.id]).growth(before)
    return {name: what for name, what in found.items() if name != "files"}


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.name.lower())
async def test_a_failed_step_stops_everything(
    step: Step, guest: Guest, testing_builds: Builds, data_dir: Path
) -> None:
    settings = NamespaceSettings(data_dir, binaries=testing_builds.failing, failpoint=step)
    async with nothing_left(settings) as (engine, spec):
        for _ in range(2):
            with pytest.raises(Unavailable) as failure:
                await engine.create(spec)
            assert failure.value.details.get("step") == step.name.lower(), failure.value.message
            assert step.name.lower() in failure.value.message


@pytest.mark.parametrize("step", [*JOINING, *SEALING], ids=lambda step: step.name.lower())
async def test_a_failed_step_stops_a_kernel_that_joins(
    step: Step,
    guest: Guest,
    testing_builds: Builds,
    data_dir: Path,
    trees: Trees,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = NamespaceSettings(data_dir, binaries=testing_builds.failing, trees=trees)
    engine = NamespaceEngine(settings)
    try:
        spec = SandboxSpec(template=PYTHON_TEMPLATE)
        sandbox = await engine.create(spec)
        await (await Kernel.open(sandbox)).close()
        # Twice: with the first, something may be opened that stays for good.
        for _ in range(2):
            before = host_state.look(data_dir, [spec.id])
            with monkeypatch.context() as patch:
                patch.setattr(boot, "spawn_request", partial(failing_request, step))
                with pytest.raises(Unavailable) as failure:
                    await sandbox.fork_kernel()
            assert failure.value.details["step"] == step.name.lower()
        # Looked at once: a watchdog may be looking into /proc at any other moment.
        assert eventually(lambda: not grown(settings, spec, before), 20), grown(
            settings, spec, before
        )
        assert (await (await Kernel.open(sandbox)).run("1 + 1")).text == "2"
    finally:
        await engine.close()


make_request = boot.spawn_request


def failing_request(step: Step, *arguments: Any, **options: Any) -> wire.SpawnRequest:
    request = make_request(*arguments, **options)
    request.failpoint = step
    return request


@pytest.mark.parametrize(
    "step",
    # The last two when the kernel is there already.
    [Step.KERNEL_FORK, Step.DESCRIPTORS, Step.EXEC_INIT],
    ids=lambda step: step.name.lower(),
)
async def test_a_failed_step_stops_a_sandbox_with_a_kernel(
    step: Step, guest: Guest, testing_builds: Builds, data_dir: Path, trees: Trees
) -> None:
    settings = NamespaceSettings(
        data_dir, binaries=testing_builds.failing, trees=trees, failpoint=step
    )
    async with nothing_left(settings) as (engine, spec):
        with pytest.raises(Unavailable) as failure:
            await engine.create(replace(spec, template=PYTHON_TEMPLATE, kernel=True))
        assert failure.value.details["step"] == step.name.lower()


async def test_without_a_failpoint_the_testing_build_works(
    guest: Guest, testing_builds: Builds, data_dir: Path
) -> None:
    settings = NamespaceSettings(data_dir, binaries=testing_builds.failing)
    async with nothing_left(settings) as (engine, spec):
        await (await engine.create(spec)).destroy()


async def test_a_release_knows_no_failpoints(guest: Guest, data_dir: Path) -> None:
    everything = (1 << 64) - 1
    settings = NamespaceSettings(data_dir, failpoint=Step.FILTER, omit=everything)
    async with nothing_left(settings) as (engine, spec):
        sandbox = await engine.create(spec)
        found = await Guest(sandbox).attack("identity")
        await sandbox.destroy()
        assert found["status"]["Seccomp"] == "2"


async def test_an_init_that_can_be_traced_is_refused(
    guest: Guest, testing_builds: Builds, data_dir: Path
) -> None:
    settings = NamespaceSettings(data_dir, binaries=testing_builds.make("ATOLL_DUMPABLE_INIT"))
    async with nothing_left(settings) as (engine, spec):
        with pytest.raises(Unavailable, match="init can be traced"):
            await engine.create(spec)


async def test_a_filter_that_does_not_answer_the_probe_is_refused(
    guest: Guest, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    complete = seccomp.verdicts_for
    monkeypatch.setattr(
        seccomp,
        "verdicts_for",
        lambda machine: {n: v for n, v in complete(machine).items() if n != wire.PROBE_CALL},
    )
    async with nothing_left(NamespaceSettings(data_dir)) as (engine, spec):
        with pytest.raises(Unavailable, match="did not answer the probe"):
            await engine.create(spec)


@pytest.mark.parametrize("program", [b"", b"short", b"\0" * 8, b"\xff" * 80], ids=repr)
async def test_a_broken_filter_stops_everything(
    program: bytes, guest: Guest, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(seccomp, "filter_for", lambda machine="": program)
    async with nothing_left(NamespaceSettings(data_dir)) as (engine, spec):
        with pytest.raises(Unavailable) as failure:
            await engine.create(spec)
        assert failure.value.details["step"] in ("filter", "zygote_filter")


@pytest.mark.skipif(ROOT, reason="root needs no user namespace for its keeper")
async def test_a_kernel_without_user_namespaces_is_named(guest: Guest, tmp_path: Path) -> None:
    found = await run_host("crowded_host", str(tmp_path))
    assert found["error"] == "Unavailable"
    assert found["step"] == "jail_user_namespace"
    assert found["descendants"] == 0


@pytest.mark.parametrize("missing", ["keeper", "init"])
async def test_a_missing_program_stops_everything(
    missing: str, guest: Guest, testing_builds: Builds, data_dir: Path, tmp_path: Path
) -> None:
    for name in {"keeper", "init"} - {missing}:
        os.link(testing_builds.failing / name, tmp_path / name)
    async with nothing_left(NamespaceSettings(data_dir, binaries=tmp_path)) as (engine, spec):
        with pytest.raises(Unavailable):
            await engine.create(spec)
