"""A whole server in the test's own process and loop: real doors, records and routes.

Over the fake engine it needs nothing, and sandboxes run nothing; over namespaces it is all there is.
"""

from __future__ import annotations

import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import anyio
import anyio.lowlevel
import httpx2
import pytest

from atoll.client.http import HttpNode
from atoll.model.access import ADMIN_ID, Role, Scope, Token, User
from atoll.server import access
from atoll.server import parts as server_parts
from atoll.server.access import Access
from atoll.server.listening import Welcome, serve
from atoll.server.parts import Parts
from atoll.server.settings import Settings
from atoll.testing.fake import FakeEngine
from tests.cli.conftest import why_not
from tests.running_node import prepare_data

# Tests ask more often than anybody who means well.
_QUICK = {"port": 0, "strangers_per_second": 100_000, "requests_per_second": 100_000}


@dataclass(frozen=True)
class Served:
    """A server that listens."""

    parts: Parts
    url: str

    @property
    def access(self) -> Access:
        return self.parts.access

    @property
    def admin(self) -> User:
        return self.access.users.find(ADMIN_ID)

    def add_user(self, name: str = "bob", role: Role = Role.MEMBER) -> User:
        """Return a new user, by that name or one that begins so."""
        count = len(self.access.users.list())
        free = name if self.access.users.is_free(name) else f"{name}-{count}"
        return self.access.users.create(free, role)

    def add_token(self, user: User, scope: Scope = Scope.MEMBER, **facts: Any) -> tuple[Token, str]:
        return self.access.create_token(user, scope, **facts)

    def client(self, token: str | None) -> HttpNode:
        """Return a client of ours."""
        return HttpNode(self.url, token)

    def browser(self, token: str | None = None, **options: Any) -> httpx2.AsyncClient:
        """Return a client that shows answers as they are."""
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        return httpx2.AsyncClient(
            base_url=self.url,
            headers=headers,
            trust_env=False,
            timeout=60,
            # There is no TLS here, and reading all authorities takes longer than a request.
            verify=False,
            **options,
        )


@asynccontextmanager
async def serving(
    data: Path | None = None,
    *,
    engine: Literal["fake", "namespaces"] = "fake",
    **groups: Mapping[str, Any],
) -> AsyncIterator[Served]:
    """Serve with these groups of settings, on a data directory of its own unless one is named."""
    folder = data or Path(tempfile.mkdtemp(prefix="atoll-serving-"))
    if engine == "namespaces":
        if reason := why_not(engine):
            pytest.skip(f"engine {engine} does not work here: {reason}")
        prepare_data(folder)
    settings = Settings.model_validate(
        {
            "data": folder,
            "node": {"on_exit": "stop"},
            **groups,
            "server": {**_QUICK, **groups.get("server", {})},
        }
    )
    ready = anyio.Event()
    served: list[Served] = []

    def welcome(parts: Parts, port: int) -> None:
        served.append(Served(parts, f"http://127.0.0.1:{port}"))
        ready.set()

    try:
        with pytest.MonkeyPatch.context() as patch:
            # So many wrong tokens as tests show would be kept waiting.
            patch.setattr(access, "_FAILURES", 1e9)
            if engine == "fake":
                patch.setattr(server_parts, "make_engine", lambda *_, **__: FakeEngine())
            async with _running(settings, welcome, ready):
                yield served[0]
    finally:
        if data is None:
            shutil.rmtree(folder, ignore_errors=True)


@asynccontextmanager
async def _running(settings: Settings, welcome: Welcome, ready: anyio.Event) -> AsyncIterator[None]:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(serve, settings, welcome)
        with anyio.fail_after(60):
            await ready.wait()
        try:
            yield
        finally:
            # As an operator does who does not wait for those who still read.
            signal.raise_signal(signal.SIGTERM)
            await anyio.lowlevel.checkpoint()
            signal.raise_signal(signal.SIGTERM)
