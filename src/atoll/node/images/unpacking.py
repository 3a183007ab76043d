"""Unpacks an image into a directory: every blob checked against its digest, then the tree that the layers make."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

from atoll.errors import InvalidRequest, LimitExceeded, Unsupported
from atoll.node.expander import GZIP, Expander
from atoll.node.images.limits import ImageLimits
from atoll.node.images.members import read_members
from atoll.node.images.root import furnish
from atoll.node.images.source import Image, Layer
from atoll.node.images.tree import ImageTree

_ZSTD = b"\x28\xb5\x2f\xfd"
_RATIO = 200
_MAGIC_BYTES = 4


def unpack(
    image: Image,
    folder: Path,
    limits: ImageLimits,
    *,
    report: Callable[[str], None] = lambda _line: None,
    check: Callable[[], None] = lambda: None,
) -> ImageTree:
    """Unpack an image into an empty directory, and return what is there now.

    `check` is called again and again, and may raise to give up. What is there after an error is to be thrown away.

    Raises:
        InvalidRequest: the image is broken, is not what its digests say, or would leave the directory.
        LimitExceeded: it is larger than it may be.
        Unsupported: it is compressed in a way, or for a machine, that this is none of.
    """
    if len(image.layers) != len(image.config.diff_ids):
        raise InvalidRequest(
            f"the image has {len(image.layers)} layers, but its configuration tells of {len(image.config.diff_ids)}"
        )
    tree = ImageTree(limits.entries, limits.total_bytes)
    scratch = _Scratch(folder, limits.total_bytes, check)
    root = folder / "root"
    with ExitStack() as undo:
        undo.callback(scratch.close)
        for number, layer in enumerate(image.layers, 1):
            report(f"layer {number} of {len(image.layers)}")
            with os.fdopen(
                os.dup(scratch.expand(number, layer, _diff_id(image, number))), "rb"
            ) as file:
                tree.apply(number, read_members(file, check))
        furnish(tree, scratch.layers, len(image.layers) + 1)
        report(f"unpacking {tree.entries} entries")
        root.mkdir(0o755)
        fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        undo.callback(os.close, fd)
        tree.write(fd, scratch.layers, check)
    return tree


def _diff_id(image: Image, number: int) -> str:
    return image.config.diff_ids[number - 1]


class _Scratch:
    """Layers as plain archives, each in a file that has no name."""

    def __init__(self, folder: Path, most_bytes: int, check: Callable[[], None]) -> None:
        self.layers: dict[int, int] = {}
        self._folder = folder
        self._most_bytes = most_bytes
        self._check = check
        self._used = 0

    def expand(self, number: int, layer: Layer, diff_id: str) -> int:
        """Return the descriptor of a layer's plain archive, checked."""
        path = self._folder / f"layer-{number}"
        fd = self.layers[number] = os.open(
            path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600
        )
        path.unlink()
        plain = hashlib.sha256()
        for piece in _expanded(self._stored(layer)):
            self._check()
            self._used += len(piece)
            # Headers and what lower layers hide take room here, too.
            if self._used > 2 * self._most_bytes:
                raise LimitExceeded(
                    f"the image's layers are larger than {2 * self._most_bytes} bytes; make it smaller",
                    limit_bytes=2 * self._most_bytes,
                )
            plain.update(piece)
            _write_all(fd, piece)
        if f"sha256:{plain.hexdigest()}" != diff_id:
            raise InvalidRequest(
                f"layer {number} is not what the image's configuration says ({diff_id}); it was changed"
            )
        return fd

    def _stored(self, layer: Layer) -> Iterator[bytes]:
        """Yield a layer's bytes; raise at their end unless they are those of its digest."""
        stored, taken = hashlib.sha256(), 0
        for chunk in layer.read():
            # Not only for what it expands to: that may be nothing at all.
            self._check()
            taken += len(chunk)
            if layer.stored is not None and taken > layer.stored.size:
                break
            stored.update(chunk)
            yield chunk
        expected = layer.stored
        if expected is not None and (
            taken != expected.size or f"sha256:{stored.hexdigest()}" != expected.digest
        ):
            raise InvalidRequest(
                f"a layer is not what its digest {expected.digest} says; it was changed, or cut"
            )

    def close(self) -> None:
        for fd in self.layers.values():
            os.close(fd)


def _expanded(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the plain bytes of a layer."""
    beginning = b""
    for chunk in chunks:
        beginning += chunk
        if len(beginning) >= _MAGIC_BYTES:
            break
    if beginning.startswith(_ZSTD):
        raise Unsupported(
            "the image's layers are compressed with zstd; push or save it with gzip, or uncompressed"
        )
    if not beginning.startswith(GZIP):
        yield beginning
        yield from chunks
        return
    expander = Expander(_RATIO)
    yield from expander.expand(beginning)
    for chunk in chunks:
        yield from expander.expand(chunk)
    if not expander.complete:
        raise InvalidRequest("a layer ends in the middle of its gzip stream")


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
