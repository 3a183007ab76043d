"""Fixtures for the guest's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.atoll_guest.guests import Guest


@pytest.fixture(scope="module")
def shared_guest() -> Iterator[Guest]:
    """A kernel for tests that leave it as they found it."""
    guest = Guest()
    yield guest
    guest.close()


@pytest.fixture
def guest() -> Iterator[Guest]:
    """A kernel for tests that spoil it."""
    guest = Guest()
    yield guest
    guest.close()
