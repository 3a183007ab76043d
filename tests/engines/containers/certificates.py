"""Certificates for both ends of a connection, in the files that Docker gives them."""

from __future__ import annotations

import ipaddress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_DAY = timedelta(days=1)
_USES = {"daemon": ExtendedKeyUsageOID.SERVER_AUTH, "client": ExtendedKeyUsageOID.CLIENT_AUTH}


class Authority:
    """Signs certificates; whoever trusts it trusts those."""

    def __init__(self, name: str) -> None:
        self._name = _name(name)
        self._key = ec.generate_private_key(ec.SECP256R1())
        public = self._key.public_key()
        self.certificate = (
            _builder(self._name, self._name, public)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), True)
            .add_extension(_usage(signs_certificates=True), True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), False)
            .sign(self._key, hashes.SHA256())
        )

    def write(
        self,
        folder: Path,
        use: str,
        *,
        trusted: Authority | None = None,
        password: bytes | None = None,
        earlier: timedelta = timedelta(),
    ) -> Path:
        """Write a certificate for a `daemon` on the loopback or a `client`, its key, and the authority that is `trusted`.

        Returns the folder, which is made.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
        certificate = (
            _builder(_name(use), self._name, key.public_key(), earlier)
            .add_extension(x509.SubjectAlternativeName([address]), False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), True)
            .add_extension(_usage(signs_certificates=False), True)
            .add_extension(x509.ExtendedKeyUsage([_USES[use]]), False)
            .add_extension(issuer, False)
            .sign(self._key, hashes.SHA256())
        )
        folder.mkdir()
        (folder / "ca.pem").write_bytes(_pem((trusted or self).certificate))
        (folder / "cert.pem").write_bytes(_pem(certificate))
        (folder / "key.pem").write_bytes(_key_pem(key, password))
        return folder


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    earlier: timedelta = timedelta(),
) -> x509.CertificateBuilder:
    now = datetime.now(UTC) - earlier
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _DAY)
        .not_valid_after(now + _DAY)
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


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


def _key_pem(key: ec.EllipticCurvePrivateKey, password: bytes | None) -> bytes:
    lock: serialization.KeySerializationEncryption = serialization.NoEncryption()
    if password is not None:
        lock = serialization.BestAvailableEncryption(password)
    form = serialization.PrivateFormat.PKCS8
    return key.private_bytes(serialization.Encoding.PEM, form, lock)
