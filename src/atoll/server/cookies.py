"""The cookies that browsers carry: for this host alone, out of reach of scripts."""

from __future__ import annotations

from typing import Literal

from starlette.datastructures import Headers
from starlette.responses import Response

SameSite = Literal["strict", "lax"]

_SESSION = "atoll_session"
_LOGIN = "atoll_login"
# Browsers take a cookie of such a name only over https, for all of one host, and from no other one.
_HOST_ONLY = "__Host-"
_MOST_CHARACTERS = 200


class Cookies:
    """The names of our cookies, and how they are set."""

    def __init__(self, *, is_secure: bool) -> None:
        self._is_secure = is_secure
        prefix = _HOST_ONLY if is_secure else ""
        self.session = prefix + _SESSION
        self.login = prefix + _LOGIN

    def read(self, headers: Headers, name: str) -> str | None:
        """Return what a browser sends under a name; None if that is nothing, or not one thing."""
        found = []
        for header in headers.getlist("cookie"):
            for pair in header.split(";"):
                key, equals, value = pair.strip().partition("=")
                if equals and key == name:
                    found.append(value)
        # Of two with one name, one was set by somebody else.
        return found[0] if len(found) == 1 and len(found[0]) <= _MOST_CHARACTERS else None

    def set(
        self, answer: Response, name: str, value: str, seconds: float, same_site: SameSite
    ) -> None:
        """Have a browser keep a cookie for a while."""
        answer.set_cookie(
            name,
            value,
            max_age=int(seconds),
            path="/",
            secure=self._is_secure,
            httponly=True,
            samesite=same_site,
        )

    def drop(self, answer: Response, name: str, same_site: SameSite = "strict") -> None:
        """Have a browser forget a cookie."""
        answer.delete_cookie(
            name, path="/", secure=self._is_secure, httponly=True, samesite=same_site
        )
