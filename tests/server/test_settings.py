"""Settings: who wins, what is refused and with which words."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from pydantic import ValidationError

from atoll.engines.catalog import ContainerSettings, TlsFiles
from atoll.errors import InvalidRequest
from atoll.model.limits import Limits, ResolvedLimits
from atoll.model.sizes import GIB, MIB, format_size
from atoll.node.lifetimes import LifetimeRules
from atoll.node.quotas import QuotaRules
from atoll.server.setting_aliases import ALIASES
from atoll.server.setting_loader import load_settings
from atoll.server.setting_sources import variable_name
from atoll.server.settings import Settings, every_setting

pytestmark = pytest.mark.any_user

PAGE = Path(__file__).parents[2] / "docs/settings.md"


class Configuration:
    """A configuration directory and what is read with it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.toml = folder / "atoll.toml"
        self.dotenv = folder / ".env"

    def load(self, environ: Mapping[str, str] | None = None) -> Settings:
        return load_settings(environ or {}, self.folder)

    def refusal(self, environ: Mapping[str, str] | None = None) -> str:
        with pytest.raises(InvalidRequest) as refused:
            self.load(environ)
        return refused.value.message


@pytest.fixture
def configuration(tmp_path: Path) -> Configuration:
    return Configuration(tmp_path)


def test_without_anything_the_defaults_hold(configuration: Configuration) -> None:
    settings = configuration.load()
    assert settings.lifetimes.rules() == LifetimeRules()
    assert settings.quotas.rules() == QuotaRules()
    assert settings.limits.chosen() == Limits()
    assert settings.node.engine == "namespaces"
    assert settings.execution.log_bytes == 64 * MIB
    assert settings.socket_path == settings.data / "node.sock"


def test_defaults_pass_their_own_checks(configuration: Configuration) -> None:
    settings = configuration.load()
    assert Settings.model_validate(settings.model_dump()) == settings


def test_the_environment_comes_before_dotenv_before_toml(configuration: Configuration) -> None:
    configuration.toml.write_text("[limits]\ncpus = 1\nprocesses = 10\nopen_files = 100\n")
    configuration.dotenv.write_text("ATOLL_LIMITS__CPUS=2\nATOLL_LIMITS__PROCESSES=20\n")
    limits = configuration.load({"ATOLL_LIMITS__CPUS": "3"}).limits
    assert (limits.cpus, limits.processes, limits.open_files) == (3.0, 20, 100)


@pytest.mark.parametrize("text", ["256m", "256MB", "256 MiB", "268435456"])
def test_sizes_of_both_families(configuration: Configuration, text: str) -> None:
    configuration.toml.write_text(f'[limits]\nmemory_bytes = "{text}"\n')
    assert configuration.load().limits.memory_bytes == 256 * MIB
    environ = {"ATOLL_LIMITS__MEMORY_BYTES": text}
    assert configuration.load(environ).limits.memory_bytes == 256 * MIB


@pytest.mark.parametrize("text", ["300", "300s", "5m"])
def test_durations_with_and_without_a_unit(configuration: Configuration, text: str) -> None:
    environ = {"ATOLL_LIFETIMES__IDLE_SECONDS": text}
    assert configuration.load(environ).lifetimes.idle_seconds == 300


def test_the_data_directory_is_where_commands_look_for_it(configuration: Configuration) -> None:
    assert configuration.load({"ATOLL_DATA": "/srv/atoll"}).data == Path("/srv/atoll")
    configuration.toml.write_text('data = "/srv/other"\n')
    assert configuration.load().data == Path("/srv/other")


def test_named_files_are_read_instead_of_the_usual_ones(
    configuration: Configuration, tmp_path: Path
) -> None:
    configuration.toml.write_text("[limits]\ncpus = 1\n")
    configuration.dotenv.write_text("ATOLL_LIMITS__PROCESSES=10\n")
    toml, dotenv = tmp_path / "a.toml", tmp_path / "b.env"
    toml.write_text("[limits]\ncpus = 2\n")
    dotenv.write_text("ATOLL_LIMITS__PROCESSES=20\n")
    limits = load_settings({}, tmp_path, toml, dotenv).limits
    assert (limits.cpus, limits.processes) == (2.0, 20)


def test_a_dotenv_of_the_current_directory_is_not_read(
    configuration: Configuration, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    elsewhere.joinpath(".env").write_text("ATOLL_LIMITS__CPUS=2\n")
    monkeypatch.chdir(elsewhere)
    assert configuration.load().limits.cpus is None


def test_a_named_file_has_to_be_there(tmp_path: Path) -> None:
    for files in ({"config_file": tmp_path / "no.toml"}, {"env_file": tmp_path / "no.env"}):
        with pytest.raises(InvalidRequest, match=r"no\.(toml|env) cannot be read"):
            load_settings({}, tmp_path, **files)


def test_a_file_that_cannot_be_read_is_not_left_out(configuration: Configuration) -> None:
    configuration.toml.symlink_to("nowhere")
    assert f"{configuration.toml} cannot be read" in configuration.refusal()
    configuration.toml.unlink()
    configuration.toml.mkdir()
    assert f"{configuration.toml} cannot be read" in configuration.refusal()


def test_settings_cannot_be_changed(configuration: Configuration) -> None:
    settings = configuration.load()
    with pytest.raises(ValidationError):
        settings.limits.cpus = 2.0
    with pytest.raises(ValidationError):
        settings.data = Path("/")


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("\n[limits]\n# memory\nmemory_bytes = 'lots'\n", 4, "limits.memory_bytes is 'lots'"),
        ("[limits]\n\nmemory_bytes = 5\n", 3, "limits.memory_bytes is 5"),
        ("\nlimits = {cpus = 1, processes = 'x'}\n", 2, "limits.processes is 'x'"),
        ("limits.cpus = 1\nlimits.inodes = []\n", 2, "limits.inodes is []"),
        ("[node]\non_exit = 'kep'\n", 2, "it should be 'keep' or 'stop'"),
        ("[node]\nengine = 'nonsense'\n", 2, "there is: namespaces"),
        ("[limits]\nmemory_byte = 5\n", 2, "did you mean limits.memory_bytes?"),
        ("[limit]\nmemory_bytes = 5\n", 2, "did you mean limits.memory_bytes?"),
        ("[node]\n\nmemory_bytes = 5\n", 3, "did you mean limits.memory_bytes?"),
        ("[limits]\nMemory_Bytes = 5\n", 2, "did you mean limits.memory_bytes?"),
        ("nonsense = 5\n", 1, "there is no such setting"),
        ("\n\nlimits = 5\n", 3, "there is no such setting"),
        ("[[limits]]\ncpus = 5\n", 1, "there is no such setting"),
        ("[limits]\n[limts]\n", 2, "there is no such setting"),
        ("[limits]\ncpus = 5\ncpus = 5\n", 3, "overwrite"),
        ("[limits]\ncpus =\n", 2, "Invalid value"),
        ("[limits]\ncpus = 2", 2, "cut off"),
        ("[quotas]\nmost_sandboxes = true\n", 2, "whole number"),
        ("[quotas]\nmost_sandboxes = 0\n", 2, "greater than or equal to 1"),
        ("[pools]\nready = ['python']\n", 2, "template=count"),
        ("[pools]\nready = ['python=1001']\n", 2, "at most 1000"),
        ("[pools]\nready = ['gvisor:debian:12=1']\n", 2, "gvisor has no images"),
        ("[pools]\nready = ['nothing/python=1']\n", 2, "no such engine"),
        ("[pools]\nready = ['docker/python=1']\n", 2, "add it to node.engines"),
        ("a = " + "[" * 5000 + "\n", 1, "nested too deeply"),
    ],
)
def test_a_wrong_line_is_named(
    configuration: Configuration, text: str, line: int, words: str
) -> None:
    configuration.toml.write_text(text)
    message = configuration.refusal()
    assert message.startswith(f"{configuration.toml}, line {line}: ")
    assert words in message


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("\n\n# a\nATOLL_LIMITS__CPUS=x\n", 4, "ATOLL_LIMITS__CPUS is 'x'"),
        ("A=1\n\n\nATOLL_LIMITS__CPU=1\n", 4, "did you mean ATOLL_LIMITS__CPUS?"),
        ("ATOLL_LIMITS_CPUS=1\n", 1, "did you mean ATOLL_LIMITS__CPUS?"),
        ("ATOL_LIMITS__CPUS=1\n", 1, "did you mean ATOLL_LIMITS__CPUS?"),
        ("CONTAINER_MEMROY_LIMIT=1g\n", 1, "did you mean CONTAINER_MEMORY_LIMIT?"),
        ("A=1\nATOLL_LIMITS__CPUS\n", 2, "NAME=value"),
        ("A=1\nATOLL_LIMITS__CPUS='1\n", 2, "close every quote"),
        ("A=1\nATOLL_LIMITS__CPUS=\n", 2, "empty"),
        ("ATOLL_DATA=/a\nATOLL_DATA=/b\n", 2, "line 1 already"),
        ("ATOLL_LIMITS__PROCESSES=10", 1, "cut off"),
    ],
)
def test_a_wrong_line_of_dotenv_is_named(
    configuration: Configuration, text: str, line: int, words: str
) -> None:
    configuration.dotenv.write_text(text)
    message = configuration.refusal()
    assert message.startswith(f"{configuration.dotenv}, line {line}: ")
    assert words in message


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("ATOLL_LIMITS__CPUS", "many", "is 'many': it has to be a number"),
        ("ATOLL_LIMITS__CPUS", "", "empty"),
        ("ATOLL_LIMITS__CPUS", "inf", "number"),
        ("ATOLL_LIMITS_CPUS", "1", "did you mean ATOLL_LIMITS__CPUS?"),
        ("atoll_limits__cpus", "1", "did you mean ATOLL_LIMITS__CPUS?"),
        ("ATOLL_LIFETIMES__IDLE_SECONDS", "soon", "'30s', '5m'"),
        ("ATOLL_NODE__SOCKET", "/" + "x" * 200, "the most is 107"),
        ("ATOLL_DATA", "/" + "x" * 100, "set node.socket"),
        ("ATOLL_DATA", "/a\0b", "path"),
        ("CONTAINER_CPU_QUOTA", "-1", "100000 is one CPU"),
        ("SANDBOX_MEMORY", "much", "is not understood"),
    ],
)
def test_a_wrong_variable_is_named(
    configuration: Configuration, name: str, value: str, words: str
) -> None:
    message = configuration.refusal({name: value})
    assert message.startswith(f"the environment: {name}")
    assert words in message


def test_all_that_is_wrong_is_told_at_once(configuration: Configuration) -> None:
    configuration.toml.write_text("[limits]\ncpus = 'x'\n[node]\non_exit = 'y'\n")
    message = configuration.refusal({"ATOLL_LOG__LEVEL": "loud"})
    assert [line.partition(": ")[0] for line in sorted(message.splitlines())] == [
        f"{configuration.toml}, line 2",
        f"{configuration.toml}, line 4",
        "the environment",
    ]


def test_limits_that_cannot_be_had_together_are_refused(configuration: Configuration) -> None:
    configuration.toml.write_text("[limits]\ncpus = 1\nworkspace_bytes = '2g'\n")
    message = configuration.refusal()
    assert f"{configuration.toml}, line 3: limits.workspace_bytes" in message
    assert "raise memory_bytes" in message


def test_less_memory_makes_the_trees_smaller(configuration: Configuration) -> None:
    limits = configuration.load({"ATOLL_LIMITS__MEMORY_BYTES": "64m"}).limits.chosen()
    assert limits.written == {"memory_bytes"}
    assert limits.resolve().tree_bytes < 64 * MIB


def test_no_secret_is_shown(configuration: Configuration) -> None:
    for text in (
        "[store]\nurl = 'mysql://atoll:hunter2@host/db'\n",
        "[store]\nurl = ['postgresql://atoll:hunter2@host/db']\n",
        "[store]\nuri = 'postgresql://atoll:hunter2@host/db'\n",
        "[stor]\nurl = 'postgresql://atoll:hunter2@host/db'\n",
        "[store]\nurl = 'postgresql://atoll:hunter2@host/db\n",
    ):
        configuration.toml.write_text(text)
        with pytest.raises(InvalidRequest) as refused:
            configuration.load()
        told = (refused.value.message, refused.value.details, refused.value.__cause__)
        assert "hunter2" not in repr(told)
    configuration.toml.write_text("[store]\nurl = 'postgresql://atoll:hunter2@host/db'\n")
    settings = configuration.load()
    assert "hunter2" not in f"{settings!r} {settings} {settings.model_dump_json()}"
    assert settings.store.url
    assert settings.store.url.get_secret_value() == "postgresql://atoll:hunter2@host/db"


def test_variables_of_others_are_left_alone(configuration: Configuration) -> None:
    configuration.dotenv.write_text("CHAT_MODEL=some\nPOSTGRES_PASSWORD=\nSTORAGE_DIR=./storage\n")
    before = configuration.load()
    environ = {"ATOLL_URL": "x", "ATOLL_TOKEN": "y", "ATOLL_DEBUG": "1", "LIMITS__CPUS": "9"}
    assert configuration.load(environ) == before


@pytest.mark.parametrize(
    ("name", "value", "where", "expected"),
    [
        ("CONTAINER_MEMORY_LIMIT", "2048m", "limits.memory_bytes", 2 * GIB),
        ("SANDBOX_MEMORY", "512m", "limits.memory_bytes", 512 * MIB),
        ("CONTAINER_CPU_QUOTA", "200000", "limits.cpus", 2.0),
        ("SANDBOX_CPU", "0.5", "limits.cpus", 0.5),
        ("CONTAINER_PIDS_LIMIT", "512", "limits.processes", 512),
        ("DEFAULT_PIDS_LIMIT", "1024", "limits.processes", 1024),
        ("CONTAINER_TMPFS_SIZE", "200m", "limits.workspace_bytes", 200 * MIB),
        ("CONTAINER_TMPFS_SIZE", "200m", "limits.tmp_bytes", 200 * MIB),
        ("CONTAINER_TMPFS_SIZE", "200m", "limits.home_bytes", 200 * MIB),
        ("CONTAINER_EXECUTION_TIMEOUT_SECONDS", "30", "execution.timeout_seconds", 30),
        ("CONTAINER_MAX_SESSIONS", "5", "quotas.most_sandboxes", 5),
        ("CONTAINER_MAX_SESSIONS_PER_THREAD", "3", "quotas.most_per_owner", 3),
        ("CONTAINER_ORPHAN_MIN_AGE_SECONDS", "300", "node.orphan_age_seconds", 300),
        ("SANDBOX_STORAGE", "5g", "workspaces.size_bytes", 5 * GIB),
        ("SANDBOX_VHOST", "sandboxes.example", "server.vhost", "sandboxes.example"),
        ("SESSION_GC_INTERVAL_SECONDS", "60", "node.sweep_seconds", 60),
        ("SESSION_IDLE_TTL_SECONDS", "1800", "lifetimes.idle_seconds", 1800),
        ("SESSION_MAX_LIFETIME_SECONDS", "7200", "lifetimes.lifetime_seconds", 7200),
        ("SESSION_MAX_LIFETIME_SECONDS", "7200", "lifetimes.most_lifetime_seconds", 7200),
    ],
)
def test_names_of_other_systems_set_the_same(
    configuration: Configuration, name: str, value: str, where: str, expected: object
) -> None:
    group, key = where.split(".")
    assert getattr(getattr(configuration.load({name: value}), group), key) == expected
    configuration.dotenv.write_text(f"{name}={value}\n")
    settings = configuration.load()
    assert getattr(getattr(settings, group), key) == expected
    assert settings.warnings == ()


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("/srv/own.sqlite", "sqlite:////srv/own.sqlite"),
        ("postgresql://db.example/atoll", "postgresql://db.example/atoll"),
    ],
)
def test_a_database_by_another_name(
    configuration: Configuration, value: str, expected: str
) -> None:
    url = configuration.load({"DATABASE": value}).store.url
    assert url is not None
    assert url.get_secret_value() == expected


def test_a_name_that_means_nothing_here_is_told(configuration: Configuration) -> None:
    [warning] = configuration.load({"DEFAULT_CAPABILITIES": "NET_RAW"}).warnings
    assert "DEFAULT_CAPABILITIES is not used: sandboxes have no capabilities" in warning


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(
            ("VHOST", "a name"),
            ("VHOST", "ftp://a.example"),
            ("HOST", "127.0.0.1:80"),
            ("HOST", ""),
        ),
        *(("HOSTS", "a.example:80"), ("HOSTS", "*"), ("PROXIES", "proxy.example"), ("PORT", "-1")),
        *(("CORS_ORIGINS", "*"), ("CORS_ORIGINS", "a.example"), ("CORS_ORIGINS", "https://a/b")),
        *(("REQUESTS_PER_SECOND", "0"), ("MOST_CONNECTIONS", "0"), ("HEAD_SECONDS", "0")),
    ],
)
def test_an_address_that_cannot_be_is_refused(
    configuration: Configuration, name: str, value: str
) -> None:
    assert f"ATOLL_SERVER__{name}" in configuration.refusal({f"ATOLL_SERVER__{name}": value})


def test_every_alias_names_settings_that_there_are() -> None:
    known = dict(every_setting())
    assert all(path in known for alias in ALIASES.values() for path in alias.settings)


def test_our_own_name_wins_over_another_and_the_operator_is_warned(
    configuration: Configuration,
) -> None:
    environ = {"SANDBOX_MEMORY": "2g"}
    configuration.toml.write_text("[limits]\nmemory_bytes = '256m'\n")
    settings = configuration.load(environ)
    assert settings.limits.memory_bytes == 256 * MIB
    [warning] = settings.warnings
    assert "the environment: SANDBOX_MEMORY is not used" in warning
    assert f"{configuration.toml}, line 2" in warning


def test_other_names_that_contradict_each_other_are_refused(configuration: Configuration) -> None:
    both = {"SANDBOX_MEMORY": "1g", "CONTAINER_MEMORY_LIMIT": "2g"}
    assert "CONTAINER_MEMORY_LIMIT is set to something else" in configuration.refusal(both)
    both["CONTAINER_MEMORY_LIMIT"] = "1g"
    assert configuration.load(both).limits.memory_bytes == GIB


def test_containers_are_as_the_operator_says(configuration: Configuration, tmp_path: Path) -> None:
    profile = tmp_path / "lax.json"
    profile.write_text("{}")
    configuration.toml.write_text(
        "[containers]\n"
        'docker_endpoint = "tcp://engine.example:2376"\n'
        f'docker_tls = "{tmp_path}"\n'
        'runtime = "runsc"\n'
        'images = ["python=own:1", "tools=own/tools:2"]\n'
        "any_image = false\n"
        'registries = ["registry.example:5000"]\n'
        'networks = ["bridge"]\n'
        'volumes = ["team-*"]\n'
        'capabilities = ["cap_chown"]\n'
        f'seccomp_profiles = ["lax={profile}"]\n'
        "allow_root = true\n"
        'pull_seconds = "5m"\n'
    )
    containers = configuration.load().containers
    assert containers.rules("docker") == ContainerSettings(
        endpoint="tcp://engine.example:2376",
        tls=TlsFiles(tmp_path / "ca.pem", tmp_path / "cert.pem", tmp_path / "key.pem"),
        runtime="runsc",
        runtimes=("runsc",),
        images={"python": "own:1", "tools": "own/tools:2"},
        any_image=False,
        registries=("registry.example:5000",),
        networks=("bridge",),
        volumes=("team-*",),
        capabilities=("CHOWN",),
        seccomp_profiles={"lax": profile},
        allow_root=True,
        pull_seconds=300.0,
    )
    podman = containers.rules("podman")
    assert podman is not None and (podman.endpoint, podman.tls) == ("", None)
    assert containers.rules("gvisor") is None


def test_without_a_word_containers_are_as_hard_as_can_be(configuration: Configuration) -> None:
    assert configuration.load().containers.rules("docker") == ContainerSettings()


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("IMAGES", "python", "is not name=value"),
        ("SECCOMP_PROFILES", "lax=/nowhere.json", "is no file"),
        ("RUNTIME", "kata", "'runc', 'crun' or 'runsc'"),
        ("RUNTIMES", "runc,kata", "'kata' is none of runc, crun, runsc"),
        ("ALLOW_ROOT", "perhaps", "true or false"),
    ],
)
def test_containers_that_cannot_be_stop_the_start(
    configuration: Configuration, name: str, value: str, reason: str
) -> None:
    refused = configuration.refusal({f"ATOLL_CONTAINERS__{name}": value})
    assert f"ATOLL_CONTAINERS__{name}" in refused and reason in refused


def test_where_an_engine_is_matters_only_if_it_is_used(configuration: Configuration) -> None:
    environ = {"DOCKER_HOST": "ssh://elsewhere"}
    assert configuration.load(environ).node.engine == "namespaces"
    for used in ("ATOLL_NODE__ENGINE", "ATOLL_NODE__ENGINES"):
        refused = configuration.refusal({**environ, used: "docker"})
        assert "DOCKER_HOST" in refused and "unix:///path or tcp://host:port" in refused


def test_a_name_means_one_setting_only() -> None:
    # So a lost or a moved heading cannot turn one setting into another.
    keys = [path[-1] for path, _ in every_setting()]
    assert len(keys) == len(set(keys))


def default_as_text(path: tuple[str, ...], default: object) -> str:
    if path[0] == "limits" and default is None:
        default = getattr(ResolvedLimits(), path[1])
    if path[-1] == "data":
        return "see above"
    if default in (None, ()):
        return "–"
    if isinstance(default, bool):
        return str(default).lower()
    if path[-1].endswith("_bytes") or "_bytes_" in path[-1]:
        return format_size(int(str(default)))
    unit = " s" if path[-1].endswith("_seconds") else ""
    return f"{default:g}{unit}" if isinstance(default, float) else f"{default}"


def test_the_page_tells_every_setting_and_every_alias() -> None:
    expected = [
        f"| `{'.'.join(path)}` | `{variable_name(path)}` | {default_as_text(path, field.default)}"
        f" | {field.description} |"
        for path, field in every_setting()
    ]
    for name, alias in ALIASES.items():
        settings = ", ".join(f"`{'.'.join(path)}`" for path in alias.settings)
        expected.append(f"| `{name}` | {settings} | {alias.note} |")
    assert re.findall(r"^\| `.*\|$", PAGE.read_text(), re.MULTILINE) == expected
