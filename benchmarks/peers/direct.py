"""`direct`: the same connection without any proxy, the floor of what a proxy can reach."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from benchmarks.ways_out import Way, directly


class Direct:
    """Connects to the server itself."""

    name = "direct"

    def __init__(self, port: int, once: Callable[[Way], float]) -> None:
        self._way = directly(port)
        self._once = once

    def prepare(self) -> Mapping[str, str]:
        return {}

    def run_once(self) -> float:
        return self._once(self._way)

    def close(self) -> None:
        pass
