"""A benchmark's result: one JSON object for programs, a small table for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

Report = dict[str, Any]


def table(report: Report) -> str:
    """Return the figures of a report as lines of text."""
    lines = [f"{report['name']}: {report['summary']}", ""]
    for title, part in parts_of(report):
        if title:
            lines += [title]
        lines += [_line(row) for row in rows_of(part)] + [""]
    for name, reason in report.get("missing", {}).items():
        lines.append(f"not measured: {name} ({reason})")
    for target in report["targets"]:
        lines.append(f"{'reached' if target['reached'] else 'MISSED':9}{told(target)}")
    conditions = report["conditions"]
    loads = f"{conditions['load_before'][0]} → {conditions['load_after'][0]}"
    lines.append(f"{conditions.get('measured', '')}; load {loads}".strip("; "))
    return "\n".join(lines)


def parts_of(report: Report) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the whole, unless a part stands for it, and then its parts, each with `atoll` and `peers`."""
    parts = report.get("parts", {})
    if all(part["atoll"] != report["atoll"] for part in parts.values()):
        yield "", report
    yield from parts.items()


def rows_of(part: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield Atoll first, then its peers, the closest first and those without figures last."""
    yield "atoll", part["atoll"]
    peers = part["peers"].items()
    yield from sorted(peers, key=lambda peer: peer[1].get("ratio_p50", float("inf")))


def shown(value: object) -> str:
    """Return a figure as people read it."""
    return f"{value:,.4g}" if isinstance(value, float) and abs(value) < 10_000 else str(value)


def told(target: Mapping[str, Any]) -> str:
    """Return a target and what was found, in words."""
    found = target["found"]
    return f"{target['target']}: {'not measured' if found is None else shown(found)}"


def _line(row: tuple[str, Mapping[str, Any]]) -> str:
    name, figures = row
    if "reason" in figures:
        return f"  {name:18}{figures['reason'].splitlines()[0]}"
    text, told = f"  {name:18}", {"p10_ms"}
    if "p50_ms" in figures:
        text += f"p50 {shown(figures['p50_ms']):>8} ms   p95 {shown(figures['p95_ms']):>8} ms   "
        told |= {"p50_ms", "p95_ms"}
    if "ratio_p50" in figures:
        text += f"{shown(figures['ratio_p50']):>6}× (p10 {shown(figures['ratio_p10'])}×)   "
        told |= {"ratio_p50", "ratio_p10"}
    return text + "  ".join(f"{key}={shown(figures[key])}" for key in figures if key not in told)
