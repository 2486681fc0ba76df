"""Tables that are loaded again: when, and what a failure does; and the mapping of PostgreSQL's errors."""

from __future__ import annotations

import threading

import polars as pl
import pytest

from headrace.kernel import errors
from headrace.kernel.errors import NotFoundError, SchemaError, UnavailableError
from headrace.kernel.protocols import Determinism
from headrace.testing import ManualClock
from hybrid_source.postgres_errors import mapped
from hybrid_source.refreshed_table import RefreshedTable, as_before
from operators.lookup import LookupJoin
from operators.refreshed_lookup import RefreshedLookup

SECOND = 1_000_000
MINUTE = 60 * SECOND


class Loads:
    """A table whose every load is another version."""

    def __init__(self) -> None:
        self.count = 0
        self.error: Exception | None = None

    def __call__(self) -> pl.DataFrame:
        if self.error is not None:
            raise self.error
        self.count += 1
        return pl.DataFrame({"k": ["a"], "v": [self.count]})


def test_a_table_is_loaded_again_once_it_is_old() -> None:
    clock, loads = ManualClock(), Loads()
    table = RefreshedTable(loads, MINUTE, clock)
    first = table.rows()
    clock.advance(59 * SECOND)
    assert table.rows() is first
    clock.advance(1 * SECOND)
    assert table.rows()["v"].to_list() == [2]


def test_a_table_without_refresh_is_loaded_once() -> None:
    clock, loads = ManualClock(), Loads()
    table = RefreshedTable(loads, None, clock)
    first = table.rows()
    clock.advance(10**9 * SECOND)
    assert table.rows() is first


def test_while_the_server_does_not_answer_rows_are_used_up_to_twice_their_time() -> None:
    clock, loads = ManualClock(), Loads()
    table = RefreshedTable(loads, MINUTE, clock)
    table.rows()
    loads.error = UnavailableError("down")
    clock.advance(61 * SECOND)
    assert table.rows()["v"].to_list() == [1]
    loads.error = NotFoundError("not asked for again so soon")
    assert table.rows()["v"].to_list() == [1]
    clock.advance(6 * SECOND)
    with pytest.raises(NotFoundError):
        table.rows()
    loads.error = UnavailableError("down")
    clock.advance(60 * SECOND)
    with pytest.raises(UnavailableError):
        table.rows()
    loads.error = None
    assert table.rows()["v"].to_list() == [2]


def test_a_first_load_that_fails_is_told() -> None:
    loads = Loads()
    loads.error = UnavailableError("down")
    with pytest.raises(UnavailableError):
        RefreshedTable(loads, MINUTE, ManualClock()).rows()


def test_threads_that_ask_together_load_once() -> None:
    loads = Loads()
    table = RefreshedTable(loads, MINUTE, ManualClock())
    threads = [threading.Thread(target=table.rows) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert loads.count == 1


def test_the_join_uses_what_the_table_is_now() -> None:
    clock, loads = ManualClock(), Loads()
    table = RefreshedTable(loads, MINUTE, clock)
    join = RefreshedLookup("l", table.rows, lambda rows: LookupJoin("l", rows, "k"))
    assert join.determinism is Determinism.NOT_INVARIANT
    rows = pl.LazyFrame({"k": ["a", "b"]})
    assert join.apply(rows).collect()["v"].to_list() == [1, None]
    clock.advance(60 * SECOND)
    assert join.apply(rows).collect()["v"].to_list() == [2, None]


def test_a_table_that_has_other_columns_than_at_the_start_is_refused() -> None:
    schema = pl.Schema({"k": pl.String(), "v": pl.Int64()})
    assert as_before("t", pl.DataFrame({"v": [1], "x": [2], "k": ["a"]}), schema).columns == ["k", "v"]
    with pytest.raises(SchemaError, match="lookup table t has changed") as caught:
        as_before("t", pl.DataFrame({"k": [1]}), schema)
    assert caught.value.detail == "k was String, is Int64; v was Int64, is gone"


class SaidError(Exception):
    """What psycopg2 raises, as far as the mapping looks at it."""

    def __init__(self, text: str, pgcode: str | None = None) -> None:
        super().__init__(text)
        self.pgcode = pgcode


@pytest.mark.parametrize(
    ("said", "kind", "code"),
    [
        (SaidError("x", "42P01"), errors.NotFoundError, "TABLE_NOT_FOUND"),
        (SaidError("x", "3F000"), errors.NotFoundError, "TABLE_NOT_FOUND"),
        (SaidError("x", "42501"), errors.AccessDeniedError, ""),
        (SaidError("x", "28P01"), errors.AccessDeniedError, ""),
        (SaidError("x", "42601"), errors.SpecError, "LOOKUP_QUERY_INVALID"),
        (SaidError("x", "25006"), errors.SpecError, "LOOKUP_QUERY_INVALID"),
        (SaidError("x", "22012"), errors.DataError, "LOOKUP_QUERY_FAILED"),
        (SaidError("x", "57P01"), errors.UnavailableError, ""),
        (SaidError("x", "XX000"), errors.ExternalError, "POSTGRES_ANSWER"),
        (SaidError('FATAL:  password authentication failed for user "u"'), errors.AccessDeniedError, ""),
        (SaidError('FATAL:  database "d" does not exist'), errors.NotFoundError, "DATABASE_NOT_FOUND"),
        (SaidError('FATAL:  role "r" does not exist'), errors.AccessDeniedError, ""),
        (SaidError("connection refused"), errors.UnavailableError, ""),
    ],
)
def test_errors_of_postgres_are_told_apart(said, kind, code) -> None:
    found = mapped(said, "lookup table t")
    assert type(found) is kind
    assert found.code == code or not code
    assert found.hint or kind is errors.ExternalError
