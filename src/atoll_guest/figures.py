"""Matplotlib's open figures, shown at the end of a cell whichever backend draws them.

The backend that kernels choose shows its figures by itself. Code that asked for another one, most often Agg, has its figures
shown here. Loaded once a cell has loaded pyplot.
"""

from __future__ import annotations

import sys
from typing import Any


def show_figures(shell: Any) -> None:
    """Show and close what is open, unless a screen or the kernel's own backend sees to it."""
    pyplot, matplotlib = sys.modules["matplotlib.pyplot"], sys.modules["matplotlib"]
    numbers = pyplot.get_fignums()
    if not numbers or "inline" in matplotlib.rcParams["backend"].lower():
        return
    from IPython.core.pylabtools import select_figure_formats

    if (
        sys.modules["matplotlib.figure"].Figure
        not in shell.display_formatter.formatters["image/png"]
    ):
        select_figure_formats(shell, {"png"})  # type: ignore[no-untyped-call]
    from IPython.display import display

    try:
        for number in numbers:
            display(pyplot.figure(number))  # type: ignore[no-untyped-call]
    finally:
        pyplot.close("all")
