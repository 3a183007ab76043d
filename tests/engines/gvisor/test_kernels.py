"""Kernels under gVisor: programs that are started, of every language that this machine has."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from atoll.engines import catalog
from atoll.engines.contract import Engine
from atoll.model.kernel import CellStatus
from atoll.model.language import find_kernel_language
from atoll.model.sandbox import SandboxSpec
from atoll.node.kernels import Kernel
from atoll.node.templates import Templates
from tests.engine_fixtures import skip_unless_usable

_DATA_DIR = Path(tempfile.gettempdir(), f"atoll-test-{os.geteuid()}")
_CELLS = {
    "python": ("answer = 6 * 7", "answer", "42"),
    "node": ("let answer = 6 * 7", "answer", "42"),
    "r": ("answer <- 6 * 7", "answer", "[1] 42"),
}
_PROGRAMS = {"python": "python3", "node": "node", "r": "R"}


@pytest.fixture(scope="module")
async def engine() -> AsyncIterator[Engine]:
    engine = catalog.make_engine("gvisor", data_dir=_DATA_DIR, trees=Templates(_DATA_DIR))
    try:
        await skip_unless_usable(engine)
        yield engine
    finally:
        await engine.close()


@pytest.mark.parametrize("name", _CELLS)
async def test_a_kernel_keeps_what_a_cell_has_made(engine: Engine, name: str) -> None:
    if shutil.which(_PROGRAMS[name]) is None:
        pytest.skip(f"there is no {_PROGRAMS[name]} on this machine")
    sandbox = await engine.create(SandboxSpec(template=name, kernel=True))
    try:
        kernel = await Kernel.open(sandbox, language=find_kernel_language(name))
        first, second, text = _CELLS[name]
        assert (await kernel.run(first)).status is CellStatus.OK
        cell = await kernel.run(second)
        assert cell.results[0].data["text/plain"] == text
        await kernel.close()
    finally:
        await sandbox.destroy()


async def test_a_cell_of_python_is_interrupted_and_the_kernel_goes_on(engine: Engine) -> None:
    sandbox = await engine.create(SandboxSpec(template="python", kernel=True))
    try:
        kernel = await Kernel.open(sandbox, language=find_kernel_language("python"))
        await kernel.run("kept = 1")
        cell = await kernel.run("import time\ntime.sleep(1000)", timeout=1)
        assert cell.status is not CellStatus.OK
        assert (await kernel.run("kept")).results[0].data["text/plain"] == "1"
        await kernel.close()
    finally:
        await sandbox.destroy()


async def test_what_the_template_holds_can_be_imported(engine: Engine) -> None:
    sandbox = await engine.create(SandboxSpec(template="python", kernel=True))
    try:
        kernel = await Kernel.open(sandbox, language=find_kernel_language("python"))
        cell = await kernel.run("import IPython\nprint(IPython.__file__)")
        assert cell.stdout.startswith("/opt/template/IPython/")
        await kernel.close()
    finally:
        await sandbox.destroy()
