"""Workspaces that outlive their sandboxes."""

from __future__ import annotations

from collections.abc import Sequence

from atoll.client.nodes import find_errands
from atoll.model.sandbox import WorkspaceInfo


class AsyncWorkspaces:
    """The workspaces of this user: made by `AsyncSandbox(workspace=…)`, they stay until they are removed."""

    def __init__(
        self, *, engine: str | None = None, url: str | None = None, token: str | None = None
    ) -> None:
        """Say whose: those of the server at `url`, else at ATOLL_URL, else of this machine."""
        self._errands = find_errands(url, token, engine)

    async def list(self) -> Sequence[WorkspaceInfo]:
        """Return facts about all of them, the newest first."""
        return await self._errands.async_way.call(self._errands.list_workspaces)

    async def find(self, workspace: str) -> WorkspaceInfo:
        """Return facts about one; raises `NotFound`."""
        return await self._errands.async_way.call(self._errands.find_workspace, workspace)

    async def remove(self, workspace: str) -> None:
        """Remove one with all its files.

        Raises:
            NotFound: there is none.
            Conflict: a sandbox has it.
        """
        await self._errands.async_way.call(self._errands.remove_workspace, workspace)
