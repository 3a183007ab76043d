# Generated from _async by tools/generate_sync.py; edit that.
"""Workspaces that outlive their sandboxes."""

from __future__ import annotations

from collections.abc import Sequence

from atoll.client.nodes import find_errands
from atoll.model.sandbox import WorkspaceInfo


class Workspaces:
    """The workspaces of this user: made by `Sandbox(workspace=…)`, they stay until they are removed."""

    def __init__(
        self, *, engine: str | None = None, url: str | None = None, token: str | None = None
    ) -> None:
        """Say whose: those of the server at `url`, else at ATOLL_URL, else of this machine."""
        self._errands = find_errands(url, token, engine)

    def list(self) -> Sequence[WorkspaceInfo]:
        """Return facts about all of them, the newest first."""
        return self._errands.way.call(self._errands.list_workspaces)

    def find(self, workspace: str) -> WorkspaceInfo:
        """Return facts about one; raises `NotFound`."""
        return self._errands.way.call(self._errands.find_workspace, workspace)

    def remove(self, workspace: str) -> None:
        """Remove one with all its files.

        Raises:
            NotFound: there is none.
            Conflict: a sandbox has it.
        """
        self._errands.way.call(self._errands.remove_workspace, workspace)
