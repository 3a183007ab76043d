"""Requests that must have their effect only once, however often they are sent."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import anyio

from atoll.errors import Conflict, InvalidRequest
from atoll.node.records import IdempotencyRecord, Records

_KEY = re.compile(r"[\x21-\x7e]{1,255}")


@dataclass(frozen=True, slots=True)
class KeyedRequest:
    """A request under a key that its caller chose; `content` is all that makes it this request."""

    owner: str
    key: str
    method: str
    content: str

    def __post_init__(self) -> None:
        if not _KEY.fullmatch(self.key):
            raise InvalidRequest(
                f"idempotency key {self.key[:80]!r} is not 1 to 255 printable characters without spaces"
            )

    @property
    def fingerprint(self) -> str:
        """What tells this request from all others."""
        return hashlib.sha256(self.content.encode("utf-8", "surrogatepass")).hexdigest()

    def intent(self, intended: str) -> IdempotencyRecord:
        """Return what is written down before anything happens."""
        return IdempotencyRecord(
            self.owner, self.key, self.method, self.fingerprint, time.time(), intended
        )


@dataclass(frozen=True, slots=True)
class Answer:
    """The id of what a request made, and whether it had been made before."""

    id: str
    is_replay: bool = False


@dataclass(slots=True)
class _Turn:
    lock: anyio.Lock
    users: int = 0


class Idempotency:
    """Remembers which request a key stands for; of several at the same time one is carried out."""

    def __init__(self, records: Records) -> None:
        self._records = records
        self._turns: dict[tuple[str, str], _Turn] = {}

    async def once(
        self,
        request: KeyedRequest,
        intended: str,
        carry_out: Callable[[str], Awaitable[object]],
        happened: Callable[[str], Awaitable[bool]],
    ) -> Answer:
        """Carry a request out unless that was done before; a failure leaves the key free.

        Args:
            request: what is asked for.
            intended: the id of what it will make.
            carry_out: does it, under that id.
            happened: whether something of an id was made; asked because a node may have ended in between.

        Raises:
            Conflict: the key stands for another request.
        """
        async with self._turn(request):
            known = await self._records.find_key(request.owner, request.key)
            if known is not None:
                _check_same(known, request)
                if known.answer is not None and await happened(known.answer):
                    return Answer(known.answer, is_replay=True)
            self._records.remember(request.intent(intended))
            try:
                await carry_out(intended)
            except BaseException:
                self._records.forget_key(request.owner, request.key)
                raise
            return Answer(intended)

    @asynccontextmanager
    async def _turn(self, request: KeyedRequest) -> AsyncIterator[None]:
        place = (request.owner, request.key)
        turn = self._turns.setdefault(place, _Turn(anyio.Lock()))
        turn.users += 1
        try:
            async with turn.lock:
                yield
        finally:
            turn.users -= 1
            if not turn.users:
                del self._turns[place]


def _check_same(known: IdempotencyRecord, request: KeyedRequest) -> None:
    if (known.method, known.fingerprint) != (request.method, request.fingerprint):
        raise Conflict(
            f"key {known.key!r} stands for another request; use a new key for each request",
            key=known.key,
        )
