"""Kernels, cells, and what comes of them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from atoll.errors import CommandFailed, InvalidRequest, Unsupported
from atoll.model.ids import KernelId
from atoll.model.process import Output
from atoll.model.showing import calmed, for_notebook, in_colour

# Forms of a value that are data: tables as table-schema resources, and what a figure shows.
TABLE_FORM = "application/vnd.dataresource+json"
CHART_FORM = "application/vnd.atoll.chart+json"


class CellStatus(StrEnum):
    """How a cell ended."""

    OK = "ok"
    ERROR = "error"
    INTERRUPTED = "interrupted"
    TIMED_OUT = "timed_out"  # interrupted by its timeout; its kernel lives on
    DIED = "died"  # its kernel ended with it; variables are gone, files are there


# The error by which a shell tells that its last command did not succeed; its value is the code.
EXIT_CODE = "ExitCode"
_EXIT_CODES = {CellStatus.OK: 0, CellStatus.TIMED_OUT: 124, CellStatus.INTERRUPTED: 130}


@dataclass(frozen=True, slots=True)
class KernelInfo:
    """Facts about a kernel at one moment."""

    id: KernelId
    language: str
    is_main: bool  # the one that cells go to which name none
    is_busy: bool
    is_over: bool
    reason: str = ""  # why it ended
    is_warm: bool = True  # whether it was a copy of a warmed interpreter; else a program had to be started for it


@dataclass(frozen=True, slots=True)
class Bundle:
    """One value in several forms, by MIME type."""

    data: Mapping[str, Any]
    metadata: Mapping[str, Any]
    is_main: bool = False  # the value of the cell's last expression
    display_id: str | None = None
    is_update: bool = False  # takes the place of what was shown under its id

    def _repr_mimebundle_(self, **_options: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """Show itself in a notebook, whose page the scripts in it do not reach."""
        return for_notebook(self.data), dict(self.metadata)


@dataclass(frozen=True, slots=True)
class CellError:
    """The exception that ended a cell; its traceback is plain text."""

    name: str
    value: str
    traceback: Sequence[str]

    @property
    def ansi(self) -> str:
        """The traceback with colours, for a terminal."""
        return in_colour(self.traceback)


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
    execution_count: int
    results: Sequence[Bundle]
    stdout: str
    stderr: str
    truncated: bool
    error: CellError | None
    duration: float
    death: str = ""  # why the kernel ended, if it did
    files_changed: Sequence[str] | None = None  # paths in the workspace, if they were asked for

    @property
    def ok(self) -> bool:
        """Whether the code ran to its end."""
        return self.status is CellStatus.OK

    @property
    def exit_code(self) -> int:
        """What a shell would tell of it: 0 at its end, a shell's own code, 124 for a timeout, 130 if interrupted, else 1."""
        if self.error is not None and self.error.name == EXIT_CODE and self.error.value.isdecimal():
            return int(self.error.value)
        return _EXIT_CODES.get(self.status, 1)

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

    # The forms below are those of the result, or else of what was displayed last in that form.

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
        """The result as JSON: lists and dicts that are JSON come as they are."""
        return self._form("application/json")

    @property
    def chart(self) -> Mapping[str, Any] | None:
        """What a figure shows: its `type`, `title`, `elements`, and what is told of its axes."""
        chart = self._form(CHART_FORM)
        return chart if isinstance(chart, dict) else None

    @property
    def df(self) -> Any:
        """A table as a DataFrame of pandas, or None if the cell gave none.

        A long one is its head; `df.attrs` tells its `rows` and whether it is `truncated`.

        Raises:
            Unsupported: this program has no pandas.
            InvalidRequest: what the code gave is no table.
        """
        for bundle in self._by_rank():
            if TABLE_FORM in bundle.data:
                return _as_frame(bundle.data[TABLE_FORM], bundle.metadata.get(TABLE_FORM))
        return None

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

    def _by_rank(self) -> Iterator[Bundle]:
        """Yield the result, then what was displayed, the last first."""
        result = self.result
        if result is not None:
            yield result
        yield from (each for each in reversed(self.results) if each is not result)

    def _form(self, kind: str) -> Any:
        for bundle in self._by_rank():
            if kind in bundle.data:
                return bundle.data[kind]
        return None

    def _as_text(self, kind: str) -> str | None:
        value = self._form(kind)
        return None if value is None else str(value)

    def _repr_mimebundle_(self, **_options: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """Show itself as its result would, or by what it printed."""
        if self.result is not None:
            return self.result._repr_mimebundle_()
        return {"text/plain": self.stdout + self.stderr + self._error_line()}, {}

    def _ipython_display_(self) -> None:
        """Show itself in a notebook as if it had run there: what it printed, all that it showed, its traceback."""
        from IPython.display import display

        for text in (self.stdout, self.stderr):
            if text:
                print(text, end="" if text.endswith("\n") else "\n")
        for bundle in self.results:
            display(bundle)  # type: ignore[no-untyped-call]
        if self.error is not None:
            print(self.error.ansi)

    def __rich_console__(self, console: Any, options: Any) -> Iterator[Any]:
        """Show itself in the manner of rich."""
        from rich.text import Text

        for text, style in ((self.stdout, ""), (self.stderr, "red")):
            if text:
                # Colours that the code printed are kept; whatever else would steer the terminal is not.
                shown = Text.from_ansi(text.removesuffix("\n"))
                shown.stylize(style)
                yield shown
        for bundle in self.results:
            yield Text(calmed(_line(bundle)), style="bold" if bundle.is_main else "")
        if self.error is not None:
            yield Text.from_ansi(self.error.ansi)

    def _error_line(self) -> str:
        return "" if self.error is None else f"{self.error.name}: {self.error.value}\n"


def _line(bundle: Bundle) -> str:
    return str(bundle.data.get("text/plain") or f"<{', '.join(bundle.data)}>")


def _as_frame(resource: Any, facts: Any) -> Any:
    try:
        import pandas
    except ImportError as error:
        raise Unsupported(
            f"this program has no pandas to make a DataFrame with; install pandas, or take data[{TABLE_FORM!r}] of the result"
        ) from error
    import io

    try:
        frame = pandas.read_json(io.StringIO(json.dumps(resource)), orient="table")
    except Exception as error:
        raise InvalidRequest(
            f"the code gave a table that pandas cannot read: {str(error)[:200]}"
        ) from error
    if isinstance(facts, dict):
        frame.attrs.update(
            {key: facts[key] for key in ("rows", "columns", "truncated") if key in facts}
        )
    return frame
