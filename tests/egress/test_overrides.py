"""Headers by which a server would see another request than the one that a rule allows."""

from __future__ import annotations

import ssl

import pytest

from atoll.model.network import Network
from tests.egress.inside import Inside, Node, as_bytes, read_response
from tests.egress.outside import WebServer

METHOD_HEADERS = (
    "X-HTTP-Method-Override",
    "X-HTTP-Method",
    "X-Method-Override",
    "x-http-method-override",
    # Behind CGI both look alike.
    "X_HTTP_METHOD_OVERRIDE",
    "X-Http_Method-Override",
)
PATH_HEADERS = ("X-Original-URL", "X-Rewrite-URL", "X_Original_URL")


def post(inside: Inside, web: WebServer, *headers: str, path: str = "/v1/items") -> int:
    lines = [f"POST http://web.example:{web.port}{path} HTTP/1.1", f"Host: web.example:{web.port}"]
    return inside.ask("\n".join([*lines, "Content-Length: 0", *headers, "", ""])).status


@pytest.mark.parametrize("header", METHOD_HEADERS)
@pytest.mark.parametrize("value", ["DELETE", "delete", "GET, DELETE", " DELETE ", "DELETE;", ""])
def test_a_method_that_is_not_allowed_does_not_pass_as_one_that_is(
    node: Node, web: WebServer, header: str, value: str
) -> None:
    inside = node.add(Network.parse([f"http://web.example:{web.port}/GET,POST"]))
    assert post(inside, web, f"{header}: {value}") == 403
    assert web.seen == []
    (attempt,) = node.wait_for(1)
    assert attempt.verdict == "refused"
    assert "a header asks for the method" in attempt.reason


def test_of_two_such_headers_both_count(node: Node, web: WebServer) -> None:
    inside = node.add(Network.parse([f"http://web.example:{web.port}/GET,POST"]))
    headers = ("X-HTTP-Method-Override: GET", "X-HTTP-Method-Override: DELETE")
    assert post(inside, web, *headers) == 403
    assert post(inside, web, *reversed(headers)) == 403
    assert web.seen == []


def test_a_method_that_is_allowed_itself_may_be_asked_for(node: Node, web: WebServer) -> None:
    inside = node.add(Network.parse([f"http://web.example:{web.port}/GET,POST"]))
    assert post(inside, web, "X-HTTP-Method-Override: get") == 200


def test_the_method_has_to_be_allowed_on_that_path(node: Node, web: WebServer) -> None:
    url = f"http://web.example:{web.port}"
    inside = node.add(Network.parse([f"{url}/POST/v1/items", f"{url}/DELETE/v1/drafts/*"]))
    override = "X-HTTP-Method-Override: DELETE"
    assert post(inside, web, override) == 403
    assert post(inside, web, override, path="/v1/drafts/7") == 403  # POST is not allowed there
    assert post(inside, web) == 200


@pytest.mark.parametrize("header", [*METHOD_HEADERS, *PATH_HEADERS])
def test_without_rules_about_requests_such_headers_pass(
    node: Node, web: WebServer, header: str
) -> None:
    inside = node.add(Network.parse([f"http://web.example:{web.port}"]))
    assert post(inside, web, f"{header}: DELETE") == 200
    ((_, _, headers),) = web.seen
    assert headers[header] == "DELETE"


@pytest.mark.parametrize("header", PATH_HEADERS)
def test_another_path_does_not_pass_as_one_that_is_allowed(
    node: Node, web: WebServer, header: str
) -> None:
    inside = node.add(Network.parse([f"http://web.example:{web.port}/*/v1/*"]))
    assert post(inside, web, f"{header}: /admin") == 403
    assert web.seen == []
    assert post(inside, web) == 200


def test_it_is_so_within_tls_too(node: Node, secure_web: WebServer) -> None:
    host = f"tls.example:{secure_web.port}"
    inside = node.add(Network.parse([f"https://{host}/POST"]))
    trust = ssl.create_default_context(cadata=node.door.certificate(inside.id))
    with inside.secured(host, trust) as connection:
        head = f"POST / HTTP/1.1\nHost: {host}\nContent-Length: 0\nX-HTTP-Method: DELETE\n\n"
        connection.sendall(as_bytes(head))
        assert read_response(connection).status == 403
    assert secure_web.seen == []
