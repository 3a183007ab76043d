"""Values with forms beyond text: tables, figures, pictures, pages, and what has to be awaited, in the kernel's own words."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from typing import Any

import pytest

from atoll_guest.forms import CHART, PLOTLY, TABLE
from tests.atoll_guest.guests import Answer, Guest

_NO_MODULES = """
import sys
from atoll_guest.executor import Executor
from atoll_guest.shell import make_shell
executor = Executor(make_shell())
shown = []
for code in ("1", "[1]", "{'a': 1}", "print(1)", "display(2)", "async def f(): ..."):
    assert executor.run(code, shown.append) is None
print(sorted({name.partition(".")[0] for name in sys.modules}))
print(sorted(name for name in sys.modules if name.startswith("atoll_guest")))
"""


def test_ordinary_cells_load_nothing_of_this() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _NO_MODULES], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    packages, modules = (eval(line) for line in done.stdout.splitlines()[-2:])
    assert not {"numpy", "pandas", "matplotlib", "plotly", "PIL", "asyncio"} & set(packages)
    assert not {f"atoll_guest.{name}" for name in ("charts", "tables", "figures")} & set(modules)


# --- JSON --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [[1, 2.5, "a", None, True], {"a": {"b": [[]]}}, [], {}, ["ü" * 1000], list(range(9000))],
)
def test_lists_and_dicts_that_are_json_come_as_such(shared_guest: Guest, value: object) -> None:
    data = _result(shared_guest.run(f"{value!r}"))
    assert data["application/json"] == value
    assert "text/plain" in data


@pytest.mark.parametrize(
    "code",
    [
        "[(1, 2)]",
        "{1: 2}",
        "[float('nan')]",
        "[float('inf')]",
        "[object()]",
        "[{1, 2}]",
        "[0] * 20_000",
        "{str(n): n for n in range(20_000)}",
        "a = []; a.append(a); a",
        "[b'x']",
        "class L(list): ...\nL([1])",
        "1",
        "'text'",
    ],
)
def test_what_is_no_json_or_too_long_comes_without(shared_guest: Guest, code: str) -> None:
    answer = shared_guest.run(code)
    assert answer.status == "ok"
    assert "application/json" not in _result(answer)


def test_json_is_given_where_ipython_runs_the_cell(shared_guest: Guest) -> None:
    assert _result(shared_guest.run("%pwd\n[1, 2]"))["application/json"] == [1, 2]


# --- coroutines --------------------------------------------------------------------------------------------------

_COROUTINE = "import asyncio\nasync def seven():\n    await asyncio.sleep(0.01)\n    return 7\n"


@pytest.mark.parametrize(
    "code", ["seven()", "await seven()", "await seven()\nseven()", "%pwd\nseven()"]
)
def test_a_coroutine_as_last_value_is_run_to_its_end(shared_guest: Guest, code: str) -> None:
    shared_guest.run(_COROUTINE)
    answer = shared_guest.run(code)
    assert (answer.status, answer.text, answer.stderr) == ("ok", "7", b"")
    count = answer.messages[-1]["count"]
    after = shared_guest.run(f"_, Out[{count}]")
    assert after.text == "(7, 7)"
    assert after.messages[-1]["count"] == count + 1


@pytest.mark.parametrize("first", ["", "await asyncio.sleep(0)\n"])
def test_a_coroutine_that_fails_fails_the_cell(shared_guest: Guest, first: str) -> None:
    shared_guest.run("import asyncio\nasync def bad():\n    raise ValueError('no such thing')")
    failed = shared_guest.run(f"{first}bad()")
    assert (failed.status, failed.error) == ("error", "ValueError")
    assert "raise ValueError" in failed.traceback
    assert "run_until_complete" not in failed.traceback


def test_a_coroutine_as_last_value_can_be_interrupted(guest: Guest) -> None:
    code = "import asyncio\nasync def long():\n    print('now', flush=True)\n    await asyncio.sleep(60)\nlong()"
    answer = guest.run(code, on_output=guest.interrupt)
    assert answer.status == "interrupted"
    assert guest.run("6 * 7").text == "42"


# --- tables ------------------------------------------------------------------------------------------------------


def test_tables_come_as_html_and_as_data(shared_guest: Guest) -> None:
    code = (
        "import pandas as pd\n"
        "pd.DataFrame({'n': [1, 2], 'x': [0.5, None], 'day': pd.to_datetime(['2024-01-01', '2024-02-03'])})"
    )
    result = _message(shared_guest.run(code), "result")
    assert "<table" in result["data"]["text/html"]
    table = result["data"][TABLE]
    types = {field["name"]: field["type"] for field in table["schema"]["fields"]}
    assert types == {"index": "integer", "n": "integer", "x": "number", "day": "datetime"}
    first, second = table["data"]
    assert (first["n"], first["x"], second["x"]) == (1, 0.5, None)
    assert second["day"].startswith("2024-02-03")
    assert result["metadata"][TABLE] == {"rows": 2, "columns": 3, "truncated": False}


@pytest.mark.parametrize(
    ("code", "names"),
    [
        ("pd.Series([1, 2], name='s')", ["index", "s"]),
        ("pd.Series([1, 2])", ["index", "values"]),
        ("pd.DataFrame([[1, 2]], columns=['a', 'a'])", ["index", "a", "a.1"]),
        ("pd.DataFrame([[1, 2]], columns=[1, (2, 3)])", ["index", "1", "2 3"]),
        ("pd.DataFrame({'k': 'xy', 'v': [1]}).groupby('k').agg({'v': ['min']})", ["k", "v min"]),
        ("pd.DataFrame({'a': [1]}, index=pd.Index([5], name='a'))", ["index", "a"]),
        ("pd.DataFrame({'o': [object()]})", ["index", "o"]),
        ("pd.DataFrame()", ["index"]),
    ],
)
def test_tables_of_every_kind_come_as_data(
    shared_guest: Guest, code: str, names: list[str]
) -> None:
    answer = shared_guest.run(f"import pandas as pd\n{code}")
    assert answer.stderr == b""
    fields = _result(answer)[TABLE]["schema"]["fields"]
    assert [field["name"] for field in fields] == names


def test_long_tables_come_as_their_head(shared_guest: Guest) -> None:
    code = "import pandas as pd\npd.DataFrame({'n': range(1_000_000)})"
    result = _message(shared_guest.run(code), "result")
    assert len(result["data"][TABLE]["data"]) == 10_000
    assert result["metadata"][TABLE] == {"rows": 1_000_000, "columns": 1, "truncated": True}


def test_wide_and_heavy_tables_are_bounded(shared_guest: Guest) -> None:
    code = "import pandas as pd\npd.DataFrame({f'c{n}': ['x' * 1000] * 5000 for n in range(3)})"
    result = _message(shared_guest.run(code), "result")
    assert len(json.dumps(result["data"][TABLE])) < 5 << 20
    assert result["metadata"][TABLE]["truncated"] is True
    wide = _message(shared_guest.run("pd.DataFrame([[0] * 5000])"), "result")
    assert len(wide["data"][TABLE]["schema"]["fields"]) == 1001
    assert wide["metadata"][TABLE] == {"rows": 1, "columns": 5000, "truncated": True}


def test_a_table_that_breaks_while_it_is_looked_at_is_shown_as_text(shared_guest: Guest) -> None:
    code = (
        "import pandas as pd\nclass Odd(pd.DataFrame):\n"
        "    _constructor = property(lambda self: Odd)\n"
        "    def to_json(self, **options): raise RuntimeError('never')\nOdd({'a': [1]})"
    )
    answer = shared_guest.run(code)
    assert (answer.status, answer.stderr) == ("ok", b"")
    assert TABLE not in _result(answer)
    assert "<table" in _result(answer)["text/html"]


# --- figures -----------------------------------------------------------------------------------------------------

_PLOT = "import matplotlib.pyplot as plt\nplt.plot([1, 2], [3, 4])\n"


def test_figures_are_shown_without_being_asked_for(shared_guest: Guest) -> None:
    shown = _displays(shared_guest.run(_PLOT + "plt.figure(); plt.bar(['a'], [1]); None"))
    assert [each[CHART]["type"] for each in shown] == ["line", "bar"]
    for each in shown:
        assert base64.b64decode(each["image/png"]).startswith(b"\x89PNG")
    # Each once.
    assert _displays(shared_guest.run("1")) == []


def test_closed_figures_are_not_shown_and_saved_ones_are(
    shared_guest: Guest, tmp_path: Any
) -> None:
    assert _displays(shared_guest.run(_PLOT + "plt.close()")) == []
    file = tmp_path / "saved.png"
    assert len(_displays(shared_guest.run(_PLOT + f"plt.savefig({str(file)!r})"))) == 1
    assert file.read_bytes().startswith(b"\x89PNG")
    assert len(_displays(shared_guest.run(_PLOT + "plt.show()"))) == 1


def test_figures_before_a_mistake_are_shown(shared_guest: Guest) -> None:
    answer = shared_guest.run(_PLOT + "1 / 0")
    assert (answer.error, len(_displays(answer))) == ("ZeroDivisionError", 1)


@pytest.mark.parametrize("end", ["None", "%pwd", "plt.show()", "1 / 0"])
def test_figures_of_another_backend_are_shown(guest: Guest, end: str) -> None:
    choose = "import matplotlib, warnings\nmatplotlib.use('Agg')\nwarnings.simplefilter('ignore')\n"
    answer = guest.run(choose + _PLOT + "plt.figure(); plt.pie([1])\n" + end)
    assert [each[CHART]["type"] for each in _displays(answer)] == ["line", "pie"]
    assert all("image/png" in each for each in _displays(answer))
    assert _displays(guest.run("1")) == []


def test_a_figure_that_cannot_be_drawn_is_the_cells_mistake(guest: Guest) -> None:
    code = "import matplotlib\nmatplotlib.use('Agg')\n" + _PLOT + "plt.title('$\\\\nothing$'); None"
    answer = guest.run(code)
    assert answer.status == "ok" or answer.error == "ValueError"
    assert guest.run("6 * 7").text == "42"


@pytest.mark.parametrize(
    ("code", "chart"),
    [
        (
            "plt.plot([1, 2], [3, 4], label='a'); plt.plot([1], [float('nan')]); plt.title('T'); plt.xlabel('t (s)')",
            {
                "type": "line",
                "title": "T",
                "x_label": "t (s)",
                "x_unit": "s",
                "y_label": None,
                "y_unit": None,
                "x_scale": "linear",
                "elements": [
                    {"label": "a", "points": [[1.0, 3.0], [2.0, 4.0]]},
                    {"label": "Line 2", "points": [[1.0, None]]},
                ],
            },
        ),
        (
            "plt.scatter([1, 2], [3, 4], label='s'); plt.yscale('log'); plt.axhline(3)",
            {
                "type": "scatter",
                "y_scale": "log",
                "elements": [{"label": "s", "points": [[1.0, 3.0], [2.0, 4.0]]}],
            },
        ),
        (
            "plt.bar(['p', 'q'], [1, 2], label='g'); plt.ylabel('n [kg]')",
            {
                "type": "bar",
                "y_label": "n [kg]",
                "y_unit": "kg",
                "elements": [
                    {"group": "g", "label": "p", "value": 1.0},
                    {"group": "g", "label": "q", "value": 2.0},
                ],
            },
        ),
        (
            "plt.barh(['p'], [5]); plt.xlabel('n')",
            {
                "type": "bar",
                "x_label": None,
                "y_label": "n",
                "elements": [{"group": "", "label": "p", "value": 5.0}],
            },
        ),
        (
            "plt.hist([1, 1, 2], bins=[1, 1.5, 2])",
            {
                "elements": [
                    {"group": "", "label": "1.25", "value": 2.0},
                    {"group": "", "label": "1.75", "value": 1.0},
                ]
            },
        ),
        (
            "plt.pie([90, 10], labels=['x', 'y'])",
            {
                "type": "pie",
                "elements": [
                    {"label": "x", "angle": 324.0, "radius": 1.0},
                    {"label": "y", "angle": 36.0, "radius": 1.0},
                ],
            },
        ),
        *(
            (
                f"plt.boxplot([[1, 2, 3, 4, 5, 50]], tick_labels=['b'], {options})",
                {
                    "type": "box_and_whisker",
                    "elements": [
                        {
                            "label": "b",
                            "min": 1.0,
                            "first_quartile": 2.25,
                            "median": 3.5,
                            "third_quartile": 4.75,
                            "max": 5.0,
                            "outliers": [50.0],
                        }
                    ],
                },
            )
            for options in ("", "patch_artist=True", "orientation='horizontal'")
        ),
        (
            "plt.plot(['u', 'v'], [1, 2])",
            {"x_scale": "categorical", "x_ticks": ["u", "v"], "x_tick_labels": ["u", "v"]},
        ),
        (
            "import datetime; plt.plot([datetime.date(2024, 1, 1)], [1])",
            {
                "x_scale": "datetime",
                "elements": [{"label": "Line 1", "points": [["2024-01-01T00:00:00+00:00", 1.0]]}],
            },
        ),
        (
            "f, a = plt.subplots(1, 2); f.suptitle('both'); a[0].plot([1]); a[1].add_artist(plt.Circle((0, 0), 1))",
            {"type": "superchart", "title": "both"},
        ),
        ("plt.imshow([[1, 2]]); plt.colorbar()", {"type": "unknown", "elements": []}),
        ("plt.axes(projection='3d').plot([1], [2], [3])", {"type": "unknown"}),
        ("plt.axes(projection='polar').plot([1], [2])", {"type": "line"}),
    ],
)
def test_what_a_figure_shows_is_given_as_data(
    shared_guest: Guest, code: str, chart: dict[str, Any]
) -> None:
    answer = shared_guest.run(f"import matplotlib.pyplot as plt\n{code}; None")
    (shown,) = _displays(answer)
    found = shown[CHART]
    assert {key: found[key] for key in chart} == chart


def test_grouped_bars_belong_to_their_ticks(shared_guest: Guest) -> None:
    code = (
        "import pandas as pd\n"
        "ax = pd.DataFrame({'a': [1, 2], 'b': [3, 4]}, index=['x', 'y']).plot.bar(); None"
    )
    (shown,) = _displays(shared_guest.run(code))
    found = [(each["group"], each["label"], each["value"]) for each in shown[CHART]["elements"]]
    assert found == [("a", "x", 1.0), ("a", "y", 2.0), ("b", "x", 3.0), ("b", "y", 4.0)]


def test_chart_data_is_bounded(shared_guest: Guest) -> None:
    code = "import matplotlib.pyplot as plt\nfor _ in range(3): plt.plot(range(8000))\nNone"
    (shown,) = _displays(shared_guest.run(code))
    assert [len(each["points"]) for each in shown[CHART]["elements"]] == [8000, 2000, 0]


def test_a_figure_without_axes_has_no_chart(shared_guest: Guest) -> None:
    (shown,) = _displays(shared_guest.run("import matplotlib.pyplot as plt\nplt.figure(); None"))
    assert shown == {"text/plain": "<Figure size 640x480 with 0 Axes>"}


# --- Plotly, pictures, sound -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "kind"),
    [("fig", "result"), ("display(fig)", "display"), ("fig.show()", "display")],
)
def test_plotly_comes_as_one_page_that_needs_nothing_else(
    shared_guest: Guest, code: str, kind: str
) -> None:
    make = "import plotly.graph_objects as go\nfig = go.Figure(go.Bar(x=[1, 2], y=[3, 4]))\n"
    answer = shared_guest.run(make + code)
    assert answer.status == "ok"
    data = _message(answer, kind)["data"]
    assert data[PLOTLY]["data"][0]["type"] == "bar"
    page = data["text/html"]
    assert page.lstrip().lower().startswith(("<html", "<!doctype"))
    assert "Plotly.newPlot" in page
    assert 'src="http' not in page and "requirejs" not in page
    assert len(page) > 1_000_000


def test_a_plotly_figure_too_large_for_a_page_is_given_as_data(shared_guest: Guest) -> None:
    make = "import plotly.graph_objects as go\n"
    answer = shared_guest.run(make + "go.Figure(go.Scatter(y=[0.123456789] * 300_000))")
    data = _message(answer, "result")["data"]
    assert "too large" in data["text/html"] and len(data["text/html"]) < 1000
    assert data[PLOTLY]["data"][0]["type"] == "scatter"


def test_what_only_claims_to_be_plotly_is_shown_as_it_is(shared_guest: Guest) -> None:
    answer = shared_guest.run(f"display({{'{PLOTLY}': 5, 'text/plain': 'x'}}, raw=True)")
    assert _displays(answer)[0]["text/plain"] == "x"


def test_pictures_come_in_their_own_form(shared_guest: Guest) -> None:
    data = _result(shared_guest.run("from PIL import Image\nImage.new('RGB', (4, 4), 'red')"))
    assert base64.b64decode(data["image/png"]).startswith(b"\x89PNG")


def test_a_picture_that_is_too_large_is_left_out_with_a_note(shared_guest: Guest) -> None:
    code = (
        "import os\nfrom PIL import Image\n"
        "Image.frombytes('RGB', (1800, 1800), os.urandom(3 * 1800 * 1800))"
    )
    data = _result(shared_guest.run(code))
    assert "image/png" not in data
    assert "left out: image/png" in data["text/plain"]
    # Its other form, which is smaller, is there.
    assert base64.b64decode(data["image/jpeg"]).startswith(b"\xff\xd8")


def test_sound_and_films_are_embedded(shared_guest: Guest, tmp_path: Any) -> None:
    code = "from IPython.display import Audio\nAudio([0.0, 0.5, -0.5] * 100, rate=8000)"
    assert "data:audio/wav;base64," in _result(shared_guest.run(code))["text/html"]
    film = tmp_path / "film.mp4"
    film.write_bytes(b"film")
    video = f"from IPython.display import Video\nVideo({str(film)!r}, width=99)"
    html = _result(shared_guest.run(video))["text/html"]
    assert base64.b64encode(b"film").decode() in html
    assert "99" in html
    film.write_bytes(b"x" * (6 << 20))
    assert "too large" in _result(shared_guest.run(video))["text/plain"]


@pytest.mark.parametrize(
    ("code", "kind", "value"),
    [
        ("HTML('<b>x</b>')", "text/html", "<b>x</b>"),
        ("Markdown('*x*')", "text/markdown", "*x*"),
        ("Latex('$x$')", "text/latex", "$x$"),
        ("Math('x')", "text/latex", "$\\displaystyle x$"),
        ("JSON({'a': [1]})", "application/json", {"a": [1]}),
        ("Javascript('f()')", "application/javascript", "f()"),
        ("Image(b'\\x89PNG\\r\\n\\x1a\\n' + bytes(40))", "image/png", None),
    ],
)
def test_what_ipython_displays_comes_in_its_form(
    shared_guest: Guest, code: str, kind: str, value: Any
) -> None:
    data = _result(shared_guest.run(f"from IPython.display import *\n{code}"))
    assert kind in data
    assert value is None or data[kind] == value


@pytest.mark.parametrize("method", ["svg", "pdf", "jpeg", "latex", "markdown", "javascript"])
def test_classes_say_how_they_are_shown(shared_guest: Guest, method: str) -> None:
    kinds = {
        "svg": "image/svg+xml",
        "pdf": "application/pdf",
        "jpeg": "image/jpeg",
        "javascript": "application/javascript",
    }
    value = "b'%PDF'" if method in ("pdf", "jpeg") else "'<svg/>'"
    code = f"class Thing:\n    def _repr_{method}_(self): return {value}\nThing()"
    assert kinds.get(method, f"text/{method}") in _result(shared_guest.run(code))


# --- helpers -----------------------------------------------------------------------------------------------------


def _message(answer: Answer, kind: str) -> dict[str, Any]:
    (message,) = answer.of_type(kind)
    return message


def _result(answer: Answer) -> dict[str, Any]:
    data: dict[str, Any] = _message(answer, "result")["data"]
    return data


def _displays(answer: Answer) -> list[dict[str, Any]]:
    return [message["data"] for message in answer.of_type("display")]
