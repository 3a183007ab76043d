"""The cells that ran in a sandbox of a node, read from their logs."""

from __future__ import annotations

from collections.abc import Sequence

from atoll.model.cell_events import CellReplay
from atoll.model.cell_history import CellHistory
from atoll.model.execution import ExecutionInfo, ExecutionKind
from atoll.model.ids import SandboxId
from atoll.model.language import PYTHON
from atoll.node.executions import Executions

_PAGE = 1000
_MOST_CELLS = 10_000


async def read_history(executions: Executions, sandbox: SandboxId, owner: str) -> CellHistory:
    """Return the cells of a sandbox, living or not; those that still run, with what they gave so far."""
    history = CellHistory()
    for info in reversed(await _list_cells(executions, sandbox, owner)):
        code = await executions.read_code(info)
        shown = CellReplay()
        start = 0
        while events := await executions.read(info.id, start, _PAGE):
            for event in events:
                shown.take(event)
            start = events[-1].seq + 1
        history.add(code, str(info.what.get("language", PYTHON.name)), shown.cell(info.outcome))
    return history


async def _list_cells(
    executions: Executions, sandbox: SandboxId, owner: str
) -> Sequence[ExecutionInfo]:
    found: list[ExecutionInfo] = []
    after = None
    while len(found) < _MOST_CELLS:
        page = await executions.list(sandbox=sandbox, owner=owner, limit=_PAGE, after=after)
        found += [each for each in page.executions if each.kind is ExecutionKind.CELL]
        after = page.after
        if after is None:
            break
    return found
