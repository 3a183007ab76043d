"""Names of images as container engines read them: which registry one stands for, and which names are ours."""

from __future__ import annotations

from typing import NamedTuple

from atoll.model.container import PRESET_IMAGES, TEMPLATE_IMAGES

_OWN = frozenset({PRESET_IMAGES, TEMPLATE_IMAGES})
_HUB = "docker.io"
_HUB_TOO = ("", _HUB, "index.docker.io")


class ImageName(NamedTuple):
    """A name in its full form, whatever was left out of it."""

    host: str
    path: str
    tag: str | None  # None: the digest alone says which

    @property
    def is_of_hub(self) -> bool:
        """Whether it stands for one of Docker Hub's."""
        return self.host == _HUB

    @property
    def is_own(self) -> bool:
        """Whether it is one of ours, of whatever registry: engines may find an image by the end of its name."""
        return not _OWN.isdisjoint(self.path.lower().split("/"))


def parse_name(text: str) -> ImageName:
    """Return what a name stands for; of an image's id, something that no registry has."""
    bare, at, _digest = text.partition("@")
    first, slash, rest = bare.partition("/")
    # Docker's own rule. Newer ones also take what is not all in small letters, which no path may be, for a host.
    is_host = "." in first or ":" in first or first == "localhost" or first != first.lower()
    host, path = (first, rest) if slash and is_host else ("", bare)
    path, colon, tag = path.partition(":")
    if host.lower() in _HUB_TOO:
        host = _HUB
        path = path if "/" in path else f"library/{path}"
    return ImageName(host, path, tag if colon else None if at else "latest")
