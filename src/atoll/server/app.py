"""The node's HTTP application: routes over the parts of a node."""

from __future__ import annotations

from fastapi import FastAPI
from fastapi.telemetry import TelemetryConfig

import atoll
from atoll.server.auth import check_routes
from atoll.server.bounds import Bounds
from atoll.server.errors import add_error_answers
from atoll.server.openapi import DescribedApp
from atoll.server.parts import Parts
from atoll.server.routes import (
    auth,
    cells,
    events,
    executions,
    files,
    history,
    inspector,
    kernels,
    network,
    notebooks,
    operation,
    page,
    pools,
    ports,
    processes,
    sandboxes,
    secrets,
    templates,
    terminals,
    tokens,
    users,
    workspaces,
)
from atoll.server.traffic import Gate

# A request is held against one route after the other: what is asked for most comes first.
_ROUTERS = (
    executions,
    sandboxes,
    cells,
    kernels,
    notebooks,
    files,
    terminals,
    workspaces,
    templates,
    pools,
    network,
    secrets,
    auth,
    tokens,
    users,
    history,
    processes,
    ports,
    events,
    inspector,
    operation,
    page,
)


def create_app(parts: Parts, telemetry: TelemetryConfig | None = None) -> FastAPI:
    """Return the application that serves a node."""
    # Documents have routes of their own; and a path means itself, never another one with a slash more.
    app = DescribedApp(
        title="Atoll",
        version=atoll.__version__,
        openapi_url=None,
        redirect_slashes=False,
        telemetry=telemetry,
    )
    app.state.parts = parts
    for each in _ROUTERS:
        # As they are: including a router would look at every parameter of every route once more.
        app.router.routes.extend(each.router.routes)
    check_routes(app)
    add_error_answers(app)
    app.add_middleware(Bounds)
    app.add_middleware(Gate, traffic=parts.traffic)
    return app
