"""Tables of pandas as data: a table-schema resource, so that whoever runs a cell gets more than a picture of them.

Loaded with the first table that is shown; it imports nothing, as whoever made a table has loaded what it takes.
"""

from __future__ import annotations

import json
from typing import Any, Dict

Resource = Dict[str, Any]

# More is not looked at, but stored and read as a file.
_MOST_ROWS = 10_000
_MOST_VALUES = 20_000
_MOST_COLUMNS = 1_000
_MOST_BYTES = 4 << 20


def table_of(frame: Any) -> tuple[Resource, Resource] | None:
    """Return a table's head as a table-schema resource, and what it is the head of; None for what is no such table."""
    rows, columns = frame.shape
    for most in (_MOST_ROWS, 1_000, 100, 10):
        kept = min(rows, most, max(1, _MOST_VALUES // max(1, min(columns, _MOST_COLUMNS))))
        text = _as_json(frame.iloc[:kept, :_MOST_COLUMNS])
        if text is not None and len(text) <= _MOST_BYTES:
            truncated = kept < rows or columns > _MOST_COLUMNS
            return json.loads(text), {"rows": rows, "columns": columns, "truncated": truncated}
    return None


def _as_json(frame: Any) -> str | None:
    options = {
        "orient": "table",
        "date_format": "iso",
        "double_precision": 15,
        "default_handler": str,
    }
    named = _named(frame)
    # An index may share its name with a column.
    for each in (named, named.reset_index(drop=True)):
        try:
            return str(each.to_json(**options))
        except (ValueError, TypeError, NotImplementedError, OverflowError):
            continue
    return None


def _named(frame: Any) -> Any:
    """Return the same values under names that are texts, each of one column."""
    names: list[str] = []
    for name in frame.columns:
        text = " ".join(str(each) for each in name) if isinstance(name, tuple) else str(name)
        names.append(text if text not in names else f"{text}.{len(names)}")
    return frame.set_axis(names, axis=1)
