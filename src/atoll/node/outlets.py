"""Ways out of a node's sandboxes, with all that goes along: their secrets, their private networks, and what they tried."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from dataclasses import replace

import anyio
import anyio.to_thread

from atoll.errors import NotFound, Unsupported
from atoll.model.attempt import AttemptInfo, NotedAttempt
from atoll.model.ids import SandboxId
from atoll.model.network import Network, NetworkMode, check_member_name
from atoll.model.sandbox import SandboxRequest, SandboxSpec
from atoll.model.secret import SecretUse, new_placeholder
from atoll.node.egress import Egress
from atoll.node.engines import Engines
from atoll.node.home import Home
from atoll.node.hooks import EgressAttempted, Hooks
from atoll.node.hosted import HostedSandbox
from atoll.node.network_members import Candidate
from atoll.node.private_networks import PrivateNetworks
from atoll.node.records import SandboxRecord
from atoll.node.residents import Resident
from atoll.node.secrets import SecretStore

_LOOK_SECONDS = 1.0


class Outlets:
    """What lets the sandboxes of one node out, as far as their networks say; a node may have none."""

    def __init__(
        self,
        egress: Egress | None,
        secrets: SecretStore | None,
        engines: Engines,
        home: Home,
        hooks: Hooks,
    ) -> None:
        self._egress = egress
        self._secrets = secrets
        # One after the other: of two changes, what was read first must not be put in force last.
        self._changing = anyio.Lock()
        self._engines = engines
        self._home = home
        self._hooks = hooks
        self._attempts_came = anyio.Event()
        self.private: PrivateNetworks | None = None
        if egress is not None:
            egress.on_attempts = self._tell_attempts
            self.private = PrivateNetworks(egress, home.tasks, home.wake)

    @property
    def egress(self) -> Egress:
        """The way out; raises `Unsupported` if this node has none."""
        if self._egress is None:
            raise Unsupported("this node has no way out for sandboxes; leave the network out")
        return self._egress

    @property
    def secrets(self) -> SecretStore:
        """The stored secrets of its owners; raises `Unsupported` if this node stores none."""
        if self._secrets is None:
            raise Unsupported(
                "this node stores no secrets; give a sandbox Secret(value, hosts=[…])"
            )
        return self._secrets

    # --- a sandbox comes -------------------------------------------------------------------------------------

    async def find_secrets(self, request: SandboxRequest) -> Sequence[SecretUse]:
        """Return the secrets of a new sandbox, each with a placeholder of its own."""
        return [
            await self.secrets.use(request.owner, secret, variable, new_placeholder())
            if isinstance(secret, str)
            else SecretUse(variable, new_placeholder(), secret.binding(), secret.value)
            for variable, secret in request.secrets.items()
        ]

    def prepare(self, request: SandboxRequest, secrets: Sequence[SecretUse]) -> SandboxRequest:
        """Return a request with all that its network needs inside; errors as `Egress.prepare`."""
        features = self._engines.find(request.spec.engine).features
        spec = self.egress.prepare(request.spec, features, secrets)
        stored = {name: value for name, value in request.secrets.items() if isinstance(value, str)}
        return replace(request, spec=replace(spec, secrets=stored))

    async def open(
        self, request: SandboxRequest, hosted: HostedSandbox, secrets: Sequence[SecretUse]
    ) -> None:
        """Let a new sandbox out as far as it may; if that fails, it is destroyed."""
        try:
            await self.attach(request, hosted, secrets)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await hosted.destroy()
            raise

    async def attach(
        self, request: SandboxRequest, hosted: HostedSandbox, secrets: Sequence[SecretUse]
    ) -> None:
        """Let a sandbox out as far as it may."""
        network, sandbox_id = request.spec.network, request.spec.id
        if not network.has_listeners:
            return
        await self.egress.attach(sandbox_id, network, hosted.listen, hosted.keep, secrets)
        if self.private is not None:
            who = Candidate(sandbox_id, request.owner, request.name, network, hosted)
            await self.private.join(who)

    async def reopen(self, record: SandboxRecord, hosted: HostedSandbox) -> None:
        """Let a sandbox out that another node made; `settle` has to follow once all are there."""
        if not has_outlet(record):
            return
        network = SandboxSpec.from_json(record.spec).network
        secrets = await self.find_secrets_again(record)
        await self.egress.resume(record.id, network, hosted.kept, secrets)
        if self.private is not None:
            self.private.rejoin(Candidate(record.id, record.owner, record.name, network, hosted))

    async def settle(self, engine_ids: Collection[str]) -> None:
        """Remove what was left of sandboxes other than these, and bring their private networks up to date."""
        if self._egress is not None and self.private is not None:
            self._egress.forget_others(engine_ids)
            await self.private.settle()

    # --- while it lives --------------------------------------------------------------------------------------

    def check_change(self, resident: Resident, network: Network) -> Network:
        """Return the network that a sandbox gets in place of its own; errors as `Egress.check_change`.

        Raises:
            LimitExceeded: its private network has no room.
        """
        check_member_name(network, resident.record.name)
        checked = self.egress.check_change(resident.id, resident.info.network, network)
        if self.private is not None:
            self.private.check_room(replace(_candidate(resident), network=checked))
        return checked

    async def change(self, resident: Resident) -> None:
        """Put the network in force that a sandbox has by now; what it forbids is cut off when this returns."""
        async with self._changing:
            await anyio.to_thread.run_sync(self.egress.change, resident.id, resident.info.network)
            if self.private is not None:
                await self.private.change(_candidate(resident))

    def rename(self, sandbox_id: SandboxId, name: str | None) -> None:
        """Have a sandbox be found by another name; in any thread."""
        if self.private is not None:
            self._home.wake(self.private.rename, sandbox_id, name)

    async def renew_secrets(self, resident: Resident) -> None:
        """Let a sandbox use the secrets that are stored for it now, and no others."""
        async with self._changing:
            secrets = await self.find_secrets_again(resident.record)
            network = resident.info.network
            await anyio.to_thread.run_sync(self.egress.change, resident.id, network, secrets)

    async def find_secrets_again(self, record: SandboxRecord) -> Sequence[SecretUse]:
        """Return the secrets of a sandbox that still are stored, with the placeholders that it has."""
        spec, found = SandboxSpec.from_json(record.spec), []
        for variable, name in spec.secrets.items():
            try:
                found.append(
                    await self.secrets.use(record.owner, name, variable, spec.env[variable])
                )
            except NotFound:
                pass  # what stands for it is worth nothing any more
        return found

    # --- what was tried --------------------------------------------------------------------------------------

    async def read_attempts(
        self, sandbox_id: SandboxId, start: int = 0, limit: int = 1000
    ) -> Sequence[NotedAttempt]:
        """Return what a sandbox, living or not, tried to reach: those kept, from number `start` on."""
        if self._egress is None:
            return ()
        return await anyio.to_thread.run_sync(self._egress.attempts.read, sandbox_id, start, limit)

    async def follow_attempts(
        self, sandbox_id: SandboxId, start: int, is_over: Callable[[], bool]
    ) -> AsyncGenerator[NotedAttempt, None]:
        """Yield what a sandbox tries to reach, from number `start` on, until it is over."""
        while True:
            was_over = is_over()
            came = self._attempts_came
            for noted in await self.read_attempts(sandbox_id, start):
                yield noted
                start = noted.number + 1
            if was_over:
                return
            with anyio.move_on_after(_LOOK_SECONDS):
                await came.wait()

    def _tell_attempts(self, attempts: Sequence[AttemptInfo]) -> None:
        for attempt in attempts:
            self._hooks.tell(EgressAttempted(attempt))
        self._home.wake(self._announce_attempts)

    def _announce_attempts(self) -> None:
        self._attempts_came.set()
        self._attempts_came = anyio.Event()

    # --- ends ------------------------------------------------------------------------------------------------

    def detach(self, record: SandboxRecord) -> None:
        """Let a sandbox's way out go with it; safe to call twice, in any thread."""
        if self._egress is not None and has_outlet(record):
            self._egress.detach(record.id)

    async def leave(self) -> None:
        """End the proxy; sandboxes keep what they need for the next node."""
        if self._egress is not None:
            await anyio.to_thread.run_sync(self._egress.leave)

    async def close(self) -> None:
        """End the proxy, after all sandboxes."""
        if self._egress is not None:
            await anyio.to_thread.run_sync(self._egress.close)


def has_outlet(record: SandboxRecord) -> bool:
    """Whether a sandbox has any way out."""
    network = record.spec.get("network")
    if network is None:
        return False
    return network["mode"] != NetworkMode.NONE or network.get("private") is not None


def _candidate(resident: Resident) -> Candidate:
    """Return a sandbox as it is now, to be a member of its private network."""
    record, network = resident.record, resident.info.network
    return Candidate(resident.id, record.owner, record.name, network, resident.hosted)
