"""The engines of a node: one that is used unless a request names another."""

from __future__ import annotations

from collections.abc import Sequence

from atoll.engines.contract import Engine, Feature
from atoll.errors import InvalidRequest


class Engines:
    """Finds engines by their names; the one asked for is the one used, or nothing is."""

    def __init__(self, default: Engine, others: Sequence[Engine] = ()) -> None:
        self.default = default
        self._by_name = {engine.name: engine for engine in (default, *others)}

    @property
    def all(self) -> Sequence[Engine]:
        """All of them, the default one first."""
        return tuple(self._by_name.values())

    def find(self, name: str | None) -> Engine:
        """Return the engine that was asked for, the default one if none was; raise `InvalidRequest` if there is none."""
        if name is None:
            return self.default
        if name not in self._by_name:
            raise InvalidRequest(
                f"engine {str(name)[:80]!r} is none of this node's, which are: {', '.join(self._by_name)};"
                " leave it out, or ask another node",
                engine=str(name)[:80],
            )
        return self._by_name[name]

    def with_feature(self, feature: Feature) -> Sequence[Engine]:
        """Return those that have a feature."""
        return [engine for engine in self.all if feature in engine.features]
