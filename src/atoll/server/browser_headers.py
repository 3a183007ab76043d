"""What every answer tells browsers, so that nothing from a sandbox acts with the rights of whoever looks at it."""

from __future__ import annotations

from starlette.types import Message, Send

_STARTS = ("http.response.start", "websocket.http.response.start")
_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
    # Answers are no pages. A file of a sandbox that a browser shows all the same can do nothing.
    (
        b"content-security-policy",
        b"default-src 'none'; frame-ancestors 'none'; base-uri 'none'; sandbox",
    ),
)
HEADER_LINES = b"".join(b"%s: %s\r\n" % each for each in _HEADERS)


def add_browser_headers(send: Send) -> Send:
    """Return a `send` that adds them; where an answer has one of them, it keeps its own."""

    async def send_on(message: Message) -> None:
        if message["type"] in _STARTS:
            headers = list(message.get("headers", ()))
            present = {name.lower() for name, _ in headers}
            headers += [each for each in _HEADERS if each[0] not in present]
            message["headers"] = headers
        await send(message)

    return send_on
