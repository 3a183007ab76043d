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
UserId = NewType("UserId", str)
TokenId = NewType("TokenId", str)

_ALPHABET = "abcdefghijklmnopqrstuvwxyz0123456789"
_LENGTH = 26
# A token's id is no secret: it only has to be another one for each.
_TOKEN_ID_LENGTH = 12
_RANDOM_BYTES = 40
# Which character a byte stands for, as many bytes for each.
_CHARACTERS = bytes(ord(_ALPHABET[byte % len(_ALPHABET)]) for byte in range(256))
_LEFT_OUT = bytes(range(256 - 256 % len(_ALPHABET), 256))
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


def new_user_id() -> UserId:
    """Return a fresh user id."""
    return UserId(_random_id())


def new_token_id() -> TokenId:
    """Return a fresh token id."""
    return TokenId(_random_id(_TOKEN_ID_LENGTH))


def parse_sandbox_id(text: str) -> SandboxId:
    """Return `text` as a sandbox id, or raise `InvalidRequest`."""
    if not isinstance(text, str) or not _ID.fullmatch(text):
        raise InvalidRequest(
            f"sandbox id {str(text)[:80]!r} is not 26 characters of a-z and 0-9; leave it out to get a new one"
        )
    return SandboxId(text)


def is_id(text: str) -> bool:
    """Whether this could be the id of something that was made here."""
    return isinstance(text, str) and _ID.fullmatch(text) is not None


def _random_id(length: int = _LENGTH) -> str:
    characters = b""
    while len(characters) < length:
        # Those bytes that would favour some characters are left out, and seldom more of them than there are too many.
        characters = os.urandom(_RANDOM_BYTES).translate(_CHARACTERS, _LEFT_OUT)
    return characters[:length].decode()
