"""Settings of who may come in: what goes together, and that nothing secret is shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from atoll.errors import InvalidRequest
from atoll.server.setting_loader import load_settings
from atoll.server.settings import AuthSettings

pytestmark = pytest.mark.any_user
GITHUB = {"github_client_id": "id", "github_client_secret": "hidden"}


@pytest.mark.parametrize(
    ("chosen", "ways"),
    [
        ({}, {"token"}),
        ({"secret": "hidden"}, {"token", "secret"}),
        (GITHUB, {"token", "github"}),
        ({**GITHUB, "ways": "github"}, {"github"}),
        ({"secret": "hidden", "ways": "secret"}, {"secret"}),
        ({"secret": "hidden", "ways": ["token"]}, {"token"}),
        ({"ways": "none"}, {"none"}),
    ],
)
def test_a_way_is_open_once_it_is_set_up(chosen: dict[str, Any], ways: set[str]) -> None:
    assert AuthSettings.model_validate(chosen).rules(is_secure=False).ways == ways


@pytest.mark.parametrize(
    ("chosen", "fault"),
    [
        ({"ways": "none,token"}, "nothing else goes with it"),
        ({"ways": "github"}, "needs github_client_id"),
        ({"ways": "secret"}, "needs auth.secret"),
        ({"ways": []}, "has to be a way in"),
        ({"ways": "password"}, "token"),
        ({"github_client_id": "id"}, "go together"),
        ({"github_client_secret": "hidden"}, "go together"),
        ({"secret": "hid\nden"}, "printable"),
        ({"github_url": "ftp://github.example"}, "https://name"),
        ({"github_redirect_uri": "javascript:alert(1)"}, "https://name"),
        ({"session_hours": 0}, "0.01"),
    ],
)
def test_what_does_not_go_together_is_refused(chosen: dict[str, Any], fault: str) -> None:
    with pytest.raises((ValidationError, InvalidRequest), match=fault) as refused:
        AuthSettings.model_validate(chosen)
    assert "hidden" not in str(refused.value)


def test_names_of_other_systems_set_the_same(tmp_path: Path) -> None:
    environ = {
        "ATOLL_DATA": str(tmp_path),
        "SANDBOX_SECRET": "hidden-1",
        "SESSION_SECRET": "hidden-2",
        "GITHUB_CLIENT_ID": "id",
        "GITHUB_CLIENT_SECRET": "hidden-3",
        "GITHUB_REDIRECT_URI": "https://atoll.example/auth/github/callback",
    }
    settings = load_settings(environ, tmp_path)
    rules = settings.auth.rules(is_secure=True)
    assert rules.ways == {"token", "secret", "github"}
    assert rules.secret == "hidden-1"
    assert rules.github is not None
    assert rules.github.client_secret == "hidden-3"
    [warning] = settings.warnings
    assert "SESSION_SECRET is not used" in warning
    assert "hidden" not in repr(settings) + repr(rules) + warning


def test_logins_are_the_same_in_any_letters() -> None:
    rules = AuthSettings.model_validate({**GITHUB, "github_logins": "OctoCat, other"}).rules(
        is_secure=False
    )
    assert rules.github is not None
    assert rules.github.logins == {"octocat", "other"}
