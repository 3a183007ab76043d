"""What a conversation with a kernel needs of whoever drives it."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

from atoll.node.elbow_room import ElbowRoom


@dataclass(frozen=True, slots=True)
class Ready:
    """A descriptor has to be ready, or the deadline (of the monotonic clock) to pass."""

    descriptor: int
    deadline: float | None
    to_write: bool = False


@dataclass(frozen=True, slots=True)
class Asked:
    """The kernel is at work on something: a moment for others."""

    # Where the answer may come in less time than it takes to fall asleep and to wake up; if not, never mind.
    soon: int | None
    room: ElbowRoom  # for whoever looks there


@dataclass(frozen=True, slots=True)
class Interrupted:
    """The cell has to be interrupted."""


@dataclass(frozen=True, slots=True)
class Insisted:
    """The cell has to be interrupted once more: it did not heed that."""


@dataclass(frozen=True, slots=True)
class Killed:
    """The kernel has to be killed."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The code asks for a line of input; None is sent back if nobody answers."""

    prompt: str
    password: bool


Need = Ready | Asked | Interrupted | Insisted | Killed | Answer
Needs = Generator[Need, str | None, None]
