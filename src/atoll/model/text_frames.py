"""Text messages as WebSockets carry them (RFC 6455), each whole in one frame: what nearly all of ours are.

A library that knows all of the protocol takes longer for one than a cell does. Whatever is not such a message is left to it.
"""

from __future__ import annotations

_FINAL_TEXT = 0x81
_MASKED = 0x80
_LENGTH_16, _LENGTH_64 = 126, 127
_MASK_BYTES = 4


def write_text_frame(text: str, mask: bytes | None = None) -> bytes:
    """Return a message as its frame, masked as those of clients have to be; raises `UnicodeEncodeError` for half characters."""
    payload = text.encode()
    bit, size = (0 if mask is None else _MASKED), len(payload)
    if size < _LENGTH_16:
        head = bytes((_FINAL_TEXT, bit | size))
    elif size < 1 << 16:
        head = bytes((_FINAL_TEXT, bit | _LENGTH_16)) + size.to_bytes(2)
    else:
        head = bytes((_FINAL_TEXT, bit | _LENGTH_64)) + size.to_bytes(8)
    return head + payload if mask is None else head + mask + _masked(payload, mask)


class TextFrames:
    """Takes apart what comes, as long as that is nothing but such messages of at most `most_bytes`."""

    def __init__(self, *, are_masked: bool, most_bytes: int) -> None:
        self._mask_bit = _MASKED if are_masked else 0
        self._most_bytes = most_bytes
        self.rest = b""  # what has come behind the last whole message
        self.is_over = False  # that is something else, and nothing more can be taken

    def take(self, data: bytes) -> list[str]:
        """Return the messages that have become whole."""
        self.rest = self.rest + data if self.rest else data
        texts: list[str] = []
        while self.rest and not self.is_over:
            begin, end = self._find_frame()
            if end > len(self.rest):
                break
            try:
                texts.append(self._payload(begin, end).decode())
            except UnicodeDecodeError:
                self.is_over = True
            else:
                self.rest = self.rest[end:]
        return texts

    def _find_frame(self) -> tuple[int, int]:
        """Return where the payload of the first frame begins and ends: past all there is if more has to come, or never will."""
        data = self.rest
        if data[0] != _FINAL_TEXT or (len(data) > 1 and data[1] & _MASKED != self._mask_bit):
            self.is_over = True
        begin = 2
        size = data[1] & ~_MASKED if len(data) > 1 else 0
        if size >= _LENGTH_16:
            begin = 4 if size == _LENGTH_16 else 10
            size = int.from_bytes(data[2:begin]) if len(data) >= begin else 0
            shortest = _LENGTH_16 if begin == 4 else 1 << 16
            if len(data) >= begin and not shortest <= size <= self._most_bytes:
                self.is_over = True
        begin += _MASK_BYTES if self._mask_bit else 0
        is_known = len(data) >= begin and not self.is_over
        return begin, begin + size if is_known else len(data) + 1

    def _payload(self, begin: int, end: int) -> bytes:
        payload = self.rest[begin:end]
        return (
            _masked(payload, self.rest[begin - _MASK_BYTES : begin]) if self._mask_bit else payload
        )


def _masked(payload: bytes, mask: bytes) -> bytes:
    size = len(payload)
    key = (mask * (size // _MASK_BYTES + 1))[:size]
    return (int.from_bytes(payload) ^ int.from_bytes(key)).to_bytes(size)
