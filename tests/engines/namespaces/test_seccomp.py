"""The filter answers every call as its list says, on both machines, whatever is in the upper halves."""

from __future__ import annotations

import errno
import socket

import pyseccomp
import pytest

from atoll.engines.namespaces import seccomp, wire
from atoll.engines.namespaces.bpf import KILL_PROCESS
from atoll.engines.system_calls import numbers, policy
from atoll.engines.system_calls.verdicts import ALLOW, Verdict, errno_verdict
from atoll.errors import Unsupported
from tests.engines.namespaces.bpf_machine import verdict

MACHINES = {"x86_64": numbers.X86_64, "aarch64": numbers.ARM64}
AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
EPERM, ENOSYS = errno_verdict(errno.EPERM), errno_verdict(errno.ENOSYS)
HIGH = 1 << 32
NEW_NAMESPACES = (
    0x00020000,
    0x02000000,
    0x04000000,
    0x08000000,
    0x10000000,
    0x20000000,
    0x40000000,
)


@pytest.fixture(params=sorted(MACHINES))
def machine(request: pytest.FixtureRequest) -> str:
    """Each machine there is a list for."""
    return str(request.param)


class Filter:
    """One machine's filter, asked by the names of calls."""

    def __init__(self, machine: str) -> None:
        self.program = seccomp.filter_for(machine)
        self.table = MACHINES[machine]
        self.audit = AUDIT[machine]

    def ask(self, name: str, *arguments: int) -> int:
        """Return the verdict on a call."""
        return verdict(self.program, self.audit, self.table[name], arguments)


@pytest.fixture
def rules(machine: str) -> Filter:
    """The filter of a machine."""
    return Filter(machine)


def test_every_listed_call_is_allowed(rules: Filter) -> None:
    for name in policy.ALLOWED & set(rules.table):
        assert rules.ask(name) == ALLOW, name


def test_every_refused_call_answers_eperm(rules: Filter) -> None:
    for name in policy.REFUSED & set(rules.table):
        assert rules.ask(name, 0, 0, 0) == EPERM, name


def test_nothing_is_both_allowed_and_refused() -> None:
    assert not policy.ALLOWED & policy.REFUSED


def test_every_listed_name_exists_somewhere() -> None:
    known = set(numbers.X86_64) | set(numbers.ARM64)
    assert known >= policy.ALLOWED | policy.REFUSED


def test_every_other_number_is_unknown(machine: str, rules: Filter) -> None:
    known = seccomp.verdicts_for(machine)
    for number in [n for n in range(2000) if n not in known] + [2**31, 2**32 - 1]:
        assert verdict(rules.program, rules.audit, number) == ENOSYS, number


def test_few_calls_can_be_reached_at_all(machine: str) -> None:
    reachable = [v for v in seccomp.verdicts_for(machine).values() if _can_allow(v)]
    assert len(reachable) <= 215


def _can_allow(verdict: Verdict) -> bool:
    if isinstance(verdict, int):
        return verdict == ALLOW
    return ALLOW in (verdict.otherwise, *(test.then for test in verdict.tests))


@pytest.mark.parametrize("upper", [0, HIGH])
def test_no_id_but_the_own_one_can_be_taken(rules: Filter, upper: int) -> None:
    own, unchanged, done = 65532 | upper, 0xFFFFFFFF | upper, errno_verdict(0)
    for name in ("setuid", "setgid"):
        assert rules.ask(name, own) == done
        assert rules.ask(name, 0 | upper) == rules.ask(name, 1 | upper) == EPERM
    for name in ("setreuid", "setregid", "setresuid", "setresgid"):
        for first, second in ((unchanged, own), (own, own), (own, unchanged)):
            assert rules.ask(name, first, second, unchanged) == done
        for first, second in ((0, own), (own, 0), (0, 0), (unchanged, 0), (0, unchanged)):
            assert rules.ask(name, first | upper, second | upper, unchanged) == EPERM
    assert rules.ask("setgroups", 0, 0) == EPERM


def test_files_have_no_attributes_to_set(rules: Filter) -> None:
    for name in ("setxattr", "lsetxattr", "fsetxattr", "removexattr", "fremovexattr"):
        assert rules.ask(name) == errno_verdict(errno.EOPNOTSUPP)


def test_another_architecture_is_killed(rules: Filter) -> None:
    for audit in (0x40000003, 0xC00000B7 ^ 0xC000003E ^ rules.audit, 0):
        assert verdict(rules.program, audit, 0) == KILL_PROCESS


def test_numbers_of_the_x32_convention_are_unknown() -> None:
    program = seccomp.filter_for("x86_64")
    for number in (0, 1, 39, 59, 512, 520):
        assert verdict(program, AUDIT["x86_64"], 0x40000000 | number) == ENOSYS


def test_the_probe_is_answered_by_this_filter_alone(rules: Filter) -> None:
    answer = verdict(rules.program, rules.audit, wire.PROBE_CALL)
    assert answer == errno_verdict(wire.PROBE_ERRNO)


@pytest.mark.parametrize("upper", [0, HIGH, HIGH << 3])
def test_cloning_into_namespaces_is_refused_whatever_the_upper_half(
    rules: Filter, upper: int
) -> None:
    for flag in NEW_NAMESPACES:
        assert rules.ask("clone", flag | upper | 17) == EPERM
    assert rules.ask("clone", 0x003D0F00 | upper) == ALLOW  # a thread
    assert rules.ask("clone3") == ENOSYS


@pytest.mark.parametrize("upper", [0, HIGH])
def test_sockets_of_four_families_only(rules: Filter, upper: int) -> None:
    refused = errno_verdict(errno.EAFNOSUPPORT)
    for family in range(64):
        allowed = family in (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6)
        assert rules.ask("socket", family | upper, 1, 5) == (ALLOW if allowed else refused), family
    assert rules.ask("socket", socket.AF_NETLINK | upper, 3, 0 | upper) == ALLOW
    assert rules.ask("socket", socket.AF_NETLINK | upper, 3, 12 | upper) == refused
    assert rules.ask("socketpair", socket.AF_UNIX | upper) == ALLOW
    assert rules.ask("socketpair", socket.AF_INET | upper) == refused


@pytest.mark.parametrize("upper", [0, HIGH])
def test_dangerous_requests_to_devices_are_refused(rules: Filter, upper: int) -> None:
    for request in (0x5412, 0x541C, 0x541D, 0x5423, 0x40086602, 0x40046602, 0x401C5820):
        assert rules.ask("ioctl", 0, request | upper) == EPERM
    for request in (0x5401, 0x5413, 0x541B, 0x5421):
        assert rules.ask("ioctl", 0, request | upper) == ALLOW


def test_only_pipes_sockets_and_files_can_be_made(rules: Filter) -> None:
    for mode in (0o010644, 0o140600, 0o100600, 0o600):
        assert rules.ask("mknodat", 0, 0, mode) == ALLOW
    for mode in (0o020600, 0o060600):
        assert rules.ask("mknodat", 0, 0, mode) == EPERM
        assert rules.ask("mknodat", 0, 0, mode | HIGH) == EPERM


def test_only_the_ordinary_personality(rules: Filter) -> None:
    assert rules.ask("personality", 0) == rules.ask("personality", 0xFFFFFFFF) == ALLOW
    for value in (0x0040000, 0x0400000, 8, 0x0040000 | HIGH):
        assert rules.ask("personality", value) == EPERM


def test_the_numbers_are_those_that_libseccomp_knows(machine: str) -> None:
    arch = {"x86_64": pyseccomp.Arch.X86_64, "aarch64": pyseccomp.Arch.AARCH64}[machine]
    table, compared = MACHINES[machine], 0
    for name, number in table.items():
        known = pyseccomp.resolve_syscall(arch, name)
        if known >= 0:  # newer ones it does not know
            compared += 1
            assert known == number, name
    assert compared > 0.9 * len(table)


def test_a_machine_without_a_list_is_refused() -> None:
    with pytest.raises(Unsupported, match="riscv64"):
        seccomp.filter_for("riscv64")
