"""Who comes in: what a request shows, whom that makes its caller, and the end of whatever was let in when it becomes void."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import anyio.to_thread
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Send
from starlette.types import Scope as Connection

from atoll.errors import Forbidden, InvalidRequest, Unauthorized
from atoll.model.access import (
    ADMIN_ID,
    Caller,
    Role,
    Scope,
    Token,
    TokenKind,
    User,
    Way,
    check_token_name,
)
from atoll.model.ids import SandboxId, TokenId, UserId
from atoll.node.records import Records
from atoll.server.cookies import Cookies
from atoll.server.holds import Holds
from atoll.server.rates import Rates
from atoll.server.shared_secret import SharedSecret
from atoll.server.tickets import Tickets
from atoll.server.tokens import Tokens, describe
from atoll.server.users import Users

WayIn = Literal["token", "github", "secret", "none"]

# Wrong credentials: so many at once, then one a second.
_FAILURES = 10.0
# The parent of sessions that were opened with the shared secret; no token has such an id.
_SHARED = TokenId("shared secret")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class GitHubRules:
    """The application at GitHub that people log in by, and who may: `logins`, or anybody who has an account there."""

    client_id: str
    client_secret: str = field(repr=False)
    redirect_uri: str | None = None  # else what the application has there
    logins: frozenset[str] = frozenset()  # in small letters
    allow_any: bool = False
    url: str = "https://github.com"
    api_url: str = "https://api.github.com"


@dataclass(frozen=True, slots=True)
class AccessRules:
    """Which ways in are open, and how long a session lasts."""

    ways: frozenset[WayIn] = frozenset({"token"})
    secret: str | None = field(default=None, repr=False)
    github: GitHubRules | None = None
    session_seconds: float = 12 * 3600.0
    # Whether browsers come by https: cookies are then bound to that, and to this host alone.
    is_secure: bool = False


class Access:
    """Users, tokens and sessions of a node. Everything is called in the event loop's thread."""

    def __init__(
        self,
        records: Records,
        rules: AccessRules | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.rules = rules or AccessRules()
        self.users = Users(records, clock)
        self.tokens = Tokens(records, clock)
        self.tickets = Tickets(clock)
        self.cookies = Cookies(is_secure=self.rules.is_secure)
        self._clock = clock
        self._holds = Holds()
        self._failures = Rates(1.0, _FAILURES)
        is_open = "secret" in self.rules.ways
        self._shared = SharedSecret(self.rules.secret if is_open else None)

    async def open(self) -> None:
        """Read what there is, and make the first user where there is none; raises `Unavailable`."""
        await self.users.open()
        await self.tokens.open()
        # The shared secret may be another one by now.
        self.tokens.forget_sessions(lambda session: session.parent == _SHARED)
        await self._end_others()

    async def _end_others(self) -> None:
        """Revoke the tokens that another shared secret, or one that lets nobody in any more, has led to."""
        led_to = self.tokens.led_to()
        kept = {each.shared_secret for each in led_to if each.shared_secret is not None}
        others = await anyio.to_thread.run_sync(self._shared.find_others, kept)
        self.tokens.forget_sessions(lambda session: session.shared_secret in others)
        ended = [
            each for each in led_to if each.kind is TokenKind.TOKEN and each.shared_secret in others
        ]
        for each in ended:
            self.revoke_token(each.id, each.user)
        if ended:
            _log.warning("tokens.ended_with_secret", extra={"count": len(ended)})

    # --- requests --------------------------------------------------------------------------------------------

    def find_caller(self, headers: Headers) -> Caller:
        """Return who is asking; raises `Unauthorized`, in the same words and the same time whatever is wrong."""
        shown = headers.getlist("authorization")
        session = self.cookies.read(headers, self.cookies.session)
        caller = None
        if shown:
            caller = self._by_bearer(shown)
        elif session is not None:
            caller = self._by_text(session, TokenKind.SESSION)
        if caller is not None:
            return caller
        if "none" in self.rules.ways:
            return Caller(ADMIN_ID, Scope.MEMBER, Way.NONE, Role.ADMIN)
        raise unauthorized()

    def find_shown(self, text: str, network: str | None) -> Caller:
        """Return who shows a token, or the shared secret; raises `Unauthorized`, and `Refusal` for too many wrong ones."""
        caller = self._by_secret(text) or self._by_token(text)
        if caller is None:
            if network is not None:
                self.count_failure(network)
            raise unauthorized()
        return caller

    def count_failure(self, network: str) -> None:
        """Take note that something wrong was shown from a network; raises `Refusal` if that was often.

        To be called after it was looked at, so that nobody's wrong guesses keep out whoever shows a right one.
        """
        self._failures.count(network, "with wrong credentials")

    async def serve(
        self, caller: Caller, app: ASGIApp, connection: Connection, receive: Receive, send: Send
    ) -> None:
        """Have `app` answer a caller; streams and WebSockets end when what the caller showed becomes void."""
        record = self.tokens.get(caller.token)
        expires_at = None if record is None else record.expires_at
        seconds = None if expires_at is None else max(expires_at - self._clock(), 0)
        await self._holds.run(caller, seconds, app, (connection, receive, send))

    def _by_bearer(self, shown: Sequence[str]) -> Caller | None:
        scheme, _, text = shown[0].strip().partition(" ")
        # Of two headers somebody on the way may have looked at the other one.
        if len(shown) > 1 or scheme.lower() != "bearer":
            return None
        text = text.strip()
        return self._by_secret(text) or self._by_token(text)

    def _by_secret(self, text: str) -> Caller | None:
        if not self._shared.is_shown(text):
            return None
        return Caller(ADMIN_ID, Scope.MEMBER, Way.SECRET, Role.ADMIN)

    def _by_token(self, text: str) -> Caller | None:
        return self._by_text(text, TokenKind.TOKEN) if "token" in self.rules.ways else None

    def _by_text(self, text: str, kind: TokenKind) -> Caller | None:
        record = self.tokens.find(text, kind)
        user = None if record is None else self.users.get(record.user)
        if record is None or user is None or user.is_disabled:
            return None
        self.tokens.note_use(record)
        # Never more than its user may, whatever was so when it was made.
        too_much = record.scope is Scope.ADMIN and user.role is not Role.ADMIN
        scope = Scope.MEMBER if too_much else record.scope
        way = Way.SESSION if kind is TokenKind.SESSION else Way.TOKEN
        return Caller(user.id, scope, way, user.role, record.sandbox, record.id)

    # --- users and tokens ------------------------------------------------------------------------------------

    def disable_user(self, key: str) -> User:
        """Make everything void that a user can show, at once; what he owns stays. Raises `NotFound`, `Forbidden`."""
        user = self.users.disable(key)
        self.tokens.forget_sessions(lambda session: session.user == user.id)
        self._holds.end(lambda caller: caller.owner == user.id)
        return user

    def create_token(
        self,
        user: User,
        scope: Scope,
        name: str = "",
        *,
        sandbox: SandboxId | None = None,
        expires_at: float | None = None,
        maker: Caller | None = None,
    ) -> tuple[Token, str]:
        """Make a token; return it with its text, which nobody is ever told again.

        If the shared secret led its `maker` here, by whatever sessions and tokens, the token ends with that secret.

        Raises:
            Forbidden: it would give more than the user may.
            InvalidRequest: it names a sandbox without that scope, or would have expired already.
            LimitExceeded: the user has as many as there may be.
            Unavailable: it cannot be kept at present.
        """
        check_token_name(name)
        if (scope is Scope.SANDBOX) != (sandbox is not None):
            raise InvalidRequest("a sandbox goes with scope 'sandbox', and with no other")
        if scope is Scope.ADMIN and user.role is not Role.ADMIN:
            raise Forbidden(f"{user.name} is no admin; choose scope 'member'")
        if expires_at is not None and expires_at <= self._clock():
            raise InvalidRequest("the token would have expired already; choose a later time")
        return self.tokens.add(
            user.id,
            TokenKind.TOKEN,
            scope,
            name,
            sandbox=sandbox,
            expires_at=expires_at,
            shared_secret=None if maker is None else self._secret_behind(maker),
        )

    def create_first_token(self) -> str | None:
        """Make a token for the first user and return its text; None if there has been one."""
        if not self.tokens.is_empty:
            return None
        return self.create_token(self.users.find(ADMIN_ID), Scope.ADMIN, "first")[1]

    def end_of(self, caller: Caller) -> float | None:
        """Return when the token ends that a caller shows, or that opened his session; None if never."""
        record = self.tokens.get(caller.token)
        if record is not None and record.kind is TokenKind.SESSION:
            record = self.tokens.get(record.parent)
        return None if record is None else record.expires_at

    def revoke_token(self, token_id: TokenId, user: UserId) -> Token:
        """Make a user's token or session void at once, with all sessions that it opened. Raises `NotFound`."""
        record = self.tokens.revoke(token_id, user)
        gone = self.tokens.forget_sessions(lambda session: token_id in (session.id, session.parent))
        self._holds.end(lambda caller: caller.token == token_id or caller.token in gone)
        return describe(record)

    # --- sessions --------------------------------------------------------------------------------------------

    def open_session(self, caller: Caller) -> tuple[Token, str]:
        """Let a browser go on as a caller, with no more rights and for no longer; return it with its cookie's text."""
        parent = self.tokens.get(caller.token)
        ends = [self._clock() + self.rules.session_seconds]
        if parent is not None and parent.expires_at is not None:
            ends.append(parent.expires_at)
        opened = self.tokens.add(
            UserId(caller.owner),
            TokenKind.SESSION,
            caller.scope,
            "",
            sandbox=caller.sandbox,
            parent=_SHARED if caller.way is Way.SECRET else caller.token,
            expires_at=min(ends),
            shared_secret=self._secret_behind(caller),
        )
        # The oldest one may have had to go for it.
        self._holds.end(lambda each: each.way is Way.SESSION and not self.tokens.get(each.token))
        return opened

    def _secret_behind(self, caller: Caller) -> str | None:
        """Return what is kept of the shared secret if that led a caller here."""
        if caller.way is Way.SECRET:
            return self._shared.kept
        record = self.tokens.get(caller.token)
        return None if record is None else record.shared_secret

    def end_session(self, caller: Caller) -> None:
        """Forget the session of a caller who leaves."""
        gone = self.tokens.forget_sessions(lambda session: session.id == caller.token)
        self._holds.end(lambda each: each.token in gone)

    def take_ticket(self, text: str) -> Caller:
        """Return whom a ticket lets in, this one time; raises `Unauthorized`."""
        caller = self.tickets.take(text)
        if caller is None:
            raise Unauthorized(
                "this link has been used, or is more than ten minutes old; 'atoll up' prints another"
            )
        return caller


def unauthorized() -> Unauthorized:
    """Return the one refusal for everybody who does not show what is valid."""
    return Unauthorized(
        "this needs a token that is valid: none was shown, or it is unknown, revoked or has expired",
        next_step="send 'Authorization: Bearer …' with a token; 'atoll token create' makes one",
    )
