"""A server as programs expect one: files, git over HTTP, indexes of packages for pip, npm, apt and R, and WebSockets."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import ssl
import subprocess
import tarfile
import zipfile
from pathlib import Path

from wsproto.connection import Connection, ConnectionType
from wsproto.events import CloseConnection, Message, Request, TextMessage
from wsproto.utilities import generate_accept_token

from tests.egress.outside import WebServer, WebServerHandler

PAGE = b"a page from outside\n"
PACKAGE, VERSION = "atollprobe", "1.0"
GREETING = "hello from a package"


class Origin(WebServer):
    """Serves what `make_content` wrote, over TLS if it is given a context."""

    def __init__(self, content: Path, context: ssl.SSLContext | None = None) -> None:
        super().__init__(context)
        self.RequestHandlerClass = _Handler
        self.content = content
        self.scheme = "http" if context is None else "https"


class _Handler(WebServerHandler):
    server: Origin

    def do_GET(self) -> None:
        self.server.seen.append((self.command, self.path, dict(self.headers.items())))
        path = self.path.partition("?")[0]
        if path.startswith("/git/"):
            self._serve_git()
        elif path == "/socket":
            self._speak_websocket()
        elif path == "/echo":
            self.answer(200, self.read_body())
        elif path == f"/npm/{PACKAGE}":
            self.answer(200, self._describe_npm(), [("Content-Type", "application/json")])
        else:
            self._serve_file(path)

    do_POST = do_PUT = do_HEAD = do_GET

    def _serve_file(self, path: str) -> None:
        file = self.server.content / path.lstrip("/")
        if file.is_dir():
            file /= "index.html"
        if not file.is_file():
            self.answer(404, b"there is no such page")
            return
        kind = "text/html" if file.suffix == ".html" else "application/octet-stream"
        self.answer(200, file.read_bytes(), [("Content-Type", kind)])

    def _describe_npm(self) -> bytes:
        """Return what a registry says of a package; it names the place of the file whole."""
        file = f"{PACKAGE}-{VERSION}.0.tgz"
        content = (self.server.content / "npm" / file).read_bytes()
        version = {
            "name": PACKAGE,
            "version": f"{VERSION}.0",
            "dist": {
                "tarball": f"{self.server.scheme}://{self.headers['Host']}/npm/{file}",
                "shasum": hashlib.sha1(content).hexdigest(),
            },
        }
        told = {
            "name": PACKAGE,
            "dist-tags": {"latest": f"{VERSION}.0"},
            "versions": {f"{VERSION}.0": version},
        }
        return json.dumps(told).encode()

    def _serve_git(self) -> None:
        """Let git's own program answer."""
        path, _, query = self.path.partition("?")
        body = self.read_body()
        env = {
            "PATH": "/usr/bin:/bin",
            "GIT_PROJECT_ROOT": str(self.server.content / "git"),
            "GIT_HTTP_EXPORT_ALL": "1",
            "PATH_INFO": path.removeprefix("/git"),
            "QUERY_STRING": query,
            "REQUEST_METHOD": self.command,
            "REMOTE_USER": "somebody",  # who may push
            "REMOTE_ADDR": "127.0.0.1",
            "CONTENT_TYPE": self.headers.get("Content-Type", ""),
            "CONTENT_LENGTH": str(len(body)),
            "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
            "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
        }
        done = subprocess.run(["git", "http-backend"], input=body, env=env, capture_output=True)
        head, _, content = done.stdout.partition(b"\r\n\r\n")
        pairs = [line.partition(": ") for line in head.decode().split("\r\n")]
        headers = [(name, value) for name, _, value in pairs]
        status = next((int(value[:3]) for name, value in headers if name == "Status"), 200)
        self.answer(status, content, [each for each in headers if each[0] != "Status"])

    def _speak_websocket(self) -> None:
        """Agree, then say back each message in capital letters until the client has had enough."""
        self.send_response(101)
        token = generate_accept_token(self.headers["Sec-WebSocket-Key"].encode()).decode()
        for name, value in (
            ("Upgrade", "websocket"),
            ("Connection", "Upgrade"),
            ("Sec-WebSocket-Accept", token),
        ):
            self.send_header(name, value)
        self.end_headers()
        speaker = Connection(ConnectionType.SERVER)
        self.close_connection = True
        while data := self.connection.recv(65536):
            speaker.receive_data(data)
            for event in speaker.events():
                if isinstance(event, TextMessage):
                    self.connection.sendall(speaker.send(Message(data=event.data.upper())))
                elif isinstance(event, CloseConnection):
                    self.connection.sendall(speaker.send(event.response()))
                    return
                else:
                    assert not isinstance(event, Request)


# --- what it has ---------------------------------------------------------------------------------------------


def make_content(folder: Path) -> None:
    """Write a page, a repository and a small package of each kind."""
    folder.mkdir(exist_ok=True)
    (folder / "page.txt").write_bytes(PAGE)
    make_repository(folder / "git" / "probe.git")
    make_wheel(folder / "simple" / PACKAGE)
    make_npm_package(folder / "npm")
    make_archive(folder / "apt")
    make_r_package(folder / "cran" / "src" / "contrib")


def make_repository(folder: Path) -> None:
    folder.mkdir(parents=True)
    tree = folder.with_name("tree")
    author = ["-c", "user.name=somebody", "-c", "user.email=somebody@example"]
    for command in (
        ["git", "init", "-q", "--bare", "-b", "main", str(folder)],
        ["git", "clone", "-q", str(folder), str(tree)],
    ):
        subprocess.run(command, check=True, capture_output=True)
    (tree / "file").write_text("tracked\n")
    for words in (["add", "file"], ["commit", "-qm", "first"], ["push", "-q", "origin", "HEAD"]):
        subprocess.run(["git", *author, *words], cwd=tree, check=True, capture_output=True)


def make_wheel(folder: Path) -> None:
    folder.mkdir(parents=True)
    name = f"{PACKAGE}-{VERSION}-py3-none-any.whl"
    about = f"{PACKAGE}-{VERSION}.dist-info"
    files = {
        f"{PACKAGE}.py": f"GREETING = {GREETING!r}\n",
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: {PACKAGE}\nVersion: {VERSION}\n",
        f"{about}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    lines = [f"{file},{_digest(text)},{len(text)}\n" for file, text in files.items()]
    files[f"{about}/RECORD"] = "".join([*lines, f"{about}/RECORD,,\n"])
    with zipfile.ZipFile(folder / name, "w") as wheel:
        for file, text in files.items():
            wheel.writestr(file, text)
    (folder / "index.html").write_text(f"<!DOCTYPE html><body><a href='{name}'>{name}</a></body>")


def _digest(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return "sha256=" + base64.urlsafe_b64encode(digest).decode().rstrip("=")


def make_npm_package(folder: Path) -> None:
    folder.mkdir()
    about = {"name": PACKAGE, "version": f"{VERSION}.0", "main": "index.js"}
    files = {
        "package/package.json": json.dumps(about),
        "package/index.js": f"module.exports = {json.dumps(GREETING)};\n",
    }
    write_tar(folder / f"{PACKAGE}-{VERSION}.0.tgz", files)


def make_archive(folder: Path) -> None:
    """Write what apt calls a flat repository, without signatures."""
    tree = folder / "tree"
    (tree / "DEBIAN").mkdir(parents=True)
    (tree / "usr/share" / PACKAGE).mkdir(parents=True)
    (tree / "usr/share" / PACKAGE / "greeting").write_text(f"{GREETING}\n")
    about = (
        f"Package: {PACKAGE}\nVersion: {VERSION}\nArchitecture: all\n"
        "Maintainer: somebody <somebody@example>\nDescription: a probe\n"
    )
    (tree / "DEBIAN/control").write_text(about)
    for path in (tree, tree / "DEBIAN"):
        path.chmod(0o755)
    package = folder / f"{PACKAGE}.deb"
    command = ["dpkg-deb", "--root-owner-group", "--build", str(tree), str(package)]
    subprocess.run(command, check=True, capture_output=True)
    content = package.read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    listed = f"{about}Filename: ./{package.name}\nSize: {len(content)}\nSHA256: {digest}\n\n"
    (folder / "Packages").write_text(listed)


def make_r_package(folder: Path) -> None:
    folder.mkdir(parents=True)
    about = (
        f"Package: {PACKAGE}\nVersion: {VERSION}\nTitle: A Probe\nDescription: A probe.\n"
        "License: MIT\nAuthor: somebody\nMaintainer: somebody <somebody@example>\n"
    )
    files = {
        f"{PACKAGE}/DESCRIPTION": about,
        f"{PACKAGE}/NAMESPACE": "export(greeting)\n",
        f"{PACKAGE}/R/greeting.R": f"greeting <- function() {json.dumps(GREETING)}\n",
    }
    write_tar(folder / f"{PACKAGE}_{VERSION}.tar.gz", files)
    listed = f"Package: {PACKAGE}\nVersion: {VERSION}\nLicense: MIT\nNeedsCompilation: no\n\n"
    (folder / "PACKAGES").write_text(listed)
    (folder / "PACKAGES.gz").write_bytes(gzip.compress(listed.encode()))


def write_tar(path: Path, files: dict[str, str]) -> None:
    with tarfile.open(path, "w:gz") as archive:
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(text.encode()), 0o644
            archive.addfile(member, io.BytesIO(text.encode()))
