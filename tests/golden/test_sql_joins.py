"""Joins in SQL: as DuckDB has them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.sql_jobs import check

JOINS = {
    "all columns of one side": """
        SELECT f.*, a.level AS level, b.name AS own, c.name AS other, b.carrier AS code, c.carrier AS third
        FROM flights AS f JOIN alerts AS a ON f.carrier = a.carrier AND f.id % 100 = a.id
        JOIN airlines AS b ON b.carrier = f.carrier JOIN airlines AS c ON c.carrier = left(concat(f.carrier, f.url), 1)
    """,
    "a table by what is called otherwise in the rows": """
        SELECT f.id AS id, f.carrier AS carrier, b.name AS name, c.name AS other FROM flights AS f
        LEFT JOIN airlines AS b ON left(upper(f.origin.code), 1) = b.carrier LEFT JOIN airlines AS c ON c.rank = f.delay
    """,
    "interval": """
        SELECT f.id AS flight, a.id AS alert, f.delay AS delay
        FROM flights AS f JOIN alerts AS a ON f.carrier = a.carrier
         AND a."at" BETWEEN f."at" - INTERVAL '10' MINUTE AND f."at" + INTERVAL '5' MINUTE
    """,
    "interval in WHERE, with strict bounds": """
        SELECT f.id AS flight, a.id AS alert, a.level + f.delay AS both
        FROM flights f, alerts a
        WHERE f.carrier = a.carrier AND f."at" > a."at" - INTERVAL '10' MINUTE AND f."at" < a."at"
          AND a.level > 1 AND f.id > 9 AND f.delay > a.level
    """,
    "interval, left": """
        SELECT f.id AS flight, a.id AS alert, f.carrier AS one, a.carrier AS other
        FROM flights AS f LEFT JOIN alerts AS a
          ON f.carrier = a.carrier AND a."at" BETWEEN f."at" AND f."at" + INTERVAL '5' MINUTE AND a.level > 2
        WHERE f.delay > 0
    """,
    "interval until a column of the other side": """
        SELECT f.id AS flight, a.id AS alert, a."at" AS moment
        FROM (
          SELECT *, CASE WHEN delay > 9 THEN "at" + INTERVAL '20' MINUTE WHEN delay > 0 THEN "at" END AS till
          FROM flights
        ) f
        JOIN alerts a ON f.carrier = a.carrier
        WHERE a."at" BETWEEN f."at" - INTERVAL '10' MINUTE AND f.till AND a.level < f.delay
    """,
    "interval until a column, left": """
        SELECT f.id AS flight, a.id AS alert, a.level + f.delay AS both
        FROM alerts a LEFT JOIN (SELECT id, carrier, delay, "at", "at" + INTERVAL '1' HOUR AS till FROM flights) f
          ON f.carrier = a.carrier AND a."at" >= f."at" AND a."at" <= f.till AND f.delay > 30
    """,
    "regular": """
        SELECT f.id AS flight, a.id AS alert FROM flights f JOIN alerts a ON f.carrier = a.carrier AND f.delay = a.level
    """,
    "left, without matches": """
        SELECT f.id FROM flights f LEFT JOIN alerts a ON f.carrier = a.carrier AND f.delay = a.level
        WHERE a.carrier IS NULL
    """,
    "right": """
        SELECT f.delay AS delay, a.id AS alert FROM flights f
        RIGHT JOIN alerts a ON f.carrier = a.carrier AND f.id = a.id
    """,
    "full": """
        SELECT f.id AS flight, a.id AS alert, f.carrier AS one, a.carrier AS other
        FROM flights f FULL JOIN alerts a ON f.carrier = a.carrier AND f.id % 100 = a.id
    """,
    "of a stream with its groups": """
        SELECT f.id, g.n AS n FROM flights f
        JOIN (SELECT carrier, count(*) AS n, max(delay) AS most FROM flights GROUP BY carrier) g
        ON f.carrier = g.carrier AND f.delay = g.most
    """,
    "with itself, and all columns of one side": """
        SELECT a.*, b.id AS other FROM alerts a JOIN alerts b ON a.id = b.id + 1 WHERE b.level > 1
    """,
    "of three": """
        SELECT f.id AS flight, a.id AS alert, t.name AS name
        FROM flights f JOIN alerts a ON f.carrier = a.carrier AND f.id = a.id JOIN airlines t ON f.carrier = t.carrier
    """,
    "of windows": """
        SELECT x.carrier AS carrier, x.window_start AS since, x.n AS flights, y.n AS alerts
        FROM (SELECT carrier, window_start, window_end, count(*) AS n
              FROM TUMBLE(TABLE flights, DESCRIPTOR("at"), INTERVAL '1' HOUR) GROUP BY 1, 2, 3) x
        JOIN (SELECT carrier, window_start, window_end, count(*) AS n
              FROM TUMBLE(TABLE alerts, DESCRIPTOR("at"), INTERVAL '1' HOUR) GROUP BY 1, 2, 3) y
        ON x.carrier = y.carrier AND x.window_start = y.window_start AND x.window_end = y.window_end
    """,
    "in windows": """
        SELECT x.id AS flight, y.id AS alert, x.window_start AS since
        FROM TUMBLE(TABLE flights, DESCRIPTOR("at"), INTERVAL '1' HOUR) AS x
        JOIN TUMBLE(TABLE alerts, DESCRIPTOR("at"), INTERVAL '1' HOUR) AS y
        ON x.carrier = y.carrier AND x.window_start = y.window_start AND x.window_end = y.window_end
    """,
    "as of the event time": """
        SELECT f.id AS flight, a.level AS level
        FROM flights f LEFT JOIN alerts FOR SYSTEM_TIME AS OF f."at" AS a ON f.carrier = a.carrier
    """,
    "table": """
        SELECT f.id, t.name AS name FROM flights f LEFT JOIN airlines t ON f.carrier = t.carrier WHERE f.delay > 3
    """,
    "table, by another name and an expression": """
        SELECT f.id, t.carrier AS code FROM (SELECT id, lower(carrier) AS small FROM flights) f
        JOIN airlines FOR SYSTEM_TIME AS OF PROCTIME() AS t ON upper(f.small) = t.carrier
    """,
    "the version that held, if it fits": """
        SELECT f.id AS flight, a.level AS level
        FROM flights f ASOF JOIN alerts a ON f.carrier = a.carrier AND f."at" >= a."at"
        WHERE a.level > 2 AND f.delay > 0
    """,
    "the version at its event time, if it fits": """
        SELECT f.id AS flight, a.level AS level
        FROM flights f JOIN alerts FOR SYSTEM_TIME AS OF f."at" AS a ON f.carrier = a.carrier
        WHERE a.level > 2
    """,
}
DUCKDB = {
    "of windows": """
        WITH x AS (SELECT carrier, date_trunc('hour', "at") AS since, count(*) AS n FROM flights GROUP BY 1, 2),
             y AS (SELECT carrier, date_trunc('hour', "at") AS since, count(*) AS n FROM alerts GROUP BY 1, 2)
        SELECT carrier, since, x.n AS flights, y.n AS alerts FROM x JOIN y USING (carrier, since)
    """,
    "in windows": """
        SELECT x.id AS flight, y.id AS alert, time_bucket(interval 1 hour, x."at") AS since FROM flights x JOIN alerts y
        ON x.carrier = y.carrier AND time_bucket(interval 1 hour, x."at") = time_bucket(interval 1 hour, y."at")
    """,
    "as of the event time": """
        SELECT f.id AS flight, a.level AS level
        FROM flights f ASOF LEFT JOIN alerts a ON f.carrier = a.carrier AND f."at" >= a."at"
    """,
    "the version at its event time, if it fits": """
        SELECT f.id AS flight, a.level AS level
        FROM flights f ASOF JOIN alerts a ON f.carrier = a.carrier AND f."at" >= a."at" WHERE a.level > 2
    """,
    "table, by another name and an expression": """
        SELECT f.id, t.carrier AS code FROM flights f JOIN airlines t ON f.carrier = t.carrier
    """,
}


@pytest.mark.parametrize("name", JOINS)
def test_joins(name: str, tmp_path: Path) -> None:
    check(JOINS[name], tmp_path, DUCKDB.get(name))
