"""Serves one kernel over its standard input, where nothing was warmed before: `python -m atoll_guest`."""

from __future__ import annotations

from atoll_guest.executor import Executor
from atoll_guest.kernel import Kernel, take_channel
from atoll_guest.shell import make_shell


def main() -> None:
    """Be a kernel of Python; this process has no other purpose."""
    kernel = Kernel(Executor(make_shell()), "python")
    kernel.install()
    kernel.serve(take_channel())


if __name__ == "__main__":
    main()
