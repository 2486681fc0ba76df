"""The case TYP-05: rows of history and tail have one schema, the job's, before anything puts them together."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import polars as pl
import pytest
from polars.testing import assert_frame_equal

import headrace
from headrace.jobs.compile import compile_job
from headrace.jobs.config import load_config
from headrace.kernel.errors import SpecError
from headrace.kernel.protocols import MAIN
from headrace.testing import operator_context
from hybrid_source.decode import JsonDecoder
from operators.window import TumblingWindow

SCHEMA = pl.Schema({"at": pl.Datetime("us", "UTC"), "price": pl.Decimal(10, 2), "n": pl.Int64()})
BIG = 9_007_199_254_740_993
HISTORY = pl.DataFrame(
    {"at": [datetime(2024, 1, 1, 0, 0, 0, 123_456, UTC)], "price": [Decimal("1.10")], "n": [BIG]}, schema=SCHEMA
)
TAIL = [
    b'{"at": "2024-01-01T00:00:01.250Z", "price": 1.1, "n": 9007199254740993}',
    b'{"at": "2024-01-01T00:00:01Z", "price": 1.1234, "n": 1}',
    b'{"at": "2024-01-01T00:00:02Z", "price": 2, "n": 0.5}',
    b'{"at": "2024-01-01T00:00:05Z", "price": 99999999.99, "n": -1}',
    b'{"at": "2024-01-01T00:00:06Z", "price": 100000000, "n": 1}',
]


def test_typ_05_a_tail_row_that_does_not_fit_is_an_error_row_and_the_rest_keeps_every_digit() -> None:
    decoded = JsonDecoder(SCHEMA).decode(TAIL)
    assert decoded.frame.schema == SCHEMA
    assert [index for index, _ in decoded.errors] == [1, 2, 4]
    both = pl.concat([HISTORY, decoded.frame])
    assert [at.microsecond for at in both["at"]] == [123_456, 250_000, 0]
    assert both["price"].to_list() == [Decimal("1.10"), Decimal("1.10"), Decimal("99999999.99")]
    assert both["n"].to_list() == [BIG, BIG, -1]


def test_typ_05_a_window_over_both_parts_equals_one_over_their_union() -> None:
    tail = JsonDecoder(SCHEMA).decode(TAIL).frame
    aggregates = {"n": "sum(n)", "price": "sum(price)", "first": "first(at)", "high": "max(price)"}
    operator = TumblingWindow("w", "at", 60_000_000, aggregates)
    outs = []
    for parts in ([HISTORY, tail], [tail, HISTORY], [pl.concat([HISTORY, tail])]):
        instance = operator.open(operator.partial(HISTORY.lazy()).collect_schema(), operator_context())
        for part in parts:
            instance.process(operator.partial(part.lazy()).collect())
        outs.append(instance.drain()[MAIN])
    assert_frame_equal(outs[0], outs[1])
    assert_frame_equal(outs[0], outs[2])
    assert outs[0].select("n", "price", "high").row(0) == (2 * BIG - 1, Decimal("100000002.19"), Decimal("99999999.99"))
    assert outs[0]["first"].item() == HISTORY["at"].item()


@pytest.mark.parametrize(("column", "stated"), [("price", "decimal(12,4)"), ("n", "double"), ("at", "timestamp")])
def test_typ_05_a_tail_of_other_types_than_the_history_is_refused(tmp_path: Path, column: str, stated: str) -> None:
    HISTORY.write_parquet(tmp_path / "in.parquet")
    types = {"at": "timestamptz", "price": "decimal(10,2)", "n": "long"} | {column: stated}
    job = (
        headrace.Job("j")
        .source(
            "s",
            history={"parquet": f"{tmp_path}/in.parquet"},
            tail={"topic": "t", "schema": types},
            boundary={"offsets": {"0": 0}},
        )
        .sink_iceberg("local.ns.out", create=True)
    )
    config = load_config(state_path=tmp_path / "state", cwd=tmp_path)
    with pytest.raises(SpecError, match=f"column '{column}' is .* in the tail"):
        compile_job(job.spec(), config)
