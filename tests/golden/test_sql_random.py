"""Random expressions over random rows, nulls and all: as DuckDB has them."""

from __future__ import annotations

import math
import random
import re
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, Final

import duckdb
import polars as pl
import pytest

from headrace.jobs.sql.dialect import parse
from headrace.jobs.sql.expressions import row_text
from operators.expressions import row_expression

LEAVES: Final = {
    "int": ["a", "b", "a", "2", "0"],
    "float": ["x", "y", "x"],
    "text": ["s", "t", "s", "'a'", "'it''s'"],
    "bool": ["p", "q", "p"],
}
PARTS: Final = {
    "int": """({int} + {int}) | {int} - {int} | {int} * {int} | {int} % 3 | MOD({int}, {int}) | (-{int}) | ABS({int})
        CASE WHEN {bool} THEN {int} ELSE {int} END | CASE {int} WHEN 1 THEN {int} WHEN 2 THEN 7 END
        COALESCE({int}, {int})
        CHAR_LENGTH({text}) | NULLIF({int}, {int}) | GREATEST({int}, {int}) | LEAST({int}, {int})
        IF({bool}, {int}, {int})
        EXTRACT(HOUR FROM ts) * 60 + MINUTE(ts) | YEAR(d) * 1000000 | QUARTER(d) | DAYOFYEAR(ts)
        STRPOS(s, 'b') - {int}
        CAST({bool} AS INT) | CAST(FLOOR({int} / 2) AS BIGINT)""",
    "float": """({float} + {int}) | {float} * {float} | ({float} / {float}) | {int} / {int} | ROUND({float})
        FLOOR({float})
        CEIL({float}) | CAST({int} AS DOUBLE) | CASE WHEN {bool} THEN {float} END | COALESCE({float}, {int})
        SQRT(ABS({float})) | POWER(x, 2)""",
    "text": """{text} || {text} | UPPER({text}) | LOWER({text}) | REVERSE({text}) | TRIM({text}) | LTRIM({text}, 'a')
        CONCAT({text}, {text}) | CONCAT_WS('-', {text}, {text}) | SUBSTRING({text}, {int}) | SUBSTRING({text}, {int}, 2)
        LEFT({text}, {int}) | RIGHT({text}, {int}) | TRIM(LEADING 'a' FROM {text}) | REPLACE({text}, 'a', {text})
        CASE WHEN {bool} THEN {text} ELSE {text} END | COALESCE({text}, {text}) | CAST({int} AS VARCHAR)
        CAST(d AS VARCHAR) | SPLIT_PART({text}, 'b', 1)""",
    "bool": """({bool} AND {bool}) | {bool} OR {bool} | NOT {bool} | (NOT ({bool})) | {int} < {int} | {int} = {int}
        {float} <> {float} | {float} >= {int} | {text} < {text} | {text} = {text} | {int} IN ({int}, 1)
        ({bool}) = ({bool})
        {int} IN ({int}, NULL, 3) | {int} NOT IN (1, NULL) | {int} NOT IN (1, {int}) | {int} BETWEEN {int} AND {int}
        {int} NOT BETWEEN 0 AND {int} | {text} IS NULL | {bool} IS NOT NULL | {text} LIKE 'a%' | {text} NOT LIKE '%b'
        {text} LIKE 'a!%%' ESCAPE '!' | {text} ILIKE 'A_b' | ({bool}) IS TRUE | ({bool}) IS NOT FALSE | {bool} IS FALSE
        {int} IS DISTINCT FROM {int} | {int} IS NOT DISTINCT FROM a | ts > TIMESTAMPTZ '1970-03-01 00:00:00'
        ts + INTERVAL '1' DAY > ts | DATE_TRUNC('day', ts) = ts | CAST(ts AS DATE) = d | d > DATE '1970-03-01'
        STARTS_WITH({text}, 'a') | CONTAINS({text}, 'a')""",
}
CHOICES: Final = {
    kind: [part.strip() for part in re.split(r"\||\n", text.replace("||", "\0"))] for kind, text in PARTS.items()
}


def made(dice: random.Random, kind: str, depth: int) -> str:
    """A random expression of a kind."""
    if not depth:
        return dice.choice(LEAVES[kind])
    part = dice.choice(CHOICES[kind]).replace("\0", "||")
    return re.sub(r"\{(\w+)\}", lambda match: made(dice, match[1], dice.randrange(depth)), part)


def rows(dice: random.Random) -> pl.DataFrame:
    start = datetime(1969, 12, 30, tzinfo=UTC)

    def some(make: Any) -> list[Any]:
        return [None if dice.random() < 0.2 else make() for _ in range(40)]

    return pl.DataFrame(
        {
            **{name: some(lambda: dice.randint(-5, 9)) for name in "ab"},
            **{name: some(lambda: dice.choice([0.0, 1.5, -2.5, 0.5, 3.25, 100.0])) for name in "xy"},
            **{name: some(lambda: dice.choice(["", "a", "ab", "a%b", "a\nb", "Ünï", " pad ", "10"])) for name in "st"},
            **{name: some(lambda: dice.random() < 0.5) for name in "pq"},
            "ts": some(lambda: start + timedelta(seconds=dice.randint(0, 86_400 * 400), microseconds=7)),
            "d": some(lambda: date(1969, 11, 1) + timedelta(days=dice.randint(0, 900))),
        }
    )


def plain(value: Any) -> Any:
    """Numbers as floats of less digits, with one zero."""
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        return value
    number = float(value)
    return number if math.isinf(number) else "nan" if math.isnan(number) else round(number, 6) + 0.0


@pytest.mark.parametrize("seed", range(3))
def test_expressions_give_what_duckdb_gives(seed: int) -> None:
    dice = random.Random(seed)
    frame = rows(dice)
    compared = 0
    with duckdb.connect() as connection:
        connection.execute("set timezone = 'UTC'")
        connection.register("r", frame.to_arrow())
        for _ in range(100):
            text = made(dice, dice.choice(list(CHOICES)), dice.randint(1, 3))
            try:
                wanted = [plain(value) for (value,) in connection.execute(f"SELECT {text} FROM r").fetchall()]
            except duckdb.Error:
                continue  # a type, a sum or a power that it refuses
            query = parse(f"SELECT {text} AS z FROM r")[0]
            expr = row_expression(row_text(query.expressions[0].this), "test").expr
            found = [plain(value) for value in frame.lazy().select(expr.alias("z")).collect()["z"]]
            assert (found if len(found) == len(wanted) else found * len(wanted)) == wanted, text
            compared += 1
    assert compared > 80
