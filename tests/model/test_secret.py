"""Secrets as values: what can be one, and what is written of it."""

from __future__ import annotations

from typing import Any

import pytest

from atoll.errors import InvalidRequest
from atoll.model.hosts import parse_host
from atoll.model.secret import (
    Secret,
    SecretBinding,
    SecretUse,
    bind,
    check_secret_name,
    check_secrets,
    new_placeholder,
)

pytestmark = pytest.mark.any_user

VALUE = "value-of-a-secret"


@pytest.mark.parametrize(
    "binding",
    [
        bind(["api.example"]),
        bind(["api.example:8443", "[2001:db8::7]"], header="X-Api-Key", template="Key {}"),
        bind(["192.0.2.7"], query="api key"),
        bind(["api.example"], body="auth.keys.0"),
    ],
)
def test_a_binding_is_read_as_it_was_written(binding: SecretBinding) -> None:
    assert SecretBinding.from_json(binding.to_json()) == binding
    use = SecretUse("API_KEY", new_placeholder(), binding, VALUE)
    assert SecretUse.from_json(use.to_json()) == use


def test_a_host_is_meant_with_its_port() -> None:
    binding = bind(["API.example", "api.example:8443"])
    assert binding.hosts == ((parse_host("api.example"), 443), (parse_host("api.example"), 8443))
    assert binding.goes_to(parse_host("api.example"), 443)
    assert not binding.goes_to(parse_host("api.example"), 80)
    assert not binding.goes_to(parse_host("x.api.example"), 443)


@pytest.mark.parametrize(
    "fields", [{}, {"hosts": ["a.example"]}, {"hosts": 1, "place": "header", "field": "X"}]
)
def test_what_is_no_binding_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        SecretBinding.from_json(fields)


def test_what_is_no_use_is_refused_without_its_value() -> None:
    with pytest.raises(InvalidRequest) as caught:
        SecretUse.from_json({"value": VALUE, "binding": bind(["a.example"]).to_json()})
    assert VALUE not in str(caught.value)
    assert caught.value.__cause__ is None


def test_placeholders_are_never_alike_and_need_no_encoding() -> None:
    made = {new_placeholder() for _ in range(1000)}
    assert len(made) == 1000
    assert all(each.replace("-", "").isalnum() and each.isascii() for each in made)


@pytest.mark.parametrize("name", ["", "a b", "../x", "-x", "é", "x" * 64])
def test_a_name_that_cannot_be_is_refused(name: str) -> None:
    with pytest.raises(InvalidRequest):
        check_secret_name(name)


@pytest.mark.parametrize(
    "secrets",
    [
        {"API-KEY": "x"},
        {"1KEY": "x"},
        {"KEY": 1},
        {"KEY": "a/b"},
        {f"KEY_{number}": "x" for number in range(33)},
        ["KEY"],
    ],
)
def test_what_no_sandbox_can_have_is_refused(secrets: Any) -> None:
    with pytest.raises(InvalidRequest):
        check_secrets(secrets)


def test_what_a_sandbox_can_have_is_taken() -> None:
    check_secrets({"KEY": Secret(VALUE, ["api.example"]), "_other": "stored.name-1"})
