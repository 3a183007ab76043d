"""Docker and Podman for a node in this process: where they are, and what its program may ask of them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import cast, get_args

import anyio
from anyio.abc import SocketStream

from atoll.engines.catalog import (
    CONTAINER_PRESETS,
    ContainerSettings,
    TlsFiles,
    usual_endpoint,
)
from atoll.errors import InvalidRequest
from atoll.model.container import Runtime

_PREFIX = "ATOLL_CONTAINERS__"
_ANSWER_SECONDS = 10.0
_PING = b"GET /_ping HTTP/1.0\r\nHost: engine\r\n\r\n"
# What the programs of the same names read.
_USUAL = {
    ("docker", "ENDPOINT"): "DOCKER_HOST",
    ("docker", "TLS"): "DOCKER_CERT_PATH",
    ("podman", "ENDPOINT"): "CONTAINER_HOST",
}


def container_settings(
    engine: str, environ: Mapping[str, str] = os.environ, *, endpoint: str = ""
) -> ContainerSettings:
    """Return what holds for a container engine that this process uses by itself, by the variables that a server reads.

    It is at `endpoint`, if one is given.

    Who embeds a node is its operator: what he asks for is allowed, except what has to be named (see the page on settings).

    Raises:
        InvalidRequest: a variable says what cannot be.
    """
    return ContainerSettings(
        endpoint=endpoint or _endpoint(engine, environ),
        tls=tls_files(_first(environ, engine, "TLS")[1]),
        runtime=_runtime(environ),
        images=_pairs(environ, "IMAGES") or CONTAINER_PRESETS,
        networks=_list(environ, "NETWORKS") or ("bridge", "host"),
        volumes=_list(environ, "VOLUMES") or ("*",),
        capabilities=_list(environ, "CAPABILITIES"),
        seccomp_profiles=profile_paths(_pairs(environ, "SECCOMP_PROFILES")),
        own_program=True,
        allow_root=True,
        allow_writable_root=True,
        own_ids=_switch(environ, "OWN_IDS"),
    )


async def is_answering(engine: str, url: str | None = None) -> bool:
    """Whether a container engine can be reached: at its usual place, at `docker+unix:///path`, or by a server at `url`."""
    if url is not None and not url.startswith(f"{engine}+"):
        return True  # what a server has is told when it is asked
    endpoint = (url or "").removeprefix(f"{engine}+")
    settings = container_settings(engine, endpoint=endpoint)
    kind, _, place = (settings.endpoint or usual_endpoint(engine)).partition("://")
    try:
        with anyio.fail_after(_ANSWER_SECONDS):
            stream: SocketStream
            if kind == "unix":
                stream = await anyio.connect_unix(place)
            else:
                host, _, port = place.rpartition(":")
                stream = await anyio.connect_tcp(host, int(port))
            async with stream:
                if settings.tls is not None:
                    return True  # who it is, is seen when it is used
                await stream.send(_PING)
                return b" 200 " in await stream.receive()
    except (OSError, TimeoutError, ValueError, anyio.EndOfStream, anyio.BrokenResourceError):
        return False


def mountable_directories(environ: Mapping[str, str] = os.environ) -> tuple[Path, ...]:
    """Return the directories of this machine that sandboxes of this process may be given, by the variable of a server's."""
    texts = environ.get("ATOLL_NODE__MOUNTS", "").split(",")
    return tuple(Path(text.strip()).absolute() for text in texts if text.strip())


def tls_files(folder: Path | str | None) -> TlsFiles | None:
    """Return the files of a folder under the names that Docker gives them."""
    if not folder:
        return None
    place = Path(folder).absolute()
    return TlsFiles(place / "ca.pem", place / "cert.pem", place / "key.pem")


def parse_pairs(texts: tuple[str, ...], example: str) -> dict[str, str]:
    """Return values by name of texts such as `name=value`; raise `InvalidRequest` for others."""
    pairs: dict[str, str] = {}
    for text in texts:
        name, _equals, value = (part.strip() for part in text.partition("="))
        if not name or not value:
            raise InvalidRequest(f"{text[:80]!r} is not name=value, such as {example}")
        pairs[name] = value
    return pairs


def check_endpoint(text: str) -> str:
    """Return where an engine listens; raise `InvalidRequest` for a place that cannot be reached."""
    kind, _, place = text.partition("://")
    if kind not in ("unix", "tcp") or not place or (kind == "unix") != place.startswith("/"):
        raise InvalidRequest(
            f"{text[:80]!r} is no place of a container engine; it has to be unix:///path or tcp://host:port"
        )
    return text


def profile_paths(named: Mapping[str, str]) -> dict[str, Path]:
    """Return profiles of system calls by name; raise `InvalidRequest` for a file that is not there."""
    paths = {name: Path(path).absolute() for name, path in named.items()}
    for name, path in paths.items():
        if not path.is_file():
            raise InvalidRequest(
                f"seccomp profile {name!r} is no file: {path}", setting="seccomp_profiles"
            )
    return paths


def _endpoint(engine: str, environ: Mapping[str, str]) -> str:
    variable, text = _first(environ, engine, "ENDPOINT")
    try:
        return check_endpoint(text) if text else ""
    except InvalidRequest as error:
        raise InvalidRequest(f"{variable}: {error.message}", setting=variable) from None


def _first(environ: Mapping[str, str], engine: str, name: str) -> tuple[str, str]:
    """Return our own variable if it is set, else that of the engine's own programs, and its value."""
    own = f"{_PREFIX}{engine.upper()}_{name}"
    usual = _USUAL.get((engine, name), own)
    return (own, environ[own]) if environ.get(own) else (usual, environ.get(usual, ""))


def _runtime(environ: Mapping[str, str]) -> Runtime | None:
    name = _value(environ, "RUNTIME")
    if name is not None and name not in get_args(Runtime):
        raise InvalidRequest(
            f"{_PREFIX}RUNTIME is {name[:40]!r}; it has to be {' or '.join(get_args(Runtime))}",
            setting=f"{_PREFIX}RUNTIME",
        )
    return cast(Runtime | None, name)


def _switch(environ: Mapping[str, str], name: str) -> bool:
    text = (_value(environ, name) or "false").lower()
    if text not in ("true", "false", "1", "0"):
        raise InvalidRequest(
            f"{_PREFIX}{name} is {text[:40]!r}; it has to be true or false",
            setting=f"{_PREFIX}{name}",
        )
    return text in ("true", "1")


def _pairs(environ: Mapping[str, str], name: str) -> dict[str, str]:
    try:
        return parse_pairs(_list(environ, name), "python=python:3.13")
    except InvalidRequest as error:
        raise InvalidRequest(
            f"{_PREFIX}{name}: {error.message}", setting=f"{_PREFIX}{name}"
        ) from None


def _list(environ: Mapping[str, str], name: str) -> tuple[str, ...]:
    text = _value(environ, name) or ""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _value(environ: Mapping[str, str], name: str) -> str | None:
    return environ.get(f"{_PREFIX}{name}") or None
