"""Texts that may come from a sandbox, as JSON can carry them."""

from __future__ import annotations


def plain(text: str) -> str:
    """Return a text with a mark in place of what is no UTF-8, such as odd bytes in the name of a file."""
    return text.encode("utf-8", "replace").decode()
