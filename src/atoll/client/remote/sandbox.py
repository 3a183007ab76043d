"""A sandbox on a server, with all that people use in it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from socket import socket
from typing import Any

from atoll.client.remote.cells import CellRun, Cells, stream_cell
from atoll.client.remote.commands import RemoteCommands
from atoll.client.remote.files import RemoteFiles
from atoll.client.remote.terminals import RemoteTerminals
from atoll.client.remote.transport import Server
from atoll.client.remote.tunnels import open_tunnel
from atoll.client.remote.values import to_kernel
from atoll.client.remote.wishes import cell_wish
from atoll.errors import NotFound, Unsupported
from atoll.model.ids import KernelId, is_id
from atoll.model.kernel import Cell, Event, KernelInfo


class RemoteSandbox:
    """One sandbox of a server."""

    def __init__(self, server: Server, sandbox_id: str) -> None:
        self.server = server
        self.id = sandbox_id
        self._base = f"/sandboxes/{sandbox_id}"
        self._cells = Cells(server, sandbox_id)
        self.end_reason = ""  # only its server knows
        self.commands = RemoteCommands(server, sandbox_id)
        self.files = RemoteFiles(server, sandbox_id)
        self.terminals = RemoteTerminals(server, sandbox_id)

    def begin_cell(
        self,
        code: str,
        kernel: str | None,
        language: str | None,
        timeout: float | None,
        *,
        track_files: bool = False,
        takes_input: bool = False,
    ) -> CellRun:
        """Return a cell that runs once it is looked at."""
        return self._cells.begin(
            cell_wish(
                code, kernel, language, timeout, track_files=track_files, takes_input=takes_input
            )
        )

    def stream_code(
        self,
        code: str,
        *,
        kernel: KernelId | None = None,
        language: str | None = None,
        timeout: float | None = None,
    ) -> AsyncGenerator[Event | Cell, None]:
        """Yield what a cell gives as it comes, and last what came of it; closing interrupts it."""
        return stream_cell(self.begin_cell(code, kernel, language, timeout))

    # --- kernels ---------------------------------------------------------------------------------------------

    async def ask_kernel(
        self, kernel_id: KernelId | None, kind: str, language: str | None = None, **fields: Any
    ) -> Any:
        """Ask a kernel something other than to run a cell."""
        http = await self.server.reach()
        body = {"kind": kind, "kernel": kernel_id, "language": language, **fields}
        return await http.ask_safely("POST", f"{self._base}/kernels/ask", body=body)

    async def open_kernel(
        self,
        language: str | None = None,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> KernelInfo:
        """Open one more kernel."""
        http = await self.server.reach()
        body = {"language": language, "cwd": cwd, "env": dict(env or {})}
        return to_kernel(await http.call("POST", f"{self._base}/kernels", body=body))

    async def list_kernels(self) -> Sequence[KernelInfo]:
        """Return all kernels, the oldest first."""
        http = await self.server.reach()
        return [to_kernel(each) for each in await http.ask_safely("GET", f"{self._base}/kernels")]

    async def restart_kernel(
        self, kernel_id: KernelId | None = None, language: str | None = None
    ) -> KernelInfo:
        """Put a fresh kernel in the place of one, else of the sandbox's own of a language."""
        return to_kernel(await self._tell_kernel(kernel_id, language, "restart"))

    async def interrupt_kernel(
        self, kernel_id: KernelId | None = None, language: str | None = None
    ) -> None:
        """Interrupt the cell that runs."""
        await self._tell_kernel(kernel_id, language, "interrupt")

    async def _tell_kernel(
        self, kernel_id: KernelId | None, language: str | None, what: str
    ) -> Any:
        http = await self.server.reach()
        if kernel_id is not None:
            return await http.call("POST", f"{self._kernel(kernel_id)}/{what}")
        return await http.call("POST", f"{self._base}/kernels/{what}", body={"language": language})

    async def close_kernel(self, kernel_id: KernelId) -> None:
        """End a kernel."""
        http = await self.server.reach()
        await http.call("DELETE", self._kernel(kernel_id))

    def _kernel(self, kernel_id: KernelId) -> str:
        if not is_id(kernel_id):
            raise NotFound(
                f"there is no kernel {str(kernel_id)[:80]!r} in sandbox {self.id}; list them to see which are",
                kernel=str(kernel_id)[:80],
            )
        return f"{self._base}/kernels/{kernel_id}"

    # --- the whole -------------------------------------------------------------------------------------------

    async def connect(self, port: int) -> socket:
        """Return a stream connected to a port inside."""
        return await open_tunnel(self.server, self.id, port)

    async def listen(self, port: int, address: str = "127.0.0.1") -> socket:
        """Return a socket that listens inside."""
        raise Unsupported(
            f"port {str(port)[:20]} cannot be listened on from here: the sandbox is on a server; embed it with url=''",
            port=str(port)[:20],
        )

    async def clean(self) -> None:
        """End every process and remove every file."""
        http = await self.server.reach()
        await http.ask_safely("POST", f"{self._base}/clean")

    async def pause(self) -> None:
        """Stop every process in place."""
        http = await self.server.reach()
        await http.ask_safely("PUT", f"{self._base}/pause")
