"""Requests and answers as pure functions: what both halves of the SDK do without waiting."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from atoll.errors import InvalidRequest, Unavailable
from atoll.model.container import ContainerOptions
from atoll.model.durations import parse_duration
from atoll.model.ids import WorkspaceId
from atoll.model.kernel import Bundle, CellError, Event
from atoll.model.language import find_kernel_language
from atoll.model.limits import Limits
from atoll.model.network import Network, NetworkMode
from atoll.model.packages import Packages, parse_packages_for
from atoll.model.process import Output
from atoll.model.sandbox import Manifest, Mount, SandboxRequest, SandboxSpec
from atoll.model.secret import Secret
from atoll.model.sizes import parse_size
from atoll.model.template import BASE_TEMPLATE

TextCallback = Callable[[str], object]
ResultCallback = Callable[[Bundle], object]
ErrorCallback = Callable[[CellError], object]
# Of an event loop's own it may also be a coroutine function.
InputCallback = Callable[[str, bool], Any]

# "none", "open", rules, or all of it written out.
NetworkChoice = str | Sequence[str] | Network
Mounts = Sequence[Mount | Mapping[str, Any]]
_MOUNT = {each.name for each in fields(Mount)}

_SIZES = {
    "memory": "memory_bytes",
    "workspace": "workspace_bytes",
    "tmp": "tmp_bytes",
    "home": "home_bytes",
    "shm": "shm_bytes",
    "file": "file_bytes",
}
_NO_NETWORK = Network()  # that of most
_COUNTS = ("cpus", "processes", "inodes", "open_files", "enforcement")


def make_spec(
    template: str,
    limits: Limits | Mapping[str, Any] | None,
    envs: Mapping[str, str] | None,
    network: Network | None = None,
    container: ContainerOptions | None = None,
    mounts: Mounts = (),
    *,
    persistent: bool = False,
) -> SandboxSpec:
    """Return the sandbox that a caller describes."""
    # Whether an image of somebody's has an interpreter is seen when a cell asks for it.
    is_foreign = container is not None and container.image is not None
    return SandboxSpec(
        template=template,
        limits=make_limits(limits),
        env=dict(envs or {}),
        kernel=template != BASE_TEMPLATE and not is_foreign,
        network=network or Network(),
        container=container,
        mounts=tuple(_make_mount(each) for each in mounts),
        persistent=persistent,
    )


def _make_mount(mount: Mount | Mapping[str, Any]) -> Mount:
    if isinstance(mount, Mount):
        return mount
    if not isinstance(mount, Mapping) or not {"source", "target"} <= mount.keys() <= _MOUNT:
        raise InvalidRequest(
            f"mount {str(mount)[:80]!r} has to be a Mount, or to have source, target and perhaps read_only"
        )
    return Mount(**mount)


def make_network(
    network: NetworkChoice, private_network: str | None = None, ports: Sequence[int] = ()
) -> Network:
    """Return the network that a caller describes."""
    if network == NetworkMode.NONE and private_network is None and ports == ():
        return _NO_NETWORK
    if not isinstance(network, Network):
        return Network.parse(network, private=private_network, ports=ports)
    if private_network is None and not ports:
        return network
    return replace(network, private=private_network, ports=tuple(ports))


def make_container(
    image: str | None, container: ContainerOptions | Mapping[str, Any] | None
) -> ContainerOptions | None:
    """Return the container that a caller describes, None if he says nothing about one."""
    if isinstance(container, Mapping):
        container = _container_from(container)
    if not isinstance(container, ContainerOptions | None):
        raise InvalidRequest(
            f"container is {type(container).__name__}; it has to be ContainerOptions"
        )
    if image is None:
        return container
    if container is None:
        return ContainerOptions(image=image)
    if container.image not in (None, image):
        raise InvalidRequest(
            f"image is {str(image)[:80]!r}, and that of container is {container.image!r}; name one of them"
        )
    return replace(container, image=image)


def _container_from(options: Mapping[str, Any]) -> ContainerOptions:
    known = [each.name for each in fields(ContainerOptions)]
    for name in options:
        if name not in known:
            raise InvalidRequest(
                f"there is no container option {str(name)[:80]!r}; there is: {', '.join(known)}"
            )
    return ContainerOptions(**options)


def make_request(
    spec: SandboxSpec,
    *,
    name: str | None,
    files: Mapping[str, bytes | str] | None,
    metadata: Mapping[str, str] | None,
    lifetime: float | str | None,
    idle: float | str | None,
    workspace: str | None,
    remove_workspace: bool,
    secrets: Mapping[str, Secret | str] | None = None,
    packages: Packages = (),
) -> SandboxRequest:
    """Return what is asked of a node."""
    return SandboxRequest(
        spec,
        name=name,
        metadata=dict(metadata or {}),
        manifest=Manifest({path: as_bytes(data) for path, data in (files or {}).items()}),
        lifetime_seconds=None if lifetime is None else parse_duration(lifetime),
        idle_seconds=None if idle is None else parse_duration(idle),
        workspace=None if workspace is None else WorkspaceId(workspace),
        remove_workspace=remove_workspace,
        secrets={} if secrets is None else secrets,
        packages=parse_packages_for(spec.template, packages),
    )


def make_limits(limits: Limits | Mapping[str, Any] | None) -> Limits:
    """Return limits from `{"memory": "256m", "cpus": 2, …}`."""
    if limits is None or isinstance(limits, Limits):
        return limits or Limits()
    fields: dict[str, Any] = {}
    for name, value in limits.items():
        if name in _SIZES:
            fields[_SIZES[name]] = parse_size(value)
        elif name in _COUNTS:
            fields[name] = value
        else:
            known = ", ".join((*_SIZES, *_COUNTS))
            raise InvalidRequest(f"there is no limit {name!r}; there is: {known}", limit=name)
    return Limits(**fields)


def as_bytes(data: bytes | str) -> bytes:
    """Return what is to be sent to a program as bytes."""
    if isinstance(data, bytes | bytearray | memoryview):
        return bytes(data)
    if not isinstance(data, str):
        raise InvalidRequest(f"data is {type(data).__name__}; it has to be text or bytes")
    try:
        return data.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest(f"data is not valid text ({error.reason}); pass bytes") from error


def check_language(language: str | None) -> str | None:
    """Return the name of a language that there are kernels of; raise `InvalidRequest` for any other."""
    return None if language is None else find_kernel_language(language).name


@dataclass(frozen=True, slots=True)
class Completions:
    """Texts that can replace the code from `start` to `end`."""

    matches: Sequence[str]
    start: int
    end: int


def make_completions(answer: Mapping[str, Any], cursor: int) -> Completions:
    """Return the completions in a kernel's answer, which code inside may have made up."""
    matches, start = answer.get("matches"), answer.get("start")
    if not isinstance(matches, list) or type(start) is not int or not 0 <= start <= cursor:
        raise Unavailable(_complaint(answer, "completions"))
    return Completions([text for text in matches if isinstance(text, str)], start, cursor)


def make_inspection(answer: Mapping[str, Any]) -> Bundle | None:
    """Return what a kernel's answer tells of a name, or None if it knows nothing."""
    data = answer.get("data")
    if not isinstance(data, dict):
        raise Unavailable(_complaint(answer, "description"))
    return Bundle(data, {}) if answer.get("found") else None


def _complaint(answer: Mapping[str, Any], wanted: str) -> str:
    return (
        f"the kernel has no {wanted}: {str(answer.get('error', 'its answer is malformed'))[:200]}"
    )


class TextSplitter:
    """Hands output to callbacks as text, never splitting a character."""

    def __init__(self, on_stdout: TextCallback | None, on_stderr: TextCallback | None) -> None:
        for callback in (on_stdout, on_stderr):
            check_callback(callback)
        self._callbacks = {"stdout": on_stdout, "stderr": on_stderr}
        make = codecs.getincrementaldecoder("utf-8")
        self._decoders = {"stdout": make("replace"), "stderr": make("replace")}

    @property
    def is_wanted(self) -> bool:
        """Whether anybody listens."""
        return any(self._callbacks.values())

    def __call__(self, output: Output) -> None:
        """Take one piece of output."""
        callback = self._callbacks[output.stream]
        text = self._decoders[output.stream].decode(output.data)
        if callback is not None and text:
            callback(text)


class CellListener:
    """Hands what a cell gives while it runs to the callbacks that asked for it."""

    def __init__(
        self,
        on_stdout: TextCallback | None,
        on_stderr: TextCallback | None,
        on_result: ResultCallback | None,
        on_error: ErrorCallback | None,
    ) -> None:
        for callback in (on_result, on_error):
            check_callback(callback)
        self._splitter = TextSplitter(on_stdout, on_stderr)
        self._on_result = on_result
        self._on_error = on_error

    def __call__(self, event: Event) -> None:
        """Take one event."""
        match event:
            case Output():
                self._splitter(event)
            case Bundle() if self._on_result is not None:
                self._on_result(event)
            case CellError() if self._on_error is not None:
                self._on_error(event)


def make_listener(
    on_stdout: TextCallback | None,
    on_stderr: TextCallback | None,
    on_result: ResultCallback | None,
    on_error: ErrorCallback | None,
) -> CellListener | None:
    """Return what hands a cell's events to callbacks; None if there are none."""
    callbacks = (on_stdout, on_stderr, on_result, on_error)
    return None if callbacks == (None,) * 4 else CellListener(*callbacks)


def check_callback(callback: object) -> None:
    """Raise `InvalidRequest` for what cannot be called."""
    if callback is not None and not callable(callback):
        raise InvalidRequest(f"a callback is {type(callback).__name__}, which cannot be called")
