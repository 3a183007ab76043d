"""The table of differences between engines names tests that there are, and engines that there are."""

from __future__ import annotations

from atoll.engines.catalog import CONTAINER_ENGINES
from tests.kernels import test_bash, test_deno, test_julia, test_node, test_python, test_r
from tests.kernels.differences import DIFFERENCES, difference


def test_every_difference_is_one_of_a_test() -> None:
    modules = (test_bash, test_deno, test_julia, test_node, test_python, test_r)
    for name, found in DIFFERENCES.items():
        assert any(hasattr(module, name.partition("[")[0]) for module in modules), name
        assert {*found.engines} <= {"gvisor", *CONTAINER_ENGINES}
        assert found.reason


def test_what_is_no_difference_has_to_pass() -> None:
    assert difference("gvisor", "test_a_kernel_that_takes_too_much_memory_says_so[gvisor]")
    assert difference("docker", "test_a_kernel_that_takes_too_much_memory_says_so[docker]") is None
    assert difference("gvisor", "test_a_cell_shows[gvisor-a number]") is None
