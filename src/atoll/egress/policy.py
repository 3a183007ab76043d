"""Whether a network allows an attempt. Pure; asked for every request, not once per connection."""

from __future__ import annotations

from dataclasses import dataclass

from atoll.errors import InvalidRequest
from atoll.model.hosts import Host
from atoll.model.ids import SandboxId
from atoll.model.network import Network, NetworkMode, Rule, Scheme
from atoll.model.url_paths import matches_path, normal_path


@dataclass(frozen=True, slots=True)
class Attempt:
    """What somebody inside wants to reach. Method and path are None where they cannot be seen.

    An absolute-form request is `http`, a CONNECT `https`, a connection to a listener of its own `tcp`. `path` is the request's
    path with its query.
    """

    scheme: Scheme
    host: Host
    port: int
    method: str | None = None
    path: str | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether it may go on, and the reason, which may be shown inside.

    `inspect`: not allowed as it is, but each request within may be, once TLS is ended here and they can be seen.
    `raw`: any bytes may pass; without it a CONNECT has to carry TLS for the name that it was made to.
    `path`: what has to be sent in place of the attempt's path, so that what was checked is what arrives.
    `peer`: who is meant, if that is another sandbox; the node opens the way there.
    """

    allowed: bool
    reason: str
    rule: Rule | None = None
    inspect: bool = False
    raw: bool = False
    path: str | None = None
    peer: SandboxId | None = None


def decide(network: Network, attempt: Attempt) -> Verdict:
    """Return whether `network` lets this attempt pass. What no rule names is refused."""
    if network.mode is NetworkMode.OPEN:
        return Verdict(True, "the network is open", raw=True, path=attempt.path)
    if network.mode is not NetworkMode.RULES:
        return Verdict(False, f"{_shown(attempt)} is refused: this sandbox has no network")
    scheme, port = attempt.scheme, attempt.port
    rules = [rule for rule in network.rules_for(attempt.host) if rule.covers(scheme, port)]
    for rule in rules:
        if not rule.restricted:
            # A tcp rule would allow the same bytes whichever of both came first.
            raw = any(each.scheme == "tcp" for each in rules)
            return Verdict(True, "a rule allows it", rule, raw=raw, path=attempt.path)
    if not rules:
        return Verdict(False, _unnamed(attempt))
    if attempt.method is None or attempt.path is None:
        return Verdict(False, _unseen(attempt, rules[0]), rules[0], inspect=True)
    return _decide_request(rules, attempt, attempt.method, attempt.path)


def _decide_request(rules: list[Rule], attempt: Attempt, method: str, path: str) -> Verdict:
    """Return whether one of these rules, all of which are about methods or paths, names the request."""
    plain, mark, query = path.partition("?")
    rules = [rule for rule in rules if not rule.methods or method in rule.methods]
    for rule in rules:
        if not rule.path:
            return Verdict(True, "a rule allows it", rule, path=path)
    if not rules:
        return Verdict(False, f"no rule for {_shown(attempt)} allows the method {method[:20]!r}")
    try:
        normal = normal_path(plain)
    except InvalidRequest as error:
        return Verdict(False, error.message)
    for rule in rules:
        if matches_path(rule.path, normal):
            return Verdict(True, "a rule allows it", rule, path=normal + mark + query)
    return Verdict(
        False, f"no rule for {_shown(attempt)} allows {method[:20]!r} on {normal[:80]!r}"
    )


def _shown(attempt: Attempt) -> str:
    return f"{attempt.host}:{attempt.port}"


def _unnamed(attempt: Attempt) -> str:
    scheme = "tcp://" if attempt.scheme == "tcp" else ""
    return (
        f"{_shown(attempt)} is not among the hosts that this sandbox may reach by {attempt.scheme};"
        f" its owner can add '{scheme}{_shown(attempt)}' to the rules of its network"
    )


def _unseen(attempt: Attempt, rule: Rule) -> str:
    return (
        f"{_shown(attempt)} is allowed for some requests only ('{rule}'), and they cannot be seen"
    )
