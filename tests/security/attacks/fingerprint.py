"""Describes, as a cell, the interpreter and the process that it runs in, so that two sessions can be compared."""

from __future__ import annotations

import atexit
import builtins
import codecs
import gc
import linecache
import locale
import os
import resource
import signal
import sys
import threading
import time
import warnings
from contextlib import suppress
from typing import Any

from tests.security.attacks.kernel import report

FOLDERS = ("/tmp", "/home/sandbox", "/dev/shm")


def main() -> None:
    report(
        **of_builtins(), **of_imports(), **of_process(), **of_hooks(), **of_interpreter(),
        **of_text(), **of_ipython(), files=files(),
    )  # fmt: skip


def of_builtins() -> dict[str, Any]:
    return {
        "builtins": {name: type(value).__name__ for name, value in vars(builtins).items()},
        "sum": sum([1, 2]),
        "session": sorted(vars(sys.modules["__main__"])),
    }


def of_imports() -> dict[str, Any]:
    return {
        "modules": {
            name: getattr(module, "__file__", None)
            for name, module in sorted(sys.modules.items())
            if not name.startswith("tests")
        },
        "functions": {
            f"{name}.{key}": origin(value)
            for name in ("json", "os", "socket", "signal", "threading", "warnings")
            for key, value in sorted(vars(sys.modules[name]).items())
            if name in sys.modules and callable(value)
        },
        "meta_path": [str(each)[:40] for each in sys.meta_path],
        "path_hooks": len(sys.path_hooks),
        "path": sys.path,
    }


def origin(function: object) -> str:
    return f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', '')}"


def of_process() -> dict[str, Any]:
    mask = os.umask(0o22)
    os.umask(mask)
    limits = [name for name in dir(resource) if name.startswith("RLIMIT_")]
    return {
        "cwd": os.getcwd(),
        "umask": mask,
        "nice": os.nice(0),
        "environ": dict(os.environ),
        "affinity": sorted(os.sched_getaffinity(0)),
        "limits": {name: resource.getrlimit(getattr(resource, name)) for name in limits},
        "handlers": {
            str(number): str(signal.getsignal(number))[:30] for number in signal.valid_signals()
        },
        "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
        "timer": signal.getitimer(signal.ITIMER_PROF),
        "descriptors": len(os.listdir("/proc/self/fd")),
    }


def of_hooks() -> dict[str, Any]:
    hooks = ("excepthook", "displayhook", "breakpointhook", "unraisablehook")
    return {
        "hooks": {name: origin(getattr(sys, name)) for name in hooks},
        "traces": [str(each()) for each in (sys.gettrace, sys.getprofile)],
        "thread hooks": [
            str(threading.gettrace()), str(threading.getprofile()), origin(threading.excepthook),
        ],
        "threads": threading.active_count(),
        "exits": atexit._ncallbacks(),
        "warnings": [str(each) for each in warnings.filters],
        "showwarning": origin(warnings.showwarning),
    }  # fmt: skip


def of_interpreter() -> dict[str, Any]:
    return {
        "recursion": sys.getrecursionlimit(),
        "switch": sys.getswitchinterval(),
        "digits": sys.get_int_max_str_digits(),
        "collector": [gc.isenabled(), gc.get_threshold(), len(gc.callbacks)],
        "lines": [name for name in linecache.cache if "tests" not in name],
        "flags": str(sys.flags),
    }


def of_text() -> dict[str, Any]:
    found = []
    for name in ("poison", "rot13"):
        with suppress(LookupError):
            found.append(codecs.lookup(name).name)
    with suppress(LookupError):
        found.append(str(codecs.lookup_error("strict_poison")))
    return {
        "codecs": found,
        "locale": locale.setlocale(locale.LC_ALL),
        "time zone": time.tzname,
        "encodings": [sys.stdout.encoding, sys.getfilesystemencoding()],
    }


def of_ipython() -> dict[str, Any]:
    shell = get_ipython()  # type: ignore[name-defined]  # noqa: F821 - it is there in a session
    formatters = shell.display_formatter.formatters
    return {
        "events": {name: len(each) for name, each in shell.events.callbacks.items()},
        "transformers": [len(shell.input_transformers_cleanup), len(shell.ast_transformers)],
        "magics": {kind: sorted(each) for kind, each in shell.magics_manager.magics.items()},
        "printers": {
            f"{kind} of {cls}": origin(printer)
            for kind, each in formatters.items()
            for cls, printer in each.type_printers.items()
        },
        "custom exceptions": str(shell.custom_exceptions),
        "names": sorted(name for name in shell.user_ns if name != "main"),
        "count": shell.execution_count,
    }


def files() -> list[str]:
    return sorted(
        os.path.join(folder, name)
        for top in FOLDERS
        for folder, _folders, names in os.walk(top)
        for name in names
    )
