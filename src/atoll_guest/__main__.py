"""Serves one kernel over an inherited descriptor: `python -m atoll_guest 3`, where nothing was warmed before."""

from __future__ import annotations

import sys

from atoll_guest.executor import Executor
from atoll_guest.kernel import Kernel
from atoll_guest.shell import make_shell

kernel = Kernel(Executor(make_shell()))
kernel.install()
kernel.serve(int(sys.argv[1]))
