"""Images of a registry, over HTTPS by the distribution API; every answer is bounded, and checked against its digest.

Blocking: it is called in a thread of its own.
"""

from __future__ import annotations

import re
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from http.client import HTTPException, HTTPResponse
from typing import Any
from urllib.parse import urlencode, urljoin, urlsplit

from atoll.errors import Forbidden, InvalidRequest, LimitExceeded, NotFound, Unavailable
from atoll.model.image import RegistryImage
from atoll.node.images.source import (
    CONFIG_BYTES,
    INDEX_TYPES,
    MANIFEST_BYTES,
    MANIFEST_TYPES,
    Descriptor,
    Image,
    Layer,
    check_digest,
    choose_manifest,
    digest_of,
    parse_config,
    parse_manifest,
    parse_object,
)

_CHUNK = 1 << 20
_SILENCE_SECONDS = 30.0
_SECONDS = 3600.0
_MOST_REDIRECTS = 5
_TOKEN_BYTES = 256 << 10
_REDIRECTS = (301, 302, 303, 307, 308)
# What everybody calls one thing, and where it answers.
_REAL_HOSTS = {"docker.io": "registry-1.docker.io"}
_FIELD = re.compile(r'([a-z_]+)="([^"]*)"')


class Registry:
    """One registry, asked for one image."""

    def __init__(
        self,
        image: RegistryImage,
        *,
        allowed: Sequence[str] | None = None,
        context: ssl.SSLContext | None = None,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """Ask the image's registry, if it is among those `allowed`; None: any is.

        `check` is called for each piece of an answer, and may raise to give up.

        Raises:
            Forbidden: it is not.
        """
        if allowed is not None and image.registry not in allowed:
            raise Forbidden(
                f"images may come from {', '.join(allowed) or 'no registry'} here, not from {image.registry};"
                " the operator lists registries in node.image_registries",
                registry=image.registry,
            )
        self._image = image
        self._check = check
        scheme = "http" if image.is_loopback and context is None else "https"
        host = _REAL_HOSTS.get(image.registry, image.registry)
        self._base = f"{scheme}://{host}/v2/{image.path}/"
        self._token = ""
        self._deadline = time.monotonic() + _SECONDS
        handlers: list[urllib.request.BaseHandler] = [
            _NoRedirects(),
            urllib.request.HTTPSHandler(context=context or ssl.create_default_context()),
        ]
        if image.is_loopback:
            handlers.append(urllib.request.ProxyHandler({}))
        self._opener = urllib.request.build_opener(*handlers)

    def find(self) -> Image:
        """Return the image, its layers still to be fetched.

        Raises:
            NotFound: there is no such image, or none that everybody may have.
            InvalidRequest: the registry says what cannot be.
            Unsupported: there is none for this machine.
            Unavailable: the registry cannot be reached.
        """
        image = self._image
        data = self._manifest(image.digest or image.tag or "latest")
        if image.digest is not None:
            check_digest(data, image.digest, f"the manifest of {image}")
        found = parse_object(data, f"the manifest of {image}")
        name = (
            f"{image.registry}/{image.path}{f':{image.tag}' if image.tag else ''}@{digest_of(data)}"
        )
        if "manifests" in found:
            chosen = choose_manifest(found)
            data = self._manifest(chosen.digest)
            check_digest(data, chosen.digest, f"a manifest of {image}")
        stored, layers = parse_manifest(data)
        config = self._read_blob(stored)
        parts = [Layer(partial(self._chunks, each), each) for each in layers]
        return Image(name, parse_config(config), parts)

    def _manifest(self, reference: str) -> bytes:
        accept = ", ".join((*INDEX_TYPES, *MANIFEST_TYPES))
        with closing(self._get(f"manifests/{reference}", {"Accept": accept})) as answer:
            return self._read(answer, MANIFEST_BYTES)

    def _read_blob(self, wanted: Descriptor) -> bytes:
        with closing(self._get(f"blobs/{wanted.digest}")) as answer:
            data = self._read(answer, CONFIG_BYTES)
        return check_digest(data, wanted.digest, "the image's configuration")

    def _chunks(self, wanted: Descriptor) -> Iterator[bytes]:
        """Yield a blob, and never more than it should have."""
        with closing(self._get(f"blobs/{wanted.digest}")) as answer:
            left = wanted.size + 1
            while left > 0 and (chunk := self._read_some(answer, min(left, _CHUNK))):
                left -= len(chunk)
                yield chunk

    # --- one request -----------------------------------------------------------------------------------------

    def _get(self, path: str, headers: Mapping[str, str] | None = None) -> HTTPResponse:
        url = urljoin(self._base, path)
        answer = self._ask(url, headers or {})
        if answer.status == 401 and not self._token:
            challenge = answer.headers.get("WWW-Authenticate", "")
            answer.close()
            self._token = self._fetch_token(challenge)
            answer = self._ask(url, headers or {})
        if answer.status == 200:
            return answer
        answer.close()
        raise self._refusal(answer.status)

    def _refusal(self, status: int) -> NotFound | Unavailable:
        if status in (401, 403, 404):
            return NotFound(
                f"{self._image} is not there, or not for everybody (status {status}); check the name, or"
                " fetch it with `docker pull` and `docker save`, and use docker-archive:FILE.tar"
            )
        return Unavailable(f"registry {self._image.registry} answered with status {status}")

    def _fetch_token(self, challenge: str) -> str:
        """Return the token that everybody gets."""
        fields = dict(_FIELD.findall(challenge)) if challenge.lower().startswith("bearer ") else {}
        if "realm" not in fields:
            raise self._refusal(401)
        scope = f"repository:{self._image.path}:pull"
        question = urlencode({"service": fields.get("service", ""), "scope": scope})
        answer = self._ask(f"{fields['realm']}?{question}", {})
        with closing(answer):
            if answer.status != 200:
                raise self._refusal(answer.status)
            found = parse_object(self._read(answer, _TOKEN_BYTES), "the registry's token")
        token = found.get("token") or found.get("access_token")
        if not isinstance(token, str) or not token.isascii() or not token.isprintable():
            raise InvalidRequest(f"registry {self._image.registry} gave no token")
        return token

    def _ask(self, url: str, headers: Mapping[str, str]) -> HTTPResponse:
        """Ask, and follow where a registry leads; its token is for itself alone."""
        home = urlsplit(self._base).netloc
        for _ in range(_MOST_REDIRECTS):
            self._check_url(url)
            sent = {**headers, "User-Agent": "atoll"}
            if self._token and urlsplit(url).netloc == home:
                sent["Authorization"] = f"Bearer {self._token}"
            answer = self._open(urllib.request.Request(url, headers=sent))
            if answer.status not in _REDIRECTS:
                return answer
            url = urljoin(url, answer.headers.get("Location", ""))
            answer.close()
        raise Unavailable(f"registry {self._image.registry} leads from place to place without end")

    def _check_url(self, url: str) -> None:
        parts = urlsplit(url)
        is_home = parts.netloc == urlsplit(self._base).netloc
        # What is sent in the clear could be anybody's; a registry on this machine may do as it likes with itself.
        if parts.scheme != "https" and not (is_home and self._base.startswith("http://")):
            raise InvalidRequest(
                f"registry {self._image.registry} leads to {url[:120]!r}, which is not https"
            )

    def _open(self, request: urllib.request.Request) -> HTTPResponse:
        try:
            answer = self._opener.open(request, timeout=_SILENCE_SECONDS)
        except urllib.error.HTTPError as error:
            assert isinstance(error.fp, HTTPResponse)
            return error.fp
        except (OSError, HTTPException, ValueError) as error:
            raise Unavailable(
                f"registry {self._image.registry} cannot be reached: {getattr(error, 'reason', error)}"
            ) from error
        assert isinstance(answer, HTTPResponse)
        return answer

    def _read(self, answer: HTTPResponse, most_bytes: int) -> bytes:
        data = b""
        while chunk := self._read_some(answer, most_bytes + 1 - len(data)):
            data += chunk
            if len(data) > most_bytes:
                raise LimitExceeded(
                    f"registry {self._image.registry} answered with more than {most_bytes} bytes",
                    limit_bytes=most_bytes,
                )
        return data

    def _read_some(self, answer: HTTPResponse, most_bytes: int) -> bytes:
        self._check()
        if time.monotonic() > self._deadline:
            raise Unavailable(
                f"registry {self._image.registry} took longer than {_SECONDS:.0f} seconds"
            )
        try:
            return answer.read1(most_bytes)
        except (OSError, HTTPException) as error:
            raise Unavailable(
                f"registry {self._image.registry} broke off: {error}; try again"
            ) from error


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Leaves answers that lead elsewhere to whoever asked."""

    def redirect_request(self, *_args: Any, **_options: Any) -> None:
        return None
