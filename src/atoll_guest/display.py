"""Figures and tables as outputs: what IPython shows goes to the kernel instead of to a screen.

Loaded only where there is an IPython.
"""

from __future__ import annotations

from types import CoroutineType
from typing import Any, Callable

from IPython.core.displayhook import DisplayHook
from IPython.core.displaypub import DisplayPublisher

from atoll_guest.forms import as_json, complete

Bundle = Any
# What is given as JSON, too, if it is.
_JSON = frozenset({list, dict})


class KernelDisplayHook(DisplayHook):
    """Hands a cell's value over instead of printing it."""

    show: Callable[[Bundle], None] = staticmethod(lambda bundle: None)
    # A last value that has to be awaited, once no event loop runs any more.
    coroutine: Any = None

    def __call__(self, result: Any = None) -> None:
        """Show a value."""
        if type(result) is CoroutineType:
            self.coroutine = result
        else:
            super().__call__(result)  # type: ignore[no-untyped-call]

    def compute_format_data(self, result: Any) -> Bundle:
        """Return the forms of a value, and what there is to say of them."""
        data, metadata = super().compute_format_data(result)  # type: ignore[no-untyped-call]
        if type(result) in _JSON and as_json(result) is not None:
            data["application/json"] = result
        return data, metadata

    def write_output_prompt(self) -> None:
        """Print nothing."""

    def write_format_data(self, format_dict: dict[str, Any], md_dict: Any = None) -> None:
        """Hand the value over."""
        self.show((format_dict, md_dict or {}))

    def finish_displayhook(self) -> None:
        """Print nothing."""


class KernelDisplayPublisher(DisplayPublisher):
    """Hands over what `display()` shows in the midst of a cell."""

    kernel: Any = None

    def _setup_execution_tracking(self) -> None:
        """Nothing: a display is where it is in the output, whichever cell it is of."""

    def publish(
        self,
        data: dict[str, Any],
        metadata: dict[str, Any] | None = None,
        source: Any = None,
        *,
        transient: dict[str, Any] | None = None,
        update: bool = False,
        **_more: Any,
    ) -> None:
        """Show a value in several forms."""
        self._validate_data(data, metadata)  # type: ignore[no-untyped-call]
        if self.kernel is not None:
            self.kernel.display(complete(data), metadata or {}, transient, update)

    def clear_output(self, wait: bool = False) -> None:
        """Clear what the cell has shown so far."""
        if self.kernel is not None:
            self.kernel.clear(wait)
