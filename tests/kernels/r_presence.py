"""Whether this machine has an R."""

from __future__ import annotations

import shutil

import pytest

needs_r = pytest.mark.skipif(
    shutil.which("R") is None, reason="there is no R here; the Debian package is r-base-core"
)
