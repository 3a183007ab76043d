"""Names under which other systems know the same settings, honoured in the environment and in `.env`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from atoll.errors import InvalidRequest
from atoll.server.setting_sources import SettingPath

_QUOTA_OF_ONE_CPU = 100_000


def _keep(text: str) -> object:
    return text


def _quota_to_cpus(text: str) -> object:
    if not text.isascii() or not text.isdigit():
        raise InvalidRequest(f"write a whole number; {_QUOTA_OF_ONE_CPU} is one CPU")
    return int(text[:20]) / _QUOTA_OF_ONE_CPU


def as_database(text: str) -> str:
    """Return the address of a database; a plain path is that of a file of SQLite."""
    return text if "://" in text else f"sqlite:///{Path(text).absolute()}"


@dataclass(frozen=True, slots=True)
class Alias:
    """What a foreign name sets, and how its value is put into ours; one that sets nothing says why in `note`."""

    settings: Sequence[SettingPath]
    convert: Callable[[str], object] = _keep
    note: str = ""


ALIASES: Mapping[str, Alias] = {
    "CONTAINER_CPU_QUOTA": Alias(
        [("limits", "cpus")], _quota_to_cpus, f"divided by {_QUOTA_OF_ONE_CPU}"
    ),
    "CONTAINER_EXECUTION_TIMEOUT_SECONDS": Alias([("execution", "timeout_seconds")]),
    "CONTAINER_HOST": Alias([("containers", "podman_endpoint")]),
    "CONTAINER_MAX_SESSIONS": Alias([("quotas", "most_sandboxes")]),
    "CONTAINER_MAX_SESSIONS_PER_THREAD": Alias([("quotas", "most_per_owner")]),
    "CONTAINER_MEMORY_LIMIT": Alias([("limits", "memory_bytes")]),
    "CONTAINER_ORPHAN_MIN_AGE_SECONDS": Alias([("node", "orphan_age_seconds")]),
    "CONTAINER_PIDS_LIMIT": Alias([("limits", "processes")]),
    "CONTAINER_TMPFS_SIZE": Alias(
        [("limits", "workspace_bytes"), ("limits", "tmp_bytes"), ("limits", "home_bytes")],
        note="each of them",
    ),
    "DATABASE": Alias([("store", "url")], as_database, "a plain path is a file of SQLite"),
    "DEFAULT_CAPABILITIES": Alias(
        [],
        note="sandboxes have no capabilities; containers may be given some (`cap_add`)",
    ),
    "DEFAULT_PIDS_LIMIT": Alias([("limits", "processes")]),
    "DOCKER_CERT_PATH": Alias([("containers", "docker_tls")]),
    "DOCKER_HOST": Alias([("containers", "docker_endpoint")]),
    "GITHUB_CLIENT_ID": Alias([("auth", "github_client_id")]),
    "GITHUB_CLIENT_SECRET": Alias([("auth", "github_client_secret")]),
    "GITHUB_REDIRECT_URI": Alias([("auth", "github_redirect_uri")]),
    "SANDBOX_CPU": Alias([("limits", "cpus")]),
    "SANDBOX_MEMORY": Alias([("limits", "memory_bytes")]),
    "SANDBOX_SECRET": Alias([("auth", "secret")]),
    "SANDBOX_STORAGE": Alias(
        [("workspaces", "size_bytes")], note="of those that are kept; others lie in memory"
    ),
    "SANDBOX_VHOST": Alias([("server", "vhost")]),
    "SESSION_GC_INTERVAL_SECONDS": Alias([("node", "sweep_seconds")]),
    "SESSION_IDLE_TTL_SECONDS": Alias([("lifetimes", "idle_seconds")]),
    "SESSION_MAX_LIFETIME_SECONDS": Alias(
        [("lifetimes", "lifetime_seconds"), ("lifetimes", "most_lifetime_seconds")],
        note="a caller cannot ask for more",
    ),
    "SESSION_SECRET": Alias([], note="sessions are random texts, which no secret has to sign"),
}
