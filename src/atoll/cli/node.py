"""`atoll node`: a node on this machine, which keeps sandboxes for whoever asks."""

from __future__ import annotations

import gc
import logging
import os
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from atoll.cli.arguments import Parser

if TYPE_CHECKING:
    from atoll.server.settings import Settings

_log = logging.getLogger(__name__)

USAGE = "[options]"
SUMMARY = "Run a node that keeps sandboxes between commands."
DETAILS = (
    "It listens on a unix socket that only its user can open; 'atoll create' and its like find it there."
    " SIGTERM and Ctrl-C end it once running requests have been answered."
)


def add_arguments(parser: Parser) -> None:
    """Say what the command takes."""
    parser.add_argument("--data", metavar="DIR", type=Path, help="data directory; one node each")
    parser.add_argument("--socket", metavar="PATH", type=Path, help="else node.sock in there")
    parser.add_argument("--config", metavar="FILE", type=Path, help="settings in TOML")
    parser.add_argument("--env-file", metavar="FILE", type=Path, help="settings as variables")


def execute(options: Namespace) -> int:
    """Run until told to end."""
    import anyio

    from atoll.errors import Unsupported

    try:
        from atoll.server.listening import serve
        from atoll.server.logs import configure_logs
    except ModuleNotFoundError as error:
        raise Unsupported(
            f"a node needs {error.name}, which is not installed",
            next_step="pip install 'atoll[server]'",
        ) from error
    settings = _read_settings(options)
    configure_logs(settings.log)
    for warning in settings.warnings:
        _log.warning("settings.questionable", extra={"reason": warning})
    # Switched off for commands that are over in a moment.
    gc.enable()
    anyio.run(serve, settings)
    return 0


def _read_settings(options: Namespace) -> Settings:
    from atoll.client.places import config_directory
    from atoll.server.setting_loader import load_settings

    chosen = {"ATOLL_DATA": options.data, "ATOLL_NODE__SOCKET": options.socket}
    written = {name: str(value.absolute()) for name, value in chosen.items() if value is not None}
    return load_settings(
        {**os.environ, **written}, config_directory(), options.config, options.env_file
    )
