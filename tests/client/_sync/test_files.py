# Generated from _async by tools/generate_sync.py; edit that.
"""Files: in pieces, by name, by what is in them."""

from __future__ import annotations

from contextlib import closing

import pytest

from atoll import Sandbox
from atoll.errors import InvalidRequest, NotFound


def test_a_large_file_comes_in_pieces() -> None:
    with Sandbox() as sandbox:
        data = b"0123456789" * 300_000
        sandbox.files.write("large", data)
        pieces = [piece for piece in sandbox.files.stream("large")]
        assert len(pieces) > 1
        assert b"".join(pieces) == data
        part = b""
        for piece in sandbox.files.stream("large", offset=5, length=10):
            part += piece
        assert part == b"5678901234"


def test_modes_existence_and_names() -> None:
    with Sandbox() as sandbox:
        sandbox.files.write("bin/tool", "#!/bin/sh\necho ran\n", mode=0o755)
        assert (sandbox.commands.run("bin/tool")).stdout == b"ran\n"
        assert sandbox.files.exists("bin/tool")
        assert not sandbox.files.exists("bin/other")
        sandbox.files.rename("bin/tool", "bin/other")
        assert [each.path for each in sandbox.files.search_names("oth*")] == ["bin/other"]
        assert (sandbox.files.stat("bin/other")).mode & 0o777 == 0o755
        sandbox.files.make_dir("a/b/c")
        sandbox.files.remove("a", recursive=True)
        assert not sandbox.files.exists("a")


def test_lines_are_searched_and_read_in_pages() -> None:
    with Sandbox() as sandbox:
        sandbox.files.write("notes.txt", "one\ntwo\nthree\n")
        sandbox.files.write("other.md", "two\n")
        found = sandbox.files.search("^t", glob="*.txt")
        assert [(match.line, match.text) for match in found.matches] == [(2, "two"), (3, "three")]
        page = sandbox.files.read_page("notes.txt", start_line=2, lines=1)
        assert (page.text, page.next_line) == ("two\n", 3)
        assert sandbox.files.read_text("notes.txt") == "one\ntwo\nthree\n"


def test_errors_name_the_file() -> None:
    with Sandbox() as sandbox:
        with pytest.raises(NotFound, match="missing"):
            sandbox.files.read("missing")
        with pytest.raises(FileNotFoundError):
            for _ in sandbox.files.stream("missing"):
                pass
        with pytest.raises(InvalidRequest, match=r"\.\."):
            sandbox.files.read("../etc/passwd")
        with pytest.raises(InvalidRequest, match="dict"):
            sandbox.files.write("x", {})  # type: ignore[arg-type]


def test_changes_are_told_as_they_happen() -> None:
    # Something of each kind again and again, whenever the watching begins.
    code = "n=9; while :; do n=$((n+1)); echo x >> kept; touch new$n; rm -f new$((n-3)); sleep 0.4; done"
    with Sandbox(files={"kept": "a"}) as sandbox:
        sandbox.commands.start(code)
        ready: list[int] = []
        seen = set()
        watching = sandbox.files.watch(on_ready=lambda: ready.append(1))
        with closing(watching) as changes:
            for change in changes:
                seen.add((change.type.value, change.info.path.rstrip("0123456789")))
                if seen >= {("changed", "kept"), ("created", "new"), ("removed", "new")}:
                    break
        assert ready == [1]
        with pytest.raises(NotFound):
            for _ in sandbox.files.watch("nowhere"):
                pass
