"""The archives by which our own files get into a container engine."""

from __future__ import annotations

import io
import tarfile

from atoll.engines.containers.guest_volume import _archive, _File


def test_an_archive_ends_where_it_says() -> None:
    """Podman stops reading there, and fails if more comes after it has stopped: "broken pipe"."""
    data = _archive([_File("folder/file", b"x" * 600, 0o444)])
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        assert archive.getnames() == ["folder", "folder/file"]
        content = archive.extractfile("folder/file")
        assert content is not None and content.read() == b"x" * 600
    members = 512 + 512 + 2 * 512
    assert data[members:] == bytes(2 * 512)
