"""Mixed load on a node that may be killed at any moment: what was acknowledged is remembered here, and compared."""

from __future__ import annotations

import random
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import anyio

from atoll.client.http import HttpNode
from atoll.errors import Unauthorized, Unavailable
from atoll.model.execution import EventType

Answer = TypeVar("Answer")

_BEGIN_SECONDS = 300.0
# Often enough to meet a node that has only just begun to listen, and not so often that it has no time to start.
_PAUSE_SECONDS = 0.05

COUNT = "i=0; while :; do i=$((i+1)); echo $i; sleep 0.003; done"
_CELL = "import time\nx = globals().get('x', 0) + 1\nprint(x)\ntime.sleep({seconds})\nprint(-x)\nx"


@dataclass
class Findings:
    """What went wrong, and how much went right."""

    faults: list[str] = field(default_factory=list)
    lines: int = 0
    cells: int = 0
    files: int = 0
    sandboxes: int = 0
    tokens: int = 0
    commands_lost: int = 0
    kernels_lost: int = 0
    kernels: int = 0
    refusals: int = 0


class Load:
    """Clients of one node; each goes on where it was when the node comes back."""

    def __init__(self, address: str, seed: int, token: str | None = None) -> None:
        self.findings = Findings()
        self.address = address
        self._token = token
        self._chance = random.Random(seed)
        self._over = anyio.Event()

    async def has_begun(self) -> None:
        """Return when every kind of client has got something done."""
        with anyio.fail_after(_BEGIN_SECONDS):
            while not (self.findings.cells and self.findings.files and self.findings.sandboxes):
                await anyio.sleep(0.05)

    def end(self) -> None:
        """Let all clients come to their end."""
        self._over.set()

    def client(self) -> HttpNode:
        """Return a new connection to the node."""
        return HttpNode(self.address, self._token)

    async def persist(self, call: Callable[[HttpNode], Awaitable[Answer]]) -> Answer:
        """Make a call again and again until it is answered; a refusal for the moment is none."""
        while True:
            try:
                async with self.client() as node:
                    return await call(node)
            except Unavailable:
                self.findings.refusals += 1
                await anyio.sleep(_PAUSE_SECONDS)

    async def ask(self, method: str, path: str, **options: Any) -> Any:
        """Send a request until it is answered."""
        return await self.persist(lambda node: node.call(method, path, **options))

    async def create(self, template: str) -> str:
        """Return the id of a new sandbox, made once however often it was asked for."""
        key = {"Idempotency-Key": secrets.token_hex(8)}
        made = await self.ask("POST", "/sandboxes", body={"template": template}, headers=key)
        sandbox_id: str = made["id"]
        return sandbox_id

    async def destroy(self, sandbox_id: str) -> None:
        """End a sandbox."""
        await self.ask("DELETE", f"/sandboxes/{sandbox_id}")

    async def count_lines(self) -> None:
        """Follow a command that counts: every number comes once, in order, whoever dies in between."""
        sandbox = await self.create("base")
        execution = (await self.execute(sandbox, {"kind": "command", "command": COUNT}))["id"]
        seen, start = b"", 0
        while not self._over.is_set():
            try:
                async with self.client() as node:
                    async for event in node.events(execution, start):
                        start = event.seq + 1
                        seen += event.data
                        if event.type is EventType.END:
                            self.findings.commands_lost += 1
                            self._fault(f"the counting command ended: {event.value}")
                            return
                        if self._over.is_set():
                            break
            except Unavailable:
                await anyio.sleep(_PAUSE_SECONDS)
        numbers = [int(line) for line in seen.splitlines()[:-1]]
        if numbers != list(range(1, len(numbers) + 1)):
            self._fault(f"lines were lost or repeated near {_first_gap(numbers)}")
        self.findings.lines += len(numbers)

    async def run_cells(self) -> None:
        """Run cells that count: each has its effect once, and its whole output."""
        sandbox = await self.create("python")
        self.findings.kernels += 1
        expected = 0
        while not self._over.is_set():
            seconds = self._chance.choice([0, 0, 0.02, 0.3])
            code = _CELL.format(seconds=seconds)
            started = await self.execute(sandbox, {"kind": "cell", "code": code})
            printed, outcome, result = await self.gather(started["id"])
            expected += 1
            if outcome.get("status") != "ok":
                self.findings.kernels_lost += 1
                expected = 0
                continue
            if (printed, result) != (f"{expected}\n-{expected}\n".encode(), str(expected)):
                if result == "1" and expected > 1:
                    self.findings.kernels_lost += 1
                else:
                    self._fault(f"cell {expected} printed {printed!r} and gave {result!r}")
                expected = int(result or 0)
            self.findings.cells += 1

    async def write_files(self) -> None:
        """Write files and read earlier ones back: what was acknowledged is there."""
        sandbox = await self.create("base")
        written: list[bytes] = []
        while not self._over.is_set():
            data = secrets.token_bytes(self._chance.randrange(1, 20_000))
            path = f"/sandboxes/{sandbox}/files/{len(written)}.bin"
            await self.put(path, data)
            written.append(data)
            at = self._chance.randrange(len(written))
            found = await self.get(f"/sandboxes/{sandbox}/files/{at}.bin")
            if found != written[at]:
                self._fault(f"file {at} has other content than was acknowledged")
            self.findings.files += 1

    async def come_and_go(self) -> None:
        """Make and destroy sandboxes: what was acknowledged is so."""
        while not self._over.is_set():
            sandbox = await self.create("base")
            info = await self.ask("GET", f"/sandboxes/{sandbox}")
            if info["status"] != "running":
                self._fault(f"a new sandbox is {info['status']}: {info['reason']}")
            await self.destroy(sandbox)
            info = await self.ask("GET", f"/sandboxes/{sandbox}")
            if info["status"] == "running":
                self._fault("a sandbox lives that was destroyed")
            self.findings.sandboxes += 1

    async def hold_tokens(self) -> None:
        """Make tokens and revoke every other one: what was acknowledged is so, for those that were made before, too."""
        held: list[str] = []
        while not self._over.is_set():
            made = await self.ask("POST", "/tokens", body={"name": "held"})
            if self.findings.tokens % 2:
                await self.ask("DELETE", f"/tokens/{made['id']}")
                if await self._is_known(made["token"]):
                    self._fault("a token works that was revoked")
            else:
                held.append(made["token"])
            if not await self._is_known(self._chance.choice(held)):
                self._fault("a token is not known that was made")
            self.findings.tokens += 1
            # Those that are void are few enough to be refused one by one.
            await anyio.sleep(1)

    async def _is_known(self, token: str) -> bool:
        async def ask(_own: HttpNode) -> bool:
            async with HttpNode(self.address, token) as node:
                try:
                    await node.call("GET", "/auth/me")
                except Unauthorized:
                    return False
                return True

        return await self.persist(ask)

    async def put(self, path: str, data: bytes) -> None:
        """Write a file, until that was acknowledged."""
        await self.persist(lambda node: node.call("PUT", path, data=_once(data)))

    async def get(self, path: str) -> bytes:
        """Return what is in a file."""
        return await self.persist(lambda node: _read(node, path))

    async def execute(self, sandbox: str, body: dict[str, Any]) -> dict[str, Any]:
        """Start something in a sandbox, once however often it was asked for."""
        key = {"Idempotency-Key": secrets.token_hex(8)}
        path = f"/sandboxes/{sandbox}/executions"
        answer: dict[str, Any] = await self.ask("POST", path, body=body, headers=key)
        return answer

    async def gather(self, execution: str) -> tuple[bytes, dict[str, Any], str | None]:
        """Return what a cell printed, how it ended, and its value."""
        printed, result, start = b"", None, 0
        while True:
            try:
                async with self.client() as node:
                    async for event in node.events(execution, start):
                        start = event.seq + 1
                        printed += event.data
                        if event.type is EventType.RESULT:
                            result = event.value["data"]["text/plain"]
                        if event.type is EventType.END:
                            return printed, dict(event.value), result
            except Unavailable:
                await anyio.sleep(_PAUSE_SECONDS)

    def _fault(self, what: str) -> None:
        self.findings.faults.append(what)


async def _once(data: bytes) -> Any:
    yield data


async def _read(node: HttpNode, path: str) -> bytes:
    return b"".join([chunk async for chunk in node.read(path)])


def _first_gap(numbers: list[int]) -> int:
    return next(n for n, found in enumerate(numbers, 1) if n != found)
