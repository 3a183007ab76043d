"""Secrets that are stored under a name, for sandboxes that use and never see them."""

from __future__ import annotations

from collections.abc import Sequence

from atoll.client.nodes import find_errands
from atoll.model.secret import Secret, SecretInfo


class AsyncSecrets:
    """The stored secrets of this user: of a server, where they are kept sealed, or of this process until it ends."""

    def __init__(
        self, *, engine: str | None = None, url: str | None = None, token: str | None = None
    ) -> None:
        """Say whose: those of the server at `url`, else at ATOLL_URL, else of this process."""
        self._errands = find_errands(url, token, engine)

    async def list(self) -> Sequence[SecretInfo]:
        """Return facts about all of them by name; what they are worth is never told."""
        return await self._errands.async_way.call(self._errands.list_secrets)

    async def set(self, name: str, secret: Secret) -> SecretInfo:
        """Keep a secret; sandboxes that have one of this name use the new one from then on."""
        return await self._errands.async_way.call(self._errands.set_secret, name, secret)

    async def remove(self, name: str) -> None:
        """Remove a secret; no request of any sandbox carries it any more. Raises `NotFound`."""
        await self._errands.async_way.call(self._errands.remove_secret, name)
