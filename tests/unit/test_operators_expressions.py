"""Row expressions: what parses, what is refused, what the errors say."""

from __future__ import annotations

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.kernel.errors import SchemaError, SpecError
from headrace.kernel.protocols import Determinism
from operators.errors import computing, planning
from operators.expressions import FUNCTIONS, row_expression

ROW = {"a": 7, "b": 2, "s": "Ab", "n": None, "l": [1, 2], "now": 1, "f": 0.5}
WHERE = "step 'x'"


def value(text: str):
    return pl.DataFrame([ROW], schema_overrides={"n": pl.Int64}).select(row_expression(text, WHERE).expr).item()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a + b * 2", 11),
        ("a / b", 3.5),
        ("a // b", 3),
        ("-a // b", -3),
        ("-a % b", -1),
        ("a % b", 1),
        ("-a", -7),
        ("a in (1, 7)", True),
        ("(a between 1 and 9) and not (n is not null)", True),
        ("n is null", True),
        ("n > 1", None),
        ("n > 1 is true", False),
        ("(n > 1) is not true or a = 0", True),
        ("not n > 1 is false", True),
        ("a not in (1, 2) is true", True),
        ("a between 1 and 2 is not false and b = 2", False),
        ("b = 2 and a between 1 and 9 is true", True),
        ("case when n > 1 is not true and b = 2 then s end is not distinct from 'Ab' and b = 2", True),
        ("n is distinct from a and b = 3", False),
        ("b = 3 or n is distinct from a", True),
        ("n is not distinct from a or b = 2", True),
        ("coalesce(n is distinct from a, b = 3)", True),
        ("n is distinct from case when b = 2 then a end and b = 3", False),
        ("coalesce(n, a)", 7),
        ("case when (a > 1) then 'x' else s end", "x"),
        ("lower(s) || 'select now()'", "abselect now()"),
        ("cast(a as varchar(10))", "7"),
        ("try_cast(s as int)", None),
        ('"now" + 1', 2),
        ("s like 'A%'", True),
        ("greatest(a, b)", 7),
        ("l[1]", 1),
        ("substring(s from 1 for 1)", "A"),
        ("'it''s'", "it's"),
        ("a as renamed", 7),
        ("extract(year from date '2020-01-01')", 2020),
        ("round(f, 1)", 0.5),
        ("round(cast(2.5 as double)) - round(cast(-2.5 as double), 0)", 6.0),
        ("round(cast(1.25 as double), 1)", 1.3),
        ("left(s, 0)", ""),
        ("left(try_cast(null as varchar), 0)", None),
        ("left(s, -1) || right(s, 1) || right(s, 0)", "Ab"),
        ("null is true", False),
        ("a is distinct from (b + 0) and b is not distinct from (2)", True),
        ("'<' || trim('  a ') || ltrim('  a ') || rtrim('xay', 'yx') || trim(both 'x' from 'xax') || '>'", "<aa xaa>"),
        ("trim(leading from ' a ') || trim(trailing 'z' from 'az')", "a a"),
        ("substring(s, b - 2)", "Ab"),
        ("substring(s, b - 2, 2) || substr(s, 2, 9) || substring(s, -1, 1)", "Abb"),
        ("substring(s, try_cast(null as bigint))", None),
        ("cast(a is distinct from b as int)", 1),
        (
            "extract(hour from timestamp '2020-01-01 23:59:00') * 60 + date_part('day', date '2020-01-09')",
            1389,
        ),
        ("extract(epoch from timestamp '1970-01-01 00:00:02')", 2.0),
        ("char_length(s) - 5 + length(s) * 10 - octet_length(s) - array_length(l) * 0", 15),
        ("-strpos(s, 'z') - position('b' in s)", -2),
        ("replace(s, 'b', try_cast(null as varchar))", None),
        ("replace(s, '', 'x')", "Ab"),
        ("replace(s, 'b', s)", "AAb"),
        ("(a > 1) is true is not false", True),
    ],
)
def test_sql_text_gives_what_sql_says(text: str, expected: object) -> None:
    assert value(text) == expected


REFUSED = [
    ("now()", "time of day"),
    ("a > now ()", "time of day"),
    ('"now"()', "not supported"),
    ("x.now()", "time of day"),
    ("`now`()", "not supported"),
    ("CURRENT_TIMESTAMP", "time of day"),
    ("current_date + 1", "time of day"),
    ("localtime", "time of day"),
    ("random()", "another value each time"),
    ("sum(a)", "aggregate"),
    ("a - avg(a)", "aggregate"),
    ("row_number() over (partition by a)", "not supported"),
    ("max (a) over (partition by b)", "aggregate"),
    ("abs(a) over (partition by b)", "window function"),
    ("a in (select 1)", "a query"),
    ("a in (values (1))", "a query"),
    ("a in (table t)", "a query"),
    ("a in (from read_csv('/etc/passwd'))", "a query"),
    ("a is distinct from (from read_csv('/etc/passwd'))", "a query"),
    ("a is distinct from (select 1)", "a query"),
    ("a from (b)", "not supported"),
    ("a in ( /* */ from t)", "holds '/\\*'"),
    ("array(from read_parquet('x'))", "a query"),
    ("read_csv('/etc/passwd')", "not supported"),
    ("exists (select 1)", "a query"),
    ("unnest(l)", "not supported"),
    ("columns('a.*')", "not supported"),
    ("a -- comment", "comments"),
    ("$$now()$$", "dollar"),
    ("$q$ x $q$", "dollar"),
    ("e'\\n'", "literal prefix 'e'"),
    ("q'[a]'", "literal prefix 'q'"),
    ("s = 'open", "not closed"),
    ('"open', "not closed"),
    ("frobnicate(a)", r"frobnicate\(\), which is not supported"),
]


@pytest.mark.parametrize("name", ["user", "offset", "limit", "group", "order", "current_user", "session_user", "User"])
def test_columns_may_have_the_names_of_key_words_that_mean_nothing_here(name: str) -> None:
    row = pl.DataFrame({name: [7], "at": [{name: 1}]})
    for text in (name, f'"{name}"', f"abs({name}) + coalesce(null, 0)", f"case when {name} > 1 then {name} else 0 end"):
        assert row.select(row_expression(text, WHERE).expr).item() == 7
    assert row.select(row_expression(f"at.{name}", WHERE).expr).item() == 1
    assert row.select(row_expression(f"'{name}'", WHERE).expr).item() == name


@pytest.mark.parametrize(("text", "message"), REFUSED)
def test_text_outside_the_allow_list_is_refused_before_polars_sees_it(text: str, message: str, monkeypatch) -> None:
    monkeypatch.setattr(pl, "sql_expr", lambda _: pytest.fail("parsed"))
    with pytest.raises(SpecError, match=message) as caught:
        row_expression(text, WHERE)
    assert caught.value.code == "EXPRESSION_NOT_ALLOWED"
    assert caught.value.message.startswith(WHERE)


@pytest.mark.parametrize("text", ["a >", "", "a, b", "*", "a b c", "case when a", "{", "(a"])
def test_text_that_does_not_parse_is_named(text: str) -> None:
    with pytest.raises(SpecError) as caught:
        row_expression(text, WHERE)
    assert caught.value.code == "EXPRESSION_INVALID"
    assert repr(text) in caught.value.message


@settings(max_examples=60, deadline=None)
@given(st.text(alphabet="abn()'\"`$-/*,. ;\\=><0123\n[]{}#", max_size=30) | st.text(max_size=20))
def test_any_text_gives_an_expression_or_a_spec_error(text: str) -> None:
    try:
        row_expression(text, WHERE)
    except SpecError as error:
        assert error.hint  # noqa: PT017 - both outcomes are right


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(["now()", "current_date", "x in (select 1)", "random()"]), st.sampled_from(["'", '"', "`"]))
def test_quoting_is_seen_as_the_parser_sees_it(text: str, quote: str) -> None:
    """Inside quotes it is a value or a name; behind a closed quote it is code again."""
    row_expression(f"a = {quote}{text}{quote}", WHERE)
    with pytest.raises(SpecError):
        row_expression(f"a = {quote}x{quote} or {text}", WHERE)


def test_polars_expressions_pass_the_same_check() -> None:
    assert row_expression(pl.col("a") + 1, WHERE).determinism is Determinism.EXACT
    with pytest.raises(SpecError, match="an aggregate"):
        row_expression(pl.col("a") - pl.col("a").mean(), WHERE)


def test_python_functions_make_an_expression_not_invariant() -> None:
    found = row_expression(pl.col("a").map_elements(lambda v: v, return_dtype=pl.Int64), WHERE)
    assert found.determinism is Determinism.NOT_INVARIANT


def test_unknown_columns_are_named_with_what_comes_close() -> None:
    schema = pl.Schema({"carrier": pl.String(), "delay": pl.Int64()})
    with pytest.raises(SpecError) as caught, planning(WHERE, schema.names()):
        pl.LazyFrame(schema=schema).filter(row_expression("carier = 'UA'", WHERE).expr).collect_schema()
    error = caught.value
    assert error.code == "COLUMN_NOT_FOUND"
    assert error.context == {"column": "carier", "columns": ["carrier", "delay"], "close": ["carrier"]}
    assert "columns: carrier, delay" in error.detail
    assert error.hint == "did you mean 'carrier'?"


def test_types_that_do_not_fit_are_told_without_the_plan() -> None:
    with pytest.raises(SpecError) as caught, planning(WHERE, ["a"]):
        pl.LazyFrame(schema={"a": pl.Int64}).select(pl.col("a") + "x").collect_schema()
    assert caught.value.code == "EXPRESSION_INVALID"
    assert "\n" not in caught.value.detail


def test_a_value_that_does_not_fit_is_a_data_error() -> None:
    frame = pl.LazyFrame({"s": ["1", "x"]})
    with pytest.raises(SchemaError, match="step 'x'") as caught, computing(WHERE):
        frame.select(row_expression("cast(s as int)", WHERE).expr).collect()
    assert caught.value.code == "VALUE_INVALID"
    assert frame.select(row_expression("try_cast(s as int)", WHERE).expr).collect().to_series().to_list() == [1, None]


TWO = """
array_contains atan2 atan2d bit_and bit_or bit_xor div ends_with mod nullif pow power starts_with strpos xor ifnull log
"""
ARGUMENTS = {
    "pi": "",
    **dict.fromkeys(TWO.split(), "x, y"),
    "array_get": "x, 1",
    "array_to_string": "x, ','",
    "concat_ws": "',', x",
    "date_bin": "'10m', x",
    "date_trunc": "'hour', x",
    "if": "x, y, z",
    "left": "x, 1",
    "regexp_extract": "x, 'a(b)', 1",
    "regexp_like": "x, 'a'",
    "regexp_replace": "x, 'a', 'b'",
    "replace": "x, 'y', z",
    "right": "x, 1",
    "split_part": "x, ',', 1",
    "strftime": "x, '%Y'",
    "string_to_array": "x, ','",
    "strptime": "x, '%Y'",
    "substr": "x, 1, 2",
}
SPECIAL = {"cast", "try_cast", "safe_cast", "extract", "position", "trim", "substring", "date_part"}


@pytest.mark.parametrize("function", sorted(FUNCTIONS - SPECIAL))
def test_every_allowed_function_is_known_to_polars_and_row_wise(function: str) -> None:
    row_expression(f"{function}({ARGUMENTS.get(function, 'x')})", WHERE)


@pytest.mark.parametrize(
    "length",
    [
        "1000001 days",
        "300000 years",
        "99999999999999999999 seconds",
        "9223372036854775807 seconds",
        "2400001 hours",
        "900001 days 2400000 hours",
        "1 day 999999 days 25 hours",
        "99999999999999999999 d",
        "99999999999999999999999 microseconds",
    ],
)
def test_an_interval_that_does_not_fit_is_refused_and_no_other_time(length: str) -> None:
    with pytest.raises(SpecError, match=f"holds the interval '{length}'") as caught:
        row_expression(f"t + interval '{length}'", "step 's'")
    assert "1000000 days" in caught.value.hint


@pytest.mark.parametrize(
    ("length", "us"),
    [
        ("1000000 days", 10**6 * 86_400 * 10**6),
        ("3 months", 90 * 86_400 * 10**6),
        ("8640000000000 milliseconds", 10**5 * 86_400 * 10**6),
        ("2400000 hours", 10**5 * 86_400 * 10**6),
        ("900000 days 2400000 hours", 10**6 * 86_400 * 10**6),
        ("5 minutes 3 seconds", 303 * 10**6),
        ("9 microseconds", 9),
    ],
)
def test_intervals_that_fit_are_added(length: str, us: int) -> None:
    rows = pl.DataFrame({"t": [0]}).cast(pl.Datetime("us"))
    found = rows.select(row_expression(f"t + interval '{length}'", "step 's'").expr.alias("t"))["t"]
    assert found.to_physical().to_list() == [us]
