"""A node in this process, for `atoll node` and `atoll up`: settings, logs, and then it serves until told to end."""

from __future__ import annotations

import logging
import os
from argparse import Namespace
from collections.abc import Callable, Mapping
from functools import partial
from importlib.util import find_spec

import anyio

from atoll.client.places import config_directory
from atoll.errors import Unsupported

try:
    from atoll.server.listening import Welcome, serve
    from atoll.server.logs import configure_logs
    from atoll.server.setting_loader import load_settings
    from atoll.server.settings import Settings
except ModuleNotFoundError as error:
    raise Unsupported(
        f"a node needs {error.name}, which is not installed",
        next_step="pip install 'atoll[server]'",
    ) from error

_log = logging.getLogger(__name__)


def serve_node(
    options: Namespace,
    variables: Mapping[str, str],
    make_welcome: Callable[[Settings], Welcome] | None = None,
) -> int:
    """Run until told to end; `variables` are settings that the command line chose."""
    environ = {**os.environ, **variables}
    settings = load_settings(environ, config_directory(), options.config, options.env_file)
    configure_logs(settings.log)
    for warning in settings.warnings:
        _log.warning("settings.questionable", extra={"reason": warning})
    # A loop that is not written in Python, where there is one: short requests cost less with it.
    options_of_loop = {"use_uvloop": find_spec("uvloop") is not None}
    welcome = make_welcome(settings) if make_welcome else None
    anyio.run(partial(serve, settings, welcome), backend_options=options_of_loop)
    return 0
