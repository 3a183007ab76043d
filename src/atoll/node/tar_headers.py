"""Single headers of tar archives, read with bounds; nothing is ever unpacked by `tarfile` itself."""

from __future__ import annotations

import tarfile

from atoll.errors import InvalidRequest, LimitExceeded

BLOCK = tarfile.BLOCKSIZE
EXTENSIONS = frozenset(
    {
        tarfile.GNUTYPE_LONGNAME,
        tarfile.GNUTYPE_LONGLINK,
        tarfile.XHDTYPE,
        tarfile.XGLTYPE,
    }
)
_MAX_HEADER_BYTES = 64 * 1024  # of an extended header


def parse_header(block: bytes) -> tarfile.TarInfo:
    """Return what a block says of the member that follows; raise `InvalidRequest` if it is no header."""
    try:
        member = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
    except tarfile.HeaderError as error:
        raise InvalidRequest(f"this is not a tar archive, plain or gzip: {error}") from error
    if member.size < 0:
        raise InvalidRequest(f"archive member {member.name[:200]!r} has a negative size")
    return member


def check_extension(member: tarfile.TarInfo) -> None:
    """Raise `LimitExceeded` for an extended header that is larger than any name."""
    if member.size > _MAX_HEADER_BYTES:
        raise LimitExceeded(
            f"the archive has an extended header of {member.size} bytes;"
            f" the most is {_MAX_HEADER_BYTES}",
            limit_bytes=_MAX_HEADER_BYTES,
        )


def parse_name(data: bytes) -> str:
    """Return the long name that an extension holds."""
    return data.rstrip(b"\0").decode("utf-8", "surrogateescape")


def parse_pax(data: bytes) -> dict[str, str]:
    """Return the records of an extended header: `LENGTH NAME=VALUE` and a new line each."""
    records = {}
    while data:
        digits, space, _ = data.partition(b" ")
        if not space or not digits.isdigit() or len(digits) > 8:
            raise InvalidRequest("the archive has a broken extended header")
        length = int(digits)
        record, data = data[len(digits) + 1 : length], data[length:]
        name, equals, value = record.partition(b"=")
        if not equals or not value.endswith(b"\n"):
            raise InvalidRequest("the archive has a broken extended header")
        records[name.decode("utf-8", "replace")] = value[:-1].decode("utf-8", "surrogateescape")
    if any(name.startswith("GNU.sparse") for name in records):
        raise InvalidRequest("the archive holds a sparse file; pack it without --sparse")
    return records


def pax_size(records: dict[str, str], known: int | None) -> int | None:
    """Return the size that an extended header gives its member, else the one that is known."""
    text = records.get("size")
    if text is None:
        return known
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise InvalidRequest(f"the archive has a member of size {text[:40]!r}")
    return int(text)
