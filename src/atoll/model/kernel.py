"""Kernels, cells, and what comes of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from atoll.errors import CommandFailed
from atoll.model.ids import KernelId
from atoll.model.process import Output


class CellStatus(StrEnum):
    """How a cell ended."""

    OK = "ok"
    ERROR = "error"
    INTERRUPTED = "interrupted"
    TIMED_OUT = "timed_out"  # interrupted by its timeout; its kernel lives on
    DIED = "died"  # its kernel ended with it; variables are gone, files are there


@dataclass(frozen=True, slots=True)
class KernelInfo:
    """Facts about a kernel at one moment."""

    id: KernelId
    language: str
    is_main: bool  # the one that cells go to which name none
    is_busy: bool
    is_over: bool
    reason: str = ""  # why it ended


@dataclass(frozen=True, slots=True)
class Bundle:
    """One value in several forms, by MIME type."""

    data: Mapping[str, Any]
    metadata: Mapping[str, Any]
    is_main: bool = False  # the value of the cell's last expression
    display_id: str | None = None
    is_update: bool = False  # takes the place of what was shown under its id

    def _repr_mimebundle_(self, **_options: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        return dict(self.data), dict(self.metadata)


@dataclass(frozen=True, slots=True)
class CellError:
    """The exception that ended a cell."""

    name: str
    value: str
    traceback: Sequence[str]


@dataclass(frozen=True, slots=True)
class Cleared:
    """All that was shown of a cell so far is to go: now, or when something new is shown."""

    wait: bool


# What a cell gives while it runs, in order.
Event = Output | Bundle | CellError | Cleared


@dataclass(frozen=True, slots=True)
class Cell:
    """What came of a piece of code. An exception in it is a result, not an error."""

    status: CellStatus
    count: int
    results: Sequence[Bundle]
    stdout: str
    stderr: str
    truncated: bool
    error: CellError | None
    duration: float
    death: str = ""  # why the kernel ended, if it did

    @property
    def ok(self) -> bool:
        """Whether the code ran to its end."""
        return self.status is CellStatus.OK

    @property
    def result(self) -> Bundle | None:
        """The value of the last expression, or else what was displayed last."""
        for bundle in self.results:
            if bundle.is_main:
                return bundle
        return self.results[-1] if self.results else None

    @property
    def text(self) -> str | None:
        """The value of the last expression as text."""
        for bundle in self.results:
            if bundle.is_main:
                text = bundle.data.get("text/plain")
                return None if text is None else str(text)
        return None

    @property
    def html(self) -> str | None:
        """The result as HTML."""
        return self._as_text("text/html")

    @property
    def markdown(self) -> str | None:
        """The result as Markdown."""
        return self._as_text("text/markdown")

    @property
    def latex(self) -> str | None:
        """The result as LaTeX."""
        return self._as_text("text/latex")

    @property
    def svg(self) -> str | None:
        """The result as SVG."""
        return self._as_text("image/svg+xml")

    @property
    def javascript(self) -> str | None:
        """The result as JavaScript."""
        return self._as_text("application/javascript")

    @property
    def json(self) -> Any:
        """The result as JSON."""
        return self._form("application/json")

    @property
    def png(self) -> str | None:
        """The result as a PNG image, in base64."""
        return self._as_text("image/png")

    @property
    def jpeg(self) -> str | None:
        """The result as a JPEG image, in base64."""
        return self._as_text("image/jpeg")

    @property
    def pdf(self) -> str | None:
        """The result as PDF, in base64."""
        return self._as_text("application/pdf")

    def check(self) -> Cell:
        """Return this cell, or raise `CommandFailed` if it did not run to its end."""
        if self.ok:
            return self
        what = f"{self.error.name}: {self.error.value}" if self.error else self.death or self.status
        raise CommandFailed(f"the cell failed: {what}", status=self.status.value)

    def _form(self, kind: str) -> Any:
        result = self.result
        return None if result is None else result.data.get(kind)

    def _as_text(self, kind: str) -> str | None:
        value = self._form(kind)
        return None if value is None else str(value)

    def _repr_mimebundle_(self, **_options: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """Show itself in a notebook as its result would, or by what it printed."""
        if self.result is not None:
            return dict(self.result.data), dict(self.result.metadata)
        error = "" if self.error is None else f"{self.error.name}: {self.error.value}\n"
        return {"text/plain": self.stdout + self.stderr + error}, {}
