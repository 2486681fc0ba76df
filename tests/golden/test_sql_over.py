"""Frames over rows: as DuckDB has them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.sql_jobs import check

QUERIES = {
    "frames of rows and of time": """
        SELECT id, SUM(delay) OVER (PARTITION BY carrier ORDER BY "at" ROWS BETWEEN 9 PRECEDING AND CURRENT ROW) AS s,
          AVG(delay) OVER (ORDER BY "at" RANGE BETWEEN INTERVAL '1' HOUR PRECEDING AND CURRENT ROW) AS a,
          COUNT(*) FILTER (WHERE delay > 10) OVER (ORDER BY "at" RANGE INTERVAL '30' MINUTE PRECEDING) AS c,
          COUNT(DISTINCT origin.gate) OVER (PARTITION BY UPPER(carrier) ORDER BY "at" ROWS 9 PRECEDING) AS g
        FROM flights""",
    "named windows, and expressions of results": """
        SELECT *, delay - LAG(delay, 1, 0) OVER w AS step, SUM(delay) OVER w AS total, ROW_NUMBER() OVER w AS n,
          LAST_VALUE(delay) OVER (w ROWS 2 PRECEDING) AS l,
          FIRST_VALUE(delay IGNORE NULLS) OVER (w ROWS 3 PRECEDING) AS f
        FROM flights WINDOW w AS (PARTITION BY carrier, origin.code ORDER BY "at")""",
    "results are asked, in WHERE of a query around and in QUALIFY": """
        SELECT id, n FROM (
          SELECT id, "at", delay, ROW_NUMBER() OVER (PARTITION BY carrier ORDER BY "at") AS n FROM flights)
        WHERE n > 3 AND n % 2 = 0
        QUALIFY delay > AVG(delay) OVER (ORDER BY "at" ROWS 5 PRECEDING) AND RANK() OVER (ORDER BY "at") > 2""",
}


@pytest.mark.parametrize("name", QUERIES)
def test_frames_are_those_of_duckdb(name: str, tmp_path: Path) -> None:
    check(QUERIES[name], tmp_path, fewest=10)


def test_frames_over_results_of_windows_and_the_first_rows_of_frames(tmp_path: Path) -> None:
    check(
        """
        SELECT carrier, window_start, n, running FROM (
          SELECT *, ROW_NUMBER() OVER (PARTITION BY carrier ORDER BY running DESC) AS place FROM (
            SELECT carrier, window_start, count(*) AS n,
              SUM(COUNT(*)) OVER (PARTITION BY carrier ORDER BY window_start) AS running
            FROM TUMBLE(TABLE flights, DESCRIPTOR("at"), INTERVAL '1' HOUR) GROUP BY carrier, window_start, window_end))
        WHERE place <= 2
        """,
        tmp_path,
        """
        SELECT * FROM (
          SELECT carrier, date_trunc('hour', "at") AS window_start, count(*) AS n,
            SUM(COUNT(*)) OVER (PARTITION BY carrier ORDER BY date_trunc('hour', "at")) AS running
          FROM flights GROUP BY 1, 2)
        QUALIFY ROW_NUMBER() OVER (PARTITION BY carrier ORDER BY running DESC) <= 2
        """,
        fewest=8,
    )
