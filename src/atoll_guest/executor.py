"""Runs cells of Python: ordinary ones at once, what IPython adds to the language by IPython.

An ordinary cell is parsed, run, and its last expression shown. Whatever Python's own compiler does not take
(magics, shell escapes, top-level await, mistakes) goes to IPython, which is kept loaded for it and formats
values and tracebacks.
"""

from __future__ import annotations

import ast
import builtins
import linecache
import sys
from typing import Any, Callable, Dict, Tuple

Bundle = Tuple[Dict[str, Any], Dict[str, Any]]

_IPYTHON_FOLDER = "/tmp"
# Their repr is what IPython would show, and cheaper.
_PLAIN = frozenset({int, float, complex, bool, str, bytes})


class Executor:
    """One interpreter's state: the namespace of all cells, and their count."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._namespace = shell.user_ns
        self._flags = 0

    @property
    def count(self) -> int:
        """The number of the cell that runs next."""
        return int(self._shell.execution_count)

    def run(self, code: str, show: Callable[[Bundle], None]) -> BaseException | None:
        """Run a cell; call `show` with its value if it has one. Return the exception that ended it."""
        parts = self._compile(code)
        if parts is None:
            return self._run_by_ipython(code, show)
        try:
            body, last = parts
            if body is not None:
                exec(body, self._namespace)  # noqa: S102 - running code is what this is for
            if last is not None:
                self._show(eval(last, self._namespace), show)
        except BaseException as error:  # noqa: BLE001 - whatever ended the cell is its result
            return error
        finally:
            self._shell.execution_count += 1
        return None

    def _compile(self, code: str) -> tuple[Any, Any] | None:
        """Return the cell's statements and its last expression, or None if this is not plain Python."""
        name = f"<cell {self.count}>"
        last = None
        try:
            tree = ast.parse(code, name)
            if tree.body and isinstance(tree.body[-1], ast.Expr):
                expression = tree.body.pop()
                last = compile(ast.Expression(expression.value), name, "eval")  # type: ignore[attr-defined]
            body = compile(tree, name, "exec") if tree.body else None
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None
        # For tracebacks.
        linecache.cache[name] = (len(code), None, code.splitlines(True), name)
        return body, last

    def _show(self, value: Any, show: Callable[[Bundle], None]) -> None:
        if value is None:
            return
        if type(value) in _PLAIN:
            show(({"text/plain": repr(value)}, {}))
        else:
            show(self._shell.display_formatter.format(value))
        self._remember(value)

    def _remember(self, value: Any) -> None:
        namespace = self._namespace
        namespace["___"], namespace["__"] = namespace.get("__"), namespace.get("_")
        namespace["_"] = value
        namespace["Out"][self.count] = value

    def _run_by_ipython(self, code: str, show: Callable[[Bundle], None]) -> BaseException | None:
        self._shell.displayhook.show = show
        outcome = self._shell.run_cell(code, store_history=True, silent=False)
        error: BaseException | None = outcome.error_before_exec or outcome.error_in_exec
        return error

    def traceback(self, error: BaseException) -> list[str]:
        """Return the traceback in lines, without Atoll's own frames."""
        frames = error.__traceback__
        while frames is not None and frames.tb_frame.f_code.co_filename == __file__:
            frames = frames.tb_next
        formatter = self._shell.InteractiveTB
        if isinstance(error, SyntaxError):
            formatter = self._shell.SyntaxTB
        lines = formatter.structured_traceback(type(error), error, frames)
        return [str(line) for line in lines]

    def forget(self) -> None:
        """Be as new: no cell has run yet."""
        self._shell.reset(new_session=True)
        self._shell.execution_count = 1

    def complete(self, code: str, cursor: int) -> dict[str, Any]:
        """Return completions at `cursor`."""
        from IPython.core.completer import provisionalcompleter

        with provisionalcompleter():
            found = list(self._shell.Completer.completions(code, cursor))
        start = found[0].start if found else cursor
        return {"matches": [each.text for each in found], "start": start, "end": cursor}

    def inspect(self, code: str, cursor: int) -> dict[str, Any]:
        """Return what is known of the name at `cursor`."""
        word = _word_at(code, cursor)
        found = self._shell.object_inspect_mime(word) if word else {}
        return {"found": bool(found), "data": dict(found)}


def _word_at(code: str, cursor: int) -> str:
    start = end = cursor
    while start and (code[start - 1].isalnum() or code[start - 1] in "_."):
        start -= 1
    while end < len(code) and (code[end].isalnum() or code[end] == "_"):
        end += 1
    return code[start:end].strip(".")


def _profile() -> Any:
    """Return an IPython profile whose folders are not made: here, nothing can be written."""
    from IPython.core.profiledir import ProfileDir

    profile = ProfileDir()
    # Silently: being told of a change, it would make them.
    profile._trait_values["location"] = _IPYTHON_FOLDER
    return profile


def make_shell() -> Any:
    """Return an IPython shell that keeps no history and prints no colour."""
    from IPython.core.displayhook import DisplayHook
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets import Type
    from traitlets.config import Config

    class ShowingHook(DisplayHook):
        """Hands values to the kernel instead of printing them."""

        show: Callable[[Bundle], None] = staticmethod(lambda bundle: None)

        def write_output_prompt(self) -> None:
            """Print nothing."""

        def write_format_data(self, format_dict: dict[str, Any], md_dict: Any = None) -> None:
            """Hand the value over."""
            self.show((format_dict, md_dict or {}))

        def finish_displayhook(self) -> None:
            """Print nothing."""

    class Shell(InteractiveShell):
        """An interactive shell whose errors the kernel reports."""

        displayhook_class = Type(ShowingHook)

        def _showtraceback(self, etype: Any, evalue: Any, stb: Any) -> None:
            """Nothing: the kernel reports the error as a message."""

        def enable_gui(self, gui: Any = None) -> None:
            """Nothing: there is no screen."""

    config = Config()
    config.HistoryManager.enabled = False
    config.HistoryManager.hist_file = ":memory:"
    config.InteractiveShell.colors = "nocolor"
    config.InteractiveShell.autocall = 0
    make: Any = Shell
    shell = make(config=config, ipython_dir=_IPYTHON_FOLDER, profile_dir=_profile())
    builtins.get_ipython = shell.get_ipython  # type: ignore[attr-defined]
    sys.displayhook = shell.displayhook
    return shell
