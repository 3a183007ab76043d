"""An image by its name, wherever that says it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from atoll.model.image import ImagePlace, LocalImage, RegistryImage
from atoll.node.images.local import open_archive, open_layout
from atoll.node.images.source import Image


@contextmanager
def open_image(
    wanted: LocalImage | RegistryImage,
    registries: Sequence[str] | None,
    check: Callable[[], None] = lambda: None,
) -> Iterator[Image]:
    """Give an image whose layers can be read; it may come from one of `registries`, None: from any.

    `check` is called again and again while it is looked for, and may raise to give up.

    Raises:
        NotFound: there is no such image.
        Forbidden: its registry is not among those that it may come from.
        InvalidRequest, Unsupported, LimitExceeded, Unavailable: as `open_archive` and `Registry.find`.
    """
    if isinstance(wanted, RegistryImage):
        # Loaded only here: whoever unpacks a file needs neither HTTP nor TLS.
        from atoll.node.images.registry import Registry

        yield Registry(wanted, allowed=registries, check=check).find()
    elif wanted.place is ImagePlace.LAYOUT:
        with open_layout(Path(wanted.path), wanted.name) as image:
            yield image
    else:
        with open_archive(Path(wanted.path), wanted.name, check) as image:
            yield image
