"""What a sandbox may reach: nothing, what its rules name, or all that the operator leaves open; and its private network."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Literal, cast, get_args

from atoll.errors import InvalidRequest
from atoll.model.hosts import (
    Host,
    HostPattern,
    parse_authority,
    parse_host,
    parse_host_pattern,
    parse_port,
)
from atoll.model.url_paths import normal_path

Scheme = Literal["http", "https", "tcp"]

MOST_RULES = 256
# Of one sandbox, to its private network.
MOST_PORTS = 16
PRESETS = ("registries",)
METHODS = frozenset(
    "GET HEAD POST PUT PATCH DELETE OPTIONS TRACE"
    " PROPFIND PROPPATCH MKCOL COPY MOVE LOCK UNLOCK REPORT SEARCH".split()
)

_DNS_PORT = 53
_MOST_DNS = 8
_LARGEST_LIMIT = 1 << 60
_OWN_PORTS: dict[Scheme, int] = {"http": 80, "https": 443}
_PRIVATE_NAME = re.compile(r"(?!xn--)[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?")
# Set aside for names that are nobody's outside.
_PRIVATE_DOMAIN = "internal"
# They mean the sandbox itself.
_OWN_NAMES = frozenset({"localhost", "ip6-localhost", "ip6-loopback"})


class NetworkMode(StrEnum):
    """How far a sandbox's network goes."""

    NONE = "none"
    RULES = "rules"
    OPEN = "open"


@dataclass(frozen=True, slots=True)
class Rule:
    """One thing that is allowed: a host with, if written, its port, scheme, methods and paths.

    Without a scheme it is HTTP and HTTPS, never plain TCP. `methods` empty means all; `path` empty means all, and a `*` in it
    stands for any characters.
    """

    host: HostPattern
    port: int | None = None
    scheme: Scheme | None = None
    methods: frozenset[str] = frozenset()
    path: str = ""

    @property
    def restricted(self) -> bool:
        """Whether it says something about methods or paths, which only those who see requests can check."""
        return bool(self.methods or self.path)

    def covers(self, scheme: Scheme, port: int) -> bool:
        """Tell whether it is about this scheme and port. A tcp rule covers all that is spoken there."""
        if self.scheme == "tcp":
            return port == self.port
        if scheme == "tcp" or self.scheme not in (None, scheme):
            return False
        own = _OWN_PORTS[scheme]
        if self.scheme is None and port in _OWN_PORTS.values() and port != own:
            return False
        return port == (self.port or own)

    def __str__(self) -> str:
        """Return the text that `parse_rule` reads."""
        scheme = f"{self.scheme}://" if self.scheme else ""
        port = f":{self.port}" if self.port else ""
        methods = f"/{','.join(sorted(self.methods)) or '*'}" if self.restricted else ""
        return f"{scheme}{self.host}{port}{methods}{self.path}"


@dataclass(frozen=True, slots=True)
class NetworkLimits:
    """The most that a sandbox may send and fetch; None means no cap."""

    connections: int = 64
    connections_per_second: int = 50
    upload_bytes: int | None = None
    download_bytes: int | None = None

    def __post_init__(self) -> None:
        for name, value in self.to_json().items():
            if value is None and name.endswith("_bytes"):
                continue
            if type(value) is not int or not 0 <= value <= _LARGEST_LIMIT:
                raise InvalidRequest(
                    f"network limit {name} is {str(value)[:80]!r}; it has to be a whole number from 0 to"
                    f" {_LARGEST_LIMIT}",
                    limit=name,
                )

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        # Not asdict(), which would copy every number.
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class Network:
    """What one sandbox may reach, by which name servers, and how much of it.

    `presets` are words that the node replaces by rules (`with_presets`); until then they allow nothing.
    `dns` are addresses of name servers, `127.0.0.1` or `127.0.0.1:5353`; none means those of the machine.
    `private` names the owner's network that it is a member of, and `ports` are those that it serves to the others there.
    """

    mode: NetworkMode = NetworkMode.NONE
    rules: tuple[Rule, ...] = ()
    presets: tuple[str, ...] = ()
    dns: tuple[str, ...] = ()
    limits: NetworkLimits = field(default_factory=NetworkLimits)
    private: str | None = None
    ports: tuple[int, ...] = ()
    # By the texts of their hosts, since a request must not have to try every rule.
    _rules_by_host: Mapping[str, Sequence[Rule]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.mode is not NetworkMode.RULES and (self.rules or self.presets):
            raise InvalidRequest(
                f"network {self.mode.value!r} takes no rules; leave one of both out"
            )
        if len(self.rules) > MOST_RULES:
            raise InvalidRequest(
                f"{len(self.rules)} network rules are more than {MOST_RULES};"
                " '*.example' means all names below one"
            )
        _check_presets(self.presets)
        _check_dns(self.dns)
        _check_ports(self.ports, self.private)
        if self.private is not None:
            _check_private(self.private, self.rules)
        object.__setattr__(self, "_rules_by_host", _group_by_host(self.rules))

    @classmethod
    def parse(
        cls,
        value: str | Sequence[str],
        *,
        dns: Sequence[str] = (),
        limits: NetworkLimits | None = None,
        private: str | None = None,
        ports: Sequence[int] = (),
    ) -> Network:
        """Return the network that `none`, `open`, rules, or rules in one text with commas mean.

        No rules at all allow nothing, as `none` does, but attempts are answered and noted.
        """
        texts = _split(value) if isinstance(value, str) else _check_texts(value)
        mode = _mode(texts)
        rules = [text for text in texts if text not in PRESETS] if mode == "rules" else []
        return cls(
            mode=mode,
            rules=tuple(parse_rule(text) for text in rules),
            presets=tuple(dict.fromkeys(text for text in texts if text in PRESETS)),
            dns=_check_texts(dns),
            limits=limits or NetworkLimits(),
            private=private,
            ports=_check_sequence(ports),
        )

    @property
    def has_listeners(self) -> bool:
        """Whether anything answers inside: it may reach something, or what it tries is noted."""
        return self.mode is not NetworkMode.NONE or self.private is not None

    def rules_for(self, host: Host) -> Sequence[Rule]:
        """Return the rules whose host pattern matches this host."""
        by_host, name = self._rules_by_host, host.name
        found = [*by_host.get(str(host), ())]
        dot = name.find(".")
        while dot >= 0:
            found += by_host.get(f"*{name[dot:]}", ())
            dot = name.find(".", dot + 1)
        return found

    @property
    def tcp_places(self) -> Sequence[tuple[Host, int]]:
        """The names and ports of its rules for plain TCP, each once; a pattern or an address has no name to be found by."""
        places = [
            (rule.host.host, rule.port)
            for rule in self.rules
            if rule.scheme == "tcp" and rule.port and rule.host.host.name and not rule.host.below
        ]
        return list(dict.fromkeys(places))

    def inspected_hosts(self) -> Sequence[HostPattern]:
        """Return the hosts whose requests have to be seen within TLS, since rules are about them."""
        return [
            rule.host for rule in self.rules if rule.restricted and rule.scheme in (None, "https")
        ]

    def with_presets(self, rules: Mapping[str, Sequence[Rule]]) -> Network:
        """Return it with its presets replaced by the rules that they stand for here."""
        added = [rule for preset in self.presets for rule in rules[preset]]
        return replace(self, rules=(*self.rules, *added), presets=())

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values, for `from_json`."""
        return {
            "mode": self.mode.value,
            "rules": [str(rule) for rule in self.rules],
            "presets": list(self.presets),
            "dns": list(self.dns),
            "limits": self.limits.to_json(),
            "private": self.private,
            "ports": list(self.ports),
        }

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Network:
        """Return the network that `to_json` wrote; raise `InvalidRequest` for anything else."""
        try:
            return cls(
                **{
                    **fields,
                    "mode": NetworkMode(fields["mode"]),
                    "rules": tuple(parse_rule(text) for text in _check_texts(fields["rules"])),
                    "presets": _check_texts(fields["presets"]),
                    "dns": _check_texts(fields["dns"]),
                    "limits": NetworkLimits(**fields["limits"]),
                    # Those of older nodes had none.
                    "ports": _check_sequence(fields.get("ports", ())),
                }
            )
        except InvalidRequest:
            raise
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise InvalidRequest(f"this is not a network: {str(error)[:200]}") from error


def private_name(name: str, network: str) -> str:
    """Return the long name of a member of a private network; its short one is the sandbox's."""
    return f"{name}.{network}.{_PRIVATE_DOMAIN}"


def check_member_name(network: Network, name: str | None) -> None:
    """Raise `InvalidRequest` unless a sandbox of that name can be a member of the network's private one."""
    if network.private is None or not network.ports:
        return
    if name is None:
        raise InvalidRequest(
            f"a sandbox that serves ports to private network {network.private!r} is found there by its name;"
            " give it one"
        )
    fault = "it means the sandbox itself" if name in _OWN_NAMES else ""
    try:
        if parse_host(name).name != name:
            fault = "it is an address"
        parse_host(private_name(name, network.private))
    except InvalidRequest:
        fault = "it is no host name"
    if fault:
        raise InvalidRequest(
            f"sandbox name {name[:80]!r} cannot be found in a private network: {fault}; take one like 'db'"
        )


def parse_rule(text: str) -> Rule:
    """Return the rule `[scheme://]host[:port][/METHOD[,METHOD…]][/path-pattern]`.

    A first segment in capitals, or a star, is about methods. Raises `InvalidRequest`.
    """
    if not isinstance(text, str):
        raise _refused(text, "it is not text")
    scheme, rest = _take_scheme(text)
    authority, slash, after = rest.partition("/")
    try:
        host, port = _parse_authority_pattern(authority)
        methods, path = _parse_request_pattern(slash + after)
    except InvalidRequest as error:
        raise _refused(text, error.message) from error
    if scheme == "tcp" and (port is None or slash):
        raise _refused(text, "plain TCP has a port, and no methods or paths")
    return Rule(host, port, scheme, methods, path)


def _take_scheme(text: str) -> tuple[Scheme | None, str]:
    scheme, mark, rest = text.partition("://")
    # A '://' further back is part of a path.
    if not mark or "/" in scheme:
        return None, text
    if scheme not in get_args(Scheme):
        raise _refused(text, f"{scheme!r} is none of http, https and tcp")
    return cast(Scheme, scheme), rest


def _parse_authority_pattern(text: str) -> tuple[HostPattern, int | None]:
    if text == "*":
        raise InvalidRequest("a star alone would allow every host; that is network 'open'")
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]"):
        return parse_host_pattern(text), None
    return parse_host_pattern(host), parse_port(port)


def _parse_request_pattern(text: str) -> tuple[frozenset[str], str]:
    """Return methods and path of `/METHOD,METHOD/path`, of which either may be missing."""
    if text == "/":
        raise InvalidRequest("end it without '/' for all paths, or with '/*/' for '/' alone")
    first = text[1:].partition("/")[0]
    if not _is_methods(first):
        return frozenset(), _check_path(text)
    path = _check_path(text[1 + len(first) :])
    if first == "*":
        return frozenset(), path
    methods = frozenset(first.split(","))
    if unknown := sorted(methods - METHODS):
        raise InvalidRequest(f"{unknown[0]!r} is no method; for a path write '/*/{unknown[0]}…'")
    return methods, path


def _is_methods(text: str) -> bool:
    return text == "*" or (text.isascii() and text.replace(",", "").isalpha() and text.isupper())


def _check_path(text: str) -> str:
    if not text:
        return ""
    if "?" in text or "#" in text:
        raise InvalidRequest("a rule is about the path, so it ends before '?' and '#'")
    path = normal_path(text)
    if path != text:
        raise InvalidRequest(f"its path is spelled {path!r}")
    return path


def _group_by_host(rules: Sequence[Rule]) -> dict[str, list[Rule]]:
    groups: dict[str, list[Rule]] = {}
    for rule in rules:
        groups.setdefault(str(rule.host), []).append(rule)
    return groups


def _check_texts(values: Sequence[str]) -> tuple[str, ...]:
    listed = isinstance(values, Sequence) and not isinstance(values, str)
    if not listed or not all(isinstance(value, str) for value in values):
        raise InvalidRequest(
            f"{str(values)[:80]!r} is not a list of texts, such as ['api.example']"
        )
    return tuple(values)


def _split(text: str) -> tuple[str, ...]:
    """Return the rules of one text. A comma also stands between methods."""
    rules: list[str] = []
    for part in text.split(","):
        part = part.strip()
        if rules and part.partition("/")[0] in METHODS and _ends_in_methods(rules[-1]):
            rules[-1] += f",{part}"
        else:
            rules.append(part)
    return tuple(rules)


def _ends_in_methods(rule: str) -> bool:
    before, slash, last = rule.rpartition("/")
    # Of what comes before, only the scheme has slashes; else the last segment belongs to a path.
    return bool(slash) and last != "*" and _is_methods(last) and "/" not in before.split("://")[-1]


def _mode(texts: Sequence[str]) -> NetworkMode:
    for word in (NetworkMode.NONE, NetworkMode.OPEN):
        if word in texts:
            if len(texts) > 1:
                raise InvalidRequest(f"network {word.value!r} stands alone; remove it or the rules")
            return word
    return NetworkMode.RULES


def _check_presets(presets: Sequence[str]) -> None:
    for preset in presets:
        if preset not in PRESETS:
            raise InvalidRequest(f"{preset[:80]!r} is no preset; there is {', '.join(PRESETS)}")


def _check_dns(servers: Sequence[str]) -> None:
    if len(servers) > _MOST_DNS:
        raise InvalidRequest(f"{len(servers)} name servers are more than {_MOST_DNS}")
    for server in servers:
        host, _ = parse_authority(server, _DNS_PORT)
        if host.address is None:
            raise InvalidRequest(
                f"name server {server[:80]!r} is no address; write it like '192.0.2.53' or '[2001:db8::53]'"
            )


def _check_sequence(values: Sequence[int]) -> tuple[int, ...]:
    if not isinstance(values, list | tuple | range):
        raise InvalidRequest(f"{str(values)[:80]!r} is not a list of ports, such as [5432]")
    return tuple(values)


def _check_ports(ports: Sequence[int], private: str | None) -> None:
    if ports and private is None:
        raise InvalidRequest("ports are served to a private network; name that, too")
    if len(ports) > MOST_PORTS:
        raise InvalidRequest(
            f"{len(ports)} ports are too many to be served to a private network; the most is {MOST_PORTS}"
        )
    for port in ports:
        if type(port) is not int or not 1 <= port <= 65535:
            raise InvalidRequest(f"port {str(port)[:80]!r} is not a number from 1 to 65535")
    if len(set(ports)) != len(ports):
        raise InvalidRequest(
            "a port is served to a private network once; remove the second mention"
        )


def _check_private(private: str, rules: Sequence[Rule]) -> None:
    if not isinstance(private, str) or not _PRIVATE_NAME.fullmatch(private):
        raise InvalidRequest(
            f"private network {str(private)[:80]!r} is not 1 to 40 characters of a-z, 0-9 and inner '-'"
            " (nor punycode, xn--…), such as 'build'"
        )
    domain = f"{private}.{_PRIVATE_DOMAIN}"
    for rule in rules:
        # Nobody could say any more whether the member is meant or what lies outside.
        if f".{rule.host.host.name}".endswith(f".{domain}"):
            raise InvalidRequest(
                f"rule '{rule}' names a host below {domain}, where the members of the private network are;"
                " they need no rule, so leave it out"
            )


def _refused(text: object, fault: str) -> InvalidRequest:
    shown = text[:80] if isinstance(text, str) else text
    return InvalidRequest(
        f"network rule {shown!r} is refused: {fault}; write it like 'api.example:443',"
        " '*.example', 'https://api.example/GET,POST/v1/*' or 'tcp://db.example:5432'"
    )
