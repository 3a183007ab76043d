"""Everything that the description of the API lists can be done, and nothing that it allows or forbids is a fault of the node's."""

from __future__ import annotations

import io
import tarfile
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import httpx2
import hypothesis
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.core.result import Ok

from tests.campaigns import Campaign
from tests.cgroup_access import has_cgroups
from tests.cli.conftest import why_not
from tests.image_files import an_image
from tests.running_server import RunningServer, running_server
from tests.server.api_requests import NOT_YET, Api, Operation, Sent

pytestmark = [pytest.mark.timeout(3600), pytest.mark.any_user]

PACKAGE = "iniconfig==2.0.0"
# What other tests reach, since it needs more than one node.
ELSEWHERE: dict[Operation, str] = {
    ("GET", "/auth/github"): "a redirect is all it gives; it needs a GitHub",
    ("GET", "/auth/github/callback"): "it needs a GitHub",
    (
        "POST",
        "/sandboxes/{sandbox}/clean",
    ): "this server's engine makes new ones; see the tests of containers",
}
# Requests to each operation.
_EXAMPLES = 160


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    if reason := why_not("namespaces"):
        pytest.skip(f"engine namespaces does not work here: {reason}")
    with running_server() as server:
        yield server
        assert not [each for each in server.events() if each["event"] == "request.failed"]


@pytest.fixture(scope="module")
def api(server: RunningServer) -> Iterator[Api]:
    api = Api.of(server)
    yield api
    api.client.close()


def test_every_operation_can_succeed(api: Api, server: RunningServer) -> None:
    sandbox = play_sandboxes(api)
    play_executions(api, sandbox)
    play_kernels(api, sandbox)
    play_files(api, sandbox)
    play_history(api, sandbox)
    play_inspector(api, sandbox)
    play_packages(api)
    play_pools(api)
    play_network(api)
    play_owners(api)
    play_access(api, str(server.login))
    play_operation(api)
    play_end(api, sandbox)
    missing = set(api.operations) - api.reached - ELSEWHERE.keys() - NOT_YET
    if not has_cgroups():
        missing -= {(method, "/sandboxes/{sandbox}/pause") for method in ("PUT", "DELETE")}
    assert not missing


def play_sandboxes(api: Api) -> str:
    path = "/sandboxes/{sandbox}"
    body = {"name": "scene", "label": "first", "limits": {"enforcement": "best_effort"}}
    sandbox: str = api.ask("POST", "/sandboxes", body)["id"]
    assert api.ask("GET", "/sandboxes", name="scene")[0]["id"] == sandbox
    assert api.ask("GET", path, sandbox="scene")["id"] == sandbox
    api.ask("PATCH", path, {"label": "second", "public": False}, sandbox=sandbox)
    api.ask("GET", f"{path}/tree", sandbox=sandbox)
    if has_cgroups():
        api.ask("PUT", f"{path}/pause", sandbox=sandbox)
        api.ask("DELETE", f"{path}/pause", sandbox=sandbox)
    lasting = {"persistent": True, "limits": {"enforcement": "best_effort"}}
    stopped = api.ask("POST", "/sandboxes", lasting)["id"]
    api.ask("PUT", f"{path}/stop", sandbox=stopped)
    api.ask("DELETE", f"{path}/stop", sandbox=stopped)
    return sandbox


def play_executions(api: Api, sandbox: str) -> None:
    start, one = "/sandboxes/{sandbox}/executions", "/executions/{execution}"
    waited = {"argv": ["echo", "hello"], "wait": True}
    assert api.ask("POST", start, waited, sandbox=sandbox)["stdout"] == "hello\n"
    body: dict[str, Any] = {"argv": ["cat"], "keep_stdin": True, "background": True}
    cat = api.ask("POST", start, body, sandbox=sandbox)["id"]
    api.ask("POST", f"{one}/stdin", data=b"typed\n", execution=cat)
    api.ask("GET", f"{one}/events", execution=cat, follow=False)
    api.ask("GET", f"{one}/logs", execution=cat, tail_bytes=10)
    api.ask("GET", one, execution=cat, wait=0.1)
    api.ask("POST", f"{one}/signal", {"signal": 18}, execution=cat)
    api.ask("GET", "/sandboxes/{sandbox}/processes", sandbox=sandbox)
    api.ask("POST", f"{one}/stop", {"grace": "1s"}, execution=cat)
    terminal = api.ask("POST", start, {"kind": "terminal", "argv": ["sh"]}, sandbox=sandbox)["id"]
    api.ask("POST", f"{one}/resize", {"rows": 30, "columns": 90}, execution=terminal)
    api.ask("DELETE", one, execution=terminal)
    assert len(api.ask("GET", start, sandbox=sandbox)) >= 3
    api.ask("GET", "/sandboxes/{sandbox}/ports", sandbox=sandbox)
    api.ask("GET", "/sandboxes/{sandbox}/ports/{port}/wait", sandbox=sandbox, port=9, timeout=0)


def play_kernels(api: Api, sandbox: str) -> None:
    path = "/sandboxes/{sandbox}/kernels"
    api.ask("POST", f"{path}/restart", sandbox=sandbox)
    api.ask("POST", f"{path}/ask", {"kind": "complete", "code": "pri"}, sandbox=sandbox)
    api.ask("POST", f"{path}/interrupt", sandbox=sandbox)
    kernel = api.ask("POST", path, {"language": "python"}, sandbox=sandbox)["id"]
    assert len(api.ask("GET", path, sandbox=sandbox)) == 2
    for verb in ("restart", "interrupt"):
        api.ask("POST", f"{path}/{{kernel}}/{verb}", sandbox=sandbox, kernel=kernel)
    api.ask("DELETE", f"{path}/{{kernel}}", sandbox=sandbox, kernel=kernel)
    cell = {"kind": "cell", "code": "input()", "ask_input": True}
    asking = api.ask("POST", "/sandboxes/{sandbox}/executions", cell, sandbox=sandbox)["id"]
    deadline = time.monotonic() + 60
    while b'"input"' not in api.ask(
        "GET", "/executions/{execution}/events", execution=asking, follow=False
    ):
        assert time.monotonic() < deadline
    api.ask("POST", "/executions/{execution}/input", {"text": "x"}, execution=asking)
    api.ask("GET", "/sandboxes/{sandbox}/notebook", sandbox=sandbox)


def play_files(api: Api, sandbox: str) -> None:
    base, file = "/sandboxes/{sandbox}", "/sandboxes/{sandbox}/files/{path}"
    api.ask("PUT", file, data=b"one\ntwo\n", sandbox=sandbox, path="a.txt")
    api.ask("HEAD", file, sandbox=sandbox, path="a.txt")
    assert api.ask("GET", file, sandbox=sandbox, path="a.txt") == b"one\ntwo\n"
    part = {"Range": "bytes=4-6"}
    assert api.ask("GET", file, sandbox=sandbox, path="a.txt", headers=part) == b"two"
    form = (
        b'--x\r\nContent-Disposition: form-data; name="files"; filename="d/b"\r\n\r\nb\r\n--x--\r\n'
    )
    kind = {"Content-Type": "multipart/form-data; boundary=x"}
    api.ask("POST", file, data=form, headers=kind, sandbox=sandbox, path="up")
    api.ask("POST", f"{base}/make_dir", {"path": "made"}, sandbox=sandbox)
    api.ask("POST", f"{base}/rename", {"source": "made", "target": "moved"}, sandbox=sandbox)
    api.ask("GET", f"{base}/stat", sandbox=sandbox, path="moved")
    api.ask("GET", f"{base}/list", sandbox=sandbox)
    api.ask("GET", f"{base}/page", sandbox=sandbox, path="a.txt")
    assert api.ask("GET", f"{base}/search", sandbox=sandbox, pattern="tw.")["matches"]
    assert api.ask("GET", f"{base}/search_names", sandbox=sandbox, glob="*.txt")
    assert b"ready" in api.ask("GET", f"{base}/watch", sandbox=sandbox)
    assert b"a.txt" in api.ask("GET", f"{base}/archive", sandbox=sandbox)
    api.ask("PUT", f"{base}/archive", data=an_archive(), sandbox=sandbox, path="unpacked")
    api.ask("DELETE", file, sandbox=sandbox, path="up", recursive=True)


def an_archive() -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("empty"))
    return packed.getvalue()


def play_history(api: Api, sandbox: str) -> None:
    base = "/sandboxes/{sandbox}"
    api.ask("POST", f"{base}/execute", {"code": "echo line"}, sandbox=sandbox)
    api.ask("POST", f"{base}/execute", {"code": "echo line"}, sandbox=sandbox, stream=True)
    api.ask("GET", f"{base}/logs", sandbox=sandbox)
    commands = api.ask("GET", f"{base}/command-executions", sandbox=sandbox)["executions"]
    path = f"{base}/command-executions/{{execution}}/logs"
    api.ask("GET", path, sandbox=sandbox, execution=commands[0]["id"])
    assert api.ask("GET", f"{base}/execution-logs", sandbox=sandbox)["executions"]


def play_inspector(api: Api, sandbox: str) -> None:
    base = "/inspector/sandboxes"
    assert api.ask("GET", base)["sandboxes"]
    one = f"{base}/{{sandbox}}"
    for what in ("", "/files", "/ports", "/processes"):
        api.ask("GET", f"{one}{what}", sandbox=sandbox)
    api.ask("GET", f"{one}/files/content", sandbox=sandbox, path="a.txt")
    process = api.ask("GET", f"{one}/processes", sandbox=sandbox)["processes"][0]["id"]
    api.ask("GET", f"{one}/processes/{{execution}}/logs", sandbox=sandbox, execution=process)


def play_packages(api: Api) -> None:
    one = "/templates/{template}"
    api.ask("POST", "/templates", {"name": "described", "packages": [PACKAGE]})
    assert api.ask("GET", "/templates")
    api.ask("GET", one, template="described")
    api.ask("DELETE", one, template="described")
    api.ask("POST", "/templates/image", data=an_image(), name="described")
    api.ask("DELETE", one, template="described")
    sandbox = api.ask("POST", "/sandboxes", {"network": "registries"})["id"]
    body = {"packages": [PACKAGE]}
    assert api.ask("POST", "/sandboxes/{sandbox}/install", body, sandbox=sandbox)["output"]
    api.ask("DELETE", "/sandboxes/{sandbox}", sandbox=sandbox)


def play_pools(api: Api) -> None:
    body = {"count": 1, "sandbox": {"template": "base"}}
    assert api.ask("PUT", "/pools", body) == api.ask("GET", "/pools") != []
    api.ask("PUT", "/pools", {**body, "count": 0})


def play_network(api: Api) -> None:
    sandbox = api.ask("POST", "/sandboxes", {"template": "base", "network": []})["id"]
    base = "/sandboxes/{sandbox}"
    api.ask("PUT", f"{base}/network", {"network": ["example.com"]}, sandbox=sandbox)
    api.ask("GET", f"{base}/egress", sandbox=sandbox)
    api.ask("DELETE", base, sandbox=sandbox)
    api.ask("GET", f"{base}/egress/events", sandbox=sandbox)


def play_owners(api: Api) -> None:
    body = {"template": "base", "workspace": "described"}
    sandbox = api.ask("POST", "/sandboxes", body)["id"]
    api.ask("DELETE", "/sandboxes/{sandbox}", sandbox=sandbox)
    assert api.ask("GET", "/workspaces")
    assert api.ask("GET", "/usage/workspaces")
    api.ask("GET", "/workspaces/{workspace}", workspace="described")
    api.ask("DELETE", "/workspaces/{workspace}", workspace="described")
    secret = {"value": "worth-a-lot", "hosts": ["api.example.com"], "header": "X-Key"}
    api.ask("PUT", "/secrets/{name}", secret, name="described")
    assert api.ask("GET", "/secrets")
    api.ask("POST", "/secrets/rotate")
    api.ask("DELETE", "/secrets/{name}", name="described")
    assert b"connected" in api.ask("GET", "/events")


def play_access(api: Api, login: str) -> None:
    api.ask("GET", "/auth/login", ticket=login.rpartition("=")[2])
    user = api.ask("POST", "/users", {"name": "described"})["id"]
    api.ask("GET", "/users")
    for verb in ("", "/disable", "/enable"):
        api.ask("POST" if verb else "GET", f"/users/{{user}}{verb}", user=user)
    made = api.ask("POST", "/tokens", {"name": "described"})
    assert api.ask("GET", "/tokens")
    api.ask("POST", "/auth/token", {"token": made["token"]})
    api.ask("DELETE", "/tokens/{token}", token=made["id"])
    for path in ("/auth/ways", "/auth/me", "/usage", "/usage/users"):
        api.ask("GET", path)
    api.ask("POST", "/auth/logout")


def play_operation(api: Api) -> None:
    for path in ("/health", "/ready", "/metrics"):
        api.ask("GET", path)


def play_end(api: Api, sandbox: str) -> None:
    for path in NOT_YET:
        assert refuse_yet(api, path, sandbox) == 501
    api.ask("DELETE", "/sandboxes/{sandbox}", sandbox=sandbox)
    api.ask("DELETE", "/sandboxes")


def refuse_yet(api: Api, operation: Operation, sandbox: str) -> int:
    method, path = operation
    address = path.format(sandbox=sandbox, final=sandbox)
    return api.exchange(operation, Sent(method, address, {}, None)).status


# --- whatever the description allows, and what it does not ----------------------------------------------------


def test_no_request_is_a_fault_of_the_node(api: Api, campaign: Campaign) -> None:
    schema = schemathesis.openapi.from_dict(api.document)
    found = list(schema.get_all_operations())
    operations = [each.ok() for each in found if isinstance(each, Ok)]
    assert len(operations) == len(found), "the description of some is broken"
    for operation in operations:
        try_operation(api, operation, Things(api), campaign)
    api.ask("DELETE", "/sandboxes")


def try_operation(api: Api, operation: Any, things: Things, campaign: Campaign) -> None:
    """Send requests of all kinds to one operation."""
    known = (operation.method.upper(), operation.path)
    allowed = operation.as_strategy()
    forbidden = operation.as_strategy(generation_mode=GenerationMode.NEGATIVE)

    @hypothesis.seed(campaign.random.randrange(2**32))
    @hypothesis.settings(
        max_examples=campaign.count(_EXAMPLES),
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],
        print_blob=False,
    )
    @hypothesis.given(case=st.one_of(allowed, forbidden), share=st.integers(1, 10))
    def try_one(case: Any, share: int) -> None:
        if share > 3:
            things.put_into(case)
        calm(known, case)
        sent = prepare(case)
        if sent is not None:
            # A header that no client sends says nothing about the node.
            with suppress(httpx2.LocalProtocolError):
                api.exchange(known, sent)

    try_one()


class Things:
    """What there is to be named in a path: else nearly everything would only be looked for and not found."""

    def __init__(self, api: Api) -> None:
        made = api.ask("POST", "/sandboxes", {"template": "base", "files": {"file": "text"}})
        command = {"argv": ["sleep", "1000"], "keep_stdin": True}
        path = "/sandboxes/{sandbox}/executions"
        running = api.ask("POST", path, command, sandbox=made["id"])
        self._named = {
            "sandbox": made["id"],
            "final": made["id"],
            "execution": running["id"],
            "path": "file",
        }

    def put_into(self, case: Any) -> None:
        for name in case.path_parameters or {}:
            if name in self._named:
                case.path_parameters[name] = self._named[name]


# What would take long: other people's servers are asked, or programs run.
_SLOW = {("POST", "/templates"), ("POST", "/sandboxes/{sandbox}/install")}
_MOMENT = 0.2
_WAITS = ("wait", "timeout")


def calm(operation: Operation, case: Any) -> None:
    """Have nothing wait for long, and nothing be fetched from elsewhere."""
    for name in _WAITS:
        if _takes(case, name):
            case.query[name] = _MOMENT
    body = case.body
    if not isinstance(body, dict):
        return
    if operation in _SLOW or (operation == ("POST", "/sandboxes") and body.get("packages")):
        body["packages"] = []
    if operation[1].endswith(("/executions", "/execute")):
        body["timeout"] = _MOMENT
        if body.get("kind") == "terminal":
            body["wait"] = False


def _takes(case: Any, name: str) -> bool:
    """Whether a request may wait for as long as one of its parameters says."""
    return any(each.name == name for each in case.operation.query)


# What the client itself adds, and by which it comes in.
_OURS = {"Content-Length", "Authorization", "Cookie"}


def prepare(case: Any) -> Sent | None:
    """Return a generated request as it is sent, unless no program could send it."""
    arguments = case.as_transport_kwargs(base_url="http://node")
    try:
        made = requests.Request(**arguments).prepare()
    except (ValueError, TypeError, requests.RequestException):
        return None
    body = made.body.encode() if isinstance(made.body, str) else made.body
    assert body is None or isinstance(body, bytes)
    headers = {name: str(value) for name, value in made.headers.items() if name not in _OURS}
    return Sent(str(made.method), str(made.path_url), headers, body)
