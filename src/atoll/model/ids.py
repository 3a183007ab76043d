"""Ids: 26 characters of [a-z0-9], so that `<port>-<id>` fits a DNS label."""

from __future__ import annotations

import os
import re
from typing import NewType

from atoll.errors import InvalidRequest

SandboxId = NewType("SandboxId", str)
ProcessId = NewType("ProcessId", str)
KernelId = NewType("KernelId", str)
ExecutionId = NewType("ExecutionId", str)
WorkspaceId = NewType("WorkspaceId", str)

_ALPHABET = "abcdefghijklmnopqrstuvwxyz0123456789"
_LENGTH = 26
_RANDOM_BYTES = 24
_ID = re.compile(r"[a-z0-9]{26}")


def new_sandbox_id() -> SandboxId:
    """Return a fresh sandbox id of about 134 random bits."""
    return SandboxId(_random_id())


def new_process_id() -> ProcessId:
    """Return a fresh process id."""
    return ProcessId(_random_id())


def first_kernel_id(sandbox_id: SandboxId) -> ProcessId:
    """Return the process id of the kernel that is made together with a sandbox: known before either is there."""
    return ProcessId(sandbox_id)


def new_kernel_id() -> KernelId:
    """Return a fresh kernel id."""
    return KernelId(_random_id())


def new_execution_id() -> ExecutionId:
    """Return a fresh execution id."""
    return ExecutionId(_random_id())


def parse_sandbox_id(text: str) -> SandboxId:
    """Return `text` as a sandbox id, or raise `InvalidRequest`."""
    if not isinstance(text, str) or not _ID.fullmatch(text):
        raise InvalidRequest(
            f"sandbox id {str(text)[:80]!r} is not 26 characters of a-z and 0-9; leave it out to get a new one"
        )
    return SandboxId(text)


def _random_id() -> str:
    # A remainder of so many more bits than are needed favours no character that anybody could notice.
    number = int.from_bytes(os.urandom(_RANDOM_BYTES))
    characters = []
    for _ in range(_LENGTH):
        number, place = divmod(number, len(_ALPHABET))
        characters.append(_ALPHABET[place])
    return "".join(characters)
