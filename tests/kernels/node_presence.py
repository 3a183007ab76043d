"""Whether this machine has a Node."""

from __future__ import annotations

import shutil

import pytest

needs_node = pytest.mark.skipif(
    shutil.which("node") is None, reason="there is no Node here; the Debian package is nodejs"
)
