"""The way out of a node's sandboxes: each has listeners on its own loopback, on which the one proxy process answers.

A sandbox learns of it by its environment (`HTTP_PROXY` and the like) and, for plain TCP, by names in its /etc/hosts, so that
programs inside need to know nothing. A sandbox with network `none` has no listener at all, unless it is a member of a private network.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from ipaddress import IPv4Address

import anyio
import anyio.to_thread

from atoll.egress.control import MOST_LISTENERS
from atoll.egress.door import EgressDoor, OfferedListener, StreamAnswer, StreamWish
from atoll.egress.peers import Peer
from atoll.egress.policy import Attempt, decide
from atoll.engines.contract import Feature
from atoll.errors import AtollError, Conflict, Forbidden, InvalidRequest, Unavailable, Unsupported
from atoll.model.attempt import AttemptInfo
from atoll.model.guest import GUEST
from atoll.model.hosts import Host, parse_host
from atoll.model.ids import SandboxId
from atoll.model.network import Network, NetworkLimits, NetworkMode, Rule
from atoll.model.sandbox import SandboxSpec
from atoll.model.secret import SecretUse
from atoll.node.attempt_log import AttemptLog
from atoll.node.network_files import NetworkFiles
from atoll.node.registries import (
    CERTIFICATES,
    TRUST_FILES,
    TRUST_VARIABLES,
    Registries,
    opened_hosts,
    read_registries,
    read_trusted,
)

PROXY_ADDRESS, PROXY_PORT = "127.0.0.1", 3128

_log = logging.getLogger(__name__)

_URL = f"http://{PROXY_ADDRESS}:{PROXY_PORT}"
_LOCAL = "localhost,127.0.0.1,::1"
# Programs differ in the case that they look for. What is here needs no other setting in curl, git, pip, npm, R, apt and wget.
ENVIRONMENT: Mapping[str, str] = {
    **dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), _URL),
    **dict.fromkeys(("NO_PROXY", "no_proxy"), _LOCAL),
    "NODE_USE_ENV_PROXY": "1",
    # Of Node before 22.21, which knows no such variable.
    "NODE_OPTIONS": f"--require={GUEST}/atoll_guest/node/proxied.js",
    # A system's Python may refuse installs for its own sake; in a sandbox there is nothing to be spared.
    "PIP_BREAK_SYSTEM_PACKAGES": "1",
}
# Names of plain TCP get addresses from here on, one each.
_FIRST_ADDRESS = IPv4Address("127.1.0.1")
_MOST_OWN = MOST_LISTENERS // 2
_MOST_PLACES = _MOST_OWN - 1
# An engine keeps so many descriptors in one slot.
_PER_SLOT = 8
_REMEMBERED = 1000

Listen = Callable[[int, str], Awaitable[socket.socket]]
Keep = Callable[[str, Sequence[int]], None]
Kept = Callable[[str], Sequence[int]]


@dataclass(frozen=True, slots=True)
class EgressRules:
    """What the operator says of the ways out."""

    allow_open: bool = False
    # Exact names → the private networks that they may resolve to.
    opened: Mapping[str, Sequence[str]] = field(default_factory=dict)
    dns: Sequence[str] = ()
    limits: NetworkLimits = field(default_factory=NetworkLimits)  # what there is without asking
    open_registries: bool = True
    # The operator's environment, which names the package indexes of this machine.
    environ: Mapping[str, str] = field(default_factory=dict)
    # Certificates, as PEM, by which hosts are verified whose requests are looked at; else the machine's.
    trusted: str | None = None


class Egress:
    """Ways out for the sandboxes of one node, or of one program."""

    def __init__(self, rules: EgressRules, files: NetworkFiles, attempts: AttemptLog) -> None:
        self._rules = rules
        self._files = files
        self.attempts = attempts
        # Is told of attempts in a thread of its own, after they are noted.
        self.on_attempts: Callable[[Sequence[AttemptInfo]], None] = lambda _attempts: None
        # Are told, in any thread, that a sandbox ends and that the proxy asks for a stream to another one.
        self.on_detach: Callable[[SandboxId], None] = lambda _sandbox: None
        self.on_wish: Callable[[StreamWish, StreamAnswer], None] = _refuse_stream
        self._door = EgressDoor(
            self._note,
            opened=rules.opened,
            servers=rules.dns,
            trusted=rules.trusted,
            certified=self._write_certificate,
            wished=lambda wish, answer: self.on_wish(wish, answer),
        )
        # What sandboxes trust besides the authority that the proxy makes for each.
        self._bundles: dict[SandboxId, bytes] = {}
        self._certifying = threading.Lock()
        self._reading = threading.Lock()
        self._registries: Registries | None = None
        self._served: set[SandboxId] = set()
        self._gone: deque[SandboxId] = deque(maxlen=_REMEMBERED)

    @property
    def proxy_pid(self) -> int | None:
        """The proxy's process id; None before the first sandbox with a network, and while it is replaced."""
        return self._door.pid

    # --- before there is a sandbox ---------------------------------------------------------------------------

    def prepare(
        self,
        spec: SandboxSpec,
        features: Collection[Feature],
        secrets: Sequence[SecretUse] = (),
    ) -> SandboxSpec:
        """Return the sandbox with all that its network needs inside. May take a while; in any thread.

        Of secrets, their placeholders are inside and nothing else.

        Raises:
            Unsupported: the engine has no ports.
            Forbidden: the operator does not allow it.
            InvalidRequest: more rules for plain TCP than there can be, or a secret for a host that no rule allows.
        """
        if not spec.network.has_listeners:
            return spec
        if Feature.PORTS not in features:
            raise Unsupported("this engine has no network for sandboxes; leave the network out")
        network = self._admit(spec.network)
        names = _addresses(network)
        registries = self._find_registries() if network.presets else Registries()
        _check_secrets(network.with_presets({"registries": registries.rules}), secrets)
        inner_files, env = dict(registries.files), {**ENVIRONMENT, **registries.env}
        if _is_inspected(network, secrets):
            _check_cryptography()
            bundle = self._trusted_bundle(registries)
            self._bundles[spec.id] = bundle
            inner_files = {**TRUST_FILES, **inner_files, CERTIFICATES: bundle}
            env |= TRUST_VARIABLES
        files = None
        has_peers = network.private is not None
        if names or inner_files or has_peers:
            files = self._files.write(spec.id, names, inner_files, peers=has_peers)
        placeholders = {use.name: use.placeholder for use in secrets}
        env = {**env, **spec.env, **placeholders}
        return replace(spec, network=network, env=env, network_files=files)

    def _trusted_bundle(self, registries: Registries) -> bytes:
        own = (self._rules.trusted or "").encode()
        return registries.files.get(CERTIFICATES) or read_trusted() + own

    def _admit(self, network: Network) -> Network:
        """Return a network within what the operator allows."""
        if network.mode is NetworkMode.OPEN and not self._rules.allow_open:
            raise Forbidden(
                "the operator does not allow network 'open' (setting egress.allow_open); name the hosts instead"
            )
        if len(network.tcp_places) > _MOST_PLACES:
            raise InvalidRequest(
                f"{len(network.tcp_places)} rules for plain TCP are too many; the most is {_MOST_PLACES}"
            )
        if network.dns or self._rules.dns:
            _check_dnspython()
        return replace(network, limits=_lower(network.limits, self._rules.limits))

    def _find_registries(self) -> Registries:
        with self._reading:
            if self._registries is None:
                self._registries = read_registries(self._rules.environ)
            return self._registries

    def _in_force(self, network: Network) -> Network:
        """Return a network as the proxy is told of it; may take a while."""
        if not network.presets:
            return network
        registries = self._find_registries()
        if self._rules.open_registries:
            # What the operator wrote himself about a name stands.
            opened = dict(opened_hosts(registries))
            self._door.open_also({**opened, **self._rules.opened})
        rules: Mapping[str, Sequence[Rule]] = {"registries": registries.rules}
        return network.with_presets(rules)

    # --- while there is one ----------------------------------------------------------------------------------

    async def attach(
        self,
        sandbox: SandboxId,
        network: Network,
        listen: Listen,
        keep: Keep | None = None,
        secrets: Sequence[SecretUse] = (),
    ) -> None:
        """Give a new sandbox its listeners; with `keep` the next node finds them.

        Raises:
            Unavailable: nobody could answer on them.
        """
        if not network.has_listeners:
            return
        listeners: list[OfferedListener] = []
        try:
            listeners.append(OfferedListener(await listen(PROXY_PORT, PROXY_ADDRESS)))
            addresses = _addresses(network)
            for host, port in network.tcp_places:
                offered = await listen(port, addresses[host.name])
                listeners.append(OfferedListener(offered, (host, port)))
            if keep is not None:
                keep_all(keep, "egress", [listener.socket for listener in listeners])
            await self._serve(sandbox, network, listeners, (0, 0), secrets)
        except BaseException:
            for listener in listeners:
                listener.socket.close()
            raise

    async def resume(
        self, sandbox: SandboxId, network: Network, kept: Kept, secrets: Sequence[SecretUse] = ()
    ) -> None:
        """Go on with the listeners that another node had.

        Raises:
            Unavailable: they were not kept.
        """
        sockets = take_all(kept, "egress")
        try:
            listeners = list(_recognise(sockets, self._files.names(sandbox)))
            if not listeners:
                raise Unavailable("the listeners of its network were not kept")
            used = self.attempts.used(sandbox)
            await self._serve(sandbox, network, listeners, used, secrets)
        except BaseException:
            for each in sockets:
                each.close()
            raise

    async def _serve(
        self,
        sandbox: SandboxId,
        network: Network,
        listeners: Sequence[OfferedListener],
        used: tuple[int, int],
        secrets: Sequence[SecretUse],
    ) -> None:
        inspected = _is_inspected(network, secrets)
        if network.presets or inspected or self._door.pid is None:
            await anyio.to_thread.run_sync(self._add, sandbox, network, listeners, used, secrets)
        else:
            self._add(sandbox, network, listeners, used)  # which takes less than going elsewhere
        if inspected:
            await anyio.to_thread.run_sync(self._certify, sandbox)

    def _add(
        self,
        sandbox: SandboxId,
        network: Network,
        listeners: Sequence[OfferedListener],
        used: tuple[int, int],
        secrets: Sequence[SecretUse] = (),
    ) -> None:
        self._served.add(sandbox)
        try:
            self._door.add(sandbox, self._in_force(network), listeners, used, secrets)
        except BaseException:
            self._served.discard(sandbox)
            raise

    def _certify(self, sandbox: SandboxId) -> None:
        """Return when the sandbox can trust those who stand in for hosts."""
        self._write_certificate(sandbox, self._door.certificate(sandbox))

    def _write_certificate(self, sandbox: SandboxId, certificate: str) -> None:
        if sandbox not in self._served:
            return  # it has ended meanwhile
        bundle = self._bundles.get(sandbox)
        if bundle is None:
            bundle = self._bundles[sandbox] = self._trusted_bundle(Registries())
        # The door's thread tells of the first one, too, for which a new sandbox waits.
        with self._certifying:
            self._files.replace(sandbox, CERTIFICATES, bundle + certificate.encode())

    def check_change(self, sandbox: SandboxId, old: Network, new: Network) -> Network:
        """Return the network that a sandbox gets in place of the old one.

        Raises:
            Conflict: the sandbox was made without a network.
            InvalidRequest: there is plain TCP to what it has no listener for, or a private network that it was not made for.
            Forbidden: the operator does not allow it.
        """
        if sandbox not in self._served:
            raise Conflict(
                f"sandbox {sandbox} was made without a network; make it with rules, or with an empty list of them,"
                " to change them later",
                sandbox=sandbox,
            )
        # With none its listeners would be forgotten; without rules they refuse, and what is tried is noted.
        nothing = Network(NetworkMode.RULES, dns=new.dns, limits=new.limits)
        network = self._admit(new if new.has_listeners else nothing)
        if network.private is not None and not self._files.takes_peers(sandbox):
            raise InvalidRequest(
                "a sandbox that was made without a private network cannot join one: it would not find others by"
                " their names; name the network when it is made"
            )
        if network.inspected_hosts() and sandbox not in self._bundles:
            raise InvalidRequest(
                "rules about methods or paths of https cannot be added to a sandbox that was made without any:"
                " it would not trust who looks at its requests"
            )
        added = [place for place in network.tcp_places if place not in old.tcp_places]
        if added:
            host, port = added[0]
            raise InvalidRequest(
                f"plain TCP to {host}:{port} cannot be added to a sandbox that exists; name it when one is made"
            )
        return network

    def change(
        self, sandbox: SandboxId, network: Network, secrets: Sequence[SecretUse] | None = None
    ) -> None:
        """Put a checked network, and with `secrets` these alone, in force; waits until that is so. Raises `Unavailable`."""
        self._door.change(sandbox, self._in_force(network), secrets)

    def introduce(
        self,
        sandbox: SandboxId,
        private: str | None,
        peers: Mapping[str, Peer],
        names: Mapping[str, Sequence[str]],
        coming: Sequence[OfferedListener],
        leaving: Sequence[OfferedListener],
    ) -> None:
        """Let a sandbox reach these peers and no others, and find them by address and names; waits until that is so.

        Raises:
            Unavailable: the proxy did not follow, or the names cannot be written.
        """
        self._door.introduce(sandbox, private, peers, coming, leaving)
        try:
            self._files.show_peers(sandbox, names)
        except Unavailable:
            if self.is_served(sandbox):
                raise  # else they went with it

    def is_served(self, sandbox: SandboxId) -> bool:
        """Whether a sandbox has listeners, and has not ended."""
        return sandbox in self._served

    def shown_peers(self, sandbox: SandboxId) -> Mapping[IPv4Address, str]:
        """Return the peers by address that a sandbox was last shown, by this node or another."""
        return self._files.peers(sandbox)

    def detach(self, sandbox: SandboxId) -> None:
        """Let a sandbox's way out go with it; safe to call twice, in any thread."""
        self._door.remove(sandbox)
        if sandbox in self._served:
            self._gone.append(sandbox)
            self._served.discard(sandbox)
        self._files.remove(sandbox)
        self._bundles.pop(sandbox, None)
        self.on_detach(sandbox)

    def forget_others(self, sandboxes: Collection[str]) -> None:
        """Remove what was left of sandboxes other than these."""
        self._files.keep_only(sandboxes)

    def leave(self) -> None:
        """End the proxy; sandboxes keep what they need for the next node."""
        self._door.close()

    def close(self) -> None:
        """End the proxy, after all sandboxes; safe to call twice."""
        self._door.close()
        self._files.remove_all()

    def _note(self, attempts: Sequence[AttemptInfo]) -> None:
        # The proxy deals with what is hostile: it is not believed about sandboxes that it does not serve.
        known = [each for each in attempts if each.sandbox in self._served | set(self._gone)]
        try:
            self.attempts.note(known)
            self.on_attempts(known)
        except AtollError as error:
            _log.error("egress.attempts_not_noted", extra={"reason": error.message})


def _refuse_stream(_wish: StreamWish, answer: StreamAnswer) -> None:
    answer(None, "there are no private networks here")


def _is_inspected(network: Network, secrets: Sequence[SecretUse]) -> bool:
    """Tell whether some of its TLS ends in the proxy, so that the sandbox has to trust that."""
    return bool(secrets or network.inspected_hosts())


def _check_cryptography() -> None:
    if find_spec("cryptography") is None:
        raise Unsupported(
            "secrets, and rules about methods or paths of https, need the package cryptography;"
            " pip install 'atoll[egress]', or write 'http://' before such rules"
        )


def _check_dnspython() -> None:
    if find_spec("dns") is None:
        raise Unsupported(
            "name servers other than the machine's (dns) need the package dnspython;"
            " pip install 'atoll[egress]', or leave them out"
        )


def _check_secrets(network: Network, secrets: Sequence[SecretUse]) -> None:
    for use in secrets:
        for host, port in use.binding.hosts:
            verdict = decide(network, Attempt("https", host, port))
            if not (verdict.allowed or verdict.inspect):
                raise InvalidRequest(
                    f"secret {use.name} is for {host}:{port}, which no rule of the network allows;"
                    f" add '{host}:{port}' to the rules",
                    secret=use.name,
                )


def _addresses(network: Network) -> Mapping[str, str]:
    """Return an address for each name that has plain TCP, by their order."""
    names = dict.fromkeys(host.name for host, _port in network.tcp_places)
    return {name: str(_FIRST_ADDRESS + number) for number, name in enumerate(names)}


def _lower(asked: NetworkLimits, most: NetworkLimits) -> NetworkLimits:
    """Return limits that are within both."""
    return NetworkLimits(
        min(asked.connections, most.connections),
        min(asked.connections_per_second, most.connections_per_second),
        _lower_bytes(asked.upload_bytes, most.upload_bytes),
        _lower_bytes(asked.download_bytes, most.download_bytes),
    )


def _lower_bytes(asked: int | None, most: int | None) -> int | None:
    given = [each for each in (asked, most) if each is not None]
    return min(given, default=None)


def keep_all(keep: Keep, group: str, sockets: Sequence[socket.socket], before: int = 0) -> None:
    """Have listeners outlive this node under the name of a group, of which so many were kept before."""
    fds = [each.fileno() for each in sockets]
    for start in range(0, max(len(fds), before), _PER_SLOT):
        keep(f"{group}-{start // _PER_SLOT}", fds[start : start + _PER_SLOT])


def take_all(kept: Kept, group: str) -> Sequence[socket.socket]:
    """Return the listeners of a group that another node had."""
    slots = [f"{group}-{number}" for number in range(_MOST_OWN // _PER_SLOT)]
    return [socket.socket(fileno=fd) for slot in slots for fd in kept(slot)]


def _recognise(
    sockets: Sequence[socket.socket], names: Mapping[IPv4Address, str]
) -> Iterator[OfferedListener]:
    """Yield kept listeners with the places that their addresses stand for."""
    for each in sockets:
        address, port = each.getsockname()
        if address == PROXY_ADDRESS:
            yield OfferedListener(each)
        elif (name := names.get(IPv4Address(address))) is not None:
            place: tuple[Host, int] = parse_host(name), port
            yield OfferedListener(each, place)
        else:
            each.close()  # nobody knows any more what it stood for
