"""Paths of URLs in one spelling, and patterns on them.

A rule on paths holds only if server and rule read a path alike. So a path is brought into its normal form, which is
also what has to be sent, and one that servers are known to read in two ways is refused.
"""

from __future__ import annotations

import re

from atoll.errors import InvalidRequest

# Of RFC 3986, without quotes, brackets, bars and the like, which have to be encoded.
_PATH = re.compile(r"/[A-Za-z0-9._~!$&'()*+,;=:@%/-]*")
_ENCODED = re.compile(r"%(?:([0-9A-Fa-f]{2}))?")
_TWICE = re.compile("%25(?:[0-9A-Fa-f]{2}|u)")
_UNRESERVED = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")


def normal_path(text: str) -> str:
    """Return a path (without its query) in its one spelling.

    Encoded letters are decoded, dot segments resolved. Raises `InvalidRequest` for what servers read in
    different ways: empty segments, encoded slashes, backslashes, controls, and what is encoded twice.
    """
    if not _PATH.fullmatch(text):
        raise _refused(
            text, "it does not start with '/' or holds characters that have to be encoded"
        )
    path = text
    if "%" in path:
        path = _ENCODED.sub(lambda match: _decode(match, text), path)
        if _TWICE.search(path):
            raise _refused(text, "it is encoded twice")
        _check_utf8(path, text)
    if "//" in path:
        raise _refused(text, "it has an empty segment")
    if "/." in path:
        path = _resolve_dots(path, text)
    return path


def matches_path(pattern: str, path: str) -> bool:
    """Tell whether a normal path fits a pattern, in which `*` stands for any characters."""
    first, *others = pattern.split("*")
    if not others:
        return path == pattern
    last = others.pop()
    if not path.startswith(first):
        return False
    # The earliest place is the best for every part, so nothing is ever tried twice.
    place = len(first)
    for part in others:
        found = path.find(part, place)
        if found < 0:
            return False
        place = found + len(part)
    return len(path) - len(last) >= place and path.endswith(last)


def _decode(match: re.Match[str], text: str) -> str:
    if match[1] is None:
        raise _refused(text, "'%' is not followed by two hexadecimal digits")
    octet = int(match[1], 16)
    if octet in _UNRESERVED:
        return chr(octet)
    if octet < 0x20 or octet in b"/\\\x7f":
        raise _refused(text, f"{match[0]} is an encoded slash, backslash or control character")
    return match[0].upper()


def _check_utf8(path: str, text: str) -> None:
    # Overlong forms of '/' and '.' are not UTF-8, yet some servers decode them.
    octets = _ENCODED.sub(lambda match: chr(int(match[1], 16)), path).encode("latin-1")
    try:
        octets.decode()
    except UnicodeDecodeError:
        raise _refused(text, "what is encoded is not UTF-8") from None


def _resolve_dots(path: str, text: str) -> str:
    kept: list[str] = []
    segments = path.split("/")[1:]
    for segment in segments:
        if segment == "..":
            del kept[-1:]
        elif segment.startswith((".;", "..;", ".%3B", "..%3B")):
            # Some servers remove what follows the semicolon first, and find dots then.
            raise _refused(text, "it has parameters on a dot segment")
        elif segment != ".":
            kept.append(segment)
    if segments[-1] in (".", ".."):
        kept.append("")
    return "/" + "/".join(kept)


def _refused(text: str, fault: str) -> InvalidRequest:
    return InvalidRequest(
        f"path {text[:80]!r} is refused where rules are about paths: {fault}; write it like '/v1/items'"
    )
