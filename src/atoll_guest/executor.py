"""Runs cells of Python: ordinary ones at once, what IPython adds to the language by IPython.

An ordinary cell is parsed, run, and its last expression shown. Whatever Python's own compiler does not take
(magics, shell escapes, top-level await, mistakes) goes to IPython, which is kept loaded for it and formats
values and tracebacks.
"""

from __future__ import annotations
import __future__ as futures

import builtins
import getpass
import linecache
import os
import sys
import warnings
from ast import Expr as _Expr
from ast import Expression as _Expression
from ast import PyCF_ONLY_AST as _ONLY_AST
from types import CoroutineType, TracebackType
from typing import Any, Callable, Dict, Tuple

from atoll_guest.own_builtins import use_own_builtins

use_own_builtins(globals())

Bundle = Tuple[Dict[str, Any], Dict[str, Any]]
Show = Callable[[Bundle], None]

# Their repr is what IPython would show, and cheaper.
_PLAIN = frozenset({int, float, complex, bool, str, bytes})
_FUTURES = 0
for _name in futures.all_feature_names:
    _FUTURES |= getattr(futures, _name).compiler_flag
# Held here, because a cell may put something else into the modules.
_sources = linecache.cache
_modules = sys.modules
_builtins = vars(builtins)
_MOST_FRAMES = 60
_FOLDER = os.path.dirname(__file__)


class Executor:
    """One interpreter's state: the namespace of all cells, and their count."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._namespace = shell.user_ns
        self._compiler = shell.compile
        self._callbacks = shell.events.callbacks
        # Done here, for less: a warning is shown again in another cell.
        shell.events.unregister("pre_execute", shell._clear_warning_registry)
        self._transformers = shell.ast_transformers
        history = shell.history_manager
        self._inputs = (history.input_hist_parsed, history.input_hist_raw)
        # What runs cells that IPython or an event loop runs.
        self._runners = (
            os.path.dirname(sys.modules["IPython"].__file__ or ""),
            os.path.join(os.path.dirname(os.__file__), "asyncio"),
        )
        # IPython takes a value that it does not find in all of them for the user's own, and leaves it there.
        self._latest = (self._namespace, shell.user_ns_hidden, vars(shell.displayhook))
        self._text = shell.display_formatter.formatters["text/plain"]._trait_values

    def connect(self, kernel: Any) -> None:
        """Have `display()`, `input()` and `getpass()` go through a kernel."""
        self._shell.display_pub.kernel = kernel

        def ask(prompt: object = "", /) -> str:
            """Ask whoever runs this cell for a line."""
            return kernel.ask_input(str(prompt), False)  # type: ignore[no-any-return]

        def ask_password(prompt: str = "Password: ", stream: Any = None) -> str:
            """Ask whoever runs this cell for a line that is not shown."""
            return kernel.ask_input(str(prompt), True)  # type: ignore[no-any-return]

        ask.__name__, ask_password.__name__ = "input", "getpass"
        builtins.input = ask
        getpass.getpass = ask_password

    @property
    def count(self) -> int:
        """The number of the cell that runs next."""
        return self._shell.execution_count  # type: ignore[no-any-return]

    @count.setter
    def count(self, number: int) -> None:
        self._shell.execution_count = number

    def run(self, code: str, show: Show) -> BaseException | None:
        """Run a cell; call `show` with its value if it has one. Return the exception that ended it."""
        error = self._run(code, show)
        if "matplotlib.pyplot" in _modules and not isinstance(error, KeyboardInterrupt):
            return self._show_figures(error)
        return error

    def _run(self, code: str, show: Show) -> BaseException | None:
        parts = self._compile(code) if self._is_ordinary else None
        if parts is None:
            return self._run_by_ipython(code, show)
        for inputs in self._inputs:
            inputs.append(code)
        self._namespace.pop("__warningregistry__", None)
        callbacks = self._callbacks
        try:
            if callbacks["pre_execute"]:
                self._shell.events.trigger("pre_execute")
            self._run_parts(parts, show)
        except BaseException as error:  # noqa: BLE001 - whatever ended the cell is its result
            return error
        finally:
            self._shell.execution_count += 1
            if callbacks["post_execute"]:
                self._shell.events.trigger("post_execute")
        return None

    @property
    def _is_ordinary(self) -> bool:
        """Whether nobody asked IPython to change or watch cells in ways that only it can."""
        callbacks = self._callbacks
        return not (self._transformers or callbacks["pre_run_cell"] or callbacks["post_run_cell"])

    def _compile(self, code: str) -> tuple[Any, Any] | None:
        """Return the cell's statements and its last expression, or None if this is not plain Python."""
        name = f"<cell {self.count}>"
        if self._may_be_magic(code):
            return None
        try:
            parts = self._compile_expression(code, name) or self._compile_statements(code, name)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None
        # For tracebacks.
        _sources[name] = (len(code), None, code.splitlines(True), name)
        return parts

    def _may_be_magic(self, code: str) -> bool:
        """Whether a cell is one unknown word, such as `ls`."""
        return code.isidentifier() and code not in self._namespace and code not in _builtins

    def _compile_expression(self, code: str, name: str) -> tuple[None, Any] | None:
        """Compile what is one expression at once, without a tree of objects in between."""
        if "\n" in code:
            return None
        try:
            # Without this file's own `from __future__`, which has nothing to do with the cell's.
            return None, compile(code, name, "eval", self._compiler.flags & _FUTURES, True)
        except SyntaxError:
            return None

    def _compile_statements(self, code: str, name: str) -> tuple[Any, Any]:
        flags = self._compiler.flags & _FUTURES
        last = body = None
        tree: Any = compile(code, name, "exec", flags | _ONLY_AST, True)
        if tree.body and isinstance(tree.body[-1], _Expr) and not _is_quiet(tree.body[-1], code):
            last = compile(_Expression(tree.body.pop().value), name, "eval", flags, True)
        if tree.body:
            body = compile(tree, name, "exec", flags, True)
            self._compiler.flags |= body.co_flags & _FUTURES
        return body, last

    def _run_parts(self, parts: tuple[Any, Any], show: Show) -> None:
        body, last = parts
        if body is not None:
            exec(body, self._namespace)  # noqa: S102 - running code is what this is for
        if last is not None:
            self._show(eval(last, self._namespace), show)

    def _show_figures(self, ended_by: BaseException | None) -> BaseException | None:
        try:
            from atoll_guest.figures import show_figures

            show_figures(self._shell)
        except BaseException as error:  # noqa: BLE001 - what is drawn is the cell's
            return ended_by or error
        return ended_by

    def _show(self, value: Any, show: Show) -> None:
        if type(value) is CoroutineType:
            # Nobody else could: it is what the cell comes to.
            value = self._shell.loop_runner(value)
        if value is None:
            return
        if type(value) in _PLAIN and self._text.get("float_format", "%r") == "%r":
            show(({"text/plain": repr(value)}, {}))
        else:
            data, metadata = self._shell.displayhook.compute_format_data(value)
            # Nothing, if it has shown itself.
            if data:
                show((data, metadata))
        self._remember(value)

    def _remember(self, value: Any) -> None:
        namespace = self._namespace
        latest = {"_": value, "__": namespace.get("_"), "___": namespace.get("__")}
        for place in self._latest:
            place.update(latest)
        namespace[f"_{self.count}"] = value
        namespace["Out"][self.count] = value

    def _run_by_ipython(self, code: str, show: Show) -> BaseException | None:
        hook = self._shell.displayhook
        hook.show, hook.coroutine = show, None
        outcome = self._shell.run_cell(code, store_history=True, silent=False)
        error: BaseException | None = outcome.error_before_exec or outcome.error_in_exec
        if hook.coroutine is not None and error is None:
            return self._show_late(hook.coroutine, show)
        return error

    def _show_late(self, coroutine: Any, show: Show) -> BaseException | None:
        """Show what a cell's last value comes to, which could not be awaited while the cell itself was."""
        self._shell.execution_count -= 1
        try:
            self._show(coroutine, show)
        except BaseException as error:  # noqa: BLE001 - whatever ended the cell is its result
            return error
        finally:
            self._shell.execution_count += 1
        return None

    def traceback(self, error: BaseException) -> list[str]:
        """Return the traceback in lines, without Atoll's own frames."""
        frames = self._frames_of_cells(error.__traceback__)
        formatter = self._shell.InteractiveTB
        if isinstance(error, SyntaxError):
            formatter = self._shell.SyntaxTB
        lines = formatter.structured_traceback(type(error), error, frames)
        return [str(line) for line in lines]

    def _frames_of_cells(self, trace: TracebackType | None) -> TracebackType | None:
        """Return a traceback without what led to the cell, and without the kernel's part in what it called."""
        frames: list[TracebackType] = []
        while trace is not None:
            name = trace.tb_frame.f_code.co_filename
            if not name.startswith(_FOLDER) and (frames or not name.startswith(self._runners)):
                frames.append(trace)
            trace = trace.tb_next
        if len(frames) > _MOST_FRAMES:
            # IPython takes most of a second for the thousand of an endless recursion.
            del frames[_MOST_FRAMES // 2 : -_MOST_FRAMES // 2]
        shown = None
        for each in reversed(frames):
            shown = TracebackType(shown, each.tb_frame, each.tb_lasti, each.tb_lineno)
        return shown

    def forget(self) -> None:
        """Be as new: no cell has run yet."""
        self._shell.reset(new_session=True)
        self._shell.execution_count = 1
        _sources.clear()

    def complete(self, code: str, cursor: int) -> dict[str, Any]:
        """Return completions at `cursor`."""
        with warnings.catch_warnings():
            # IPython calls its own interface provisional.
            warnings.simplefilter("ignore")
            found = list(self._shell.Completer.completions(code, cursor))
        start = found[0].start if found else cursor
        return {"matches": [each.text for each in found], "start": start, "end": cursor}

    def inspect(self, code: str, cursor: int) -> dict[str, Any]:
        """Return what is known of the name at `cursor`."""
        word = _word_at(code, cursor)
        try:
            found = self._shell.object_inspect_mime(word) if word else {}
        except KeyError:
            found = {}  # its way of saying that there is no such name
        return {"found": bool(found), "data": dict(found)}


def _is_quiet(last: Any, code: str) -> bool:
    """Whether a semicolon after the last expression says that its value is not to be shown."""
    if ";" not in code:
        return False
    line = code.encode("utf-8", "replace").splitlines()[last.end_lineno - 1 :]
    return bool(line) and line[0][last.end_col_offset :].lstrip().startswith(b";")


def _word_at(code: str, cursor: int) -> str:
    start = end = cursor
    while start and (code[start - 1].isalnum() or code[start - 1] in "_."):
        start -= 1
    while end < len(code) and (code[end].isalnum() or code[end] == "_"):
        end += 1
    return code[start:end].strip(".")
