"""The contract's tests: what every engine must pass.

An engine's own tests give two fixtures and subclass the suite; pytest needs anyio's plugin in auto mode:

    @pytest.fixture
    def make_engine() -> MakeEngine: ...    # makes a fresh engine at each call

    @pytest.fixture
    async def engine() -> AsyncIterator[Engine]: ...    # may be shared by all tests

    class TestContract(EngineConformance): ...

Only programs that every Linux has are run inside: a POSIX shell and coreutils.
"""

from __future__ import annotations

from atoll.testing.conformance.cleaning import CleaningConformance
from atoll.testing.conformance.endings import EndingConformance
from atoll.testing.conformance.files import FileConformance
from atoll.testing.conformance.kernels import KernelConformance
from atoll.testing.conformance.links import LinkConformance
from atoll.testing.conformance.ports import PortConformance
from atoll.testing.conformance.processes import ProcessConformance
from atoll.testing.conformance.running import MakeEngine
from atoll.testing.conformance.sandboxes import SandboxConformance
from atoll.testing.conformance.signalling import SignalConformance
from atoll.testing.conformance.stopping import StoppingConformance
from atoll.testing.conformance.terminals import TerminalConformance
from atoll.testing.conformance.workspaces import WorkspaceConformance


class EngineConformance(
    SandboxConformance,
    EndingConformance,
    ProcessConformance,
    SignalConformance,
    TerminalConformance,
    KernelConformance,
    PortConformance,
    FileConformance,
    LinkConformance,
    WorkspaceConformance,
    CleaningConformance,
    StoppingConformance,
):
    """All of it."""


__all__ = ["EngineConformance", "MakeEngine"]
