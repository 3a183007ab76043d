# Generated from _async by tools/generate_sync.py; edit that.
"""The isolated place that a caller owns."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from atoll.client._sync.commands import Commands
from atoll.client._sync.files import Files
from atoll.client.calls import TextCallback, TextSplitter, make_spec
from atoll.client.embedded import HostedSandbox, Node, share_node
from atoll.errors import Conflict
from atoll.model.kernel import Cell
from atoll.model.limits import Limits
from atoll.model.sandbox import SandboxInfo
from atoll.model.template import PYTHON_TEMPLATE


class Sandbox:
    """A sealed sandbox with a live Python session inside.

    It is made when it is first used, or entered, or by `create`, and ends when it is left.
    """

    def __init__(
        self,
        template: str = PYTHON_TEMPLATE,
        *,
        engine: str = "namespaces",
        limits: Limits | Mapping[str, Any] | None = None,
        envs: Mapping[str, str] | None = None,
    ) -> None:
        self._spec = make_spec(template, limits, envs)
        self._engine = engine
        self._node: Node | None = None
        self._hosted: HostedSandbox | None = None
        self._over = False
        self.commands = Commands(self._open)
        self.files = Files(self._open)

    @classmethod
    def create(
        cls,
        template: str = PYTHON_TEMPLATE,
        *,
        engine: str = "namespaces",
        limits: Limits | Mapping[str, Any] | None = None,
        envs: Mapping[str, str] | None = None,
    ) -> Self:
        """Make a sandbox now."""
        sandbox = cls(template, engine=engine, limits=limits, envs=envs)
        sandbox._open()
        return sandbox

    @property
    def id(self) -> str:
        """The sandbox's id."""
        return self._spec.id

    def run_code(
        self,
        code: str,
        *,
        timeout: float | None = None,
        on_stdout: TextCallback | None = None,
        on_stderr: TextCallback | None = None,
    ) -> Cell:
        """Run Python in the session, which keeps its variables; the last expression is the result.

        An exception in the code is a result, see `Cell.error`; so is a timeout.
        """
        node, hosted = self._open()
        splitter = TextSplitter(on_stdout, on_stderr)
        listener = splitter if splitter.is_wanted else None
        return node.call(hosted.run_code, code, timeout=timeout, on_output=listener)

    def interrupt(self) -> None:
        """Interrupt the code that runs, as Ctrl-C would; variables stay."""
        node, hosted = self._open()
        node.call(hosted.interrupt)

    def restart(self) -> None:
        """Begin the session anew: variables go, files stay."""
        node, hosted = self._open()
        node.call(hosted.restart)

    def info(self) -> SandboxInfo:
        """Return facts about the sandbox."""
        _node, hosted = self._open()
        return hosted.info

    def destroy(self) -> None:
        """End the sandbox and remove everything; safe to call twice."""
        self._over = True
        if self._node is not None and self._hosted is not None:
            self._node.call(self._hosted.destroy)

    def __enter__(self) -> Self:
        self._open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.destroy()

    def _open(self) -> tuple[Node, HostedSandbox]:
        if self._over:
            raise Conflict(f"sandbox {self.id} was destroyed; create a new one", sandbox=self.id)
        if self._node is None or self._hosted is None:
            self._node = Node(share_node(self._engine))
            self._hosted = self._node.create(self._spec)
        return self._node, self._hosted
