"""Secrets on their way: into the right place for the right hosts, nowhere else, and out of answers."""

from __future__ import annotations

import base64
import json
import ssl
from collections.abc import Callable
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.egress.injection import LONGEST_BODY, Scrubber, Secrets
from atoll.egress.refusals import Refused
from atoll.errors import InvalidRequest
from atoll.model.hosts import parse_host
from atoll.model.network import Network
from atoll.model.secret import Secret, SecretUse, bind, new_placeholder
from tests.egress.inside import Inside, Node, Response, as_bytes, read_exactly, read_response
from tests.egress.outside import WebServer

pytestmark = [pytest.mark.any_user, pytest.mark.usefixtures("no_faults")]

VALUE = "k-7f/3+9 ü&=%\"'\\"


def use(
    *hosts: str,
    value: str = VALUE,
    header: str | None = None,
    query: str | None = None,
    body: str | None = None,
    template: str = "",
) -> SecretUse:
    binding = bind(hosts or ("tls.example",), header, query, body, template)
    return SecretUse("API_KEY", new_placeholder(), binding, value)


def rules(*texts: str) -> Network:
    return Network.parse(list(texts))


def trust_of(node: Node, inside: Inside) -> ssl.SSLContext:
    return ssl.create_default_context(cadata=node.door.certificate(inside.id))


def ask(
    node: Node, inside: Inside, host: str, path: str, *headers: str, body: bytes = b""
) -> Response:
    method = "POST" if body else "GET"
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host}", *headers]
    if body:
        lines.append(f"Content-Length: {len(body)}")
    with inside.secured(host, trust_of(node, inside)) as connection:
        connection.sendall(as_bytes("\n".join([*lines, "", ""])) + body)
        return read_response(connection)


# --- where it goes ----------------------------------------------------------------------------------------


def injected(secret: SecretUse, path: str = "/", **headers: str) -> tuple[str, dict[str, str]]:
    listed = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    injection = Secrets([secret]).inject(parse_host("tls.example"), 443, path, listed)
    return injection.path, {name.decode(): value.decode() for name, value in injection.headers}


def test_a_header_gets_the_value_where_the_placeholder_was() -> None:
    secret = use(value="a value")
    _, headers = injected(secret, authorization=f"Bearer {secret.placeholder}", other="x")
    assert (headers["authorization"], headers["other"]) == ("Bearer a value", "x")


def test_a_template_says_what_the_header_holds() -> None:
    secret = use(value="a value", header="X-Api-Key", template="Token {}!")
    _, headers = injected(secret, X_api_Key=secret.placeholder)
    assert headers["X-api-Key"] == "Token a value!"


def test_basic_authorization_is_encoded_anew() -> None:
    secret = use(value="a value")
    coded = base64.b64encode(f"user:{secret.placeholder}".encode()).decode()
    _, headers = injected(secret, Authorization=f"basic {coded}")
    assert base64.b64decode(headers["Authorization"][6:]) == b"user:a value"


def test_a_query_gets_it_encoded_in_the_field_of_that_name_only() -> None:
    secret = use(query="api key")
    path, _ = injected(secret, f"/v1?a={secret.placeholder}&api+key={secret.placeholder}&b=%20")
    assert path == f"/v1?a={secret.placeholder}&api+key={quote(VALUE, safe='')}&b=%20"


@pytest.mark.parametrize("place", ["path", "other_header", "query"])
def test_other_places_keep_the_placeholder(place: str) -> None:
    secret = use(header="X-Key")
    texts = {"path": f"/{secret.placeholder}", "query": f"/?k={secret.placeholder}"}
    path, headers = injected(secret, texts.get(place, "/"), other=secret.placeholder)
    assert path == texts.get(place, "/")
    assert headers["other"] == secret.placeholder


def test_what_could_give_it_back_in_pieces_is_not_asked_for() -> None:
    secret = use()
    _, headers = injected(
        secret, Authorization=secret.placeholder, Range="bytes=0-3", Accept_Encoding="gzip"
    )
    assert "Range" not in headers
    assert headers["Accept-Encoding"] == "identity"
    _, headers = injected(secret, Range="bytes=0-3", Accept_Encoding="gzip")
    assert (headers["Range"], headers["Accept-Encoding"]) == ("bytes=0-3", "gzip")


def body_of(secret: SecretUse, body: bytes, kind: str) -> bytes:
    headers = [(b"Content-Type", kind.encode())]
    injection = Secrets([secret]).inject(parse_host("tls.example"), 443, "/", headers)
    return injection.fill_body(body) if injection.wants_body else body


@pytest.mark.parametrize("template", ["", "key {}"])
def test_a_field_of_json_gets_it_and_all_else_stays_as_it_was(template: str) -> None:
    secret = use(body="auth.keys.1", template=template)
    text = '{"n": 1.10000000000000000001, "auth":{"keys":["a", "%s"]}, "é":"\\u00e9"}'
    filled = body_of(secret, (text % secret.placeholder).encode(), "application/json; x=y")
    whole = template.replace("{}", VALUE) or VALUE
    assert filled == (text % json.dumps(whole)[1:-1]).encode()
    assert json.loads(filled)["auth"]["keys"][1] == whole


def test_other_fields_and_kinds_of_bodies_keep_the_placeholder() -> None:
    secret = use(body="key")
    for text, kind in (
        ('{"other": "%s"}', "application/json"),
        ('{"key": ["%s"]}', "application/json"),
        ('{"key": "%s"', "application/json"),
        ('{"key": "%s"}', "text/plain"),
        ("other=%s", "application/x-www-form-urlencoded"),
    ):
        body = (text % secret.placeholder).encode()
        assert body_of(secret, body, kind) == body


def test_a_placeholder_twice_in_a_body_is_refused() -> None:
    secret = use(body="key")
    text = json.dumps({"key": secret.placeholder, "note": secret.placeholder})
    with pytest.raises(Refused, match="more than once"):
        body_of(secret, text.encode(), "application/json")


def test_a_form_gets_it_encoded() -> None:
    secret = use(body="key")
    body = f"a=%FF&key={secret.placeholder}".encode()
    filled = body_of(secret, body, "application/x-www-form-urlencoded")
    assert filled == f"a=%FF&key={quote(VALUE, safe='')}".encode()


@pytest.mark.parametrize(
    "fields",
    [
        dict(hosts=[]),
        dict(hosts=["*.example"]),
        dict(hosts="api.example"),
        dict(header="X", query="y"),
        dict(header="Host"),
        dict(header="a b"),
        dict(template="Bearer"),
        dict(template="{} {}"),
        dict(value="short"),
        dict(value="two\nlines of it"),
    ],
)
def test_a_binding_that_cannot_hold_is_refused_without_the_value(fields: dict[str, str]) -> None:
    arguments = {"value": "a-fine-value", "hosts": ["api.example"], **fields}
    with pytest.raises(InvalidRequest) as caught:
        Secret(**arguments)  # type: ignore[arg-type]
    assert "a-fine-value" not in str(caught.value)


def test_no_text_of_a_secret_shows_its_value() -> None:
    assert "a-fine-value" not in repr(Secret("a-fine-value", ["api.example"]))
    assert "a-fine-value" not in repr(use(value="a-fine-value"))


# --- out of answers ---------------------------------------------------------------------------------------


@given(
    st.lists(st.binary(max_size=12), max_size=4), st.integers(1, 40), st.sampled_from([str, quote])
)
def test_it_is_found_however_an_answer_is_cut(
    parts: list[bytes], step: int, spell: Callable[[str], str]
) -> None:
    secret = use()
    spelled = spell(VALUE).encode()
    text = spelled.join([b"", *parts, b""])
    scrubber = Scrubber([secret])
    told = b"".join(scrubber.feed(text[at : at + step]) for at in range(0, len(text), step))
    told += scrubber.finish()
    assert spelled not in told
    assert len(told) == len(text)
    assert told == Scrubber([secret]).clean(text)


@pytest.mark.parametrize("lead", range(3))
def test_it_is_found_in_base64_wherever_it_begins(lead: int) -> None:
    secret = use(value="a-value-of-some-length")
    coded = base64.b64encode(b"x" * lead + secret.value.encode() + b"yz")
    cleaned = Scrubber([secret]).clean(coded)
    assert b"********" in cleaned
    assert secret.value[3:-3].encode() not in base64.b64decode(cleaned.replace(b"*", b"A"))


def test_nothing_is_held_back_that_cannot_be_the_beginning_of_it() -> None:
    scrubber = Scrubber([use(value="secret-value")])
    assert scrubber.feed(b"data: one\n\n") == b"data: one\n\n"
    assert scrubber.feed(b"data: secret-v") == b"data: "
    assert scrubber.feed(b"ictory") == b"secret-victory"


# --- through the proxy ------------------------------------------------------------------------------------


def test_the_bound_host_receives_it_and_nobody_else_does(node: Node, secure_web: WebServer) -> None:
    port = secure_web.port
    secret = use(f"tls.example:{port}", header="X-Api-Key")
    inside = node.add(
        rules(f"https://tls.example:{port}", f"https://other.example:{port}/GET/*"),
        secrets=[secret],
    )
    header = f"X-Api-Key: {secret.placeholder}"
    assert ask(node, inside, f"tls.example:{port}", "/", header).status == 200
    assert secure_web.seen[0][2]["X-Api-Key"].encode("latin-1") == VALUE.encode()
    refused = ask(node, inside, f"other.example:{port}", "/", header)
    assert refused.status == 403
    assert b"secret API_KEY is not for other.example" in refused.body
    assert len(secure_web.seen) == 1
    assert VALUE not in str(node.wait_for(4))


def test_another_port_of_the_host_is_another_host(node: Node, secure_web: WebServer) -> None:
    secret = use("tls.example:1", header="X-Api-Key")
    host = f"tls.example:{secure_web.port}"
    inside = node.add(rules(f"https://{host}/GET/*"), secrets=[secret])
    assert ask(node, inside, host, "/", f"X-Api-Key: {secret.placeholder}").status == 403


def test_without_tls_it_does_not_go_at_all(node: Node, web: WebServer) -> None:
    secret = use(f"web.example:{web.port}", header="X-Api-Key")
    inside = node.add(rules(f"http://web.example:{web.port}"), secrets=[secret])
    response = inside.get(f"http://web.example:{web.port}/", f"X-Api-Key: {secret.placeholder}")
    assert response.status == 403
    assert b"without TLS" in response.body
    assert web.seen == []


def test_a_redirect_finds_nothing_that_was_put_in(node: Node, secure_web: WebServer) -> None:
    port = secure_web.port
    secret = use(f"tls.example:{port}", query="key")
    inside = node.add(
        rules(f"https://tls.example:{port}", f"https://other.example:{port}/GET/*"),
        secrets=[secret],
    )
    path = f"/to/other.example:{port}/?key={secret.placeholder}"
    response = ask(node, inside, f"tls.example:{port}", path)
    assert (response.status, VALUE in str(response.headers)) == (302, False)
    assert quote(VALUE, safe="") in secure_web.seen[0][1]
    followed = ask(node, inside, f"other.example:{port}", f"/?key={secret.placeholder}")
    assert followed.status == 403
    assert len(secure_web.seen) == 1


def test_a_body_gets_it_and_its_echo_does_not_give_it_away(
    node: Node, secure_web: WebServer
) -> None:
    host = f"tls.example:{secure_web.port}"
    secret = use(host, body="key", value="a-value-of-some-length")
    inside = node.add(rules(f"https://{host}"), secrets=[secret])
    body = json.dumps({"key": secret.placeholder}).encode()
    response = ask(node, inside, host, "/", "Content-Type: application/json", body=body)
    assert secure_web.bodies == [b'{"key": "a-value-of-some-length"}']
    assert response.body == b'{"key": "**********************"}'


def test_chunks_with_a_secret_get_a_length_and_a_client_that_waits_is_told_to_go_on(
    node: Node, secure_web: WebServer
) -> None:
    host = f"tls.example:{secure_web.port}"
    secret = use(host, body="key", value="a-value-of-some-length")
    inside = node.add(rules(f"https://{host}"), secrets=[secret])
    with inside.secured(host, trust_of(node, inside)) as connection:
        connection.sendall(
            as_bytes(
                f"POST / HTTP/1.1\nHost: {host}\nTransfer-Encoding: chunked\nExpect: 100-continue\n"
                "Content-Type: application/x-www-form-urlencoded\n\n"
            )
        )
        go_on = b"HTTP/1.1 100 \r\n\r\n"
        assert read_exactly(connection, len(go_on)) == go_on
        half = len(secret.placeholder) // 2
        for part in (f"key={secret.placeholder[:half]}", secret.placeholder[half:], ""):
            connection.sendall(f"{len(part):x}\r\n{part}\r\n".encode())
        assert read_response(connection).status == 200
    assert secure_web.bodies == [b"key=a-value-of-some-length"]
    assert secure_web.seen[0][2]["Content-Length"] == str(len(secure_web.bodies[0]))


def test_a_body_that_is_too_long_to_be_searched_is_refused(
    node: Node, secure_web: WebServer
) -> None:
    host = f"tls.example:{secure_web.port}"
    inside = node.add(rules(f"https://{host}"), secrets=[use(host, body="key")])
    response = ask(
        node,
        inside,
        host,
        "/",
        "Content-Type: application/json",
        body=b"x" * (LONGEST_BODY + 1),
    )
    assert response.status == 400
    assert secure_web.seen == []


def test_a_head_that_is_echoed_is_scrubbed(node: Node, secure_web: WebServer) -> None:
    host = f"tls.example:{secure_web.port}"
    secret = use(host, header="X-Api-Key", value="a-value-of-some-length")
    inside = node.add(rules(f"https://{host}"), secrets=[secret])
    response = ask(node, inside, host, "/head", f"X-Api-Key: {secret.placeholder}")
    assert secure_web.seen[0][2]["X-Api-Key"] == secret.value
    assert b"X-Api-Key: **********************" in response.body
    assert response.headers["x-head"] == "*" * len(secret.value)


def test_an_answer_that_is_packed_is_not_passed_on(node: Node, secure_web: WebServer) -> None:
    host = f"tls.example:{secure_web.port}"
    secret = use(host, header="X-Api-Key")
    inside = node.add(rules(f"https://{host}"), secrets=[secret])
    assert ask(node, inside, host, "/packed", f"X-Api-Key: {secret.placeholder}").status == 502
    assert ask(node, inside, host, "/packed").body == b"anything"


def test_a_websocket_carries_it_and_does_not_tell_it(node: Node, secure_web: WebServer) -> None:
    host = f"tls.example:{secure_web.port}"
    secret = use(host, query="key", value="a-value-of-some-length")
    inside = node.add(rules(f"https://{host}"), secrets=[secret])
    with inside.secured(host, trust_of(node, inside)) as connection:
        connection.sendall(
            as_bytes(
                f"GET /socket?key={secret.placeholder} HTTP/1.1\nHost: {host}\n"
                "Connection: Upgrade\nUpgrade: websocket\n"
                "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\nSec-WebSocket-Version: 13\n\n"
            )
        )
        assert read_response(connection).status == 101
        for text, told in ((b"hello", b"hello"), (secret.value.encode(), b"*" * 22)):
            connection.sendall(text)
            assert read_exactly(connection, len(told)) == told
    assert secure_web.seen[0][1] == f"/socket?key={secret.value}"


def test_it_is_revoked_at_once(node: Node, secure_web: WebServer) -> None:
    host = f"tls.example:{secure_web.port}"
    network = rules(f"https://{host}/*/*")
    secret = use(host, header="X-Api-Key", value="a-value-of-some-length")
    inside = node.add(network, secrets=[secret])
    header = f"X-Api-Key: {secret.placeholder}"
    with inside.secured(host, trust_of(node, inside)) as connection:
        request = as_bytes(f"GET / HTTP/1.1\nHost: {host}\n{header}\n\n")
        connection.sendall(request)
        assert read_response(connection).status == 200
        node.door.change(inside.id, network, [])
        connection.sendall(request)
        assert read_response(connection).status == 200
    told = [headers["X-Api-Key"] for _, _, headers in secure_web.seen]
    assert told == [secret.value, secret.placeholder]


def test_a_request_that_carries_a_revoked_secret_is_ended(
    node: Node, secure_web: WebServer
) -> None:
    host = f"tls.example:{secure_web.port}"
    network = rules(f"https://{host}")
    secret = use(host, header="X-Api-Key", value="a-value-of-some-length")
    inside = node.add(network, secrets=[secret])
    with inside.secured(host, trust_of(node, inside)) as connection:
        connection.sendall(
            as_bytes(
                f"GET /socket HTTP/1.1\nHost: {host}\nX-Api-Key: {secret.placeholder}\n"
                "Connection: Upgrade\nUpgrade: websocket\n"
                "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\nSec-WebSocket-Version: 13\n\n"
            )
        )
        assert read_response(connection).status == 101
        node.door.change(inside.id, network, [])
        assert connection.recv(1) == b""
    assert "ended" in [each.verdict for each in node.wait_for(2)]
