"""Catalogs by name, tables by full name, partition fields by text."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import polars as pl
import pytest

from catalog.catalogs import Catalogs, TableName, sqlite_options
from catalog.partitioning import partition_spec
from catalog.schemas import to_iceberg
from catalog.tables import create_table
from headrace.kernel.errors import HeadraceError, NotFoundError, SpecError


@pytest.fixture
def catalogs(tmp_path: Path) -> Catalogs:
    return Catalogs({"lake": sqlite_options(tmp_path / "not" / "there" / "yet")})


def test_names() -> None:
    name = TableName.parse("lake.a.b.t")
    assert (name.catalog, name.namespace, name.table) == ("lake", ("a", "b"), "t")
    assert str(name) == "lake.a.b.t"
    for wrong in ("", "t", "lake.t", "lake..t", "lake.ns.", "lake. ns.t"):
        with pytest.raises(SpecError, match=r"no table name"):
            TableName.parse(wrong)


def test_unknown_things_are_named_with_what_there_is(catalogs: Catalogs) -> None:
    def code(name: str) -> tuple[str, str]:
        with pytest.raises(NotFoundError) as caught:
            catalogs.load(name)
        return caught.value.code, caught.value.hint

    assert code("lik.flights.hourly") == (
        "CATALOG_NOT_FOUND",
        "did you mean lake? catalogs: lake; or add [catalogs.lik] to headrace.toml",
    )
    found, hint = code("lake.flights.hourly")
    assert found == "NAMESPACE_NOT_FOUND"
    assert "there are no namespaces" in hint
    create_table(catalogs, "lake.flights.hourly", {"a": pl.Int64()})
    found, hint = code("lake.flights.hourli")
    assert found == "TABLE_NOT_FOUND"
    assert "did you mean hourly?" in hint
    found, hint = code("lake.flight.hourly")
    assert found == "NAMESPACE_NOT_FOUND"
    assert "did you mean flights?" in hint


def test_a_namespace_of_several_levels(catalogs: Catalogs) -> None:
    create_table(catalogs, "lake.a.b.c.t", {"a": pl.Int64()})
    assert catalogs.load("lake.a.b.c.t").name() == ("a", "b", "c", "t")


def test_a_new_catalog_may_be_opened_by_many_at_once(tmp_path: Path) -> None:
    with ThreadPoolExecutor(6) as pool:
        for number in range(20):
            options = sqlite_options(tmp_path / str(number))
            gate = threading.Barrier(6)

            def first(_: int, options: dict[str, str] = options, gate: threading.Barrier = gate) -> None:
                catalogs = Catalogs({"lake": options})
                gate.wait()
                assert catalogs.catalog("lake").list_namespaces() == []
                catalogs.close()

            list(pool.map(first, range(6)))


def test_a_catalog_that_is_down_or_wrongly_configured() -> None:
    down = Catalogs({"rest": {"type": "rest", "uri": "http://127.0.0.1:9"}})
    with pytest.raises(HeadraceError) as caught:
        down.load("rest.a.t")
    assert caught.value.code == "UNAVAILABLE"
    for options in ({"type": "sql"}, {}, {"type": "sql", "uri": "nonsense://x"}, {"type": "nope"}):
        with pytest.raises(HeadraceError) as caught:
            Catalogs({"x": options}).load("x.a.t")
        assert caught.value.domain == "user"


SCHEMA = to_iceberg({"ts": pl.Datetime("us"), "id": pl.Int64(), "name": pl.String(), "s": pl.Struct({"c": pl.Date()})})


def test_partition_fields() -> None:
    spec = partition_spec(["day(ts)", "bucket(16, id)", "truncate(4,name)", "id", "months( s.c )"], SCHEMA)
    assert [(field.name, str(field.transform)) for field in spec.fields] == [
        ("ts_day", "day"),
        ("id_bucket", "bucket[16]"),
        ("name_trunc", "truncate[4]"),
        ("id", "identity"),
        ("s_c_month", "month"),
    ]


@pytest.mark.parametrize("text", ["", "day(", "day(nope)", "week(ts)", "day(id)", "bucket(id)", "s", "day(3, ts)"])
def test_partition_fields_that_are_none(text: str) -> None:
    with pytest.raises(SpecError) as caught:
        partition_spec([text], SCHEMA)
    assert caught.value.code == "PARTITION_INVALID"
