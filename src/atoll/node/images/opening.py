"""An image by its name, wherever that says it is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from atoll.model.image import ImagePlace, LocalImage, RegistryImage
from atoll.node.images.local import open_archive, open_layout
from atoll.node.images.source import Image


@contextmanager
def open_image(
    wanted: LocalImage | RegistryImage, registries: Sequence[str] | None
) -> Iterator[Image]:
    """Give an image whose layers can be read; it may come from one of `registries`, None: from any.

    Raises:
        NotFound: there is no such image.
        Forbidden: its registry is not among those that it may come from.
        InvalidRequest, Unsupported, LimitExceeded, Unavailable: as `open_archive` and `Registry.find`.
    """
    if isinstance(wanted, RegistryImage):
        # Loaded only here: whoever unpacks a file needs neither HTTP nor TLS.
        from atoll.node.images.registry import Registry

        yield Registry(wanted, allowed=registries).find()
    else:
        is_layout = wanted.place is ImagePlace.LAYOUT
        opened = open_layout if is_layout else open_archive
        with opened(Path(wanted.path), wanted.name) as image:
            yield image
