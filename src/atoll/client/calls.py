"""Requests and answers as pure functions: what both halves of the SDK do without waiting."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Mapping
from typing import Any

from atoll.errors import InvalidRequest
from atoll.model.limits import Limits
from atoll.model.process import Output
from atoll.model.sandbox import SandboxSpec
from atoll.model.sizes import parse_size
from atoll.model.template import PYTHON_TEMPLATE

TextCallback = Callable[[str], object]

_SIZES = {
    "memory": "memory_bytes",
    "workspace": "workspace_bytes",
    "tmp": "tmp_bytes",
    "home": "home_bytes",
    "shm": "shm_bytes",
    "file": "file_bytes",
}
_COUNTS = ("cpus", "processes", "inodes", "open_files", "enforcement")


def make_spec(
    template: str, limits: Limits | Mapping[str, Any] | None, envs: Mapping[str, str] | None
) -> SandboxSpec:
    """Return the sandbox that a caller describes."""
    return SandboxSpec(
        template=template,
        limits=make_limits(limits),
        env=dict(envs or {}),
        kernel=template == PYTHON_TEMPLATE,
    )


def make_limits(limits: Limits | Mapping[str, Any] | None) -> Limits:
    """Return limits from `{"memory": "256m", "cpus": 2, …}`."""
    if limits is None or isinstance(limits, Limits):
        return limits or Limits()
    fields: dict[str, Any] = {}
    for name, value in limits.items():
        if name in _SIZES:
            fields[_SIZES[name]] = parse_size(value)
        elif name in _COUNTS:
            fields[name] = value
        else:
            known = ", ".join((*_SIZES, *_COUNTS))
            raise InvalidRequest(f"there is no limit {name!r}; there is: {known}", limit=name)
    return Limits(**fields)


class TextSplitter:
    """Hands output to callbacks as text, never splitting a character."""

    def __init__(self, on_stdout: TextCallback | None, on_stderr: TextCallback | None) -> None:
        self._callbacks = {"stdout": on_stdout, "stderr": on_stderr}
        make = codecs.getincrementaldecoder("utf-8")
        self._decoders = {"stdout": make("replace"), "stderr": make("replace")}

    @property
    def is_wanted(self) -> bool:
        """Whether anybody listens."""
        return any(self._callbacks.values())

    def __call__(self, output: Output) -> None:
        """Take one piece of output."""
        callback = self._callbacks[output.stream]
        text = self._decoders[output.stream].decode(output.data)
        if callback is not None and text:
            callback(text)
