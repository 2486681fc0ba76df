"""Queries in queries, conditions with queries, groups without aggregates: as DuckDB has them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.sql_jobs import check

NESTED = {
    "deep": """
        WITH late AS (SELECT carrier, delay FROM flights WHERE delay > 5),
             counted AS (SELECT carrier, count(*) AS n, sum(delay) AS total FROM late GROUP BY carrier)
        SELECT c.carrier, c.n * 2 AS twice, (c.total + 1) % 7 AS odd
        FROM (SELECT * FROM (SELECT carrier, n, total FROM counted WHERE n > 1)) AS c
    """,
    "aggregates of aggregates": """
        SELECT q.n AS n, count(*) AS groups, sum(q.total) AS total
        FROM (SELECT carrier, delay % 5 AS bucket, count(*) AS n, sum(delay) AS total FROM flights GROUP BY 1, 2) AS q
        GROUP BY q.n
    """,
    "structs": """
        SELECT origin.code AS code, f.origin.gate AS gate, count(*) AS n FROM flights AS f
        GROUP BY origin.code, f.origin.gate
    """,
    "groups without aggregates": "SELECT carrier, delay % 3 AS third FROM flights GROUP BY carrier, delay % 3",
    "distinct": "SELECT DISTINCT carrier, delay % 3 AS third FROM flights",
    "aliases": """
        SELECT upper(carrier) AS who, sum(coalesce(delay, 0)) AS total FROM flights GROUP BY who HAVING total > 10
    """,
    "filters": """
        SELECT carrier, count(*) FILTER (WHERE delay > 3) AS late,
               count(DISTINCT delay) FILTER (WHERE delay < 30) AS kinds, count(DISTINCT id % 10) AS digits,
               avg(delay) FILTER (WHERE delay > 0) AS mean, max(delay) - min(delay) AS wide
        FROM flights GROUP BY carrier
    """,
    "union all of groups below": """
        SELECT kind, count(*) AS n, max("at") AS latest
        FROM (SELECT 'f' AS kind, "at", delay AS x FROM flights UNION ALL SELECT 'a', "at", level FROM alerts) AS q
        WHERE x > 1 GROUP BY kind
    """,
    "union of counted ones": """
        WITH late AS (SELECT carrier, delay FROM flights WHERE delay > 20 UNION SELECT carrier, level FROM alerts)
        SELECT count(*) AS n FROM late UNION (SELECT 7 AS seven FROM alerts UNION SELECT level FROM alerts)
    """,
    "union": """
        WITH late AS (SELECT carrier, delay FROM flights WHERE delay > 20 UNION SELECT carrier, level FROM alerts)
        SELECT carrier, delay FROM late UNION SELECT carrier, level FROM alerts UNION ALL SELECT carrier, 1 FROM alerts
        UNION SELECT carrier, 2 FROM flights WHERE carrier IN (SELECT carrier FROM alerts)
    """,
    "without groups": "SELECT count(*) AS n, sum(delay) AS total FROM flights WHERE carrier IN ('A', 'B')",
    "case": """
        SELECT id, CASE WHEN delay IS NULL THEN 'none' WHEN delay > 10 THEN 'late' ELSE 'ok' END AS how,
               CASE carrier WHEN 'A' THEN 1 ELSE 2 END AS a,
               CAST(delay AS DOUBLE) / 2 AS half, CAST(id AS VARCHAR) AS text
        FROM flights
    """,
}

ELEMENTS = {
    "of lists": """
        SELECT f.id, t.part FROM flights f CROSS JOIN UNNEST(STRING_SPLIT(f.url, '/')) AS t(part)
        WHERE t.part <> '' AND f.delay > 3
    """,
    "grouped, and joined": """
        SELECT part, name, count(*) AS n FROM flights AS f, UNNEST(STRING_SPLIT(url, '/')) AS t(part)
        JOIN airlines AS a ON a.carrier = f.carrier GROUP BY part, name
    """,
    "and the rows": "SELECT f.*, part FROM flights f CROSS JOIN UNNEST(STRING_SPLIT(f.url, '/')) AS t(part)",
    "of lists that may be null": """
        SELECT f.id, part FROM flights f LEFT JOIN UNNEST(STRING_SPLIT(f.url, '/')) AS t(part) ON TRUE
    """,
}

CONDITIONS = {
    "any and all": """
        SELECT id FROM flights f WHERE delay = ANY (SELECT level FROM alerts WHERE level < 3)
          AND carrier <> ALL (SELECT carrier FROM alerts WHERE level > 2 AND id < 5)
    """,
    "in": "SELECT id FROM flights WHERE carrier IN (SELECT carrier FROM alerts WHERE level > 3)",
    "not in": "SELECT id FROM flights WHERE carrier NOT IN (SELECT carrier FROM alerts)",
    "not in, of the same key, with nulls": """
        SELECT id FROM flights f
        WHERE f.delay NOT IN (SELECT b.delay FROM flights b WHERE b.carrier = f.carrier AND b.id < 20) AND f.id > 20
    """,
    "not in groups, and null not in nothing": """
        SELECT id FROM flights WHERE delay NOT IN (SELECT max(level) FROM alerts GROUP BY carrier)
          AND url NOT IN (SELECT carrier FROM alerts WHERE level > 100) AND id NOT IN (SELECT max(id) FROM alerts)
    """,
    "null not in nothing of its key": """
        SELECT id FROM flights f
        WHERE f.id > 20 AND f.delay NOT IN
          (SELECT b.delay FROM flights b WHERE b.carrier = f.carrier AND b.id < 2 AND b.delay IS NOT NULL)
    """,
    "not in pairs without nulls": """
        SELECT id FROM flights f WHERE carrier IS NOT NULL AND (f.delay IS NOT NULL) AND (carrier, delay) NOT IN
          (SELECT a.carrier, a.level FROM alerts a WHERE a.carrier IS NOT NULL AND a.level IS NOT NULL)
    """,
    "in the one row of an aggregate, which is there of no rows, too": """
        SELECT id FROM flights f
        WHERE f.delay NOT IN (SELECT max(a.level) FROM alerts a WHERE a.carrier = f.carrier)
          AND f.delay NOT IN (SELECT count(*) FROM alerts a WHERE a.level > 100)
          AND id % 3 NOT IN (SELECT max(level) FROM alerts HAVING count(*) > 100)
          AND (id % 5, carrier) IN (SELECT max(level), min(carrier) FROM alerts)
    """,
    "exists, having": """
        SELECT id FROM flights f
        WHERE EXISTS (SELECT 1 FROM alerts a WHERE a.carrier = f.carrier AND a.level = f.delay HAVING count(*) = 0)
          AND NOT EXISTS (SELECT 1 FROM alerts a WHERE a.carrier = f.carrier HAVING min(a.level) > 100)
    """,
    "in of pairs": """
        SELECT id FROM flights WHERE (carrier, delay) IN (SELECT carrier, level FROM alerts) AND id > 20
    """,
    "exists": """
        SELECT f.id FROM flights AS f
        WHERE EXISTS (SELECT 1 FROM alerts AS a WHERE a.carrier = f.carrier AND a.level = f.delay)
    """,
    "not exists": """
        SELECT f.id FROM flights AS f
        WHERE f.delay > 0 AND NOT EXISTS (SELECT * FROM alerts AS a WHERE a.carrier = f.carrier AND a.level > f.delay)
    """,
    "in a table": "SELECT id FROM flights WHERE carrier IN (SELECT carrier FROM airlines)",
    "null as a value": """
        SELECT id, delay > 5 IS TRUE AS a, delay > 5 IS NOT TRUE AS b, delay = 5 IS NULL AS c,
               delay IS DISTINCT FROM 5 AND id > 9 AS d
        FROM flights WHERE url IS DISTINCT FROM '' AND (delay > 5 IS NOT FALSE OR id > 9)
    """,
    "not in a table": """
        SELECT id FROM flights AS f WHERE NOT EXISTS (SELECT 1 FROM airlines AS a WHERE a.carrier = f.carrier)
    """,
    "in groups": """
        SELECT id FROM flights WHERE carrier IN (SELECT carrier FROM alerts GROUP BY carrier HAVING count(*) > 20)
    """,
}


VALUES = {
    "of all rows": """
        SELECT id, delay - (SELECT avg(delay) FROM flights) AS d, (SELECT count(*) FROM alerts WHERE level > 9) AS none
        FROM flights WHERE delay > (SELECT min(level) + count(*) / 100.0 FROM alerts) AND carrier IN ('A', 'B')
    """,
    "of the same key": """
        SELECT f.id, (SELECT count(*) FROM alerts a WHERE a.carrier = f.carrier AND a.level > 2) AS n FROM flights f
        WHERE f.delay = (SELECT max(b.delay) FROM flights b WHERE b.carrier = f.carrier)
           OR coalesce((SELECT max(a.level) FROM alerts a WHERE lower(a.carrier) = upper(f.carrier)), 1) = f.delay
    """,
    "behind a join, and in an expression": """
        SELECT f.id, a.id AS other, a.level IN ((SELECT max(level) FROM alerts), 1) AS edge
        FROM flights f JOIN alerts a ON f.carrier = a.carrier AND f.id % 100 = a.id
        WHERE f.delay BETWEEN (SELECT avg(x.level) FROM alerts x WHERE x.carrier = a.carrier AND x.level <= 2) AND 30
    """,
    "between with nothing": """
        SELECT id FROM flights
        WHERE delay NOT BETWEEN (SELECT max(level) FROM alerts WHERE level > 100) AND 5
          AND NOT (SELECT 3 BETWEEN max(level) AND 1 FROM alerts WHERE level > 100)
    """,
    "of groups": """
        WITH m AS (SELECT carrier, origin.gate AS gate, avg(delay) AS d FROM flights GROUP BY 1, 2)
        SELECT carrier, gate FROM m WHERE d > (SELECT avg(d) FROM m)
    """,
    "of groups, asked by HAVING and the select list": """
        SELECT carrier, sum(delay) / (SELECT count(*) FROM flights) AS share, max(id) AS id
        FROM flights GROUP BY carrier
        HAVING sum(delay) * 4 > (SELECT sum(delay) FROM flights) AND carrier IN (SELECT carrier FROM alerts)
    """,
}


@pytest.mark.parametrize("name", VALUES)
def test_queries_that_give_one_value(name: str, tmp_path: Path) -> None:
    check(VALUES[name], tmp_path)


@pytest.mark.parametrize("name", ELEMENTS)
def test_elements_of_lists(name: str, tmp_path: Path) -> None:
    check(ELEMENTS[name], tmp_path)


@pytest.mark.parametrize("name", NESTED)
def test_queries_in_queries(name: str, tmp_path: Path) -> None:
    check(NESTED[name], tmp_path)


@pytest.mark.parametrize("name", CONDITIONS)
def test_queries_in_conditions(name: str, tmp_path: Path) -> None:
    check(CONDITIONS[name], tmp_path, fewest=0 if name == "not in" else 1)
