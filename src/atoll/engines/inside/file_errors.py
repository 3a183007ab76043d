"""What the file server's error numbers mean to a caller."""

from __future__ import annotations

import errno
import os

from atoll.errors import (
    AtollError,
    Conflict,
    Forbidden,
    InvalidRequest,
    LimitExceeded,
    NotFound,
    Unavailable,
)


def file_error(number: int, path: str) -> AtollError:
    """Return the error that tells about an errno."""
    kind, message = _ERRORS.get(number, (Unavailable, "{path!r}: {reason}"))
    return kind(message.format(path=path, reason=os.strerror(number)), path=path)


_ERRORS: dict[int, tuple[type[AtollError], str]] = {
    errno.ENOENT: (NotFound, "there is no {path!r} in the workspace"),
    errno.EISDIR: (InvalidRequest, "{path!r} is a directory; list it, or remove it with recursive"),
    errno.ENOTDIR: (InvalidRequest, "a part of {path!r} is a file, not a directory"),
    errno.EEXIST: (InvalidRequest, "{path!r} exists already as something else"),
    errno.ENXIO: (
        InvalidRequest,
        "{path!r} is a pipe, socket or device; only regular files can be read",
    ),
    errno.ENOTEMPTY: (InvalidRequest, "directory {path!r} is not empty; remove it with recursive"),
    errno.EXDEV: (InvalidRequest, "{path!r} leads out of the workspace, or to another mount in it"),
    errno.ELOOP: (InvalidRequest, "{path!r} goes through links that lead nowhere"),
    errno.ENAMETOOLONG: (InvalidRequest, "{path!r} is longer than the kernel takes"),
    errno.EINVAL: (InvalidRequest, "{path!r} cannot be used so: {reason}"),
    errno.EACCES: (Forbidden, "{path!r} has a mode that keeps its owner out; change it with chmod"),
    errno.EPERM: (Forbidden, "{path!r} may not be changed"),
    errno.EROFS: (Forbidden, "{path!r} is on a read-only mount"),
    errno.ENOSPC: (
        LimitExceeded,
        "the workspace is full, there is no room for {path!r}; remove files, or create it with more workspace_bytes",
    ),
    errno.EDQUOT: (
        LimitExceeded,
        "the workspace is full, there is no room for {path!r}; remove files, or create it with more workspace_bytes",
    ),
    errno.EFBIG: (
        LimitExceeded,
        "{path!r} would be larger than a file may be; split it, or raise file_bytes",
    ),
    errno.ENOMEM: (LimitExceeded, "the sandbox has no memory left for {path!r}; free some"),
    errno.EAGAIN: (
        LimitExceeded,
        "the sandbox has no room for the process that reaches {path!r}; end some of its processes",
    ),
    errno.EBUSY: (Conflict, "{path!r} is in use, or being filled as fast as it is emptied"),
    errno.ECANCELED: (Unavailable, "{path!r} was not sent whole; nothing was changed"),
}
