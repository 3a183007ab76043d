"""The filter that the kernel gets: the list of system calls, by their numbers on a machine, as a program."""

from __future__ import annotations

import platform
from types import MappingProxyType

from atoll.engines.namespaces import wire
from atoll.engines.namespaces.bpf import assemble
from atoll.engines.system_calls import numbers
from atoll.engines.system_calls.policy import ALLOWED, BY_ARGUMENT, DENIED, REFUSED, UNKNOWN
from atoll.engines.system_calls.verdicts import ALLOW, Verdict, errno_verdict
from atoll.errors import Unsupported

_AUDIT = MappingProxyType({"x86_64": 0xC000003E, "aarch64": 0xC00000B7})
_TABLES = MappingProxyType({"x86_64": numbers.X86_64, "aarch64": numbers.ARM64})
_X32 = 0x40000000


def filter_for(machine: str = "") -> bytes:
    """Return the filter program for a machine (`platform.machine()`), this one by default."""
    machine = machine or platform.machine()
    if machine not in _TABLES:
        raise Unsupported(
            f"there is no system-call list for {machine}; x86_64 and aarch64 are known"
        )
    return assemble(_AUDIT[machine], verdicts_for(machine), UNKNOWN, first_foreign=_X32)


def verdicts_for(machine: str) -> dict[int, Verdict]:
    """Return the verdict for each known call number of a machine."""
    table = _TABLES[machine]
    verdicts: dict[int, Verdict] = {table[name]: DENIED for name in REFUSED if name in table}
    verdicts |= {table[name]: ALLOW for name in ALLOWED if name in table}
    verdicts |= {table[name]: verdict for name, verdict in BY_ARGUMENT.items() if name in table}
    # Only this filter answers so: a sandbox shows by it that it is the one in force.
    verdicts[wire.PROBE_CALL] = errno_verdict(wire.PROBE_ERRNO)
    return verdicts
