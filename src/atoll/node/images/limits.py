"""How large images may be."""

from __future__ import annotations

from dataclasses import dataclass

from atoll.model.sizes import GIB


@dataclass(frozen=True, slots=True)
class ImageLimits:
    """How large an image may be."""

    total_bytes: int = 16 * GIB  # unpacked
    entries: int = 500_000  # of all layers together
    upload_bytes: int = 8 * GIB  # as it is sent
