"""Ids on the host that one container alone has: who gets out of it is nobody to all the others, whoever owns those.

Podman gives each container a range of the host's ids by itself, and remembers it as long as the container is kept. Docker knows
one range for all of them at most (`userns-remap`): there each has a user of its own inside, which is written on the container.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from atoll.engines.containers import labels
from atoll.engines.containers.client import EngineClient
from atoll.errors import InvalidRequest, Unavailable, Unsupported
from atoll.model.container import DEFAULT_USER, ContainerOptions
from atoll.model.sandbox import SandboxSpec

IDS_OF_EACH = 65536  # as many as any image has
# As Podman is asked for a range, and how it tells of it.
OWN_RANGE = f"auto:size={IDS_OF_EACH}"
OWN_RANGE_TOLD = "private"
# Users of Docker's containers: no image has those, and whatever range is mapped has them. Without a map they are above what
# distributions and other engines hand out.
_USERS_IN_A_RANGE = range(20000, 60000)
_USERS = range(0x71000000, 0x7F000000)


def check_own_ids(
    spec: SandboxSpec, options: ContainerOptions, engine: str, runtime: str | None
) -> None:
    """Raise why a container cannot have ids of its own."""
    setting = "the operator gives every container ids of its own (containers.own_ids)"
    if spec.workspace is not None or options.volume is not None:
        raise Unsupported(
            f"{setting}, to which files that are kept do not belong; leave workspace, volume and persistent out, or use"
            " engine namespaces"
        )
    if runtime == "runsc":
        raise Unsupported(
            f"{setting}, and under runtime runsc all run as the same one on the host; ask for runc or crun"
        )
    if engine == "docker" and options.user != DEFAULT_USER:
        raise InvalidRequest(f"{setting}, and with Docker this is its user; leave the user out")


async def choose_user(client: EngineClient) -> Mapping[str, str]:
    """Return the label with a user that no container has, this node's or another's; nothing if none is needed.

    Raises:
        Unsupported: the engine has no ids to tell its containers apart by.
    """
    info = await client.ask("describe itself", lambda docker: docker.system.info())
    options = [str(each) for each in info.get("SecurityOptions") or ()]
    if any(each in ("rootless=true", "name=rootless") for each in options):
        raise Unsupported(
            f"{client.name} without root has the ids of one user for all its containers, so that none has its own; start"
            " it as root, or set containers.own_ids to false"
        )
    if client.name == "podman":
        return {}
    users = _USERS_IN_A_RANGE if is_mapped(info) else _USERS
    return {labels.USER: str(_choose(users, await _taken(client)))}


def is_mapped(info: Mapping[str, Any]) -> bool:
    """Whether a Docker has one range of the host's ids for all its containers."""
    return any("name=userns" in str(each) for each in info.get("SecurityOptions") or ())


async def check_alone(client: EngineClient, user: str) -> None:
    """Raise `Unavailable` if another node has chosen a container's user at the same moment."""
    count = (await _taken(client)).count(int(user))
    if count != 1:
        raise Unavailable(f"{count} containers have user {user}, not one; try again")


def _choose(users: range, taken: Sequence[int]) -> int:
    # Never nearly all, or a choice would take long.
    if 2 * len(taken) > len(users):
        raise Unavailable(f"{len(taken)} containers have a user of their own; remove some first")
    while (user := secrets.choice(users)) in taken:
        pass
    return user


async def _taken(client: EngineClient) -> Sequence[int]:
    filters = json.dumps({"label": [labels.USER]})
    containers = await client.ask(
        "list containers", lambda docker: docker.containers.list(all=True, filters=filters)
    )
    found = [(each["Labels"] or {}).get(labels.USER, "") for each in containers]
    return [int(each) for each in found if each.isdecimal()]


def explain(error: Unavailable) -> Unavailable:
    """Return why Podman has no range to give, with the way out; other errors as they are."""
    if any(words in error.message for words in ("available IDs", 'user "containers"')):
        return Unavailable(
            f"{error.message}; each container takes {IDS_OF_EACH} of the ids that /etc/subuid and /etc/subgid list for `containers`:"
            " list more, or destroy some sandboxes"
        )
    return error


def read_host_ids(pid: int, container_id: str, user: tuple[int, int], engine: str) -> range:
    """Return the ids on the host that a started container has, as the kernel tells.

    Raises:
        Unsupported: nobody can look from here.
        Unavailable: they are not its own.
    """
    process = Path(f"/proc/{pid}")
    try:
        if container_id not in (process / "cgroup").read_text():
            raise ProcessLookupError(0, "its processes are not of this machine")
        maps = [(process / name).read_text() for name in ("uid_map", "gid_map")]
        status = (process / "status").read_text()
    except OSError as error:
        raise Unsupported(
            f"which ids a container has cannot be looked at from here ({error.strerror}); start the node as root on the"
            " engine's machine, or set containers.own_ids to false"
        ) from error
    return find_host_ids(maps, status, user, engine)


def find_host_ids(maps: Sequence[str], status: str, user: tuple[int, int], engine: str) -> range:
    """Return the ids that one's maps and status show; raise `Unavailable` if they are not as the engine was asked for."""
    hosts = [_host_id(text, each) for text, each in zip(maps, user, strict=True)]
    seen = [line.split()[1:] for line in status.splitlines() if line.startswith(("Uid:", "Gid:"))]
    if seen != [[str(each)] * 4 for each in hosts]:
        raise _others(f"its maps lead to {hosts}, and it runs as {seen}")
    if engine == "docker":
        # Its whole range is all containers'; nobody but this one is this user.
        return range(hosts[0], hosts[0] + 1)
    (inside, first, count), *more = _parse(maps[0])
    if (
        more
        or (inside, count) != (0, IDS_OF_EACH)
        or first < IDS_OF_EACH
        or _parse(maps[0]) != _parse(maps[1])
    ):
        raise _others(f"it has {' and '.join(' '.join(each.split()) for each in maps)}")
    return range(first, first + count)


def _others(found: str) -> Unavailable:
    return Unavailable(
        f"the container is not what was asked for: it has no ids of its own: {found}; it was removed"
    )


def _host_id(text: str, user: int) -> int:
    for inside, host, count in _parse(text):
        if inside <= user < inside + count:
            return host + user - inside
    return -1


def _parse(text: str) -> list[tuple[int, int, int]]:
    lines = [[int(each) for each in line.split()] for line in text.splitlines()]
    return [(inside, host, count) for inside, host, count in lines]


class HostIds:
    """Which of an engine's containers has which ids."""

    def __init__(self) -> None:
        self._taken: dict[str, range] = {}

    def take(self, container: str, ids: range) -> None:
        """Take note of a container's; raise `Unavailable` if another one has some of them."""
        for other, held in self._taken.items():
            if held.start < ids.stop and ids.start < held.stop and other != container:
                raise _others(f"{other} has some of {ids.start} to {ids.stop - 1}, too")
        self._taken[container] = ids

    def give_back(self, container: str) -> None:
        """Forget those of a container that is gone; one that has none is fine."""
        self._taken.pop(container, None)
