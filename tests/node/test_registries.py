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


@pytest.mark.parametrize("has_headers", [True, False])
def test_what_npm_compiles_finds_the_headers_of_this_machine(
    tmp_path: Path, has_headers: bool
) -> None:
    if has_headers:
        headers = tmp_path / "usr/include/node"
        headers.mkdir(parents=True)
        (headers / "node.h").touch()
    env = read_registries({}, tmp_path, lambda _command: "").env
    assert env.get("npm_package_config_node_gyp_nodedir") == ("/usr" if has_headers else None)


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


SOURCES = """
Types: deb deb-src
# a comment
URIs: https://deb.example/debian http://mirror.example/debian
Suites: stable
 stable-updates
Components: main
Signed-By: /usr/share/keyrings/archive.gpg

Types: deb
Enabled: no
URIs: https://off.example/
Suites: ./

Types: deb
URIs: https://own.example/
Suites: ./
Signed-By:
 -----BEGIN PGP PUBLIC KEY BLOCK-----
 .
 bWlu
 -----END PGP PUBLIC KEY BLOCK-----
"""
LINES = """
deb [arch=amd64,arm64 signed-by=/etc/apt/keyrings/x.gpg trusted=yes] http://lines.example/apt stable main extra # here
deb-src http://source.example/ stable main
deb file:/srv/apt ./
deb http://me:hidden@closed.example/ stable main
  deb http://trusted.example/ stable main
"""
WRITTEN = """Types: deb
URIs: http://lines.example/apt
Suites: stable
Components: main extra
Architectures: amd64 arm64
Trusted: yes
Signed-By: /etc/atoll/apt-key-0.gpg

Types: deb
URIs: http://trusted.example/
Suites: stable
Components: main
Signed-By: /etc/atoll/apt-key-1.asc

Types: deb
URIs: https://deb.example/debian http://mirror.example/debian
Suites: stable
 stable-updates
Components: main
Signed-By: /usr/share/keyrings/archive.gpg

Types: deb
URIs: https://own.example/
Suites: ./
Signed-By:
 -----BEGIN PGP PUBLIC KEY BLOCK-----
 .
 bWlu
 -----END PGP PUBLIC KEY BLOCK-----
"""


def test_apt_is_read(tmp_path: Path) -> None:
    write(tmp_path, "etc/apt/sources.list", LINES)
    write(tmp_path, "etc/apt/sources.list.d/debian.sources", SOURCES)
    write(tmp_path, "etc/apt/trusted.gpg.d/a.asc", "-----BEGIN PGP PUBLIC KEY BLOCK-----\nQQ==\n")
    write(tmp_path, "etc/apt/trusted.gpg.d/b.asc", "-----BEGIN PGP PRIVATE KEY BLOCK-----\nQQ==\n")
    for name in ("etc/apt/keyrings/x.gpg", "usr/share/keyrings/archive.gpg"):
        path = write(tmp_path, name, "")
        path.write_bytes(b"\x99\x01public")

    def ask(argv: Sequence[str]) -> str:
        return 'Acquire::Check-Valid-Until "false";\n' if argv[0] == "apt-config" else ""

    found = read_registries({}, tmp_path, ask)
    assert sorted(found.hosts) == [
        *("deb.example", "lines.example", "mirror.example", "own.example", "trusted.example"),
    ]
    assert found.env["APT_CONFIG"] == "/etc/atoll/apt.conf"
    assert b'Acquire::Check-Valid-Until "false";' in found.files["apt.conf"]
    assert found.files["apt-key-0.gpg"] == b"\x99\x01public"
    assert found.files["apt-key-1.asc"].startswith(b"-----BEGIN PGP PUBLIC")
    assert [name for name in found.files if "key" in name] == ["apt-key-0.gpg", "apt-key-1.asc"]
    assert found.files["apt.sources"].decode() == WRITTEN


def test_without_apt_nothing_is_said_of_it(tmp_path: Path) -> None:
    found = read_registries({}, tmp_path, silent)
    assert "apt.sources" not in found.files


async def test_packages_are_installed_from_where_this_machine_does() -> None:
    """The one test that leaves this machine, for its package indexes."""
    async with AsyncSandbox("base", network="registries") as sandbox:
        result = await sandbox.commands.run(
            "pip install -q --no-deps --disable-pip-version-check iniconfig"
            " && python3 -c 'import iniconfig; print(iniconfig.__name__)'",
            timeout=120,
        )
        if b"NewConnectionError" in result.stderr or b"Could not find a version" in result.stderr:
            noted = await sandbox.egress_log()
            if any(each.attempt.verdict == "failed" for each in noted):
                pytest.skip("the package index of this machine does not answer")
        assert result.stdout == b"iniconfig\n", result.stderr
        refused = await sandbox.commands.run("curl -s -w '%{http_code}' http://other.example/")
        assert refused.stdout.endswith(b"403")


@pytest.mark.skipif(shutil.which("npm") is None, reason="npm is not installed")
async def test_npm_knows_the_way_too() -> None:
    await install(
        "npm install --silent --no-audit --no-fund left-pad && node -p 'require(\"left-pad\")(7, 3)'",
        b"  7\n",
    )


@pytest.mark.skipif(not Path("/etc/apt").is_dir(), reason="apt is not configured")
async def test_apt_knows_the_way_too() -> None:
    """Its signatures are verified as ever."""
    await install(
        "apt-get -qq update && apt-get -qq download hello && dpkg-deb -x hello_*.deb tree && tree/usr/bin/hello",
        b"Hello, world!\n",
    )


async def install(script: str, prints: bytes) -> None:
    async with AsyncSandbox("base", network="registries") as sandbox:
        result = await sandbox.commands.run(script, timeout=110)
        noted = await sandbox.egress_log()
        if not result.ok and any(each.attempt.verdict == "failed" for each in noted):
            pytest.skip("the package index of this machine does not answer")
        assert result.stdout == prints, result.stderr
