"""Images of well-known templates, made here from the distribution's packages where nobody else has them."""

from __future__ import annotations

import hashlib
import io
import json
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import IO

from atoll.errors import Unavailable, Unsupported
from atoll.model.container import PRESET_IMAGES

Progress = Callable[[str], None]

# What people who work with R expect to be there.
_R_PACKAGES = (
    *(
        "jsonlite",
        "base64enc",
        "tidyverse",
        "data.table",
        "readxl",
        "haven",
        "httr2",
        "dbi",
        "rsqlite",
    ),
    *("rmarkdown", "knitr", "devtools", "glmnet", "randomforest", "htmlwidgets"),
)
# What each is made of; those that Debian has no package of have to be named by the operator.
PACKAGES: Mapping[str, Sequence[str]] = MappingProxyType(
    {
        "base": ("ca-certificates", "procps"),
        "python": ("python3", "python-is-python3", "ca-certificates", "procps"),
        "node": ("nodejs", "ca-certificates", "procps"),
        "r": (
            "r-base-core",
            *(f"r-cran-{name}" for name in _R_PACKAGES),
            "ca-certificates",
            "procps",
        ),
        "bun": ("ca-certificates", "procps"),
        "deno": ("ca-certificates", "procps"),
        "data": (
            "python3",
            "python-is-python3",
            "python3-numpy",
            "python3-pandas",
            "python3-scipy",
            "python3-matplotlib",
            "ca-certificates",
            "procps",
        ),
    }
)
# What is in no package of the distribution's, but one program: this machine's own is copied.
_PROGRAMS = frozenset({"bun", "deno"})
_PROGRAM = "mmdebstrap"
_SECONDS = 1800
_LAST_BYTES = 2000
_CHUNK = 1 << 20
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def preset_tag(template: str) -> str | None:
    """Return what the image of a template is called that was made here; None if none can be made."""
    if template not in PACKAGES:
        return None
    program = None
    if template in _PROGRAMS:
        path = _find_program(template)
        if path is None:
            return None
        program = (path.stat().st_size, path.stat().st_mtime_ns)
    facts = json.dumps([_suite(), platform.machine(), template, PACKAGES[template], program])
    return f"{PRESET_IMAGES}/{template}:{hashlib.sha256(facts.encode()).hexdigest()[:12]}"


def why_none(template: str) -> str:
    """Return why the image of a template cannot be made here."""
    if template in _PROGRAMS:
        return f"there is no {template} on this machine to make one with: install it, for example with npm install -g {template}"
    return "it is in no package of this machine's release"


def make_preset(template: str, tag: str, target: IO[bytes], progress: Progress) -> None:
    """Write an image of this machine's distribution with a template's packages, as `docker save` would.

    Raises:
        Unsupported: this machine cannot make one.
        Unavailable: its packages could not be fetched.
    """
    if shutil.which(_PROGRAM) is None:
        raise Unsupported(
            f"there is no image for template {template!r} here, and no {_PROGRAM} to make one with;"
            f" apt-get install {_PROGRAM}, or name an image in containers.images",
            template=template,
        )
    progress(f"making image {tag} from packages of {_suite()}")
    # Without a name: nothing is left of it when this program is killed.
    with tempfile.TemporaryFile() as layer:
        _make_tree(PACKAGES[template], layer)
        if template in _PROGRAMS:
            _add_program(template, layer)
        progress("packing it")
        _save(layer, tag, target)


def _make_tree(packages: Sequence[str], layer: IO[bytes]) -> None:
    command = [_PROGRAM, "--quiet", "--variant=minbase", f"--include={','.join(packages)}"]
    command += ["--format=tar", "--dpkgopt=path-exclude=/usr/share/doc/*", _suite(), "-"]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=layer,
            stderr=subprocess.PIPE,
            timeout=_SECONDS,
        )
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"{_PROGRAM} took longer than {_SECONDS} seconds") from error
    if done.returncode != 0:
        words = done.stderr[-_LAST_BYTES:].decode("utf-8", "replace").strip()
        raise Unavailable(f"{_PROGRAM} could not fetch the packages:\n{words}")


def _add_program(name: str, layer: IO[bytes]) -> None:
    path = _find_program(name)
    if path is None:
        raise Unavailable(f"{name} was removed from this machine meanwhile; install it again")
    layer.seek(0)
    with tarfile.open(fileobj=layer, mode="a") as archive, path.open("rb") as program:
        entry = tarfile.TarInfo(f"usr/local/bin/{name}")
        entry.size, entry.mode = os.fstat(program.fileno()).st_size, 0o755
        archive.addfile(entry, program)


def _find_program(name: str) -> Path | None:
    """Return a program of this machine: the one installed beside Atoll, else the one on the path."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    found = shutil.which(name, path=path)
    if found is None:
        return None
    program = Path(found).resolve()
    # What npm installs under the name may be a script that looks for it.
    places = (f"../../@*/{name}-linux-*/bin/{name}", f"node_modules/@*/linux-*/{name}")
    all_of_them = (program, *(each for place in places for each in program.parent.glob(place)))
    return next((each for each in all_of_them if _is_program(each)), None)


def _is_program(path: Path) -> bool:
    with suppress(OSError), path.open("rb") as file:
        return file.read(4) == b"\x7fELF"
    return False


def _save(layer: IO[bytes], tag: str, target: IO[bytes]) -> None:
    config = json.dumps(
        {
            "architecture": _ARCHITECTURES.get(platform.machine(), platform.machine()),
            "os": "linux",
            "config": {"Env": ["PATH=/usr/local/bin:/usr/bin:/bin", "LANG=C.UTF-8"]},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{_digest(layer)}"]},
        }
    ).encode()
    name = f"{hashlib.sha256(config).hexdigest()}.json"
    manifest = [{"Config": name, "RepoTags": [tag], "Layers": ["layer/layer.tar"]}]
    with tarfile.open(fileobj=target, mode="w") as archive:
        _add(archive, "layer/layer.tar", layer)
        _add(archive, name, io.BytesIO(config))
        _add(archive, "manifest.json", io.BytesIO(json.dumps(manifest).encode()))
    target.seek(0)


def _add(archive: tarfile.TarFile, name: str, content: IO[bytes]) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = content.seek(0, os.SEEK_END)
    content.seek(0)
    archive.addfile(entry, content)


def _digest(content: IO[bytes]) -> str:
    digest = hashlib.sha256()
    content.seek(0)
    while chunk := content.read(_CHUNK):
        digest.update(chunk)
    return digest.hexdigest()


def _suite() -> str:
    """Return the name of this machine's release, or Debian's if it has none."""
    try:
        return platform.freedesktop_os_release().get("VERSION_CODENAME", "stable")
    except OSError:
        return "stable"
