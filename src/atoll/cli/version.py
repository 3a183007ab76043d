"""`atoll version`: what is installed here."""

from __future__ import annotations

import json
import platform
import sys
from argparse import Namespace
from importlib import metadata

from atoll.cli.arguments import Parser
from atoll.cli.options import add_json

USAGE = "[--json]"
SUMMARY = "Show Atoll's version and what it runs on."
DETAILS = ""


def add_arguments(parser: Parser) -> None:
    """Say what the command takes."""
    add_json(parser)


def execute(options: Namespace) -> int:
    """Print the versions."""
    facts = {
        "atoll": _installed_version(),
        "python": platform.python_version(),
        "kernel": platform.release(),
        "machine": platform.machine(),
    }
    if options.json:
        print(json.dumps(facts))
    else:
        print(f"atoll {facts['atoll']}")
        print(f"Python {facts['python']}, Linux {facts['kernel']}, {facts['machine']}")
    sys.stdout.flush()
    return 0


def _installed_version() -> str:
    try:
        return metadata.version("atoll")
    except metadata.PackageNotFoundError:
        return "not installed"
