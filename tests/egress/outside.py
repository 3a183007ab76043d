"""What lies outside in these tests: a name server, web servers and bare servers, all on this machine's loopback."""

from __future__ import annotations

import base64
import hashlib
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import dns.flags
import dns.message
import dns.rcode
import dns.rdatatype
import dns.rrset
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

Answer = Sequence[str] | Callable[[], Sequence[str]]
Server = TypeVar("Server", bound="WebServer")


class NameServer:
    """Answers over UDP as its table says: addresses, or a function that is asked each time."""

    def __init__(self) -> None:
        self.table: dict[str, Answer] = {}
        self.seconds = 0  # how long answers hold
        self.asked: list[str] = []
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._socket.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # A datagram to itself, since closing would not wake the thread.
        self._socket.sendto(b"", self._socket.getsockname())
        self._thread.join()
        self._socket.close()

    def _serve(self) -> None:
        while True:
            data, client = self._socket.recvfrom(4096)
            if not data:
                return
            reply = self._answer(dns.message.from_wire(data))
            if reply is not None:
                self._socket.sendto(reply.to_wire(), client)

    def _answer(self, query: dns.message.Message) -> dns.message.Message | None:
        question = query.question[0]
        name = question.name.to_text(omit_final_dot=True)
        reply = dns.message.make_response(query)
        reply.flags |= dns.flags.RA
        if name not in self.table:
            reply.set_rcode(dns.rcode.NXDOMAIN)
            return reply
        if question.rdtype == dns.rdatatype.A:
            self.asked.append(name)
        entry = self.table[name]
        addresses = entry() if callable(entry) else entry
        if not addresses:
            return None
        for address in addresses:
            if (":" in address) == (question.rdtype == dns.rdatatype.AAAA):
                reply.answer.append(
                    dns.rrset.from_text(
                        question.name,
                        self.seconds,
                        "IN",
                        dns.rdatatype.to_text(question.rdtype),
                        address,
                    )
                )
        return reply


class WebServerHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: WebServer

    def do_GET(self) -> None:
        self.server.seen.append((self.command, self.path, dict(self.headers.items())))
        path = self.path.partition("?")[0]
        if path.startswith("/bytes/"):
            self.answer(200, b"x" * int(path.rpartition("/")[2]))
        elif path.startswith("/chunks/"):
            self._answer_in_chunks(int(path.rpartition("/")[2]))
        elif path.startswith("/to/"):
            self.answer(302, b"", [("Location", f"http://{path[4:]}")])
        elif path == "/head":
            self.read_body()
            self.answer(200, str(self.headers).encode(), [("X-Head", self.headers["X-Api-Key"])])
        elif path == "/packed":
            self.answer(200, b"anything", [("Content-Encoding", "gzip")])
        elif path == "/socket":
            self._speak_websocket()
        else:
            body = self.read_body()
            self.server.bodies.append(body)
            self.answer(200, body or b"hello")

    do_POST = do_PUT = do_HEAD = do_DELETE = do_GET

    def read_body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            body = b""
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return body
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def answer(self, status: int, body: bytes, headers: Sequence[tuple[str, str]] = ()) -> None:
        self.send_response(status)
        for name, value in (*headers, ("Content-Length", str(len(body)))):
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _answer_in_chunks(self, count: int) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for number in range(count):
            self.wfile.write(b"6\r\n%06d\r\n" % number)
        self.wfile.write(b"0\r\n\r\n")

    def _speak_websocket(self) -> None:
        """Agree, then give back whatever bytes come: what frames hold is nobody's business on the way."""
        accept = hashlib.sha1(
            f"{self.headers['Sec-WebSocket-Key']}258EAFA5-E914-47DA-95CA-C5AB0DC85B11".encode()
        ).digest()
        self.send_response(101)
        self.send_header("Upgrade", self.headers["Upgrade"])
        self.send_header("Connection", self.headers["Connection"])
        self.send_header("Sec-WebSocket-Accept", base64.b64encode(accept).decode())
        self.end_headers()
        while data := self.connection.recv(65536):
            self.connection.sendall(data)
        self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None:
        pass


class WebServer(ThreadingHTTPServer):
    """A web server that remembers what it was asked, with TLS if it is given a context."""

    daemon_threads = True
    request_queue_size = 512

    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        super().__init__(("127.0.0.1", 0), WebServerHandler)
        self._context = context
        self.seen: list[tuple[str, str, dict[str, str]]] = []
        self.bodies: list[bytes] = []
        self.accepted = 0
        self.port: int = self.server_address[1]

    def get_request(self) -> tuple[Any, Any]:
        connection, address = super().get_request()
        self.accepted += 1
        return connection, address

    def finish_request(self, request: Any, client_address: Any) -> None:
        # In the connection's own thread: a handshake that never comes must not hold up the others.
        if self._context is None:
            super().finish_request(request, client_address)
            return
        with self._context.wrap_socket(request, server_side=True) as secured:
            super().finish_request(secured, client_address)

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # clients that break off are part of the tests


@contextmanager
def serving(server: Server) -> Iterator[Server]:
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def bare_server(serve: Callable[[socket.socket], None]) -> Iterator[int]:
    """Call `serve` with each connection, in a thread of its own; yields the port."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=512)

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=run, args=(connection,), daemon=True).start()

    def run(connection: socket.socket) -> None:
        with connection:
            try:
                serve(connection)
            except OSError:
                pass  # whoever was there has gone

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
        listener.close()


def make_certificate(folder: Path, *names: str) -> tuple[Path, Path]:
    """Write a certificate for some names, signed by itself, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, names[0])])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name) for name in names]), False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), True)
        .sign(key, hashes.SHA256())
    )
    paths = folder / "certificate.pem", folder / "key.pem"
    paths[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    paths[1].write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return paths
