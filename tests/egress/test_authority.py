"""TLS that ends in the proxy: for which hosts, with which certificates, and how it goes on to the host."""

from __future__ import annotations

import os
import signal
import socket
import ssl
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509

from atoll.egress.authority import AUTHORITY_DAYS, Authority
from atoll.errors import InvalidRequest
from atoll.model.hosts import HostPattern, parse_host, parse_host_pattern
from atoll.model.network import Network
from tests.egress.inside import Inside, Node, as_bytes, read_exactly, read_response
from tests.egress.outside import WebServer, make_certificate, serving

pytestmark = [pytest.mark.any_user, pytest.mark.usefixtures("no_faults")]


def rules(*texts: str) -> Network:
    return Network.parse(list(texts))


def trust_of(node: Node, inside: Inside) -> ssl.SSLContext:
    """What a program inside trusts: the sandbox's own authority and nothing else."""
    return ssl.create_default_context(cadata=node.door.certificate(inside.id))


def get(connection: socket.socket, host: str, path: str, method: str = "GET") -> tuple[int, bytes]:
    connection.sendall(as_bytes(f"{method} {path} HTTP/1.1\nHost: {host}\n\n"))
    response = read_response(connection)
    return response.status, response.body


# --- certificates -----------------------------------------------------------------------------------------


def shake_hands(authority: Authority, signer: Authority, host: str) -> None:
    """Raise `ssl.SSLError` unless a client that trusts `authority` takes what `signer` shows for a host."""
    ours, theirs = socket.socketpair()
    context = signer.context(parse_host(host))

    def serve() -> None:
        try:
            context.wrap_socket(ours, server_side=True).close()
        except OSError:
            pass  # the client did not want to

    thread = threading.Thread(target=serve)
    thread.start()
    trust = ssl.create_default_context(cadata=authority.certificate)
    try:
        with trust.wrap_socket(theirs, server_hostname=host.strip("[]")):
            pass
    finally:
        theirs.close()
        thread.join()
        ours.close()


def patterns(*texts: str) -> list[HostPattern]:
    return [parse_host_pattern(text) for text in texts]


@pytest.mark.parametrize("host", ["api.example", "a.b.wild.example", "127.0.0.1", "[::1]"])
def test_a_client_takes_certificates_for_the_authoritys_own_hosts(host: str) -> None:
    authority = Authority(patterns("api.example", "*.wild.example", "127.0.0.1", "[::1]"))
    shake_hands(authority, authority, host)


@pytest.mark.parametrize("host", ["other.example", "127.0.0.1", "[::1]", "example"])
def test_no_certificate_is_made_for_other_hosts(host: str) -> None:
    with pytest.raises(InvalidRequest, match="does not speak for"):
        Authority(patterns("api.example", "*.wild.example")).context(parse_host(host))


@pytest.mark.parametrize(
    ("own", "foreign"),
    [("api.example", "other.example"), ("api.example", "127.0.0.1"), ("127.0.0.1", "api.example")],
)
def test_a_client_would_not_take_one_even_if_the_key_were_stolen(own: str, foreign: str) -> None:
    authority = Authority(patterns(own))
    shake_hands(authority, authority, own)
    authority.patterns = tuple(patterns(foreign))
    with pytest.raises(ssl.SSLCertVerificationError, match="subtree violation"):
        shake_hands(authority, authority, foreign)


def test_each_authority_has_a_key_of_its_own() -> None:
    one, other = Authority(patterns("api.example")), Authority(patterns("api.example"))
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(one, other, "api.example")


def test_certificates_are_kept_until_they_are_about_to_end() -> None:
    now = datetime.now(UTC)
    authority = Authority(patterns("api.example"), lambda: now)
    host = parse_host("api.example")
    first = authority.context(host)
    assert authority.context(host) is first
    now += timedelta(days=3)
    assert authority.context(host) is not first
    assert not authority.is_old
    now += timedelta(days=AUTHORITY_DAYS - 4)
    assert authority.is_old


def test_the_certificate_says_what_it_is_for() -> None:
    certificate = x509.load_pem_x509_certificate(
        Authority(patterns("api.example")).certificate.encode()
    )
    assert certificate.extensions.get_extension_for_class(x509.NameConstraints).critical
    basic = certificate.extensions.get_extension_for_class(x509.BasicConstraints).value
    assert (basic.ca, basic.path_length) == (True, 0)
    lasts = certificate.not_valid_after_utc - certificate.not_valid_before_utc
    assert lasts < timedelta(days=AUTHORITY_DAYS + 1)


# --- in the proxy -----------------------------------------------------------------------------------------


def test_method_and_path_rules_reach_into_https(node: Node, secure_web: WebServer) -> None:
    host = f"tls.example:{secure_web.port}"
    inside = node.add(rules(f"https://{host}/GET/v1/*"))
    with inside.secured(host, trust_of(node, inside)) as connection:
        assert connection.version() == "TLSv1.3"
        assert get(connection, host, "/v1/items") == (200, b"hello")
        assert get(connection, host, "/v1/%61?x=1") == (200, b"hello")
        status, body = get(connection, host, "/v1/../admin")
        assert status == 403 and b"/admin" in body
    with inside.secured(host, trust_of(node, inside)) as connection:
        assert get(connection, host, "/v1/items", "DELETE")[0] == 403
    assert [path for _, path, _ in secure_web.seen] == ["/v1/items", "/v1/a?x=1"]
    attempts = node.wait_for(6)
    assert [each.scheme for each in attempts] == ["https"] * 6
    told = [(each.method, each.verdict) for each in attempts if each.method != "CONNECT"]
    assert told == [
        ("GET", "allowed"),
        ("GET", "allowed"),
        ("GET", "refused"),
        ("DELETE", "refused"),
    ]


def test_other_hosts_stay_tunnels(node: Node, secure_web: WebServer, trust: ssl.SSLContext) -> None:
    port = secure_web.port
    inside = node.add(
        rules(f"https://tls.example:{port}/GET/v1/*", f"https://other.example:{port}")
    )
    with inside.secured(f"other.example:{port}", trust) as connection:
        assert get(connection, f"other.example:{port}", "/")[0] == 200
    with pytest.raises(ssl.SSLCertVerificationError):
        inside.secured(f"tls.example:{port}", trust)


def test_only_http_1_1_is_agreed_on(node: Node, secure_web: WebServer) -> None:
    host = f"tls.example:{secure_web.port}"
    inside = node.add(rules(f"https://{host}/GET/v1/*"))
    trust = trust_of(node, inside)
    trust.set_alpn_protocols(["h2", "http/1.1"])
    with inside.secured(host, trust) as connection:
        assert connection.selected_alpn_protocol() == "http/1.1"


def test_the_host_of_each_request_is_that_of_the_connect(node: Node, secure_web: WebServer) -> None:
    host = f"tls.example:{secure_web.port}"
    inside = node.add(rules(f"https://{host}/GET/*", f"https://other.example:{secure_web.port}"))
    with inside.secured(host, trust_of(node, inside)) as connection:
        assert get(connection, f"other.example:{secure_web.port}", "/")[0] == 400
    with inside.secured(host, trust_of(node, inside)) as connection:
        target = f"https://other.example:{secure_web.port}/"
        assert get(connection, host, target)[0] == 400
    assert secure_web.accepted == 0


def test_another_name_within_tls_is_refused(node: Node, secure_web: WebServer) -> None:
    host = f"tls.example:{secure_web.port}"
    inside = node.add(
        rules(f"https://{host}/GET/*", f"https://other.example:{secure_web.port}/GET/*")
    )
    with inside.tunnel(host) as connection, pytest.raises(ssl.SSLError, match="UNRECOGNIZED_NAME"):
        trust_of(node, inside).wrap_socket(connection, server_hostname="other.example")
    assert [each.verdict for each in node.wait_for(1)] == ["refused"]
    assert secure_web.accepted == 0


@pytest.mark.parametrize("first", [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"SSH-2.0-x\r\n"])
def test_what_is_no_tls_is_refused(node: Node, secure_web: WebServer, first: bytes) -> None:
    host = f"tls.example:{secure_web.port}"
    inside = node.add(rules(f"https://{host}/GET/*"))
    with inside.tunnel(host) as connection:
        connection.sendall(first)
        assert connection.recv(1) in (b"", b"\x15")
    assert [each.verdict for each in node.wait_for(1)] == ["refused"]
    assert secure_web.accepted == 0


@pytest.fixture
def strange_web(tmp_path: Path) -> Iterator[WebServer]:
    """A server whose certificate nobody knows."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*make_certificate(tmp_path, "tls.example"))
    with serving(WebServer(context)) as server:
        yield server


def test_a_host_that_cannot_prove_its_name_gets_nothing(node: Node, strange_web: WebServer) -> None:
    host = f"tls.example:{strange_web.port}"
    inside = node.add(rules(f"https://{host}/GET/*"))
    with inside.secured(host, trust_of(node, inside)) as connection:
        status, body = get(connection, host, "/")
    assert status == 502
    assert b"certificate of tls.example is not trusted" in body
    assert strange_web.seen == []
    assert [each.verdict for each in node.wait_for(2)] == ["allowed", "failed"]


def test_a_certificate_for_another_name_is_not_enough(node: Node, secure_web: WebServer) -> None:
    host = f"web.example:{secure_web.port}"  # it is for tls.example and other.example
    inside = node.add(rules(f"https://{host}/GET/*"))
    with inside.secured(host, trust_of(node, inside)) as connection:
        status, body = get(connection, host, "/")
    assert (status, secure_web.seen) == (502, [])
    assert b"not trusted" in body


def test_a_host_without_tls_is_never_spoken_to_in_the_clear(node: Node, web: WebServer) -> None:
    host = f"tls.example:{web.port}"
    inside = node.add(rules(f"https://{host}/GET/*"))
    with inside.secured(host, trust_of(node, inside)) as connection:
        assert get(connection, host, "/")[0] == 502
    assert web.seen == []


def test_bodies_pass_whole_in_both_directions(node: Node, secure_web: WebServer) -> None:
    host = f"tls.example:{secure_web.port}"
    inside = node.add(rules(f"https://{host}/*/*"))
    body = os.urandom(3_000_000)
    with inside.secured(host, trust_of(node, inside)) as connection:
        head = f"POST /x HTTP/1.1\nHost: {host}\nContent-Length: {len(body)}\n\n"
        sending = threading.Thread(target=connection.sendall, args=(as_bytes(head) + body,))
        sending.start()
        response = read_response(connection)
        sending.join()
        assert response.body == body
        assert get(connection, host, "/chunks/1000")[1].endswith(b"000999")


def test_a_websocket_passes(node: Node, secure_web: WebServer) -> None:
    host = f"tls.example:{secure_web.port}"
    inside = node.add(rules(f"https://{host}/GET/socket"))
    with inside.secured(host, trust_of(node, inside)) as connection:
        connection.sendall(
            as_bytes(
                f"GET /socket HTTP/1.1\nHost: {host}\nConnection: Upgrade\nUpgrade: websocket\n"
                "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\nSec-WebSocket-Version: 13\n\n"
            )
        )
        assert read_response(connection).status == 101
        for _ in range(3):
            connection.sendall(b"\x82\x05hello")
            assert read_exactly(connection, 7) == b"\x82\x05hello"
    attempt = node.wait_for(2)[1]
    assert attempt.verdict == "allowed" and attempt.up_bytes > 21


def test_the_key_is_nowhere_on_disk_and_ends_with_its_proxy(
    own_node: Node, secure_web: WebServer
) -> None:
    host = f"tls.example:{secure_web.port}"
    inside = own_node.add(rules(f"https://{host}/GET/*"))
    first = own_node.door.certificate(inside.id)
    pid = own_node.wait_for_proxy()
    os.kill(pid, signal.SIGKILL)
    own_node.wait_for_proxy(other_than=pid)
    for _ in range(600):
        if own_node.door.certificate(inside.id) != first:
            break
        threading.Event().wait(0.05)
    with pytest.raises(ssl.SSLCertVerificationError):
        inside.secured(host, ssl.create_default_context(cadata=first))


def test_a_change_of_rules_reaches_into_tls(node: Node, secure_web: WebServer) -> None:
    host = f"tls.example:{secure_web.port}"
    inside = node.add(rules(f"https://{host}/GET/*"))
    with inside.secured(host, trust_of(node, inside)) as connection:
        assert get(connection, host, "/a")[0] == 200
        node.door.change(inside.id, rules(f"https://{host}/GET/v1/*"))
        assert get(connection, host, "/a")[0] == 403


def test_a_host_that_comes_to_be_inspected_gets_a_certificate(
    node: Node, secure_web: WebServer
) -> None:
    port = secure_web.port
    inside = node.add(rules(f"https://tls.example:{port}/GET/*"))
    first = node.door.certificate(inside.id)
    both = [f"https://{name}.example:{port}/GET/*" for name in ("tls", "other")]
    node.door.change(inside.id, rules(*both))
    assert node.door.certificate(inside.id) != first
    with inside.secured(f"other.example:{port}", trust_of(node, inside)) as connection:
        assert get(connection, f"other.example:{port}", "/")[0] == 200
