"""Whatever text comes: it is refused, or becomes steps over what the job declares (case API-04, the part about SQL)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.jobs.names import is_node_name
from headrace.jobs.parse import parse_job
from headrace.kernel.errors import SpecError
from operators.expressions import FUNCTIONS, tokens

ROOT: Final = Path(__file__).parents[2]
DECLARED: Final = frozenset({"bid", "auction", "person", "flights", "alerts"})
AGGREGATES: Final = frozenset(
    re.findall(
        r"\w+",
        """
        count sum min max avg mean median quantile first last list arg_min arg_max approx_count_distinct any_value
        first_value last_value array_agg stddev variance var_samp var_pop stddev_samp stddev_pop string_agg
        """,
    )
)
KEY_WORDS: Final = frozenset(
    re.findall(
        r"\w+",
        """
        case when then else end and or not in is between like ilike rlike cast try_cast as distinct interval from
        extract trim decimal varchar any all xor over
        """,
    )
)
NASTY: Final = (
    "read_csv('/etc/passwd')",
    "read_parquet('s3://other/x')",
    "getenv('HOME')",
    "pg_read_file('/etc/passwd')",
    "'/etc/passwd'",
    '"os:system"',
    "load_extension('x')",
    "now()",
    "random()",
    "(SELECT 1)",
    "TABLE",
    "INTO OUTFILE 'x'",
    "COPY flights TO 'x'",
    "ATTACH 'x' AS y",
    "/* c */",
    "--",
    "$$x$$",
    "E'x'",
    ";",
    "(",
    ")",
    ",",
    "*",
    "OVER ()",
    "::regclass",
    "{fn now()}",
    "@@version",
    "information_schema.tables",
    "UNNEST(ARRAY[1])",
    "LATERAL",
    "PIVOT",
)


def corpus() -> list[str]:
    files = [
        *(ROOT / "tests" / "golden" / "sql_errors").glob("*.sql"),
        *(ROOT / "benchmarks").glob("nexmark/queries/*.sql"),
    ]
    return sorted(re.sub("--.*", "", path.read_text(encoding="utf-8")) for path in files)


PIECE: Final = r"'[^']*'|\"[^\"]*\"|\d+\.\d+|\w+|<=|>=|<>|!=|=>|[|][|]|[^\s\w]"
PIECES: Final = [re.findall(PIECE, text) for text in corpus()]
WORDS: Final = sorted({word for piece in PIECES for word in piece} | set(NASTY))


def kind(word: str) -> str:
    """Which pieces may stand for each other without making nonsense of the text at once."""
    return "name" if word[:1].isalpha() and not word.isupper() else "key word" if word[:1].isalpha() else word[:1]


ALIKE: Final = {one: sorted({word for word in WORDS if kind(word) == one}) for one in map(kind, WORDS)}


@st.composite
def mangled(draw: st.DrawFn) -> str:
    """A query with a few pieces replaced by others like them, taken out, or joined by something nasty."""
    words = list(draw(st.sampled_from(PIECES)))
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(words) - 1))
        alike = st.sampled_from(ALIKE[kind(words[at])]).map(lambda word: [word])
        nasty = st.sampled_from(NASTY)
        made = st.one_of(
            alike, alike, alike, nasty.map(lambda word: [word]), st.just([words[at], words[at]]), st.just([])
        )
        words[at : at + 1] = draw(made)
        words = words or [";"]
    return " ".join(words)


def job(sql: str) -> dict[str, Any]:
    source = {"tail": {"topic": "t", "schema": {"id": "int64", "at": "timestamptz"}}, "event_time": {"column": "at"}}
    open_ = {"history": {"parquet": "x.parquet"}, "event_time": {"column": "dateTime"}}
    named = [name for name in sorted(DECLARED) if re.search(rf"(FROM|JOIN|TABLE|,)\s+{name}\b", sql)]
    return {
        "name": "j",
        "sources": {name: source if name in {"flights", "alerts"} else open_ for name in named} or {"bid": open_},
        "tables": {"airlines": {"parquet": "airlines.parquet"}, "side_input": {"parquet": "s.parquet"}},
        "sql": sql,
        "sinks": [{"id": "out", "iceberg": {"table": "local.n.t", "create": True, "changes": "append"}}],
    }


@given(mangled())
@settings(max_examples=150, deadline=None)
def test_api_04_any_text_is_refused_or_stays_within_what_is_declared(sql: str) -> None:
    try:
        spec = parse_job(job(sql))
    except SpecError:
        return
    known = {*spec.sources}
    for step in spec.steps:
        made = step.model_dump(by_alias=True, exclude_unset=True)
        assert set(read(made)) <= known, sql
        known.add(str(step.id))
        for text in texts(made):
            assert set(calls(text)) <= FUNCTIONS | AGGREGATES | KEY_WORDS, (sql, text)
        if "lookup" in made:
            assert made["lookup"]["table"] in spec.tables
        if "custom" in made:
            assert is_node_name(made["custom"]["operator"])


def read(step: dict[str, Any]) -> Iterator[str]:
    """The nodes that a step reads."""
    if "from" in step:
        yield step["from"]
    yield from step.get("union", ())
    yield from (step["join"][side] for side in ("left", "right") if "join" in step)


def texts(value: Any) -> Iterator[str]:
    """Every text in a step."""
    if isinstance(value, str):
        yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ():
        yield from texts(inner)


def calls(text: str) -> Iterator[str]:
    """The functions that a text calls."""
    found = list(tokens(text))
    for word, following in pairwise(found):
        if following.text == "(" and word.kind in {"word", "quoted"}:
            yield word.text


@pytest.mark.parametrize("depth", [40, 400])
def test_nesting_without_end_is_refused(depth: int) -> None:
    """Also by the parser, whose stack is not endless."""
    for sql in (
        "SELECT " + "(" * depth + "id" + ")" * depth + " AS x FROM flights",
        "SELECT id FROM " + "(SELECT id FROM " * depth + "flights" + ") q" * depth,
        "SELECT id FROM flights WHERE " + "NOT " * depth + "id > 1",
    ):
        with suppress(SpecError):
            parse_job(job(sql))
