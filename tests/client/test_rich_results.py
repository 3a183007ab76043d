"""Rich results of real sandboxes: what a program gets of tables, figures and pictures that were made inside."""

from __future__ import annotations

import base64
import builtins
import io
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from atoll import Cell, CellError, InvalidRequest, Sandbox, Unsupported
from atoll.model.kernel import CHART_FORM, TABLE_FORM, Bundle, CellStatus
from tests.rich_template import publish_rich_template

pytestmark = pytest.mark.any_user


@pytest.fixture(scope="module")
def template() -> str:
    """A template with the packages that these tests use."""
    return publish_rich_template(Path(tempfile.gettempdir(), f"atoll-test-{os.geteuid()}"))


@pytest.fixture
def sandbox(template: str) -> Iterator[Sandbox]:
    """A sandbox with those packages."""
    with Sandbox(template=template) as sandbox:
        yield sandbox


def test_a_table_is_a_frame_outside(sandbox: Sandbox) -> None:
    code = (
        "import pandas as pd\n"
        "pd.DataFrame({'n': [1, 2], 'x': [0.5, None], 's': ['a', 'ü'], 'day': pd.to_datetime(['2024-01-01', '2024-02-03']),"
        " 'c': pd.Categorical(['p', 'q']), 'b': [True, False]}, index=['i', 'j'])"
    )
    cell = sandbox.run_code(code)
    assert "<table" in (cell.html or "")
    namespace: dict[str, Any] = {}
    exec(code.replace("\npd.", "\nframe = pd."), namespace)  # noqa: S102 - the same line, here
    # Times have no unit in JSON.
    expected = namespace["frame"].astype({"day": cell.df["day"].dtype})
    pd.testing.assert_frame_equal(cell.df, expected, check_names=False)
    assert cell.df.attrs == {"rows": 2, "columns": 6, "truncated": False}
    assert sandbox.run_code("pd.Series([1, 2], name='s')").df["s"].to_list() == [1, 2]
    assert sandbox.run_code("1").df is None


def test_a_long_table_is_its_head_and_says_so(sandbox: Sandbox) -> None:
    frame = sandbox.run_code("import pandas as pd\npd.DataFrame({'n': range(50_000)})").df
    assert len(frame) == 10_000
    assert frame.attrs == {"rows": 50_000, "columns": 1, "truncated": True}


def test_a_figure_is_a_picture_and_data(sandbox: Sandbox) -> None:
    cell = sandbox.run_code(
        "import matplotlib.pyplot as plt\nplt.title('Squares')\nplt.plot([1, 2, 3], [1, 4, 9])"
    )
    # The last expression has a value of its own; the picture is there all the same.
    assert "Line2D" in (cell.text or "")
    assert base64.b64decode(cell.png or "").startswith(b"\x89PNG")
    assert cell.chart is not None
    assert (cell.chart["type"], cell.chart["title"]) == ("line", "Squares")
    assert cell.chart["elements"][0]["points"] == [[1.0, 1.0], [2.0, 4.0], [3.0, 9.0]]


def test_plotly_and_pictures(sandbox: Sandbox) -> None:
    page = sandbox.run_code("import plotly.express as px\npx.bar(x=['a'], y=[1])").html
    assert page is not None and "Plotly.newPlot" in page and len(page) > 1_000_000
    cell = sandbox.run_code("from PIL import Image\nImage.new('L', (3, 2))")
    from PIL import Image

    assert Image.open(io.BytesIO(base64.b64decode(cell.png or ""))).size == (3, 2)


def test_a_coroutine_as_last_value_is_run_to_its_end() -> None:
    with Sandbox() as sandbox:
        sandbox.run_code("import asyncio\nasync def f():\n    return await asyncio.sleep(0.01, 7)")
        assert sandbox.run_code("f()").text == "7"
        assert sandbox.run_code("asyncio.sleep(60)", timeout=0.3).status == "timed_out"
        assert sandbox.run_code("await f()").text == "7"


def test_forms_are_those_of_the_result_then_of_what_was_displayed_last() -> None:
    cell = _cell(
        Bundle({"text/html": "first", "image/png": "old"}, {}),
        Bundle({"text/html": "second"}, {}),
        Bundle({"text/plain": "main"}, {}, is_main=True),
    )
    assert (cell.text, cell.html, cell.png, cell.svg) == ("main", "second", "old", None)
    main = _cell(
        Bundle({"text/html": "result"}, {}, is_main=True), Bundle({"text/html": "later"}, {})
    )
    assert main.html == "result"


@pytest.mark.parametrize(
    "resource",
    [5, {}, {"schema": {}, "data": []}, {"schema": {"fields": [{}]}, "data": "x"}, None, [[1]]],
)
def test_a_table_that_was_made_up_is_refused(resource: object) -> None:
    with pytest.raises(InvalidRequest, match="table that pandas cannot read"):
        _ = _cell(Bundle({TABLE_FORM: resource}, {TABLE_FORM: 7})).df


def test_without_pandas_there_is_a_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    cell = _cell(Bundle({TABLE_FORM: {}}, {}))
    load = builtins.__import__

    def refuse(name: str, *rest: Any, **more: Any) -> Any:
        if name == "pandas":
            raise ImportError(name)
        return load(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(Unsupported, match="install pandas"):
        _ = cell.df


def test_a_chart_that_was_made_up_is_none() -> None:
    assert _cell(Bundle({CHART_FORM: "x"}, {})).chart is None


# --- showing itself ----------------------------------------------------------------------------------------------

_ATTACK = "<script>parent.document.body.append('got out')</script>"


@pytest.mark.parametrize(
    "data",
    [
        {"text/html": _ATTACK},
        {"image/svg+xml": f"<svg>{_ATTACK}</svg>"},
        {"text/html": f'"></iframe>{_ATTACK}'},
        {"application/javascript": "parent.alert()"},
        {"text/markdown": _ATTACK},
        {"application/vnd.bokehjs_exec.v0+json": "parent.alert()"},
    ],
)
def test_scripts_of_a_sandbox_do_not_reach_a_notebooks_page(data: dict[str, str]) -> None:
    from html.parser import HTMLParser

    shown, _metadata = _cell(Bundle({"text/plain": "x", **data}, {}))._repr_mimebundle_()
    assert shown.keys() <= {"text/plain", "text/html"}
    found: list[tuple[str, dict[str, str | None]]] = []

    class Reader(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            found.append((tag, dict(attrs)))

    Reader().feed(shown.get("text/html", ""))
    # Whatever comes from inside is in a frame of its own, with an origin of its own.
    assert [tag for tag, _attributes in found] in ([], ["iframe"])
    for _tag, attributes in found:
        assert attributes["sandbox"] == "allow-scripts"
        page = data.get("text/html") or data["image/svg+xml"]
        assert attributes["srcdoc"] == page


def test_a_cell_shows_all_of_itself_in_a_notebook(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import IPython.display

    shown: list[Any] = []
    monkeypatch.setattr(IPython.display, "display", shown.append)
    bundles = Bundle({"image/png": "x"}, {}), Bundle({"text/plain": "5"}, {}, is_main=True)
    _cell(*bundles, stdout="printed", error=CellError("E", "v", ["E: v"]))._ipython_display_()
    assert shown == list(bundles)
    assert capsys.readouterr().out.startswith("printed\n")


def test_a_cell_shows_itself_in_rich() -> None:
    from rich.console import Console

    cell = _cell(
        Bundle({"text/plain": "4\x1b]0;title\x072"}, {}, is_main=True),
        stdout="\x1b[31mred\x1b[0m \x1b]0;title\x07 [bold]",
        error=CellError("ValueError", "no", ["Traceback", "ValueError: \x1b[2Jno"]),
    )
    console = Console(record=True, file=io.StringIO(), width=80)
    console.print(cell)
    text = console.export_text(clear=False)
    assert "red" in text and "[bold]" in text and "ValueError" in text
    assert "\x1b]0" not in console.export_text(styles=True)
    assert "\x1b[2J" not in console.export_text(styles=True)


def test_tracebacks_have_a_form_with_colours() -> None:
    with Sandbox() as sandbox:
        error = sandbox.run_code("def f():\n    return 1 / 0\nf()").error
        evil = sandbox.run_code("raise ValueError('\\x1b]0;owned\\x07\\x9b2J')").error
    assert error is not None and evil is not None
    assert "\x1b" not in "".join(error.traceback)
    assert "\x1b[" in error.ansi and "ZeroDivisionError" in error.ansi
    assert "\x1b]" not in evil.ansi and "\x9b" not in evil.ansi and "\x07" not in evil.ansi


def _cell(*results: Bundle, stdout: str = "", error: CellError | None = None) -> Cell:
    return Cell(CellStatus.OK, 1, results, stdout, "", False, error, 0.0)
