"""Parts and versions of files, directories, pages, searches and watches over HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator

import anyio
import pytest
from httpx2 import AsyncClient, AsyncHTTPTransport
from starlette.datastructures import Headers

from atoll.client.http import HttpNode
from atoll.errors import InvalidRequest, LimitExceeded, NotFound
from atoll.model.file import FileInfo, FileKind
from atoll.server.errors import Refusal
from atoll.server.versions import Part, find_part, meets_conditions, tag_of
from tests.running_node import RunningNode
from tests.server.sse import read_sse
from tests.server.test_files import once

CONTENT = bytes(range(256)) * 4096
FILE = FileInfo("file", FileKind.FILE, 100, 0o644, 1_700_000_000.123456)


@pytest.fixture
async def bare(node: RunningNode) -> AsyncIterator[AsyncClient]:
    """A client that shows answers as they are."""
    transport = AsyncHTTPTransport(uds=str(node.socket_path))
    async with AsyncClient(transport=transport, base_url="http://node", timeout=60) as client:
        yield client


@pytest.fixture
async def file(bare: AsyncClient, sandbox: str) -> str:
    """The address of a file of 1 MiB."""
    path = f"/sandboxes/{sandbox}/files/data.bin"
    await bare.put(path, content=CONTENT)
    return path


@pytest.mark.parametrize(
    ("asked", "begin", "end"),
    [
        ("bytes=0-0", 0, 1),
        ("bytes=10-19", 10, 20),
        ("bytes=1048570-", 1048570, 1048576),
        ("bytes=1048570-99999999", 1048570, 1048576),
        ("bytes=-5", 1048571, 1048576),
        ("bytes=-99999999", 0, 1048576),
        ("bytes=200000-700000", 200000, 700001),
    ],
)
async def test_a_part_is_given(
    bare: AsyncClient, file: str, asked: str, begin: int, end: int
) -> None:
    answer = await bare.get(file, headers={"Range": asked})
    assert answer.status_code == 206
    assert answer.content == CONTENT[begin:end]
    assert answer.headers["content-range"] == f"bytes {begin}-{end - 1}/{len(CONTENT)}"
    assert answer.headers["content-length"] == str(end - begin)


@pytest.mark.parametrize(
    "asked", ["bytes=5-4", "bytes=-", "bytes=0-1,5-6", "lines=1-2", "bytes=a-b", "bytes 0-1"]
)
async def test_what_is_no_part_gives_the_whole(bare: AsyncClient, file: str, asked: str) -> None:
    answer = await bare.get(file, headers={"Range": asked})
    assert (answer.status_code, len(answer.content)) == (200, len(CONTENT))


@pytest.mark.parametrize("asked", ["bytes=1048576-", "bytes=99999999-999999999", "bytes=-0"])
async def test_a_part_behind_the_end_is_refused(bare: AsyncClient, file: str, asked: str) -> None:
    answer = await bare.get(file, headers={"Range": asked})
    assert (answer.status_code, answer.headers["content-range"]) == (416, "bytes */1048576")


async def test_offset_and_length_are_a_part_too(bare: AsyncClient, file: str) -> None:
    answer = await bare.get(file, params={"offset": 100, "length": 50})
    assert (answer.status_code, answer.content) == (200, CONTENT[100:150])
    behind = await bare.get(file, params={"offset": 1 << 30})
    assert (behind.status_code, behind.content) == (200, b"")
    assert (await bare.get(file, params={"offset": -1})).status_code == 400


async def test_a_known_version_is_not_sent_again(bare: AsyncClient, file: str) -> None:
    first = await bare.get(file)
    tag = first.headers["etag"]
    assert (await bare.head(file)).headers["etag"] == tag
    again = await bare.get(file, headers={"If-None-Match": f'"other", W/{tag}'})
    assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
    await bare.put(file, content=b"new")
    changed = await bare.get(file, headers={"If-None-Match": tag})
    assert (changed.status_code, changed.content) == (200, b"new")
    part = await bare.get(file, headers={"Range": "bytes=0-0", "If-Range": tag})
    assert (part.status_code, part.content) == (200, b"new")


async def test_only_the_named_version_is_replaced(bare: AsyncClient, file: str) -> None:
    tag = (await bare.get(file)).headers["etag"]
    first = await bare.put(file, content=b"first", headers={"If-Match": tag})
    assert first.status_code == 201
    late = await bare.put(file, content=b"late", headers={"If-Match": tag})
    assert (late.status_code, late.json()["code"]) == (412, "conflict")
    assert (await bare.get(file)).content == b"first"
    newest = await bare.put(file, content=b"next", headers={"If-Match": first.headers["etag"]})
    assert newest.status_code == 201


async def test_of_many_who_know_the_same_version_one_wins(bare: AsyncClient, file: str) -> None:
    tag = (await bare.put(file, content=b"0" * 8)).headers["etag"]
    outcomes: list[tuple[int, bytes]] = []

    async def replace(content: bytes) -> None:
        answer = await bare.put(file, content=content, headers={"If-Match": tag})
        outcomes.append((answer.status_code, content))

    async with anyio.create_task_group() as tasks:
        for number in range(8):
            tasks.start_soon(replace, f"writer {number}"[-8:].encode())
    winners = [content for status, content in outcomes if status == 201]
    assert sorted(status for status, _ in outcomes) == [201] + [412] * 7
    assert (await bare.get(file)).content == winners[0]


async def test_a_new_file_replaces_none(bare: AsyncClient, file: str) -> None:
    unwanted = {"If-None-Match": "*"}
    assert (await bare.put(file, content=b"x", headers=unwanted)).status_code == 412
    assert (await bare.put(f"{file}.new", content=b"x", headers=unwanted)).status_code == 201
    wanted = {"If-Match": "*"}
    assert (await bare.put(f"{file}.none", content=b"x", headers=wanted)).status_code == 412


def test_parts_and_conditions_are_read_as_they_are_meant() -> None:
    tag = tag_of(FILE)
    assert find_part(Headers({"range": "bytes=90-"}), FILE) == Part(90, 10)
    assert find_part(Headers({"range": "bytes=90-", "if-range": tag}), FILE) == Part(90, 10)
    assert find_part(Headers({"range": "bytes=90-", "if-range": '"x"'}), FILE) is None
    with pytest.raises(Refusal):
        find_part(Headers({"range": "bytes=100-"}), FILE)
    assert meets_conditions(Headers({"if-match": f'"x", {tag}'}), FILE)
    assert not meets_conditions(Headers({"if-match": '"x"'}), FILE)
    assert not meets_conditions(Headers({"if-match": f"W/{tag}"}), FILE)
    assert not meets_conditions(Headers({"if-match": "*"}), None)
    assert meets_conditions(Headers({"if-none-match": "*"}), None)


async def test_a_directory_is_listed_whole(client: HttpNode, sandbox: str) -> None:
    await client.call(
        "POST", f"/sandboxes/{sandbox}/execute", body={"code": "touch a b; ln -s a c; mkdir d"}
    )
    listed = await client.call("GET", f"/sandboxes/{sandbox}/list")
    assert [(each["name"], each["kind"]) for each in listed] == [
        ("a", "file"),
        ("b", "file"),
        ("c", "symlink"),
        ("d", "directory"),
    ]
    with pytest.raises(LimitExceeded):
        await client.call("GET", f"/sandboxes/{sandbox}/list", params={"limit": 3})


async def test_lines_are_paged_and_searched(client: HttpNode, sandbox: str) -> None:
    base = f"/sandboxes/{sandbox}"
    text = "".join(f"line {number}\n" for number in range(1, 101))
    await client.call("PUT", f"{base}/files/src/a.txt", data=once(text.encode()))
    await client.call("PUT", f"{base}/files/src/b.py", data=once(b"line 7 of python\n"))
    page = await client.call(
        "GET", f"{base}/page", params={"path": "src/a.txt", "start_line": 99, "lines": 1}
    )
    assert (page["text"], page["next_line"], page["cut_by"]) == ("line 99\n", 100, "lines")
    found = await client.call("GET", f"{base}/search", params={"pattern": "line 7\\b"})
    assert {(each["path"], each["line"]) for each in found["matches"]} == {
        ("src/a.txt", 7),
        ("src/b.py", 1),
    }
    some = await client.call(
        "GET", f"{base}/search", params={"pattern": "line", "glob": "*.txt", "limit": 3}
    )
    assert (len(some["matches"]), some["cut_by"]) == (3, "matches")
    with pytest.raises(InvalidRequest, match="regular expression"):
        await client.call("GET", f"{base}/search", params={"pattern": "("})
    names = await client.call("GET", f"{base}/search_names", params={"glob": "*.py"})
    assert [each["path"] for each in names] == ["src/b.py"]


async def test_changes_are_watched(client: HttpNode, node: RunningNode, sandbox: str) -> None:
    base = f"/sandboxes/{sandbox}"
    await client.call("POST", f"{base}/make_dir", body={"path": "seen"})
    with anyio.fail_after(60):
        async with read_sse(node, f"{base}/watch?path=seen") as events:
            assert (await anext(events)).kind == "ready"
            await client.call("PUT", f"{base}/files/seen/a", data=once(b"1"))
            await client.call("PUT", f"{base}/files/elsewhere", data=once(b"1"))
            created = await anext(events)
            assert (created.kind, created.data["file"]["path"]) == ("created", "seen/a")
            await client.call("PUT", f"{base}/files/seen/a", data=once(b"22"))
            changed = await anext(events)
            assert (changed.kind, changed.data["file"]["size"]) == ("changed", 2)
            await client.call("DELETE", f"{base}/files/seen/a")
            removed = await anext(events)
            assert (removed.kind, removed.data["type"]) == ("removed", "removed")
            await client.call("DELETE", f"{base}/files/seen")
            assert (await anext(events)).kind == "error"
            assert [event async for event in events] == []


async def test_a_watch_ends_with_its_sandbox(client: HttpNode, node: RunningNode) -> None:
    made = await client.call("POST", "/sandboxes", body={"template": "base"})
    with anyio.fail_after(60):
        async with read_sse(node, f"/sandboxes/{made['id']}/watch") as events:
            await anext(events)
            await client.call("DELETE", f"/sandboxes/{made['id']}")
            assert (await anext(events)).kind == "error"


async def test_what_cannot_be_watched_is_refused(
    client: HttpNode, node: RunningNode, sandbox: str
) -> None:
    base = f"/sandboxes/{sandbox}"
    with pytest.raises(NotFound):
        await client.call("GET", f"{base}/watch", params={"path": "nothing"})
    line = {"code": "mkdir many && cd many && seq 5001 | xargs touch"}
    await client.call("POST", f"{base}/execute", body=line)
    with pytest.raises(LimitExceeded, match="5000"):
        await client.call("GET", f"{base}/watch", params={"path": "many"})
