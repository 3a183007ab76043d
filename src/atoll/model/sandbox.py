"""What a sandbox is asked to be, and what it is."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from itertools import pairwise
from typing import Any

from atoll.errors import InvalidRequest
from atoll.model.container import ContainerOptions
from atoll.model.ids import SandboxId, WorkspaceId, new_sandbox_id, parse_sandbox_id
from atoll.model.limits import Limits, LimitsInfo, ResolvedLimits
from atoll.model.network import Network, NetworkMode, check_member_name
from atoll.model.packages import check_packages_for
from atoll.model.process import check_environment
from atoll.model.secret import Secret, check_secrets
from atoll.model.template import BASE_TEMPLATE

LOCAL_OWNER = "local"
MAX_LIFETIME_SECONDS = 365 * 86400.0
# Where a sandbox finds what its network needs: `hosts`, certificates, settings of package managers.
NETWORK_FILES = "/etc/atoll"
# Below are ports that only privileged programs may listen on, unless a sandbox is made otherwise.
UNPRIVILEGED_PORT = 1024
# What its `hosts` holds at least.
HOSTS = "127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n"

_HOSTNAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_NAME = re.compile(r"[a-z0-9-]{1,40}")
_OWNER = re.compile(r"[A-Za-z0-9._@:-]{1,80}")
_WORKSPACE = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_LABEL_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,62}")
_MOST_LABELS = 64
_LABEL_CHARACTERS = 256
_METADATA_CHARACTERS = 16384


@dataclass(frozen=True, slots=True)
class Mount:
    """A host directory that the operator lets into sandboxes, at `target` inside."""

    source: str
    target: str
    read_only: bool = True


@dataclass(frozen=True, slots=True)
class KeptWorkspace:
    """Where a workspace that outlives its sandboxes lies on the host, and the most that it may hold.

    What is in the directory is the engine's business; no sandbox ever sees the directory itself.
    """

    directory: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class SandboxSpec:
    """The sandbox that is wanted."""

    id: SandboxId = field(default_factory=new_sandbox_id)
    template: str = BASE_TEMPLATE
    engine: str | None = None  # None: whichever the node uses
    limits: Limits = field(default_factory=Limits)
    env: Mapping[str, str] = field(default_factory=dict)
    hostname: str = "atoll"
    mounts: Sequence[Mount] = ()
    workspace: KeptWorkspace | None = None  # one that outlives the sandbox; else it has its own
    # A kernel will be asked for: make it together with the sandbox, which is quicker.
    kernel: bool = False
    network: Network = field(default_factory=Network)
    # A host directory of the node's that is seen, read-only, as NETWORK_FILES inside: names and certificates.
    network_files: str | None = None
    # Variables whose values in `env` are placeholders → the names of the stored secrets that they stand for.
    secrets: Mapping[str, str] = field(default_factory=dict)
    # What only container engines can do; others refuse it.
    container: ContainerOptions | None = None
    # It can be stopped, and goes on later under the same id. Such a one has a workspace that is kept.
    persistent: bool = False

    def __post_init__(self) -> None:
        parse_sandbox_id(self.id)
        if not isinstance(self.limits, Limits):
            raise InvalidRequest(f"limits is {type(self.limits).__name__}; it has to be Limits")
        if not isinstance(self.hostname, str) or not _HOSTNAME.fullmatch(self.hostname):
            raise InvalidRequest(
                f"hostname {str(self.hostname)[:80]!r} is not 1 to 63 characters of a-z, 0-9 and inner '-'"
            )
        check_environment(self.env)
        _check_mounts(self.mounts)
        if not isinstance(self.network, Network):
            raise InvalidRequest(f"network is {type(self.network).__name__}; it has to be Network")
        if not isinstance(self.persistent, bool):
            raise InvalidRequest(
                f"persistent is {str(self.persistent)[:40]!r}; it has to be true or false"
            )
        if not isinstance(self.container, ContainerOptions | None):
            raise InvalidRequest(
                f"container is {type(self.container).__name__}; it has to be ContainerOptions"
            )

    def refuse_container(self, engine: str) -> None:
        """Raise `InvalidRequest` if it asks for a container, for an engine that makes none."""
        if self.container is not None:
            raise InvalidRequest(
                f"engine {engine} makes no containers; leave image and container out, or ask for engine docker or podman"
            )

    def resolve_limits(self) -> ResolvedLimits:
        """Return all its limits as numbers; raise `InvalidRequest` for impossible ones."""
        if self.workspace is None:
            return self.limits.resolve()
        resolved = self.limits.resolve(workspace_on_disk=True)
        return replace(resolved, workspace_bytes=self.workspace.size_bytes)

    @property
    def lowest_port(self) -> int:
        """The lowest port that can be listened on in it: services of any number may have to be stood in for."""
        if self.network.private is not None:
            return 1  # others may serve any, and may come later
        ports = [port for _host, port in self.network.tcp_places]
        return 1 if min(ports, default=UNPRIVILEGED_PORT) < UNPRIVILEGED_PORT else UNPRIVILEGED_PORT

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values, for `from_json`."""
        # Not asdict() of it all, which would copy every rule of the network.
        plain = {name: getattr(self, name) for name in self.__slots__}
        return {
            **plain,
            "env": dict(self.env),
            "secrets": dict(self.secrets),
            "limits": self.limits.to_json(),
            "mounts": [asdict(mount) for mount in self.mounts],
            "workspace": None if self.workspace is None else asdict(self.workspace),
            "network": self.network.to_json(),
            "container": None if self.container is None else self.container.to_json(),
        }

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> SandboxSpec:
        """Return the spec that `to_json` was called on."""
        workspace, network = fields.get("workspace"), fields.get("network")
        container = fields.get("container")
        return cls(
            **{
                **fields,
                "limits": Limits(**fields["limits"]),
                "mounts": tuple(Mount(**mount) for mount in fields["mounts"]),
                "workspace": None if workspace is None else KeptWorkspace(**workspace),
                # Those of older nodes had none.
                "network": Network() if network is None else Network.from_json(network),
                "container": None if container is None else ContainerOptions.from_json(container),
            }
        )


@dataclass(frozen=True, slots=True)
class Manifest:
    """What is put into a sandbox before its first command."""

    files: Mapping[str, bytes] = field(default_factory=dict)
    directories: Sequence[str] = ()

    def __bool__(self) -> bool:
        return bool(self.files or self.directories)


@dataclass(frozen=True, slots=True)
class SandboxRequest:
    """What a caller asks of a node: a sandbox, whose it is, and how long it is kept."""

    spec: SandboxSpec = field(default_factory=SandboxSpec)
    owner: str = LOCAL_OWNER
    name: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)
    manifest: Manifest = field(default_factory=Manifest)
    # Its own program, started with it; `one_shot`: the sandbox ends with that program.
    command: Sequence[str] | str | None = None
    image_command: bool = False  # without another, it is what the image runs by itself
    interactive: bool = False  # on a terminal
    one_shot: bool = False
    lifetime_seconds: float | None = None  # None: as the node says
    idle_seconds: float | None = None
    workspace: WorkspaceId | None = None  # one that outlives the sandbox
    remove_workspace: bool = False  # with the sandbox
    # By the variables that hold placeholders inside; a text is the name of a stored one.
    secrets: Mapping[str, Secret | str] = field(default_factory=dict)
    # What its template is to hold besides, as `parse_packages` returns it.
    packages: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_secrets(self.secrets)
        if self.packages:
            check_packages_for(self.spec.template)
        if self.secrets and self.spec.network.mode is NetworkMode.NONE:
            raise InvalidRequest(
                "secrets go to hosts that the sandbox may reach; name those with network=[…]"
            )
        check_owner(self.owner)
        if self.name is not None:
            check_name(self.name)
        check_member_name(self.spec.network, self.name)
        check_labels(self.labels)
        _check_metadata(self.metadata)
        if self.spec.persistent:
            self._check_persistent()
        if self.workspace is not None:
            check_workspace(self.workspace)
        elif self.remove_workspace:
            raise InvalidRequest(
                "remove_workspace needs a workspace to remove; one without an id always goes with its sandbox"
            )
        if self.command is None and (self.interactive or self.one_shot):
            raise InvalidRequest("an interactive or one-shot sandbox needs a command to run")
        for name in ("lifetime_seconds", "idle_seconds"):
            _check_seconds(name, getattr(self, name))

    def _check_persistent(self) -> None:
        if self.workspace is None:
            # One of its own, which goes with it.
            object.__setattr__(self, "workspace", WorkspaceId(self.spec.id))
            object.__setattr__(self, "remove_workspace", True)
        given = sorted(name for name, each in self.secrets.items() if isinstance(each, Secret))
        if given:
            raise InvalidRequest(
                f"a persistent sandbox finds its secrets again by their names, and {', '.join(given)} has none;"
                " store it, and give its name"
            )


class SandboxState(StrEnum):
    """Where a sandbox is in its life."""

    CREATING = "creating"
    RUNNING = "running"
    PAUSED = "paused"
    STOPPED = "stopped"  # nothing runs; its files are kept, and it can be resumed
    DESTROYED = "destroyed"
    LOST = "lost"

    @property
    def is_over(self) -> bool:
        """Whether nothing can be done in it any more."""
        return self in (SandboxState.DESTROYED, SandboxState.LOST)


@dataclass(frozen=True, slots=True)
class SandboxInfo:
    """Facts about a sandbox at one moment; what only a node knows has a default."""

    id: SandboxId
    engine: str
    template: str
    state: SandboxState
    limits: LimitsInfo
    owner: str = LOCAL_OWNER
    name: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)
    reason: str = ""  # why it is no more
    created_at: float = 0.0
    ended_at: float | None = None
    last_active_at: float | None = None
    workspace: WorkspaceId | None = None
    hostname: str = ""
    network: Network = field(default_factory=Network)


@dataclass(frozen=True, slots=True)
class WorkspaceInfo:
    """Facts about a workspace that outlives its sandboxes, at one moment."""

    id: WorkspaceId
    owner: str
    size_bytes: int  # the most that it may hold
    used_bytes: int  # of the host's disk
    created_at: float
    last_used_at: float
    sandbox: SandboxId | None = None  # that has it now


def check_owner(owner: str) -> None:
    """Raise `InvalidRequest` unless this can be the name of who owns sandboxes."""
    if not isinstance(owner, str) or not _OWNER.fullmatch(owner):
        raise InvalidRequest(
            f"owner {str(owner)[:80]!r} is not 1 to 80 characters of a-z, A-Z, 0-9 and ._@:-"
        )


def check_name(name: str) -> None:
    """Raise `InvalidRequest` unless this can be the name of a sandbox."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidRequest(
            f"sandbox name {str(name)[:80]!r} is not 1 to 40 characters of a-z, 0-9 and '-'"
        )


def check_workspace(workspace: str) -> None:
    """Raise `InvalidRequest` unless this can be the id of a workspace that is kept."""
    if not isinstance(workspace, str) or not _WORKSPACE.fullmatch(workspace):
        raise InvalidRequest(
            f"workspace id {str(workspace)[:80]!r} is not 1 to 63 characters of a-z, 0-9 and inner '-'"
        )


def check_labels(labels: Mapping[str, str]) -> None:
    """Raise `InvalidRequest` unless these can be labels."""
    if not isinstance(labels, Mapping) or len(labels) > _MOST_LABELS:
        raise InvalidRequest(f"labels have to be at most {_MOST_LABELS} names with values")
    for key, value in labels.items():
        if not isinstance(key, str) or not _LABEL_KEY.fullmatch(key):
            raise InvalidRequest(
                f"label {str(key)[:80]!r} is not 1 to 63 characters of letters, digits and ._/-"
            )
        if not isinstance(value, str) or len(value) > _LABEL_CHARACTERS:
            raise InvalidRequest(
                f"label {key} has to have a text of at most {_LABEL_CHARACTERS} characters"
            )


def _check_metadata(metadata: Mapping[str, str]) -> None:
    if not isinstance(metadata, Mapping) or not all(
        isinstance(text, str) for pair in metadata.items() for text in pair
    ):
        raise InvalidRequest("metadata have to be names and values, all of them texts")
    total = sum(len(key) + len(value) for key, value in metadata.items())
    if total > _METADATA_CHARACTERS:
        raise InvalidRequest(
            f"metadata hold {total} characters, the most is {_METADATA_CHARACTERS}; put large things into files"
        )


def _check_seconds(name: str, seconds: float | None) -> None:
    if seconds is None:
        return
    number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not number or not 0 < seconds <= MAX_LIFETIME_SECONDS:
        raise InvalidRequest(
            f"{name} is {seconds!r}; it has to be more than 0 and at most {MAX_LIFETIME_SECONDS:g} seconds"
        )


def _check_mounts(mounts: Sequence[Mount]) -> None:
    if not isinstance(mounts, Sequence):
        raise InvalidRequest(f"mounts is {type(mounts).__name__}; it has to be a list of Mount")
    for mount in mounts:
        if not isinstance(mount, Mount):
            raise InvalidRequest(f"mount {str(mount)[:80]!r} has to be a Mount")
        for path in (mount.source, mount.target):
            if not isinstance(path, str):
                raise InvalidRequest(f"mount path {path!r} has to be text")
    _check_places([mount.target for mount in mounts])


def _check_places(targets: Sequence[str]) -> None:
    """Refuse a mount within another: whoever makes the place for it would make that in the other's source."""
    for outer, inner in pairwise(sorted(targets, key=lambda target: target.split("/"))):
        if f"{inner}/".startswith(f"{outer}/"):
            raise InvalidRequest(
                f"mount target {inner!r} lies within another, {outer!r}; mount both side by side"
            )
