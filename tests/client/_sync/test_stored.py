# Generated from _async by tools/generate_sync.py; edit that.
"""What is stored under names beside sandboxes: secrets, and templates with packages."""

from __future__ import annotations

import pytest

from atoll import Sandbox, Secret, Secrets, Templates
from atoll.errors import InvalidRequest, NotFound

VALUE = "value-that-is-never-told"


def test_a_secret_is_kept_used_by_name_and_removed() -> None:
    secrets = Secrets()
    made = secrets.set("api-key", Secret(VALUE, hosts=["api.example"]))
    assert (made.name, list(made.hosts), made.place) == ("api-key", ["api.example"], "header")
    assert "api-key" in [each.name for each in secrets.list()]
    assert VALUE not in str(secrets.list())
    with Sandbox("base", network=["api.example"], secrets={"API_KEY": "api-key"}) as sandbox:
        told = (sandbox.commands.run("echo $API_KEY")).stdout.decode()
        assert told.startswith("atoll-secret-")
    secrets.remove("api-key")
    assert "api-key" not in [each.name for each in secrets.list()]
    with pytest.raises(NotFound):
        secrets.remove("api-key")


def test_a_template_that_is_not_there_is_told() -> None:
    templates = Templates()
    assert "nothing-of-mine" not in [each.name for each in templates.list()]
    with pytest.raises(NotFound, match="nothing-of-mine"):
        templates.find("nothing-of-mine")
    with pytest.raises(NotFound, match="nothing-of-mine"):
        templates.remove("nothing-of-mine")
    with pytest.raises(InvalidRequest):
        templates.build("mine", ["--index-url"])
