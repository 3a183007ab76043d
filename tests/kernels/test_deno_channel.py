"""The Deno kernel's end of its channel, by the same tests as Node's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from atoll.model.guest import GUEST, GUEST_SOURCE
from atoll.model.language import find_kernel_language
from tests.atoll_guest.guests import Guest
from tests.kernels import test_node_channel as node
from tests.kernels.deno_presence import DENO, needs_deno

pytestmark = needs_deno


@pytest.fixture
def guest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Guest]:
    """A Deno kernel in an ordinary process."""
    assert DENO is not None
    monkeypatch.setenv("PATH", str(Path(DENO).parent), prepend=":")
    monkeypatch.setenv("DENO_DIR", str(tmp_path))
    command = find_kernel_language("deno").kernel
    guest = Guest([part.replace(GUEST, str(GUEST_SOURCE.parent)) for part in command])
    yield guest
    guest.close()


def test_it_says_hello_and_takes_what_it_is_given(guest: Guest) -> None:
    assert guest.hello == {"type": "hello", "versions": [1, 1], "language": "deno"}
    assert guest.run("Deno.env.get('GIVEN')").text == "'yes'"


test_what_was_not_noted_is_said_again = node.test_what_was_not_noted_is_said_again
test_a_silent_cell_is_not_counted_and_leaves_nothing = (
    node.test_a_silent_cell_is_not_counted_and_leaves_nothing
)
test_an_interrupt_cuts_no_message_in_two = node.test_an_interrupt_cuts_no_message_in_two
test_what_is_said_in_parts_is_put_together = node.test_what_is_said_in_parts_is_put_together
test_a_kernel_ends_with_its_channel = node.test_a_kernel_ends_with_its_channel
