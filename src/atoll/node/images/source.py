"""What an image consists of, wherever it comes from: a configuration and layers, each known by its digest."""

from __future__ import annotations

import hashlib
import json
import platform
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from atoll.errors import InvalidRequest, LimitExceeded, Unsupported

CONFIG_BYTES = 8 << 20
MANIFEST_BYTES = 4 << 20
MOST_LAYERS = 128
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
INDEX_TYPES = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
MANIFEST_TYPES = (
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,127}")
_MOST_VARIABLES = 256
_VARIABLE_BYTES = 32 << 10


@dataclass(frozen=True, slots=True)
class Descriptor:
    """What a manifest says of a blob."""

    digest: str
    size: int


@dataclass(frozen=True, slots=True)
class Layer:
    """The bytes of a layer as they are stored, and what they have to be."""

    read: Callable[[], Iterator[bytes]]
    stored: Descriptor | None = None  # None: only what it expands to is known


@dataclass(frozen=True, slots=True)
class ImageConfig:
    """What matters here of an image's configuration."""

    digest: str  # by which engines know the image
    diff_ids: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Image:
    """An image that can be unpacked."""

    name: str  # where it comes from, with its digest where it was asked for by name
    config: ImageConfig
    layers: Sequence[Layer]


def parse_config(data: bytes) -> ImageConfig:
    """Return an image's configuration.

    Raises:
        InvalidRequest: it is none.
        Unsupported: the image is for another kind of machine.
    """
    config = parse_object(data, "the image's configuration")
    system, machine = config.get("os", "linux"), config.get("architecture", "")
    if (system, machine) != ("linux", own_architecture()):
        raise Unsupported(
            f"the image is for {str(system)[:40]}/{str(machine)[:40]}, this machine is linux/{own_architecture()};"
            " take one that is made for it",
            architecture=str(machine)[:40],
        )
    rootfs = config.get("rootfs")
    ids = rootfs.get("diff_ids") if isinstance(rootfs, dict) else None
    if not isinstance(ids, list) or not all(map(is_digest, ids)):
        raise InvalidRequest("the image's configuration does not say what its layers are")
    _check_layers(len(ids))
    inner = config.get("config") or {}
    env = inner.get("Env") if isinstance(inner, dict) else None
    return ImageConfig(digest_of(data), tuple(ids), _parse_env(env or ()))


def parse_manifest(data: bytes) -> tuple[Descriptor, Sequence[Descriptor]]:
    """Return the blobs of a manifest, that of the configuration first; raise `InvalidRequest` for what is none."""
    manifest = parse_object(data, "the image's manifest")
    layers = manifest.get("layers")
    if not isinstance(layers, list):
        raise InvalidRequest("the image's manifest is not of version 2; push the image anew")
    _check_layers(len(layers))
    return parse_descriptor(manifest.get("config")), [parse_descriptor(each) for each in layers]


def choose_manifest(index: Mapping[str, Any], name: str | None = None) -> Descriptor:
    """Return the manifest for this machine out of an index, of one name if there are several.

    Raises:
        InvalidRequest: there are several, or none of that name.
        Unsupported: none is for this machine.
    """
    found = [each for each in index.get("manifests") or () if isinstance(each, dict)]
    if name is not None:
        found = [each for each in found if _name_of(each) == name]
    fitting = [each for each in found if _fits(each.get("platform"))]
    if found and not fitting:
        raise Unsupported(f"the image is not there for linux/{own_architecture()}")
    if len({str(each.get("digest")) for each in fitting}) != 1:
        names = ", ".join(sorted({str(_name_of(each))[:80] for each in fitting})[:20]) or "none"
        raise InvalidRequest(
            f"it has to be clear which image is meant; there is: {names}. Add one after a colon"
        )
    return parse_descriptor(fitting[0])


def parse_descriptor(value: object) -> Descriptor:
    """Return what is said of a blob; raise `InvalidRequest` for anything else."""
    if isinstance(value, dict):
        digest, size = value.get("digest"), value.get("size")
        if is_digest(digest) and type(size) is int and size >= 0:
            return Descriptor(str(digest), size)
    raise InvalidRequest("the image names a part without a sha256 digest or a size")


def parse_object(data: bytes, what: str) -> dict[str, Any]:
    """Return a JSON object; raise `InvalidRequest` for anything else."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"{what} is no JSON") from error
    if not isinstance(value, dict):
        raise InvalidRequest(f"{what} is no JSON object")
    return value


def digest_of(data: bytes) -> str:
    """Return the digest of bytes, as images write it."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def check_digest(data: bytes, expected: str, what: str) -> bytes:
    """Return bytes that are what they should be; raise `InvalidRequest` for others."""
    if digest_of(data) != expected:
        raise InvalidRequest(f"{what} is not what its digest {expected} says; it was changed")
    return data


def is_digest(value: object) -> bool:
    """Whether this is a digest of the one kind that is taken."""
    return isinstance(value, str) and DIGEST.fullmatch(value) is not None


def own_architecture() -> str:
    """Return this machine's kind as images write it."""
    return _ARCHITECTURES.get(platform.machine(), platform.machine())


def _check_layers(count: int) -> None:
    if count > MOST_LAYERS:
        raise LimitExceeded(
            f"the image has {count} layers, the most is {MOST_LAYERS}", limit=MOST_LAYERS
        )


def _name_of(manifest: Mapping[str, Any]) -> str | None:
    notes = manifest.get("annotations")
    name = notes.get("org.opencontainers.image.ref.name") if isinstance(notes, dict) else None
    return name if isinstance(name, str) else None


def _fits(machine: object) -> bool:
    if not isinstance(machine, dict):
        return True  # not said: its configuration does
    return (machine.get("os"), machine.get("architecture")) == ("linux", own_architecture())


def _parse_env(values: object) -> dict[str, str]:
    """Return an image's variables; what no program could be given is left out."""
    if not isinstance(values, list | tuple):
        return {}
    env = {}
    for each in values[:_MOST_VARIABLES]:
        name, equals, value = str(each).partition("=")
        if equals and _VARIABLE.fullmatch(name) and "\0" not in value:
            env[name] = value
    if sum(len(name) + len(value) for name, value in env.items()) > _VARIABLE_BYTES:
        raise LimitExceeded(
            f"the image's variables are larger than {_VARIABLE_BYTES} bytes",
            limit_bytes=_VARIABLE_BYTES,
        )
    return env
