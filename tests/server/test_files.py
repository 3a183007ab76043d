"""Files over HTTP: as they are, listed, as a form, as archives."""

from __future__ import annotations

import io
import tarfile
from collections.abc import AsyncIterator
from contextlib import aclosing
from urllib.parse import quote

import anyio
import pytest

from atoll.client.http import HttpNode
from atoll.errors import InvalidRequest, NotFound
from tests.running_node import RunningNode

ODD_NAMES = [
    "with space.txt",
    "percent%41.txt",
    "ünïcode.txt",
    "plus+and&.txt",
    "question?.txt",
    "new\nline",
    "last\n",
]


async def once(data: bytes) -> AsyncIterator[bytes]:
    yield data


async def read(client: HttpNode, address: str, **params: str) -> bytes:
    async with aclosing(client.read(address, params)) as chunks:
        return b"".join([chunk async for chunk in chunks])


async def test_a_file_comes_back_as_it_was_sent(client: HttpNode, sandbox: str) -> None:
    content = bytes(range(256)) * 20_000
    files = f"/sandboxes/{sandbox}/files"
    written = await client.call("PUT", f"{files}/deep/er/data.bin", data=once(content))
    assert (written["path"], written["size"]) == ("deep/er/data.bin", len(content))
    assert await read(client, f"{files}/deep/er/data.bin") == content


async def test_a_file_is_an_attachment_of_its_type(client: HttpNode, sandbox: str) -> None:
    files = f"/sandboxes/{sandbox}/files"
    await client.call("PUT", f"{files}/table.csv", data=once(b"a,b\n"), params={"mode": 0o600})
    answer = await client.ask("GET", f"{files}/table.csv")
    assert answer.headers["content-type"].startswith("text/csv")
    assert "attachment" in answer.headers["content-disposition"]
    assert answer.headers["content-length"] == "4"
    facts = await client.ask("HEAD", f"{files}/table.csv")
    assert facts.headers["content-length"] == "4"
    assert (facts.headers["atoll-kind"], facts.headers["atoll-mode"]) == ("file", "600")


@pytest.mark.parametrize("name", ODD_NAMES)
async def test_odd_names_are_names(client: HttpNode, sandbox: str, name: str) -> None:
    await client.call("PUT", f"/sandboxes/{sandbox}/files/{quote(name)}", data=once(b"x"))
    listed = await client.call("GET", f"/sandboxes/{sandbox}/files/")
    assert [each["name"] for each in listed["entries"]] == [name]
    assert await read(client, f"/sandboxes/{sandbox}/files/{quote(name)}") == b"x"


async def test_a_directory_is_listed(client: HttpNode, sandbox: str) -> None:
    await client.call("POST", f"/sandboxes/{sandbox}/make_dir", body={"path": "one/two"})
    await client.call("PUT", f"/sandboxes/{sandbox}/files/one/file", data=once(b"123"))
    listed = await client.call("GET", f"/sandboxes/{sandbox}/files/one")
    entries = {each["name"]: each for each in listed["entries"]}
    assert (entries["two"]["is_dir"], entries["file"]["is_dir"]) == (True, False)
    assert (entries["file"]["size"], entries["file"]["path"]) == (3, "one/file")


async def test_files_are_removed_and_renamed(client: HttpNode, sandbox: str) -> None:
    base = f"/sandboxes/{sandbox}"
    await client.call("PUT", f"{base}/files/a/old", data=once(b"x"))
    await client.call("POST", f"{base}/rename", body={"source": "a/old", "target": "a/new"})
    assert (await client.call("GET", f"{base}/stat", params={"path": "a/new"}))["size"] == 1
    with pytest.raises(NotFound):
        await client.call("GET", f"{base}/stat", params={"path": "a/old"})
    await client.call("DELETE", f"{base}/files/a", params={"recursive": True})
    with pytest.raises(NotFound):
        await client.call("GET", f"{base}/files/a")


async def test_a_form_puts_files_below_a_directory(client: HttpNode, sandbox: str) -> None:
    boundary = "a-boundary"
    parts = [("x.txt", b"one"), ("sub/y.txt", b"two")]
    body = b"".join(
        f'--{boundary}\r\nContent-Disposition: form-data; name="files"; filename="{name}"\r\n\r\n'.encode()
        + content
        + b"\r\n"
        for name, content in parts
    )
    await client.call(
        "POST",
        f"/sandboxes/{sandbox}/files/up",
        data=once(body + f"--{boundary}--\r\n".encode()),
        headers={"Content-Type": f"multipart/form-data; boundary={boundary}"},
    )
    assert await read(client, f"/sandboxes/{sandbox}/files/up/x.txt") == b"one"
    assert await read(client, f"/sandboxes/{sandbox}/files/up/sub/y.txt") == b"two"


async def test_a_tree_travels_as_an_archive(client: HttpNode, sandbox: str) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name in ("a", "b/c"):
            member = tarfile.TarInfo(name)
            member.size = len(name)
            tar.addfile(member, io.BytesIO(name.encode()))
    base = f"/sandboxes/{sandbox}/archive"
    report = await client.call("PUT", base, data=once(packed.getvalue()), params={"path": "in"})
    assert report["files"] == 2
    with tarfile.open(fileobj=io.BytesIO(await read(client, base, path="in"))) as tar:
        assert {each.name for each in tar if each.isreg()} == {"a", "b/c"}


async def test_an_archive_that_leads_out_is_refused(client: HttpNode, sandbox: str) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("../out"))
    with pytest.raises(InvalidRequest):
        await client.call(
            "PUT", f"/sandboxes/{sandbox}/archive", data=once(packed.getvalue()), params={}
        )


@pytest.mark.parametrize("path", ["%2e%2e/etc", "a/%2e%2e/%2e%2e/b", "%2Fetc/passwd", "nul%00"])
async def test_a_path_that_leads_out_is_refused(client: HttpNode, sandbox: str, path: str) -> None:
    with pytest.raises((InvalidRequest, NotFound)):
        await client.call("PUT", f"/sandboxes/{sandbox}/files/{path}", data=once(b"x"))
    listed = await client.call("GET", f"/sandboxes/{sandbox}/files/")
    assert listed["entries"] == []


async def test_a_name_that_is_no_text_is_listed_nevertheless(
    client: HttpNode, sandbox: str
) -> None:
    line = {"code": "touch $(printf 'odd\\377name')"}
    assert (await client.call("POST", f"/sandboxes/{sandbox}/execute", body=line))["exit_code"] == 0
    listed = await client.call("GET", f"/sandboxes/{sandbox}/files/")
    (name,) = [each["name"] for each in listed["entries"]]
    assert name.startswith("odd") and name.endswith("name")


async def test_half_an_upload_is_no_file(client: HttpNode, node: RunningNode, sandbox: str) -> None:
    with node.connect() as connection:
        connection.sendall(
            f"PUT /sandboxes/{sandbox}/files/half HTTP/1.1\r\nHost: node\r\n"
            "Content-Length: 1000000\r\n\r\n".encode()
            + bytes(500_000)
        )
    await wait_quiet(client)
    listed = await client.call("GET", f"/sandboxes/{sandbox}/files/")
    assert listed["entries"] == []


async def wait_quiet(client: HttpNode) -> None:
    """Wait until the node answers nobody else."""
    with anyio.fail_after(60):
        while True:
            if (await client.call("GET", "/ready"))["requests"] == 0:
                return
            await anyio.sleep(0.02)
