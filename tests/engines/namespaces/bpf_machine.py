"""Runs filter programs as the kernel would, so that every call of every machine can be asked."""

from __future__ import annotations

import struct
from collections.abc import Sequence


def verdict(program: bytes, architecture: int, number: int, arguments: Sequence[int] = ()) -> int:
    """Return what the filter answers to a call."""
    padded = [*arguments, 0, 0, 0, 0, 0, 0][:6]
    data = struct.pack(
        "<IIQ6Q", number, architecture, 0, *(each & (1 << 64) - 1 for each in padded)
    )
    instructions = list(struct.iter_unpack("<HBBI", program))
    accumulator, at = 0, 0
    while True:
        code, true, false, operand = instructions[at]
        at += 1
        match code:
            case 0x20:
                (accumulator,) = struct.unpack_from("<I", data, operand)
            case 0x54:
                accumulator &= operand
            case 0x05:
                at += operand
            case 0x15:
                at += true if accumulator == operand else false
            case 0x35:
                at += true if accumulator >= operand else false
            case 0x06:
                return int(operand)
            case _:
                raise AssertionError(f"unknown instruction {code:#x}")
