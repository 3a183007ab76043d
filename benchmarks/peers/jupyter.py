"""The environment that both Jupyter peers and the density benchmark use."""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.environments import versions_in
from benchmarks.peers.driven import DrivenProgram
from benchmarks.workshop import Workshop

REQUIREMENTS = ("ipykernel>=7", "jupyter_client>=8.6")


def start_jupyter(workshop: Workshop) -> tuple[DrivenProgram, Mapping[str, str]]:
    """Return a program that starts and asks kernels, and the versions of what it uses."""
    python = workshop.environment("jupyter", REQUIREMENTS)
    versions = versions_in(python, ["ipykernel", "jupyter_client", "ipython", "pyzmq"])
    return DrivenProgram(python, "jupyter"), versions
