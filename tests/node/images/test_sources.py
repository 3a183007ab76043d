"""Images from archives, layouts and a registry: what they say is checked, and what they are not is refused."""

from __future__ import annotations

import json
import ssl
import subprocess
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.errors import (
    Forbidden,
    InvalidRequest,
    LimitExceeded,
    NotFound,
    Unavailable,
    Unsupported,
)
from atoll.model.image import LocalImage, RegistryImage, parse_image
from atoll.node.images.limits import ImageLimits
from atoll.node.images.local import open_archive, open_layout
from atoll.node.images.opening import open_image
from atoll.node.images.registry import Registry
from atoll.node.images.source import Image, own_architecture, parse_config
from atoll.node.images.unpacking import unpack
from tests.image_files import (
    blobs_of,
    config,
    digest,
    file,
    index_of,
    layer,
    link,
    save_docker,
    save_layout,
)

pytestmark = pytest.mark.any_user

LAYERS = (layer(file("usr/a", b"lower")), layer(file("usr/b", b"upper"), file("usr/.wh.a")))


def unpacked(image: Image, path: Path, limits: ImageLimits | None = None) -> dict[str, bytes]:
    """Return the files of an image below /usr."""
    path.mkdir()
    unpack(image, path, limits or ImageLimits())
    return {each.name: each.read_bytes() for each in (path / "root" / "usr").iterdir()}


def test_the_same_image_comes_out_of_every_form(tmp_path: Path) -> None:
    settings = config(LAYERS, ["A=b", "EMPTY=", "1BAD=x", "NO", "PATH=/usr/bin"])
    save_docker(tmp_path / "saved.tar", LAYERS, settings)
    save_layout(tmp_path / "layout", LAYERS, settings)
    packed = tmp_path / "layout.tar"
    subprocess.run(["tar", "-cf", packed, "-C", tmp_path / "layout", "."], check=True)
    opened = (
        open_archive(tmp_path / "saved.tar"),
        open_archive(tmp_path / "saved.tar", "tested:1"),
        open_layout(tmp_path / "layout"),
        open_layout(tmp_path / "layout", "tested"),
        open_archive(packed),
    )
    for number, each in enumerate(opened):
        with each as image:
            assert unpacked(image, tmp_path / str(number)) == {"b": b"upper"}
            assert image.config.digest == digest(settings)
            assert image.config.env == {"A": "b", "EMPTY": "", "PATH": "/usr/bin"}
            assert str(tmp_path) not in image.name


def test_layers_that_are_shared_are_found_by_their_links(tmp_path: Path) -> None:
    settings = config(LAYERS[:1])
    manifest = [{"Config": "c.json", "RepoTags": None, "Layers": ["one/layer.tar"]}]
    members = [
        file("two/layer.tar", LAYERS[0]),
        link("one/layer.tar", "../two/layer.tar"),
        file("c.json", settings),
        file("manifest.json", json.dumps(manifest).encode()),
    ]
    (tmp_path / "x.tar").write_bytes(layer(*members))
    with open_archive(tmp_path / "x.tar") as image:
        assert unpacked(image, tmp_path / "out") == {"a": b"lower"}
    # Never a file of this machine.
    members[1] = link("one/layer.tar", "/etc/passwd")
    (tmp_path / "y.tar").write_bytes(layer(*members))
    with open_archive(tmp_path / "y.tar") as image, pytest.raises(NotFound, match="lacks its part"):
        unpacked(image, tmp_path / "stolen")


def test_what_is_not_what_its_digest_says_is_refused(tmp_path: Path) -> None:
    changed = layer(file("usr/a", b"LOWER"))
    # By the configuration, whatever the archive calls it.
    save_docker(tmp_path / "a.tar", [changed], config(LAYERS[:1]))
    with (
        open_archive(tmp_path / "a.tar") as image,
        pytest.raises(InvalidRequest, match="layer 1 is not what"),
    ):
        unpacked(image, tmp_path / "a")
    # By the name of the configuration.
    data = (tmp_path / "a.tar").read_bytes()
    (tmp_path / "b.tar").write_bytes(data.replace(b'"os": "linux"', b'"os":  "linux"'[:13]))
    with pytest.raises(InvalidRequest), open_archive(tmp_path / "b.tar"):
        pass
    # By each blob's own.
    for part in range(4):
        top = tmp_path / f"layout-{part}"
        save_layout(top, LAYERS)
        blob = sorted((top / "blobs" / "sha256").iterdir())[part]
        content = bytearray(blob.read_bytes())
        content[len(content) // 2] ^= 1
        blob.write_bytes(bytes(content))
        with pytest.raises(InvalidRequest), open_layout(top) as image:
            unpacked(image, tmp_path / f"out-{part}")
    # One that is longer, or shorter, than was said.
    for name, end, more in (("long", None, b"\0"), ("short", -1, b"")):
        top = tmp_path / name
        save_layout(top, LAYERS)
        for blob in (top / "blobs" / "sha256").iterdir():
            if blob.read_bytes()[:2] == b"\x1f\x8b":
                blob.write_bytes(blob.read_bytes()[:end] + more)
        with pytest.raises(InvalidRequest), open_layout(top) as image:
            unpacked(image, tmp_path / f"{name}-out")


def test_bombs_are_stopped_long_before_their_end(tmp_path: Path) -> None:
    # A thousand times its size: never written, however large the tree may be.
    packer = zlib.compressobj(9, wbits=31)
    bomb = b"".join(packer.compress(bytes(1 << 20)) for _ in range(64)) + packer.flush()
    settings = config([b""])
    manifest, blobs = blobs_of([b""], settings)
    found = json.loads(manifest)
    found["layers"][0] = {"mediaType": "x", "digest": digest(bomb), "size": len(bomb)}
    manifest = json.dumps(found).encode()
    top = tmp_path / "layout"
    (top / "blobs" / "sha256").mkdir(parents=True)
    for data in (settings, bomb, manifest):
        (top / "blobs" / "sha256" / digest(data).removeprefix("sha256:")).write_bytes(data)
    (top / "index.json").write_bytes(index_of(manifest))
    with open_layout(top) as image, pytest.raises(LimitExceeded, match="200 times"):
        unpacked(image, tmp_path / "ratio")
    # Uncompressed ones by their size.
    plain = layer(file("usr/a", bytes(3 << 20)))
    save_docker(tmp_path / "big.tar", [plain])
    for total in (1 << 20, 2 << 20):
        with open_archive(tmp_path / "big.tar") as image, pytest.raises(LimitExceeded):
            unpacked(image, tmp_path / str(total), ImageLimits(total_bytes=total))
    assert blobs


class GivenUp(Exception):
    pass


def give_up() -> None:
    raise GivenUp


def test_an_archive_of_too_many_members_is_refused(tmp_path: Path) -> None:
    # The same one again and again, and ones whose names take headers of their own.
    (tmp_path / "same.tar").write_bytes(layer(file("a"))[:512] * 10_001)
    (tmp_path / "long.tar").write_bytes(layer(file("a/" + "n" * 200))[: 3 * 512] * 5_001)
    for name in ("same.tar", "long.tar"):
        with (
            pytest.raises(LimitExceeded, match="more than 10000 members"),
            open_archive(tmp_path / name),
        ):
            pass


def test_who_gives_up_does_not_wait_for_an_image_to_be_found(
    tmp_path: Path, registry: FakeRegistry
) -> None:
    save_docker(tmp_path / "saved.tar", LAYERS)
    archive = parse_image(f"docker-archive:{tmp_path / 'saved.tar'}")
    for wanted in (archive, image_of(registry)):
        with pytest.raises(GivenUp), open_image(wanted, None, give_up):
            pass


def test_what_is_no_image_says_so(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="cannot be read"), open_archive(tmp_path / "missing"):
        pass
    with pytest.raises(InvalidRequest, match="is no file"), open_archive(tmp_path):
        pass
    (tmp_path / "x.tar").write_bytes(layer(file("readme")))
    with pytest.raises(InvalidRequest, match="is no image"), open_archive(tmp_path / "x.tar"):
        pass
    save_docker(tmp_path / "two.tar", LAYERS)
    with pytest.raises(InvalidRequest, match="0 images"), open_archive(tmp_path / "two.tar", "no"):
        pass
    foreign = config(LAYERS, architecture="s390x")
    save_docker(tmp_path / "foreign.tar", LAYERS, foreign)
    with pytest.raises(Unsupported, match="linux/s390x"), open_archive(tmp_path / "foreign.tar"):
        pass
    with pytest.raises(LimitExceeded, match="layers"):
        parse_config(config([b""] * 200))
    packed = save_zstd(tmp_path / "zstd")
    with open_layout(packed) as image, pytest.raises(Unsupported, match="zstd"):
        unpacked(image, tmp_path / "out")


def save_zstd(top: Path) -> Path:
    data = b"\x28\xb5\x2f\xfd rest"
    settings = config([data])
    manifest = json.loads(blobs_of([data], settings)[0])
    manifest["layers"][0] = {"mediaType": "x", "digest": digest(data), "size": len(data)}
    text = json.dumps(manifest).encode()
    (top / "blobs" / "sha256").mkdir(parents=True)
    for each in (data, settings, text):
        (top / "blobs" / "sha256" / digest(each).removeprefix("sha256:")).write_bytes(each)
    (top / "index.json").write_bytes(index_of(text))
    return top


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["rootfs", "diff_ids", "config", "Env", "os", "architecture"]),
                inner,
                max_size=4,
            )
        ),
        max_leaves=8,
    )
)
def test_any_configuration_is_taken_or_refused(value: object) -> None:
    if isinstance(value, dict):
        value = {"os": "linux", "architecture": own_architecture(), **value}
    try:
        assert parse_config(json.dumps(value).encode()).digest
    except (InvalidRequest, Unsupported, LimitExceeded):
        pass


# --- names -------------------------------------------------------------------------------------------------


def test_names_of_images_mean_one_thing() -> None:
    assert parse_image("python:3.13") == RegistryImage("docker.io", "library/python", "3.13", None)
    assert parse_image("team/tool") == RegistryImage("docker.io", "team/tool", "latest", None)
    pinned = f"reg.example:5000/a/b@sha256:{'0' * 64}"
    assert parse_image(pinned) == RegistryImage(
        "reg.example:5000", "a/b", None, f"sha256:{'0' * 64}"
    )
    assert parse_image("docker-archive:/a/b.tar:x") == LocalImage("docker-archive", "/a/b.tar", "x")  # type: ignore[arg-type]
    assert parse_image("localhost:5000/x").is_loopback  # type: ignore[union-attr]
    assert not parse_image("127.0.0.1.evil.example/x").is_loopback  # type: ignore[union-attr]
    for bad in (
        "",
        "UPPER",
        "a//b",
        "x:",
        "x@sha256:12",
        "../x",
        "a b",
        "x\n",
        "oci:",
        "-x",
        "http://x/y",
        "reg.example/x?y",
        "reg.example/../x",
        "user@reg.example/x",
        "reg.example#/x",
        "a" * 600,
    ):
        with pytest.raises(InvalidRequest):
            parse_image(bad)


@given(st.text(max_size=60))
def test_a_name_never_becomes_another_address(text: str) -> None:
    try:
        image = parse_image(text)
    except InvalidRequest:
        return
    if isinstance(image, RegistryImage):
        assert not set(f"{image.registry}{image.path}") & set(" ?#@\\\"'%\n\r")
        assert ".." not in image.path.split("/")


# --- a registry --------------------------------------------------------------------------------------------


class FakeRegistry(ThreadingHTTPServer):
    """A registry of the distribution API, with one image; what it answers can be bent."""

    daemon_threads = True

    def __init__(self, handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__(("127.0.0.1", 0), handler)
        self.manifest, self.blobs = blobs_of(LAYERS)
        self.needs_token = False
        self.moved_to = ""
        self.asked: list[tuple[str, str | None]] = []
        self.bend: Callable[[str, bytes], bytes] = lambda _path, data: data

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server_address[1]}"

    def find(self, path: str) -> bytes | None:
        index = index_of(self.manifest)
        for known in ("latest", digest(index)):
            if path == f"/v2/team/tool/manifests/{known}":
                return index
        if path == f"/v2/team/tool/manifests/{digest(self.manifest)}":
            return self.manifest
        return self.blobs.get(path.removeprefix("/v2/team/tool/blobs/"))


class _Answers(BaseHTTPRequestHandler):
    server: FakeRegistry

    def do_GET(self) -> None:
        registry, token = self.server, self.headers.get("Authorization")
        registry.asked.append((self.path, token))
        if self.path.startswith("/token"):
            self._send(200, b'{"token": "for-everybody"}')
        elif registry.needs_token and token != "Bearer for-everybody":
            realm = f'Bearer realm="http://{registry.address}/token",service="s"'
            self._send(401, b"", {"WWW-Authenticate": realm})
        elif registry.moved_to and "/blobs/" in self.path:
            self._send(307, b"", {"Location": f"{registry.moved_to}{self.path}"})
        elif (data := registry.find(self.path)) is None:
            self._send(404, b"{}")
        else:
            self._send(200, registry.bend(self.path, data))

    def _send(self, status: int, data: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_args: Any) -> None:
        pass


@contextmanager
def serving(context: ssl.SSLContext | None = None) -> Iterator[FakeRegistry]:
    with FakeRegistry(_Answers) as server:
        if context is not None:
            server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def registry() -> Iterator[FakeRegistry]:
    with serving() as server:
        yield server


def image_of(registry: FakeRegistry, rest: str = "") -> RegistryImage:
    image = parse_image(f"{registry.address}/team/tool{rest}")
    assert isinstance(image, RegistryImage)
    return image


def test_an_image_is_fetched_by_name_and_by_digest(registry: FakeRegistry, tmp_path: Path) -> None:
    registry.needs_token = True
    image = Registry(image_of(registry)).find()
    assert unpacked(image, tmp_path / "a") == {"b": b"upper"}
    pin = image.name.partition("@")[2]
    again = Registry(image_of(registry, f"@{pin}")).find()
    assert unpacked(again, tmp_path / "b") == {"b": b"upper"}
    assert ("/v2/team/tool/manifests/latest", "Bearer for-everybody") in registry.asked
    with pytest.raises(NotFound, match="docker save"):
        Registry(image_of(registry, ":missing")).find()


def test_an_answer_that_was_changed_on_its_way_is_refused(
    registry: FakeRegistry, tmp_path: Path
) -> None:
    pin = digest(index_of(registry.manifest))
    bends: dict[str, Callable[[str, bytes], bytes]] = {
        "manifests/sha256": lambda path, data: data.replace(b"application", b"Application"),
        "manifests/latest": lambda path, data: data.replace(b"sha256:", b"sha512:"),
        "blobs": lambda path, data: data[:-1] + bytes([data[-1] ^ 1]),
        "blobs/": lambda path, data: data + b"x",
    }
    for number, (part, bend) in enumerate(bends.items()):
        registry.bend = lambda path, data, part=part, bend=bend: (  # type: ignore[misc]
            bend(path, data) if part in path else data
        )
        rest = f"@{pin}" if "sha256" in part else ""
        with pytest.raises(InvalidRequest):
            unpacked(Registry(image_of(registry, rest)).find(), tmp_path / str(number))
    registry.bend = lambda path, data: data if "blobs" in path else data + b" " * (5 << 20)
    with pytest.raises(LimitExceeded, match="more than"):
        Registry(image_of(registry)).find()
    registry.bend = lambda path, data: b"[" * 100_000
    with pytest.raises(InvalidRequest):
        Registry(image_of(registry)).find()


def test_a_registry_leads_nowhere_that_is_not_https_and_its_token_stays(
    registry: FakeRegistry,
) -> None:
    registry.needs_token = True
    with serving() as other:
        for place in (f"http://{other.address}", "file://", "ftp://127.0.0.1"):
            registry.moved_to = place
            with pytest.raises(InvalidRequest, match="not https"):
                Registry(image_of(registry)).find()
        assert not other.asked
    registry.moved_to = f"http://{registry.address}"
    with pytest.raises(Unavailable, match="from place to place"):
        Registry(image_of(registry)).find()


def test_only_registries_that_are_allowed_are_asked(registry: FakeRegistry) -> None:
    with pytest.raises(Forbidden, match="image_registries"):
        Registry(image_of(registry), allowed=("other.example",))
    assert not registry.asked
    assert Registry(image_of(registry), allowed=(registry.address,)).find()
    with pytest.raises(Unavailable, match="cannot be reached"):
        Registry(image_of(registry), context=ssl.create_default_context()).find()


def test_a_registry_is_known_by_its_certificate(tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-subj",
        "/CN=x",
        "-days",
        "2",
        "-addext",
        "subjectAltName=IP:127.0.0.1",
        "-keyout",
        str(key),
        "-out",
        str(certificate),
    ]
    subprocess.run(command, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with serving(context) as server:
        trusted = ssl.create_default_context(cafile=certificate)
        image = Registry(image_of(server), context=trusted).find()
        assert unpacked(image, tmp_path / "out") == {"b": b"upper"}
        with pytest.raises(Unavailable, match="certificate"):
            Registry(image_of(server), context=ssl.create_default_context()).find()
