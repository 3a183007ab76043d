"""Whether this machine has a Julia."""

from __future__ import annotations

import shutil

import pytest

needs_julia = pytest.mark.skipif(
    shutil.which("julia") is None,
    reason="there is no Julia here; ./atoll test fetches one where Debian 11 can be had",
)
