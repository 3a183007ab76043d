"""What the operator says about a container engine."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from atoll.model.container import Runtime

# Images of templates, by name; whoever has no registry names his own.
PRESETS: Mapping[str, str] = MappingProxyType(
    {
        "base": "debian:bookworm-slim",
        "python": "python:3.13-bookworm",
        "node": "node:22-bookworm",
        "deno": "denoland/deno:debian",
        "bun": "oven/bun:debian",
        "r": "r-base:latest",
        "julia": "julia:bookworm",
        "data": "jupyter/scipy-notebook:latest",
    }
)


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Who we are to an engine behind TCP, and by whom it is known."""

    authority: Path
    certificate: Path
    key: Path


@dataclass(frozen=True, slots=True)
class ContainerSettings:
    """Where the engine is, and what callers may ask of it; what is not allowed here is refused."""

    # unix:///path, tcp://host:port; empty: the usual socket.
    endpoint: str = ""
    tls: TlsFiles | None = None
    # What containers run with unless asked for otherwise, and what may be asked for; None: the engine's own.
    runtime: Runtime | None = None
    runtimes: Sequence[Runtime] = ("runc", "crun", "runsc")
    images: Mapping[str, str] = field(default_factory=lambda: PRESETS)
    # Whether callers may name images themselves.
    any_image: bool = True
    # Hosts, `host` or `host:port`, that images which callers name may be fetched from, besides Docker Hub: the engine reaches
    # what its callers must not.
    registries: Sequence[str] = ()
    # Whether callers are the operator himself, as those of a node in his own program are: he fetches what he likes.
    own_program: bool = False
    # Besides `none`; `host` gives a container all that this machine can reach and listens on.
    networks: Sequence[str] = ()
    # Patterns of volumes that callers may name: volumes of an engine belong to all who use it.
    volumes: Sequence[str] = ()
    capabilities: Sequence[str] = ()
    seccomp_profiles: Mapping[str, Path] = field(default_factory=dict)
    allow_root: bool = False
    allow_writable_root: bool = False
    # The most that is written to one, also where a caller says nothing; None: as much as the engine's disk has.
    root_bytes: int | None = None
    # Whether every container has ids on the host that no other one has.
    own_ids: bool = False
    pull_seconds: float = 1800.0
    # How long an engine may take to answer, and once more to give a sign of life.
    patience_seconds: float = 3.0
    # How long a container goes on without hearing from its program.
    lease_seconds: int = 60


def usual_endpoint(engine: str) -> str:
    """Return where an engine of that name listens if nobody says otherwise."""
    if engine == "docker":
        return "unix:///run/docker.sock"
    if os.geteuid() == 0:
        return "unix:///run/podman/podman.sock"
    return f"unix:///run/user/{os.geteuid()}/podman/podman.sock"
