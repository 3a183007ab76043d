"""Builds the C parts with the package: they use no CPython ABI, so one wheel serves every Python."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ENGINES = Path("src/atoll/engines")


class NativePartsHook(BuildHookInterface[Any]):
    """Runs for wheels and for editable installs; a source distribution carries only sources."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        for build in sorted(Path(self.root, ENGINES).glob("*/native/build.py")):
            subprocess.run(
                [sys.executable, build, "--out", build.parent / "bin"],
                check=True,
                # A front end may read its answer from our stdout.
                stdout=sys.stderr,
            )
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform}"
