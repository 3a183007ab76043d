"""A certificate authority of one sandbox's own, so that TLS to some hosts can be ended in the proxy.

Its key is made here and never leaves this process; what the sandbox gets is the certificate, which is good for the hosts of its policy alone. Loaded
only where `cryptography` is installed.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Network, IPv6Network, ip_network

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from atoll.errors import InvalidRequest
from atoll.model.hosts import Host, HostPattern, parse_host

AUTHORITY_DAYS = 30
LEAF_DAYS = 2

# Clocks inside are the machine's, but some clients compare with times that were rounded.
_EARLIER = timedelta(minutes=10)
_MOST_LEAVES = 256
_EVERYWHERE = (ip_network("0.0.0.0/0"), ip_network("::/0"))


class Authority:
    """Signs certificates for hosts that match one of its patterns, and for no others."""

    def __init__(
        self,
        patterns: Sequence[HostPattern],
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.patterns = tuple(patterns)
        self._now = now
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._leaf_key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name(
            [x509.NameAttribute(NameOID.COMMON_NAME, "Atoll: the way out of this sandbox")]
        )
        self._ends = now() + timedelta(days=AUTHORITY_DAYS)
        self._certificate = self._sign_itself()
        self._contexts: dict[Host, tuple[datetime, ssl.SSLContext]] = {}

    @property
    def certificate(self) -> str:
        """The certificate that the sandbox has to trust, as PEM."""
        return _pem(self._certificate).decode()

    @property
    def is_old(self) -> bool:
        """Whether the next leaf would outlive it."""
        return self._now() + timedelta(days=LEAF_DAYS) > self._ends

    def context(self, host: Host) -> ssl.SSLContext:
        """Return what ends TLS for a host; raises `InvalidRequest` for one that is not its own."""
        expires, context = self._contexts.get(host, (None, None))
        if context is not None and expires is not None and expires > self._now() + _EARLIER:
            return context
        if not any(pattern.matches(host) for pattern in self.patterns):
            raise InvalidRequest(f"this authority does not speak for {host}")
        if len(self._contexts) >= _MOST_LEAVES:
            # Names below a star are the sandbox's to make up.
            self._contexts.clear()
        expires = min(self._now() + timedelta(days=LEAF_DAYS), self._ends)
        made = self._make_context(host, self._sign(host, expires))
        self._contexts[host] = (expires, made)
        return made

    def _sign_itself(self) -> x509.Certificate:
        identifier = x509.SubjectKeyIdentifier.from_public_key(self._key.public_key())
        builder = self._builder(self._name, self._key.public_key(), self._ends)
        return (
            builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), True)
            .add_extension(_usage(signs_certificates=True), True)
            .add_extension(identifier, False)
            .add_extension(_constraints(self.patterns), True)
            .sign(self._key, hashes.SHA256())
        )

    def _sign(self, host: Host, expires: datetime) -> x509.Certificate:
        usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        # Without a name of its own: the one that counts may be longer than such a name can be.
        builder = self._builder(x509.Name([]), self._leaf_key.public_key(), expires)
        return (
            builder.add_extension(x509.SubjectAlternativeName([_general_name(host)]), True)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), True)
            .add_extension(_usage(signs_certificates=False), True)
            .add_extension(usage, False)
            .add_extension(issuer, False)
            .sign(self._key, hashes.SHA256())
        )

    def _builder(
        self, subject: x509.Name, key: ec.EllipticCurvePublicKey, expires: datetime
    ) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(self._now() - _EARLIER)
            .not_valid_after(expires)
        )

    def _make_context(self, host: Host, certificate: x509.Certificate) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        context.sni_callback = _name_check(host)
        key = self._leaf_key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        _load_chain(context, _pem(certificate) + _pem(self._certificate), key)
        return context


def _name_check(
    host: Host,
) -> Callable[[ssl.SSLObject | ssl.SSLSocket, str | None, ssl.SSLContext], int | None]:
    """Return what ends a handshake that asks for another name than the CONNECT did."""

    def check(_: object, name: str | None, __: object) -> int | None:
        try:
            asked = None if name is None else parse_host(name)
        except InvalidRequest:
            return ssl.ALERT_DESCRIPTION_UNRECOGNIZED_NAME
        if asked == host or (asked is None and host.address is not None):
            return None
        return ssl.ALERT_DESCRIPTION_UNRECOGNIZED_NAME

    return check


def _constraints(patterns: Sequence[HostPattern]) -> x509.NameConstraints:
    """Return the hosts that it may sign for. A kind of name that is not mentioned would be free."""
    permitted = [_subtree(pattern.host) for pattern in patterns]
    excluded: list[x509.GeneralName] = []
    if not any(isinstance(each, x509.IPAddress) for each in permitted):
        excluded += [x509.IPAddress(network) for network in _EVERYWHERE]
    if not any(isinstance(each, x509.DNSName) for each in permitted):
        excluded.append(x509.DNSName(""))
    return x509.NameConstraints(permitted, excluded or None)


def _subtree(host: Host) -> x509.GeneralName:
    if host.address is None:
        return x509.DNSName(host.name)
    network = ip_network(host.address)
    assert isinstance(network, IPv4Network | IPv6Network)
    return x509.IPAddress(network)


def _general_name(host: Host) -> x509.GeneralName:
    return x509.DNSName(host.name) if host.address is None else x509.IPAddress(host.address)


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _load_chain(context: ssl.SSLContext, chain: bytes, key: bytes) -> None:
    """Load a certificate and its key, which `ssl` takes from files only: here from pipes, which no disk ever sees."""
    with ExitStack() as opened:
        paths = [f"/proc/self/fd/{_filled_pipe(data, opened)}" for data in (chain, key)]
        context.load_cert_chain(*paths)


def _filled_pipe(data: bytes, opened: ExitStack) -> int:
    reader, writer = os.pipe()
    opened.callback(os.close, reader)
    try:
        # A pipe takes 4 KiB at least without anybody reading; both are shorter.
        os.set_blocking(writer, False)
        if os.write(writer, data) != len(data):
            raise OSError("a certificate does not fit into a pipe")
    finally:
        os.close(writer)
    return reader
