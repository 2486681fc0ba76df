"""Windows, windows over windows, rankings: as DuckDB has them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.sql_jobs import check

HOURS = """
    SELECT carrier, window_start AS since, window_end AS till, count(*) AS n
    FROM TUMBLE(TABLE flights, DESCRIPTOR("at"), INTERVAL '1' HOUR) GROUP BY carrier, window_start, window_end
"""
DUCK_HOURS = """
    SELECT carrier, date_trunc('hour', "at") AS since, date_trunc('hour', "at") + interval 1 hour AS till, count(*) AS n
    FROM flights GROUP BY ALL
"""
QUERIES = {
    "windows of one window": (
        f"SELECT since, till, max(n) AS most, count(*) AS groups FROM ({HOURS}) GROUP BY since, till",
        f"SELECT since, till, max(n) AS most, count(*) AS groups FROM ({DUCK_HOURS}) GROUP BY since, till",
    ),
    "windows over windows": (
        f"""SELECT window_start AS day, sum(n) AS n
            FROM TUMBLE(TABLE ({HOURS}), DESCRIPTOR(since), INTERVAL '3' HOUR) AS h GROUP BY window_start""",
        f"SELECT time_bucket(interval 3 hour, since) AS day, sum(n) AS n FROM ({DUCK_HOURS}) GROUP BY 1",
    ),
    "windows as RisingWave writes them": (
        """SELECT `carrier`, window_start AS since, count(*) AS n FROM TUMBLE(flights, `at`, INTERVAL '1 hour')
           WHERE window_start >= TIMESTAMPTZ '2026-01-01 02:00:00' AND delay > 0 GROUP BY carrier, window_start""",
        """SELECT carrier, date_trunc('hour', "at") AS since, count(*) AS n FROM flights
           WHERE "at" >= '2026-01-01 02:00:00+00' AND delay > 0 GROUP BY ALL""",
    ),
    "windows over the last instants of windows": (
        """WITH hops AS (
             SELECT window_start, window_end, window_time, count(*) AS n FROM TABLE(HOP(DATA => TABLE flights,
               TIMECOL => DESCRIPTOR("at"), SIZE => INTERVAL '90' MINUTES, SLIDE => INTERVAL '30' MINUTES))
             GROUP BY window_start, window_end, window_time)
           SELECT window_start AS since, window_time AS last, sum(n) AS n
           FROM TUMBLE(TABLE hops, DESCRIPTOR(window_time), INTERVAL '1' HOUR)
           WHERE window_end <= TIMESTAMPTZ '2026-01-01 06:00:00' GROUP BY window_start, window_end, window_time""",
        """WITH hops AS (
             SELECT time_bucket(interval 30 minute, "at") - back * interval 30 minute + interval 90 minute
               - interval 1 millisecond AS last, count(*) AS n
             FROM flights, (SELECT unnest([0, 1, 2]) AS back) GROUP BY ALL)
           SELECT date_trunc('hour', last) AS since, date_trunc('hour', last) + interval 3599999 millisecond AS last,
             sum(n) AS n FROM hops WHERE last < '2026-01-01 06:00:00+00' GROUP BY ALL""",
    ),
    "rows of the same windows": (
        """SELECT l.id AS flight, r.id AS alert, l.window_start AS since
           FROM (SELECT * FROM TUMBLE(TABLE flights, DESCRIPTOR("at"), INTERVAL '1' HOUR)) AS l
           JOIN (SELECT * FROM TUMBLE(TABLE alerts, DESCRIPTOR("at"), INTERVAL '1' HOUR)) AS r
           ON l.carrier = r.carrier AND l.window_start = r.window_start AND l.window_end = r.window_end""",
        """SELECT l.id AS flight, r.id AS alert, date_trunc('hour', l."at") AS since FROM flights AS l
           JOIN alerts AS r ON l.carrier = r.carrier AND date_trunc('hour', l."at") = date_trunc('hour', r."at")""",
    ),
    "the most of each window": (
        f"""SELECT * FROM (SELECT carrier, n, since,
              ROW_NUMBER() OVER (PARTITION BY since ORDER BY n DESC, carrier) AS place
            FROM ({HOURS})) WHERE place <= 2""",
        f"""SELECT carrier, n, since, row_number() OVER (PARTITION BY since ORDER BY n DESC, carrier) AS place
            FROM ({DUCK_HOURS}) QUALIFY place <= 2""",
    ),
    "frames over groups of one event time": (
        """SELECT carrier, since, n, sum(n) OVER (PARTITION BY carrier ORDER BY since
             RANGE BETWEEN INTERVAL '1' HOUR PRECEDING AND CURRENT ROW) AS hour
           FROM (SELECT carrier, "at", "at" AS since, count(*) AS n FROM
             (SELECT "at", carrier FROM flights UNION ALL SELECT "at", carrier FROM alerts) GROUP BY carrier, "at")""",
        """SELECT carrier, "at" AS since, count(*) AS n, sum(count(*)) OVER (PARTITION BY carrier ORDER BY "at"
             RANGE BETWEEN INTERVAL '1' HOUR PRECEDING AND CURRENT ROW) AS hour FROM
             (SELECT "at", carrier FROM flights UNION ALL SELECT "at", carrier FROM alerts) GROUP BY carrier, "at" """,
    ),
    "windows over groups of one event time": (
        """SELECT window_start AS since, max(n) AS most, count(*) AS times
           FROM TUMBLE(TABLE (SELECT "at", count(*) AS n FROM flights GROUP BY "at" HAVING sum(id % 3) > 0),
             DESCRIPTOR("at"), INTERVAL '1' HOUR) GROUP BY window_start""",
        """SELECT date_trunc('hour', "at") AS since, max(n) AS most, count(*) AS times
           FROM (SELECT "at", count(*) AS n FROM flights GROUP BY "at" HAVING sum(id % 3) > 0) GROUP BY 1""",
    ),
    "the most of all": (
        "SELECT id, delay FROM flights QUALIFY ROW_NUMBER() OVER (PARTITION BY carrier ORDER BY delay DESC, id) <= 3",
        """SELECT id, delay FROM flights
           QUALIFY row_number() OVER (PARTITION BY carrier ORDER BY delay DESC NULLS LAST, id) <= 3""",
    ),
    "the first rows of each window, without groups": (
        """SELECT id, carrier, "at", delay, window_start AS since, window_end AS till, place
           FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY window_start, window_end, carrier ORDER BY delay DESC, id)
                   AS place
                 FROM TABLE(TUMBLE(TABLE flights, DESCRIPTOR("at"), INTERVAL '25' MINUTES))
                 WHERE delay > -15 AND window_end > TIMESTAMPTZ '2026-01-01 01:00:00') WHERE place <= 3""",
        """SELECT * FROM (SELECT id, carrier, "at", delay, time_bucket(interval 25 minute, "at", epoch) AS since,
             since + interval 25 minute AS till,
             row_number() OVER (PARTITION BY since, carrier ORDER BY delay DESC NULLS LAST, id) AS place
           FROM (SELECT *, TIMESTAMPTZ '1970-01-01 00:00:00+00' AS epoch FROM flights))
           WHERE place <= 3 AND delay > -15 AND till > '2026-01-01 01:00:00+00'""",
    ),
    "the last row of each window": (
        """SELECT carrier, window_time AS last, "at" FROM TUMBLE(TABLE (SELECT carrier, "at" FROM flights),
             DESCRIPTOR("at"), INTERVAL '1' HOUR) AS w
           QUALIFY ROW_NUMBER() OVER (PARTITION BY w.window_start, carrier ORDER BY w."at" DESC) = 1""",
        """SELECT carrier, date_trunc('hour', "at") + interval 3599999 millisecond AS last, max("at") AS "at"
           FROM flights GROUP BY ALL""",
    ),
    "groups of the first rows of windows": (
        """SELECT since, count(*) AS n, max(delay) AS most FROM (
             SELECT delay, window_start AS since, ROW_NUMBER() OVER (PARTITION BY window_start ORDER BY delay, id) AS n
             FROM TUMBLE(TABLE flights, DESCRIPTOR("at"), INTERVAL '1' HOUR)) WHERE n < 5 GROUP BY since""",
        """SELECT since, count(*) AS n, max(delay) AS most FROM (
             SELECT *, date_trunc('hour', "at") AS since FROM flights
             QUALIFY row_number() OVER (PARTITION BY since ORDER BY delay NULLS LAST, id) < 5) GROUP BY since""",
    ),
    "nulls first": (
        """SELECT id, delay FROM flights
           QUALIFY ROW_NUMBER() OVER (PARTITION BY carrier ORDER BY delay IS NOT NULL, delay, id) <= 9""",
        """SELECT id, delay FROM flights
           QUALIFY row_number() OVER (PARTITION BY carrier ORDER BY delay NULLS FIRST, id) <= 9""",
    ),
    "sessions": (
        """SELECT carrier, window_start AS since, count(*) AS n
           FROM SESSION(TABLE alerts PARTITION BY carrier, DESCRIPTOR("at"), INTERVAL '10' MINUTE)
           GROUP BY carrier, window_start, window_end""",
        """WITH marked AS (SELECT *, coalesce("at" - lag("at") OVER (PARTITION BY carrier ORDER BY "at")
                                           >= interval 10 minute, true) AS begins FROM alerts),
                numbered AS (SELECT *, count(*) FILTER (WHERE begins) OVER (PARTITION BY carrier ORDER BY "at") AS s
                             FROM marked)
           SELECT carrier, min("at") AS since, count(*) AS n FROM numbered GROUP BY carrier, s""",
    ),
    "one value for all rows": (
        "SELECT f.id FROM flights f CROSS JOIN (SELECT max(level) AS most FROM alerts) q WHERE f.delay = q.most",
        "SELECT id FROM flights WHERE delay = (SELECT max(level) FROM alerts)",
    ),
    "the version at the time": (
        """SELECT f.id AS flight, a.level AS level
           FROM flights f ASOF JOIN alerts a ON f.carrier = a.carrier AND f."at" >= a."at" """,
        "",
    ),
}


@pytest.mark.parametrize("name", QUERIES)
def test_windows_and_rankings(name: str, tmp_path: Path) -> None:
    ours, theirs = QUERIES[name]
    check(ours, tmp_path, theirs or None)
