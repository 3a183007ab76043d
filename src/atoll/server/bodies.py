"""What callers send, as models that refuse what they do not know."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    model_validator,
)

from atoll.client.calls import make_container
from atoll.engines.catalog import CONTAINER_ENGINES
from atoll.errors import InvalidRequest
from atoll.model.container import DEFAULT_USER, ContainerOptions, PullPolicy, Runtime
from atoll.model.durations import parse_duration
from atoll.model.ids import WorkspaceId, new_sandbox_id, parse_sandbox_id
from atoll.model.limits import Enforcement, Limits
from atoll.model.network import Network, NetworkLimits
from atoll.model.packages import parse_packages_for
from atoll.model.process import Command, TerminalSize
from atoll.model.sandbox import Manifest, Mount, SandboxRequest, SandboxSpec
from atoll.model.secret import Secret
from atoll.model.sizes import parse_size
from atoll.model.template import PYTHON_TEMPLATE
from atoll.server.labels import INTERACTIVE, LABEL, ONE_SHOT, PLANNED, check_not_own

OnDisconnect = Literal["continue", "cancel"]

# What an interactive sandbox runs that was not told what to run.
_SHELL = "command -v bash > /dev/null && exec bash -i; exec sh -i"


def _decode(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError, TypeError) as error:
        raise InvalidRequest("this is not base64") from error


def _positive(seconds: float) -> float:
    if seconds <= 0:
        raise InvalidRequest("it has to be more than 0 seconds")
    return seconds


def _encodable(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest("this text holds half a character") from error
    return text


Text = Annotated[str, AfterValidator(_encodable)]
Bytes = Annotated[int, BeforeValidator(parse_size)]
Seconds = Annotated[float, BeforeValidator(parse_duration), AfterValidator(_positive)]
Texts = dict[Text, Text]
Labels = Annotated[Texts, AfterValidator(check_not_own)]


class Body(BaseModel):
    """What a request holds."""

    # Bytes as they came: a keyed request is told from others by what it holds, whatever bytes that is.
    model_config = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=False, ser_json_bytes="base64"
    )


class LimitsBody(Body):
    """Limits; sizes are bytes, or text such as `256m`."""

    memory_bytes: Bytes | None = Field(default=None, alias="memory")
    cpus: float | None = None
    processes: int | None = None
    workspace_bytes: Bytes | None = None
    tmp_bytes: Bytes | None = None
    home_bytes: Bytes | None = None
    shm_bytes: Bytes | None = None
    inodes: int | None = None
    open_files: int | None = None
    file_bytes: Bytes | None = None
    enforcement: Enforcement | None = None

    model_config = ConfigDict(extra="forbid", frozen=True, validate_by_name=True)

    def over(self, usual: Limits) -> Limits:
        """Return these limits where they are written, else the usual ones."""
        written = self.model_dump(exclude_none=True)
        usual_ones = {name: getattr(usual, name) for name in Limits.__slots__}
        return Limits(**{**usual_ones, **written})


class FileContent(Body):
    """What is in a file that is no text."""

    data: Annotated[bytes, BeforeValidator(_decode)] = Field(alias="base64")


class NetworkLimitsBody(Body):
    """The most that a sandbox may send and fetch."""

    connections: int | None = None
    connections_per_second: int | None = None
    upload_bytes: Bytes | None = None
    download_bytes: Bytes | None = None


class NetworkBody(Body):
    """What a sandbox may reach, with name servers and limits of its own, and its private network with the ports that it serves there."""

    rules: Text | list[Text] = "none"
    private: Text | None = None
    ports: list[int] = []
    dns: list[Text] = []
    limits: NetworkLimitsBody = NetworkLimitsBody()


class NetworkChange(Body):
    """What a sandbox may reach from now on: `none`, `open`, rules, or all of it written out."""

    network: Text | list[Text] | NetworkBody

    def to_network(self) -> Network:
        """Return it as the node takes it."""
        return _network(self.network)


def _network(asked: str | list[str] | NetworkBody) -> Network:
    if not isinstance(asked, NetworkBody):
        return Network.parse(asked)
    limits = NetworkLimits(**asked.limits.model_dump(exclude_none=True))
    return Network.parse(
        asked.rules, dns=asked.dns, limits=limits, private=asked.private, ports=asked.ports
    )


class SecretBody(Body):
    """A secret to be stored: its value, who receives it, and in which one place."""

    value: SecretStr
    hosts: list[Text]
    header: Text | None = None
    query: Text | None = None
    body: Text | None = None
    template: Text = ""

    def to_secret(self) -> Secret:
        """Return it as the node takes it."""
        value = self.value.get_secret_value()
        return Secret(value, self.hosts, self.header, self.query, self.body, self.template)


class ContainerBody(Body):
    """The container that a sandbox of engine docker or podman is; what is left out is as hard as it can be."""

    image: Text | None = None  # else that of the template
    pull: PullPolicy = "missing"
    runtime: Runtime | None = None
    user: Text = DEFAULT_USER
    network: Text = "none"
    volume: Text | None = None
    labels: Texts = {}
    cap_add: list[Text] = []
    cap_drop: list[Text] = ["ALL"]
    seccomp: Text | None = None
    read_only_root: bool = True
    root_bytes: int | None = None
    cpu_shares: int | None = None

    def to_options(self) -> ContainerOptions:
        """Return it as the node takes it."""
        return ContainerOptions(**self.model_dump())


class MountBody(Body):
    """A directory of the server's machine, seen at `target` inside."""

    source: Text
    target: Text
    read_only: bool = True


class SandboxBody(Body):
    """The sandbox that is wanted."""

    id: Text | None = None
    template: Text | None = None
    # Of engine docker or podman the container's image; else another word for template.
    image: Text | None = None
    container: ContainerBody | None = None
    name: Text | None = None
    label: Text | None = Field(default=None, min_length=1)
    labels: Labels = {}
    metadata: Texts = {}
    env: Texts = {}
    command: Text | list[Text] | None = None
    args: list[Text] | None = None
    hostname: Text = "atoll"
    interactive: bool = False
    one_shot: bool = False
    kernel: bool = False
    limits: LimitsBody = LimitsBody()
    lifetime: Seconds | None = None
    idle: Seconds | None = None
    files: dict[Text, Text | FileContent] = {}
    directories: list[Text] = []
    workspace: Text | None = None
    remove_workspace: bool = False
    persistent: bool = False
    network: Text | list[Text] | NetworkBody = "none"
    # By their variables: the names of stored ones, or such that only this sandbox has, as long as its node runs.
    secrets: dict[Text, Text | SecretBody] = {}
    engine: Text | None = None  # one of the node's, or it is refused
    packages: list[Text] | Texts = []
    mounts: list[MountBody] = []

    @model_validator(mode="after")
    def _says_things_once(self) -> SandboxBody:
        if self.command is not None and self.args is not None:
            raise InvalidRequest("command and args mean the same; give one of them")
        return self

    def to_request(self, owner: str, usual: Limits, usual_engine: str) -> SandboxRequest:
        """Return what is asked of a node that uses `usual_engine` unless another one is named."""
        has_volume = self.container is not None and self.container.volume is not None
        if self.workspace is not None or self.persistent or has_volume:
            # How large one is that is kept has a setting of its own: it is not in memory. A volume is its owner's.
            usual = replace(usual, workspace_bytes=None)
        return SandboxRequest(
            spec=SandboxSpec(
                id=new_sandbox_id() if self.id is None else parse_sandbox_id(self.id),
                engine=self.engine,
                **self._made_from(self.engine or usual_engine),
                limits=self.limits.over(usual),
                env=self.env,
                hostname=self.hostname,
                kernel=self.kernel,
                network=_network(self.network),
                mounts=tuple(Mount(**each.model_dump()) for each in self.mounts),
                persistent=self.persistent,
            ),
            owner=owner,
            name=self.name,
            labels=self._all_labels(),
            metadata=self.metadata,
            manifest=Manifest(_contents(self.files), tuple(self.directories)),
            command=self._program(),
            image_command=self._runs_image(self.engine or usual_engine),
            interactive=self.interactive,
            one_shot=self.one_shot,
            lifetime_seconds=self.lifetime,
            idle_seconds=self.idle,
            workspace=None if self.workspace is None else WorkspaceId(self.workspace),
            remove_workspace=self.remove_workspace,
            secrets={
                variable: each if isinstance(each, str) else each.to_secret()
                for variable, each in self.secrets.items()
            },
            packages=self._wanted_packages(),
        )

    def _wanted_packages(self) -> tuple[str, ...]:
        template = self.template or self.image or PYTHON_TEMPLATE
        return parse_packages_for(template, self.packages)

    def _made_from(self, engine: str) -> dict[str, Any]:
        """Return template and container."""
        options = None if self.container is None else self.container.to_options()
        if engine in CONTAINER_ENGINES:
            container = make_container(self.image, options)
            return {"template": self.template or PYTHON_TEMPLATE, "container": container}
        if self.template is not None and self.image is not None:
            raise InvalidRequest(
                f"template and image mean the same to engine {engine}; give one of them"
            )
        return {"template": self.template or self.image or PYTHON_TEMPLATE, "container": options}

    def _all_labels(self) -> Mapping[str, str]:
        labels = dict(self.labels)
        if self.label is not None:
            labels[LABEL] = self.label
        if self._program() is not None:
            labels[PLANNED] = "true"
        if self.interactive:
            labels[INTERACTIVE] = "true"
        if self.one_shot:
            labels[ONE_SHOT] = "true"
        return labels

    def _runs_image(self, engine: str) -> bool:
        """Whether it is what its image runs: whoever says that it is not interactive means a program."""
        says = "interactive" in self.model_fields_set
        return engine in CONTAINER_ENGINES and says and self._program() is None

    def _program(self) -> Sequence[str] | str | None:
        given = self.command or self.args or None
        return _SHELL if given is None and self.interactive else given


class ReadyBody(Body):
    """What sandboxes that are made ahead can be told; each is asked for with the same later."""

    template: Text | None = None
    image: Text | None = None
    container: ContainerBody | None = None
    env: Texts = {}
    hostname: Text = "atoll"
    kernel: bool = False
    limits: LimitsBody = LimitsBody()
    engine: Text | None = None
    packages: list[Text] | Texts = []
    mounts: list[MountBody] = []

    def to_request(self, owner: str, usual: Limits, usual_engine: str) -> SandboxRequest:
        """Return what is asked of a node, just as for a sandbox that is wanted now."""
        fields = {name: getattr(self, name) for name in type(self).model_fields}
        return SandboxBody(**fields).to_request(owner, usual, usual_engine)


class PoolBody(Body):
    """How many sandboxes of one configuration are to be ready, and how long they wait for somebody who does not come."""

    count: int
    idle: Seconds | None = None
    sandbox: ReadyBody = ReadyBody()


class SandboxChange(Body):
    """What is to be otherwise about a sandbox."""

    name: Text | None = None
    label: Text | None = Field(default=None, min_length=1)
    labels: Labels | None = None
    public: bool | None = None


class SizeBody(Body):
    """The size of a terminal."""

    rows: int = 24
    columns: int = 80

    def to_size(self) -> TerminalSize:
        """Return it as the node takes it."""
        return TerminalSize(self.rows, self.columns)


class TemplateBody(Body):
    """A template to be built."""

    name: Text
    packages: list[Text] | Texts = []
    language: Text = "python"  # of the packages; or node
    preload: list[Text] | None = None
    image: Text | None = None  # of a registry, instead of packages

    @model_validator(mode="after")
    def _says_of_what(self) -> TemplateBody:
        if (self.image is None) != bool(self.packages) or (self.image and self.preload):
            raise InvalidRequest(
                "a template is built of packages, or of an image; give one of both"
            )
        return self


class InstallBody(Body):
    """Packages for one sandbox."""

    packages: list[Text] | Texts
    language: Text = "python"
    timeout: Seconds | None = None


class ForkBody(Body):
    """What a fork is to be called."""

    label: Text | None = Field(default=None, min_length=1)
    hostname: Text | None = None


class KernelChoice(Body):
    """The sandbox's own kernel of a language; else of what its template is about."""

    language: Text | None = None


class AskBody(Body):
    """What is asked of a kernel: what can stand at the cursor, or what it knows of the name there."""

    kind: Literal["complete", "inspect"]
    code: Text
    cursor: int | None = Field(default=None, ge=0)
    language: Text | None = None
    kernel: Text | None = None


class KernelBody(Body):
    """A kernel to be opened."""

    language: Text | None = None  # else what the template is about
    cwd: Text | None = None
    env: Texts = {}


class ExecutionBody(Body):
    """What is to be carried out in a sandbox."""

    kind: Literal["command", "cell", "terminal"] = "command"
    argv: list[Text] | None = None
    command: Text | None = None  # a shell line
    code: Text | None = None
    kernel: Text | None = None
    language: Text | None = (
        None  # of a cell; else that of its kernel, or what the template is about
    )
    track_files: bool = False  # of a cell: tell which files it changed
    ask_input: bool = (
        False  # of a cell: tell in an event that it calls input(), and wait for the answer
    )
    background: bool = False  # of a command: it does not keep an unused sandbox from ending
    cwd: Text = "."
    env: Texts = {}
    user: Text | None = None
    stdin: Text | FileContent | None = None
    keep_stdin: bool = False
    timeout: Seconds | None = None
    size: SizeBody = SizeBody()
    on_disconnect: OnDisconnect | None = None
    wait: bool = False
    stream: bool = False

    @model_validator(mode="after")
    def _fits_its_kind(self) -> ExecutionBody:
        named = [name for name in ("argv", "command", "code") if getattr(self, name) is not None]
        allowed = ("code",) if self.kind == "cell" else ("argv", "command")
        if len(named) > 1 or any(name not in allowed for name in named):
            raise InvalidRequest(f"a {self.kind} takes one of {', '.join(allowed)}")
        if not named and self.kind != "terminal":
            raise InvalidRequest(f"a {self.kind} needs one of {', '.join(allowed)}")
        if self.language is not None and self.kind != "cell":
            raise InvalidRequest("only a cell takes a language")
        if self.track_files and self.kind != "cell":
            raise InvalidRequest("only a cell takes track_files")
        if self.ask_input and self.kind != "cell":
            raise InvalidRequest("only a cell takes ask_input")
        if self.background and self.kind != "command":
            raise InvalidRequest("only a command takes background")
        if self.stdin is not None and self.kind != "command":
            raise InvalidRequest("only a command takes stdin")
        return self

    def to_command(self) -> Command:
        """Return the command that is asked for."""
        reads = self.keep_stdin or self.stdin is not None
        options: dict[str, Any] = {
            "cwd": self.cwd,
            "env": self.env,
            "user": self.user,
            "stdin": reads,
        }
        if self.command is not None:
            return Command.shell(self.command, **options)
        return Command(tuple(self.argv or ()), **options)

    @property
    def input(self) -> bytes | None:
        """What the command reads."""
        if isinstance(self.stdin, FileContent):
            return self.stdin.data
        return None if self.stdin is None else self.stdin.encode()


class ShellBody(Body):
    """A shell line."""

    code: Text
    timeout: Seconds | None = None


class StopBody(Body):
    """How long a process may take to end by itself."""

    grace: Annotated[float, BeforeValidator(parse_duration)] = Field(default=5.0, ge=0, le=300)


class InputBody(Body):
    """The line that code asks for with `input()`; none: it finds the end of its input."""

    text: Text | None


class SignalBody(Body):
    """A signal by its number."""

    signal: int = Field(ge=1, le=64)


class ResizeMessage(SizeBody):
    """On a WebSocket: a terminal has another size."""

    type: Literal["resize"]


class SignalMessage(SignalBody):
    """On a WebSocket: send a signal."""

    type: Literal["signal"]


class EndMessage(Body):
    """On a WebSocket: let standard input end, or end the execution."""

    type: Literal["close_stdin", "cancel"]


class InputMessage(InputBody):
    """On a WebSocket: the line that code asks for."""

    type: Literal["input"]


AttachMessage = Annotated[
    ResizeMessage | SignalMessage | InputMessage | EndMessage, Field(discriminator="type")
]


class PathBody(Body):
    """A path in the workspace."""

    path: Text


class RenameBody(Body):
    """A path in the workspace, and what it becomes."""

    source: Text
    target: Text


def _contents(files: Mapping[str, str | FileContent]) -> Mapping[str, bytes]:
    return {
        path: content.encode() if isinstance(content, str) else content.data
        for path, content in files.items()
    }
