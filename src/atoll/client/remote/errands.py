"""What the SDK asks of a server besides its sandboxes: workspaces, templates, secrets."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

import anyio

from atoll.client.remote.claims import AsyncRemote, Remote, RemoteClaim
from atoll.client.remote.image_sending import build_of_image
from atoll.client.remote.transport import Server
from atoll.client.remote.values import to_secret, to_template, to_workspace
from atoll.client.remote.wishes import pool_wish, secret_wish
from atoll.errors import Unavailable, Unsupported
from atoll.model.sandbox import SandboxRequest, SandboxSpec, WorkspaceInfo, check_workspace
from atoll.model.secret import Secret, SecretInfo
from atoll.model.template import TemplateInfo

_LOOK_SECONDS = 0.1


class RemoteErrands:
    """A server that is asked."""

    def __init__(self, address: str, token: str | None, engine: str | None = None) -> None:
        self._server = Server(address, token)
        self._engine = engine

    @property
    def async_way(self) -> AsyncRemote:
        """How an event loop reaches it."""
        return AsyncRemote(self._server)

    @property
    def way(self) -> Remote:
        """How a thread that waits reaches it."""
        return Remote(self._server)

    def claim(self, request: SandboxRequest) -> RemoteClaim:
        """Return a claim on a sandbox that is yet to be made."""
        return RemoteClaim(self._server, request, self._engine)

    async def wait_ready(self, timeout: float) -> None:
        """Return once it takes work; raises `Unavailable` after `timeout` seconds."""
        deadline = anyio.current_time() + timeout
        while True:
            http = await self._server.reach()
            try:
                await http.call("GET", "/ready")
                return
            except Unavailable:
                if anyio.current_time() >= deadline:
                    raise
            await anyio.sleep(_LOOK_SECONDS)

    async def warm(self, spec: SandboxSpec, count: int, idle: float | None) -> None:
        """Keep sandboxes ready for this user; raises `LimitExceeded`."""
        http = await self._server.reach()
        body = {"count": count, "idle": idle, "sandbox": pool_wish(spec, self._engine)}
        await http.call("PUT", "/pools", body=body)

    async def list_workspaces(self) -> Sequence[WorkspaceInfo]:
        """Return the workspaces that outlive their sandboxes, the newest first."""
        http = await self._server.reach()
        return [to_workspace(each) for each in await http.ask_safely("GET", "/workspaces")]

    async def find_workspace(self, workspace: str) -> WorkspaceInfo:
        """Return facts about a workspace; raises `NotFound`."""
        check_workspace(workspace)
        http = await self._server.reach()
        return to_workspace(await http.ask_safely("GET", f"/workspaces/{workspace}"))

    async def remove_workspace(self, workspace: str) -> None:
        """Remove a workspace; raises `NotFound` and `Conflict`."""
        check_workspace(workspace)
        http = await self._server.reach()
        await http.call("DELETE", f"/workspaces/{workspace}")

    async def list_templates(self) -> Sequence[TemplateInfo]:
        """Return the templates that were built, by name."""
        http = await self._server.reach()
        return [to_template(each) for each in await http.ask_safely("GET", "/templates")]

    async def find_template(self, name: str) -> TemplateInfo:
        """Return facts about a template; raises `NotFound`."""
        http = await self._server.reach()
        return to_template(await http.ask_safely("GET", f"/templates/{quote(str(name), safe='')}"))

    async def build_template(
        self, name: str, packages: Sequence[str], language: str, preload: Sequence[str] | None
    ) -> TemplateInfo:
        """Build a template with packages, or build it anew."""
        http = await self._server.reach()
        wanted = {"packages": list(packages), "language": language, "preload": preload}
        body = {"name": name, **wanted}
        return to_template(await http.call("POST", "/templates", body=body))

    async def build_image_template(self, name: str, image: str) -> TemplateInfo:
        """Build a template of an image, or build it anew; files are sent."""
        return to_template(await build_of_image(await self._server.reach(), name, image))

    async def build_dockerfile_template(
        self, name: str, folder: Path, is_unpacked: bool
    ) -> TemplateInfo:
        """Refuse: what a Dockerfile runs, it runs beside the server's sandboxes, not in one."""
        raise Unsupported(
            f"Dockerfiles are built by the operator of {self._server.address}; build the image here, and send it with"
            " build_image('docker-archive:FILE')"
        )

    async def pull_image(self, image: str) -> str:
        """Refuse: a server fetches images when sandboxes need them."""
        raise Unsupported(
            f"{self._server.address} fetches images when sandboxes ask for them; pull() is for url=''"
        )

    async def remove_template(self, name: str) -> None:
        """Remove a template; raises `NotFound`."""
        http = await self._server.reach()
        await http.call("DELETE", f"/templates/{quote(str(name), safe='')}")

    async def list_secrets(self) -> Sequence[SecretInfo]:
        """Return the stored secrets, without what they are worth."""
        http = await self._server.reach()
        return [to_secret(each) for each in await http.ask_safely("GET", "/secrets")]

    async def set_secret(self, name: str, secret: Secret) -> SecretInfo:
        """Keep a secret; sandboxes that have one of this name use the new one."""
        http = await self._server.reach()
        return to_secret(
            await http.ask_safely(
                "PUT", f"/secrets/{quote(str(name), safe='')}", body=secret_wish(secret)
            )
        )

    async def remove_secret(self, name: str) -> None:
        """Remove a secret; no request of any sandbox carries it any more."""
        http = await self._server.reach()
        await http.call("DELETE", f"/secrets/{quote(str(name), safe='')}")
