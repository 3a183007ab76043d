# Generated from _async by tools/generate_sync.py; edit that.
"""Workspaces that outlive their sandboxes."""

from __future__ import annotations

from collections.abc import Sequence

from atoll.client.embedded import Node, share_node
from atoll.client.errands import list_workspaces, remove_workspace, tell_workspace
from atoll.engines.catalog import DEFAULT_ENGINE
from atoll.model.sandbox import WorkspaceInfo


class Workspaces:
    """The workspaces of this user: made by `Sandbox(workspace=…)`, they stay until they are removed."""

    def __init__(self, *, engine: str | None = None) -> None:
        self._engine = engine or DEFAULT_ENGINE

    def list(self) -> Sequence[WorkspaceInfo]:
        """Return facts about all of them, the newest first."""
        node = share_node(self._engine)
        return Node(node).call(list_workspaces, node)

    def find(self, workspace: str) -> WorkspaceInfo:
        """Return facts about one; raises `NotFound`."""
        node = share_node(self._engine)
        return Node(node).call(tell_workspace, node, workspace)

    def remove(self, workspace: str) -> None:
        """Remove one with all its files.

        Raises:
            NotFound: there is none.
            Conflict: a sandbox has it.
        """
        node = share_node(self._engine)
        Node(node).call(remove_workspace, node, workspace)
