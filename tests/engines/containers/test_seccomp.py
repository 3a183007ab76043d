"""A profile answers as the list does, whatever the arguments are."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from atoll.engines.containers.seccomp import gvisor_profile, make_profile, outside, own_profile
from atoll.engines.system_calls import verdicts
from atoll.engines.system_calls.numbers import ARM64, X86_64
from atoll.engines.system_calls.policy import ALLOWED, BY_ARGUMENT, REFUSED, UNKNOWN
from atoll.engines.system_calls.verdicts import ALLOW, Arguments

WORDS = st.one_of(
    st.integers(0, 2**32 - 1),
    st.sampled_from([0, 1, 2, 10, 16, 17, 0x5412, 0x541D, 0x40086602, 2**32 - 1, 0o4755, 0o644]),
    st.integers(0, 31).map(lambda bit: 1 << bit),
)
# What is above the 32 bits that the kernel looks at must change nothing.
NUMBERS = st.tuples(WORDS, st.sampled_from([0, 1 << 32, 0xFFFFFFFF << 32])).map(sum)


def expected(verdict: Arguments, arguments: list[int]) -> int:
    """Return what the list says."""
    low = [each & 0xFFFFFFFF for each in arguments]
    for test in verdict.tests:
        if low[test.index] & test.mask in test.values and (
            test.and_also is None or low[test.and_also[0]] == test.and_also[1]
        ):
            return test.then
    return verdict.otherwise


def answers(profile: Mapping[str, Any], name: str, arguments: list[int]) -> list[int]:
    """Return the answers of all rules of a profile that fit."""
    found = []
    for rule in profile["syscalls"]:
        fits = all(
            arguments[each["index"]] & each["value"] == each["valueTwo"]
            for each in rule.get("args", [])
        )
        if name in rule["names"] and fits:
            allowed = rule["action"] == "SCMP_ACT_ALLOW"
            found.append(ALLOW if allowed else 0x00050000 | rule["errnoRet"])
    return found


@given(
    st.sampled_from(sorted(n for n, v in BY_ARGUMENT.items() if isinstance(v, Arguments))),
    st.lists(NUMBERS, min_size=6, max_size=6),
)
def test_just_one_rule_fits_and_it_is_the_lists(name: str, arguments: list[int]) -> None:
    verdict = BY_ARGUMENT[name]
    assert isinstance(verdict, Arguments)
    assert answers(make_profile({name: verdict}), name, arguments) == [expected(verdict, arguments)]


@given(st.sets(st.integers(0, 15), min_size=1), st.integers(0, 255))
def test_what_is_outside_is_all_else(values: set[int], number: int) -> None:
    fitting = [pair for pair in outside(values, 0x0F) if number & pair[0] == pair[1]]
    assert len(fitting) == (number & 0x0F not in values)


def test_a_second_argument_is_looked_at_only_with_its_first() -> None:
    verdict = Arguments((verdicts.Test(0, (16,), ALLOW, and_also=(2, 0)),), 0x00050061)
    profile = make_profile({"socket": verdict})
    assert answers(profile, "socket", [16, 7, 0]) == [ALLOW]
    assert answers(profile, "socket", [16, 7, 9]) == [0x00050061]
    assert answers(profile, "socket", [2, 7, 0]) == [0x00050061]


def test_every_listed_call_has_its_place() -> None:
    for text in (own_profile(), gvisor_profile()):
        profile = json.loads(text)
        named = {name for rule in profile["syscalls"] for name in rule["names"]}
        assert named == ALLOWED | REFUSED | set(BY_ARGUMENT) | set(X86_64) | set(ARM64)


def test_what_nobody_knows_is_unknown() -> None:
    assert json.loads(own_profile())["defaultErrnoRet"] == UNKNOWN & 0xFFFF
    assert json.loads(gvisor_profile())["defaultAction"] == "SCMP_ACT_TRACE"


def test_gvisor_refuses_what_no_argument_makes_good() -> None:
    profile = json.loads(gvisor_profile())
    for name in sorted(REFUSED - set(BY_ARGUMENT)):
        assert ALLOW not in answers(profile, name, [0] * 6), name
    assert answers(profile, "clone", [0x10000000, 0, 0, 0, 0, 0]) != [ALLOW]
    assert len(profile["syscalls"]) < 20
