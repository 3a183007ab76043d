"""What is stored under names beside sandboxes: secrets, and templates with packages."""

from __future__ import annotations

import pytest

from atoll import AsyncSandbox, AsyncSecrets, AsyncTemplates, Secret
from atoll.errors import InvalidRequest, NotFound

VALUE = "value-that-is-never-told"


async def test_a_secret_is_kept_used_by_name_and_removed() -> None:
    secrets = AsyncSecrets()
    made = await secrets.set("api-key", Secret(VALUE, hosts=["api.example"]))
    assert (made.name, list(made.hosts), made.place) == ("api-key", ["api.example"], "header")
    assert "api-key" in [each.name for each in await secrets.list()]
    assert VALUE not in str(await secrets.list())
    async with AsyncSandbox(
        "base", network=["api.example"], secrets={"API_KEY": "api-key"}
    ) as sandbox:
        told = (await sandbox.commands.run("echo $API_KEY")).stdout.decode()
        assert told.startswith("atoll-secret-")
    await secrets.remove("api-key")
    assert "api-key" not in [each.name for each in await secrets.list()]
    with pytest.raises(NotFound):
        await secrets.remove("api-key")


async def test_a_template_that_is_not_there_is_told() -> None:
    templates = AsyncTemplates()
    assert "nothing-of-mine" not in [each.name for each in await templates.list()]
    with pytest.raises(NotFound, match="nothing-of-mine"):
        await templates.find("nothing-of-mine")
    with pytest.raises(NotFound, match="nothing-of-mine"):
        await templates.remove("nothing-of-mine")
    with pytest.raises(InvalidRequest):
        await templates.build("mine", ["--index-url"])
