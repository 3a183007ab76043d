# Generated from _async by tools/generate_sync.py; edit that.
"""What a sandbox may reach, from the SDK."""

from __future__ import annotations

import pytest

from atoll import Sandbox
from atoll.errors import Conflict, InvalidRequest

ASK = "curl -s --max-time 20 http://other.example/"


def test_nothing_is_reached_unless_it_is_named() -> None:
    with Sandbox("base") as sandbox:
        assert (sandbox.info()).network.mode == "none"
        assert (sandbox.commands.run(ASK)).exit_code == 6  # no such host
        with pytest.raises(Conflict, match="without a network"):
            sandbox.set_network(["other.example"])


def test_a_refusal_says_what_would_allow_it() -> None:
    with Sandbox("base", network=["api.example"]) as sandbox:
        assert [str(rule) for rule in (sandbox.info()).network.rules] == ["api.example"]
        said = (sandbox.commands.run(ASK)).stdout
        assert b"its owner can add 'other.example:80'" in said


def test_a_cell_a_command_and_a_second_kernel_go_by_the_proxy() -> None:
    with Sandbox(network=[], envs={"NO_PROXY": "mine"}) as sandbox:
        code = "import os; print(os.environ['HTTPS_PROXY'], os.environ['NO_PROXY'])"
        told = "http://127.0.0.1:3128 mine\n"
        assert (sandbox.run_code(code)).stdout == told
        second = sandbox.kernels.open()
        assert (sandbox.run_code(code, kernel=second.id)).stdout == told
        assert (sandbox.commands.run(["python3", "-c", code])).stdout == told.encode()


def test_what_was_tried_is_told() -> None:
    with Sandbox("base", network=[]) as sandbox:
        sandbox.commands.run(ASK)
        noted = sandbox.egress_log()
        while not noted:
            noted = sandbox.egress_log()
        assert (noted[0].number, noted[0].attempt.host) == (0, "other.example")
        assert noted[0].attempt.verdict == "refused"
        assert sandbox.egress_log(start=1) == []


def test_rules_can_be_taken_away() -> None:
    with Sandbox("base", network="open") as sandbox:
        sandbox.set_network("none")
        assert b"not among the hosts" in (sandbox.commands.run(ASK)).stdout


def test_a_rule_that_is_none_is_refused_at_once() -> None:
    with pytest.raises(InvalidRequest, match="write it like"):
        Sandbox(network=["http://user@host"])


def test_a_session_finds_what_is_installed_while_it_lives() -> None:
    """As `pip install` would, into the home directory."""
    with Sandbox() as sandbox:
        assert (sandbox.run_code("import late_package")).error is not None
        folder = "~/.local/lib/python3.$(python3 -c 'import sys; print(sys.version_info[1])')/site-packages"
        sandbox.commands.run(f"mkdir -p {folder} && echo 'answer = 42' > {folder}/late_package.py")
        cell = sandbox.run_code("import late_package; late_package.answer")
        assert cell.text == "42", cell.error
