"""Endpoints from the environment, and the settings file made of them."""

import tomllib
from pathlib import Path

import pytest

from headrace.kernel.errors import ConfigError
from infra.dev import S3, Endpoints, IcebergRest, render_settings
from infra.dev.endpoints import from_environment
from infra.dev.kafka.broker import _cluster_id

ALL = Endpoints(
    kafka_bootstrap="127.0.0.1:1",
    s3=S3("http://127.0.0.1:2", "key", 'sec"ret\\'),
    iceberg=IcebergRest("http://127.0.0.1:3", "warehouse", credential="key:secret"),
    postgres_uri="postgresql+psycopg2://u:p@127.0.0.1:4/d",
)


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ALL.environment():
        monkeypatch.delenv(name, raising=False)


def test_the_environment_carries_endpoints_to_a_child(monkeypatch: pytest.MonkeyPatch) -> None:
    assert from_environment() == Endpoints()
    for name, value in ALL.environment().items():
        monkeypatch.setenv(name, value)
    assert from_environment() == ALL


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("HEADRACE_S3_ENDPOINT", "HEADRACE_S3_ACCESS_KEY"),
        ("HEADRACE_ICEBERG_REST_URI", "HEADRACE_ICEBERG_REST_WAREHOUSE"),
    ],
)
def test_a_service_named_by_half(monkeypatch: pytest.MonkeyPatch, given: str, wanted: str) -> None:
    monkeypatch.setenv(given, "http://127.0.0.1:1")
    with pytest.raises(ConfigError, match=f"{wanted} is not set"):
        from_environment()


def test_ones_own_services_come_first() -> None:
    own = Endpoints(kafka_bootstrap="mine:1")
    assert own.merged(ALL).kafka_bootstrap == "mine:1"
    assert own.merged(ALL).s3 == ALL.s3


def test_secrets_are_not_shown() -> None:
    assert "sec" not in repr(ALL)


def test_the_settings_file(tmp_path: Path) -> None:
    found = tomllib.loads(render_settings(ALL, tmp_path))

    assert found["kafka"] == {"default": {"bootstrap.servers": "127.0.0.1:1"}}
    assert found["object_stores"]["s3"]["aws_secret_access_key"] == 'sec"ret\\'
    assert found["state"] == {"path": str(tmp_path / "state")}
    assert set(found["catalogs"]) == {"local", "lake", "postgres"}
    assert found["catalogs"]["lake"]["s3.endpoint"] == "http://127.0.0.1:2"
    assert found["catalogs"]["postgres"]["warehouse"] == "s3://lake/postgres"


def test_the_settings_file_names_only_what_there_is(tmp_path: Path) -> None:
    found = tomllib.loads(render_settings(Endpoints(), tmp_path))
    assert set(found) == {"catalogs", "state"}
    assert set(found["catalogs"]) == {"local"}


def test_a_cluster_id_is_no_option() -> None:
    assert not any(_cluster_id().startswith("-") for _ in range(1000))
