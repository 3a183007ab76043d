"""What a matplotlib figure shows, as data: type, title, axes and elements, in the shape that E2B's clients read.

Loaded with the first figure that is shown; it imports nothing, as whoever made a figure has loaded what it takes.
"""

from __future__ import annotations

import math
import re
import sys
from typing import Any, Dict

Chart = Dict[str, Any]

# More than this says nothing that a picture does not, and takes long to send.
_MOST_POINTS = 10_000
_UNIT = re.compile(r"\s\((.*?)\)|\[(.*?)\]")
# Two places on an axis that are nearer than this are the same.
_NEAR = 1e-6


def chart_of(figure: Any) -> Chart | None:
    """Return what a figure shows; None if there is nothing, or nothing that can be told."""
    axes = [each for each in figure.axes if each.get_label() != "<colorbar>"]
    charts = [_chart(each) for each in axes]
    if len(charts) > 1:
        title = figure._suptitle.get_text() if figure._suptitle is not None else None
        return {"type": "superchart", "title": title or None, "elements": charts}
    return charts[0] if charts else None


def _chart(axes: Any) -> Chart:
    # Wedges are a pie, containers hold bars; what is left is told by its shape.
    wedges = [each for each in axes.patches if type(each).__name__ == "Wedge"]
    if wedges:
        return _head(axes, "pie", [_slice(each) for each in wedges])
    bars = [each for each in axes.containers if type(each).__name__ == "BarContainer" and len(each)]
    if bars:
        return _bars(axes, bars)
    boxes = _boxes(axes)
    if boxes:
        return boxes
    return _points(axes)


def _head(axes: Any, kind: str, elements: list[Any]) -> Chart:
    return {"type": kind, "title": axes.get_title() or None, "elements": elements}


def _labels(axes: Any, swapped: bool = False) -> Chart:
    names = [axes.get_xlabel() or None, axes.get_ylabel() or None]
    if swapped:
        names.reverse()
    units = [_unit(name) for name in names]
    return {"x_label": names[0], "y_label": names[1], "x_unit": units[0], "y_unit": units[1]}


def _unit(label: str | None) -> str | None:
    found = _UNIT.search(label or "")
    return (found.group(1) or found.group(2) or None) if found else None


# --- pies, bars and boxes --------------------------------------------------------------------------------------


def _slice(wedge: Any) -> Chart:
    # Shares are of single precision.
    angle = round(abs(float(wedge.theta2 - wedge.theta1)), 4)
    return {"label": wedge.get_label(), "angle": angle, "radius": _number(wedge.r)}


def _bars(axes: Any, containers: list[Any]) -> Chart:
    lies = getattr(containers[0], "orientation", None) == "horizontal"
    names = _tick_names(axes.yaxis if lies else axes.xaxis)
    elements: list[Chart] = []
    for container in containers:
        label = str(container.get_label())
        group = "" if label.startswith("_") else label
        for bar in container.patches[: _MOST_POINTS - len(elements)]:
            elements.append({"group": group, **_bar(bar, lies, names)})
    return {**_head(axes, "bar", elements), **_labels(axes, lies)}


def _bar(bar: Any, lies: bool, names: dict[float, str]) -> Chart:
    start, length = (bar.get_y(), bar.get_height()) if lies else (bar.get_x(), bar.get_width())
    low, high = sorted((start, start + length))
    # A bar beside others of its group lies next to the tick, not on it.
    near = [place for place in names if low - _NEAR <= place <= high + _NEAR]
    middle = (low + high) / 2
    place = min(near, key=lambda each: abs(each - middle)) if near else middle
    value = bar.get_width() if lies else bar.get_height()
    return {"label": names.get(place) or f"{middle:g}", "value": _number(value)}


def _boxes(axes: Any) -> Chart | None:
    """Return a box plot, of which matplotlib keeps nothing but lines: boxes are rectangles with lines through their middle."""
    rectangles = [each for each in map(_outline, (*axes.lines, *axes.patches)) if each]
    if not rectangles:
        return None
    lines = [each for each in map(_line, axes.lines) if each]
    for lies in (False, True):
        found: dict[float, Chart] = {}
        for rectangle in rectangles:
            at, box = _box(_turned(rectangle, lies), [_turned(each, lies) for each in lines])
            if box is not None:
                found[round(at, 6)] = box
        if found:
            names = _tick_names(axes.yaxis if lies else axes.xaxis)
            elements = [
                {"label": _name_at(names, at), **found[at]} for at in sorted(found)[:_MOST_POINTS]
            ]
            return {**_head(axes, "box_and_whisker", elements), **_labels(axes, lies)}
    return None


def _outline(artist: Any) -> list[tuple[float, float]] | None:
    """Return the five corners of a closed rectangle."""
    if type(artist).__name__ == "PathPatch":
        points = artist.get_path().vertices
    elif type(artist).__name__ == "Line2D":
        points = artist.get_xydata()
    else:
        return None
    corners = [(float(x), float(y)) for x, y in points[:6]]
    if len(points) not in (5, 6) or corners[0] != corners[4]:
        return None
    sides = {x for x, _y in corners[:4]}, {y for _x, y in corners[:4]}
    return corners[:5] if len(sides[0]) == len(sides[1]) == 2 else None


def _line(artist: Any) -> list[tuple[float, float]] | None:
    points = [(float(x), float(y)) for x, y in artist.get_xydata()[:_MOST_POINTS]]
    return points if len(points) != 5 else None


def _turned(points: list[tuple[float, float]], lies: bool) -> list[tuple[float, float]]:
    return [(y, x) for x, y in points] if lies else points


def _box(
    corners: list[tuple[float, float]], lines: list[list[tuple[float, float]]]
) -> tuple[float, Chart | None]:
    xs, ys = [x for x, _y in corners], [y for _x, y in corners]
    at, low, high = (min(xs) + max(xs)) / 2, min(ys), max(ys)
    ends, medians, outliers = [], [], []
    for line in lines:
        if not all(abs(point[0] - at) <= max(xs) - at + _NEAR for point in line):
            continue
        if len(line) == 2 and line[0][0] == line[1][0] and abs(line[0][0] - at) < _NEAR:
            ends += [line[0][1], line[1][1]]  # a whisker
        elif len(line) == 2 and line[0][1] == line[1][1] and low <= line[0][1] <= high:
            medians.append(line[0][1])
        elif all(abs(x - at) < _NEAR for x, _y in line):
            outliers += [y for _x, y in line]
    if not ends or not medians:
        return at, None
    return at, {
        "min": _number(min(ends)),
        "first_quartile": _number(low),
        "median": _number(medians[0] if len(medians) == 1 else _inner(medians, low, high)),
        "third_quartile": _number(high),
        "max": _number(max(ends)),
        "outliers": [_number(each) for each in outliers],
    }


def _inner(medians: list[float], low: float, high: float) -> float:
    """Return the line that is not a cap: those may lie on the edges of a box."""
    return next((each for each in medians if low < each < high), medians[0])


def _name_at(names: dict[float, str], at: float) -> str:
    for place, name in names.items():
        if abs(place - at) < _NEAR and name:
            return name
    return f"{at:g}"


# --- lines and points ------------------------------------------------------------------------------------------


def _points(axes: Any) -> Chart:
    lines = [each for each in axes.lines if each.get_transform() == axes.transData]
    clouds = [each for each in axes.collections if type(each).__name__ == "PathCollection"]
    if not (lines or clouds) or not hasattr(axes, "yaxis") or hasattr(axes, "zaxis"):
        return _head(axes, "unknown", [])
    scales = _Scale(axes.xaxis), _Scale(axes.yaxis)
    elements: list[Chart] = []
    left = _MOST_POINTS
    found = [("Points", each, each.get_offsets()) for each in clouds]
    found += [("Line", each, each.get_xydata()) for each in lines]
    for number, (kind, artist, places) in enumerate(found[:_MOST_POINTS], 1):
        points = [[scales[0].value(x), scales[1].value(y)] for x, y in places[:left]]
        left -= len(points)
        label = str(artist.get_label())
        name = f"{kind} {number}" if label.startswith("_") else label
        elements.append({"label": name, "points": points})
    chart = {**_head(axes, "scatter" if clouds else "line", elements), **_labels(axes)}
    for name, scale in zip("xy", scales):
        chart.update({f"{name}_{key}": value for key, value in scale.describe().items()})
    return chart


class _Scale:
    """One axis: what its numbers mean."""

    def __init__(self, axis: Any) -> None:
        self._axis = axis
        units = getattr(axis, "units", None)
        mapping = getattr(units, "_mapping", None) if units is not None else None
        self._names = {float(at): name for name, at in mapping.items()} if mapping else {}
        locator = type(axis.get_major_locator()).__module__
        self.name = str(axis.get_scale())
        if self._names:
            self.name = "categorical"
        elif locator == "matplotlib.dates":
            self.name = "datetime"

    def value(self, number: Any) -> Any:
        if self.name == "categorical":
            return self._names.get(float(number), _number(number))
        if self.name == "datetime":
            return _instant(number)
        return _number(number)

    def describe(self) -> Chart:
        ticks = [self.value(each) for each in self._axis.get_majorticklocs()]
        labels = [each.get_text() for each in self._axis.get_ticklabels()]
        return {"ticks": ticks, "tick_labels": labels, "scale": self.name}


def _instant(number: Any) -> str | None:
    if not math.isfinite(number):
        return None
    return str(sys.modules["matplotlib.dates"].num2date(number).isoformat())


def _tick_names(axis: Any) -> dict[float, str]:
    """Return what stands at the ticks of an axis, if that is more than their numbers."""
    if type(axis.get_major_formatter()).__name__ == "ScalarFormatter":
        return {}
    texts = [each.get_text() for each in axis.get_ticklabels()]
    return {float(at): text for at, text in zip(axis.get_majorticklocs(), texts)}


def _number(value: Any) -> float | None:
    number = float(value)
    return number if math.isfinite(number) else None
