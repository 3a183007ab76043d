"""Where a cell of Julia ends, in lines as people type or pipe them; no I/O."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

_INDENT = 4
_CLOSES = {")": "(", "]": "[", "}": "{"}
# What opens a part that `end` closes; between brackets some of them are of a list that is told by a rule, or of an index.
_OPENERS = frozenset(
    "abstract baremodule begin do for function if let macro module primitive quote struct try while".split()
)
_OTHERWISE_IN_BRACKETS = {"(": frozenset({"for", "if"}), "[": _OPENERS, "{": _OPENERS}
# In this order: the longer before what it begins with. A quote behind a name or a bracket is an operator.
_MARKS = re.compile(
    r"(?P<remark>\#=.*?(?:=\#|(?P<open_remark>\Z))|\#(?!=)[^\n]*)"
    r'|(?P<text>"""(?:\\.|(?!""").)*(?:"""|(?P<open_long>\Z))|"(?:\\.|[^"\\])*(?:"|(?P<open_text>\Z))'
    r"|`(?:\\.|[^`\\])*(?:`|(?P<open_command>\Z))|(?<![\w)\]}'.])'(?:\\[^\n]+?|[^'\\\n])')"
    r"|(?P<bracket>[()\[\]{}])"
    r"|(?<![\w.:@!])(?P<word>[^\W\d][\w!]*)",
    re.DOTALL,
)
_OPEN = ("open_remark", "open_long", "open_text", "open_command")


class JuliaReader:
    """Judges code of Julia by what is opened in it and not closed. An empty line ends also what was never closed."""

    def is_whole(self, code: str) -> bool:
        """Whether all that is opened is closed."""
        return code.endswith("\n\n") or not self._open_parts(code)

    def indent(self, code: str) -> int:
        """Return four spaces for each part that is open."""
        return _INDENT * len(self._open_parts(code))

    def _open_parts(self, code: str) -> Sequence[str]:
        parts: list[str] = []
        for mark in _marks(code):
            inner = parts[-1] if parts else ""
            if mark == "end":
                # Between brackets it is the last place of a list.
                if inner in _OPENERS:
                    parts.pop()
            elif mark in _CLOSES:
                if _CLOSES[mark] in parts:
                    while parts.pop() != _CLOSES[mark]:
                        pass
            elif mark not in _OTHERWISE_IN_BRACKETS.get(inner, ()):
                parts.append(mark)
        return parts


def _marks(code: str) -> Iterator[str]:
    """Yield what opens or closes a part; a text or a remark without an end opens one."""
    for found in _MARKS.finditer(code):
        if any(found[name] is not None for name in _OPEN):
            yield "a text"
        elif found["bracket"]:
            yield found["bracket"]
        elif found["word"] == "end" or found["word"] in _OPENERS:
            yield found["word"]
