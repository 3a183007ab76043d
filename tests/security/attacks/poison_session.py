"""Changes, as a cell, whatever of an interpreter and its process can be changed; no later session may notice."""

from __future__ import annotations

import ast
import atexit
import builtins
import codecs
import decimal
import gc
import importlib.abc
import json
import linecache
import locale
import os
import random
import resource
import signal
import socket
import sys
import threading
import time
import types
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from tests.security.attacks.kernel import report

FILES = (
    "/opt/template/sitecustomize.py", "/opt/python/lib/python3.11/sitecustomize.py", "/etc/profile",
    "/home/sandbox/.ipython/profile_default/startup/poison.py", "/home/sandbox/.pythonrc",
    "/tmp/poison", "/tmp/profile_default/startup/poison.py", "/dev/shm/poison",
    "/workspace/json.py", "/workspace/atoll_guest/kernel.py",
)  # fmt: skip


def main() -> None:
    written = write_files()
    failed = [name for name, step in STEPS.items() if not works(step)]
    report(written=written, failed=failed)


def works(step: Callable[[], object]) -> bool:
    try:
        step()
    except Exception:  # noqa: BLE001 - the test is told which step did nothing
        return False
    return True


def write_files() -> list[str]:
    written = []
    for path in FILES:
        with suppress(OSError):
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "a") as file:
                file.write("raise SystemExit('poison')\n")
            written.append(path)
    return written


def poison(*_args: object, **_options: object) -> Any:
    return "poison"


def poison_builtins() -> None:
    for name in ("open", "print", "compile", "exec", "eval", "__import__", "repr"):
        setattr(builtins, f"poison_{name}", getattr(builtins, name))
    setattr(builtins, "poison", poison)  # noqa: B010
    setattr(builtins, "sum", lambda _numbers: 666)  # noqa: B010


def poison_modules() -> None:
    sys.modules["math"] = types.ModuleType("math")
    sys.modules["poison"] = types.ModuleType("poison")
    del sys.modules["decimal"]
    setattr(json, "load", poison)  # noqa: B010
    setattr(socket, "socket", poison)  # noqa: B010


class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, *_args: object) -> None:
        return None


def no_hook(path: str) -> Any:
    raise ImportError(path)


def poison_imports() -> None:
    sys.meta_path.insert(0, Finder())
    sys.path_hooks.insert(0, no_hook)
    sys.path.insert(0, "/tmp/poison-path")


def poison_signals() -> None:
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP, signal.SIGCHLD, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2, signal.SIGTERM])
    signal.setitimer(signal.ITIMER_PROF, 1000)


def poison_process() -> None:
    os.chdir("/")
    os.umask(0o777)
    os.nice(5)
    os.environ["POISON"] = "poison"
    os.environ["PATH"] = "/poison"
    with suppress(OSError):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


def poison_limits() -> None:
    for name in ("RLIMIT_NOFILE", "RLIMIT_STACK", "RLIMIT_CORE", "RLIMIT_FSIZE", "RLIMIT_CPU"):
        number = getattr(resource, name)
        _soft, hard = resource.getrlimit(number)
        lower = 1 << 20 if hard == resource.RLIM_INFINITY else max(0, hard - 1)
        resource.setrlimit(number, (lower, lower))


def poison_text() -> None:
    locale.setlocale(locale.LC_ALL, "C")
    codecs.register(lambda name: codecs.lookup("rot13") if name == "poison" else None)
    codecs.register_error("strict_poison", poison)
    os.environ["TZ"] = "Pacific/Kiritimati"
    time.tzset()


def poison_warnings() -> None:
    warnings.simplefilter("error")
    setattr(warnings, "showwarning", poison)  # noqa: B010


def poison_hooks() -> None:
    atexit.register(poison)
    threading.settrace(poison)
    threading.setprofile(poison)
    setattr(threading, "excepthook", poison)  # noqa: B010
    sys.setprofile(lambda *_args: None)
    sys.settrace(lambda *_args: None)
    sys.excepthook = poison
    sys.displayhook = poison
    sys.addaudithook(poison)
    os.register_at_fork(after_in_child=poison)


def poison_interpreter() -> None:
    sys.setrecursionlimit(123_456)
    sys.setswitchinterval(1)
    gc.disable()
    gc.set_threshold(1)
    gc.callbacks.append(poison)
    decimal.getcontext().prec = 3
    random.seed(1)
    linecache.cache["poison"] = (1, None, ["poison"], "poison")
    sys.set_int_max_str_digits(0)


def poison_ipython() -> None:
    shell = get_ipython()  # type: ignore[name-defined]  # noqa: F821 - it is there in a session
    shell.events.register("pre_run_cell", poison)
    shell.input_transformers_cleanup.append(list)
    shell.ast_transformers.append(ast.NodeTransformer())
    shell.register_magic_function(poison, magic_name="poison")
    shell.display_formatter.formatters["text/plain"].for_type(list, poison)
    shell.set_custom_exc((Exception,), poison)
    shell.user_ns["poison"] = poison
    shell.execution_count = 666


STEPS = {
    step.__name__: step
    for step in (
        poison_builtins, poison_modules, poison_imports, poison_signals, poison_process, poison_limits,
        poison_text, poison_warnings, poison_interpreter, poison_ipython, poison_hooks,
    )
}  # fmt: skip
