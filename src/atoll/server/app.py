"""The node's HTTP application: routes over the parts of a node."""

from __future__ import annotations

from fastapi import FastAPI

import atoll
from atoll.server.bounds import Bounds
from atoll.server.errors import add_error_answers
from atoll.server.parts import Parts
from atoll.server.routes import (
    executions,
    files,
    history,
    kernels,
    network,
    operation,
    sandboxes,
    secrets,
    terminals,
    workspaces,
)
from atoll.server.traffic import Gate

_ROUTERS = (
    sandboxes,
    executions,
    kernels,
    files,
    terminals,
    workspaces,
    network,
    secrets,
    history,
    operation,
)


def create_app(parts: Parts) -> FastAPI:
    """Return the application that serves a node."""
    app = FastAPI(title="Atoll", version=atoll.__version__, docs_url=None, redoc_url=None)
    app.state.parts = parts
    for each in _ROUTERS:
        app.include_router(each.router)
    add_error_answers(app)
    app.add_middleware(Bounds)
    app.add_middleware(Gate, traffic=parts.traffic)
    return app
