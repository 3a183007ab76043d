"""A warmed interpreter that forks kernels.

It runs jailed and without privileges before it imports anything, holds nothing of any user's, and once it
serves it never runs Python again: the spawn library does, and returns only in the copies, each inside a
sandbox of its own.

A copy pays some microseconds for every page of memory that it writes to, and Python writes to objects by using
them. So as much as possible is done before the fork.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import sys
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Callable, Iterator, Mapping, Sequence

from atoll_guest.arenas import arenas_together
from atoll_guest.channel import make_hello
from atoll_guest.hot_pages import tell_hot_pages

if TYPE_CHECKING:
    from atoll_guest.kernel import Kernel

CONTROL, FILTER = 3, 4
_SPAWN_LIBRARY = "/.atoll/spawn.so"
_MANIFEST = "/opt/packages/manifest.json"
_FONTS = "/opt/packages/.matplotlib"
_COLLAPSE = 25  # MADV_COLLAPSE: large pages make the copy of page tables smaller
_LARGE_PAGE = 2 << 20

# Run before the fork, so that what every kernel needs is loaded, compiled and warm.
_WARM_UP = (
    "1 + 1", "print(1)", "x = [1]\nx", "def f(a):\n    return a\nf(3)", "1 / 0", "%time 1", "{'a': (1, None)}",
    "display(1)",
)  # fmt: skip
# The same for what a template was built with, if it was loaded.
_WARM_UP_OF = {
    "numpy": ("import numpy as np\nnp.arange(3) + 1",),
    "pandas": ("import pandas as pd\npd.DataFrame({'a': [1, 2], 'b': ['x', 'y']})",),
}
# What kernels are likely to begin with; what they need for it is theirs from the start.
_FIRST_CELLS = ("print(1)",)
_FIRST_CELLS_WITH = {
    "numpy": ("import numpy as np\nprint(np.array([1, 2]).sum())",),
    "pandas": (
        "import pandas as pd\ndf = pd.DataFrame({'a': [1, 2], 'b': [3, 4]})\nprint(df.shape)",
    ),
}
# Python adapts its code to what it sees; a copy that still did that would write to all of it.
_ROUNDS = 20


def main() -> None:
    """Warm up, serve, and in each copy be a kernel."""
    library = ctypes.PyDLL(_SPAWN_LIBRARY)
    hooks = _LateHooks()
    with arenas_together(library):
        kernel = _make_kernel()
    hooks.stop_sorting()
    be_kernel = partial(_be_kernel, kernel, hooks, sources_of_chance())
    serve_interpreter = library.serve_interpreter
    after_fork = ctypes.pythonapi.PyOS_AfterFork_Child
    # Kernels have said it before they run any Python: the host looks at them meanwhile.
    hello = make_hello("python")
    library.keep_hello(hello, len(hello))
    _check_single_thread()
    # No collection writes to what copies share.
    gc.collect()
    gc.freeze()
    tell_hot_pages(library, be_kernel, (*_FIRST_CELLS, *_for_loaded(_FIRST_CELLS_WITH)))
    _use_large_pages()
    ctypes.pythonapi.PyOS_BeforeFork()
    descriptor = serve_interpreter(CONTROL, FILTER)
    # From here on this is a kernel, in a sandbox.
    after_fork()
    be_kernel(descriptor)


def _be_kernel(
    kernel: Kernel, hooks: _LateHooks, renewals: Sequence[Callable[[], Any]], descriptor: int
) -> None:
    hooks.are_wanted = True
    for renew in renewals:
        renew()
    kernel.serve(descriptor, has_said_hello=True)


class _LateHooks:
    """Keeps what `threading` and `logging` do around a fork from being done for kernels.

    They mend locks that other threads held, and a zygote has none; for a quarter of the pages that a kernel
    writes to before its first cell. Copies that a cell makes of its kernel get them.
    """

    def __init__(self) -> None:
        self.are_wanted = False
        self._register = os.register_at_fork
        os.register_at_fork = self._sort  # type: ignore[assignment]

    def stop_sorting(self) -> None:
        """Let others have `register_at_fork` as it was."""
        os.register_at_fork = self._register

    def _sort(self, **hooks: Callable[[], Any]) -> None:
        for when, hook in hooks.items():
            is_late = getattr(hook, "__module__", "") in ("threading", "logging")
            self._register(**{when: partial(self._call, hook) if is_late else hook})

    def _call(self, hook: Callable[[], Any]) -> None:
        if self.are_wanted:
            hook()


def _make_kernel() -> Kernel:
    from atoll_guest.executor import Executor
    from atoll_guest.kernel import Kernel
    from atoll_guest.shell import make_shell

    executor = Executor(make_shell())
    _preload()
    with _pipes_as_streams():
        kernel = Kernel(executor)
        kernel.install()
        _rehearse(kernel)
    executor.forget()
    return kernel


def _preload() -> None:
    """Load what the template was built for, if anything."""
    try:
        with open(_MANIFEST) as manifest:
            names = json.load(manifest)["preload"]
    except FileNotFoundError:
        return
    with _font_cache():
        for name in names:
            _load(name)


def _load(name: str) -> None:
    try:
        importlib.import_module(name)
    except Exception as error:  # noqa: BLE001 - kernels are told when they try it themselves
        sys.stderr.write(f"{name} cannot be loaded ahead: {error}\n")
        # Parts whose package is gone would be found, but be missing in the package once that is loaded again.
        for part in sorted(sys.modules):
            package = part.rpartition(".")[0]
            if package and package not in sys.modules:
                del sys.modules[part]


@contextmanager
def _font_cache() -> Iterator[None]:
    """Have matplotlib read the cache that was made with the template, in place of a folder that it could write to: here is none."""
    import tempfile

    make = tempfile.mkdtemp
    if os.path.isdir(_FONTS):
        tempfile.mkdtemp = lambda *_args, **_options: _FONTS  # type: ignore[assignment]
    try:
        yield
    finally:
        tempfile.mkdtemp = make
        # What it tells programs that it starts is not true in a sandbox, where there is room.
        os.environ.pop("MPLCONFIGDIR", None)


@contextmanager
def _pipes_as_streams() -> Iterator[None]:
    """Have pipes as standard streams, as kernels do: what is made here takes them for what they are."""
    kept = [os.dup(number) for number in range(3)]
    reading, writing = os.pipe()
    for number, end in enumerate((reading, writing, writing)):
        os.dup2(end, number)
    yield
    for number, before in enumerate(kept):
        os.dup2(before, number)
    for descriptor in (*kept, reading, writing):
        os.close(descriptor)


def _rehearse(kernel: Kernel) -> None:
    import socket

    from atoll_guest.messages import encode_message

    own = (*_for_loaded(_WARM_UP_OF), *_for_loaded(_FIRST_CELLS_WITH))
    host, guest = socket.socketpair()
    with host, guest:
        kernel.attach(guest.fileno())
        for _ in range(_ROUNDS):
            for code in (*_WARM_UP, *own):
                request = {"type": "execute", "id": "rehearsal", "code": code, "silent": False}
                host.sendall(encode_message(request))
                kernel.serve_one()
                host.recv(1 << 20)
        kernel.attach(-1)


def _for_loaded(cells: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the cells for those packages that the template has loaded."""
    return [code for name, codes in cells.items() if name in sys.modules for code in codes]


def _check_single_thread() -> None:
    threads = len(os.listdir("/proc/self/task"))
    if threads != 1:
        # A copy would lack them, and their locks could be held for ever.
        sys.exit(f"a zygote has to have one thread, not {threads}")


def _use_large_pages() -> None:
    """Have few pages describe the memory that copies share. Last, as a write to what a copy shares splits them again."""
    libc = ctypes.CDLL(None)
    with open("/proc/self/maps") as maps:
        lines = maps.read().splitlines()
    for line in lines:
        fields = line.split()
        if "w" not in fields[1] or (len(fields) > 5 and fields[5] != "[heap]"):
            continue
        start, end = (int(each, 16) for each in fields[0].split("-"))
        at = -(-start // _LARGE_PAGE) * _LARGE_PAGE
        while at + _LARGE_PAGE <= end:
            libc.madvise(ctypes.c_void_p(at), ctypes.c_size_t(_LARGE_PAGE), _COLLAPSE)
            at += _LARGE_PAGE


def sources_of_chance() -> list[Callable[[], Any]]:
    """Return what to do in each copy, so that it is unlike its siblings.

    Python's `random` sees to itself, and `secrets` and `uuid4` ask the kernel each time. The seed of `hash()` cannot
    be changed any more: it is one for all kernels of a zygote, and another with each zygote.
    """
    renewals: list[Callable[[], Any]] = []
    if "_ssl" in sys.modules:
        # By hand: OpenSSL takes a process of the same number for the same process, and in sandboxes they all have one.
        add = sys.modules["_ssl"].RAND_add
        renewals.append(lambda: add(os.urandom(32), 32.0))
    if "numpy.random" in sys.modules:
        seed = sys.modules["numpy.random"].seed
        # As much chance as it would ask for itself, but in a tenth of the time.
        renewals.append(lambda: seed(list(memoryview(os.urandom(32)).cast("I"))))
    if "tempfile" in sys.modules:
        sys.modules["tempfile"].__dict__["_name_sequence"] = None
    if "uuid" in sys.modules:
        # The C library behind `uuid1` keeps a node number from its first use on: nothing may use it before the fork.
        sys.modules["uuid"].__dict__.update(_node=None, _last_timestamp=None)
    return renewals
