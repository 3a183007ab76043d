"""Requests that must have their effect only once, however often they are sent."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

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

    def intent(self, answer: str | None) -> IdempotencyRecord:
        """Return what is written down before anything happens."""
        fingerprint = hashlib.sha256(self.content.encode("utf-8", "surrogatepass")).hexdigest()
        return IdempotencyRecord(
            self.owner, self.key, self.method, fingerprint, time.time(), answer
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
        carry_out: Callable[[], Awaitable[str]],
        *,
        intended: str | None = None,
        exists: Callable[[str], Awaitable[bool]] | None = None,
    ) -> Answer:
        """Carry a request out unless that was done before; a failure leaves the key free.

        Args:
            request: what is asked for.
            carry_out: does it, and returns the id of what it made.
            intended: the id that it will have, if that is known before.
            exists: whether something of the intended id was made; asked when a node ended in between.

        Raises:
            Conflict: the key stands for another request, or nobody can say whether this one had its effect.
        """
        async with self._turn(request):
            known = await self._records.find_key(request.owner, request.key)
            if known is not None:
                _check_same(known, request.intent(known.answer))
                made = await self._find_made(known, exists)
                if made is not None:
                    return Answer(made, is_replay=True)
            return Answer(await self._carry_out(request, carry_out, intended))

    async def _carry_out(
        self, request: KeyedRequest, carry_out: Callable[[], Awaitable[str]], intended: str | None
    ) -> str:
        intent = request.intent(intended)
        self._records.remember(intent)
        try:
            made = await carry_out()
        except BaseException:
            self._records.forget_key(request.owner, request.key)
            raise
        if made != intended:
            self._records.remember(replace(intent, answer=made))
        return made

    async def _find_made(
        self, known: IdempotencyRecord, exists: Callable[[str], Awaitable[bool]] | None
    ) -> str | None:
        if known.answer is None:
            raise Conflict(
                f"the node ended while it carried out the request of key {known.key!r}, and nobody can say"
                " whether it took effect; list what there is, then use a new key",
                key=known.key,
            )
        if exists is not None and not await exists(known.answer):
            return None
        return known.answer

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


def _check_same(known: IdempotencyRecord, asked: IdempotencyRecord) -> None:
    if (known.method, known.fingerprint) != (asked.method, asked.fingerprint):
        raise Conflict(
            f"key {known.key!r} stands for another request; use a new key for each request",
            key=known.key,
        )
