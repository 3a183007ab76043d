"""What a caller may say about the container that a sandbox runs in; only container engines know these things."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_args

from atoll.errors import InvalidRequest

PullPolicy = Literal["missing", "always", "never"]
Runtime = Literal["runc", "crun", "runsc"]

# Labels of this beginning are the engine's own.
OWN_LABELS = "atoll."
# What the names of images begin with that are made here, and nowhere else: of presets, and of templates that were built.
PRESET_IMAGES = "atoll-preset"
TEMPLATE_IMAGES = "atoll-template"
DEFAULT_USER = "65532:65532"

# Without "..": it becomes part of an address.
_IMAGE = re.compile(r"(?!.*\.\.)[a-zA-Z0-9][a-zA-Z0-9._/:@-]{0,254}")
_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]{0,127}")
_USER = re.compile(r"([0-9]{1,10})(?::([0-9]{1,10}))?")
_CAPABILITY = re.compile(r"[A-Z][A-Z_]{2,30}")
_LABEL_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,62}")
_MOST_LABELS = 64
_LABEL_CHARACTERS = 256
_MOST_ID = (1 << 31) - 1
_CPU_SHARES = (2, 262144)
_LEAST_ROOT_BYTES, _MOST_ROOT_BYTES = 1 << 20, 1 << 50


@dataclass(frozen=True, slots=True)
class ContainerOptions:
    """The container that is wanted; what the operator does not allow is refused, never left out.

    Everything not said here is as hard as the engine can make it.
    """

    image: str | None = None  # None: the one of the sandbox's template
    pull: PullPolicy = "missing"
    runtime: Runtime | None = None  # None: as the operator says
    user: str = DEFAULT_USER  # numbers: user, or user:group
    network: str = "none"  # none, bridge, host, or the name of a network that exists
    volume: str | None = (
        None  # the name of one that exists, as /workspace; it stays when the sandbox goes
    )
    labels: Mapping[str, str] = field(default_factory=dict)
    cap_add: Sequence[str] = ()
    cap_drop: Sequence[str] = ("ALL",)
    seccomp: str | None = (
        None  # the name of a profile of the operator's; None: the engine's own list
    )
    read_only_root: bool = True
    root_bytes: int | None = (
        None  # the most that is written to a root that can be; None: as the operator says
    )
    cpu_shares: int | None = None

    def __post_init__(self) -> None:
        _check_pattern("image", self.image, _IMAGE)
        _check_choice("pull", self.pull, get_args(PullPolicy))
        if self.runtime is not None:
            _check_choice("runtime", self.runtime, get_args(Runtime))
        parse_user(self.user)
        _check_pattern("network", self.network, _NAME)
        _check_pattern("volume", self.volume, _NAME)
        _check_pattern("seccomp", self.seccomp, _NAME)
        _check_labels(self.labels)
        for name in ("cap_add", "cap_drop"):
            object.__setattr__(self, name, _capabilities(name, getattr(self, name)))
        if "ALL" in self.cap_add:
            raise InvalidRequest("cap_add has ALL; name the capabilities that are needed")
        _check_flag("read_only_root", self.read_only_root)
        _check_root_bytes(self.root_bytes, self.read_only_root)
        _check_cpu_shares(self.cpu_shares)

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values, for `from_json`."""
        plain = {each.name: getattr(self, each.name) for each in fields(self)}
        lists = {name: list(plain[name]) for name in ("cap_add", "cap_drop")}
        return {**plain, **lists, "labels": dict(self.labels)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> ContainerOptions:
        """Return what `to_json` was called on."""
        return cls(**values)


def parse_user(user: str) -> tuple[int, int]:
    """Return user and group of `user` or `user:group`, both numbers; raise `InvalidRequest` for anything else.

    Names are not taken: what they stand for would be up to the image.
    """
    match = _USER.fullmatch(user) if isinstance(user, str) else None
    numbers = [int(each) for each in match.groups(default=match[1])] if match else []
    if not numbers or max(numbers) > _MOST_ID:
        raise InvalidRequest(
            f"user {str(user)[:40]!r} has to be a number, or two as in {DEFAULT_USER!r}, each at most {_MOST_ID}"
        )
    return numbers[0], numbers[1]


def _check_pattern(name: str, value: object, pattern: re.Pattern[str]) -> None:
    if value is None and name != "network":
        return
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise InvalidRequest(
            f"{name} {str(value)[:80]!r} is no name of one: letters, digits and a few signs between them"
        )


def _check_choice(name: str, value: object, choices: Sequence[str]) -> None:
    if value not in choices:
        raise InvalidRequest(f"{name} is {str(value)[:40]!r}; it has to be {' or '.join(choices)}")


def _check_flag(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise InvalidRequest(f"{name} is {str(value)[:40]!r}; it has to be true or false")


def _check_root_bytes(size: object, read_only: bool) -> None:
    if size is None:
        return
    if type(size) is not int or not _LEAST_ROOT_BYTES <= size <= _MOST_ROOT_BYTES:
        raise InvalidRequest(
            f"root_bytes is {str(size)[:40]}; it has to lie between {_LEAST_ROOT_BYTES} and {_MOST_ROOT_BYTES}"
        )
    if read_only:
        raise InvalidRequest(
            "root_bytes is for a root that can be written; ask for read_only_root=False, or leave it out"
        )


def _check_cpu_shares(shares: object) -> None:
    low, high = _CPU_SHARES
    if shares is not None and (type(shares) is not int or not low <= shares <= high):
        raise InvalidRequest(f"cpu_shares is {shares!r}; it has to lie between {low} and {high}")


def _capabilities(name: str, given: object) -> tuple[str, ...]:
    """Return capabilities in one spelling, sorted, each once."""
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise InvalidRequest(f"{name} is {str(given)[:40]!r}; it has to be a list of capabilities")
    found = {str(each).upper().removeprefix("CAP_") for each in given}
    for each in found:
        if not _CAPABILITY.fullmatch(each):
            raise InvalidRequest(
                f"{name} has {each[:40]!r}, which is no capability such as NET_BIND_SERVICE"
            )
    return tuple(sorted(found))


def _check_labels(labels: object) -> None:
    if not isinstance(labels, Mapping) or len(labels) > _MOST_LABELS:
        raise InvalidRequest(
            f"labels of a container have to be at most {_MOST_LABELS} names with values"
        )
    for key, value in labels.items():
        if not isinstance(key, str) or not _LABEL_KEY.fullmatch(key) or key.startswith(OWN_LABELS):
            raise InvalidRequest(
                f"label {str(key)[:80]!r} is not 1 to 63 characters of letters, digits and ._/- that do not begin"
                f" with {OWN_LABELS!r}"
            )
        if not isinstance(value, str) or len(value) > _LABEL_CHARACTERS:
            raise InvalidRequest(
                f"label {key} has to have a text of at most {_LABEL_CHARACTERS} characters"
            )
