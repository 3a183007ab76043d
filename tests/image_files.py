"""Images for tests, written as `docker save` and as OCI layouts write them, honest or not."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import subprocess
import tarfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from atoll.node.images.source import own_architecture

# What an image for tests has of this machine's programs.
PROGRAMS = ("sh", "cat", "ls", "id", "env")
_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_INDEX = "application/vnd.oci.image.index.v1+json"


def file(name: str, data: bytes = b"", mode: int = 0o644) -> tuple[tarfile.TarInfo, bytes]:
    member = tarfile.TarInfo(name)
    member.size, member.mode = len(data), mode
    return member, data


def special(
    name: str, kind: bytes, target: str = "", mode: int = 0o755
) -> tuple[tarfile.TarInfo, bytes]:
    member = tarfile.TarInfo(name)
    member.type, member.linkname, member.mode = kind, target, mode
    return member, b""


def folder(name: str, mode: int = 0o755) -> tuple[tarfile.TarInfo, bytes]:
    return special(name, tarfile.DIRTYPE, mode=mode)


def link(name: str, target: str) -> tuple[tarfile.TarInfo, bytes]:
    return special(name, tarfile.SYMTYPE, target)


def hard_link(name: str, target: str) -> tuple[tarfile.TarInfo, bytes]:
    return special(name, tarfile.LNKTYPE, target)


def layer(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for member, data in members:
            archive.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


def program_layer(programs: Sequence[str] = PROGRAMS, *, with_python: bool = False) -> bytes:
    """Return a layer with programs of this machine and the libraries that they need."""
    paths = {f"/bin/{name}" for name in programs}
    if with_python:
        paths.add("/usr/bin/python3.11")
    libraries = {
        word
        for path in paths
        for word in subprocess.run(["ldd", path], capture_output=True, text=True).stdout.split()
        if word.startswith("/")
    }
    members = [file(path.lstrip("/"), _content(path), 0o755) for path in sorted(paths | libraries)]
    if with_python:
        members.append(link("usr/bin/python3", "python3.11"))
        members += _standard_library(Path("/usr/lib/python3.11"))
    return layer(*members)


def _standard_library(top: Path) -> Iterable[tuple[tarfile.TarInfo, bytes]]:
    unneeded = {
        "test",
        "dist-packages",
        "idlelib",
        "lib2to3",
        "__pycache__",
        "tkinter",
        "ensurepip",
    }
    for path in sorted(top.rglob("*")):
        if path.is_file() and not unneeded & {*path.relative_to(top).parts}:
            yield file(str(path).lstrip("/"), path.read_bytes())


def _content(path: str) -> bytes:
    return Path(os.path.realpath(path)).read_bytes()


def config(layers: Sequence[bytes], env: Sequence[str] = (), **changes: Any) -> bytes:
    facts = {
        "architecture": own_architecture(),
        "os": "linux",
        "config": {"Env": list(env)},
        "rootfs": {"type": "layers", "diff_ids": [digest(each) for each in layers]},
        **changes,
    }
    return json.dumps(facts).encode()


def digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def save_docker(
    path: Path, layers: Sequence[bytes], settings: bytes | None = None, tag: str = "tested:1"
) -> str:
    """Write what `docker save` writes; return the name by which it is unpacked."""
    path.write_bytes(saved(layers, settings, tag))
    return f"docker-archive:{path}"


def saved(layers: Sequence[bytes], settings: bytes | None = None, tag: str = "tested:1") -> bytes:
    settings = config(layers) if settings is None else settings
    name = f"{digest(settings).removeprefix('sha256:')}.json"
    paths = [f"{number}/layer.tar" for number in range(len(layers))]
    manifest = [{"Config": name, "RepoTags": [tag], "Layers": paths}]
    members = [file(each, data) for each, data in zip(paths, layers, strict=True)]
    members += [file(name, settings), file("manifest.json", json.dumps(manifest).encode())]
    return layer(*members)


def an_image() -> bytes:
    """Return a small one."""
    return saved([layer(file("a"))])


def blobs_of(
    layers: Sequence[bytes], settings: bytes | None = None
) -> tuple[bytes, dict[str, bytes]]:
    """Return a manifest, and all blobs by digest, itself among them; layers are compressed."""
    settings = config(layers) if settings is None else settings
    packed = [gzip.compress(each, 1, mtime=0) for each in layers]
    manifest = json.dumps(
        {
            "schemaVersion": 2,
            "mediaType": _MANIFEST,
            "config": _descriptor(settings, "application/vnd.oci.image.config.v1+json"),
            "layers": [
                _descriptor(each, "application/vnd.oci.image.layer.v1.tar+gzip") for each in packed
            ],
        }
    ).encode()
    return manifest, {digest(each): each for each in (settings, *packed, manifest)}


def index_of(manifest: bytes, name: str | None = None, architecture: str | None = None) -> bytes:
    described = {
        **_descriptor(manifest, _MANIFEST),
        "platform": {"os": "linux", "architecture": architecture or own_architecture()},
    }
    if name is not None:
        described["annotations"] = {"org.opencontainers.image.ref.name": name}
    return json.dumps({"schemaVersion": 2, "mediaType": _INDEX, "manifests": [described]}).encode()


def save_layout(top: Path, layers: Sequence[bytes], settings: bytes | None = None) -> str:
    """Write an OCI layout; return the name by which it is unpacked."""
    manifest, blobs = blobs_of(layers, settings)
    folder = top / "blobs" / "sha256"
    folder.mkdir(parents=True)
    for name, data in blobs.items():
        (folder / name.removeprefix("sha256:")).write_bytes(data)
    (top / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    (top / "index.json").write_bytes(index_of(manifest, "tested"))
    return f"oci:{top}"


def _descriptor(data: bytes, kind: str) -> dict[str, Any]:
    return {"mediaType": kind, "digest": digest(data), "size": len(data)}
