"""Whether this machine has a Deno."""

from __future__ import annotations

import os
import shutil
import sys

import pytest

_BESIDE = os.path.dirname(sys.executable)
DENO = shutil.which("deno", path=_BESIDE) or shutil.which("deno")

needs_deno = pytest.mark.skipif(
    DENO is None, reason="there is no Deno here; it comes with: pip install deno"
)
