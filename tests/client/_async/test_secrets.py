"""Secrets: a placeholder inside, and what cannot be is refused."""

from __future__ import annotations

import pytest

from atoll import AsyncSandbox, Secret
from atoll.errors import InvalidRequest, NotFound

VALUE = "value-that-never-enters"
KEY = Secret(VALUE, hosts=["api.example"])


async def test_inside_there_is_a_placeholder_of_its_own_for_each_sandbox() -> None:
    found = []
    for _ in range(2):
        async with AsyncSandbox(
            network=["api.example"], secrets={"API_KEY": KEY}, template="base"
        ) as sandbox:
            result = await sandbox.commands.run('echo "$API_KEY"; env; cat "$SSL_CERT_FILE"')
            found.append(result.stdout.decode().splitlines()[0])
            assert VALUE not in result.stdout.decode()
            assert "BEGIN CERTIFICATE" in result.stdout.decode()
            assert VALUE not in str(await sandbox.info())
    assert all(each.startswith("atoll-secret-") for each in found)
    assert found[0] != found[1]


async def test_a_host_that_cannot_be_reached_is_told_without_the_secret() -> None:
    key = Secret(VALUE, hosts=["127.0.0.9:1"])
    async with AsyncSandbox(network=["127.0.0.9:1"], secrets={"API_KEY": key}) as sandbox:
        cell = await sandbox.run_code(
            "import os, urllib.error, urllib.request\n"
            "request = urllib.request.Request('https://127.0.0.9:1/', headers={'Authorization': os.environ['API_KEY']})\n"
            "try:\n    urllib.request.urlopen(request)\n"
            "except urllib.error.HTTPError as error:\n    print(error.code, error.read().decode())"
        )
        assert cell.stdout.startswith("403 atoll: 127.0.0.9"), cell
        log = await sandbox.egress_log()
    assert VALUE not in str(cell) + str(log)


async def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="secrets go to hosts"):
        AsyncSandbox(secrets={"API_KEY": KEY})
    with pytest.raises(InvalidRequest, match="cannot be the variable"):
        AsyncSandbox(network=["api.example"], secrets={"API-KEY": KEY})
    with pytest.raises(InvalidRequest, match="which no rule of the network allows"):
        await AsyncSandbox.create(network=["other.example"], secrets={"API_KEY": KEY})
    with pytest.raises(NotFound, match="there is no secret"):
        await AsyncSandbox.create(network=["api.example"], secrets={"API_KEY": "stored"})
