"""Tokens and sessions: texts of 256 random bits, of which only a hash is kept.

They are in the database, and in memory as they are there: no request waits for a database, and what is revoked is void with
the next request.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import replace

from atoll.errors import LimitExceeded, NotFound, Unavailable
from atoll.model.access import Scope, Token, TokenKind
from atoll.model.ids import SandboxId, TokenId, UserId, new_token_id
from atoll.node.records import Records, TokenRecord

_SECRET_BYTES = 32
_TOKEN = re.compile(r"atoll_([a-z0-9]{12})_[A-Za-z0-9_-]{43}")
_MOST = {TokenKind.TOKEN: 1000, TokenKind.SESSION: 50}
# How often it is written down that a token was used.
_USE_SECONDS = 60.0
# How long tokens that are void are still listed.
_VOID_SECONDS = 30 * 86400.0


def random_text() -> str:
    """Return 256 random bits as 43 characters that need no quoting anywhere."""
    return base64.urlsafe_b64encode(os.urandom(_SECRET_BYTES)).rstrip(b"=").decode()


def digest_of(text: str) -> str:
    """Return what is kept of a text that only its holder knows; a plain hash, as nobody can guess 256 random bits."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


# What a token that is not there is compared with. No text that anybody has leads to it.
_NO_DIGEST = digest_of(random_text())


class Tokens:
    """The tokens and sessions of all users."""

    def __init__(self, records: Records, clock: Callable[[], float]) -> None:
        self._records = records
        self._clock = clock
        self._tokens: dict[TokenId, TokenRecord] = {}

    async def open(self) -> None:
        """Read what there is; raises `Unavailable`."""
        self._tokens = {token.id: token for token in await self._records.list_tokens()}
        self._forget_void()

    @property
    def is_empty(self) -> bool:
        """Whether no token was ever made, or none that is still listed."""
        return not any(each.kind is TokenKind.TOKEN for each in self._tokens.values())

    def find(self, text: str, kind: TokenKind) -> TokenRecord | None:
        """Return the token with this text if it is valid; it takes the same time whatever is wrong with it."""
        match = _TOKEN.fullmatch(text)
        record = None if match is None else self._tokens.get(TokenId(match[1]))
        # The same work for ids that are there and for those that are not.
        kept = _NO_DIGEST if record is None else record.digest
        if not hmac.compare_digest(digest_of(text), kept) or record is None:
            return None
        return record if record.kind is kind and not self._is_void(record) else None

    def get(self, token_id: TokenId | None) -> TokenRecord | None:
        """Return a token by its id."""
        return None if token_id is None else self._tokens.get(token_id)

    def list(self, user: UserId) -> Sequence[Token]:
        """Return what a user can show, or could until lately, the newest first."""
        own = [describe(each) for each in self._tokens.values() if each.user == user]
        return sorted(own, key=lambda token: (token.created_at, token.id), reverse=True)

    def led_to(self) -> Sequence[TokenRecord]:
        """Return the valid ones that a shared secret has led to."""
        every = self._tokens.values()
        return [each for each in every if each.shared_secret and not self._is_void(each)]

    def add(
        self,
        user: UserId,
        kind: TokenKind,
        scope: Scope,
        name: str,
        *,
        sandbox: SandboxId | None = None,
        parent: TokenId | None = None,
        expires_at: float | None = None,
        shared_secret: str | None = None,
    ) -> tuple[Token, str]:
        """Make a token; return it with its text, which nobody is ever told again.

        Raises:
            LimitExceeded: the user has as many tokens as there may be; of sessions the oldest one goes.
            Unavailable: it cannot be kept at present.
        """
        token_id = new_token_id()
        text = f"atoll_{token_id}_{random_text()}"
        record = TokenRecord(
            id=token_id,
            user=user,
            kind=kind,
            scope=scope,
            name=name,
            digest=digest_of(text),
            created_at=self._clock(),
            sandbox=sandbox,
            parent=parent,
            expires_at=expires_at,
            shared_secret=shared_secret,
        )
        self._make_room(record)
        self._keep(record)
        return describe(record), text

    def revoke(self, token_id: TokenId, user: UserId) -> TokenRecord:
        """Make a user's token void at once; raises `NotFound`, and `Unavailable` if that would not last."""
        record = self._tokens.get(token_id)
        if record is None or record.user != user:
            raise NotFound(f"there is no token {token_id[:80]!r}; 'atoll token ls' lists them")
        if record.revoked_at is None:
            record = replace(record, revoked_at=self._clock())
            self._keep(record)
        return record

    def forget_sessions(self, is_meant: Callable[[TokenRecord], bool]) -> set[TokenId]:
        """Forget sessions at once; return which."""
        meant = {
            each.id
            for each in self._tokens.values()
            if each.kind is TokenKind.SESSION and is_meant(each)
        }
        for each in meant:
            self._forget(each)
        return meant

    def note_use(self, record: TokenRecord) -> None:
        """Write down now and then that a token is in use."""
        now = self._clock()
        if record.last_used_at is not None and now - record.last_used_at < _USE_SECONDS:
            return
        used = replace(record, last_used_at=now)
        self._tokens[record.id] = used
        try:
            self._records.remember(used)
        except Unavailable:
            return  # nobody is kept out because it cannot be written down when he came

    def _is_void(self, record: TokenRecord) -> bool:
        has_expired = record.expires_at is not None and self._clock() >= record.expires_at
        return has_expired or record.revoked_at is not None

    def _make_room(self, record: TokenRecord) -> None:
        self._forget_void()
        most = _MOST[record.kind]
        own = self._like(record)
        if len(own) >= most:
            for each in filter(self._is_void, own):
                self._forget(each.id, sync=False)
            own = self._like(record)
        if len(own) < most:
            return
        if record.kind is TokenKind.TOKEN:
            raise LimitExceeded(
                f"there are {most} tokens of this user, which is the most; revoke some first",
                limit=most,
            )
        self._forget(min(own, key=lambda each: each.created_at).id)

    def _like(self, record: TokenRecord) -> Sequence[TokenRecord]:
        return [
            each
            for each in self._tokens.values()
            if each.user == record.user
            and each.kind is record.kind
            # A session makes way for one of the same token only: others are not logged out by it.
            and (each.kind is TokenKind.TOKEN or each.parent == record.parent)
        ]

    def _forget_void(self) -> None:
        """Forget what has been void for long; sessions at once."""
        now = self._clock()
        for record in list(self._tokens.values()):
            ends = [each for each in (record.expires_at, record.revoked_at) if each is not None]
            kept = 0.0 if record.kind is TokenKind.SESSION else _VOID_SECONDS
            if ends and now >= min(ends) + kept:
                # Void by their own dates: whoever finds one of them again forgets it again.
                self._forget(record.id, sync=False)

    def _keep(self, record: TokenRecord) -> None:
        self._records.remember(record, sync=True)
        self._tokens[record.id] = record

    def _forget(self, token_id: TokenId, *, sync: bool = True) -> None:
        self._records.forget_token(token_id, sync=sync)
        del self._tokens[token_id]


def describe(record: TokenRecord) -> Token:
    """Return facts about a token."""
    return Token(
        id=record.id,
        user=record.user,
        kind=record.kind,
        scope=record.scope,
        name=record.name,
        created_at=record.created_at,
        sandbox=record.sandbox,
        expires_at=record.expires_at,
        last_used_at=record.last_used_at,
        revoked_at=record.revoked_at,
    )
