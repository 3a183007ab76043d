"""The machine's package indexes: read from configurations, opened by their names, and of use inside."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from atoll import AsyncSandbox
from atoll.errors import InvalidRequest
from atoll.node.registries import read_registries
from tests.client.conftest import data_dir

__all__ = ["data_dir"]  # a fixture from elsewhere

CERTIFICATE = "-----BEGIN CERTIFICATE-----\nTUlJQg==\n-----END CERTIFICATE-----"
KEY = "-----BEGIN PRIVATE KEY-----\nc2VjcmV0\n-----END PRIVATE KEY-----"


def silent(_argv: Sequence[str]) -> str:
    """A machine without pip and npm."""
    return ""


def write(root: Path, name: str, text: str) -> Path:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_pip_npm_and_r_are_read(tmp_path: Path) -> None:
    write(tmp_path, "etc/pip.conf", "[global]\nindex-url = https://py.example/simple\n")
    write(
        tmp_path,
        "home/.npmrc",
        "registry=https://js.example:8443/npm/\n@a:registry=https://a.example/\n",
    )
    write(tmp_path, "home/.Rprofile", 'options(repos = c(CRAN = "https://r.example/cran"))\n')
    found = read_registries({"HOME": "/home"}, tmp_path, silent)
    assert sorted(map(str, found.rules)) == [
        "https://a.example",
        "https://js.example:8443",
        "https://py.example",
        "https://r.example",
    ]
    assert found.env["PIP_INDEX_URL"] == "https://py.example/simple"
    assert found.env["NPM_CONFIG_REGISTRY"] == "https://js.example:8443/npm/"
    assert b"https://r.example/cran" in found.files["Rprofile"]
    assert found.env["R_PROFILE_USER"] == "/etc/atoll/Rprofile"


def test_the_environment_goes_first_and_files_on_disk_are_no_hosts(tmp_path: Path) -> None:
    write(tmp_path, "etc/pip.conf", "[global]\nindex-url = https://old.example/simple\n")
    environ = {
        "PIP_INDEX_URL": "https://new.example/simple",
        "PIP_EXTRA_INDEX_URL": "file:///srv/wheels https://more.example/simple",
    }
    found = read_registries(environ, tmp_path, silent)
    assert [str(rule) for rule in found.rules] == ["https://new.example", "https://more.example"]
    assert found.env["PIP_EXTRA_INDEX_URL"] == "https://more.example/simple"


def test_without_a_configuration_programs_are_asked(tmp_path: Path) -> None:
    def ask(argv: Sequence[str]) -> str:
        return (
            "https://npm.example/\n"
            if argv[0] == "npm"
            else "https://a.example https://b.example\n"
        )

    found = read_registries({}, tmp_path, ask)
    assert [str(rule) for rule in found.rules] == [
        "https://a.example",
        "https://b.example",
        "https://npm.example",
    ]
    assert "PIP_INDEX_URL" not in found.env


@pytest.mark.parametrize("url", ["https://me:hidden@py.example/", "https://hidden@py.example/"])
def test_credentials_are_refused_and_not_shown(tmp_path: Path, url: str) -> None:
    with pytest.raises(InvalidRequest, match="credentials") as refusal:
        read_registries({"PIP_INDEX_URL": url}, tmp_path, silent)
    assert "hidden" not in refusal.value.message


def test_certificates_come_along_and_keys_do_not(tmp_path: Path) -> None:
    bundle = write(tmp_path, "bundle.pem", f"{KEY}\n{CERTIFICATE}\n")
    found = read_registries({"PIP_CERT": str(bundle)}, tmp_path, silent)
    assert CERTIFICATE.encode() in found.files["certificates.pem"]
    assert b"PRIVATE KEY" not in found.files["certificates.pem"]
    assert found.env["SSL_CERT_FILE"] == "/etc/atoll/certificates.pem"


async def test_packages_are_installed_from_where_this_machine_does() -> None:
    """The one test that leaves this machine, for its package indexes."""
    async with AsyncSandbox("base", network="registries") as sandbox:
        result = await sandbox.commands.run(
            "pip install -q --no-deps --disable-pip-version-check six && python3 -c 'import six; print(six.__name__)'",
            timeout=120,
        )
        if b"NewConnectionError" in result.stderr or b"Could not find a version" in result.stderr:
            noted = await sandbox.egress_log()
            if any(each.attempt.verdict == "failed" for each in noted):
                pytest.skip("the package index of this machine does not answer")
        assert result.stdout == b"six\n", result.stderr
        refused = await sandbox.commands.run("curl -s -w '%{http_code}' http://other.example/")
        assert refused.stdout.endswith(b"403")


@pytest.mark.skipif(shutil.which("npm") is None, reason="npm is not installed")
async def test_npm_knows_the_way_too() -> None:
    async with AsyncSandbox("base", network="registries") as sandbox:
        result = await sandbox.commands.run("npm view left-pad name", timeout=120)
        noted = await sandbox.egress_log()
        if result.exit_code and any(each.attempt.verdict == "failed" for each in noted):
            pytest.skip("the package index of this machine does not answer")
        assert result.stdout == b"left-pad\n", result.stderr
