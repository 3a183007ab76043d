"""What the SDK asks of a server, as JSON; pure."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any

from atoll.client.calls import as_bytes
from atoll.errors import InvalidRequest
from atoll.model.container import ContainerOptions
from atoll.model.limits import Limits
from atoll.model.network import Network, NetworkMode
from atoll.model.process import Command
from atoll.model.sandbox import SandboxRequest, SandboxSpec
from atoll.model.secret import Secret

_USUAL = Limits()
_USUAL_CONTAINER = ContainerOptions().to_json()


def sandbox_wish(request: SandboxRequest, engine: str | None) -> dict[str, Any]:
    """Return the body that asks for a sandbox; what is not said is left to the server."""
    spec = request.spec
    wish = {
        "id": spec.id,
        "template": spec.template,
        "engine": engine,
        "container": None if spec.container is None else _container_wish(spec.container),
        "name": request.name,
        "metadata": dict(request.metadata),
        "env": dict(spec.env),
        "kernel": spec.kernel,
        "limits": _limits_wish(spec.limits),
        "lifetime": request.lifetime_seconds,
        "idle": request.idle_seconds,
        "files": {path: data_wish(data) for path, data in request.manifest.files.items()},
        "workspace": request.workspace,
        "remove_workspace": request.remove_workspace,
        "persistent": spec.persistent or None,
        "network": network_wish(spec.network),
        "secrets": {name: _named_or_whole(each) for name, each in request.secrets.items()},
        "packages": list(request.packages),
        "mounts": [asdict(mount) for mount in spec.mounts],
    }
    return {name: value for name, value in wish.items() if value is not None}


def pool_wish(spec: SandboxSpec, engine: str | None) -> dict[str, Any]:
    """Return the sandboxes that are to be kept ready, described as each of them is asked for later."""
    wish = sandbox_wish(SandboxRequest(spec), engine)
    return {name: wish[name] for name in _POOLED if name in wish}


_POOLED = ("template", "engine", "container", "env", "kernel", "limits", "mounts")


def _container_wish(container: ContainerOptions) -> dict[str, Any]:
    options = container.to_json()
    return {name: value for name, value in options.items() if value != _USUAL_CONTAINER[name]}


def _limits_wish(limits: Limits) -> dict[str, Any]:
    return {
        each.name: getattr(limits, each.name)
        for each in fields(limits)
        if getattr(limits, each.name) != getattr(_USUAL, each.name)
    }


def network_wish(network: Network) -> dict[str, Any]:
    """Return a network as the server takes it."""
    rules: str | list[str] = network.mode.value
    if network.mode is NetworkMode.RULES:
        rules = [*network.presets, *(str(rule) for rule in network.rules)]
    return {
        "rules": rules,
        "private": network.private,
        "ports": list(network.ports),
        "dns": list(network.dns),
        "limits": {name: value for name, value in asdict(network.limits).items() if value},
    }


def secret_wish(secret: Secret) -> dict[str, Any]:
    """Return a secret as the server takes it, with its value."""
    places = {"header": secret.header, "query": secret.query, "body": secret.body}
    return {
        "value": secret.value,
        "hosts": list(secret.hosts),
        **{place: field for place, field in places.items() if field is not None},
        "template": secret.template,
    }


def _named_or_whole(secret: Secret | str) -> str | dict[str, Any]:
    return secret if isinstance(secret, str) else secret_wish(secret)


def data_wish(data: bytes) -> str | dict[str, str]:
    """Return bytes as text where they are UTF-8, else in base64."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": b64encode(data).decode("ascii")}


def make_command(
    command: str | Sequence[str],
    cwd: str,
    env: Mapping[str, str] | None,
    *,
    stdin: bool = False,
) -> Command:
    """Return what is to run; raises `InvalidRequest` for what cannot be."""
    if isinstance(command, str):
        return Command.shell(command, cwd=cwd, env=env, stdin=stdin)
    if isinstance(command, Sequence):
        command = tuple(command)
    return Command(command, cwd=cwd, env=env or {}, stdin=stdin)


def command_wish(
    command: str | Sequence[str],
    wanted: Command,
    *,
    stdin: bytes | str | None = None,
    timeout: float | None = None,
) -> dict[str, Any]:
    """Return the body that asks for a command."""
    named = {"command": command} if isinstance(command, str) else {"argv": list(command)}
    wish = {
        "kind": "command",
        **named,
        "cwd": wanted.cwd,
        "env": dict(wanted.env),
        "stdin": None if stdin is None else data_wish(as_bytes(stdin)),
        "timeout": timeout,
        "on_disconnect": "continue",
    }
    return {name: value for name, value in wish.items() if value is not None}


def cell_wish(
    code: str,
    kernel: str | None,
    language: str | None,
    timeout: float | None,
    *,
    track_files: bool = False,
    takes_input: bool = False,
) -> dict[str, Any]:
    """Return the body that asks for a cell; raises `InvalidRequest` for what is no code."""
    if not isinstance(code, str):
        raise InvalidRequest(f"code is {type(code).__name__}; it has to be text")
    wish = {
        "kind": "cell",
        "code": code,
        "kernel": kernel,
        "language": language,
        "timeout": timeout,
        "track_files": track_files or None,
        "ask_input": takes_input or None,
        "on_disconnect": "continue",
    }
    return {name: value for name, value in wish.items() if value is not None}
