"""What becomes of a system call: it is allowed, answered with an error, or judged by its arguments.

A verdict is the number that the kernel's filters return. Arguments are always compared as the 32 bits that the
kernel uses.
"""

from __future__ import annotations

from dataclasses import dataclass

ALLOW = 0x7FFF0000
_ERRNO = 0x00050000


def errno_verdict(errno: int) -> int:
    """Return the verdict that answers a call with `errno`."""
    return _ERRNO | errno


@dataclass(frozen=True, slots=True)
class Test:
    """If argument `index`, masked, equals one of `values`, the verdict is `then`.

    With `and_also`, another argument has to have that value, too.
    """

    index: int
    values: tuple[int, ...]
    then: int
    mask: int = 0xFFFFFFFF
    and_also: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Arguments:
    """Tests in order; the first that fits decides, else `otherwise` does."""

    tests: tuple[Test, ...]
    otherwise: int


Verdict = int | Arguments
