"""What may be handed to an installer, and what may not."""

from __future__ import annotations

import pytest

from atoll.errors import InvalidRequest, LimitExceeded
from atoll.model.packages import (
    are_exact,
    find_built_language,
    find_package_language,
    parse_packages,
)


def test_versions_by_name_and_lists_say_the_same() -> None:
    by_name = {"pandas": "2.2.3", "matplotlib": "", "six": ">=1.16,<2"}
    as_list = ["matplotlib", "pandas==2.2.3", "six>=1.16,<2", "matplotlib"]
    assert parse_packages(by_name) == parse_packages(as_list)
    assert parse_packages(by_name) == ("matplotlib", "pandas==2.2.3", "six>=1.16,<2")
    assert parse_packages({"a[b,c]": "1"}) == ("a[b,c]==1",)
    assert parse_packages({"lodash": ">=4", "is": "~1.2"}, "node") == ("is@~1.2", "lodash@>=4")
    assert parse_packages({"lodash": "4.17.21", "@types/node": "^20"}, "node") == (
        "@types/node@^20",
        "lodash@4.17.21",
    )
    assert parse_packages(["data.table"], "r") == ("data.table",)
    assert parse_packages([]) == ()


@pytest.mark.parametrize(
    "text",
    [
        "", " ", "-r", "--index-url=x", "-e .", "./here", "../up", "/etc/passwd", "file:///x", "git+ssh://x",
        "a @ file:///x", "a==1; rm -rf /", "a\nb", "a b", "a;b", "$(x)", "`x`", "a==", "==1", "a==1,", "a[",
        "a[]", ".a", "a.", "a" * 201, "ä", "a\0", "@scope/a", "a==1 --hash=x", "http://x/y.whl", "x.whl/..",
    ],
)  # fmt: skip
def test_what_is_no_python_package_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="is no package"):
        parse_packages([text])


@pytest.mark.parametrize(
    "text", ["", "-g", "../x", "a/b", "a b", "git://x", "a@", "A@../x", "@a", "a@x y"]
)
def test_what_is_no_node_package_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="is no package"):
        parse_packages([text], "node")


@pytest.mark.parametrize("text", ["", "a b", "x'); system('id", "a-b", "1a", "a/b"])
def test_what_is_no_r_package_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="is no package"):
        parse_packages([text], "r")


def test_what_is_no_list_of_packages_is_refused() -> None:
    for wrong in ("pandas", 5, {"pandas": 2}, {3: "1"}, [4], None):
        with pytest.raises(InvalidRequest):
            parse_packages(wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="bash"):
        parse_packages(["x"], "bash")
    with pytest.raises(InvalidRequest, match="versions"):
        parse_packages({"jsonlite": "1"}, "r")
    with pytest.raises(LimitExceeded, match="200"):
        parse_packages([f"p{number}" for number in range(201)])


def test_only_versions_that_are_said_in_full_are_the_same_tomorrow() -> None:
    assert are_exact(("pandas==2.2.3",), "python")
    assert not are_exact(("pandas>=2",), "python")
    assert are_exact(("@a/b@1.2.3", "c@1.0.0-beta.2"), "node")
    for loose in ("c", "@a/b", "c@1", "c@^1.2.3", "c@1.2", "c@latest", "c@1.2.x"):
        assert not are_exact((loose,), "node"), loose


def test_a_language_goes_by_all_its_names() -> None:
    assert parse_packages(["lodash@4"], "js") == parse_packages(["lodash@4"], "node")
    assert find_package_language("rscript") == "r"
    assert find_built_language("TypeScript") == "node"
    for unknown in ("cobol", "bash", "deno"):
        with pytest.raises(InvalidRequest, match="cannot be installed; there is: python, node, r"):
            find_package_language(unknown)
