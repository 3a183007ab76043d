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
_MOST_EXTENSIONS = 8  # of one member; there are four kinds
_MOST_DIGITS = 8


def parse_header(block: bytes) -> tarfile.TarInfo:
    """Return what a block says of the member that follows; raise `InvalidRequest` if it is no header."""
    try:
        member = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
    except tarfile.HeaderError as error:
        raise InvalidRequest(f"this is not a tar archive, plain or gzip: {error}") from error
    if member.size < 0:
        raise InvalidRequest(f"archive member {member.name[:200]!r} has a negative size")
    return member


def check_extension(member: tarfile.TarInfo, number: int) -> None:
    """Raise `LimitExceeded` for an extended header that is larger than any name, or one too many of its member's."""
    if number > _MOST_EXTENSIONS:
        raise LimitExceeded(
            f"the archive has more than {_MOST_EXTENSIONS} extended headers for one member; pack it anew",
            limit=_MOST_EXTENSIONS,
        )
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
    position = 0
    while position < len(data):
        space = data.find(b" ", position, position + _MOST_DIGITS + 1)
        digits = data[position : max(space, position)]
        if not digits.isdigit():
            raise InvalidRequest("the archive has a broken extended header")
        end = position + int(digits)
        name, equals, value = data[space + 1 : end].partition(b"=")
        if not equals or not value.endswith(b"\n"):
            raise InvalidRequest("the archive has a broken extended header")
        records[name.decode("utf-8", "replace")] = value[:-1].decode("utf-8", "surrogateescape")
        position = end
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
