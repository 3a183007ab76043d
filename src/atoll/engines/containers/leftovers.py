"""Containers of this node whose program has ended: nobody will ever talk to their stewards again."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from atoll.engines.containers import labels
from atoll.engines.containers.client import EngineClient
from atoll.engines.containers.labels import Program
from atoll.engines.containers.wall import remove_container, remove_volume
from atoll.errors import AtollError, all_of


async def find_leftovers(client: EngineClient, node: str, here: Program) -> Sequence[str]:
    """Return the ids of such containers; those of other nodes, or of nobody, are none of ours."""
    filters = json.dumps({"label": [f"{labels.NODE}={node}"]})
    containers = await client.ask(
        "list containers", lambda docker: docker.containers.list(all=True, filters=filters)
    )
    return [
        str(container.id)
        for container in containers
        if _is_leftover(container["Labels"] or {}, node, here)
    ]


async def discard_leftovers(client: EngineClient, node: str, here: Program) -> None:
    """Remove them all, and their volumes; raise `Unavailable` with all that went wrong."""
    failures: list[AtollError] = []
    removals = [remove_container(client, each) for each in await find_leftovers(client, node, here)]
    removals += [remove_volume(client, each) for each in await _find_volumes(client, node, here)]
    for removal in removals:
        try:
            await removal
        except AtollError as error:
            failures.append(error)
    if failures:
        raise all_of(failures)


async def _find_volumes(client: EngineClient, node: str, here: Program) -> Sequence[str]:
    filters = {"label": [f"{labels.NODE}={node}"]}
    answer = await client.ask("list volumes", lambda docker: docker.volumes.list(filters=filters))
    volumes = answer["Volumes"] or ()
    return [each["Name"] for each in volumes if _is_leftover(each["Labels"] or {}, node, here)]


def _is_leftover(marks: Mapping[str, str], node: str, here: Program) -> bool:
    owner = Program.parse(marks.get(labels.OWNER, ""))
    if marks.get(labels.NODE) != node or owner is None or not owner.is_surely_gone(here):
        return False
    # What is persistent outlives its program, and may be another's by now; without its workspace it is nobody's.
    workspace = labels.workspace_of(marks)
    is_kept = marks.get(labels.PERSISTENT) == "true" and workspace is not None
    return not (is_kept and Path(workspace or "").exists())
