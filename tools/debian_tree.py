"""Archives of small root trees, made from the distribution's packages."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from pathlib import Path

from tools.places import must_run

VARIANT = "minbase"


def make_archive(packages: Sequence[str], target: Path) -> None:
    """Write the tar archive of a tree that has these packages; mmdebstrap has to be there."""
    command = ["mmdebstrap", "--quiet", f"--variant={VARIANT}", f"--include={','.join(packages)}"]
    command += ["--format=tar", "--dpkgopt=path-exclude=/usr/share/doc/*"]
    must_run([*command, suite(), str(target)])


def suite() -> str:
    """Return the name of the distribution's release."""
    release = platform.freedesktop_os_release()
    return release.get("VERSION_CODENAME", "stable")
