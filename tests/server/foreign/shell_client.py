"""A client of another making, which knows a few routes: sync methods, and twins of them with an `a` in front that wait."""

from __future__ import annotations

from typing import Any

import httpx2


class ShellServer:
    """A server at an address, for whoever shows a token."""

    def __init__(self, base_url: str, token: str) -> None:
        headers = {"Authorization": f"Bearer {token}"}
        self.waiting = httpx2.Client(base_url=base_url, headers=headers, trust_env=False)
        self.woken = httpx2.AsyncClient(base_url=base_url, headers=headers, trust_env=False)

    def create(self, image: str, label: str, interactive: bool = False) -> ShellSandbox:
        return ShellSandbox(self, **self.ask(*_creation(image, label, interactive)))

    async def acreate(self, image: str, label: str, interactive: bool = False) -> ShellSandbox:
        return ShellSandbox(self, **(await self.aask(*_creation(image, label, interactive))))

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        answer = self.waiting.request(method, path, json=body)
        answer.raise_for_status()
        return answer.json()

    async def aask(self, method: str, path: str, body: Any = None) -> Any:
        answer = await self.woken.request(method, path, json=body)
        answer.raise_for_status()
        return answer.json()


class ShellSandbox:
    """One sandbox: what the server said when it was made."""

    def __init__(
        self, server: ShellServer, id: str, label: str | None = None, **others: Any
    ) -> None:
        self.server = server
        self.id = id
        self.name = label
        self.others = others
        self.path = f"/sandboxes/{id}"

    def exec(self, code: str) -> Any:
        return self.server.ask("POST", f"{self.path}/execute", {"code": code})

    async def aexec(self, code: str) -> Any:
        return await self.server.aask("POST", f"{self.path}/execute", {"code": code})

    def fork(self, label: str) -> ShellSandbox:
        return ShellSandbox(
            self.server, **self.server.ask("POST", f"{self.path}/fork", {"label": label})
        )

    async def afork(self, label: str) -> ShellSandbox:
        made = await self.server.aask("POST", f"{self.path}/fork", {"label": label})
        return ShellSandbox(self.server, **made)

    def coalesce(self, final: ShellSandbox) -> Any:
        return self.server.ask("POST", f"{self.path}/coalesce/{final.id}")

    async def acoalesce(self, final: ShellSandbox) -> Any:
        return await self.server.aask("POST", f"{self.path}/coalesce/{final.id}")

    def label(self, label: str) -> Any:
        return self.server.ask("PATCH", self.path, {"label": label})

    async def alabel(self, label: str) -> Any:
        return await self.server.aask("PATCH", self.path, {"label": label})

    def tree(self) -> Any:
        return self.server.ask("GET", f"{self.path}/tree")

    async def atree(self) -> Any:
        return await self.server.aask("GET", f"{self.path}/tree")

    def logs(self, limit: int = 1000) -> Any:
        return self.server.ask("GET", f"{self.path}/execution-logs?limit={limit}")

    async def alogs(self, limit: int = 1000) -> Any:
        return await self.server.aask("GET", f"{self.path}/execution-logs?limit={limit}")

    def terminate(self) -> Any:
        return self.server.ask("DELETE", self.path)

    async def aterminate(self) -> Any:
        return await self.server.aask("DELETE", self.path)


def _creation(image: str, label: str, interactive: bool) -> tuple[str, str, Any]:
    return "POST", "/sandboxes", {"image": image, "label": label, "interactive": interactive}
