"""The one secret that everybody shows who comes in by it, and what is kept of it: tokens that it led to end with it."""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Iterable

from atoll.server.tokens import digest_of

# People choose it, so that it could be guessed: what is kept costs 16 MiB and about a twentieth of a second to try each guess.
_WORK = {"n": 1 << 14, "r": 8, "p": 1}
_SALT_BYTES = 16


class SharedSecret:
    """The secret of the settings, or none."""

    def __init__(self, secret: str | None) -> None:
        self._secret = secret
        self._digest = None if secret is None else digest_of(secret)
        self._kept: str | None = None

    def is_shown(self, text: str) -> bool:
        """Whether this is the secret; it takes the same time whatever is wrong with it."""
        return self._digest is not None and hmac.compare_digest(digest_of(text), self._digest)

    def find_others(self, kept: Iterable[str]) -> set[str]:
        """Return which of these were made from another secret. It takes a while for each, so not in an event loop."""
        every = set(kept)
        own = {each for each in every if self._leads_to(each)}
        if self._secret is not None:
            # One for all tokens, so that a start has one to look at.
            self._kept = next(iter(own), None) or _stretch(self._secret, os.urandom(_SALT_BYTES))
        return every - own

    @property
    def kept(self) -> str:
        """What is kept with tokens, which does not lead back to the secret."""
        assert self._kept is not None, "find_others comes first"
        return self._kept

    def _leads_to(self, kept: str) -> bool:
        salt, _, _ = kept.partition("$")
        try:
            return self._secret is not None and hmac.compare_digest(
                _stretch(self._secret, bytes.fromhex(salt)), kept
            )
        except ValueError:
            return False  # damaged: of no secret that could be told


def _stretch(secret: str, salt: bytes) -> str:
    stretched = hashlib.scrypt(secret.encode("utf-8", "surrogatepass"), salt=salt, **_WORK)
    return f"{salt.hex()}${stretched.hex()}"
