"""Requests of all kinds that pass for ones, to see what becomes of them."""

from __future__ import annotations

from hypothesis import strategies as st

from atoll.model.container import ContainerOptions
from atoll.model.limits import Limits
from atoll.model.sandbox import SandboxSpec

_TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)
_LABEL = st.from_regex(r"[a-z][a-z0-9./-]{0,20}", fullmatch=True).filter(
    lambda key: not key.startswith("atoll.")
)
_NAME = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,10}", fullmatch=True)

options = st.builds(
    ContainerOptions,
    user=st.sampled_from(["65532:65532", "1000", "1000:2000"]),
    labels=st.dictionaries(_LABEL, _TEXT, max_size=3),
    cap_drop=st.sampled_from([(), ("ALL",), ("NET_RAW",)]),
    cpu_shares=st.sampled_from([None, 2, 1024]),
)
limits = st.builds(
    Limits,
    memory_bytes=st.sampled_from([None, 64 << 20, 1 << 30]),
    cpus=st.sampled_from([None, 0.25, 1.0]),
    processes=st.sampled_from([None, 8, 300]),
    inodes=st.sampled_from([None, 64, 1000]),
    open_files=st.sampled_from([None, 64, 1024]),
    file_bytes=st.sampled_from([None, 4096, 1 << 30]),
    enforcement=st.just("best_effort"),  # Podman refuses to promise a number of files
)


def specs() -> st.SearchStrategy[SandboxSpec]:
    """Return sandboxes that a caller may ask for without any leave of the operator's."""
    return st.builds(
        SandboxSpec,
        container=st.none() | options,
        limits=limits,
        hostname=st.from_regex(r"[a-z0-9]([a-z0-9-]{0,20}[a-z0-9])?", fullmatch=True),
        env=st.dictionaries(_NAME, _TEXT, max_size=3),
    )
