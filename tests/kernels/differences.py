"""Where cells of an engine are otherwise by its nature."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Difference(NamedTuple):
    """Engines, and the reason for which something cannot be the same on them."""

    engines: tuple[str, ...]
    reason: str


_ENDS_WITH_MEMORY = Difference(
    ("gvisor",),
    "code that takes more memory than there is ends its sandbox: the second kernel is one process",
)
_OWN_USERS = Difference(("docker", "podman"), "which users have a name is said by the image")
# By the names of tests, without that of the engine.
DIFFERENCES: Mapping[str, Difference] = {
    "test_an_error_tells_its_call_and_how_it_came_about[too much memory at once]": _ENDS_WITH_MEMORY,
    "test_a_kernel_that_takes_too_much_memory_says_so": _ENDS_WITH_MEMORY,
    "test_the_last_value_is_the_result_as_r_prints_it[who it is]": _OWN_USERS,
}


def difference(engine: str, test: str) -> str | None:
    """Return why a test says nothing about an engine, or None if it has to pass there."""
    found = DIFFERENCES.get(test.replace(f"[{engine}-", "[").removesuffix(f"[{engine}]"))
    return found.reason if found is not None and engine in found.engines else None
