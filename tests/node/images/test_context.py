"""What an image is built of: all of a directory but what its ignore file names, and nothing else."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.errors import InvalidRequest, NotFound
from atoll.node.images.context import is_ignored, pack_context, parse_ignore

pytestmark = pytest.mark.any_user


@pytest.mark.parametrize(
    ("patterns", "ignored", "kept"),
    [
        ("*.key", ["a.key"], ["a/b.key", "key"]),
        ("**/*.key", ["a.key", "a/b.key"], ["a.keys"]),
        ("/node_modules/", ["node_modules", "node_modules/x/y"], ["a/node_modules"]),
        ("*\n!keep\n!src", ["other", "deep/x"], ["keep", "src/a"]),
        ("# a comment\n\nfile?", ["file1"], ["file", "file12"]),
        ("a.b", ["a.b"], ["axb"]),
        ("..", [], ["a"]),
    ],
)
def test_patterns_mean_what_docker_means(
    patterns: str, ignored: list[str], kept: list[str]
) -> None:
    rules = parse_ignore(patterns)
    assert [is_ignored(name, rules) for name in (*ignored, *kept)] == [
        *(True for _ in ignored),
        *(False for _ in kept),
    ]


@given(st.text(max_size=200))
def test_any_ignore_file_is_read(text: str) -> None:
    assert is_ignored("a/b", parse_ignore(text)) in (True, False)


def test_nothing_outside_is_packed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("x")
    folder = tmp_path / "context"
    (folder / "deep").mkdir(parents=True)
    (folder / "Dockerfile").write_text("FROM scratch")
    (folder / ".dockerignore").write_text("*\n!deep\n!way\ndeep/no\n")
    (folder / "deep" / "yes").write_text("y")
    (folder / "deep" / "no").write_text("n")
    (folder / "way").symlink_to(outside)
    pack_context(folder, tmp_path / "x.tar")
    with tarfile.open(tmp_path / "x.tar") as archive:
        assert {each.name for each in archive} == {
            "Dockerfile",
            ".dockerignore",
            "deep",
            "deep/yes",
            "way",
        }
        assert archive.getmember("way").issym()
        assert all(each.uid == 0 and not each.uname for each in archive.getmembers())
    (folder / "Dockerfile").unlink()
    with pytest.raises(NotFound, match="no Dockerfile"):
        pack_context(folder, tmp_path / "y.tar")
    with pytest.raises(InvalidRequest, match="patterns"):
        parse_ignore("a\n" * 2000)
