"""Who may ask for what: users, the tokens they show, and the caller that a request comes from."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from atoll.errors import InvalidRequest
from atoll.model.ids import SandboxId, TokenId, UserId
from atoll.model.sandbox import LOCAL_OWNER

ADMIN_ID = UserId(LOCAL_OWNER)
ADMIN_NAME = "admin"
# Nobody's id can be this, since ids of users have 26 characters: whoever asks as it finds nothing.
NOBODY = "nobody"

_USER_NAME = re.compile(r"[a-z0-9][a-z0-9._@-]{0,62}")
_TOKEN_NAME_CHARACTERS = 80


class Role(StrEnum):
    """What a user is."""

    ADMIN = "admin"
    MEMBER = "member"


class Scope(StrEnum):
    """What a token lets its holder do, never more than its user may."""

    ADMIN = "admin"  # everything, users and the node itself included
    MEMBER = "member"  # everything with what is the user's
    READ = "read"  # look at what is the user's
    SANDBOX = "sandbox"  # everything in one sandbox of the user's


class TokenKind(StrEnum):
    """How a token is carried: by programs in a header, or by a browser in a cookie."""

    TOKEN = "token"
    SESSION = "session"


class Way(StrEnum):
    """How a caller has shown who it is."""

    SOCKET = "socket"  # the node's own socket, which only its user can open
    TOKEN = "token"
    SESSION = "session"
    SECRET = "secret"  # the one shared secret of the settings
    NONE = "none"  # the operator lets everybody in


@dataclass(frozen=True, slots=True)
class User:
    """Somebody who owns sandboxes: `id` is the owner that a node knows."""

    id: UserId
    name: str
    role: Role
    created_at: float
    disabled_at: float | None = None
    github: str | None = None  # the number of the account there: its name can pass to somebody else

    @property
    def is_disabled(self) -> bool:
        """Whether everything that this user could show is void."""
        return self.disabled_at is not None


@dataclass(frozen=True, slots=True)
class Token:
    """Facts about a token; its text is not among them, and nothing that it could be made from."""

    id: TokenId
    user: UserId
    kind: TokenKind
    scope: Scope
    name: str
    created_at: float
    sandbox: SandboxId | None = None  # with scope `sandbox`
    expires_at: float | None = None
    last_used_at: float | None = None
    revoked_at: float | None = None


@dataclass(frozen=True, slots=True)
class Caller:
    """Where a request comes from: `owner` is whose things it may see, as far as `scope` goes."""

    owner: str
    scope: Scope
    way: Way
    role: Role = Role.MEMBER
    sandbox: SandboxId | None = None
    token: TokenId | None = None


# Only the user of the node can open its socket, so whoever comes that way is that user.
OPERATOR = Caller(ADMIN_ID, Scope.ADMIN, Way.SOCKET, Role.ADMIN)


def check_user_name(name: str) -> None:
    """Raise `InvalidRequest` unless this can be the name of a user."""
    if not isinstance(name, str) or not _USER_NAME.fullmatch(name):
        raise InvalidRequest(
            f"user name {str(name)[:80]!r} is not 1 to 63 characters of a-z, 0-9 and ._@-"
        )


def check_token_name(name: str) -> None:
    """Raise `InvalidRequest` unless this can be the name of a token."""
    fits = isinstance(name, str) and len(name) <= _TOKEN_NAME_CHARACTERS and name.isprintable()
    if not fits:
        raise InvalidRequest(
            f"a token's name is at most {_TOKEN_NAME_CHARACTERS} characters that can be printed"
        )
