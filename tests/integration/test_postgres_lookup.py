"""Lookups in a real PostgreSQL: types, refusals, and a job that follows a table by ``refresh``."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import psycopg2
import pytest

import headrace
from headrace.jobs.compile import compile_job
from headrace.jobs.config import load_config
from headrace.jobs.planning import plan_job
from headrace.jobs.run import run_job
from headrace.kernel.errors import (
    AccessDeniedError,
    ConfigError,
    HeadraceError,
    NotFoundError,
    SchemaError,
    SpecError,
    UnavailableError,
)
from headrace.kernel.protocols import Determinism
from headrace.runtime.job import RunOptions
from headrace.runtime.observer import SilentObserver, StopSignal
from hybrid_source.postgres_lookup import PostgresLookup
from tests.services import Stack

pytestmark = pytest.mark.services

DRIVER = "postgresql+psycopg2://"


@pytest.fixture(scope="module")
def url(stack: Stack) -> str:
    found = stack.endpoints.postgres_uri
    if not found:
        pytest.skip("no PostgreSQL on this machine")
    return found


@pytest.fixture
def database(url: str) -> Iterator[Any]:
    """A connection, in a schema of its own."""
    connection = psycopg2.connect(url.replace(DRIVER, "postgresql://"))
    connection.autocommit = True
    name = f"s{uuid.uuid4().hex[:12]}"
    with connection.cursor() as cursor:
        cursor.execute(f"CREATE SCHEMA {name}")
        cursor.execute(f"SET search_path TO {name}")
        yield cursor
        cursor.execute(f"DROP SCHEMA {name} CASCADE")
    connection.close()


def schema_of(cursor: Any) -> str:
    cursor.execute("SELECT current_schema()")
    return str(cursor.fetchone()[0])


def test_types_come_as_they_are(url, database) -> None:
    database.execute(
        "CREATE TABLE t (i2 smallint, i4 int, i8 bigint, f4 real, f8 float8, n numeric(18, 4), b bool, s text, "
        "v varchar(9), d date, t time, ts timestamp, tz timestamptz, u uuid, x bytea)"
    )
    database.execute(
        "INSERT INTO t VALUES (1, -2, 9007199254740993, 0.5, 0.1, 12.3456, true, 'ü', 'v', '1969-12-31', "
        "'01:02:03.000004', '1969-12-31 23:59:59.999999', '2024-03-31 03:00+02', "
        "'00000000-0000-0000-0000-000000000001', '\\x00ff')"
    )
    database.execute("INSERT INTO t DEFAULT VALUES")
    lookup = PostgresLookup("t", url, f"{schema_of(database)}.t")
    rows = lookup.load(lookup.pin())
    assert rows.schema == lookup.schema
    assert rows.schema["n"] == pl.Decimal(18, 4)
    assert rows.schema["tz"] == pl.Datetime("us", "UTC")
    assert rows.row(0) == (
        1, -2, 9007199254740993, 0.5, 0.1, Decimal("12.3456"), True, "ü", "v", date(1969, 12, 31), time(1, 2, 3, 4),
        datetime(1969, 12, 31, 23, 59, 59, 999999),  # noqa: DTZ001 - a timestamp without zone
        datetime(2024, 3, 31, 1, tzinfo=UTC),
        "00000000-0000-0000-0000-000000000001", b"\x00\xff",
    )  # fmt: skip
    assert rows.row(1) == (None,) * 15


def refused(lookup: PostgresLookup) -> HeadraceError:
    with pytest.raises(HeadraceError) as caught:
        lookup.load({})
    return caught.value


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("'NaN'::numeric(10, 2)", "column 'a' holds NaN or Infinity"),
        ("'0044-03-15 BC'::date", "year -44 is out of range"),
        ("'12026-01-01'::timestamptz", "year 12026 is out of range"),
    ],
)
def test_values_that_do_not_fit_are_refused_not_changed(url, value: str, said: str) -> None:
    error = refused(PostgresLookup("t", url, query=f"SELECT {value} AS a"))
    assert type(error) is SchemaError
    assert said in str(error)


def test_what_cannot_be_is_told_with_its_cure(url, database) -> None:
    secret = url.rpartition("@")[0].rpartition(":")[2]
    assert type(refused(PostgresLookup("t", url, "nowhere"))) is NotFoundError
    assert type(refused(PostgresLookup("t", url, query="SELECT 1 FROM"))) is SpecError
    assert "semicolon" in str(refused(PostgresLookup("t", url, query="SELECT 1; DROP TABLE t")))
    assert "oid" in (refused(PostgresLookup("t", url, query="SELECT ARRAY[1] AS a")).detail or "")
    assert "numeric" in (refused(PostgresLookup("t", url, query="SELECT 1::numeric AS a")).detail or "")
    assert "twice" in str(refused(PostgresLookup("t", url, query="SELECT 1 AS a, 2 AS a")))
    wrong = [
        (url.replace(secret, "wrong"), AccessDeniedError),
        (url.rpartition("/")[0] + "/nowhere", NotFoundError),
        ("postgresql://u:secret@127.0.0.1:1/d", UnavailableError),
        ("mysql://u:secret@127.0.0.1/d", ConfigError),
    ]
    for address, kind in wrong:
        error = refused(PostgresLookup("t", address, "t"))
        assert type(error) is kind
        assert "secret" not in str(error.to_dict())
        assert secret not in str(error.to_dict())
    database.execute("CREATE SEQUENCE counter")
    error = refused(PostgresLookup("t", url, query=f"SELECT nextval('{schema_of(database)}.counter') AS n"))
    assert (type(error), error.code) == (SpecError, "LOOKUP_QUERY_INVALID")


def test_a_job_joins_with_the_table_as_it_is_when_it_runs(url, database, tmp_path: Path) -> None:
    database.execute("CREATE TABLE rates (k text, rate numeric(9, 2))")
    database.execute("INSERT INTO rates VALUES ('a', 1.5)")
    pl.DataFrame({"k": ["a", "b"], "n": [1, 2]}).write_parquet(tmp_path / "in.parquet")
    where = {"url": url, "query": f"SELECT * FROM {schema_of(database)}.rates WHERE rate > 0"}
    found = []
    for uid in ("first", "second"):
        job = (
            headrace.Job("j", uid=uid)
            .source("s", history={"parquet": f"{tmp_path}/in.parquet"})
            .table("rates", postgres=where, refresh="10m")
            .lookup("rates", on="k", id="rated")
            .sink_iceberg(f"local.ns.{uid}", create=True)
        )
        made = compile_job(job.spec(), load_config(state_path=tmp_path / "state", cwd=tmp_path))
        plan = plan_job(made)
        assert plan.tables == {"rates": "postgres query"}
        assert plan.operators[0].determinism is Determinism.NOT_INVARIANT
        run_job(made.spec, made.config, RunOptions("caught-up"), SilentObserver(), StopSignal())
        rows = pl.from_arrow(made.catalogs.load(f"local.ns.{uid}").scan().to_arrow())
        found.append(dict(rows.select("k", "rate").rows()))
        database.execute("INSERT INTO rates VALUES ('b', 2.5)")
    assert found == [{"a": Decimal("1.50"), "b": None}, {"a": Decimal("1.50"), "b": Decimal("2.50")}]
