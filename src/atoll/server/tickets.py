"""Tickets: texts that let a browser in once, within a few minutes."""

from __future__ import annotations

import hmac
import time
from collections.abc import Callable
from dataclasses import dataclass

from atoll.model.access import Caller
from atoll.server.tokens import digest_of, random_text

TICKET_SECONDS = 600.0
# More than anybody asks for; the oldest go first.
_MOST = 100


@dataclass(frozen=True, slots=True)
class _Ticket:
    digest: str
    caller: Caller
    expires_at: float


class Tickets:
    """Tickets that nobody has used yet. They are in memory alone, as hashes."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._tickets: list[_Ticket] = []

    def make(self, caller: Caller) -> str:
        """Return a ticket that lets in as `caller`."""
        text = random_text()
        self._tickets.append(_Ticket(digest_of(text), caller, self._clock() + TICKET_SECONDS))
        del self._tickets[:-_MOST]
        return text

    def take(self, text: str) -> Caller | None:
        """Return whom a ticket lets in, this one time; None for any other text."""
        digest, now = digest_of(text), self._clock()
        matching = [each for each in self._tickets if hmac.compare_digest(each.digest, digest)]
        self._tickets = [
            each for each in self._tickets if each not in matching and now < each.expires_at
        ]
        return next((each.caller for each in matching if now < each.expires_at), None)
