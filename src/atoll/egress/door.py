"""The node's handle on the proxy process: starts it with the first sandbox, and again whenever it ends.

May be used from any thread; calls take microseconds, but for `change` and `introduce`, which wait until the proxy has done it. While there is no proxy nothing
answers on the listeners: closed.
"""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from atoll.egress import control
from atoll.egress.peers import Peer
from atoll.errors import AtollError, InvalidRequest, Unavailable
from atoll.model.attempt import AttemptInfo
from atoll.model.hosts import Host
from atoll.model.ids import SandboxId
from atoll.model.network import Network
from atoll.model.secret import SecretUse

# Whom the proxy becomes where the node is root. Nobody else's, and never a sandbox's.
UNPRIVILEGED_UID = 65_533

_log = logging.getLogger(__name__)

_CHANGE_SECONDS = 10.0
_CERTIFICATE_SECONDS = 30.0  # of which the first sandbox of a slow machine may need a few
# After so long it is asked for a sign of life, and after so many without one it is replaced.
_SILENT_SECONDS = 10.0
_MOST_PINGS = 3
_FIRST_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 1.0
# One that lived this long did not die of its beginning.
_STEADY_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class OfferedListener:
    """A listening socket on a sandbox's loopback: for HTTP, or with a `place` for that one alone."""

    socket: socket.socket
    place: tuple[Host, int] | None = None

    def as_json(self) -> dict[str, Any]:
        """Return what the proxy is told of it."""
        if self.place is None:
            return {"kind": "http"}
        return {"kind": "tcp", "host": str(self.place[0]), "port": self.place[1]}


@dataclass(frozen=True, slots=True)
class StreamWish:
    """What the proxy asks for: a stream to a port of `peer` for `asker`. Nothing about it is to be believed."""

    asker: SandboxId
    peer: SandboxId
    port: int


# Takes the stream, or None and why there is none; may take a moment.
StreamAnswer = Callable[[socket.socket | None, str], None]
Wished = Callable[[StreamWish, StreamAnswer], None]


def _refuse(_wish: StreamWish, answer: StreamAnswer) -> None:
    answer(None, "this node has no private networks")


@dataclass(slots=True)
class _Guest:
    """What has to be told again to the next proxy."""

    network: Network
    listeners: Sequence[OfferedListener]
    used: list[int]
    secrets: Sequence[SecretUse]
    peers: Mapping[str, Peer] | None = None
    certificate: str | None = None
    version: int = 0
    changed: threading.Condition = field(default_factory=threading.Condition)
    # By their own numbers: of two that are under way, the later one may be done first.
    in_force: set[int] = field(default_factory=set)
    is_gone: bool = False

    def close(self) -> None:
        for listener in self.listeners:
            listener.socket.close()
        with self.changed:
            self.is_gone = True
            self.changed.notify_all()


class EgressDoor:
    """The one way out of a node, for all its sandboxes."""

    def __init__(
        self,
        attempted: Callable[[Sequence[AttemptInfo]], None],
        *,
        opened: Mapping[str, Sequence[str]] | None = None,
        servers: Sequence[str] = (),
        trusted: str | None = None,
        certified: Callable[[SandboxId, str], None] = lambda _sandbox, _certificate: None,
        wished: Wished = _refuse,
    ) -> None:
        """`attempted` is told of attempts, in the door's own thread.

        `opened`, `servers` and `trusted` are the operator's: the last are the certificates, as PEM, that hosts are verified by
        in place of the machine's. `certified` is told, in the same thread, of each certificate that a sandbox has to trust from now on, as PEM.
        `wished` is told, there too, of each stream to another sandbox that the proxy asks for, and sees to an answer.
        """
        self._attempted = attempted
        self._certified = certified
        self._wished = wished
        self._configuration: dict[str, Any] = {
            "op": "configure",
            "opened": {name: list(networks) for name, networks in (opened or {}).items()},
            "servers": list(servers),
            "trusted": trusted,
        }
        self._lock = threading.RLock()
        self._guests: dict[SandboxId, _Guest] = {}
        self._proxy: _ProxyProcess | None = None
        self._thread: threading.Thread | None = None
        self._is_closed = threading.Event()

    @property
    def pid(self) -> int | None:
        """The proxy's process id, None while there is none."""
        proxy = self._proxy
        return None if proxy is None else proxy.pid

    def add(
        self,
        sandbox: SandboxId,
        network: Network,
        listeners: Sequence[OfferedListener],
        used: tuple[int, int] = (0, 0),
        secrets: Sequence[SecretUse] = (),
    ) -> None:
        """Serve a sandbox on its listeners, which are the door's from now on; `used` are bytes up and down.

        If it has secrets, or rules about requests, there is a `certificate` that it has to trust.

        Raises:
            Unavailable: the door is closed, or no process can be started.
        """
        guest = _Guest(network, tuple(listeners), list(used), tuple(secrets))
        with self._lock:
            if self._is_closed.is_set():
                raise Unavailable("the egress proxy is closed; open the node anew")
            if sandbox in self._guests:
                raise InvalidRequest(f"sandbox {sandbox} is served already; remove it first")
            self._guests[sandbox] = guest
            try:
                if self._thread is None:
                    self._start_watching()
                elif self._proxy is not None:
                    self._proxy.add(sandbox, guest)
            except BaseException:
                del self._guests[sandbox]
                raise

    def open_also(self, opened: Mapping[str, Sequence[str]]) -> None:
        """Let more names resolve to networks that are kept closed otherwise, for all sandboxes."""
        with self._lock:
            known = self._configuration["opened"]
            if all(known.get(name) == list(networks) for name, networks in opened.items()):
                return
            more = {name: list(networks) for name, networks in opened.items()}
            self._configuration = {**self._configuration, "opened": {**known, **more}}
            if self._proxy is not None:
                self._proxy.send(self._configuration)

    def certificate(self, sandbox: SandboxId) -> str:
        """Return the certificate that a sandbox has to trust, as soon as there is one.

        Raises:
            Unavailable: there is none: its network needs none, or `cryptography` is not installed.
        """
        with self._lock:
            guest = self._find(sandbox)
        with guest.changed:
            if guest.changed.wait_for(lambda: guest.certificate, _CERTIFICATE_SECONDS) is None:
                raise Unavailable("the egress proxy has made no certificate; try again")
        assert guest.certificate is not None
        return guest.certificate

    def change(
        self, sandbox: SandboxId, network: Network, secrets: Sequence[SecretUse] | None = None
    ) -> None:
        """Put other rules in force for a sandbox; when this returns, nothing that they forbid is under way.

        With `secrets` it has these from now on, and no request goes on that carries another.

        Raises:
            Unavailable: the proxy did not say that it has done so; what it then is asked for is not known.
        """
        with self._lock:
            guest = self._find(sandbox)
            guest.network = network
            guest.secrets = guest.secrets if secrets is None else tuple(secrets)
            order = {
                "op": "change",
                "sandbox": sandbox,
                "network": network.to_json(),
                "secrets": [use.to_json() for use in guest.secrets],
            }
            ordered = self._order(guest, order)
        self._see_done(guest, ordered)

    def introduce(
        self,
        sandbox: SandboxId,
        private: str | None,
        peers: Mapping[str, Peer],
        coming: Sequence[OfferedListener] = (),
        leaving: Sequence[OfferedListener] = (),
    ) -> None:
        """Let a sandbox have these peers and no others; when this returns, no stream to another one is under way.

        Listeners that come are the door's from now on, and those that leave are closed. A sandbox that is not served any more is fine.

        Raises:
            Unavailable: as `change` does.
        """
        with self._lock:
            guest = self._guests.get(sandbox)
            if guest is None:
                for listener in coming:
                    listener.socket.close()
                return
            guest.peers = dict(peers)
            left = [each for each in guest.listeners if each not in leaving]
            guest.listeners = (*left, *coming)
            order = {
                "op": "peers",
                "sandbox": sandbox,
                "private": private,
                "peers": {name: peer.to_json() for name, peer in peers.items()},
                "listeners": [each.as_json() for each in coming],
                "leaving": [each.as_json() for each in leaving],
            }
            ordered = self._order(guest, order, [each.socket.fileno() for each in coming])
            for listener in leaving:
                listener.socket.close()
        self._see_done(guest, ordered)

    def _order(
        self, guest: _Guest, order: dict[str, Any], fds: Sequence[int] = ()
    ) -> tuple[_ProxyProcess, int] | None:
        """Send an order whose effect is waited for; None if the next proxy hears of it first."""
        guest.version += 1
        if self._proxy is None:
            return None
        self._proxy.send({**order, "version": guest.version}, fds)
        return self._proxy, guest.version

    def _see_done(self, guest: _Guest, ordered: tuple[_ProxyProcess, int] | None) -> None:
        if ordered is None:
            return
        proxy, version = ordered
        with guest.changed:
            done = guest.changed.wait_for(
                lambda: version in guest.in_force or guest.is_gone or proxy.has_ended,
                _CHANGE_SECONDS,
            )
            guest.in_force.discard(version)
        if not done:
            proxy.kill()  # rather no way out than the old one
            raise Unavailable("the egress proxy did not follow the change of rules; it is replaced")

    def _find(self, sandbox: SandboxId) -> _Guest:
        guest = self._guests.get(sandbox)
        if guest is None:
            raise InvalidRequest(f"sandbox {sandbox} is not served; add it first")
        return guest

    def remove(self, sandbox: SandboxId) -> None:
        """Stop serving a sandbox and close its listeners. Safe to call twice."""
        with self._lock:
            guest = self._guests.pop(sandbox, None)
            if guest is None:
                return
            guest.close()
            if self._proxy is not None:
                self._proxy.send({"op": "remove", "sandbox": sandbox})

    def used(self, sandbox: SandboxId) -> tuple[int, int]:
        """Return how many bytes a sandbox has sent and fetched, for whoever serves it next."""
        with self._lock:
            guest = self._guests.get(sandbox)
            return (0, 0) if guest is None else (guest.used[0], guest.used[1])

    def close(self) -> None:
        """End the proxy and let go of all listeners. Safe to call twice."""
        with self._lock:
            self._is_closed.set()
            proxy, thread = self._proxy, self._thread
            for guest in self._guests.values():
                guest.close()
            self._guests.clear()
        if proxy is not None:
            proxy.end()
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    # --- the door's own thread ----------------------------------------------------------------------------

    def _start_watching(self) -> None:
        self._start_proxy()
        self._thread = threading.Thread(target=self._watch, name="atoll-egress", daemon=True)
        self._thread.start()

    def _start_proxy(self) -> None:
        """Start a process, and tell it all that it has to know."""
        proxy = _ProxyProcess()
        try:
            proxy.send(self._configuration)
            for sandbox, guest in self._guests.items():
                proxy.add(sandbox, guest)
        except BaseException:
            proxy.kill()
            raise
        self._proxy = proxy

    def _watch(self) -> None:
        """Read what the proxy says, and replace it when it has ended."""
        pause = _FIRST_PAUSE_SECONDS
        while not self._is_closed.is_set():
            begun = time.monotonic()
            proxy = self._proxy
            if proxy is not None:
                self._listen_to(proxy)
                if self._is_closed.is_set():
                    return
                _log.error("egress.proxy_ended", extra={"pid": proxy.pid})
            if time.monotonic() - begun > _STEADY_SECONDS:
                pause = _FIRST_PAUSE_SECONDS
            self._is_closed.wait(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
            self._replace()

    def _replace(self) -> None:
        with self._lock:
            if self._is_closed.is_set():
                return
            try:
                self._start_proxy()
            except AtollError as error:
                _log.error("egress.proxy_not_started", extra={"error": str(error)})

    def _listen_to(self, proxy: _ProxyProcess) -> None:
        try:
            while (event := proxy.receive()) is not None:
                self._take(event, proxy)
        except (AtollError, KeyError, TypeError, ValueError) as error:
            # It deals with what is hostile; whatever is strange about it now ends it.
            _log.error("egress.proxy_strange", extra={"error": str(error)})
        proxy.kill()
        with self._lock:
            self._proxy = None
            proxy.close()
            guests = list(self._guests.values())
        for guest in guests:
            with guest.changed:
                guest.changed.notify_all()

    def _take(self, event: dict[str, Any], proxy: _ProxyProcess) -> None:
        match event["event"]:
            case "attempts":
                attempts = [AttemptInfo.from_json(each) for each in event["attempts"]]
                self._count(attempts)
                self._hand_on(attempts)
            case "changed":
                self._note_change(SandboxId(event["sandbox"]), int(event["version"]))
            case "certified":
                self._note_certificate(SandboxId(event["sandbox"]), str(event["certificate"]))
            case "reach":
                asker, peer = SandboxId(str(event["sandbox"])), SandboxId(str(event["peer"]))
                wish = StreamWish(asker, peer, int(event["port"]))
                self._hear_wish(wish, partial(proxy.answer, int(event["number"])))
            case "fault":
                _log.error("egress.proxy_fault", extra={"text": str(event["text"])})
            case "ready" | "health":
                pass
            case _:
                raise InvalidRequest("the proxy says what it cannot say")

    def _hear_wish(self, wish: StreamWish, answer: StreamAnswer) -> None:
        try:
            self._wished(wish, answer)
        except Exception:  # noqa: BLE001 - as with attempts
            _log.exception("egress.wish_lost")
            answer(None, "the node made a mistake")

    def _hand_on(self, attempts: Sequence[AttemptInfo]) -> None:
        try:
            self._attempted(attempts)
        except Exception:  # noqa: BLE001 - the node's fault must not leave the proxy without a listener
            _log.exception("egress.attempts_lost")

    def _count(self, attempts: Sequence[AttemptInfo]) -> None:
        with self._lock:
            for attempt in attempts:
                guest = self._guests.get(attempt.sandbox)
                if guest is not None:
                    guest.used[0] += attempt.up_bytes
                    guest.used[1] += attempt.down_bytes

    def _note_certificate(self, sandbox: SandboxId, certificate: str) -> None:
        with self._lock:
            guest = self._guests.get(sandbox)
        if guest is None:
            return
        with guest.changed:
            guest.certificate = certificate
            guest.changed.notify_all()
        try:
            self._certified(sandbox, certificate)
        except (AtollError, OSError):
            # A fault of the node's, which must not leave the proxy without a listener.
            _log.exception("egress.certificate_lost")

    def _note_change(self, sandbox: SandboxId, version: int) -> None:
        with self._lock:
            guest = self._guests.get(sandbox)
        if guest is not None:
            with guest.changed:
                if 0 < version <= guest.version:
                    guest.in_force.add(version)
                guest.changed.notify_all()


class _ProxyProcess:
    """One proxy, from its start to its end."""

    def __init__(self) -> None:
        ours, theirs = control.socket_pair()
        ours.settimeout(_SILENT_SECONDS)
        self._channel = ours
        self.has_ended = False
        try:
            with theirs:
                self._process = _start(theirs)
        except BaseException:
            ours.close()
            raise
        self.pid = self._process.pid

    def add(self, sandbox: SandboxId, guest: _Guest) -> None:
        order = {
            "op": "add",
            "sandbox": sandbox,
            "network": guest.network.to_json(),
            "listeners": [listener.as_json() for listener in guest.listeners],
            "used": guest.used,
            "secrets": [use.to_json() for use in guest.secrets],
            "private": guest.network.private,
            "peers": None
            if guest.peers is None
            else {name: peer.to_json() for name, peer in guest.peers.items()},
        }
        self.send(order, [listener.socket.fileno() for listener in guest.listeners])

    def answer(self, number: int, stream: socket.socket | None, refusal: str) -> None:
        """Hand over a stream that it has asked for, or say why there is none; our copy is closed."""
        order = {"op": "reached", "number": number, "refusal": refusal}
        try:
            self.send(order, [] if stream is None else [stream.fileno()])
        finally:
            if stream is not None:
                stream.close()

    def send(self, order: dict[str, Any], fds: Sequence[int] = ()) -> None:
        """Send an order; one that cannot be sent is for a proxy that ends, and the next one is told anyway."""
        try:
            control.send(self._channel, order, fds)
        except OSError:
            self.kill()

    def receive(self) -> dict[str, Any] | None:
        """Return the next event, asking for a sign of life now and then; None at the end."""
        for _ in range(_MOST_PINGS):
            try:
                received = control.receive(self._channel)
            except TimeoutError:
                self.send({"op": "ping"})
                continue
            except OSError:
                return None
            if received is None:
                return None
            event, fds = received
            control.close_all(fds)  # there should be none
            return event
        return None

    def end(self) -> None:
        """Have it end by itself, which it does at once."""
        try:
            self._channel.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # it has ended

    def close(self) -> None:
        """Let go of it."""
        self._channel.close()

    def kill(self) -> None:
        """End it, and see it gone. Safe to call twice."""
        self._process.kill()
        self._process.wait()
        self.has_ended = True
        self.end()


def _start(theirs: socket.socket) -> subprocess.Popen[bytes]:
    parent = os.pidfd_open(os.getpid())
    fds = (theirs.fileno(), parent)
    identity = [str(UNPRIVILEGED_UID)] if os.geteuid() == 0 else []
    try:
        return subprocess.Popen(
            [sys.executable, "-I", "-m", "atoll.egress", *map(str, fds), *identity],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={},
            cwd="/",
            pass_fds=fds,
            start_new_session=True,
        )
    except OSError as error:
        raise Unavailable(
            f"the egress proxy cannot be started: {error.strerror}; nothing gets out until it can"
        ) from error
    finally:
        os.close(parent)
