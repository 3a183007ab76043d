"""Pictures at a terminal, in place or as files."""

from __future__ import annotations

import base64
import re
from pathlib import Path

import pytest

from atoll.cli.repl_pictures import Pictures
from atoll.model.kernel import Bundle

pytestmark = pytest.mark.any_user
PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 40


def bundle(kind: str, value: str) -> Bundle:
    return Bundle({"text/plain": "<Figure>", kind: value}, {})


def test_a_terminal_that_can_shows_them_in_place() -> None:
    png = bundle("image/png", base64.b64encode(PNG).decode())
    for environ in ({"KITTY_WINDOW_ID": "1"}, {"TERM": "xterm-kitty"}, {"TERM_PROGRAM": "ghostty"}):
        shown = Pictures(environ).show(png)
        pieces = re.findall(r"\x1b_G([^;]*);([A-Za-z0-9+/=]*)\x1b\\", shown)
        assert base64.b64decode("".join(text for _keys, text in pieces)) == PNG
        assert pieces[0][0] == "f=100,a=T,m=1"
        assert [keys for keys, _text in pieces[1:]] == ["m=1"] * (len(pieces) - 2) + ["m=0"]
        assert max(len(text) for _keys, text in pieces) <= 4096
    shown = Pictures({"TERM_PROGRAM": "iTerm.app"}).show(png)
    found = re.fullmatch(r"\x1b]1337;File=inline=1;size=(\d+):([A-Za-z0-9+/=]+)\x07", shown)
    assert found is not None
    assert (int(found[1]), base64.b64decode(found[2])) == (len(PNG), PNG)


def test_elsewhere_they_are_saved_and_named() -> None:
    pictures = Pictures({"TERM": "xterm"})
    first = pictures.show(bundle("image/png", base64.b64encode(PNG).decode()))
    second = pictures.show(bundle("image/svg+xml", "<svg/>"))
    paths = [Path(each.removeprefix("picture: ")) for each in (first, second)]
    try:
        assert paths[0].read_bytes() == PNG
        assert paths[1].read_text() == "<svg/>"
        assert paths[0].parent.stat().st_mode & 0o077 == 0
    finally:
        for path in paths:
            path.unlink()
        paths[0].parent.rmdir()


def test_what_is_no_picture_shows_nothing() -> None:
    assert Pictures({}).show(Bundle({"text/plain": "1"}, {})) == ""
    assert Pictures({}).show(bundle("image/png", "é")) == ""
