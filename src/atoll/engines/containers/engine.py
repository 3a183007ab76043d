"""The engine for Docker and Podman: sandboxes in hardened containers of any image, over the engine's own API."""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import aiodocker
import anyio
import anyio.to_thread

from atoll.engines.containers import labels, own_ids
from atoll.engines.containers.attach import AttachedStreams
from atoll.engines.containers.attestation import attest, differences_in_shape
from atoll.engines.containers.client import EngineClient
from atoll.engines.containers.guest_volume import GuestVolume
from atoll.engines.containers.images import Images, Progress, image_name
from atoll.engines.containers.leftovers import discard_leftovers
from atoll.engines.containers.mounted import attest_sources
from atoll.engines.containers.own_ids import HostIds
from atoll.engines.containers.profile import (
    Allowed,
    Image,
    Injected,
    Profile,
    check_options,
    counts_files,
    decide,
    root_bytes,
)
from atoll.engines.containers.root_quota import ROOT_QUOTA_FIX, root_quota
from atoll.engines.containers.settings import ContainerSettings, usual_endpoint
from atoll.engines.containers.wall import ContainerWall, remove_volumes, stop_container
from atoll.engines.containers.watch import Watch
from atoll.engines.containers.workspace_volume import check_image, settle, shown
from atoll.engines.contract import Check, Feature
from atoll.engines.mount_rules import HeldSources
from atoll.engines.steward.sandbox import StewardSandbox
from atoll.errors import AtollError, Conflict, InvalidRequest, NotFound, Unavailable, Unsupported
from atoll.model.container import ContainerOptions
from atoll.model.ids import SandboxId
from atoll.model.limits import EnforcedBy, LimitsInfo
from atoll.model.sandbox import SandboxSpec
from atoll.model.template import TemplateTree

# How long a creation that goes on is waited for when the engine is closed.
_CREATION_SECONDS = 10.0
_FEATURES = frozenset(
    {
        Feature.TERMINALS,
        Feature.TERMINAL_END,
        Feature.PORTS,
        Feature.PAUSE,
        Feature.MOUNTS,
        Feature.KERNELS,
        Feature.IMAGES,
        Feature.CLEANING,
        Feature.PERSISTENT_WORKSPACES,
        Feature.STOP,
    }
)
_PODMAN_API = "v4.0.0/libpod"
# How long an engine may take to unmount what is in a container that it was told to stop.
_LET_GO_SECONDS = 5.0
_NOT_UNDER_GVISOR = {Feature.TERMINAL_END, Feature.PERSISTENT_WORKSPACES, Feature.STOP}
# What is kept belongs to ids that another container does not have.
_NOT_WITH_OWN_IDS = {Feature.PERSISTENT_WORKSPACES, Feature.STOP}
_ENFORCED_BY: Mapping[str, EnforcedBy] = MappingProxyType(
    {
        "memory_bytes": "cgroup",
        "cpus": "cgroup",
        "processes": "cgroup",
        "workspace_bytes": "tmpfs",
        "tmp_bytes": "tmpfs",
        "home_bytes": "tmpfs",
        "shm_bytes": "tmpfs",
        "inodes": "tmpfs",
        "open_files": "rlimit",
        "file_bytes": "rlimit",
    }
)


class _Resident:
    """A sandbox with what it is made of."""

    def __init__(
        self,
        sandbox: StewardSandbox,
        streams: AttachedStreams,
        wall: ContainerWall,
        *,
        is_persistent: bool,
    ) -> None:
        self.sandbox = sandbox
        self.streams = streams
        self.wall = wall
        self.is_persistent = is_persistent


_Make = Callable[[SandboxSpec, Watch], Awaitable[_Resident]]


class ContainerEngine:
    """Sandboxes in containers; needs the socket of a Docker or Podman, and nothing else."""

    def __init__(
        self,
        name: str,
        data_dir: Path,
        settings: ContainerSettings | None = None,
        mountable: Sequence[Path] = (),
        python: Callable[[], TemplateTree] | None = None,
        r_channel: Path | None = None,
    ) -> None:
        """Use the engine of that name.

        `python` is the tree from which kernels take what an image may lack, `r_channel` the library by which R speaks to the
        host.
        """
        self.name = name
        self._settings = settings or ContainerSettings()
        endpoint = self._settings.endpoint or usual_endpoint(name)
        self._client = EngineClient(
            name, endpoint, self._settings.tls, self._settings.patience_seconds
        )
        self._allowed = Allowed(name, self._settings, mountable, self._client.socket)
        self._data_dir = data_dir
        self._node = ""
        self._here = labels.this_program()
        self._images = Images(self._client, self._settings.pull_seconds)
        self._guest = GuestVolume(self._client, self._settings, python, r_channel)
        # More at once only wait for each other, and each for longer than it would wait here.
        self._starting = asyncio.Semaphore(max(2, os.cpu_count() or 2))
        self._opening = asyncio.Lock()
        self._watch: Watch | None = None
        self._host_ids = HostIds()
        self._residents: dict[SandboxId, _Resident | None] = {}
        self._creations: set[asyncio.Event] = set()  # that go on
        self._closed = False

    @property
    def features(self) -> frozenset[Feature]:
        """What this engine can do beyond commands and files."""
        is_gvisor = self._settings.runtime == "runsc"
        features = _FEATURES - _NOT_UNDER_GVISOR if is_gvisor else _FEATURES
        return features - _NOT_WITH_OWN_IDS if self._settings.own_ids else features

    async def check(self) -> Sequence[Check]:
        """Return what this machine gives the engine."""
        # Loaded only here: whoever just runs something need not wait for it.
        from atoll.engines.containers import checks

        return await checks.run(self._client, self._settings)

    async def pull_image(self, image: str, progress: Progress) -> str:
        """Fetch an image by its name, or that of a template; see `ImageWork`."""
        if image in self._settings.images:
            return (await self._images.prepare(image, self._settings.images[image], progress)).id
        check_options(ContainerOptions(image=image), self._settings)
        return (await self._images.pull(image, progress)).id

    async def build_image(self, context: Path, tag: str, progress: Progress) -> str:
        """Build an image; see `ImageWork`."""
        return (await self._images.build(context, tag, progress)).id

    def export_image(self, image: str) -> AsyncGenerator[bytes, None]:
        """Yield an image as an archive; see `ImageWork`."""
        return self._images.export(image)

    async def create(self, spec: SandboxSpec) -> StewardSandbox:
        """Make a sandbox, attested before it is returned."""
        return await self._enter(spec, self._make)

    async def resume(self, spec: SandboxSpec) -> StewardSandbox:
        """Start the container of a sandbox that was stopped, or that lost its program; attested before it is returned."""
        if not spec.persistent or spec.workspace is None:
            raise Unsupported(f"sandbox {spec.id} was not made to be stopped", sandbox=spec.id)
        return await self._enter(spec, self._make_again)

    async def _enter(self, spec: SandboxSpec, make: _Make) -> StewardSandbox:
        self._check(spec)
        over = asyncio.Event()
        self._creations.add(over)
        try:
            return await self._take_in(spec, make)
        finally:
            self._creations.discard(over)
            over.set()

    async def _take_in(self, spec: SandboxSpec, make: _Make) -> StewardSandbox:
        self._residents[spec.id] = None
        try:
            resident = await make(spec, await self._open())
        except BaseException:
            self._forget(spec.id)
            raise
        self._residents[spec.id] = resident
        if self._closed:
            await resident.sandbox.destroy()
            raise self._is_closed()
        return resident.sandbox

    def create_here(self, spec: SandboxSpec) -> StewardSandbox:
        """It takes the event loop."""
        raise Unsupported(f"engine {self.name} makes sandboxes on the event loop only; use create")

    async def image_of(self, spec: SandboxSpec) -> str:
        """Return the id of the image that a sandbox would be made from now."""
        self._check(spec)  # first: what may not be used is not fetched either
        return (await self._images.find(spec, self._settings)).id

    def free_bytes(self) -> int | None:
        """Nothing but the machine's own memory limits them."""
        return None

    async def leftovers(self) -> Sequence[SandboxId]:
        """Nothing outlives the program."""
        raise self._cannot_adopt()

    async def adopt(self, spec: SandboxSpec) -> StewardSandbox:
        """Nothing outlives the program."""
        raise self._cannot_adopt()

    async def discard(self, sandbox_id: SandboxId) -> None:
        """Remove what was kept of a sandbox that was stopped."""
        watch, name = await self._open(), f"atoll-{sandbox_id}"
        facts = await self._inspect(name)
        marks = {} if facts is None else facts["Config"].get("Labels") or {}
        if facts is None:
            await remove_volumes(self._client, self._node, name)
        if marks.get(labels.NODE) != self._node or sandbox_id in self._residents:
            raise NotFound(f"there is no stopped sandbox {sandbox_id} here", sandbox=sandbox_id)
        watch.remove_later(name)
        await watch.remove_leftovers()

    async def leave(self) -> None:
        """Nothing outlives the program."""
        raise self._cannot_adopt()

    def _cannot_adopt(self) -> Unsupported:
        return Unsupported(f"sandboxes of engine {self.name} end with the program that made them")

    async def close(self) -> None:
        """Destroy every sandbox of this engine and release all it holds; raise `Unavailable` with all that went wrong."""
        self._closed = True
        with anyio.CancelScope(shield=True):
            residents = [each for each in self._residents.values() if each is not None]
            outcomes = await asyncio.gather(
                *(each.sandbox.destroy() for each in residents), return_exceptions=True
            )
            # Whoever makes one meanwhile finds the engine closed, and clears away; for that the connection is needed.
            with anyio.move_on_after(_CREATION_SECONDS):
                for creation in [*self._creations]:
                    await creation.wait()
            watch, self._watch = self._watch, None
            if watch is not None:
                await watch.stop()
                outcomes.append(await _outcome(watch))
            await self._client.close()
        failed = [each for each in outcomes if isinstance(each, BaseException)]
        if failed:
            raise Unavailable(
                f"engine {self.name} was closed, but: {'; '.join(map(str, failed))}"
            ) from failed[0]

    # --- creating ----------------------------------------------------------------------------------------

    def _check(self, spec: SandboxSpec) -> None:
        if not isinstance(spec, SandboxSpec):
            raise InvalidRequest(f"an engine makes a SandboxSpec, not {type(spec).__name__}")
        if self._closed:
            raise self._is_closed()
        spec.resolve_limits()
        _check_quota(spec)
        check_options(spec.container or ContainerOptions(), self._settings)
        image_name(spec, self._settings)
        # As if it were made: what cannot be is refused before anything is asked of the engine.
        decide(spec, Image(""), injected=Injected(""), labels={}, allowed=self._allowed)
        if spec.workspace is not None:
            check_image(spec.workspace, self.name)
        if spec.id in self._residents:
            raise self._exists(spec)

    def _is_closed(self) -> Conflict:
        return Conflict("this engine is closed; open a new one")

    def _exists(self, spec: SandboxSpec) -> Conflict:
        return Conflict(f"a sandbox {spec.id} exists already; leave the id out to get a new one")

    async def _open(self) -> Watch:
        """Do what comes before the first sandbox: what an ended program of this node left is removed."""
        async with self._opening:
            if self._watch is None:
                self._node = await anyio.to_thread.run_sync(labels.node_id, self._data_dir)
                await discard_leftovers(self._client, self._node, self._here)
                self._watch = Watch(
                    self._client, self._node, on_event=self._hear, on_silence=self._lose_all
                )
                self._guest.on_leftover = partial(self._watch.remove_later, may_come=True)
                self._watch.start()
            return self._watch

    async def _decide(self, spec: SandboxSpec, image: Image, marks: Mapping[str, str]) -> Profile:
        volume = (spec.container or ContainerOptions()).volume
        if volume is not None:
            await self._find_volume(volume)
        if spec.workspace is not None:
            await self._check_ids()
        if root_bytes(spec.container or ContainerOptions(), self._settings) is not None:
            image = await self._hold_root(image)
        profile = decide(
            spec,
            image,
            injected=await self._guest.find(image, labels.owner_labels(self._node, self._here)),
            labels=marks,
            allowed=self._allowed,
        )
        if self.name == "podman" and profile.runtime is not None:
            await self._check_only_runtime(profile.runtime)
        return profile

    async def _check_only_runtime(self, wanted: str) -> None:
        """Raise `Unsupported` unless the engine runs everything with this one: Podman takes no other by request."""
        info = await self._client.ask("describe itself", lambda docker: docker.system.info())
        if info.get("DefaultRuntime") != wanted:
            raise Unsupported(
                f"podman runs containers with {info.get('DefaultRuntime')}, not {wanted};"
                f" start its service with --runtime {wanted}"
            )

    async def _hold_root(self, image: Image) -> Image:
        """Return the image with what of it counts as written; raise `Unsupported` if nothing holds a root to a size."""
        if self.name != "docker":
            raise Unsupported(
                f"{self.name} does not tell that it holds a root to a size, so root_bytes cannot be had; use engine docker"
            )
        info = await self._client.ask("describe itself", lambda docker: docker.system.info())
        is_held, found = root_quota(info)
        if not is_held:
            raise Unsupported(f"{found}, so root_bytes cannot be had; {ROOT_QUOTA_FIX}")
        # There the whole root has that size, which begins as the image.
        return (
            replace(image, counted_bytes=image.size_bytes) if found.startswith("btrfs") else image
        )

    async def _check_ids(self) -> None:
        """Raise `Unsupported` if users of containers are others outside: files of a workspace would be nobody's."""
        info = await self._client.ask("describe itself", lambda docker: docker.system.info())
        options = [str(each) for each in info.get("SecurityOptions") or ()]
        if any(name in each for each in options for name in ("userns", "rootless=true")):
            raise Unsupported(
                f"{self.name} maps the users of containers, so that they could not use a workspace that is kept;"
                " name a volume of its own instead"
            )

    async def _find_volume(self, name: str) -> None:
        """Raise `InvalidRequest` unless there is such a volume: an engine would make one of any name."""
        try:
            volume = await self._client.ask(
                "find a volume", lambda docker: docker.volumes.get(name)
            )
            await self._client.ask("find a volume", lambda _docker: volume.show())
        except NotFound as error:
            raise InvalidRequest(
                f"there is no volume {name!r}; make it first, it is its owner's to keep",
                volume=name,
            ) from error

    async def _make(self, spec: SandboxSpec, watch: Watch) -> _Resident:
        """Make a container; whatever fails, nothing is left."""
        image = await self._images.find(spec, self._settings)
        marks = labels.labels_of(spec, self._node, self._here)
        if self._settings.own_ids:
            marks |= await own_ids.choose_user(self._client)
        profile = await self._decide(spec, image, marks)
        name = f"atoll-{spec.id}"
        watch.spare(name)
        async with self._turn():
            container = await self._create_container(spec, name, profile, watch)
            try:
                wall = self._wall(spec, profile, container, watch)
                resident = await self._start(spec, profile, wall, container)
            except BaseException as error:
                failed = await _clear_away(self._client, name, watch, error)
                if failed is not None and isinstance(error, AtollError):
                    raise Unavailable(f"{error.message}; besides, {failed.message}") from error
                raise
        resident.sandbox.image_command = image.command
        return resident

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        """Wait for one's turn to start a container, but not behind others for which the engine hangs."""
        await self._client.ask(
            "start others before", lambda _docker: self._starting.acquire(), seconds=math.inf
        )
        try:
            yield
        finally:
            self._starting.release()

    def _wall(
        self,
        spec: SandboxSpec,
        profile: Profile,
        container: aiodocker.containers.DockerContainer,
        watch: Watch,
    ) -> ContainerWall:
        volume = None if profile.own_volume is None else str(profile.own_volume["Name"])
        name = f"atoll-{spec.id}"
        wall = ContainerWall(self._client, container, name, volume=volume, workspace=spec.workspace)
        wall.on_leftover = watch.remove_later
        return wall

    async def _make_again(self, spec: SandboxSpec, watch: Watch) -> _Resident:
        """Start a container that was kept; one that is gone, or would be made otherwise now, is made anew if it held nothing."""
        name = f"atoll-{spec.id}"
        kept = await self._inspect(name)
        changed = ["it is gone"]
        if kept is not None:
            profile = await self._profile_of(spec, kept)
            # It may still run, of a program that was killed; what ran in it is over.
            kept = await self._with_runtime(profile, kept)
            changed = [*await self._end_kept(spec, name), *differences_in_shape(profile, kept)]
            if not changed:
                return await self._start_kept(spec, profile, str(kept["Id"]), watch)
        if not (spec.container or ContainerOptions()).read_only_root:
            raise _cannot_resume(spec, changed)
        # Of one that is gone its volume may be left.
        watch.remove_later(name)
        await watch.remove_leftovers()
        return await self._make(spec, watch)

    async def _end_kept(self, spec: SandboxSpec, name: str) -> Sequence[str]:
        """Stop a container; return what keeps it from being started."""
        await stop_container(self._client, name)
        assert spec.workspace is not None
        try:
            await anyio.to_thread.run_sync(settle, spec.workspace, _LET_GO_SECONDS)
        except Unavailable as error:
            # Podman may not unmount what has ended by itself before that is removed.
            return [error.message]
        return []

    async def _start_kept(
        self, spec: SandboxSpec, profile: Profile, container_id: str, watch: Watch
    ) -> _Resident:
        """Start a container; whatever fails, it is as it was."""
        container = self._client.docker().containers.container(container_id)
        async with self._turn():
            try:
                wall = self._wall(spec, profile, container, watch)
                return await self._start(spec, profile, wall, container)
            except BaseException:
                with anyio.CancelScope(shield=True), suppress(AtollError):
                    # One that hangs has had its time.
                    if await self._client.is_alive():
                        await stop_container(self._client, container_id)
                raise

    async def _inspect(self, name: str) -> Mapping[str, Any] | None:
        """Return what the engine says of a container; None if there is none."""
        try:
            container = await self._client.ask(
                "find a container", lambda docker: docker.containers.get(name)
            )
            facts: Mapping[str, Any] = await self._client.ask(
                "inspect a container", lambda _docker: container.show()
            )
        except NotFound:
            return None
        return facts

    async def _profile_of(self, spec: SandboxSpec, facts: Mapping[str, Any]) -> Profile:
        """Return what a container that was kept has to be; raises `Conflict` if it is somebody else's."""
        marks = labels.own_labels(facts["Config"].get("Labels") or {}, spec, self._node)
        return await self._decide(spec, await self._images.inspect(facts["Image"]), marks)

    async def _start(
        self,
        spec: SandboxSpec,
        profile: Profile,
        wall: ContainerWall,
        container: aiodocker.containers.DockerContainer,
    ) -> _Resident:
        """Attach, start, greet, attest."""
        with await anyio.to_thread.run_sync(HeldSources, spec.mounts) as sources:
            return await self._start_with(sources, spec, profile, wall, container)

    async def _start_with(
        self,
        sources: HeldSources,
        spec: SandboxSpec,
        profile: Profile,
        wall: ContainerWall,
        container: aiodocker.containers.DockerContainer,
    ) -> _Resident:
        streams = await self._attach_and_start(spec, container)
        try:
            sandbox = await self._client.ask(
                "start a container", lambda _docker: self._greet(spec, profile, streams, wall)
            )
        except BaseException:
            await streams.close()
            raise
        try:
            pid = await self._attest(profile, container, sandbox)
            if spec.mounts:
                rest = (wall.id, profile.runtime, self._allowed.mountable)
                await anyio.to_thread.run_sync(attest_sources, sources, pid, *rest)
            wall.watch(pid)
        except BaseException:
            # What is left is cleared away by whoever asked.
            await sandbox.abandon()
            await streams.close()
            raise
        return _Resident(sandbox, streams, wall, is_persistent=spec.persistent)

    async def _attach_and_start(
        self, spec: SandboxSpec, container: aiodocker.containers.DockerContainer
    ) -> AttachedStreams:
        # Podman mounts what a container has when somebody attaches to it, Docker when it is started.
        async with _mountable(spec):
            streams = await self._attach(container)
            try:
                await self._start_container(container)
            except BaseException:
                await streams.close()
                raise
            return streams

    async def _attest(
        self,
        profile: Profile,
        container: aiodocker.containers.DockerContainer,
        sandbox: StewardSandbox,
    ) -> int:
        """Return the number of the container's first process; raise `Unavailable` if it is not what it should be."""
        facts: Mapping[str, Any] = await self._client.ask(
            "inspect a container", lambda _docker: container.show()
        )
        attest(profile, await self._with_runtime(profile, facts), sandbox.hello)
        pid = int(facts["State"]["Pid"])
        if self._settings.own_ids:
            await self._attest_ids(profile, container.id, sandbox.id, pid)
        return pid

    async def _attest_ids(
        self, profile: Profile, container_id: str, sandbox_id: SandboxId, pid: int
    ) -> None:
        user = profile.body["Labels"].get(labels.USER)
        if user is not None:
            await own_ids.check_alone(self._client, user)
        look = partial(own_ids.read_host_ids, pid, container_id, profile.user, self.name)
        self._host_ids.take(sandbox_id, await anyio.to_thread.run_sync(look))

    async def _with_runtime(self, profile: Profile, facts: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return what the engine says of a container, with its runtime: Podman tells that in its own API only."""
        if self.name != "podman" or profile.runtime is None:
            return facts
        path = f"{_PODMAN_API}/containers/{facts['Id']}/json"
        own: Mapping[str, Any] = await self._client.ask(
            "inspect a container", lambda docker: docker._query_json(path, versioned_api=False)
        )
        return {**facts, "OCIRuntime": own.get("OCIRuntime")}

    async def _start_container(self, container: aiodocker.containers.DockerContainer) -> None:
        try:
            await self._client.ask("start a container", lambda _docker: container.start())
        except (NotFound, Conflict, InvalidRequest) as error:
            # A runtime that is missing, or cannot run here, is told as whatever it likes.
            raise Unavailable(error.message) from error

    async def _create_container(
        self, spec: SandboxSpec, name: str, profile: Profile, watch: Watch
    ) -> aiodocker.containers.DockerContainer:
        try:
            # Once asked, the engine makes it, whether anybody waits for the answer or not.
            with anyio.CancelScope(shield=True):
                if profile.own_volume is not None:
                    await self._make_volume(profile.own_volume)
                container = await self._client.ask(
                    "create a container",
                    lambda docker: docker.containers.create(dict(profile.body), name=name),
                )
            return container
        except Conflict as error:
            raise self._exists(spec) from error
        except BaseException as error:
            # Podman's way of saying that.
            if isinstance(error, Unavailable) and "already in use" in error.message:
                raise self._exists(spec) from error
            # The engine may have made it, or may yet, and its answer was lost.
            watch.remove_later(name, may_come=True)
            if isinstance(error, Unavailable) and self._settings.own_ids:
                raise own_ids.explain(error) from error
            if isinstance(error, NotFound):
                self._guest.forget()
                raise Unavailable(error.message) from error
            if isinstance(error, InvalidRequest):
                # The request is ours: what the engine cannot do is a matter of the machine.
                raise Unsupported(error.message) from error
            raise

    async def _make_volume(self, facts: Mapping[str, Any]) -> None:
        await self._client.ask("make a volume", lambda docker: docker.volumes.create(dict(facts)))

    async def _attach(self, container: aiodocker.containers.DockerContainer) -> AttachedStreams:
        streams = AttachedStreams(container.attach(stdin=True, stdout=True, stderr=True))
        try:
            await self._client.ask("attach to a container", lambda _docker: streams.open())
        except BaseException:
            await streams.close()
            raise
        return streams

    async def _greet(
        self,
        spec: SandboxSpec,
        profile: Profile,
        streams: AttachedStreams,
        wall: ContainerWall,
    ) -> StewardSandbox:
        env = dict(each.partition("=")[::2] for each in profile.body["Env"])
        uid = profile.user[0]
        try:
            return await StewardSandbox.open(
                spec,
                LimitsInfo(profile.limits, self._enforcement(spec, profile)),
                engine=self.name,
                transport=streams,
                wall=wall,
                can_pause=True,
                forget=self._forget,
                env=env,
                users=(str(uid), *(("sandbox",) if uid == 65532 or self._settings.own_ids else ())),
                trees=profile.trees,
            )
        except Unavailable as error:
            if streams.complaints:
                raise Unavailable(f"{error.message}; it said: {streams.complaints}") from error
            raise

    def _enforcement(self, spec: SandboxSpec, profile: Profile) -> Mapping[str, EnforcedBy]:
        held = dict(_ENFORCED_BY)
        if profile.runtime == "runsc":
            held["processes"] = "engine"
        if not counts_files(profile.runtime, self.name):
            held["inodes"] = "nothing"
        if spec.workspace is not None:
            held["workspace_bytes"] = "image"
        elif spec.container is not None and spec.container.volume is not None:
            held["workspace_bytes"] = "nothing"
        return held

    def _forget(self, sandbox_id: SandboxId) -> None:
        self._residents.pop(sandbox_id, None)
        self._host_ids.give_back(sandbox_id)

    # --- watching ----------------------------------------------------------------------------------------

    def _hear(self, container: str, action: str) -> None:
        for resident in list(self._residents.values()):
            if resident is not None and resident.wall.id == container:
                if action == "oom":
                    resident.wall.note_out_of_memory()
                elif action in ("die", "died"):
                    self._lose(resident, "its container ended")

    def _lose_all(self) -> None:
        for resident in list(self._residents.values()):
            if resident is not None and not resident.sandbox.info.state.is_over:
                self._lose(resident, f"{self.name} does not answer any more")
                if self._watch is not None and not resident.is_persistent:
                    self._watch.remove_later(resident.wall.name)

    def _lose(self, resident: _Resident, reason: str) -> None:
        resident.sandbox.lost(reason)
        resident.streams.cut()


@asynccontextmanager
async def _mountable(spec: SandboxSpec) -> AsyncIterator[None]:
    """Have the workspace of a sandbox ready to be mounted, if it has one that is kept; then the engine has it."""
    if spec.workspace is None:
        yield
        return
    stack = ExitStack()
    try:
        await anyio.to_thread.run_sync(stack.enter_context, shown(spec.workspace))
        yield
    finally:
        stack.close()


def _check_quota(spec: SandboxSpec) -> None:
    """Raise `Unsupported` for a size that nothing would hold the workspace to."""
    volume = (spec.container or ContainerOptions()).volume
    is_asked = "workspace_bytes" in spec.limits.written and spec.limits.enforcement == "strict"
    if volume is not None and is_asked:
        raise Unsupported(
            f"volume {volume!r} is held to no size, so workspace_bytes cannot be had; leave it out, take a workspace"
            ' that is kept instead of the volume, or accept that with enforcement="best_effort" (--best-effort)',
            limits=["workspace_bytes"],
        )


def _cannot_resume(spec: SandboxSpec, changed: Sequence[str]) -> AtollError:
    message = (
        f"what sandbox {spec.id} wrote to its root is in a container that cannot be started: {'; '.join(changed)};"
        " destroy it, and create a new one with its workspace"
    )
    return (NotFound if changed == ["it is gone"] else Conflict)(message, sandbox=spec.id)


async def _clear_away(
    client: EngineClient, container: str, watch: Watch, reason: BaseException
) -> AtollError | None:
    """Remove a container; one that cannot be removed now is later, and the answer says why."""
    failed = None
    with anyio.CancelScope(shield=True):
        watch.remove_later(container)
        # One that hangs has had its time.
        is_silent = isinstance(reason, AtollError) and reason.details.get("is_silent", False)
        if not is_silent and await client.is_alive():
            failed = await _outcome(watch)
    return failed


async def _outcome(watch: Watch) -> AtollError | None:
    try:
        await watch.remove_leftovers()
    except AtollError as error:
        return error
    return None
