"""A language whose interpreter is not there: refused with its name, and nothing is left running."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from atoll.engines.namespaces import mounts
from atoll.engines.namespaces.engine import BINARIES
from atoll.errors import Unsupported
from atoll.model.language import find_kernel_language
from atoll.model.sandbox import SandboxSpec
from atoll.node.kernels import Kernel
from tests.engine_fixtures import make_named_engine


# As a program of its own, and behind the shell that starts it.
@pytest.mark.parametrize("command", [("no-such-node",), ("sh", "-c", "exec no-such-node 9<&0")])
async def test_a_kernel_without_its_interpreter_is_refused(command: tuple[str, ...]) -> None:
    engine = make_named_engine("namespaces")
    language = replace(find_kernel_language("node"), interpreter="no-such-node", kernel=command)
    try:
        sandbox = await engine.create(SandboxSpec())
        with pytest.raises(
            Unsupported, match="there is no 'no-such-node' in this sandbox to run node"
        ):
            await Kernel.open(sandbox, language=language)
        await sandbox.destroy()
    finally:
        await engine.close()


def test_a_machine_without_node_says_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match="apt-get install nodejs"):
        mounts.node_template(BINARIES / "init", path=str(tmp_path))
