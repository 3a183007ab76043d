"""What a sandbox may reach, from the SDK."""

from __future__ import annotations

import pytest

from atoll import AsyncSandbox
from atoll.errors import Conflict, InvalidRequest

ASK = "curl -s --max-time 20 http://other.example/"


async def test_nothing_is_reached_unless_it_is_named() -> None:
    async with AsyncSandbox("base") as sandbox:
        assert (await sandbox.info()).network.mode == "none"
        assert (await sandbox.commands.run(ASK)).exit_code == 6  # no such host
        with pytest.raises(Conflict, match="without a network"):
            await sandbox.set_network(["other.example"])


async def test_a_refusal_says_what_would_allow_it() -> None:
    async with AsyncSandbox("base", network=["api.example"]) as sandbox:
        assert [str(rule) for rule in (await sandbox.info()).network.rules] == ["api.example"]
        said = (await sandbox.commands.run(ASK)).stdout
        assert b"its owner can add 'other.example:80'" in said


async def test_a_cell_a_command_and_a_second_kernel_go_by_the_proxy() -> None:
    async with AsyncSandbox(network=[], envs={"NO_PROXY": "mine"}) as sandbox:
        code = "import os; print(os.environ['HTTPS_PROXY'], os.environ['NO_PROXY'])"
        told = "http://127.0.0.1:3128 mine\n"
        assert (await sandbox.run_code(code)).stdout == told
        second = await sandbox.kernels.open()
        assert (await sandbox.run_code(code, kernel=second.id)).stdout == told
        assert (await sandbox.commands.run(["python3", "-c", code])).stdout == told.encode()


async def test_what_was_tried_is_told() -> None:
    async with AsyncSandbox("base", network=[]) as sandbox:
        await sandbox.commands.run(ASK)
        noted = await sandbox.egress_log()
        while not noted:
            noted = await sandbox.egress_log()
        assert (noted[0].number, noted[0].attempt.host) == (0, "other.example")
        assert noted[0].attempt.verdict == "refused"
        assert await sandbox.egress_log(start=1) == []


async def test_rules_can_be_taken_away() -> None:
    async with AsyncSandbox("base", network="open") as sandbox:
        await sandbox.set_network("none")
        assert b"not among the hosts" in (await sandbox.commands.run(ASK)).stdout


async def test_a_rule_that_is_none_is_refused_at_once() -> None:
    with pytest.raises(InvalidRequest, match="write it like"):
        AsyncSandbox(network=["http://user@host"])


async def test_a_session_finds_what_is_installed_while_it_lives() -> None:
    """As `pip install` would, into the home directory."""
    async with AsyncSandbox() as sandbox:
        assert (await sandbox.run_code("import late_package")).error is not None
        folder = "~/.local/lib/python3.$(python3 -c 'import sys; print(sys.version_info[1])')/site-packages"
        await sandbox.commands.run(
            f"mkdir -p {folder} && echo 'answer = 42' > {folder}/late_package.py"
        )
        cell = await sandbox.run_code("import late_package; late_package.answer")
        assert cell.text == "42", cell.error
