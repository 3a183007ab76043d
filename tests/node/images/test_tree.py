"""The tree that layers make: against what an overlay of unpacked layers shows, and against hostile archives."""

from __future__ import annotations

import gzip
import io
import os
import stat
import tarfile
from collections.abc import ItemsView, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.errors import InvalidRequest, LimitExceeded
from atoll.node.images.limits import ImageLimits
from atoll.node.images.members import read_members, split_name
from atoll.node.images.source import Image, Layer, parse_config
from atoll.node.images.tree import Directory, File, ImageTree, Link
from atoll.node.images.unpacking import unpack
from tests.image_files import config, file, folder, hard_link, layer, link, special

pytestmark = pytest.mark.any_user


def merged(*layers: bytes, entries: int = 10_000, total: int = 1 << 30) -> ImageTree:
    tree = ImageTree(entries, total)
    for number, data in enumerate(layers, 1):
        tree.apply(number, read_members(io.BytesIO(data)))
    return tree


def shown(tree: ImageTree) -> dict[str, str]:
    found: dict[str, str] = {}

    def look(directory: Directory, path: str) -> None:
        for name, child in directory.children.items():
            if isinstance(child, Directory):
                found[f"{path}{name}"] = "directory"
                look(child, f"{path}{name}/")
            else:
                found[f"{path}{name}"] = "link" if isinstance(child, Link) else "file"

    look(tree.root, "")
    return found


def unpacked(path: Path, *layers: bytes, limits: ImageLimits | None = None) -> Path:
    image = Image("x", parse_config(config(layers)), [Layer(lambda d=d: iter([d])) for d in layers])  # type: ignore[misc]
    path.mkdir()
    unpack(image, path, limits or ImageLimits())
    return path / "root"


def test_upper_layers_replace_hide_and_empty_what_lower_ones_have() -> None:
    lower = layer(
        folder("etc"), file("etc/kept"), file("etc/gone"), folder("d"), file("d/a"), file("d/b/c")
    )
    upper = layer(
        file("etc/.wh.gone"),
        file("d/new"),
        file("d/.wh..wh..opq"),
        file("d/b/fresh"),
        file("etc/kept/now/a/directory"),
    )
    assert shown(merged(lower, upper)) == {
        "etc": "directory",
        "etc/kept": "directory",
        "etc/kept/now": "directory",
        "etc/kept/now/a": "directory",
        "etc/kept/now/a/directory": "file",
        "d": "directory",
        "d/new": "file",
        "d/b": "directory",
        "d/b/fresh": "file",
    }
    # A whiteout is about lower layers only, wherever in its own it stands.
    both = layer(file("x"), file(".wh.x"), file("y/.wh..wh..opq"), file("y/z"))
    assert set(shown(merged(both))) == {"x", "y", "y/z"}


class CountedChildren(dict[str, File | Link | Directory]):
    """Counts how many children are looked at one after the other."""

    looked_at = 0

    def items(self) -> ItemsView[str, File | Link | Directory]:  # type: ignore[override]
        self.looked_at += len(self)
        return super().items()


@pytest.mark.parametrize("marks", [("d/.wh..wh..opq",), (".wh.d",), ("d/.wh..wh..opq", ".wh.d")])
def test_marks_that_hide_the_same_again_and_again_are_no_work(marks: tuple[str, ...]) -> None:
    tree, count = merged(layer(file("d/lower"), file("d/e/lower"))), 300
    outer, inner = CountedChildren(), CountedChildren()
    for path, counted in ((("d",), outer), (("d", "e"), inner)):
        directory = tree.find(*path)
        assert isinstance(directory, Directory)
        counted.update(directory.children)
        directory.children = counted
    members = [file(f"d/{number}") for number in range(count)]
    members += [file(f"d/e/{number}") for number in range(count)]
    members += [file(mark) for mark in marks] * count
    tree.apply(2, read_members(io.BytesIO(layer(*members))))
    assert (outer.looked_at, inner.looked_at) == (count + 2, count + 1)
    left = shown(tree)
    assert len(left) == 2 * count + 2
    assert "d/lower" not in left and "d/e/lower" not in left


def test_a_name_below_a_link_replaces_the_link(tmp_path: Path) -> None:
    secret = tmp_path / "outside"
    secret.mkdir()
    lower = layer(link("way", str(secret)), link("up", "../../.."))
    upper = layer(file("way/planted", b"x"), file("up/planted", b"x"))
    for count, layers in enumerate(
        ((lower, upper), (layer(link("way", str(secret)), file("way/planted")),))
    ):
        root = unpacked(tmp_path / str(count), *layers)
        assert (root / "way").is_dir()
        assert not (root / "way").is_symlink()
        assert (root / "way" / "planted").is_file()
    assert not list(secret.iterdir())


@pytest.mark.parametrize(
    "member",
    [
        file("../escape"),
        file("a/../../escape"),
        file("/etc/escape"),
        hard_link("inside", "../../../etc/passwd"),
        hard_link("inside", "/etc/passwd"),
        hard_link("inside", "missing"),
        file("a/.wh..."),
        file("a/.wh.."),
        file("/".join(["d"] * 200)),
        file("n" * 300),
        file("/".join(["n" * 200] * 30)),
        special("odd", b"Z"),
    ],
    ids=lambda member: member[0].name[:20],
)
def test_what_leads_out_of_the_tree_is_refused_and_nothing_is_written(
    tmp_path: Path, member: tuple[tarfile.TarInfo, bytes]
) -> None:
    with pytest.raises(InvalidRequest):
        unpacked(tmp_path / "x", layer(file("before"), member))
    assert [path.name for path in tmp_path.rglob("*")] == ["x"]


def test_links_lie_where_they_are_and_nothing_goes_through_them(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("host")
    evil = layer(
        link("etc", str(tmp_path)),
        link("var", "/"),
        link("passwd", "/etc/passwd"),
        hard_link("also", "passwd"),
        # With these names the host itself writes files of its own.
        link("x/etc/hosts", str(outside)),
    )
    root = unpacked(tmp_path / "x", evil)
    assert outside.read_text() == "host"
    assert {each.name for each in tmp_path.iterdir()} == {"outside", "x"}
    assert os.readlink(root / "passwd") == os.readlink(root / "also") == "/etc/passwd"
    # What a sandbox needs there is in a directory of the tree.
    assert not (root / "etc").is_symlink()
    assert "sandbox:x:65532" in (root / "etc" / "passwd").read_text()
    assert os.readlink(root / "etc" / "hosts") == "/etc/atoll/hosts"


def test_no_devices_no_set_id_bits_and_nobody_is_kept_out(tmp_path: Path) -> None:
    root = unpacked(
        tmp_path / "x",
        layer(
            special("dev/sda", tarfile.BLKTYPE),
            special("dev/tty", tarfile.CHRTYPE),
            special("pipe", tarfile.FIFOTYPE),
            file("su", b"#", 0o6755),
            folder("closed", 0o1000),
            file("closed/inner", b"", 0),
        ),
    )
    kinds = {path.name: path.lstat() for path in root.rglob("*")}
    assert all(
        stat.S_ISREG(f.st_mode) or stat.S_ISDIR(f.st_mode) or stat.S_ISLNK(f.st_mode)
        for f in kinds.values()
    )
    assert "sda" not in kinds
    assert "pipe" not in kinds
    assert stat.S_IMODE(kinds["su"].st_mode) == 0o755
    assert stat.S_IMODE(kinds["closed"].st_mode) == 0o700
    assert all(facts.st_uid == os.geteuid() for facts in kinds.values())


def test_hard_links_are_one_file_and_copies_across_layers_count(tmp_path: Path) -> None:
    root = unpacked(tmp_path / "x", layer(file("a", b"data"), hard_link("b", "a")))
    assert (root / "a").samefile(root / "b")
    lower = layer(file("big", bytes(100_000)))
    links = [hard_link(f"copy-{number}", "big") for number in range(20)]
    with pytest.raises(LimitExceeded, match="unpacks to more than 1000000 bytes"):
        merged(lower, layer(*links), total=1_000_000)
    # One that is hidden afterwards takes none of its copies with it.
    tree = merged(lower, layer(hard_link("copy", "big"), file(".wh.big")))
    assert set(shown(tree)) == {"copy"}


def test_an_image_of_too_many_entries_is_refused(tmp_path: Path) -> None:
    many = layer(*(file(f"f{number}") for number in range(2000)))
    with pytest.raises(LimitExceeded, match="more than 1000 entries"):
        unpacked(tmp_path / "x", many, limits=ImageLimits(entries=1000))
    # The same thousand again and again is as much work.
    again = layer(*(file(f"f{number % 10}") for number in range(2000)))
    with pytest.raises(LimitExceeded, match="more than 1000 entries"):
        merged(again, entries=1000)
    # A few members with deep names are many directories.
    deep = layer(*(file("/".join([f"{n}", *["d"] * 100])) for n in range(20)))
    with pytest.raises(LimitExceeded, match="more than 1000 entries"):
        merged(deep, entries=1000)


def test_headers_are_bounded_and_archives_whole() -> None:
    def header(name: str, kind: bytes, size: int) -> bytes:
        member = tarfile.TarInfo(name)
        member.type, member.size = kind, size
        return member.tobuf(tarfile.GNU_FORMAT)

    for kind in (tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK):
        with pytest.raises(LimitExceeded, match="extended header"):
            list(read_members(io.BytesIO(header("x", kind, 1 << 30))))
    with pytest.raises(InvalidRequest, match="ends too early"):
        list(read_members(io.BytesIO(header("x", tarfile.REGTYPE, 1 << 40))))
    with pytest.raises(InvalidRequest, match="middle of a header"):
        list(read_members(io.BytesIO(layer(file("a", b"1"), file("b"))[:1100])))
    with pytest.raises(InvalidRequest, match="not a tar archive"):
        list(read_members(io.BytesIO(b"x" * 4096)))
    with pytest.raises(InvalidRequest, match="unknown kind"):
        list(read_members(io.BytesIO(header("x", tarfile.GNUTYPE_SPARSE, 0))))


def extended(kind: bytes, data: bytes) -> bytes:
    member = tarfile.TarInfo("extended")
    member.type, member.size = kind, len(data)
    return member.tobuf(tarfile.GNU_FORMAT) + data + bytes(-len(data) % tarfile.BLOCKSIZE)


EVERY_EXTENSION = (
    extended(tarfile.XGLTYPE, b"11 comment=\n")
    + extended(tarfile.GNUTYPE_LONGNAME, b"long\0")
    + extended(tarfile.GNUTYPE_LONGLINK, b"a\0")
    + extended(tarfile.XHDTYPE, b"18 mtime=12345.67\n")
)


class GivenUp(Exception):
    pass


class Patience:
    """A `check` that counts, and gives up after a while."""

    def __init__(self, most: int = 1 << 30) -> None:
        self.calls, self._most = 0, most

    def __call__(self) -> None:
        self.calls += 1
        if self.calls > self._most:
            raise GivenUp


def test_extended_headers_of_a_member_are_few_and_count_as_entries() -> None:
    (member,) = read_members(io.BytesIO(EVERY_EXTENSION + layer(file("a"))))
    assert (member.path, member.modified, member.headers) == (("long",), 12345, 5)
    for kind, data in (
        (tarfile.XHDTYPE, b"9 path=b\n"),
        (tarfile.XGLTYPE, b""),
        (tarfile.GNUTYPE_LONGNAME, b"b\0"),
        (tarfile.GNUTYPE_LONGLINK, b"b\0"),
    ):
        many = extended(kind, data) * 9 + layer(file("a"))
        check = Patience()
        with pytest.raises(LimitExceeded, match="more than 8 extended headers"):
            list(read_members(io.BytesIO(many), check))
        assert check.calls == 9
    plain = layer(file("a"))[: tarfile.BLOCKSIZE]
    tree = merged((extended(tarfile.XHDTYPE, b"9 path=b\n") + plain) * 50, entries=100)
    assert tree.entries == 100
    with pytest.raises(LimitExceeded, match="more than 100 entries"):
        merged((extended(tarfile.XHDTYPE, b"9 path=b\n") + plain) * 51, entries=100)


def test_who_gives_up_waits_for_no_further_header() -> None:
    archive = (EVERY_EXTENSION + layer(file("a"))[: tarfile.BLOCKSIZE]) * 100
    check = Patience()
    assert len(list(read_members(io.BytesIO(archive), check))) == 100
    assert check.calls == 501  # the end is looked for, too
    for most in (0, 3, 17):
        check = Patience(most)
        with pytest.raises(GivenUp):
            list(read_members(io.BytesIO(archive), check))
        assert check.calls == most + 1


def test_who_gives_up_waits_for_no_layer_that_expands_to_nothing(tmp_path: Path) -> None:
    read = 0

    def chunks() -> Iterator[bytes]:
        nonlocal read
        for _ in range(100):
            read += 1
            yield gzip.compress(b"") * 10

    image = Image("x", parse_config(config([b""])), [Layer(chunks)])
    with pytest.raises(GivenUp):
        unpack(image, tmp_path, ImageLimits(), check=Patience(5))
    assert read == 6


def test_only_files_with_several_names_keep_where_they_are(tmp_path: Path) -> None:
    data = layer(file("a/one"), file("a/two"), hard_link("b", "a/two"))
    image = Image("x", parse_config(config([data])), [Layer(lambda: iter([data]))])
    tree = unpack(image, tmp_path, ImageLimits())
    one, two = tree.find("a", "one"), tree.find("a", "two")
    assert isinstance(one, File) and isinstance(two, File)
    assert (one.written, two.written) == (None, "a/two")


@given(st.binary(max_size=4096))
def test_any_bytes_are_members_or_an_error_of_ours(data: bytes) -> None:
    for member in _members_or_none(data):
        assert ".." not in member.path


def _members_or_none(data: bytes) -> list:  # type: ignore[type-arg]
    try:
        return list(read_members(io.BytesIO(data)))
    except (InvalidRequest, LimitExceeded):
        return []


@given(st.text(max_size=80))
def test_no_name_leads_out(name: str) -> None:
    try:
        parts = split_name(name)
    except InvalidRequest:
        return
    assert all(
        part not in ("", ".", "..") and "/" not in part and "\0" not in part for part in parts
    )


_NAMES = st.sampled_from("abc")
_PATHS = st.lists(_NAMES, min_size=1, max_size=3).map("/".join)
_MEMBERS = st.one_of(
    _PATHS.map(lambda path: file(path, path.encode())),
    _PATHS.map(folder),
    st.tuples(_PATHS, st.sampled_from(["/etc/passwd", "..", "a", "../b"])).map(
        lambda each: link(*each)
    ),
    st.tuples(st.lists(_NAMES, max_size=2), _NAMES).map(
        lambda each: file("/".join([*each[0], f".wh.{each[1]}"]))
    ),
    st.lists(_NAMES, min_size=1, max_size=2).map(
        lambda each: file("/".join([*each, ".wh..wh..opq"]))
    ),
)


@given(st.lists(st.lists(_MEMBERS, max_size=6), min_size=1, max_size=3))
def test_layers_make_what_an_overlay_of_them_shows(
    layers: list[list[tuple[tarfile.TarInfo, bytes]]],
) -> None:
    assert shown(merged(*(layer(*each) for each in layers))) == _overlaid(layers)


def _overlaid(layers: list[list[tuple[tarfile.TarInfo, bytes]]]) -> dict[str, str]:
    """The plain way: each layer by itself first, then one upon the other."""
    seen: dict[str, str] = {}
    for members in layers:
        own: dict[str, str] = {}
        hidden: set[str] = set()
        emptied: set[str] = set()
        for member, _data in members:
            path, _, name = member.name.rpartition("/")
            place = [f for f in path.split("/") if f]
            for depth in range(1, len(place) + 1):
                parent = "/".join(place[:depth])
                # What was there for a moment has hidden what lies below.
                hidden |= {parent} if own.get(parent, "directory") != "directory" else set()
                _put(own, parent, "directory")
            if name == ".wh..wh..opq":
                emptied.add(path)
            elif name.startswith(".wh."):
                hidden.add("/".join([*place, name[4:]]))
            else:
                kinds = {tarfile.DIRTYPE: "directory", tarfile.SYMTYPE: "link"}
                hidden |= (
                    {member.name} if own.get(member.name, "directory") != "directory" else set()
                )
                _put(own, member.name, kinds.get(member.type, "file"))
        for path in list(seen):
            parents = ["/".join(path.split("/")[:n]) for n in range(1, path.count("/") + 1)]
            if any(each in hidden for each in (path, *parents)) or any(
                e in emptied for e in parents
            ):
                del seen[path]
        for path, kind in own.items():
            _put(seen, path, kind)
    return seen


def _put(tree: dict[str, str], path: str, kind: str) -> None:
    if kind != "directory" or tree.get(path) != "directory":
        for each in [each for each in tree if each.startswith(f"{path}/")]:
            del tree[each]
    tree[path] = kind


def test_content_and_time_are_those_of_the_layer(tmp_path: Path) -> None:
    member, data = file("a/b", os.urandom(300_000), 0o751)
    member.mtime = 1_000_000_000
    path = unpacked(tmp_path / "x", layer((member, data))) / "a" / "b"
    assert path.read_bytes() == data
    assert path.stat().st_mtime == 1_000_000_000
    assert stat.S_IMODE(path.stat().st_mode) == 0o751
    found = merged(layer((member, data))).find("a", "b")
    assert isinstance(found, File)
