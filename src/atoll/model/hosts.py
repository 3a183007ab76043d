"""The one parser of host names and addresses: what it takes is read alike by everybody, the rest is refused.

Attacks on an allow-list live off two parsers that disagree, so a text has one spelling apart from its case: no trailing dot, no
number that some resolvers take for an address, no character that needs decoding.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from encodings import punycode
from ipaddress import IPv4Address, IPv6Address

from atoll.errors import InvalidRequest

Address = IPv4Address | IPv6Address

_LONGEST_NAME = 253
_LABEL = r"[a-z0-9](?:[a-z0-9_-]{0,61}[a-z0-9])?"
_NAME = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")
# Resolvers of the C library read a last label like these as (part of) an IPv4 address.
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_IPV6 = re.compile(r"\[[0-9a-f:.]{2,45}\]")
_PORT = re.compile(r"[1-9][0-9]{0,4}")


@dataclass(frozen=True, slots=True)
class Host:
    """A host in its one spelling: a lower-case name, or else a literal address."""

    name: str = ""
    address: Address | None = None

    def __str__(self) -> str:
        """Return the text that `parse_host` reads: an IPv6 address stands in brackets."""
        if self.address is None:
            return self.name
        return f"[{self.address}]" if self.address.version == 6 else str(self.address)


@dataclass(frozen=True, slots=True)
class HostPattern:
    """A host, or with `below` all names that have at least one label more than it."""

    host: Host
    below: bool = False

    def __str__(self) -> str:
        return f"*.{self.host}" if self.below else str(self.host)

    def matches(self, host: Host) -> bool:
        """Tell whether the pattern means this host."""
        if self.below:
            # Both are canonical, so what ends in a dot and the name ends in its labels.
            return host.name.endswith(f".{self.host.name}")
        return host == self.host


def parse_host(text: str) -> Host:
    """Return the host that `text` names; raise `InvalidRequest` unless everybody reads it alike.

    An IPv6 address stands in brackets.
    """
    if len(text) > _LONGEST_NAME:
        raise _refused(text, f"it is longer than {_LONGEST_NAME} characters")
    if not text.isascii():
        raise _refused(text, "it is not ASCII; write the name in punycode, xn--…")
    folded = text.lower()
    if _NAME.fullmatch(folded):
        if _NUMBER.fullmatch(folded, folded.rfind(".") + 1):
            return Host(address=_parse_ipv4(folded))
        if "xn--" in folded:
            _check_punycode(folded)
        return Host(folded)
    if _IPV6.fullmatch(folded):
        return Host(address=_parse_ipv6(folded))
    raise _refused(text, _fault(text))


def parse_authority(text: str, default_port: int | None = None) -> tuple[Host, int]:
    """Return host and port of `host:port`; without a default the port has to be there.

    Raises `InvalidRequest` for anything else, user names included.
    """
    host, colon, port = text.rpartition(":")
    # In a bracket without a port the last colon belongs to the address.
    if not colon or text.endswith("]"):
        if default_port is None:
            raise _refused(text, "the port is missing")
        return parse_host(text), default_port
    return parse_host(host), parse_port(port)


def parse_port(text: str) -> int:
    """Return the port that `text` names: 1 to 65535, without sign, space or leading zero."""
    if not _PORT.fullmatch(text) or int(text) > 65535:
        raise InvalidRequest(f"port {text[:80]!r} is not a number from 1 to 65535, such as 443")
    return int(text)


def parse_host_pattern(text: str) -> HostPattern:
    """Return the pattern of a host, or of `*.host`; raise `InvalidRequest` for any other star."""
    if not text.startswith("*."):
        return HostPattern(parse_host(text))
    host = parse_host(text[2:])
    if host.address is not None:
        raise _refused(text, "nothing lies below an address")
    return HostPattern(host, below=True)


def _parse_ipv4(text: str) -> IPv4Address:
    try:
        return IPv4Address(text)
    except ValueError:
        raise _refused(
            text, "it ends in a number but is no address of four decimal numbers"
        ) from None


def _parse_ipv6(text: str) -> IPv6Address:
    try:
        return IPv6Address(text[1:-1])
    except ValueError:
        raise _refused(text, "what stands in brackets is no IPv6 address") from None


def _check_punycode(name: str) -> None:
    for label in name.split("."):
        if label.startswith("xn--") and not _is_punycode(label[4:]):
            raise _refused(name, f"{label!r} is not the punycode of any name")


def _is_punycode(text: str) -> bool:
    """Tell whether it stands for a label that has this spelling only."""
    try:
        # By its module: the proxy process cannot look a codec up any more once it has given up its rights.
        label = punycode.punycode_decode(text, "strict")
    except UnicodeError:
        return False
    # A label that lower case or normal form changes would be another name for those who show it.
    return (
        label.isprintable()
        and not label.isascii()
        and unicodedata.normalize("NFKC", label).lower() == label
        and unicodedata.category(label[0])[0] != "M"
        and punycode.punycode_encode(label).decode() == text
    )


def _refused(text: str, fault: str) -> InvalidRequest:
    return InvalidRequest(
        f"host {text[:80]!r} is refused: {fault}; write it like 'api.example', '192.0.2.7' or '[2001:db8::7]'"
    )


def _fault(text: str) -> str:
    """Return what is wrong with a text that is neither a name nor an address."""
    for character, fault in _FAULTS.items():
        if character in text:
            return fault
    if not text.isprintable() or " " in text:
        return "it holds white space or control characters"
    return "a label has 1 to 63 letters, digits and '-', or '_' within, and starts and ends with a letter or digit"


_FAULTS = {
    "@": "it holds a user name",
    "%": "it holds a percent sign: neither encoded characters nor zones are read",
    "\\": "it holds a backslash",
    "/": "it holds a slash",
    "*": "a star stands for whole labels at the beginning only, and only in rules: '*.example'",
    "[": "what stands in brackets is no IPv6 address",
    ":": "it holds a colon: an IPv6 address stands in brackets, and there is no port here",
}
