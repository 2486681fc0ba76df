"""The archiver as a job: a JSON topic into an Iceberg table, with offsets as columns and boundary records."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import polars as pl

from catalog.catalogs import Catalogs
from headrace.jobs.column_types import parse_type, type_name
from headrace.jobs.config import Config
from headrace.jobs.parse import parse_job
from headrace.jobs.spec import JobSpec
from headrace.jobs.spec_yaml import read_yaml
from headrace.kernel import columns as system
from headrace.kernel.errors import NotFoundError, SpecError
from hybrid_source.iceberg_history import open_iceberg

SOURCE: Final = "topic"
_NOT_A_NAME: Final = re.compile(r"[^A-Za-z0-9_.-]")
_TEXT_FILES: Final = (".yaml", ".yml", ".json")


def archive_job(
    topic: str,
    table: str,
    columns: Mapping[str, str],
    *,
    cluster: str = "default",
    partition_by: Sequence[str] = (),
    changelog_key: Sequence[str] = (),
    uid: str | None = None,
) -> JobSpec:
    """The job that archives a topic.

    Its rows are the payload columns and the metadata columns (``_kafka_topic``, ``_kafka_partition`` ...); it creates
    the table when that is missing.

    Args:
        topic: The topic; JSON records.
        table: ``CATALOG.NAMESPACE.TABLE``.
        columns: Column types of the payload.
        cluster: A configured Kafka cluster.
        partition_by: Partitioning of a new table.
        changelog_key: Columns of the key of a compacted topic, which is archived version by version, deletions as rows
            with ``_kafka_deleted``; none for a topic of which each record counts.
        uid: The job's identity, to which positions and commits are bound; None: its name.

    Raises:
        SpecError: A name or a type is wrong.
    """
    tail = {"topic": topic, "cluster": cluster, "schema": dict(columns), "start": "earliest"}
    source: dict[str, Any] = {"tail": tail, "metadata": True}
    if changelog_key:
        source["changelog"] = {"key": list(changelog_key), "give": "versions"}
    target = {"table": table, "create": True, "partition_by": list(partition_by)}
    return parse_job(
        {
            "name": _NOT_A_NAME.sub("-", f"archive-{topic}-{table}"),
            **({"uid": uid} if uid is not None else {}),
            "sources": {SOURCE: source},
            "sinks": [{"id": "archive", "iceberg": target}],
        }
    )


def schema_from_text(text: str) -> dict[str, str]:
    """Columns written as ``id: int64, at: timestamptz``, or as a JSON or YAML mapping.

    Raises:
        SpecError: The text is no such list, or names an unknown type.
    """
    if text.lstrip().startswith("{"):
        return _mapping(read_yaml(text, "--schema", {}).value, "--schema")
    try:
        dtype = parse_type(f"struct<{text}>")
    except ValueError as error:
        hint = "write it like: id: int64, at: timestamptz"
        raise SpecError(f"schema {text!r} cannot be read", detail=str(error), hint=hint) from error
    return _named(dict(dtype.to_schema()) if isinstance(dtype, pl.Struct) else {}, "the schema")


def schema_from(source: str, config: Config) -> dict[str, str]:
    """The payload columns of a YAML or JSON file of ``{column: type}``, a Parquet file, or an Iceberg table.

    Raises:
        NotFoundError: There is no such file or table.
        SpecError: It cannot be read as a schema.
    """
    suffix = Path(source).suffix
    if suffix not in (*_TEXT_FILES, ".parquet"):
        return table_schema(source, config)
    file = Path(source)
    if not file.is_file():
        raise NotFoundError(f"schema file {file} does not exist", code="FILE_NOT_FOUND")
    if suffix in _TEXT_FILES:
        return _from_text_file(file)
    try:
        return _named(pl.read_parquet_schema(file), str(file))
    except (pl.exceptions.PolarsError, OSError) as error:
        raise SpecError(f"schema file {file} cannot be read as Parquet", detail=str(error)) from error


def table_schema(table: str, config: Config) -> dict[str, str]:
    """The payload columns of an Iceberg table.

    Raises:
        NotFoundError: There is no such table.
    """
    history = open_iceberg(Catalogs(config.catalogs).load(table), table)
    return _named(history.stored, f"table {table}")


def _from_text_file(file: Path) -> dict[str, str]:
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"schema file {file} cannot be read", detail=str(error)) from error
    return _mapping(read_yaml(text, str(file), {}).value, str(file))


def _mapping(value: Any, name: str) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(kind, str) for kind in value.values()):
        raise SpecError(f"{name} must map columns to types", hint="write it like: id: int64")
    return value


def _named(schema: Mapping[str, Any], what: str) -> dict[str, str]:
    try:
        return {name: type_name(dtype) for name, dtype in schema.items() if name not in system.SYSTEM}
    except ValueError as error:
        raise SpecError(f"{what} has a column that job specs cannot describe", detail=str(error)) from error
