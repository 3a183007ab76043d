"""The list of system calls as the profile that container engines take: JSON, by names.

A profile has one answer for all that no rule fits, and no "else" within a call: rules whose conditions overlap
contradict each other, and one without a condition does away with all others of its call. So the numbers that no test
of a call names are told as rules of their own, by the bits in which they differ.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from atoll.engines.system_calls.numbers import ARM64, X86_64
from atoll.engines.system_calls.policy import ALLOWED, BY_ARGUMENT, DENIED, REFUSED, UNKNOWN
from atoll.engines.system_calls.verdicts import ALLOW, Arguments, Verdict

# The kernel itself lets nobody without capabilities have any other id, and here the id is not always the same.
_BY_THE_KERNEL = frozenset("setuid setgid setreuid setregid setresuid setresgid".split())
_ALL_BITS = 0xFFFFFFFF
_ERRNO_BITS = 0xFFFF


Action = Mapping[str, Any]
_UNKNOWN: Action = {"action": "SCMP_ACT_ERRNO", "errnoRet": UNKNOWN & _ERRNO_BITS}


class Condition(NamedTuple):
    """That argument, masked, has that value."""

    argument: int
    mask: int
    value: int


@cache
def own_profile() -> str:
    """Return the profile of the list that all engines share."""
    return _write(_verdicts() | {n: v for n, v in BY_ARGUMENT.items() if n not in _BY_THE_KERNEL})


@cache
def gvisor_profile() -> str:
    """Return a profile that is small enough for gVisor, which makes a longer program of one.

    Its own kernel sees to what arguments decide: it has no devices, families and set-id programs of the host's.
    It knows one error only, so calls that are unknown are left to a tracer, which never is there.
    """
    by_argument = {name: ALLOW for name, each in BY_ARGUMENT.items() if isinstance(each, Arguments)}
    whole = {name: each for name, each in BY_ARGUMENT.items() if isinstance(each, int)}
    verdicts = {**_verdicts(), **by_argument, **whole, "clone": BY_ARGUMENT["clone"]}
    return _write(verdicts, {"action": "SCMP_ACT_TRACE"})


def _verdicts() -> dict[str, Verdict]:
    """Return what becomes of calls whatever their arguments are."""
    # Older engines do not pass on which error stands for "unknown"; so calls that exist are told one by one.
    verdicts: dict[str, Verdict] = dict.fromkeys({**X86_64, **ARM64}, UNKNOWN)
    verdicts |= dict.fromkeys(REFUSED, DENIED)
    return verdicts | dict.fromkeys(ALLOWED | _BY_THE_KERNEL, ALLOW)


def _write(verdicts: Mapping[str, Verdict], unknown: Action = _UNKNOWN) -> str:
    # Always the same text, so that it can be compared with what an engine says it has.
    return json.dumps(make_profile(verdicts, unknown), sort_keys=True, separators=(",", ":"))


def make_profile(verdicts: Mapping[str, Verdict], unknown: Action = _UNKNOWN) -> dict[str, Any]:
    """Return a profile that answers each call by its verdict, and all others as unknown."""
    plain: dict[int, list[str]] = {}
    rules: list[dict[str, Any]] = []
    for name, verdict in sorted(verdicts.items()):
        if isinstance(verdict, int):
            plain.setdefault(verdict, []).append(name)
        else:
            rules += [_rule([name], then, conditions) for then, conditions in _decide(verdict)]
    whole = [
        {**_rule(names, verdict), **(unknown if verdict == UNKNOWN else {})}
        for verdict, names in sorted(plain.items())
    ]
    default = {"defaultAction": unknown["action"]}
    if "errnoRet" in unknown:
        default["defaultErrnoRet"] = unknown["errnoRet"]
    return {**default, "syscalls": whole + rules}


def _rule(
    names: Sequence[str], verdict: int, conditions: Sequence[Condition] = ()
) -> dict[str, Any]:
    arguments = [
        {
            "index": each.argument,
            "value": each.mask,
            "valueTwo": each.value,
            "op": "SCMP_CMP_MASKED_EQ",
        }
        for each in conditions
    ]
    return {"names": list(names), **_action(verdict), **({"args": arguments} if arguments else {})}


def _action(verdict: int) -> dict[str, Any]:
    if verdict == ALLOW:
        return {"action": "SCMP_ACT_ALLOW"}
    return {"action": "SCMP_ACT_ERRNO", "errnoRet": verdict & _ERRNO_BITS}


def _decide(verdict: Arguments) -> Iterator[tuple[int, Sequence[Condition]]]:
    """Yield what follows from which arguments; no two conditions fit the same call, and together they fit all."""
    index, mask = verdict.tests[0].index, verdict.tests[0].mask
    second: dict[int, dict[int, int]] = {}
    other = 0
    for test in verdict.tests:
        assert (test.index, test.mask) == (index, mask), "tests of one call look at one argument"
        for value in test.values:
            if test.and_also is None:
                yield test.then, [Condition(index, mask, value)]
            else:
                other, wanted = test.and_also
                second.setdefault(value, {})[wanted] = test.then
    for value, thens in second.items():
        first = Condition(index, mask, value)
        for wanted, then in thens.items():
            yield then, [first, Condition(other, _ALL_BITS, wanted)]
        for rest in outside(set(thens), _ALL_BITS):
            yield verdict.otherwise, [first, Condition(other, *rest)]
    named = {value for test in verdict.tests for value in test.values}
    for rest in outside(named, mask):
        yield verdict.otherwise, [Condition(index, *rest)]


def outside(values: set[int], mask: int) -> Iterator[tuple[int, int]]:
    """Yield (mask, value) pairs that fit just those numbers whose masked bits are none of `values`, each one once."""
    bits = [1 << place for place in reversed(range(32)) if mask >> place & 1]
    return _outside(values, bits, 0, 0)


def _outside(
    values: set[int], bits: Sequence[int], mask: int, value: int
) -> Iterator[tuple[int, int]]:
    if not values:
        yield mask, value
    elif bits:
        bit = bits[0]
        for side in (0, bit):
            within = {each for each in values if each & bit == side}
            yield from _outside(within, bits[1:], mask | bit, value | side)
