"""The cells of a sandbox as a notebook."""

from __future__ import annotations

from fastapi import APIRouter, Response

from atoll.model.notebook import format_notebook, make_notebook
from atoll.node.notebooks import read_history
from atoll.server.auth import Owner
from atoll.server.json_bodies import JsonRoute
from atoll.server.parts import Here, SandboxKey

router = APIRouter(prefix="/sandboxes/{sandbox}", tags=["kernels"], route_class=JsonRoute)
_TYPE = "application/x-ipynb+json"


@router.get("/notebook", response_model=None, responses={200: {"content": {_TYPE: {}}}})
async def get_notebook(sandbox: SandboxKey, parts: Here, owner: Owner) -> Response:
    """Give the cells that ran in a sandbox, and what came of them, as a Jupyter notebook; also after its end."""
    info = await parts.describe(sandbox, owner)
    history = await read_history(parts.executions, info.id, owner)
    notebook = make_notebook(history.cells(), left_out=history.left_out)
    return Response(format_notebook(notebook), media_type=_TYPE)
