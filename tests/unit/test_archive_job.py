"""The archiver: its job from options, and where its schema comes from."""

from pathlib import Path

import polars as pl
import pytest

from headrace.jobs.archive import SOURCE, archive_job, schema_from, schema_from_text
from headrace.jobs.config import Config, load_config
from headrace.kernel.errors import NotFoundError, SpecError


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return load_config(environ={}, cwd=tmp_path)


def test_job_keeps_metadata_and_creates_its_table() -> None:
    spec = archive_job("flights", "lake.a.archive", {"id": "int64"}, partition_by=["day(at)"])
    source = spec.sources[SOURCE]
    assert spec.uid == "archive-flights-lake.a.archive"
    assert source.metadata
    assert source.tail is not None
    assert (source.tail.topic, source.tail.start, source.on_error) == (("flights",), "earliest", "fail")
    assert spec.to_json()["sinks"] == [
        {"id": "archive", "iceberg": {"table": "lake.a.archive", "create": True, "partition_by": ["day(at)"]}}
    ]


@pytest.mark.parametrize(
    "text",
    [
        "id: long, at: timestamptz, tags: list<struct<a: int, b: decimal(10,2)>>",
        '{"id": "int64", "at": "timestamptz", "tags": "list<struct<a: int32, b: decimal(10,2)>>"}',
    ],
)
def test_schema_as_text(text: str) -> None:
    assert schema_from_text(text) == {
        "id": "int64",
        "at": "timestamptz",
        "tags": "list<struct<a: int32, b: decimal(10,2)>>",
    }


@pytest.mark.parametrize("text", ["id", "id: int65", "{id: 3}", '{"id": ["int64"]}'])
def test_wrong_schema_text(text: str) -> None:
    with pytest.raises(SpecError, match=r"schema"):
        schema_from_text(text)


def test_schema_from_files(tmp_path: Path, config: Config) -> None:
    (tmp_path / "s.yaml").write_text("id: int64\nat: date\n")
    frame = pl.DataFrame(schema={"id": pl.Int64, "at": pl.Date, "_kafka_offset": pl.Int64})
    frame.write_parquet(tmp_path / "s.parquet")
    for name in ("s.yaml", "s.parquet"):
        assert schema_from(str(tmp_path / name), config) == {"id": "int64", "at": "date"}


def test_bad_schema_files(tmp_path: Path, config: Config) -> None:
    (tmp_path / "s.parquet").write_text("no parquet")
    (tmp_path / "s.json").write_text("[1]")
    (tmp_path / "odd.parquet").touch()
    pl.DataFrame(schema={"c": pl.Categorical}).write_parquet(tmp_path / "odd.parquet")
    with pytest.raises(SpecError, match="cannot be read as Parquet"):
        schema_from(str(tmp_path / "s.parquet"), config)
    with pytest.raises(SpecError, match="must map columns to types"):
        schema_from(str(tmp_path / "s.json"), config)
    with pytest.raises(SpecError, match="a column that job specs cannot describe"):
        schema_from(str(tmp_path / "odd.parquet"), config)
    with pytest.raises(NotFoundError, match=r"schema file .*no.yaml does not exist"):
        schema_from(str(tmp_path / "no.yaml"), config)
    with pytest.raises(NotFoundError, match=r"table local.a.b does not exist|namespace 'a' does not exist"):
        schema_from("local.a.b", config)
