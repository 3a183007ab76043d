"""Requests that must have their effect only once, however often they are sent."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import anyio

from atoll.errors import Conflict, InvalidRequest
from atoll.node.records import IdempotencyRecord, Records

_KEY = re.compile(r"[\x21-\x7e]{1,255}")
_MOST_SEEN = 10_000


@dataclass(frozen=True, slots=True)
class KeyedRequest:
    """A request under a key that its caller chose; `content` is all that makes it this request.

    A key means something to its `holder` alone: to others it is free.
    """

    holder: str
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
            self.holder, self.key, self.method, self.fingerprint, time.time(), intended
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
        self._seen: dict[tuple[str, str], None] = {}  # the last keys of this node, the oldest first

    async def once(
        self,
        request: KeyedRequest,
        intended: str,
        carry_out: Callable[[IdempotencyRecord], Awaitable[object]],
        happened: Callable[[str], Awaitable[bool]],
        *,
        is_new: bool = False,
        keeps_key: bool = False,
    ) -> Answer:
        """Carry a request out unless that was done before; a failure leaves the key free.

        Args:
            request: what is asked for.
            intended: the id of what it will make.
            carry_out: does it, under the id that it finds as the key's answer.
            happened: whether something of an id was made; asked because a node may have ended in between.
            is_new: whether its caller never sent it before, on a connection that ends with this node: then only what came
                here can be the same, and records, which take longer, need not be looked at.
            keeps_key: whether `carry_out` writes the key down itself, together with what it is about to make.

        Raises:
            Conflict: the key stands for another request.
        """
        place = (request.holder, request.key)
        turn = self._turns.setdefault(place, _Turn(anyio.Lock(fast_acquire=True)))
        turn.users += 1
        try:
            async with turn.lock:
                earlier = await self._find_earlier(request, happened, is_new)
                if earlier is None:
                    intent = request.intent(intended)
                    if not keeps_key:
                        self._records.remember(intent)
                    await self._carry_out(intent, carry_out)
                return earlier or Answer(intended)
        finally:
            turn.users -= 1
            if not turn.users:
                del self._turns[place]

    def first(self, request: KeyedRequest, intended: str) -> IdempotencyRecord | None:
        """Return what is to be written down together with what a request makes, if it surely comes for the first time.

        For one that `is_new`, and whose effect is there before anybody waits; for None, and for all others, there is `once`.
        """
        place = (request.holder, request.key)
        if place in self._seen or place in self._turns:
            return None
        self._notice(request)
        return request.intent(intended)

    async def _find_earlier(
        self, request: KeyedRequest, happened: Callable[[str], Awaitable[bool]], is_new: bool
    ) -> Answer | None:
        """Return what came of the same request before, if it was carried out."""
        is_first = self._notice(request)
        if is_new and is_first:
            return None
        known = await self._records.find_key(request.holder, request.key)
        if known is None:
            return None
        _check_same(known, request)
        if known.answer is None or not await happened(known.answer):
            return None
        return Answer(known.answer, is_replay=True)

    async def _carry_out(
        self,
        intent: IdempotencyRecord,
        carry_out: Callable[[IdempotencyRecord], Awaitable[object]],
    ) -> None:
        with self.free_on_error(intent):
            await carry_out(intent)

    @contextmanager
    def free_on_error(self, intent: IdempotencyRecord) -> Iterator[None]:
        """Make a key free again if what it stands for fails."""
        try:
            yield
        except BaseException:
            self._records.forget_key(intent.owner, intent.key)
            raise

    def _notice(self, request: KeyedRequest) -> bool:
        """Remember a key for a while; return whether it was not remembered before."""
        place = (request.holder, request.key)
        is_first = place not in self._seen
        self._seen[place] = None
        if len(self._seen) > _MOST_SEEN:
            del self._seen[next(iter(self._seen))]
        return is_first


def _check_same(known: IdempotencyRecord, request: KeyedRequest) -> None:
    if (known.method, known.fingerprint) != (request.method, request.fingerprint):
        raise Conflict(
            f"key {known.key!r} stands for another request; use a new key for each request",
            key=known.key,
        )
