"""Long texts made short for those who read them whole, such as models: head and tail stay, and a note tells what is missing."""

from __future__ import annotations

from dataclasses import dataclass

# Where both ends are kept, the head gets this part of the room: results and first errors stand there.
_HEAD_SHARE = 0.6
_LEAST = 200


@dataclass(frozen=True, slots=True)
class CutLimits:
    """The most characters of each part of a cell that a tool hands on."""

    stdout: int = 50_000
    stderr: int = 120_000
    result: int = 30_000
    traceback: int = 8_000

    def __post_init__(self) -> None:
        for name in self.__slots__:
            most = getattr(self, name)
            if type(most) is not int or most < _LEAST:
                raise ValueError(
                    f"{name} is {most!r}; it has to be a whole number from {_LEAST} up"
                )


@dataclass(frozen=True, slots=True)
class CutText:
    """A text within its limit, and how many characters the whole one has."""

    text: str
    length: int
    is_cut: bool = False


def cut_text(
    text: str,
    most: int,
    what: str,
    *,
    way_out: str = "",
    length: int | None = None,
    is_part: bool = False,
) -> CutText:
    """Return a text of at most `most` characters: all of it, or its head and tail around a note.

    Args:
        text: what there is.
        most: how many characters it may have, the note included.
        what: what to call it in the note, such as "stdout".
        way_out: how to read the rest, such as "write it to a file and read that".
        length: how long it was in all, if what there is was cut before.
        is_part: it was cut before, and nobody knows how long it was.
    """
    whole = max(len(text), length or 0)
    if len(text) <= most and whole == len(text) and not is_part:
        return CutText(text, whole)
    note = _note(what, f"{'more than ' if is_part else ''}{whole:,}", way_out)
    room = max(0, most - len(note))
    if len(text) <= room:
        # Its tail was lost before.
        return CutText(text + note, whole, is_cut=True)
    head = int(room * _HEAD_SHARE)
    tail = room - head
    return CutText(text[:head] + note + (text[-tail:] if tail else ""), whole, is_cut=True)


def _note(what: str, length: str, way_out: str) -> str:
    advice = f"; {way_out}" if way_out else ""
    return f"\n[… {what} is cut: {length} characters in all{advice} …]\n"
