"""In a guest with user namespaces forbidden: nothing starts, and the way out is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from atoll.engines.contract import Engine
from atoll.errors import Unavailable
from atoll.model.sandbox import SandboxSpec


def processes() -> set[Path]:
    """Return all programs that run; the kernel's own processes come and go."""
    return {path for path in Path("/proc").glob("[0-9]*") if read(path / "cmdline")}


def read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""  # it has just ended


async def test_nothing_starts(engine: Engine) -> None:
    before = processes()
    for _ in range(2):
        with pytest.raises(Unavailable, match="doctor") as caught:
            await engine.create(SandboxSpec())
        assert caught.value.details["step"] in ("jail_user_namespace", "clone")
    await engine.close()
    assert processes() - before == set()


async def test_the_way_out_is_named(engine: Engine) -> None:
    lacking = [check for check in await engine.check() if check.required and not check.ok]
    assert lacking
    fixes = " ".join(check.fix for check in lacking)
    assert "user.max_user_namespaces" in fixes
    assert "kernel.unprivileged_userns_clone" in fixes
