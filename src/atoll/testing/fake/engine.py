"""The fake engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

import anyio.lowlevel

from atoll.engines.contract import REQUIRED_FEATURES, Check, Feature
from atoll.errors import Conflict, InvalidRequest, Unsupported
from atoll.model.ids import SandboxId
from atoll.model.sandbox import Mount, SandboxSpec, SandboxState
from atoll.model.template import BASE_TEMPLATE
from atoll.testing.fake.processes import Program
from atoll.testing.fake.programs import PROGRAMS
from atoll.testing.fake.sandbox import FakeSandbox


class FakeEngine:
    """Makes sandboxes in memory; `programs` are added to those that it has.

    Host directories in `mountable` may be mounted; their files are copied when a sandbox is made.
    """

    def __init__(
        self,
        *,
        programs: Mapping[str, Program] | None = None,
        mountable: Sequence[Path] = (),
    ) -> None:
        self._programs = {**PROGRAMS, **(programs or {})}
        self._mountable = {str(source) for source in mountable}
        self._sandboxes: dict[SandboxId, FakeSandbox] = {}
        self._closed = False

    @property
    def name(self) -> str:
        """The engine's name."""
        return "fake"

    @property
    def features(self) -> frozenset[Feature]:
        """What this engine can do."""
        return REQUIRED_FEATURES["fake"]

    async def check(self) -> Sequence[Check]:
        """Return what this machine gives the engine: it needs nothing."""
        return [Check("memory", ok=True, found="the fake engine runs everywhere")]

    async def create(self, spec: SandboxSpec) -> FakeSandbox:
        """Make a sandbox."""
        await anyio.lowlevel.checkpoint()
        return self.create_here(spec)

    def create_here(self, spec: SandboxSpec) -> FakeSandbox:
        """Make a sandbox in this thread."""
        if self._closed:
            raise Conflict("the engine is closed; make a new one")
        spec.refuse_container(self.name)
        if spec.template != BASE_TEMPLATE:
            raise InvalidRequest(
                f"template {spec.template!r} is unknown; there is {BASE_TEMPLATE!r}"
            )
        if self._is_alive(spec.id):
            raise Conflict(f"sandbox {spec.id} exists already; leave the id out to get a new one")
        if spec.workspace is not None:
            raise Unsupported(
                "workspaces of the fake engine are in memory, and end with their sandboxes"
            )
        limits = spec.resolve_limits()
        mounted = [(mount.target, self._read_mount(mount)) for mount in spec.mounts]
        sandbox = FakeSandbox(spec, limits, self._programs)
        for target, files in mounted:
            sandbox.tree.mount(target, files)
        self._sandboxes[spec.id] = sandbox
        return sandbox

    async def image_of(self, spec: SandboxSpec) -> NoReturn:
        """Refuse: there are no images here."""
        raise Unsupported("the fake engine has no images")

    async def resume(self, spec: SandboxSpec) -> NoReturn:
        """Refuse: nothing is kept here."""
        raise _ends_with_program()

    def free_bytes(self) -> int | None:
        """Nothing but the machine's own memory limits it."""
        return None

    async def leftovers(self) -> NoReturn:
        """Refuse: nothing here outlives its process."""
        raise _ends_with_program()

    async def adopt(self, spec: SandboxSpec) -> NoReturn:
        """Refuse: nothing here outlives its process."""
        raise _ends_with_program()

    async def discard(self, sandbox_id: SandboxId) -> NoReturn:
        """Refuse: nothing here outlives its process."""
        raise _ends_with_program()

    async def leave(self) -> NoReturn:
        """Refuse: nothing here outlives its process."""
        raise _ends_with_program()

    async def close(self) -> None:
        """Destroy every sandbox."""
        self._closed = True
        for sandbox in self._sandboxes.values():
            await sandbox.destroy()

    def _is_alive(self, sandbox_id: SandboxId) -> bool:
        known = self._sandboxes.get(sandbox_id)
        return known is not None and known.info.state is not SandboxState.DESTROYED

    def _read_mount(self, mount: Mount) -> Mapping[str, bytes]:
        if mount.source not in self._mountable:
            raise InvalidRequest(f"the operator does not let {mount.source!r} into sandboxes")
        if not mount.target.startswith("/"):
            raise InvalidRequest(f"mount target {mount.target!r} has to be an absolute path")
        if not mount.read_only:
            raise Unsupported("the fake engine copies mounts; it has them read-only only")
        source = Path(mount.source)
        return {
            str(path.relative_to(source)): path.read_bytes()
            for path in source.rglob("*")
            if path.is_file()
        }


def _ends_with_program() -> Unsupported:
    return Unsupported("sandboxes of the fake engine end with the program that made them")
