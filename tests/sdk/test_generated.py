"""What the TypeScript SDK is told about the server: described without a node, and known to be stale when it is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tools import generate_openapi

pytestmark = pytest.mark.any_user


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Generated files in a place of their own; the types are as good as any."""
    monkeypatch.setattr(generate_openapi, "FOLDER", tmp_path)
    monkeypatch.setattr(generate_openapi, "DOCUMENT", tmp_path / "openapi.json")
    monkeypatch.setattr(generate_openapi, "TYPES", tmp_path / "api.ts")
    monkeypatch.setattr(generate_openapi, "make_types", lambda document: "export type A = 1;\n")
    assert generate_openapi.write_all() == [tmp_path / "openapi.json", tmp_path / "api.ts"]
    return tmp_path


def test_what_was_written_is_fresh(written: Path) -> None:
    assert generate_openapi.stale() == []
    assert generate_openapi.write_all() == []


@pytest.mark.parametrize("name", ("openapi.json", "api.ts"))
def test_a_file_that_was_edited_or_removed_is_stale(written: Path, name: str) -> None:
    file = written / name
    file.write_text(file.read_text().replace("A", "B"))
    assert generate_openapi.stale() == [file]
    file.unlink()
    assert generate_openapi.stale() == [file]


def test_types_of_another_document_are_stale(
    written: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generate_openapi, "describe", lambda: "{}\n")
    assert generate_openapi.stale() == [written / "openapi.json", written / "api.ts"]


def test_the_description_has_every_kind_of_thing() -> None:
    document = json.loads(generate_openapi.describe())
    assert {"/sandboxes", "/executions/{execution}/events", "/workspaces"} <= set(document["paths"])
    assert {"SandboxBody", "EventAnswer", "Problem"} <= set(document["components"]["schemas"])
