"""Workspaces that outlive their sandboxes."""

from __future__ import annotations

from collections.abc import Sequence

from atoll.client.embedded import AsyncNode, share_node
from atoll.client.errands import list_workspaces, remove_workspace, tell_workspace
from atoll.engines.catalog import DEFAULT_ENGINE
from atoll.model.sandbox import WorkspaceInfo


class AsyncWorkspaces:
    """The workspaces of this user: made by `AsyncSandbox(workspace=…)`, they stay until they are removed."""

    def __init__(self, *, engine: str | None = None) -> None:
        self._engine = engine or DEFAULT_ENGINE

    async def list(self) -> Sequence[WorkspaceInfo]:
        """Return facts about all of them, the newest first."""
        node = share_node(self._engine)
        return await AsyncNode(node).call(list_workspaces, node)

    async def find(self, workspace: str) -> WorkspaceInfo:
        """Return facts about one; raises `NotFound`."""
        node = share_node(self._engine)
        return await AsyncNode(node).call(tell_workspace, node, workspace)

    async def remove(self, workspace: str) -> None:
        """Remove one with all its files.

        Raises:
            NotFound: there is none.
            Conflict: a sandbox has it.
        """
        node = share_node(self._engine)
        await AsyncNode(node).call(remove_workspace, node, workspace)
