"""Why an attempt did not come to anything, and how that is told inside."""

from __future__ import annotations

from typing import Literal


class Refused(Exception):
    """An attempt that ends here; `status` is what HTTP calls it. The reason is shown inside."""

    verdict: Literal["refused", "failed"] = "refused"

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


class DialFailed(Refused):
    """It was allowed, but the host could not be reached."""

    verdict = "failed"


_PHRASES = {
    400: "Bad Request",
    403: "Forbidden",
    408: "Request Timeout",
    431: "Request Header Fields Too Large",
    501: "Not Implemented",
    502: "Bad Gateway",
    503: "Service Unavailable",
    504: "Gateway Timeout",
}


def answer(refused: Refused) -> bytes:
    """Return the whole answer; the connection ends after it."""
    data = f"atoll: {refused.reason}\n".encode("utf-8", "backslashreplace")
    head = (
        f"HTTP/1.1 {refused.status} {_PHRASES[refused.status]}\r\n"
        "Content-Type: text/plain; charset=utf-8\r\n"
        f"Content-Length: {len(data)}\r\n"
        f"X-Atoll-Egress: {refused.verdict}\r\n"
        "X-Content-Type-Options: nosniff\r\n"
        "Connection: close\r\n"
        "\r\n"
    )
    return head.encode() + data
