"""What a network needs is looked for before a sandbox is made, not when it first goes out."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from atoll.engines.contract import Feature
from atoll.errors import Unsupported
from atoll.model.network import Network
from atoll.model.sandbox import SandboxSpec
from atoll.node.attempt_log import MemoryAttempts
from atoll.node.egress import Egress, EgressRules
from atoll.node.network_files import NetworkFiles

pytestmark = pytest.mark.any_user

SERVER = "192.0.2.53"


def make_egress(folder: Path, *dns: str) -> Egress:
    return Egress(EgressRules(dns=dns), NetworkFiles(folder), MemoryAttempts())


def spec(*dns: str) -> SandboxSpec:
    return SandboxSpec(network=Network.parse(["http://api.example"], dns=dns))


@pytest.fixture
def no_dnspython(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's own way of saying that a package is not there."""
    monkeypatch.setitem(sys.modules, "dns", None)


@pytest.mark.parametrize(("operators", "own"), [((), (SERVER,)), ((SERVER,), ())])
def test_name_servers_need_dnspython_at_once(
    tmp_path: Path, no_dnspython: None, operators: tuple[str, ...], own: tuple[str, ...]
) -> None:
    egress = make_egress(tmp_path, *operators)
    with pytest.raises(Unsupported, match=r"dnspython.*atoll\[egress\]"):
        egress.prepare(spec(*own), {Feature.PORTS})


def test_the_machines_own_resolver_needs_nothing(tmp_path: Path, no_dnspython: None) -> None:
    assert make_egress(tmp_path).prepare(spec(), {Feature.PORTS}).env["HTTP_PROXY"]


def test_with_dnspython_name_servers_are_taken_on(tmp_path: Path) -> None:
    prepared = make_egress(tmp_path).prepare(spec(SERVER), {Feature.PORTS})
    assert prepared.network.dns == (SERVER,)
