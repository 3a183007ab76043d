"""Every setting of a served node: one frozen model, read once."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
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

from atoll.egress.addresses import parse_opened
from atoll.engines.catalog import DEFAULT_ENGINE, engine_names
from atoll.errors import InvalidRequest
from atoll.model.durations import parse_duration
from atoll.model.limits import Enforcement, Limits
from atoll.model.network import Network, NetworkLimits
from atoll.model.sizes import GIB, MIB, parse_size
from atoll.node.egress import EgressRules
from atoll.node.housekeeping import HousekeepingRules
from atoll.node.lifetimes import LifetimeRules
from atoll.node.quotas import QuotaRules
from atoll.node.workspaces import WorkspaceRules
from atoll.server.setting_sources import SettingPath

_LIFETIMES = LifetimeRules()
_QUOTAS = QuotaRules()
_WORKSPACES = WorkspaceRules()
_EGRESS = EgressRules()
_DAY = 86400.0
# The kernel's limit for the path of a socket, without the zero at its end.
_LONGEST_SOCKET_PATH = 107


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


def _known_database(url: SecretStr) -> SecretStr:
    if not re.match(r"(sqlite|postgres|postgresql)(\+[a-z]+)?://", url.get_secret_value()):
        raise InvalidRequest("it has to begin with sqlite:// or postgresql://")
    return url


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

    def housekeeping(self) -> HousekeepingRules:
        """Return how the data directory is tidied up."""
        return HousekeepingRules(
            self.sweep_seconds,
            self.orphan_age_seconds,
            self.history_days * _DAY,
            self.history_count,
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
        description="How long one may take; without it as long as its sandbox lives.",
    )
    most_timeout_seconds: Seconds | None = Field(
        default=None, gt=0, description="The most that a caller may ask for."
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


class LogSettings(_Group):
    """What the node tells about its work."""

    level: Annotated[Literal["debug", "info", "warning", "error"], BeforeValidator(_small)] = Field(
        default="info", description="The least important events that are told."
    )
    format: Literal["auto", "console", "json"] = Field(
        default="auto", description="`auto`: for people on a terminal, else JSON."
    )


class Settings(_Group):
    """All settings. `server/setting_loader.py` reads them; nothing below the server does."""

    data: PathName = Field(description="The data directory; one node at a time uses it.")
    node: NodeSettings = NodeSettings()
    lifetimes: LifetimeSettings = LifetimeSettings()
    quotas: QuotaSettings = QuotaSettings()
    limits: LimitSettings = LimitSettings()
    workspaces: WorkspaceSettings = WorkspaceSettings()
    egress: EgressSettings = EgressSettings()
    execution: ExecutionSettings = ExecutionSettings()
    store: StoreSettings = StoreSettings()
    log: LogSettings = LogSettings()

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
