"""Every setting of a served node: one frozen model, read once."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    SecretStr,
    model_validator,
)
from pydantic.fields import FieldInfo

from atoll.client.containers import check_endpoint, parse_pairs, profile_paths, tls_files
from atoll.egress.addresses import parse_opened
from atoll.engines.catalog import (
    CONTAINER_ENGINES,
    CONTAINER_PRESETS,
    DEFAULT_ENGINE,
    ContainerSettings,
    engine_names,
)
from atoll.errors import InvalidRequest
from atoll.model.container import Runtime
from atoll.model.durations import parse_duration
from atoll.model.limits import Enforcement, Limits
from atoll.model.network import Network, NetworkLimits
from atoll.model.sizes import GIB, MIB, parse_size
from atoll.node.egress import EgressRules
from atoll.node.housekeeping import HousekeepingRules
from atoll.node.lifetimes import LifetimeRules
from atoll.node.pool import MOST_READY, PoolRules
from atoll.node.quotas import QuotaRules
from atoll.node.workspaces import WorkspaceRules
from atoll.server.access import AccessRules, GitHubRules, WayIn
from atoll.server.addresses import is_address
from atoll.server.setting_sources import SettingPath

_LIFETIMES = LifetimeRules()
_QUOTAS = QuotaRules()
_WORKSPACES = WorkspaceRules()
_EGRESS = EgressRules()
_CONTAINERS = ContainerSettings()
_DAY = 86400.0
# The kernel's limit for the path of a socket, without the zero at its end.
_LONGEST_SOCKET_PATH = 107
_LONGEST_TEXT = 1000


def _whole_number(value: object) -> object:
    # Variables are text, and `true` would pass for 1.
    if isinstance(value, str) and re.fullmatch(r"[0-9]{1,15}", value):
        return int(value)
    if type(value) is not int:
        raise InvalidRequest("it has to be a whole number, without a unit")
    return value


def _number(value: object) -> object:
    if isinstance(value, str) and re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", value):
        return float(value)
    if type(value) not in (int, float):
        raise InvalidRequest("it has to be a number, such as 1.5")
    return value


def _switch(value: object) -> object:
    if value in ("true", "false"):
        return value == "true"
    if type(value) is not bool:
        raise InvalidRequest("it has to be true or false")
    return value


def _texts(value: object) -> object:
    # Variables are one text.
    texts = value.split(",") if isinstance(value, str) else value
    if not isinstance(texts, list | tuple) or not all(isinstance(each, str) for each in texts):
        raise InvalidRequest(
            "it has to be a list of texts; in a variable they stand between commas"
        )
    return tuple(text.strip() for text in texts)


def _absolute(value: object) -> object:
    if not isinstance(value, str | Path) or not str(value) or not str(value).isprintable():
        raise InvalidRequest("it has to be the path of a file or a directory")
    return Path(value).absolute()


def _small(value: object) -> object:
    return value.lower() if isinstance(value, str) else value


def _known_engine(name: str) -> str:
    if name not in engine_names():
        raise InvalidRequest(f"there is no such engine; there is: {', '.join(engine_names())}")
    return name


def _host(text: str) -> str:
    name = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    if not is_address(name) and not re.fullmatch(r"[A-Za-z0-9_.-]{1,253}", name):
        raise InvalidRequest("it has to be an address or a name, without a port")
    return name


def _vhost(text: str) -> str:
    if not re.fullmatch(r"(https?://)?[a-z0-9_.-]{1,253}(:[0-9]{1,5})?", text):
        raise InvalidRequest("it has to be a name, such as atoll.example or https://atoll.example")
    return text


def _known_runtimes(texts: tuple[str, ...]) -> tuple[Runtime, ...]:
    known: dict[str, Runtime] = {each: each for each in get_args(Runtime)}
    for text in texts:
        if text not in known:
            raise InvalidRequest(f"{text[:80]!r} is none of {', '.join(known)}")
    return tuple(known[text] for text in texts)


def _capabilities(texts: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(text.upper().removeprefix("CAP_") for text in texts)


def _known_engines(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(_known_engine(name) for name in names)


def _directories(texts: tuple[str, ...]) -> tuple[str, ...]:
    for text in texts:
        if not text.startswith("/") or ".." in Path(text).parts:
            raise InvalidRequest(f"{text[:80]!r} is no absolute path of a directory")
    return texts


def _hosts(texts: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(_host(text) for text in texts)


def _origins(texts: tuple[str, ...]) -> tuple[str, ...]:
    for text in texts:
        if not re.fullmatch(r"https?://[a-z0-9_.-]{1,253}(:[0-9]{1,5})?", text):
            raise InvalidRequest(
                f"{text[:80]!r} is no origin, such as https://page.example or http://localhost:3000"
            )
    return texts


def _addresses(texts: tuple[str, ...]) -> tuple[str, ...]:
    for text in texts:
        if not is_address(text):
            raise InvalidRequest(f"{text[:80]!r} is no address, such as 127.0.0.1")
    return texts


def _known_database(url: SecretStr) -> SecretStr:
    if not re.match(r"(sqlite|postgres|postgresql)(\+[a-z]+)?://", url.get_secret_value()):
        raise InvalidRequest("it has to begin with sqlite:// or postgresql://")
    return url


def _printable(text: str) -> str:
    if not text or len(text) > _LONGEST_TEXT or not text.isascii() or not text.isprintable():
        raise InvalidRequest(f"it has to be 1 to {_LONGEST_TEXT} printable ASCII characters")
    return text


def _printable_secret(secret: SecretStr) -> SecretStr:
    _printable(secret.get_secret_value())
    return secret


def _web_address(text: str) -> str:
    if not re.match(r"https?://[^/?#\s]+", _printable(text)):
        raise InvalidRequest("it has to be an address such as https://name")
    return text


Count = Annotated[int, BeforeValidator(_whole_number)]
Number = Annotated[float, BeforeValidator(_number)]
Bytes = Annotated[int, BeforeValidator(parse_size)]
Seconds = Annotated[float, BeforeValidator(parse_duration)]
Switch = Annotated[bool, BeforeValidator(_switch)]
Texts = Annotated[tuple[str, ...], BeforeValidator(_texts)]
PathName = Annotated[Path, BeforeValidator(_absolute)]


class _Group(BaseModel):
    # hide_input_in_errors: whatever is done with such an error, no secret is printed with it.
    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, hide_input_in_errors=True
    )


class NodeSettings(_Group):
    """The node itself."""

    engine: Annotated[str, AfterValidator(_known_engine)] = Field(
        default=DEFAULT_ENGINE, description="The engine that makes sandboxes; there is no fallback."
    )
    engines: Annotated[Texts, AfterValidator(_known_engines)] = Field(
        default=(), description="Engines that a request may name besides."
    )
    on_exit: Literal["keep", "stop"] = Field(
        default="keep", description="What becomes of living sandboxes when the node is told to end."
    )
    lease_seconds: Seconds = Field(
        default=60.0, ge=1, le=_DAY, description="How long sandboxes go on without a node."
    )
    sweep_seconds: Seconds = Field(
        default=60.0, ge=1, le=3600, description="How often the node looks for what nobody owns."
    )
    orphan_age_seconds: Seconds = Field(
        default=300.0, ge=1, le=_DAY, description="Younger things that nobody owns are left alone."
    )
    mounts: Annotated[Texts, AfterValidator(_directories)] = Field(
        default=(),
        description="Directories of this machine that callers may have mounted, with all below them; without it none.",
    )
    writable_mounts: Switch = Field(
        default=False,
        description="Whether callers may write there; who does shares files with all others who may.",
    )
    socket: PathName | None = Field(
        default=None,
        description="Where the node listens; without it `node.sock` in the data directory.",
    )
    history_days: Count = Field(
        default=30, ge=1, le=36500, description="How long records of ended sandboxes are kept."
    )
    history_count: Count = Field(
        default=10_000,
        ge=1,
        le=10_000_000,
        description="How many records of ended sandboxes are kept.",
    )

    image_registries: Texts = Field(
        default=(),
        description="Registries, `host` or `host:port`, whose images templates may be built of over HTTP; the operator of this machine may use any.",
    )

    def housekeeping(self) -> HousekeepingRules:
        """Return how the data directory is tidied up."""
        return HousekeepingRules(
            self.sweep_seconds,
            self.orphan_age_seconds,
            self.history_days * _DAY,
            self.history_count,
        )


class ContainersSettings(_Group):
    """Containers of the engines `docker` and `podman`: where those are, and what callers may ask of them."""

    docker_endpoint: str | None = Field(
        default=None,
        description="Where Docker listens, `unix:///path` or `tcp://host:port`; without it `/run/docker.sock`.",
    )
    docker_tls: PathName | None = Field(
        default=None,
        description="The directory with `ca.pem`, `cert.pem` and `key.pem` for a Docker behind TCP.",
    )
    podman_endpoint: str | None = Field(
        default=None,
        description="Where Podman listens, likewise; without it the usual socket of this user.",
    )
    podman_tls: PathName | None = Field(
        default=None, description="The directory with the same files for a Podman behind TCP."
    )
    runtime: Runtime | None = Field(
        default=None,
        description="What runs containers whose callers name none: `runc`, `crun` or `runsc`; without it as the engine says.",
    )
    runtimes: Annotated[Texts, AfterValidator(_known_runtimes)] = Field(
        default=(),
        description="Those that callers may name; without it only `runtime`, or all three if that is not set either.",
    )
    images: Texts = Field(
        default=(),
        description="Which image a template is, each `template=image`, and no others; without it well-known ones.",
    )
    any_image: Switch = Field(
        default=_CONTAINERS.any_image,
        description="Whether callers may name images that are not among those.",
    )
    registries: Texts = Field(
        default=(),
        description="Registries, `host` or `host:port`, that images which callers name may be fetched from, besides Docker Hub; what is here already needs none.",
    )
    networks: Texts = Field(
        default=(),
        description="Networks of the engine that callers may name: `bridge`, `host`, or one's own; without it none.",
    )
    volumes: Texts = Field(
        default=(),
        description="Volumes that callers may name as a workspace, as patterns such as `team-*`.",
    )
    capabilities: Annotated[Texts, AfterValidator(_capabilities)] = Field(
        default=(), description="Capabilities that callers may add, such as `NET_BIND_SERVICE`."
    )
    seccomp_profiles: Texts = Field(
        default=(),
        description="Lists of system calls that callers may name instead of Atoll's own, each `name=/path.json`.",
    )
    allow_root: Switch = Field(
        default=_CONTAINERS.allow_root, description="Whether callers may be root inside."
    )
    allow_writable_root: Switch = Field(
        default=_CONTAINERS.allow_writable_root,
        description="Whether callers may have a root that can be written.",
    )
    root_bytes: Bytes | None = Field(
        default=_CONTAINERS.root_bytes,
        description="The most that is written to such a root, by Docker on storage that holds it to that; without it nothing does. Callers may ask for less.",
    )
    own_ids: Switch = Field(
        default=_CONTAINERS.own_ids,
        description="Whether every container has ids on the host that no other one has, or is refused; see [engines](engines.md#ids-of-ones-own).",
    )
    pull_seconds: Seconds = Field(
        default=_CONTAINERS.pull_seconds,
        ge=1,
        le=_DAY,
        description="How long fetching an image may take.",
    )

    @model_validator(mode="after")
    def _can_be_read(self) -> ContainersSettings:
        self._pairs("images", "python=python:3.13")
        profile_paths(self._pairs("seccomp_profiles", "strict=/etc/atoll/strict.json"))
        return self

    def _pairs(self, setting: str, example: str) -> dict[str, str]:
        try:
            return parse_pairs(getattr(self, setting), example)
        except InvalidRequest as error:
            raise InvalidRequest(error.message, setting=setting) from error

    def _allowed_runtimes(self) -> Sequence[Runtime]:
        if self.runtimes:
            return _known_runtimes(self.runtimes)
        # Whoever has everything run under gVisor does not want a request to say otherwise.
        return _CONTAINERS.runtimes if self.runtime is None else (self.runtime,)

    def check_reachable(self, engine: str) -> None:
        """Raise `InvalidRequest` if an engine is said to be where it cannot be."""
        setting = f"{engine}_endpoint"
        endpoint = getattr(self, setting)
        try:
            check_endpoint(endpoint or "unix:///")
        except InvalidRequest as error:
            raise InvalidRequest(error.message, setting=f"containers.{setting}") from error

    def rules(self, engine: str) -> ContainerSettings | None:
        """Return them as an engine takes them; None for one that makes no containers."""
        if engine not in CONTAINER_ENGINES:
            return None
        profiles = self._pairs("seccomp_profiles", "")
        return ContainerSettings(
            endpoint=getattr(self, f"{engine}_endpoint") or "",
            tls=tls_files(getattr(self, f"{engine}_tls")),
            runtime=self.runtime,
            runtimes=self._allowed_runtimes(),
            images=self._pairs("images", "") or CONTAINER_PRESETS,
            any_image=self.any_image,
            registries=self.registries,
            networks=self.networks,
            volumes=self.volumes,
            capabilities=self.capabilities,
            seccomp_profiles=profile_paths(profiles),
            allow_root=self.allow_root,
            allow_writable_root=self.allow_writable_root,
            root_bytes=self.root_bytes,
            own_ids=self.own_ids,
            pull_seconds=self.pull_seconds,
        )


class LifetimeSettings(_Group):
    """When sandboxes end by themselves."""

    lifetime_seconds: Seconds | None = Field(
        default=_LIFETIMES.lifetime_seconds, ge=1, description="How long a sandbox lives at most."
    )
    idle_seconds: Seconds | None = Field(
        default=_LIFETIMES.idle_seconds,
        ge=1,
        description="How long a sandbox lives without being used.",
    )
    most_lifetime_seconds: Seconds | None = Field(
        default=_LIFETIMES.most_lifetime_seconds,
        ge=1,
        description="The most that a caller may ask for.",
    )
    most_idle_seconds: Seconds | None = Field(
        default=_LIFETIMES.most_idle_seconds,
        ge=1,
        description="The most that a caller may ask for.",
    )
    newest_kept: Count | None = Field(
        default=_LIFETIMES.newest_kept,
        ge=1,
        description="How many sandboxes of an owner are kept; the longest unused end first.",
    )

    def rules(self) -> LifetimeRules:
        """Return them as the node takes them."""
        return LifetimeRules(**self.model_dump())


class QuotaSettings(_Group):
    """How many sandboxes there may be at once."""

    most_sandboxes: Count | None = Field(
        default=_QUOTAS.most_sandboxes,
        ge=1,
        le=1_000_000,
        description="Sandboxes of this node; without it as many as fit into memory.",
    )
    most_per_owner: Count | None = Field(
        default=_QUOTAS.most_per_owner, ge=1, le=1_000_000, description="Sandboxes of one owner."
    )
    reserve_bytes: Bytes = Field(
        default=_QUOTAS.reserve_bytes,
        ge=16 * MIB,
        description="Memory of the machine that sandboxes leave free.",
    )

    def rules(self) -> QuotaRules:
        """Return them as the node takes them."""
        return QuotaRules(**self.model_dump())


class PoolSettings(_Group):
    """Sandboxes that are made ahead."""

    ready: Texts = Field(
        default=(),
        description="What is kept ready for everybody, each `python=4` of the node's engine, `gvisor/python=2`"
        " or, with an image, `docker:debian:12=2`.",
    )
    ready_idle_seconds: Seconds | None = Field(
        default=None,
        ge=1,
        description="Those that nobody asked for in so long are destroyed until somebody does; without it they stay.",
    )
    most_ready_per_owner: Count = Field(
        default=10,
        ge=0,
        le=MOST_READY,
        description="How many each owner may keep ready for himself.",
    )
    most_ready_idle_seconds: Seconds = Field(
        default=600.0,
        ge=1,
        le=_DAY,
        description="How long those wait at most for an owner who does not come.",
    )

    @model_validator(mode="after")
    def _can_be_read(self) -> PoolSettings:
        self.wishes()
        return self

    def wishes(self) -> Sequence[ReadyWish]:
        """Return what is to be ready."""
        return [_ready_wish(text) for text in self.ready]

    def rules(self) -> PoolRules:
        """Return them as the node takes them."""
        return PoolRules(self.most_ready_per_owner, self.most_ready_idle_seconds)


@dataclass(frozen=True, slots=True)
class ReadyWish:
    """Sandboxes of which the operator wants so many to be ready."""

    engine: str | None  # None: the node's own
    template: str | None
    image: str | None
    count: int


def _ready_wish(text: str) -> ReadyWish:
    match = re.fullmatch(r"(?:([a-z]+)([/:]))?([a-zA-Z0-9][^\s=]*)=([0-9]{1,4})", text)
    if match is None or int(match[4]) > MOST_READY:
        raise InvalidRequest(
            f"{text[:80]!r} is not template=count, engine/template=count or engine:image=count, with at most {MOST_READY}",
            setting="ready",
        )
    engine, sign, name, count = match.groups()
    if engine is not None:
        _known_engine(engine)
    if sign == ":" and engine not in CONTAINER_ENGINES:
        raise InvalidRequest(
            f"engine {engine} has no images; write {engine}/template", setting="ready"
        )
    is_image = sign == ":"
    return ReadyWish(engine, None if is_image else name, name if is_image else None, int(count))


class LimitSettings(_Group):
    """What a sandbox may use unless its caller says otherwise; trees are made smaller to fit into less memory."""

    memory_bytes: Bytes | None = Field(default=None, description="Memory, without swap.")
    cpus: Number | None = Field(default=None, description="Processors.")
    processes: Count | None = Field(default=None, description="Processes and threads.")
    workspace_bytes: Bytes | None = Field(default=None, description="Files in the workspace.")
    tmp_bytes: Bytes | None = Field(default=None, description="Files in `/tmp`.")
    home_bytes: Bytes | None = Field(default=None, description="Files in the home directory.")
    shm_bytes: Bytes | None = Field(default=None, description="Shared memory.")
    inodes: Count | None = Field(default=None, description="Files and directories of each tree.")
    open_files: Count | None = Field(default=None, description="Open files of each process.")
    file_bytes: Bytes | None = Field(default=None, description="Size of one file.")
    enforcement: Enforcement = Field(
        default=Limits().enforcement,
        description="Whether a limit written here may be left to the best effort of an engine.",
    )

    @model_validator(mode="after")
    def _can_be_had(self) -> LimitSettings:
        self.chosen().resolve()
        return self

    def chosen(self) -> Limits:
        """Return the limits that were written, and no others."""
        return Limits(**self.model_dump())


class WorkspaceSettings(_Group):
    """Workspaces that outlive their sandboxes."""

    size_bytes: Bytes = Field(
        default=_WORKSPACES.size_bytes,
        ge=16 * MIB,
        description="How much one may hold whose owner does not say.",
    )
    total_bytes: Bytes | None = Field(
        default=_WORKSPACES.total_bytes,
        ge=16 * MIB,
        description="How much all may hold together; without it as much as the disk has room for.",
    )
    per_owner: Count | None = Field(
        default=_WORKSPACES.per_owner,
        ge=0,
        le=1_000_000,
        description="How many one owner may have.",
    )
    bytes_per_owner: Bytes | None = Field(
        default=_WORKSPACES.bytes_per_owner,
        ge=16 * MIB,
        description="How much all of one owner may hold together, used or not.",
    )

    def rules(self) -> WorkspaceRules:
        """Return them as the node takes them."""
        return WorkspaceRules(**self.model_dump())


class EgressSettings(_Group):
    """What sandboxes may reach; see the page on the network."""

    allow_open: Switch = Field(
        default=False, description="Whether a caller may ask for network `open`."
    )
    opened: Texts = Field(
        default=(),
        description="Exact names that may lie in a private network, each `name=network`.",
    )
    open_registries: Switch = Field(
        default=_EGRESS.open_registries,
        description="Whether the package indexes of this machine's configuration may lie in one.",
    )
    dns: Texts = Field(
        default=(), description="Addresses of name servers; without it those of the machine."
    )
    ca_bundle: PathName | None = Field(
        default=None,
        description="Certificates that verify hosts whose requests are looked at; without it the machine's.",
    )
    connections: Count = Field(
        default=_EGRESS.limits.connections,
        ge=1,
        le=10_000,
        description="Connections of one sandbox at once.",
    )
    connections_per_second: Count = Field(
        default=_EGRESS.limits.connections_per_second,
        ge=1,
        le=10_000,
        description="New connections of one sandbox each second.",
    )
    upload_bytes: Bytes | None = Field(
        default=None, ge=1, description="How much a sandbox may send in its life."
    )
    download_bytes: Bytes | None = Field(
        default=None, ge=1, description="How much a sandbox may fetch in its life."
    )

    @model_validator(mode="after")
    def _can_be_read(self) -> EgressSettings:
        parse_opened(self._opened())
        try:
            Network(dns=self.dns)
        except InvalidRequest as error:
            raise InvalidRequest(error.message, setting="dns") from error
        return self

    def _opened(self) -> dict[str, list[str]]:
        opened: dict[str, list[str]] = {}
        for text in self.opened:
            name, equals, network = text.partition("=")
            if not equals:
                raise InvalidRequest(
                    f"{text[:80]!r} is not name=network, such as index.example=10.20.0.0/16",
                    setting="opened",
                )
            opened.setdefault(name.strip(), []).append(network.strip())
        return opened

    def rules(self, environ: Mapping[str, str]) -> EgressRules:
        """Return them as the node takes them; `environ` names the package indexes of this machine."""
        limits = NetworkLimits(
            self.connections,
            self.connections_per_second,
            self.upload_bytes,
            self.download_bytes,
        )
        return EgressRules(
            allow_open=self.allow_open,
            opened=self._opened(),
            dns=self.dns,
            limits=limits,
            open_registries=self.open_registries,
            environ=environ,
            trusted=self._trusted(),
        )

    def _trusted(self) -> str | None:
        if self.ca_bundle is None:
            return None
        try:
            return self.ca_bundle.read_text("ascii")
        except (OSError, ValueError) as error:
            raise InvalidRequest(
                f"egress.ca_bundle, {self.ca_bundle}, cannot be read: {error}"
            ) from error


class ExecutionSettings(_Group):
    """Commands, cells and terminals."""

    timeout_seconds: Seconds | None = Field(
        default=None,
        gt=0,
        description="How long a command may take; without it as long as its sandbox lives.",
    )
    most_timeout_seconds: Seconds | None = Field(
        default=None, gt=0, description="The most that a caller may ask for."
    )
    cell_timeout_seconds: Seconds = Field(
        default=30.0, gt=0, description="How long a cell may take whose caller does not say."
    )
    most_cell_timeout_seconds: Seconds = Field(
        default=300.0, gt=0, description="The most that a caller may ask for."
    )
    log_bytes: Bytes = Field(
        default=64 * MIB,
        ge=4096,
        le=64 * GIB,
        description="How much of each output stream is kept.",
    )
    result_bytes: Bytes = Field(
        default=MIB, le=GIB, description="How much of each output stream comes with a result."
    )
    on_disconnect: Literal["continue", "cancel"] = Field(
        default="continue", description="What becomes of it when its reader goes away."
    )
    slow_reader_seconds: Seconds = Field(
        default=30.0,
        ge=1,
        le=3600,
        description="A reader that takes nothing for so long is cut off.",
    )


class StoreSettings(_Group):
    """Where records are kept."""

    url: Annotated[SecretStr, AfterValidator(_known_database)] | None = Field(
        default=None, description="The database; without it SQLite in the data directory."
    )
    key_file: PathName | None = Field(
        default=None,
        description="The keys that secrets are sealed with; without it `secrets.key` in the data directory.",
    )


class ServerSettings(_Group):
    """The address at which `atoll up` serves everybody who shows who he is; see [the server](server.md)."""

    host: Annotated[str, AfterValidator(_host)] = Field(
        default="127.0.0.1", description="Where to listen; beyond this machine only with tokens."
    )
    port: Count = Field(
        default=8000, ge=0, le=65535, description="The port; 0 is any that is free."
    )
    vhost: Annotated[str, AfterValidator(_vhost)] | None = Field(
        default=None,
        description="The name by which it is known; with `https://` in front if a proxy before it speaks TLS.",
    )
    hosts: Annotated[Texts, AfterValidator(_hosts)] = Field(
        default=(), description="Further names that it answers to, beside those of this machine."
    )
    cors_origins: Annotated[Texts, AfterValidator(_origins)] = Field(
        default=(),
        description="Pages of others that may ask, as `https://name`; never with cookies.",
    )
    proxies: Annotated[Texts, AfterValidator(_addresses)] = Field(
        default=(), description="Addresses of proxies whose `X-Forwarded-For` is believed."
    )
    requests_per_second: Count = Field(
        default=2000, ge=1, le=1_000_000, description="Requests with one token each second."
    )
    requests_per_address: Count = Field(
        default=4000, ge=1, le=1_000_000, description="Requests of one address each second."
    )
    strangers_per_second: Count = Field(
        default=20,
        ge=1,
        le=1_000_000,
        description="Requests of one address without a token each second.",
    )
    most_connections: Count = Field(
        default=2000, ge=1, le=1_000_000, description="Connections at once."
    )
    most_connections_per_address: Count = Field(
        default=1000, ge=1, le=1_000_000, description="Connections of one address at once."
    )
    head_seconds: Seconds = Field(
        default=10.0, ge=0.1, le=3600, description="How long the head of a request may take."
    )
    body_seconds: Seconds = Field(
        default=30.0, ge=0.1, le=3600, description="How long a body may bring nothing."
    )

    @property
    def is_secure(self) -> bool:
        """Whether browsers come by https."""
        return self.vhost is not None and self.vhost.startswith("https://")

    @property
    def names(self) -> tuple[str, ...]:
        """The hosts that requests may be for, beside those of this machine."""
        return tuple(each for each in (self.host, self.vhost, *self.hosts) if each is not None)

    def url(self, port: int) -> str:
        """Return the address that people use, if it listens at `port`."""
        if self.vhost is not None:
            return self._vhost_url(port)
        host = "127.0.0.1" if self.host in ("0.0.0.0", "::") else self.host
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    def _vhost_url(self, port: int) -> str:
        assert self.vhost is not None
        if "://" in self.vhost:
            return self.vhost
        return f"http://{self.vhost}" if ":" in self.vhost else f"http://{self.vhost}:{port}"


class AuthSettings(_Group):
    """Who may come in at that address; see [access](access.md). The node's own socket is its user's alone."""

    ways: Annotated[tuple[WayIn, ...], BeforeValidator(_texts)] | None = Field(
        default=None,
        description="Which of `token`, `secret`, `github` let somebody in, or `none` for everybody;"
        " without it `token`, and the others as far as they are set up.",
    )
    secret: Annotated[SecretStr, AfterValidator(_printable_secret)] | None = Field(
        default=None,
        description="One secret that everybody shows as a token, to be the first user.",
    )
    session_hours: Number = Field(
        default=12.0, ge=0.01, le=720, description="How long a browser stays logged in."
    )
    github_client_id: Annotated[str, AfterValidator(_printable)] | None = Field(
        default=None, description="The application at GitHub that people log in by."
    )
    github_client_secret: Annotated[SecretStr, AfterValidator(_printable_secret)] | None = Field(
        default=None, description="The secret of that application."
    )
    github_redirect_uri: Annotated[str, AfterValidator(_web_address)] | None = Field(
        default=None,
        description="Where GitHub sends browsers back to, as `https://name/auth/github/callback`;"
        " without it where the application says there.",
    )
    github_logins: Texts = Field(
        default=(), description="Who may log in by GitHub, by the name there."
    )
    github_any: Switch = Field(
        default=False, description="Whether everybody with an account at GitHub may log in."
    )
    github_url: Annotated[str, AfterValidator(_web_address)] = Field(
        default="https://github.com", description="Where people log in; for GitHub of one's own."
    )
    github_api_url: Annotated[str, AfterValidator(_web_address)] = Field(
        default="https://api.github.com", description="Where its API is."
    )

    @model_validator(mode="after")
    def _fit_together(self) -> AuthSettings:
        ways = self.ways or ()
        if (self.github_client_id is None) != (self.github_client_secret is None):
            raise InvalidRequest("github_client_id and github_client_secret go together")
        if "none" in ways and len(ways) > 1:
            raise InvalidRequest("'none' lets everybody in, so nothing else goes with it")
        if "github" in ways and self.github_client_id is None:
            raise InvalidRequest("'github' needs github_client_id", setting="ways")
        if "secret" in ways and self.secret is None:
            raise InvalidRequest("'secret' needs auth.secret", setting="ways")
        if self.ways == ():
            raise InvalidRequest("there has to be a way in", setting="ways")
        return self

    @property
    def all_ways(self) -> frozenset[WayIn]:
        """The ways in that are open."""
        if self.ways is not None:
            return frozenset(self.ways)
        found: set[WayIn] = {"token"}
        if self.secret is not None:
            found.add("secret")
        if self.github_client_id is not None:
            found.add("github")
        return frozenset(found)

    def rules(self, *, is_secure: bool) -> AccessRules:
        """Return them as `Access` takes them; `is_secure` says whether browsers come by https."""
        return AccessRules(
            ways=self.all_ways,
            secret=None if self.secret is None else self.secret.get_secret_value(),
            github=self._github(),
            session_seconds=self.session_hours * 3600,
            is_secure=is_secure,
        )

    def _github(self) -> GitHubRules | None:
        if self.github_client_id is None or self.github_client_secret is None:
            return None
        return GitHubRules(
            client_id=self.github_client_id,
            client_secret=self.github_client_secret.get_secret_value(),
            redirect_uri=self.github_redirect_uri,
            logins=frozenset(login.lower() for login in self.github_logins),
            allow_any=self.github_any,
            url=self.github_url.rstrip("/"),
            api_url=self.github_api_url.rstrip("/"),
        )


class LogSettings(_Group):
    """What the node tells about its work."""

    level: Annotated[Literal["debug", "info", "warning", "error"], BeforeValidator(_small)] = Field(
        default="info", description="The least important events that are told."
    )
    format: Literal["auto", "console", "json"] = Field(
        default="auto", description="`auto`: for people on a terminal, else JSON."
    )


class TraceSettings(_Group):
    """Spans of requests, for OpenTelemetry; they need `pip install 'atoll[otel]'`."""

    otlp_url: Annotated[str, AfterValidator(_web_address)] | None = Field(
        default=None,
        description="Where they go, as `http://127.0.0.1:4318/v1/traces`; without it there are none.",
    )


class Settings(_Group):
    """All settings. `server/setting_loader.py` reads them; nothing below the server does."""

    data: PathName = Field(description="The data directory; one node at a time uses it.")
    node: NodeSettings = NodeSettings()
    containers: ContainersSettings = ContainersSettings()
    lifetimes: LifetimeSettings = LifetimeSettings()
    quotas: QuotaSettings = QuotaSettings()
    pools: PoolSettings = PoolSettings()
    limits: LimitSettings = LimitSettings()
    workspaces: WorkspaceSettings = WorkspaceSettings()
    egress: EgressSettings = EgressSettings()
    execution: ExecutionSettings = ExecutionSettings()
    store: StoreSettings = StoreSettings()
    server: ServerSettings = ServerSettings()
    auth: AuthSettings = AuthSettings()
    log: LogSettings = LogSettings()
    trace: TraceSettings = TraceSettings()

    _warnings: tuple[str, ...] = PrivateAttr(())

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the operator should know, though it stops nothing; to be logged once there are logs."""
        return self._warnings

    def with_warnings(self, warnings: Sequence[str]) -> Settings:
        """Return the same settings with something that the operator should know."""
        copy = self.model_copy()
        copy._warnings = tuple(warnings)
        return copy

    @property
    def socket_path(self) -> Path:
        """Where the node listens."""
        return self.node.socket or self.data / "node.sock"

    @model_validator(mode="after")
    def _engines_can_be_reached(self) -> Settings:
        # Only those that are used: a variable of Docker's own may be meant for other programs.
        for engine in {self.node.engine, *self.node.engines} & {*CONTAINER_ENGINES}:
            self.containers.check_reachable(engine)
        return self

    @model_validator(mode="after")
    def _pools_have_engines(self) -> Settings:
        engines = (self.node.engine, *self.node.engines)
        for wish in self.pools.wishes():
            if wish.engine not in (None, *engines):
                raise InvalidRequest(
                    f"engine {wish.engine} is none of this node's, which are: {', '.join(engines)}; add it to node.engines",
                    setting="pools.ready",
                )
        return self

    @model_validator(mode="after")
    def _socket_has_room(self) -> Settings:
        length = len(str(self.socket_path).encode())
        if length > _LONGEST_SOCKET_PATH:
            raise InvalidRequest(
                f"the socket's path takes {length} bytes, the most is {_LONGEST_SOCKET_PATH};"
                " set node.socket to a shorter one",
                setting="node.socket" if self.node.socket else "data",
            )
        return self


def every_setting() -> Iterator[tuple[SettingPath, FieldInfo]]:
    """Yield each setting's path and description."""
    for name, field in Settings.model_fields.items():
        group = field.annotation
        if isinstance(group, type) and issubclass(group, _Group):
            for inner, each in group.model_fields.items():
                yield (name, inner), each
        else:
            yield (name,), field


def is_secret(field: FieldInfo) -> bool:
    """Whether a setting's value must not be shown."""
    return any(SecretStr in get_args(each) for each in get_args(field.annotation))
