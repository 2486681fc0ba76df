"""SQL as steps: what it means, and what is refused with line and column (case API-04, the part about SQL)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.jobs.loading import load_job_text
from headrace.jobs.parse import parse_job
from headrace.kernel.errors import SpecError

SOURCES: dict[str, Any] = {
    "flights": {
        "tail": {"topic": "t", "schema": {"carrier": "string", "at": "timestamptz", "delay": "int64"}},
        "event_time": {"column": "at"},
    },
    "timeless": {"tail": {"topic": "u", "schema": {"carrier": "string", "delay": "int64"}}},
}


def job(sql: str, **more: Any) -> dict[str, Any]:
    sinks = more.pop("sinks", [{"id": "out", "kafka": {"topic": "out", "key": "carrier"}}])
    sources = {name: source for name, source in SOURCES.items() if name in sql}
    tables = {"airlines": {"parquet": "airlines.parquet"}} if "airlines" in sql else {}
    return {"name": "j", "sources": sources or SOURCES, "tables": tables, "sql": sql, "sinks": sinks, **more}


def steps(sql: str, **more: Any) -> list[dict[str, Any]]:
    spec = parse_job(job(sql, **more))
    return [step.model_dump(by_alias=True, exclude_unset=True) for step in spec.steps]


def test_a_projection_and_a_filter() -> None:
    assert steps("SELECT carrier, delay + 1 AS later FROM flights WHERE delay > 5 AND carrier <> 'O''Hare'") == [
        {"id": "query-filter", "from": "flights", "filter": "delay > 5 AND carrier <> 'O''Hare'"},
        {"id": "query-select", "from": "query-filter", "select": {"carrier": "carrier", "later": "delay + 1"}},
    ]
    assert steps("SELECT *, upper(carrier) AS up FROM flights") == [
        {
            "id": "query-select",
            "from": "flights",
            "select": {"carrier": "carrier", "at": "at", "delay": "delay", "up": "UPPER(carrier)"},
        }
    ]


def test_a_view_is_computed_once_and_read_by_each_statement() -> None:
    sql = """
        CREATE VIEW big AS SELECT carrier, delay FROM timeless WHERE delay > 9;
        INSERT INTO a SELECT * FROM big;
        INSERT INTO lake.x.b SELECT upper(carrier) AS carrier FROM big;
    """
    sinks = [{"id": "a", "kafka": {"topic": "a"}}, {"iceberg": {"table": "lake.x.b", "create": True}}]
    spec = parse_job(job(sql, sinks=sinks))
    assert [step.id for step in spec.steps] == ["big-filter", "lake-x-b-select"]
    assert [sink.from_ for sink in spec.sinks] == ["big-filter", "lake-x-b-select"]
    assert parse_job(spec.to_json()).steps == spec.steps
    assert "steps" not in spec.to_json()


@pytest.mark.parametrize(
    ("call", "window"),
    [
        ("TUMBLE(TABLE flights, DESCRIPTOR(at), INTERVAL '1' HOUR)", {"tumbling": "1h"}),
        ("TUMBLE(TABLE flights, DESCRIPTOR(at), INTERVAL '1' DAY, INTERVAL '6' HOURS)", {"offset": "6h"}),
        ("TABLE(TUMBLE(TABLE flights, DESCRIPTOR(at), INTERVAL '90' SECOND))", {"tumbling": "1m30s"}),
        ("HOP(TABLE flights, DESCRIPTOR(at), INTERVAL '1' MINUTE, INTERVAL '5' MINUTE)", {"every": "1m"}),
        (
            "CUMULATE(TABLE flights, DESCRIPTOR(at), INTERVAL '1' HOUR, INTERVAL '1' DAY)",
            {"cumulating": "1d"},
        ),
        ("SESSION(TABLE flights, DESCRIPTOR(at), INTERVAL '30' MINUTE)", {"session": "30m"}),
    ],
)
def test_windows(call: str, window: dict[str, str]) -> None:
    found = steps(f"SELECT carrier, window_start, count(*) AS n FROM {call} GROUP BY carrier, window_start, window_end")
    assert [step["id"] for step in found] == ["query-window", "query-select"]
    spec = found[0]["window"]
    assert spec["by"] == ("carrier",)
    assert spec["aggregate"] == {"n": "COUNT(*)"}
    assert {name: spec[name] for name in window} == window


def test_aggregates_inside_expressions_having_filter_and_computed_keys() -> None:
    sql = """
        SELECT upper(carrier) AS up, window_end, sum(delay) / count(*) AS mean, sum(delay) AS total,
               count(*) FILTER (WHERE delay > 15) AS late
        FROM TUMBLE(TABLE flights, DESCRIPTOR(at), INTERVAL '1' HOUR)
        GROUP BY upper(carrier), window_start, window_end
        HAVING count(*) > 1 AND upper(carrier) <> 'X'
    """
    keys, window, having, select = steps(sql, sinks=[{"kafka": {"topic": "x"}}])
    assert keys["with_columns"] == {"_key_1": "UPPER(carrier)"}
    assert window["window"]["by"] == ("_key_1",)
    assert window["window"]["aggregate"] == {
        "total": "SUM(delay)",
        "late": "COUNT(CASE WHEN delay > 15 THEN 1 END)",
        "_value_3": "COUNT(*)",
    }
    assert having["filter"] == '"_value_3" > 1 AND "_key_1" <> \'X\''
    assert select["select"] == {
        "up": '"_key_1"',
        "window_end": '"window_end"',
        "mean": '"total" / "_value_3"',
        "total": '"total"',
        "late": '"late"',
    }


def test_without_a_window_results_are_running() -> None:
    found = steps("SELECT carrier, sum(delay) AS total FROM timeless GROUP BY carrier")
    assert found[0]["aggregate"] == {"aggregate": {"total": "SUM(delay)"}, "by": ("carrier",)}
    whole = steps("SELECT 'all' AS carrier, count(*) AS n FROM timeless")
    assert whole[0]["aggregate"] == {"aggregate": {"n": "COUNT(*)"}}


def test_lookup_joins() -> None:
    (lookup, _) = steps("SELECT f.carrier, a.name FROM flights f LEFT JOIN airlines a ON f.carrier = a.carrier")
    assert lookup["lookup"] == {"table": "airlines", "on": ("carrier",), "how": "left", "columns": ("name",)}
    lookup, *_ = steps("SELECT carrier, name FROM flights JOIN airlines ON airlines.code = flights.carrier")
    assert lookup["lookup"] == {"table": "airlines", "on": {"carrier": "code"}, "how": "inner", "columns": ("name",)}


def test_queries_in_from_and_common_tables() -> None:
    sql = "WITH big AS (SELECT carrier, delay FROM timeless WHERE delay > 1) SELECT * FROM (SELECT carrier FROM big) q"
    assert [step["id"] for step in steps(sql)] == ["big-filter", "query-q-select"]


def test_union_all_is_by_position() -> None:
    sql = "SELECT carrier, delay AS d FROM flights UNION ALL SELECT upper(carrier) AS u, 1 FROM timeless"
    *_, second, union = steps(sql)
    assert second["select"] == {"carrier": "UPPER(carrier)", "d": "1"}
    assert union == {"id": "query-union", "union": ("query-1-select", "query-2-select")}
    renamed, union = steps("SELECT * FROM timeless UNION ALL SELECT delay, carrier FROM flights")[1:]
    assert renamed["select"] == {"carrier": '"delay"', "delay": '"carrier"'}
    assert union["union"] == ("timeless", "query-2-select-2")


def test_row_number_keeps_the_first_row_by_event_time() -> None:
    sql = """
        SELECT carrier, delay
        FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY carrier ORDER BY at) AS n FROM flights WHERE delay > 0)
        WHERE n = 1 AND delay < 100
    """
    assert steps(sql) == [
        {"id": "query-filter", "from": "flights", "filter": "delay > 0"},
        {"id": "query-dedup", "from": "query-filter", "dedup": {"by": ("carrier",), "keep": "first"}},
        {"id": "query-filter-2", "from": "query-dedup", "filter": "delay < 100"},
        {"id": "query-select", "from": "query-filter-2", "select": {"carrier": "carrier", "delay": "delay"}},
    ]


@pytest.mark.parametrize(
    "sql",
    [
        (
            "SELECT carrier FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY carrier ORDER BY at DESC) AS n"
            " FROM flights) WHERE n < 2"
        ),
        "SELECT carrier FROM flights QUALIFY ROW_NUMBER() OVER (PARTITION BY carrier ORDER BY at DESC) = 1",
        (
            "WITH r AS (SELECT *, ROW_NUMBER() OVER (PARTITION BY carrier ORDER BY at DESC) AS n FROM flights)"
            " SELECT r.carrier FROM r WHERE r.n <= 1"
        ),
        (
            "CREATE VIEW r AS SELECT carrier, ROW_NUMBER() OVER (PARTITION BY carrier ORDER BY at DESC) AS n"
            " FROM flights; SELECT carrier FROM r WHERE n = 1"
        ),
    ],
)
def test_other_rankings_run_on(sql: str) -> None:
    ranked = next(step["running_top"] for step in steps(sql) if "running_top" in step)
    assert ranked == {"n": 1, "order_by": ("at desc",), "by": ("carrier",)}


def test_row_number_over_a_window_keeps_its_first_rows() -> None:
    sql = """
        CREATE VIEW hours AS SELECT carrier, window_start, sum(delay) AS total
        FROM TUMBLE(TABLE flights, DESCRIPTOR(at), INTERVAL '1' HOUR) GROUP BY carrier, window_start;
        SELECT carrier, total, n FROM (
          SELECT *, ROW_NUMBER() OVER (PARTITION BY window_start ORDER BY total DESC, carrier) AS n FROM hours
        ) WHERE n <= 3
    """
    top = steps(sql)[2]
    assert top["id"] == "query-top"
    assert top["top"] == {"n": 3, "order_by": ("total desc", "carrier asc"), "rank": "n"}


def test_python_jobs_take_sql_too() -> None:
    source = SOURCES["timeless"]
    built = headrace.Job("j").source("timeless", tail=source["tail"]).sql("SELECT carrier FROM timeless")
    assert built.sink_kafka("out").spec().steps[0].id == "query-select"


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("SELECT * FROM read_csv('/etc/passwd')", "READ_CSV('/etc/passwd') cannot be read from"),
        ("WITH a AS (SELECT * FROM read_csv('/etc/passwd')) SELECT * FROM a", "cannot be read from"),
        ("SELECT * FROM (SELECT * FROM read_parquet('s3://other/x'))", "cannot be read from"),
        ("SELECT * FROM '/etc/passwd'", "no source or view"),
        ("SELECT * FROM other.public.t", "no source or view named 'other.public.t'"),
        ("DROP TABLE flights", "DROP is not supported"),
        ("SELECT carrier FROM flights; SELECT carrier FROM timeless", "there is a second query"),
        ("COPY flights TO 'x'", "COPY is not supported"),
        ("SET x = 1", "SET is not supported"),
        ("ATTACH 'x' AS y", "cannot be read"),
        ("SELECT getenv('HOME') AS x FROM flights", "calls getenv(), which is not supported"),
        ("SELECT now() AS x FROM flights", "asks for the time of day"),
        ("SELECT (SELECT max(getenv('HOME')) FROM timeless) AS x FROM flights", "calls getenv()"),
    ],
)
def test_api_04_sql_reaches_nothing_but_what_the_job_declares(sql: str, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_job(job(sql))
    assert message in caught.value.message


@pytest.mark.parametrize(
    ("sql", "place", "message"),
    [
        ("SELECT carrier\nFROM flights\nORDER BY carrier", (3, 10), "ORDER BY"),
        ("SELECT carrier FROM flights LIMIT 5", (1, 35), "LIMIT"),
        ("SELECT DISTINCT * FROM flights AS f JOIN airlines ON f.carrier = airlines.carrier", (1, 17), "DISTINCT"),
        ("SELECT carrier\nFROM flihgts", (2, 6), "no source or view named 'flihgts'"),
        ("SELECT carrier,\n       count(*)\nFROM flights GROUP BY carrier", None, "has no name"),
        ("SELECT 1 AS x", None, "needs FROM"),
        (
            "SELECT f.at, a.x FROM flights f JOIN airlines FOR SYSTEM_TIME AS OF f.at AS a ON f.carrier = a.carrier",
            None,
            "it has no versions by f.at",
        ),
        ("SELECT a FROM flights AS f(a, b, c)", None, "new names for the columns"),
        ("SELECT * FROM flights UNION SELECT carrier FROM timeless", None, "UNION needs to know the columns"),
        ("SELECT carrier FROM flights UNION ALL SELECT carrier, delay FROM timeless", None, "of 1 and 2 columns"),
        ("SELECT sum(delay) OVER (PARTITION BY carrier) AS x FROM flights", None, "rows that come later"),
        (
            "SELECT carrier FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY carrier ORDER BY delay) AS n FROM flights)",
            None,
            "by their event time",
        ),
        ("SELECT carrier FROM airlines", (1, 21), "is a static table"),
        ("SELECT a.carrier FROM flights a JOIN timeless b ON a.delay > b.delay", None, "needs equal columns"),
        ("SELECT * FROM flights f JOIN airlines a ON f.carrier > a.carrier", None, "by equal columns alone"),
        (
            "SELECT 1 AS n\nFROM TUMBLE(TABLE flights, DESCRIPTOR(delay), INTERVAL '1' DAY)\nGROUP BY window_end",
            (2, 6),
            "its event time is at",
        ),
        (
            "SELECT count(*) AS n FROM TUMBLE(TABLE flights, DESCRIPTOR(at), INTERVAL '1' HOUR) GROUP BY carrier",
            None,
            "not grouped by",
        ),
        ("SELECT carrier, delay FROM flights GROUP BY carrier", (1, 17), "neither grouped by nor aggregated"),
        ("SELECT carrier, delay AS carrier FROM flights", None, "twice"),
        ("INSERT INTO nowhere SELECT * FROM flights", (1, 13), "no sink nowhere"),
        ("CREATE TABLE x AS SELECT * FROM flights", None, "CREATE TABLE is not supported"),
        ("CREATE VIEW flights AS SELECT * FROM flights", None, "the name 'flights' is taken"),
        ("SELEC carrier FROM flights", (1, 18), "cannot be read"),
        ("", None, "holds no statement"),
    ],
)
def test_what_is_refused_says_where(sql: str, place: tuple[int, int] | None, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_job(job(sql) | {"sql": sql or ";"}, places={("sql",): "job.yaml:9:1"})
    assert message in caught.value.message
    assert caught.value.message.startswith("job.yaml:9:1: sql")
    if place is not None:
        assert f"sql line {place[0]}, column {place[1]}: " in caught.value.message


def test_the_documented_job_is_one() -> None:
    text = (Path(__file__).parents[2] / "docs" / "sql.md").read_text(encoding="utf-8")
    found = load_job_text(text.split("```yaml\n")[1].split("```")[0], "sql.md", environ={})
    assert [sink.from_ for sink in found.sinks] == ["hourly-select", "totals-select"]


def test_sql_and_steps_exclude_each_other() -> None:
    with pytest.raises(SpecError, match="not both"):
        parse_job(job("SELECT carrier FROM flights") | {"steps": [{"filter": "delay > 1"}]})


def test_custom_operators_stand_in_from() -> None:
    sql = """
        SELECT k, n FROM sessionize(
          TABLE (SELECT carrier AS k, at FROM flights WHERE delay > 0) PARTITION BY k ORDER BY at,
          gap => INTERVAL '30' MINUTE, most => 5, names => ARRAY['a', 'b'], event_time => DESCRIPTOR(ended)
        ) AS s WHERE n > 1
    """
    found = next(step for step in steps(sql) if "custom" in step)
    assert found["custom"] == {
        "operator": "sessionize",
        "by": ("k",),
        "order_by": "at",
        "args": {"gap": "30m", "most": 5, "names": ["a", "b"]},
        "event_time": "ended",
    }


def test_windows_of_the_clock_on_the_wall() -> None:
    sql = """
        SELECT carrier, count(*) AS n
        FROM TABLE(TUMBLE(TABLE timeless, DESCRIPTOR(PROCTIME()), INTERVAL '10' SECOND)) GROUP BY carrier, window_start
    """
    assert steps(sql)[0]["window"]["time"] == "processing"


def test_joins_hold_what_is_needed_and_nothing_else() -> None:
    sql = """
        SELECT f.carrier, t.delay AS other FROM flights AS f JOIN timeless AS t ON f.carrier = t.carrier
        WHERE f.delay > 1 AND t.delay < 5 AND f.delay <> t.delay
    """
    found = {step["id"]: step for step in steps(sql)}
    assert found["query-filter"]["filter"] == "f.delay > 1".removeprefix("f.")
    assert found["query-t-filter"]["filter"] == "delay < 5"
    join = found["query-join"]["join"]
    assert join["on"] == {"carrier": "carrier"}
    assert join["where"] == 'delay <> "t.delay"'
    assert "within" not in join
