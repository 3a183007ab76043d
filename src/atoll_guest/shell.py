"""An IPython shell for a kernel: no history file, no screen, no colour, nothing written.

Loaded only where there is an IPython.
"""

from __future__ import annotations

import builtins
import os
import sys
from contextlib import contextmanager
from typing import Any, Coroutine, Iterator

from IPython.core.async_helpers import get_asyncio_loop
from IPython.core.interactiveshell import InteractiveShell
from IPython.core.profiledir import ProfileDir
from traitlets import Type
from traitlets.config import Config

from atoll_guest.display import KernelDisplayHook, KernelDisplayPublisher
from atoll_guest.forms import register_forms
from atoll_guest.late_installs import LateInstalls

_FOLDER = "/tmp"
# Matplotlib, if a cell loads it, loads this and shows figures at the end of a cell.
_FIGURES = "module://matplotlib_inline.backend_inline"
# Plotly's `show` gives the figure, of which a page is made that needs nothing else.
_PLOTLY = "plotly_mimetype"


class Shell(InteractiveShell):
    """An interactive shell whose errors the kernel reports."""

    displayhook_class = Type(KernelDisplayHook)
    display_pub_class = Type(KernelDisplayPublisher)
    # Plain numbers instead of a checked trait: it changes with every cell.
    execution_count = 1

    def _showtraceback(self, etype: Any, evalue: Any, stb: Any) -> None:
        """Nothing: the kernel reports the error as a message."""

    def showtraceback(self, exc_tuple: Any = None, *args: Any, **options: Any) -> None:
        """Print what is given, which is why a value cannot be shown; the error of a cell is not."""
        if exc_tuple is not None:
            print(*self.InteractiveTB.structured_traceback(*exc_tuple), sep="\n", file=sys.stderr)
        else:
            super().showtraceback(exc_tuple, *args, **options)

    def enable_gui(self, gui: Any = None) -> None:
        """Nothing: there is no screen."""

    def ask_exit(self) -> None:
        """End the cell: how long the kernel lives is for the host to say."""
        raise SystemExit

    @contextmanager
    def _tee(self, channel: str) -> Iterator[None]:
        """Keep no second copy of all that is printed."""
        yield


def make_shell() -> Shell:
    """Return the shell of this process."""
    config = Config()
    config.HistoryManager.enabled = False
    config.HistoryManager.hist_file = ":memory:"
    config.InteractiveShell.colors = "nocolor"
    config.InteractiveShell.autocall = 0
    # It takes a second to load in every kernel that is asked, and the live objects tell more.
    config.IPCompleter.use_jedi = False
    shell: Shell = Shell.instance(config=config, ipython_dir=_FOLDER, profile_dir=_profile())
    shell.loop_runner = run_awaiting
    builtins.get_ipython = shell.get_ipython  # type: ignore[attr-defined]
    sys.displayhook = shell.displayhook
    os.environ.setdefault("MPLBACKEND", _FIGURES)
    os.environ.setdefault("PLOTLY_RENDERER", _PLOTLY)
    register_forms(shell.display_formatter)
    sys.meta_path.insert(0, LateInstalls())
    return shell


def run_awaiting(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run a cell that awaits; one that is interrupted does not go on with the next."""
    loop = get_asyncio_loop()  # type: ignore[no-untyped-call]
    task = loop.create_task(coroutine)
    try:
        return loop.run_until_complete(task)
    except BaseException:
        if not task.done():
            task.cancel()
            loop.run_until_complete(_end_of(task))
        raise


async def _end_of(task: Any) -> None:
    import asyncio

    await asyncio.wait([task])


def _profile() -> ProfileDir:
    """Return an IPython profile whose folders are not made: here, nothing can be written."""
    profile = ProfileDir()
    # Silently: being told of a change, it would make them.
    profile._trait_values["location"] = _FOLDER
    return profile
