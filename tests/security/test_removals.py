"""Each defence is left out in turn: attestation notices, and unattested the attack succeeds.

So both are known to be able to notice. A table of it is printed at the end of the run. Where one
layer does not matter because another holds, all are left out, and each alone is seen not to matter.
"""

from __future__ import annotations

import os
import platform
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import pytest

from atoll.engines import roots
from atoll.engines.namespaces import boot, bpf, mounts, seccomp
from atoll.engines.namespaces.engine import NamespaceEngine, NamespaceSettings
from atoll.engines.namespaces.sandbox import NamespaceSandbox
from atoll.engines.namespaces.wire import PlanOp, SpawnRequest, Step
from atoll.engines.system_calls import policy, verdicts
from atoll.errors import AtollError, Unavailable
from atoll.model.limits import Limits
from atoll.model.process import Command
from atoll.model.sandbox import SandboxSpec
from atoll.model.template import PYTHON_TEMPLATE
from atoll.node.commands import Commands
from tests.host_state import new_token, parent_of, running_with
from tests.security import host_processes, measured
from tests.security.builds import Builds, Trees
from tests.security.canaries import make_canary
from tests.security.entries import in_cell, on_terminal
from tests.security.forbidden_calls import ESCAPES, HANDLES, MOUNTING, REFUSED_TWICE
from tests.security.guest import Call, Guest, table
from tests.security.hosts import run_host
from tests.security.measured import Removal
from tests.security.words import Words

ROOT = os.geteuid() == 0
INTEL = platform.machine() == "x86_64"


@dataclass(frozen=True)
class Found:
    """What came of an attack."""

    succeeded: bool
    what: str


Attack = Callable[[Guest], Awaitable[Found]]


# --- attacks --------------------------------------------------------------------------------------


def status_field(name: str, safe: str) -> Attack:
    """An attacker who finds more in his status than he should."""

    async def attack(guest: Guest) -> Found:
        value = (await guest.attack("identity"))["status"][name]
        return Found(value != safe, f"{name} {value}")

    attack.__name__ = "look at own status"
    return attack


async def see_the_jail(guest: Guest) -> Found:
    found = await guest.attack("look_at_processes")
    names = sorted({facts["name"] for facts in found["processes"].values()})
    return Found("atoll-jail" in names, "sees " + " ".join(names))


async def make_user_namespace(guest: Guest) -> Found:
    answer = (await guest.attack("new_namespaces"))["answers"]["unshare user 0"]
    return Found(answer == "OK", answer)


async def make_user_namespace_by_clone(guest: Guest) -> Found:
    answer = (await guest.attack("new_namespaces"))["answers"]["clone user 0"]
    return Found(answer == "OK", answer)


async def read_kernel_files(guest: Guest) -> Found:
    names = ("cmdline", "interrupts", "kallsyms", "diskstats", "partitions", "config.gz")
    found = await guest.attack("read_files", *(f"/proc/{name}" for name in names))
    told = [path for path, text in found["contents"].items() if text and text[0] != "["]
    return Found(bool(told), f"{len(told)} files tell")


async def open_settings(guest: Guest) -> Found:
    opened = (await guest.attack("writable_settings"))["opened"]
    settings = [path for path in opened if path.startswith("/proc/sys/")]
    return Found(bool(settings), f"{len(settings)} opened")


async def learn_name(guest: Guest) -> Found:
    name = (await guest.attack("identity"))["uname"][1]
    return Found(name == socket.gethostname(), name)


async def dump_core(guest: Guest) -> Found:
    limit = (await guest.attack("identity"))["core"]
    return Found(limit != [0, 0], f"core limit {limit[1]}")


async def fork_beyond_limit(guest: Guest) -> Found:
    count = (await guest.attack("fork_many", "64"))["children"]
    return Found(count == 64, f"{count} children")


async def learn_cgroup(guest: Guest) -> Found:
    lines = (await guest.attack("identity"))["cgroups"].splitlines()
    paths = {line.split(":", 2)[2] for line in lines}
    return Found(paths != {"/"}, max(paths, key=len)[:24])


async def be_another_user(guest: Guest) -> Found:
    ids = (await guest.entry(guest.sandbox, ("sh", "-c", "id -u; id -g"))).decode().split()
    return Found(ids != ["65532"] * 2, " ".join(ids))


async def keep_groups(guest: Guest) -> Found:
    groups = (await guest.attack("identity"))["groups"]
    return Found(groups != [], f"groups {groups}")


async def change_securebits(guest: Guest) -> Found:
    bits = (await guest.attack("identity"))["securebits"]
    return Found(bits == 0, f"{bits:#b}")


async def write_proc(guest: Guest) -> Found:
    opened = (await guest.attack("write_proc"))["opened"]
    return Found(bool(opened), f"opens {len(opened)}")


async def lower_score(guest: Guest) -> Found:
    found = await guest.attack("lower_oom_score")
    return Found(found["score"] < 300, f"score {found['score']}")


async def use_io_uring(guest: Guest) -> Found:
    (answer,) = await guest.calls([("io_uring_setup", [8, -1])])
    return Found(answer not in ("EPERM", "ENOSYS"), answer)


async def write_root(guest: Guest) -> Found:
    found = await guest.attack("write_everywhere")
    return Found("/" in found["writable"], f"{len(found['writable'])} folders")


async def read_init(guest: Guest) -> Found:
    answers = (await guest.attack("take_over_process", "init"))["victims"]["init"]
    won = [name for name, answer in answers.items() if answer == "OK"]
    return Found(bool(won), " ".join(won) or answers["memory_read"])


async def trace_init(guest: Guest) -> Found:
    answers = (await guest.attack("take_over_process", "init"))["victims"]["init"]
    return Found(answers["attach"] == "OK", answers["attach"])


async def privileged_zygote(guest: Guest) -> Found:
    """Not an attack from inside, but what one who got through to the zygote would win."""
    facts = [host_processes.status(pid) for pid in await jailers(guest)]
    won = [
        *(["user 0"] if any("0" in each["Uid"].split() for each in facts) else []),
        *(["capabilities"] if any(int(each["CapBnd"], 16) for each in facts) else []),
        *(["new privileges"] if any(each["NoNewPrivs"] == "0" for each in facts) else []),
    ]
    return Found(bool(won), ", ".join(won) or "none")


async def jailers(guest: Guest) -> list[int]:
    """Return the zygote that made a sandbox and the reaper of its jail, as the host sees them."""
    token = new_token()
    process = await guest.sandbox.start(Command(("sleep", token)))
    try:
        (pid,) = running_with(token)
        jail = host_processes.depth() + 1
        while host_processes.depth(pid) > jail:
            pid = parent_of(pid)
        return [pid, parent_of(pid)] if host_processes.depth(parent_of(pid)) == jail else [pid]
    finally:
        await process.close()


# --- what is left out -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A defence: its steps, the attack it stops, and what attestation says without each of them."""

    steps: tuple[Step, ...]
    attack: Attack
    noticed: tuple[str, ...]
    limits: Limits = field(default_factory=Limits)
    # Steps that cannot work without those, and are no defence against this attack.
    also: tuple[Step, ...] = ()

    @property
    def name(self) -> str:
        return " + ".join(step.name.lower() for step in self.steps)


FEW = Limits(processes=40, enforcement="best_effort")
ANYWHERE = [
    Case((Step.PROC,), see_the_jail, ("/proc is the jail's",)),
    Case(
        (Step.FILTER, Step.NO_USER_NAMESPACES), make_user_namespace, ("filter", "user namespaces")
    ),
    Case((Step.PROC_MASKS,), read_kernel_files, ("nothing is mounted on /proc/",)),
    Case((Step.HOSTNAME,), learn_name, ("its name is",)),
    Case((Step.RLIMITS,), dump_core, ("core file size",)),
    Case((Step.BOUNDING_SET,), status_field("CapBnd", "0" * 16), ("CapBnd",)),
    Case((Step.SECUREBITS,), change_securebits, ("securebits",)),
    Case((Step.LANDLOCK,), write_proc, ("Landlock",)),
    Case((Step.FILTER,), use_io_uring, ("filter",)),
    # The second is inherited from the first; without both, Landlock and the filter cannot be had.
    Case(
        (Step.JAIL_NO_NEW_PRIVILEGES, Step.NO_NEW_PRIVILEGES),
        status_field("NoNewPrivs", "1"),
        ("NoNewPrivs", "passes"),
        also=(Step.LANDLOCK, Step.FILTER),
    ),
    Case((Step.JAIL_NO_NEW_PRIVILEGES,), privileged_zygote, ("the jail is not",)),
    Case((Step.JAIL_CAPABILITIES,), privileged_zygote, ("the jail is not",)),
]
# The one setting that everybody may open for writing; others belong to root, who has no id inside.
if os.path.exists("/proc/sys/kernel/ns_last_pid"):
    steps = (Step.PROC_READ_ONLY, Step.LANDLOCK)
    ANYWHERE.append(Case(steps, open_settings, ("mounted on /proc/sys", "Landlock")))
AS_ROOT = [
    Case((Step.CGROUP_ENTER,), fork_beyond_limit, ("cgroup",), FEW),
    Case((Step.CGROUP_NAMESPACE,), learn_cgroup, ("cgroup namespace",)),
    Case((Step.GROUP_ID,), be_another_user, ("Gid",)),
    Case((Step.USER_ID,), be_another_user, ("Uid",)),
    Case((Step.JAIL_IDS,), privileged_zygote, ("the jail is not",)),
]
# Without root the jail's tree belongs to the sandbox's own id, and nobody holds its score for it.
AS_USER = [
    Case((Step.LANDLOCK,), lower_score, ("Landlock",)),
    Case((Step.JAIL_READ_ONLY, Step.LANDLOCK), write_root, ("/ is mounted writable", "Landlock")),
    Case((Step.RLIMITS,), fork_beyond_limit, ("limit",), FEW),
]
CASES = [*ANYWHERE, *(AS_ROOT if ROOT else AS_USER)]

# Left out, they leave no sandbox, attested or not: what comes next needs them.
NEEDED_BY_THE_NEXT = {
    Step.JAIL_SCRATCH,
    Step.JAIL_PIVOT_OUT,
    Step.JAIL_TREE,
    Step.JAIL_PROC,
    Step.JAIL_PIVOT_IN,
    Step.ZYGOTE_FILTER,
    Step.DESCRIPTORS,
    Step.EXEC_INIT,
    *(() if ROOT else (Step.SELF_MAP,)),
}
# Left out, they leave a sandbox that can do less, and attestation does not pass it.
FAIL_CLOSED = {Step.TERMINALS, Step.SHM, Step.TMP, Step.HOME, Step.WORKSPACE}
# What their absence would let through, something else does not, and that cannot be left out.
HELD_ELSEWHERE = {
    # It detaches the same mounts once more, with all that is below them.
    Step.JAIL_DETACH_HOST: "jail_pivot_in",
    # Whoever is not root has none after an exec.
    Step.CAPABILITIES: "exec_init",
    # A new user namespace starts with an empty one.
    Step.AMBIENT_SET: "clone",
}
NO_DEFENCE = {
    Step.NONE,
    Step.JOIN,  # without it a kernel would not be in the sandbox at all, which attestation sees
    Step.KERNEL_FORK,
    Step.SUPERVISOR,
    Step.CLONE,  # makes the namespaces; without it there is no child
    Step.LOOPBACK,
    Step.HELLO,  # the host waits for it
    Step.GO,
    Step.MOUNTS,
    Step.WORKING_DIRECTORY,
    Step.JAIL_NAMESPACES,  # as CLONE
    Step.ZYGOTE_START,
}
# Left out in tests of their own below.
BELOW = {
    Step.KEYRING,
    Step.JAIL_PRIVATE_MOUNTS,
    Step.GROUPS,
    Step.UNDUMPABLE,
    Step.PROBE,  # asks; a filter that answers it wrongly is in test_failpoints
}
# Steps that do nothing here, or whose absence only the other kind of user can notice.
NOT_HERE = (
    {Step.JAIL_USER_NAMESPACE, Step.SELF_MAP, Step.JAIL_READ_ONLY}
    if ROOT
    else {Step.JAIL_USER_NAMESPACE, *(step for case in AS_ROOT for step in case.steps)}
)


def test_every_step_has_its_place_here() -> None:
    placed = {step for case in CASES for step in case.steps}
    placed |= NEEDED_BY_THE_NEXT | FAIL_CLOSED | set(HELD_ELSEWHERE) | NO_DEFENCE | BELOW | NOT_HERE
    assert set(Step) - placed == set()


@pytest.fixture
def without(testing_builds: Builds, data_dir: Path) -> Without:
    """Makes sandboxes that lack something."""
    return Without(testing_builds.failing, data_dir)


@dataclass(frozen=True)
class Without:
    """Makes sandboxes that lack something, in engines of their own."""

    binaries: Path
    data_dir: Path

    @asynccontextmanager
    async def sandbox(
        self, steps: Sequence[Step], *, limits: Limits | None = None, attested: bool = False
    ) -> AsyncIterator[Guest]:
        """A sandbox without those steps."""
        omit = sum(1 << step for step in set(steps))
        settings = NamespaceSettings(
            self.data_dir, binaries=self.binaries, omit=omit, attested=attested
        )
        engine = NamespaceEngine(settings)
        try:
            yield Guest(await engine.create(SandboxSpec(limits=limits or Limits())))
        finally:
            await engine.close()

    async def attestation(self, steps: Sequence[Step]) -> str:
        """Return what attestation says of a sandbox without those steps."""
        try:
            async with self.sandbox(steps, attested=True):
                return "passes"
        except Unavailable as error:
            said = error.message.partition("; ")[0]
            return said.replace("the new sandbox is not what it should be: ", "").expandtabs(1)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.name}-{case.attack.__name__}")
async def test_a_defence_that_is_left_out_is_missed(
    case: Case, engine: NamespaceEngine, without: Without
) -> None:
    sandbox = await engine.create(SandboxSpec(limits=case.limits))
    with_it = await case.attack(Guest(sandbox))
    await sandbox.destroy()
    assert not with_it.succeeded
    if len(case.steps) > 1:
        for step in case.steps:
            async with without.sandbox((step,), limits=case.limits) as guest:
                assert not (await case.attack(guest)).succeeded, f"{step.name} alone matters"
    steps = (*case.steps, *case.also)
    async with without.sandbox(steps, limits=case.limits) as guest:
        bare = await case.attack(guest)
    assert bare.succeeded
    said = [await without.attestation((step,)) for step in case.steps]
    for wanted, words in zip(case.noticed, said, strict=True):
        assert wanted in words
    note(case.name, case.attack, with_it, bare, "; ".join(said))


def note(defence: str, attack: Attack | str, with_it: Found, bare: Found, said: str) -> None:
    name = attack if isinstance(attack, str) else attack.__name__.replace("_", " ")
    row = Removal(defence, name, with_it.what, bare.what, said[:100])
    measured.REMOVALS.append(row)


@pytest.mark.parametrize("step", sorted(NEEDED_BY_THE_NEXT), ids=lambda step: step.name.lower())
async def test_without_a_step_that_others_need_there_is_no_sandbox(
    step: Step, guest: Guest, without: Without
) -> None:
    with pytest.raises(Unavailable):
        async with without.sandbox((step,)):
            pass
    said = await without.attestation((step,))
    note(step.name.lower(), "any", Found(False, "-"), Found(False, "no sandbox"), said)


@pytest.mark.parametrize("step", sorted(FAIL_CLOSED), ids=lambda step: step.name.lower())
async def test_without_a_tree_of_its_own_nothing_can_be_written_there(
    step: Step, guest: Guest, without: Without
) -> None:
    said = await without.attestation((step,))
    assert "nothing is mounted on" in said
    async with without.sandbox((step,)) as bare:
        found = await Commands(bare.sandbox).run(
            "for d in /tmp /home/sandbox /dev/shm /dev/pts /workspace;"
            " do touch $d/x || echo no $d; done"
        )
    refused = [line.removeprefix("no ") for line in found.stdout.decode().splitlines()]
    assert {"/dev/pts", said.split()[-1]} <= {*refused, "/dev/pts"}
    note(step.name.lower(), "write there", Found(False, "-"), Found(False, "read-only"), said)


@pytest.mark.parametrize("step", HELD_ELSEWHERE, ids=lambda step: step.name.lower())
async def test_a_step_that_something_else_stands_in_for_is_not_missed(
    step: Step, guest: Guest, without: Without
) -> None:
    async with without.sandbox((step,)) as bare:
        found = await bare.attack("identity")
        assert found["ids"] == [65532] * 6
        assert {int(found["status"][name], 16) for name in ("CapPrm", "CapEff", "CapAmb")} == {0}
        points = [mount["point"] for mount in (await bare.attack("mounts"))["mounts"]]
        assert not [point for point in points if "root" in point]
        assert (await bare.attack("writable_settings"))["opened"] == []
    said = await without.attestation((step,))
    held = Found(False, f"held by {HELD_ELSEWHERE[step]}")
    note(step.name.lower(), "any", Found(False, "-"), held, said)


# --- kernels, which seal themselves ---------------------------------------------------------------


# What attestation sees of a kernel that joins; it has no init of its own to ask for the rest.
SEEN_OF_A_KERNEL = {
    Step.RLIMITS: "limit",
    Step.BOUNDING_SET: "CapBnd",
    Step.CAPABILITIES: "Cap",
    Step.FILTER: "Seccomp",
    **({Step.CGROUP_ENTER: "cgroup", Step.USER_ID: "Uid", Step.GROUP_ID: "Gid"} if ROOT else {}),
}
NOT_SEEN_OF_A_KERNEL: dict[Step, Attack] = {
    Step.LANDLOCK: write_proc,
    Step.SECUREBITS: change_securebits,
}


@pytest.fixture
async def joined(without: Without, trees: Trees) -> AsyncIterator[NamespaceSandbox]:
    """A whole sandbox, which kernels that lack something can join."""
    settings = NamespaceSettings(without.data_dir, binaries=without.binaries, trees=trees)
    engine = NamespaceEngine(settings)
    try:
        yield await engine.create(SandboxSpec(template=PYTHON_TEMPLATE))
    finally:
        await engine.close()


def leave_out_of_kernels(monkeypatch: pytest.MonkeyPatch, step: Step) -> None:
    make_request = boot.spawn_request

    def make_poorer_request(*arguments: Any, **options: Any) -> SpawnRequest:
        request = make_request(*arguments, **options)
        request.omit = 1 << step
        return request

    monkeypatch.setattr(boot, "spawn_request", make_poorer_request)


@pytest.mark.parametrize("step", SEEN_OF_A_KERNEL, ids=lambda step: step.name.lower())
async def test_a_kernel_that_lacks_a_defence_is_refused(
    step: Step, guest: Guest, joined: NamespaceSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_out_of_kernels(monkeypatch, step)
    with pytest.raises(Unavailable, match=SEEN_OF_A_KERNEL[step]) as refusal:
        await joined.fork_kernel()
    said = refusal.value.message.partition(": ")[2].partition("; ")[0].expandtabs(1)
    note(f"kernel: {step.name.lower()}", "any", Found(False, "-"), Found(False, "no kernel"), said)


@pytest.mark.parametrize("step", NOT_SEEN_OF_A_KERNEL, ids=lambda step: step.name.lower())
async def test_a_kernel_that_lacks_what_cannot_be_seen_is_weaker(
    step: Step, guest: Guest, joined: NamespaceSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    attack = NOT_SEEN_OF_A_KERNEL[step]
    attacker = Guest(joined, in_cell)
    with_it = await attack(attacker)
    leave_out_of_kernels(monkeypatch, step)
    without_it = await attack(attacker)
    assert not with_it.succeeded and without_it.succeeded
    note(f"kernel: {step.name.lower()}", attack, with_it, without_it, "passes")


# --- defences that are not steps of the engine ----------------------------------------------------


async def test_an_init_that_can_be_traced_is_read_and_traced(
    guest: Guest, testing_builds: Builds, data_dir: Path
) -> None:
    open_init = Without(testing_builds.make("ATOLL_FAILPOINTS", "ATOLL_DUMPABLE_INIT"), data_dir)
    said = await open_init.attestation(())
    assert said == "init can be traced"
    for attack, also in ((read_init, ()), (trace_init, (Step.FILTER,))):
        with_it = await attack(guest)
        async with open_init.sandbox(also) as bare:
            without_it = await attack(bare)
        assert not with_it.succeeded and without_it.succeeded
        name = " + ".join(["undumpable", *(step.name.lower() for step in also)])
        note(name, attack, with_it, without_it, said)


async def test_a_key_of_the_host_is_found_in_its_keyring(
    guest: Guest, testing_builds: Builds, tmp_path: Path
) -> None:
    async def answer(*steps: Step) -> Found:
        omit = sum(1 << step for step in steps)
        found = await run_host("keyed_host", str(tmp_path), str(testing_builds.failing), str(omit))
        return Found(found["answer"] == "OK", found["answer"])

    if not os.path.exists("/proc/keys"):
        pytest.skip("this kernel has no keyrings")
    with_it = await answer()
    for step in (Step.KEYRING, Step.FILTER):
        assert not (await answer(step)).succeeded
    bare = await answer(Step.KEYRING, Step.FILTER)
    assert not with_it.succeeded and bare.succeeded
    note(
        "keyring + filter",
        "read a key of the host",
        with_it,
        bare,
        "filter; the keyring is not seen",
    )


@pytest.mark.root_only
async def test_without_private_mounts_the_host_s_table_changes(
    guest: Guest, testing_builds: Builds, tmp_path: Path
) -> None:
    async def changes(*steps: Step) -> Found:
        omit = sum(1 << step for step in steps)
        found = await run_host("shared_host", str(tmp_path), str(testing_builds.failing), str(omit))
        return Found(found["new_mounts"] > 0, f"{found['new_mounts']} mounts, {found['outcome']}")

    with_it, bare = await changes(), await changes(Step.JAIL_PRIVATE_MOUNTS)
    assert not with_it.succeeded and bare.succeeded
    note(
        "jail_private_mounts", "mount on the host", with_it, bare, "no sandbox: pivot_root refuses"
    )


@pytest.mark.root_only
async def test_groups_of_the_host_are_dropped_twice(guest: Guest, without: Without) -> None:
    groups = os.getgroups()
    os.setgroups([4242])
    try:
        for step in (Step.GROUPS, Step.JAIL_IDS):
            async with without.sandbox((step,)) as bare:
                assert not (await keep_groups(bare)).succeeded
        steps = (Step.GROUPS, Step.JAIL_IDS)
        async with without.sandbox(steps) as bare:
            kept = await keep_groups(bare)
        said = await without.attestation(steps)
    finally:
        os.setgroups(groups)
    assert kept.succeeded and "the jail is not" in said
    note("groups + jail_ids", keep_groups, await keep_groups(guest), kept, said)


# --- rules of the filter --------------------------------------------------------------------------


async def open_netlink(guest: Guest) -> Found:
    protocols = (await guest.attack("sockets"))["netlink"]
    return Found(bool(set(protocols) - {0}), f"protocols {sorted(set(protocols))[:6]}")


async def type_into_terminal(guest: Guest) -> Found:
    attacker = Guest(guest.sandbox, on_terminal)
    answers = (await attacker.attack("type_into_terminal"))["answers"]
    answer = answers["standard input TIOCSTI 0"]
    # EIO: the kernel is asked, and set not to; other kernels do it.
    return Found(answer in ("OK", "EIO"), answer)


async def change_personality(guest: Guest) -> Found:
    (answer,) = await guest.calls([("personality", [0x0400000])])
    return Found(answer == "OK", answer)


async def bend_init(guest: Guest) -> Found:
    answers = set((await guest.attack("bend_init"))["limits"].values())
    return Found("OK" in answers, " ".join(sorted(answers)))


async def make_immutable(guest: Guest) -> Found:
    answers = set((await guest.attack("make_immutable"))["answers"].values())
    return Found(answers - {"EPERM", "ENOSYS"} != set(), " ".join(sorted(answers)))


async def make_set_id_program(guest: Guest) -> Found:
    line = "cp /bin/sh x; chmod 6755 x 2> /dev/null; stat -c %a x"
    mode = (await guest.entry(guest.sandbox, ("sh", "-c", line))).decode().strip()
    return Found(int(mode, 8) & 0o6000 != 0, f"mode {mode}")


RULES: list[tuple[str, Attack, tuple[Step, ...]]] = [
    ("socket", open_netlink, ()),
    ("ioctl", type_into_terminal, ()),
    ("ioctl", make_immutable, ()),
    ("personality", change_personality, ()),
    ("prlimit64", bend_init, ()),
    ("chmod fchmod fchmodat", make_set_id_program, ()),
    ("clone", make_user_namespace_by_clone, (Step.NO_USER_NAMESPACES,)),
]


@pytest.mark.parametrize(("name", "attack", "also"), RULES, ids=lambda each: str(each)[:20])
async def test_a_rule_of_the_filter_that_is_left_out_is_missed(
    name: str,
    attack: Attack,
    also: tuple[Step, ...],
    guest: Guest,
    without: Without,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with_it = await attack(guest)
    allow(monkeypatch, *name.split())
    async with without.sandbox(also) as bare:
        without_it = await attack(bare)
    assert not with_it.succeeded and without_it.succeeded
    defence = " + ".join([f"rule of {name}", *(step.name.lower() for step in also)])
    note(defence, attack, with_it, without_it, "does not read the list")


def allow(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Let calls through, whatever their arguments."""
    complete = seccomp.verdicts_for
    numbers = {table()[name] for name in names if name in table()}
    monkeypatch.setattr(
        seccomp,
        "verdicts_for",
        lambda machine: complete(machine) | dict.fromkeys(numbers, verdicts.ALLOW),
    )


async def test_every_refused_call_that_is_let_through_is_missed(
    guest: Guest, without: Without, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = sorted(policy.REFUSED & set(table()))
    ids = ("setreuid", "setregid", "setresuid", "setresgid")
    calls: list[Call] = [(name, [1] * 3 if name in ids else [-1] * 6) for name in names]
    calls += [*HANDLES, *MOUNTING, *ESCAPES]
    with_them = await guest.calls(calls)
    allow(monkeypatch, *names)
    async with without.sandbox(()) as bare:
        without_them = await bare.calls(calls)
        said = await without.attestation(())
    assert "io_uring is not refused" in said
    missed = {
        name for (name, _), a, b in zip(calls, with_them, without_them, strict=True) if a != b
    }
    assert set(names) - missed <= REFUSED_TWICE
    found = Found(True, f"{len(missed)} of {len(names)} answer; the rest need a capability")
    note("refused calls", "each of them", Found(False, "EPERM"), found, said)


@pytest.mark.skipif(not INTEL, reason="only x86-64 has other calling conventions")
async def test_other_calling_conventions_come_through_a_filter_that_does_not_look(
    guest: Guest, without: Without, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def attack(attacker: Guest) -> Found:
        answers = (await attacker.program("foreign_calls"))["interrupt"]
        return Found(answers["getpid"] == "OK", answers["getpid"])

    with_it = await attack(guest)
    careless = seccomp.filter_for().replace(
        struct.pack("<HBBI", 0x06, 0, 0, bpf.KILL_PROCESS),
        struct.pack("<HBBI", 0x06, 0, 0, verdicts.ALLOW),
    )
    monkeypatch.setattr(seccomp, "filter_for", lambda machine="": careless)
    async with without.sandbox(()) as bare:
        without_it = await attack(bare)
    if without_it.what == "killed":
        pytest.skip("this kernel takes no 32-bit calls")
    assert not with_it.succeeded and without_it.succeeded
    note("rule of architecture", "32-bit calls", with_it, without_it, "does not read the list")


# --- the tree, and the files ----------------------------------------------------------------------


@pytest.mark.skipif(roots.interpreter_prefix() is None, reason="the interpreter is the system's")
async def test_a_plain_bind_of_the_interpreter_shows_where_it_lies(
    guest: Guest, without: Without, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = Words(interpreter=str(roots.interpreter_prefix()))

    async def attack(attacker: Guest) -> Found:
        hits = (await attacker.attack("leaks", await words.put(attacker)))["hits"]
        return Found(bool(hits), hits[0] if hits else "no hit")

    with_it = await attack(guest)
    complete = mounts.entry
    monkeypatch.setattr(
        mounts,
        "entry",
        lambda op, *rest: complete(PlanOp.BIND if op is PlanOp.OVERLAY else op, *rest),
    )
    async with without.sandbox(()) as bare:
        without_it = await attack(bare)
    assert not with_it.succeeded and without_it.succeeded
    note("overlay", "path of the host", with_it, without_it, "does not read paths")


async def test_a_host_that_opens_files_by_name_is_led_out(guest: Guest, tmp_path: Path) -> None:
    """What the file server inside is for: a careful host that checks a name and then uses it."""
    canary = make_canary(tmp_path)
    line = f"mkdir real; printf inside > real/canary; ln -s {canary.folder} link"
    await Commands(guest.sandbox).run(line, check=True)
    program = await guest.put_program("exchange")
    token = new_token()
    await guest.sandbox.start(Command(("sleep", token)))
    (pid,) = running_with(token)
    folder = Path(f"/proc/{pid}/cwd/real")
    stolen = reads = 0
    async with Commands(guest.sandbox) as commands:
        process = await commands.start((program, "real", "link", "90"))
        with anyio.move_on_after(60):
            while not stolen:
                await anyio.lowlevel.checkpoint()
                stolen += canary.word in careful_read(folder)
                reads += 1
        by_api = 0
        for _ in range(min(reads, 2000)):
            try:
                by_api += canary.word.encode() in await guest.files.read("real/canary")
            except AtollError:
                continue
        await process.stop()
    assert stolen and not by_api
    note(
        "file server inside",
        "exchange folder and link",
        Found(False, f"0 of {min(reads, 2000)} reads"),
        Found(True, f"canary after {reads} reads"),
        "-",
    )


def careful_read(folder: Path) -> str:
    try:
        return "" if folder.is_symlink() else (folder / "canary").read_text()
    except OSError:
        return ""
