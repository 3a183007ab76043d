"""Recipes of images: whatever is written into one, its Dockerfile has the same instructions."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from atoll.errors import AtollError, InvalidRequest
from atoll.model.image_recipe import (
    DOCKERFILE,
    IGNORE,
    MANIFEST,
    NODE_PACKAGES,
    PYTHON_PACKAGES,
    RUNTIMES,
    VERSIONED,
    ImageRecipe,
    recipe_files,
    unpinned,
)

FULL: dict[str, Any] = {
    "name": "tool",
    "runtimes": RUNTIMES,
    "features": ("artifacts", "playwright"),
    "apt": ("curl",),
    "npm": ("lodash",),
    "pip": ("six",),
    "versions": {name: "1.2.3" for name in VERSIONED},
    "tag": "tool:1",
    "base": "debian:12",
}
# What somebody would try who wants more than a name.
ATTACKS = [
    "x; rm -rf /", "x && y", "x\nRUN evil", "x\r\nRUN evil", "x \\\nRUN evil", "$(evil)", "`evil`", "${X}", "x | y",
    "x > /etc/passwd", "--option", "-o", "x'y", 'x"y', "../x", "/x", "x y", "x\ty", "x\0y", "x#y", "http://x/y",
    "x@file:/etc/passwd", "x@git+https://x", "x @ https://y", "x;python_version<'3'", "{x,y}", "*", "~/x", "x\u2028y", "",
]  # fmt: skip
FIELDS: dict[str, Callable[[str], dict[str, Any]]] = {
    "name": lambda text: {"name": text},
    "runtimes": lambda text: {"runtimes": (text,)},
    "features": lambda text: {"features": (text,)},
    "apt": lambda text: {"apt": (text,)},
    "npm": lambda text: {"npm": (text,)},
    "pip": lambda text: {"pip": (text,)},
    "tag": lambda text: {"tag": text},
    "base": lambda text: {"base": text},
    **{
        f"version of {name}": lambda text, name=name: {"versions": {**FULL["versions"], name: text}}  # type: ignore[misc]
        for name in VERSIONED
    },
}


def instructions(dockerfile: str) -> list[str]:
    """Return the word that each instruction of a Dockerfile begins with."""
    joined = re.sub(r"\\\n", " ", dockerfile)
    return [line.split()[0] for line in joined.split("\n") if line and not line.startswith("#")]


def commands(dockerfile: str) -> int:
    """Return how many commands the shell would see in all."""
    joined = re.sub(r"\\\n", " ", dockerfile)
    runs = [line[4:] for line in joined.split("\n") if line.startswith("RUN ")]
    count = 0
    for line in runs:
        words = list(shlex.shlex(line, posix=True, punctuation_chars=True))
        count += sum(set(word) <= set("&|;<>()") for word in words)
        assert not set(line) & set("`'\"\n\r")
        assert "$(" not in line
    return count


USUAL = recipe_files(ImageRecipe(**FULL))


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("text", ATTACKS, ids=lambda text: repr(text)[:20])
def test_what_is_more_than_a_name_is_refused(field: str, text: str) -> None:
    if (field, text) == ("tag", ""):
        return  # then it is called by its name
    with pytest.raises(AtollError):
        ImageRecipe(**{**FULL, **FIELDS[field](text)})


@pytest.mark.parametrize("field", [each for each in FIELDS if each not in ("runtimes", "features")])
@given(data=st.data())
def test_no_text_changes_what_a_dockerfile_does(field: str, data: st.DataObject) -> None:
    text = data.draw(
        st.text(max_size=30)
        | st.from_regex(r"[a-z0-9][a-z0-9.+:~@/=<>!^*-]{0,20}", fullmatch=True)
        | st.from_regex(r"[a-z0-9.]{1,8}[^a-z0-9]{1,3}[a-z0-9]{0,8}", fullmatch=True)
    )
    try:
        files = recipe_files(ImageRecipe(**{**FULL, **FIELDS[field](text)}))
    except (InvalidRequest, AtollError):
        return
    assert instructions(files[DOCKERFILE]) == instructions(USUAL[DOCKERFILE])
    assert commands(files[DOCKERFILE]) == commands(USUAL[DOCKERFILE])
    assert files[IGNORE] == USUAL[IGNORE]
    assert all(not line.startswith("-") for line in files[PYTHON_PACKAGES].splitlines())
    assert len(json.loads(files[NODE_PACKAGES])["dependencies"]) == 2 or text == "playwright"


@example(["node"])
@given(st.lists(st.sampled_from(RUNTIMES), max_size=3))
def test_every_choice_of_runtimes_makes_a_dockerfile(runtimes: list[str]) -> None:
    recipe = ImageRecipe("tool", runtimes)
    files = recipe_files(recipe)
    assert instructions(files[DOCKERFILE])[-1] == "USER"
    assert json.loads(files[MANIFEST])["made_by"] == "atoll create-image"
    assert "nodejs" in files[DOCKERFILE] or not {"node", "bun"} & {*runtimes}


def test_what_nothing_could_use_is_refused() -> None:
    for wrong in (
        {"npm": ["lodash"]},
        {"pip": ["six"]},
        {"features": ["playwright"]},
        {"runtimes": ["python"], "versions": {"node": "22"}},
        {"versions": {"ruby": "3"}},
    ):
        with pytest.raises(InvalidRequest):
            ImageRecipe("tool", **wrong)


def test_what_is_not_pinned_is_told() -> None:
    recipe = ImageRecipe(
        "tool",
        ["node", "python"],
        apt=["curl", "git=1:2.39.2-1"],
        npm=["lodash@4.17.21", "left-pad@^1", "@types/node"],
        pip=["six==1.17.0", "attrs>=23"],
        versions={"node": "22"},
    )
    assert [*unpinned(recipe)] == ["python", "curl", "@types/node", "left-pad@^1", "attrs>=23"]
