"""Forms of values beyond those that IPython knows: tables as data, figures as chart data, Plotly's as a page of their own.

They are registered by the names of types, so that nothing is imported or done for them before such a value is shown.
"""

from __future__ import annotations

import json
import math
import os
import sys
from typing import Any, Callable, Dict, Tuple

from atoll_guest.own_builtins import use_own_builtins

use_own_builtins(globals())

TABLE = "application/vnd.dataresource+json"
CHART = "application/vnd.atoll.chart+json"
PLOTLY = "application/vnd.plotly.v1+json"

Forms = Dict[str, Any]
Bundle = Tuple[Forms, Forms]

# By module and name. Pandas 3 tells another module than those before it.
_TABLES = (("pandas", "DataFrame"), ("pandas.core.frame", "DataFrame"))
_COLUMNS = (("pandas", "Series"), ("pandas.core.series", "Series"))
_FIGURES = (("matplotlib.figure", "Figure"),)
_PLOTLY = (("plotly.basedatatypes", "BaseFigure"),)
_VIDEOS = (("IPython.core.display", "Video"),)

_MOST_VALUES = 10_000
# What is shown of a page has to fit into a message, together with its figure.
_MOST_PAGE_BYTES = 7 << 20
_MOST_VIDEO_BYTES = 5 << 20


def register_forms(formatter: Any) -> None:
    """Have a shell's `display_formatter` show more of some values."""
    bundles = formatter.mimebundle_formatter
    for names, make in (
        (_TABLES, _table),
        (_COLUMNS, _column),
        (_FIGURES, _figure),
        (_PLOTLY, _plotly),
        (_VIDEOS, _video),
    ):
        for module, name in names:
            bundles.for_type_by_name(module, name, make)
    for module, name in _PLOTLY:
        # It would show itself, as whatever its renderer makes of it; this way it is the cell's value.
        formatter.ipython_display_formatter.for_type_by_name(module, name, _do_not)


def complete(data: Forms) -> Forms:
    """Return a bundle with the page of a Plotly figure, which Plotly's own `show` leaves to a notebook."""
    if PLOTLY not in data or "text/html" in data:
        return data
    page = _page(data[PLOTLY])
    return {**data, "text/html": page} if page else data


def as_json(value: Any) -> Any:
    """Return a list or a dict if it is JSON as it is, and not too large; else None."""
    left = _MOST_VALUES
    waiting = [value]
    while waiting:
        each = waiting.pop()
        kind = type(each)
        if kind is list:
            waiting += each[: left + 1]
        elif kind is dict:
            if not all(type(name) is str for name in each):
                return None
            waiting += each.values()
        elif kind is float:
            if not math.isfinite(each):
                return None
        elif not (each is None or kind is str or kind is int or kind is bool):
            return None
        left -= 1
        if left < len(waiting):
            return None
    return value


def _guarded(make: Callable[..., Any]) -> Callable[..., Any]:
    """Let a form that cannot be made be left out: the value has others."""

    def attempt(value: Any, **_wishes: Any) -> Any:
        try:
            return make(value)
        except Exception:  # noqa: BLE001 - whatever a library or a cell's own class does
            return None

    return attempt


@_guarded
def _table(frame: Any) -> Bundle | None:
    from atoll_guest.tables import table_of

    found = table_of(frame)
    return None if found is None else ({TABLE: found[0]}, {TABLE: found[1]})


@_guarded
def _column(series: Any) -> Any:
    return _table(series.to_frame("values" if series.name is None else series.name))


@_guarded
def _figure(figure: Any) -> Forms | None:
    from atoll_guest.charts import chart_of

    chart = chart_of(figure)
    return None if chart is None else {CHART: chart}


@_guarded
def _plotly(figure: Any) -> Forms:
    drawn = json.loads(figure.to_json())
    # Without one it would make a page of its own, which needs another from the network.
    page = _page(drawn) or "<p>This figure is too large for a page; write_html() makes a file.</p>"
    text = f"<plotly figure of {len(figure.data)} traces>"
    return {PLOTLY: drawn, "text/plain": text, "text/html": page}


def _page(drawn: Forms) -> str | None:
    try:
        make = sys.modules["plotly.io"].to_html
        page = str(make(drawn, include_plotlyjs=True, full_html=True, validate=False))
    except Exception:  # noqa: BLE001 - what was shown need not be a figure
        return None
    return page if len(page) <= _MOST_PAGE_BYTES else None


@_guarded
def _video(video: Any) -> Forms | None:
    """Return a video that is only named by its path with what is in it: outside there is no such path."""
    path = video.filename
    if video.embed or not path or not os.path.isfile(path):
        return None
    if os.path.getsize(path) > _MOST_VIDEO_BYTES:
        return {"text/plain": f"<video {path}, too large to be shown; read the file instead>"}
    whole = type(video)(path, embed=True, width=video.width, height=video.height)
    return {"text/html": whole._repr_html_()}


def _do_not(_value: Any) -> None:
    # By which a formatter says that it has nothing to do with a value.
    raise NotImplementedError
