"""The package indexes that this machine is configured for: what a sandbox has to reach and to know to install from them.

Nothing is named here: addresses come from the operator's configuration of pip, npm, R and apt, or from what pip and npm say
that they use without any.
"""

from __future__ import annotations

import configparser
import re
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from atoll.errors import InvalidRequest
from atoll.model.network import Rule, parse_rule
from atoll.model.sandbox import NETWORK_FILES
from atoll.node.apt_sources import AptSources, read_apt_sources

# An index of a company lies in one of these as often as not. Only the names that the operator's configuration has may do so.
CLOSED_RANGES = (
    *("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10"),
    *("192.0.0.0/24", "192.0.2.0/24", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24"),
    *("fc00::/7", "2001:db8::/32"),
)

CERTIFICATES, _R_PROFILE = "certificates.pem", "Rprofile"
_APT_CONFIG, _WGETRC = "apt.conf", "wgetrc"
_BUNDLE = f"{NETWORK_FILES}/{CERTIFICATES}"
_BUNDLE_VARIABLES = (
    *("PIP_CERT", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"),
    *("NODE_EXTRA_CA_CERTS", "NPM_CONFIG_CAFILE", "GIT_SSL_CAINFO"),
)
# What programs inside need to trust the certificates of `CERTIFICATES`: apt and wget learn of such a file by one of their own only.
TRUST_VARIABLES: Mapping[str, str] = {
    **dict.fromkeys(_BUNDLE_VARIABLES, _BUNDLE),
    "APT_CONFIG": f"{NETWORK_FILES}/{_APT_CONFIG}",
    "SYSTEM_WGETRC": f"{NETWORK_FILES}/{_WGETRC}",
}
TRUST_FILES: Mapping[str, bytes] = {
    _APT_CONFIG: f'Acquire::https::CAInfo "{_BUNDLE}";\n'.encode(),
    _WGETRC: f"ca_certificate = {_BUNDLE}\n".encode(),
}
# Packages of npm that are compiled need the headers of Node, which npm would fetch from another place than the index.
_NODE_HEADERS = {"npm_package_config_node_gyp_nodedir": "/usr"}
_CERTIFICATE = re.compile(rb"-----BEGIN CERTIFICATE-----[A-Za-z0-9+/=\s]+-----END CERTIFICATE-----")
_URL = re.compile(r"https?://[^\s\"'`,;)<>]+")
_LARGEST_FILE = 8 << 20
_ASK_SECONDS = 30.0
_ASK_PIP = "from pip._internal.models.index import PyPI as i; print(i.simple_url, 'https://' + i.file_storage_domain)"

Ask = Callable[[Sequence[str]], str]


@dataclass(frozen=True, slots=True)
class Registries:
    """What a sandbox needs to install packages from where this machine does."""

    rules: Sequence[Rule] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, bytes] = field(default_factory=dict)  # by their names in `NETWORK_FILES`
    hosts: Sequence[str] = ()


@dataclass(slots=True)
class _Found:
    """What configurations say; `usual` are addresses that nobody has to tell programs inside."""

    urls: dict[str, list[str]] = field(default_factory=dict)  # by the variable that tells them
    usual: list[str] = field(default_factory=list)
    certificates: list[Path] = field(default_factory=list)
    r_urls: list[str] = field(default_factory=list)
    apt: AptSources = field(default_factory=AptSources)


def read_registries(
    environ: Mapping[str, str], root: Path = Path("/"), ask: Ask | None = None
) -> Registries:
    """Read the machine's configuration; `ask` runs a program and returns what it prints. Takes a second where programs are asked.

    Raises:
        InvalidRequest: an address holds credentials, which must not enter a sandbox, or is none.
    """
    found = _Found()
    ask = ask or _asker(environ)
    _read_pip(found, environ, root, ask)
    _read_npm(found, environ, root, ask)
    _read_r(found, environ, root)
    found.apt = read_apt_sources(root, ask(["apt-config", "dump", "Acquire"]))
    found.certificates += [Path(environ[name]) for name in _BUNDLE_VARIABLES if environ.get(name)]
    told_urls = [url for each in found.urls.values() for url in each]
    urls = [*found.usual, *found.r_urls, *told_urls, *found.apt.urls]
    rules = list(dict.fromkeys(_rule_for(url) for url in urls))
    env = {name: " ".join(told) for name, told in found.urls.items() if told}
    if (root / "usr/include/node/node.h").is_file():
        env |= _NODE_HEADERS
    files: dict[str, bytes] = {}
    if bundle := read_trusted([_below(root, path) for path in found.certificates], root):
        files |= {**TRUST_FILES, CERTIFICATES: bundle}
        env |= TRUST_VARIABLES
    if found.apt.urls:
        files |= found.apt.files
        files[_APT_CONFIG] = TRUST_FILES[_APT_CONFIG] + found.apt.config
        env["APT_CONFIG"] = TRUST_VARIABLES["APT_CONFIG"]
    if found.r_urls:
        files[_R_PROFILE] = _r_profile(found.r_urls)
        env["R_PROFILE_USER"] = f"{NETWORK_FILES}/{_R_PROFILE}"
    return Registries(rules, env, files, list(dict.fromkeys(str(rule.host) for rule in rules)))


# --- pip -----------------------------------------------------------------------------------------------------


def _read_pip(found: _Found, environ: Mapping[str, str], root: Path, ask: Ask) -> None:
    settings = _pip_settings(environ, root)
    for name in ("index-url", "extra-index-url", "find-links"):
        urls = [text for text in settings.get(name, "").split() if _is_web(text)]
        if urls:
            found.urls[f"PIP_{name.replace('-', '_').upper()}"] = urls
    if "PIP_INDEX_URL" not in found.urls:
        for python in dict.fromkeys((sys.executable, "python3")):
            if said := [text for text in ask([python, "-I", "-c", _ASK_PIP]).split()]:
                found.usual += [text for text in said if _is_web(text)]
                break
    if settings.get("cert"):
        found.certificates.append(Path(settings["cert"]))


def _pip_settings(environ: Mapping[str, str], root: Path) -> dict[str, str]:
    home = Path(environ.get("HOME") or "/")
    usual = [
        root / "etc/xdg/pip/pip.conf",
        root / "etc/pip.conf",
        _below(root, home) / ".pip/pip.conf",
        _below(root, Path(environ.get("XDG_CONFIG_HOME") or home / ".config")) / "pip/pip.conf",
        _below(root, Path(sys.prefix)) / "pip.conf",
    ]
    chosen = environ.get("PIP_CONFIG_FILE")
    settings: dict[str, str] = {}
    for path in [*usual, Path(chosen)] if chosen else usual:
        parser = configparser.RawConfigParser()
        try:
            parser.read_string(_read_text(path))
        except configparser.Error:
            continue  # pip itself complains of it
        for section in ("global", "download", "install"):
            if parser.has_section(section):
                settings |= {name.replace("_", "-"): text for name, text in parser.items(section)}
    for name in ("index-url", "extra-index-url", "find-links", "cert"):
        if text := environ.get(f"PIP_{name.replace('-', '_').upper()}"):
            settings[name] = text
    return settings


# --- npm -----------------------------------------------------------------------------------------------------


def _read_npm(found: _Found, environ: Mapping[str, str], root: Path, ask: Ask) -> None:
    settings = _npm_settings(environ, root)
    if cafile := settings.get("cafile"):
        found.certificates.append(Path(cafile))
    found.usual += [
        url for name, url in settings.items() if name.endswith(":registry") and _is_web(url)
    ]
    registry = settings.get("registry", "")
    if _is_web(registry):
        found.urls["NPM_CONFIG_REGISTRY"] = [registry]
    else:
        said = ask(["npm", "config", "get", "registry"]).split()
        found.usual += [text for text in said if _is_web(text)]


def _npm_settings(environ: Mapping[str, str], root: Path) -> dict[str, str]:
    home = Path(environ.get("HOME") or "/")
    user = environ.get("NPM_CONFIG_USERCONFIG") or environ.get("npm_config_userconfig")
    files = [
        root / "etc/npmrc",
        root / "usr/etc/npmrc",
        Path(user) if user else _below(root, home) / ".npmrc",
    ]
    settings: dict[str, str] = {}
    for path in files:
        for line in _read_text(path).splitlines():
            name, equals, value = line.partition("=")
            if equals and not line.lstrip().startswith((";", "#")):
                settings[name.strip()] = value.strip().strip("\"'")
    for name in ("registry", "cafile"):
        for variable in (f"npm_config_{name}", f"NPM_CONFIG_{name.upper()}"):
            if text := environ.get(variable):
                settings[name] = text
    return settings


# --- R -------------------------------------------------------------------------------------------------------


def _read_r(found: _Found, environ: Mapping[str, str], root: Path) -> None:
    home = Path(environ.get("HOME") or "/")
    files = [
        Path(environ["R_PROFILE"]) if environ.get("R_PROFILE") else root / "etc/R/Rprofile.site",
        Path(environ["R_PROFILE_USER"])
        if environ.get("R_PROFILE_USER")
        else _below(root, home) / ".Rprofile",
    ]
    for path in files:
        text = "\n".join(line.partition("#")[0] for line in _read_text(path).splitlines())
        if "repos" in text:
            found.r_urls += _URL.findall(text)


def _r_profile(urls: Sequence[str]) -> bytes:
    named = ", ".join(
        f'{"CRAN" if number == 0 else f"repository{number}"} = "{url}"'
        for number, url in enumerate(dict.fromkeys(urls))
    )
    return f"options(repos = c({named}))\n".encode()


# --- addresses and certificates ------------------------------------------------------------------------------


def _is_web(text: str) -> bool:
    return text.startswith(("http://", "https://"))


def _rule_for(url: str) -> Rule:
    parts = urlsplit(url)
    if parts.username is not None or parts.password is not None:
        raise InvalidRequest(
            f"the package index at {parts.hostname} is configured with credentials in its address, which must not"
            " enter a sandbox; allow it by a rule of its own instead of 'registries'"
        )
    return parse_rule(f"{parts.scheme}://{_authority(parts)}")


def _authority(parts: SplitResult) -> str:
    host = parts.hostname or ""
    shown = f"[{host}]" if ":" in host else host
    return f"{shown}:{parts.port}" if parts.port else shown


def read_trusted(named: Sequence[Path] = (), root: Path = Path("/")) -> bytes:
    """Return the certificates of these files, and with them those that the system trusts."""
    system = ssl.get_default_verify_paths().openssl_cafile
    usual = (Path(system), root / "etc/ssl/certs/ca-certificates.crt")
    found = dict.fromkeys(
        each for path in (*named, *usual) for each in _CERTIFICATE.findall(_read_bytes(path))
    )
    return b"".join(each + b"\n" for each in found)


def _below(root: Path, path: Path) -> Path:
    return path if path.is_relative_to(root) else root / path.relative_to("/")


def _read_text(path: Path) -> str:
    return _read_bytes(path).decode("utf-8", "replace")


def _read_bytes(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(_LARGEST_FILE)
    except OSError:
        return b""  # none there, or none of ours


def _asker(environ: Mapping[str, str]) -> Ask:
    def ask(argv: Sequence[str]) -> str:
        try:
            said = subprocess.run(
                argv,
                env=dict(environ),
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                timeout=_ASK_SECONDS,
                check=False,
                text=True,
            )
        except (OSError, subprocess.SubprocessError):
            return ""  # it is not installed, so nobody configured it
        return said.stdout if said.returncode == 0 else ""

    return ask


def opened_hosts(registries: Registries) -> Iterator[tuple[str, Sequence[str]]]:
    """Yield the names that may lie in ranges which are closed otherwise, since the operator's configuration has them."""
    for host in registries.hosts:
        yield host, CLOSED_RANGES
