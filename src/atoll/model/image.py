"""Names of images: where one lies, or what a registry calls it."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from enum import StrEnum

from atoll.errors import InvalidRequest

_DEFAULT_REGISTRY = "docker.io"
_HOST = re.compile(
    r"(?:[a-z0-9](?:[a-z0-9-]{0,62})(?:\.[a-z0-9-]{1,63})*|\[[0-9a-f:]+\])(?::[0-9]{1,5})?"
)
_PATH = re.compile(
    r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*)*"
)
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_MOST_CHARACTERS = 512


class ImagePlace(StrEnum):
    """Where an image comes from."""

    ARCHIVE = "docker-archive"
    LAYOUT = "oci"
    REGISTRY = "registry"


@dataclass(frozen=True, slots=True)
class LocalImage:
    """An image on this machine: an archive or the directory of an OCI layout, and which of several."""

    place: ImagePlace
    path: str
    name: str | None = None


@dataclass(frozen=True, slots=True)
class RegistryImage:
    """An image as a registry knows it."""

    registry: str  # host, or host:port
    path: str
    tag: str | None
    digest: str | None

    @property
    def is_loopback(self) -> bool:
        """Whether the registry is on this machine, and so may do without TLS."""
        host = self.registry.rsplit(":", 1)[0] if not self.registry.endswith("]") else self.registry
        if host == "localhost":
            return True
        try:
            return ipaddress.ip_address(host.strip("[]")).is_loopback
        except ValueError:
            return False

    def __str__(self) -> str:
        tag = f":{self.tag}" if self.tag else ""
        digest = f"@{self.digest}" if self.digest else ""
        return f"{self.registry}/{self.path}{tag}{digest}"


def parse_image(text: str) -> LocalImage | RegistryImage:
    """Return what `docker-archive:FILE[:NAME]`, `oci:DIRECTORY[:NAME]` or a registry's name of an image means.

    Raises:
        InvalidRequest: it is none of them.
    """
    if not isinstance(text, str) or not 0 < len(text) <= _MOST_CHARACTERS or "\0" in text:
        raise InvalidRequest("an image has to be named by 1 to 512 characters")
    kind, colon, rest = text.partition(":")
    if colon and kind in (ImagePlace.ARCHIVE, ImagePlace.LAYOUT):
        return _parse_local(ImagePlace(kind), rest)
    return _parse_registry(text)


def _parse_local(place: ImagePlace, rest: str) -> LocalImage:
    path, _, name = rest.partition(":")
    if not path:
        raise InvalidRequest(f"{place}: needs a path after the colon")
    return LocalImage(place, path, name or None)


def _parse_registry(text: str) -> RegistryImage:
    bare, _, digest = text.partition("@")
    first, slash, others = bare.partition("/")
    # A name without a dot or a port is no host, but the first part of a path: of the usual registry.
    if slash and ("." in first or ":" in first or first == "localhost"):
        registry, path = first, others
    else:
        registry, path = _DEFAULT_REGISTRY, bare
    path, colon, tag = path.partition(":")
    if registry == _DEFAULT_REGISTRY and "/" not in path:
        path = f"library/{path}"
    ok = (
        _HOST.fullmatch(registry)
        and _PATH.fullmatch(path)
        and (not colon or _TAG.fullmatch(tag))
        and ("@" not in text or _DIGEST.fullmatch(digest))
    )
    if not ok:
        raise InvalidRequest(
            f"{text[:120]!r} is no image: it has to be docker-archive:FILE.tar, oci:DIRECTORY, or a name such as"
            " python:3.13 or registry.example/team/tool@sha256:…"
        )
    chosen = tag or (None if digest else "latest")
    return RegistryImage(registry, path, chosen or None, digest or None)
