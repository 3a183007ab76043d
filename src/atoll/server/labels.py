"""Labels that the node itself puts on sandboxes; callers do not see them, and may not set them."""

from __future__ import annotations

from collections.abc import Mapping

from atoll.errors import InvalidRequest

# The label that clients which know only one label see.
LABEL = "label"

_OWN = "atoll/"
PLANNED = f"{_OWN}planned"  # the sandbox's own program has yet to begin, and nobody was told of the sandbox
PROGRAM = f"{_OWN}program"  # the execution of that program
INTERACTIVE = f"{_OWN}interactive"  # it is on a terminal
ONE_SHOT = f"{_OWN}one-shot"  # the sandbox ends with it
PUBLIC = f"{_OWN}public"  # strangers may reach what it serves, once something leads there


def own_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """Return those that the node put there."""
    return {name: value for name, value in labels.items() if name.startswith(_OWN)}


def shown_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """Return those that callers put there."""
    return {name: value for name, value in labels.items() if not name.startswith(_OWN)}


def check_not_own(labels: dict[str, str]) -> dict[str, str]:
    """Return labels that a caller chose; raise `InvalidRequest` if one is the node's."""
    for name in own_labels(labels):
        raise InvalidRequest(f"label {name[:80]!r} begins with {_OWN}, which is the node's own")
    return labels
