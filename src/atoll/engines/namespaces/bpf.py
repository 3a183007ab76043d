"""A small assembler for system-call filters: ranges of call numbers, tests of arguments, verdicts.

libseccomp knows one answer for all that is not listed. Here refused arguments, refused calls and unknown calls
get different ones, arguments are always compared as the 32 bits that the kernel uses, and no library has to be
found and loaded while somebody waits for a sandbox.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from atoll.engines.system_calls.verdicts import Verdict

KILL_PROCESS = 0x80000000

_LOAD_WORD, _AND = 0x20, 0x54
_JUMP, _JUMP_EQUAL, _JUMP_AT_LEAST, _RETURN = 0x05, 0x15, 0x35, 0x06
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16
_MOST_INSTRUCTIONS = 4096
_FARTHEST = 255  # of a conditional jump


@dataclass(frozen=True, slots=True)
class _Instruction:
    code: int
    operand: int
    if_true: str | None = None  # a label; None is the next instruction

    @property
    def is_conditional(self) -> bool:
        """Whether it goes on with the next instruction if its comparison is false."""
        return self.if_true is not None and self.code != _JUMP


def assemble(
    architecture: int, verdicts: Mapping[int, Verdict], unknown: int, *, first_foreign: int | None
) -> bytes:
    """Return the filter: `verdicts` by call number, `unknown` for all others.

    Numbers from `first_foreign` on belong to another calling convention and are unknown, too.
    """
    program = _Program()
    program.add(_LOAD_WORD, _ARCHITECTURE)
    program.add(_JUMP_EQUAL, architecture, "known architecture")
    program.add(_RETURN, KILL_PROCESS)
    program.label("known architecture")
    program.add(_LOAD_WORD, _NUMBER)
    ranges = _ranges(
        {n: v for n, v in verdicts.items() if first_foreign is None or n < first_foreign}, unknown
    )
    _add_search(program, ranges)
    return program.encode()


def _ranges(verdicts: Mapping[int, Verdict], unknown: int) -> list[tuple[int, Verdict]]:
    """Return (first number, verdict) pairs that cover all numbers."""
    ranges: list[tuple[int, Verdict]] = []
    for number in range(max(verdicts) + 2):
        verdict = verdicts.get(number, unknown)
        if not ranges or ranges[-1][1] != verdict:
            ranges.append((number, verdict))
    return ranges


def _add_search(program: _Program, ranges: Sequence[tuple[int, Verdict]]) -> None:
    if len(ranges) == 1:
        _add_verdict(program, ranges[0][1])
        return
    middle = len(ranges) // 2
    upper = program.new_label()
    program.add(_JUMP_AT_LEAST, ranges[middle][0], upper)
    _add_search(program, ranges[:middle])
    program.label(upper)
    _add_search(program, ranges[middle:])


def _add_verdict(program: _Program, verdict: Verdict) -> None:
    if isinstance(verdict, int):
        program.add(_RETURN, verdict)
        return
    for test in verdict.tests:
        program.add(_LOAD_WORD, _ARGUMENTS + 8 * test.index)
        if test.mask != 0xFFFFFFFF:
            program.add(_AND, test.mask)
        matched, after = program.new_label(), program.new_label()
        for value in test.values:
            program.add(_JUMP_EQUAL, value, matched)
        program.add(_JUMP, 0, after)
        program.label(matched)
        if test.and_also is not None:
            index, value = test.and_also
            both = program.new_label()
            program.add(_LOAD_WORD, _ARGUMENTS + 8 * index)
            program.add(_JUMP_EQUAL, value, both)
            program.add(_JUMP, 0, after)
            program.label(both)
        program.add(_RETURN, test.then)
        program.label(after)
    program.add(_RETURN, verdict.otherwise)


class _Program:
    """Instructions with labels. Conditional jumps that lead too far go by way of an unconditional one."""

    def __init__(self) -> None:
        self._instructions: list[_Instruction] = []
        self._labels: dict[str, int] = {}
        self._named = 0

    def new_label(self) -> str:
        self._named += 1
        return f"label {self._named}"

    def label(self, name: str) -> None:
        self._labels[name] = len(self._instructions)

    def add(self, code: int, operand: int, if_true: str | None = None) -> None:
        self._instructions.append(_Instruction(code, operand, if_true))

    def encode(self) -> bytes:
        places = self._places()
        if places[-1] > _MOST_INSTRUCTIONS:
            raise ValueError(
                f"filter has {places[-1]} instructions, the most is {_MOST_INSTRUCTIONS}"
            )
        return b"".join(
            self._encode(each, places, at) for at, each in enumerate(self._instructions)
        )

    def _places(self) -> list[int]:
        """Return where each instruction goes, and the end; every detour moves what is behind it."""
        far: set[int] = set()
        while True:
            places = [0]
            for at in range(len(self._instructions)):
                places.append(places[-1] + (2 if at in far else 1))
            too_far = {
                at
                for at, each in enumerate(self._instructions)
                if each.is_conditional and self._distance(each, places, at) > _FARTHEST
            }
            if too_far <= far:
                return places
            far |= too_far

    def _distance(self, instruction: _Instruction, places: list[int], at: int) -> int:
        assert instruction.if_true is not None
        return places[self._labels[instruction.if_true]] - places[at] - 1

    def _encode(self, instruction: _Instruction, places: list[int], at: int) -> bytes:
        if instruction.if_true is None:
            return _pack(instruction.code, instruction.operand)
        distance = self._distance(instruction, places, at)
        if not instruction.is_conditional:
            return _pack(_JUMP, distance)
        if places[at + 1] - places[at] == 1:
            return _pack(instruction.code, instruction.operand, distance)
        detour = _pack(_JUMP, distance - 1)
        return _pack(instruction.code, instruction.operand, 0, 1) + detour


def _pack(code: int, operand: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("<HBBI", code, if_true, if_false, operand)
