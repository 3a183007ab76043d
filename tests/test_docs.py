"""Python blocks in the docs are run, page by page; `<!-- not run -->` before one leaves it out."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
_BLOCK = re.compile(
    r"^(?P<skip><!-- not run -->\s*\n)?```python\n(?P<code>.*?)^```", re.MULTILINE | re.DOTALL
)


def find_blocks(text: str) -> Iterator[tuple[int, str]]:
    """Yield first line and code of each block that is to be run."""
    for match in _BLOCK.finditer(text):
        if match["skip"] is None:
            yield text.count("\n", 0, match.start("code")), match["code"]


PAGES = [
    page
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
    if any(find_blocks(page.read_text()))
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_examples_of_a_page_run(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = Path(tempfile.gettempdir(), f"atoll-test-{os.geteuid()}")
    monkeypatch.setenv("ATOLL_DATA", str(data))
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": "__main__"}
    for line, code in find_blocks(page.read_text()):
        # Empty lines in front make a traceback name the line of the page.
        exec(compile("\n" * line + code, str(page), "exec"), namespace)  # noqa: S102 - our own text


def test_blocks_are_found_and_left_out_as_marked() -> None:
    text = "a\n```python\nx = 1\n```\n\n<!-- not run -->\n```python\nboom\n```\n```sh\nls\n```\n"
    assert list(find_blocks(text)) == [(2, "x = 1\n")]


def test_pages_with_examples_are_found() -> None:
    assert {"README.md", "sdk.md"} <= {page.name for page in PAGES}
