"""Installs packages into a running sandbox, by the installer of their language."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from atoll.errors import CommandFailed
from atoll.model.packages import find_package_language
from atoll.model.process import CommandResult
from atoll.node.hosted import HostedSandbox

_LAST_CHARACTERS = 2000
# Installs what it is given, into the first library that can be written, and fails if something is not there then.
_R = """
wanted <- commandArgs(TRUE)
library <- Sys.getenv("R_LIBS_USER")
dir.create(library, recursive = TRUE, showWarnings = FALSE)
install.packages(wanted, lib = library, quiet = TRUE)
missing <- setdiff(wanted, rownames(installed.packages(library)))
if (length(missing)) stop("not installed: ", paste(missing, collapse = ", "))
"""


def _by_pip(packages: Sequence[str]) -> Sequence[str]:
    options = ("--user", "--no-input", "--disable-pip-version-check", "--progress-bar", "off")
    return ("python3", "-m", "pip", "install", *options, "--no-warn-script-location", *packages)


def _by_npm(packages: Sequence[str]) -> Sequence[str]:
    return ("npm", "install", "--no-fund", "--no-audit", "--no-progress", *packages)


def _by_r(packages: Sequence[str]) -> Sequence[str]:
    return ("Rscript", "-e", _R, *packages)


_INSTALLERS: Mapping[str, Callable[[Sequence[str]], Sequence[str]]] = {
    "python": _by_pip,
    "node": _by_npm,
    "r": _by_r,
}


async def install(
    hosted: HostedSandbox, packages: Sequence[str], language: str, timeout: float | None
) -> CommandResult:
    """Install packages that were checked by `parse_packages`; raise `CommandFailed` with the installer's words."""
    result = await hosted.commands.run(
        _INSTALLERS[find_package_language(language)](packages), timeout=timeout
    )
    if not result.ok:
        words = (result.stdout + result.stderr).decode("utf-8", "replace").strip()
        raise CommandFailed(
            f"the packages could not be installed ({result.reason.value}, exit code {result.shell_code}):\n"
            f"{words[-_LAST_CHARACTERS:]}\n"
            "The sandbox reaches package indexes with network='registries'",
            packages=list(packages),
        )
    return result
