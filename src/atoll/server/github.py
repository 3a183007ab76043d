"""Logging in by GitHub: OAuth's code flow with PKCE and a state.

What binds the answer to the browser that began is one random text in a cookie of that browser: the state and the PKCE verifier
are both made from it. So nothing is kept here meanwhile, and a code is worth nothing in another browser.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

import httpx2

from atoll.errors import Forbidden, Unauthorized, Unavailable
from atoll.model.access import User
from atoll.server.access import GitHubRules
from atoll.server.tokens import random_text
from atoll.server.users import Users

# How long the visit to GitHub may take.
LOGIN_SECONDS = 600.0

_TIMEOUT = httpx2.Timeout(10.0)
_MOST_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class Account:
    """Somebody at GitHub. The name can pass to somebody else there, the number cannot."""

    number: str
    login: str


class GitHub:
    """GitHub, or whatever speaks like it at the addresses of the settings."""

    def __init__(self, rules: GitHubRules) -> None:
        self._rules = rules

    def begin(self) -> tuple[str, str]:
        """Return what the browser has to keep, and where it has to go."""
        kept = random_text()
        challenge = hashlib.sha256(_derive(kept, "verifier").encode()).digest()
        asked = {
            "client_id": self._rules.client_id,
            "state": _derive(kept, "state"),
            "code_challenge": _encode(challenge),
            "code_challenge_method": "S256",
            **self._redirect(),
        }
        return kept, f"{self._rules.url}/login/oauth/authorize?{urlencode(asked)}"

    async def finish(self, kept: str | None, state: str, code: str) -> Account:
        """Return who came back with a code.

        Raises:
            Unauthorized: another browser began this, or GitHub does not know the code.
            Unavailable: GitHub does not answer.
        """
        if kept is None or not hmac.compare_digest(
            _derive(kept, "state").encode(), state.encode("utf-8", "surrogatepass")
        ):
            raise _refused("this login was not begun in this browser, or too long ago")
        granted = await self._ask(
            "POST",
            f"{self._rules.url}/login/oauth/access_token",
            data={
                "client_id": self._rules.client_id,
                "client_secret": self._rules.client_secret,
                "code": code,
                "code_verifier": _derive(kept, "verifier"),
                **self._redirect(),
            },
        )
        token = granted.get("access_token")
        if not isinstance(token, str) or not token.isascii() or not token.isprintable():
            raise _refused("GitHub did not confirm this login")
        headers = {"Authorization": f"Bearer {token}"}
        return _read_account(await self._ask("GET", f"{self._rules.api_url}/user", headers=headers))

    def admit(self, account: Account, users: Users) -> User:
        """Return the user of an account, a new one at its first login; raises `Forbidden` for all others."""
        if not self._rules.allow_any and account.login.lower() not in self._rules.logins:
            raise Forbidden(
                f"GitHub's {account.login!r} may not log in here",
                next_step="ask the operator to add this name to auth.github_logins",
            )
        user = users.of_github(account.number)
        if user is None:
            name = account.login.lower()
            free = name if users.is_free(name) else f"{name}-{account.number}"
            return users.create(free, github=account.number)
        if user.is_disabled:
            raise Forbidden(f"user {user.name!r} is disabled; ask an admin")
        return user

    def _redirect(self) -> Mapping[str, str]:
        uri = self._rules.redirect_uri
        return {} if uri is None else {"redirect_uri": uri}

    async def _ask(
        self,
        method: str,
        url: str,
        *,
        data: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Mapping[str, Any]:
        sent = {"Accept": "application/json", "User-Agent": "atoll", **(headers or {})}
        try:
            async with (
                httpx2.AsyncClient(timeout=_TIMEOUT) as client,
                client.stream(method, url, data=data, headers=sent) as answer,
            ):
                return _read_object(answer.status_code, await _read_some(answer))
        except httpx2.HTTPError as error:
            # Without its words, which could show what was sent.
            raise Unavailable(
                f"GitHub does not answer ({type(error).__name__}); try again in a moment"
            ) from None


async def _read_some(answer: httpx2.Response) -> bytes:
    content = b""
    async for chunk in answer.aiter_bytes():
        content += chunk
        if len(content) > _MOST_BYTES:
            raise _refused("GitHub's answer is larger than any that is expected")
    return content


def _read_object(status: int, content: bytes) -> Mapping[str, Any]:
    try:
        found = json.loads(content)
    except ValueError:
        found = None
    if status != httpx2.codes.OK or not isinstance(found, dict):
        raise _refused(f"GitHub did not confirm this login (status {status})")
    return found


def _read_account(found: Mapping[str, Any]) -> Account:
    number, login = found.get("id"), found.get("login")
    if type(number) is not int or not isinstance(login, str) or not login:
        raise _refused("GitHub did not say who this is")
    return Account(str(number), login)


def _derive(kept: str, purpose: str) -> str:
    return _encode(hashlib.sha256(f"atoll {purpose} {kept}".encode("utf-8", "replace")).digest())


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _refused(reason: str) -> Unauthorized:
    return Unauthorized(reason, next_step="log in again, beginning at /auth/github")
