"""Configuration: where it is found, what overrides what, what is said about mistakes, what is never shown."""

from pathlib import Path

import pytest

from headrace.jobs.config import Config, load_config
from headrace.jobs.redact import redact
from headrace.kernel.errors import ConfigError, ExitCode

TOML = """\
[state]
path = "state"

[kafka.default]
bootstrap.servers = "file:9092"
"security.protocol" = "SSL"
linger.ms = 5

[catalogs.my-lake]
type = "rest"
uri = "http://rest:8181"
s3.access-key-id = "${KEY_ID:-none}"
ssl = true

[object_stores.s3]
endpoint_url = "http://s3:9000"
aws_secret_access_key = "hush-hush"
"""


def config_of(tmp_path: Path, text: str = TOML, **environ: str) -> Config:
    (tmp_path / "headrace.toml").write_text(text)
    return load_config(environ=environ, cwd=tmp_path)


class TestFinding:
    def test_defaults_without_a_file(self, tmp_path: Path) -> None:
        config = load_config(environ={}, cwd=tmp_path)
        assert config.state_path == tmp_path / ".headrace"
        assert config.catalogs == {
            "local": {
                "type": "sql",
                "uri": f"sqlite:///{tmp_path}/.headrace/catalog.db",
                "warehouse": f"file://{tmp_path}/.headrace/warehouse",
            }
        }
        assert not config.kafka
        assert not list(tmp_path.iterdir())

    def test_nearest_file_upwards(self, tmp_path: Path) -> None:
        deep = tmp_path / "a" / "b"
        deep.mkdir(parents=True)
        (tmp_path / "headrace.toml").write_text('[state]\npath = "outer"\n')
        assert load_config(environ={}, cwd=deep).state_path == tmp_path / "outer"
        (tmp_path / "a" / "headrace.toml").write_text('[state]\npath = "inner"\n')
        assert load_config(environ={}, cwd=deep).state_path == tmp_path / "a" / "inner"

    def test_argument_over_variable_over_folder(self, tmp_path: Path) -> None:
        for name in ("headrace.toml", "by-variable.toml", "by-argument.toml"):
            (tmp_path / name).write_text(f'[state]\npath = "{name}.d"\n')
        environ = {"HEADRACE_CONFIG": "by-variable.toml"}
        assert load_config(environ=environ, cwd=tmp_path).state_path.name == "by-variable.toml.d"
        assert load_config("by-argument.toml", environ=environ, cwd=tmp_path).state_path.name == "by-argument.toml.d"

    @pytest.mark.parametrize(("path", "environ"), [("no.toml", {}), (None, {"HEADRACE_CONFIG": "no.toml"})])
    def test_named_file_must_exist(self, tmp_path: Path, path: str | None, environ: dict[str, str]) -> None:
        with pytest.raises(ConfigError, match=r"no.toml does not exist"):
            load_config(path, environ=environ, cwd=tmp_path)


class TestValues:
    def test_options_are_flat_and_catalog_options_are_text(self, tmp_path: Path) -> None:
        config = config_of(tmp_path)
        assert config.kafka_cluster() == {
            "bootstrap.servers": "file:9092",
            "security.protocol": "SSL",
            "linger.ms": 5,
        }
        assert config.catalog("my-lake") == {
            "type": "rest",
            "uri": "http://rest:8181",
            "s3.access-key-id": "none",
            "ssl": "true",
        }
        assert config.object_store()["endpoint_url"] == "http://s3:9000"
        assert config.object_store("other") == {}

    def test_references(self, tmp_path: Path) -> None:
        assert config_of(tmp_path, KEY_ID="id-1").catalog("my-lake")["s3.access-key-id"] == "id-1"

    def test_state_path_precedence(self, tmp_path: Path) -> None:
        assert config_of(tmp_path).state_path == tmp_path / "state"
        assert config_of(tmp_path, HEADRACE_STATE_PATH="by-env").state_path == tmp_path / "by-env"
        given = load_config(environ={"HEADRACE_STATE_PATH": "by-env"}, cwd=tmp_path, state_path="by-flag")
        assert given.state_path == tmp_path / "by-flag"

    def test_local_catalog_moves_with_the_state(self, tmp_path: Path) -> None:
        moved = load_config(environ={}, cwd=tmp_path).with_state_path(tmp_path / "other")
        assert moved.catalog("local")["warehouse"] == f"file://{tmp_path}/other/warehouse"


class TestOverrides:
    def test_bootstrap_over_file(self, tmp_path: Path) -> None:
        config = config_of(tmp_path, HEADRACE_KAFKA_BOOTSTRAP="env:1")
        assert config.kafka_cluster()["bootstrap.servers"] == "env:1"
        assert config.kafka_cluster()["linger.ms"] == 5

    def test_named_option_over_bootstrap(self, tmp_path: Path) -> None:
        config = config_of(
            tmp_path, HEADRACE_KAFKA_BOOTSTRAP="env:1", HEADRACE__KAFKA__DEFAULT__BOOTSTRAP_SERVERS="env:2"
        )
        assert config.kafka_cluster()["bootstrap.servers"] == "env:2"

    def test_each_section_spells_options_as_its_library_does(self, tmp_path: Path) -> None:
        config = config_of(
            tmp_path,
            HEADRACE__KAFKA__OTHER__BOOTSTRAP_SERVERS="o:1",
            HEADRACE__CATALOGS__MY_LAKE__S3__ACCESS_KEY_ID="k",
            HEADRACE__CATALOGS__MY_LAKE__OAUTH2_SERVER_URI="u",
            HEADRACE__OBJECT_STORES__S3__REGION_NAME="r",
        )
        assert config.kafka_cluster("other") == {"bootstrap.servers": "o:1"}
        assert config.catalog("my-lake")["s3.access-key-id"] == "k"
        assert config.catalog("my-lake")["oauth2-server-uri"] == "u"
        assert config.object_store()["region_name"] == "r"

    @pytest.mark.parametrize("variable", ["HEADRACE__KAFKA", "HEADRACE__KAFKA__DEFAULT", "HEADRACE__STATE__PATH__X"])
    def test_meaningless_override_is_refused(self, tmp_path: Path, variable: str) -> None:
        with pytest.raises(ConfigError, match=f"{variable} overrides nothing"):
            load_config(environ={variable: "x"}, cwd=tmp_path)


class TestErrors:
    @pytest.mark.parametrize(
        ("text", "message", "hint"),
        [
            ("[kafka.default\n", "headrace.toml:1: not valid TOML", ""),
            ("[state]\n\n[kafak.default]\n", "headrace.toml:3: unknown section [kafak]", "did you mean 'kafka'?"),
            ("[state]\npth = 'x'\n", "headrace.toml:2: unknown key 'pth' in [state]", "did you mean 'path'?"),
            ("[state]\npath = 3\n", "headrace.toml:2: state.path must be a string", ""),
            ("[kafka]\nbootstrap = 'x'\n", "headrace.toml:2: kafka.bootstrap must be a table", "[kafka.default]"),
            ("kafka = 3\n", "headrace.toml:1: kafka must be a table: [kafka]", ""),
            ("[kafka.a]\n[kafka.b]\nx = [1]\n", "headrace.toml:3: kafka.b.x must be a string, a number", ""),
            ("[catalogs.a]\nuri = '${NO}'\n", "headrace.toml:2: catalogs.a.uri: environment variable NO", "default"),
        ],
    )
    def test_names_file_line_and_key(self, tmp_path: Path, text: str, message: str, hint: str) -> None:
        with pytest.raises(ConfigError) as caught:
            config_of(tmp_path, text)
        assert message in caught.value.message
        assert hint in caught.value.hint
        assert caught.value.exit_code == ExitCode.USER

    def test_unknown_names(self, tmp_path: Path) -> None:
        config = config_of(tmp_path)
        with pytest.raises(ConfigError, match=r"catalog 'my-lak' is not configured\n.*did you mean 'my-lake'"):
            config.catalog("my-lak")
        with pytest.raises(ConfigError, match=r"kafka cluster 'other' is not configured\n.*known: default"):
            config.kafka_cluster("other")
        with pytest.raises(ConfigError, match="no kafka cluster is configured"):
            load_config(environ={}, cwd=tmp_path.parent).kafka_cluster()

    def test_cluster_without_servers(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match=r"kafka cluster 'a' has no bootstrap.servers"):
            config_of(tmp_path, "[kafka.a]\nlinger.ms = 1\n").kafka_cluster("a")


class TestSecrets:
    def test_repr_and_json_hide_them(self, tmp_path: Path) -> None:
        config = config_of(tmp_path)
        assert "hush-hush" not in repr(config)
        assert "hush-hush" not in str(config.redacted())
        assert config.object_store()["aws_secret_access_key"] == "hush-hush"

    @pytest.mark.parametrize(
        "key",
        [
            "sasl.password",
            "ssl.key.password",
            "ssl.key.pem",
            "sasl.jaas.config",
            "s3.secret-access-key",
            "s3.session-token",
            "aws_secret_access_key",
            "credential",
            "token",
            "adls.account-key",
            "basic.auth.user.info",
            "client_secret",
        ],
    )
    def test_keys_of_secrets(self, key: str) -> None:
        assert redact({key: "x", "other": "y"}) == {key: "***", "other": "y"}

    def test_passwords_in_urls(self) -> None:
        assert redact({"uri": "postgresql://me:pw@host/db"}) == {"uri": "postgresql://me:***@host/db"}
        assert redact({"bootstrap.servers": "a:1,b:2"}) == {"bootstrap.servers": "a:1,b:2"}
