"""What code in a sandbox gave, made fit to be shown: in a notebook's page, and on a terminal.

Whoever looks at it trusts the page and the terminal; the code that made it is trusted by nobody.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

# A page's own scripts can do whatever the person can, in a notebook even on this machine.
_FRAME = (
    '<iframe sandbox="allow-scripts" style="width:100%;border:0" height="{height}"'
    ' srcdoc="{page}"></iframe>'
)
_ROW_PIXELS, _LEAST_PIXELS, _MOST_PIXELS = 26, 120, 480
# What pages show without obeying it. Others, of which there is no end, may hold code for extensions of the page.
_PASSIVE = frozenset(
    {"text/plain", "text/latex", "application/json", "application/pdf"}
    | {f"image/{kind}" for kind in ("png", "jpeg", "gif", "webp")}
)


def for_notebook(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return a bundle whose scripts, if it has any, reach nothing of the page that shows it."""
    shown = {kind: value for kind, value in data.items() if kind in _PASSIVE}
    page = data.get("text/html", data.get("image/svg+xml"))
    if "text/markdown" in data:
        # Markdown may hold HTML; it was made to be read as it is.
        shown["text/plain"] = str(data["text/markdown"])
    if page is not None:
        shown["text/html"] = _FRAME.format(height=_height(str(page)), page=_quoted(str(page)))
    if shown.get("application/json") is not None and "text/plain" in shown:
        # A notebook would show a tree to be unfolded instead of the text.
        del shown["application/json"]
    return shown


def _quoted(page: str) -> str:
    return page.replace("&", "&amp;").replace('"', "&quot;")


def _height(page: str) -> int:
    if "<script" in page or "<svg" in page:
        return _MOST_PIXELS
    lines = page.count("<tr") or page.count("<p") + page.count("<br") + page.count("<li")
    return min(_MOST_PIXELS, max(_LEAST_PIXELS, _ROW_PIXELS * (lines + 2)))


def in_colour(traceback: Sequence[str]) -> str:
    """Return a traceback with colours for a terminal; what the code itself put in to steer a terminal is left out."""
    from pygments import highlight
    from pygments.formatters import Terminal256Formatter
    from pygments.lexers import PythonTracebackLexer

    text = calmed("\n".join(traceback))
    try:
        # IPython's tracebacks are of another form than Python's own.
        from ipython_pygments_lexers import IPythonTracebackLexer as Lexer
    except ImportError:
        Lexer = PythonTracebackLexer
    return str(highlight(text, Lexer(stripnl=False), Terminal256Formatter())).rstrip("\n")


def calmed(text: str) -> str:
    """Return text without characters that a terminal obeys instead of showing them."""
    return text.translate(_CONTROL)


_CONTROL: dict[int, str] = {
    code: "" for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"
}
