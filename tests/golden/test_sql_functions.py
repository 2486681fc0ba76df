"""Functions and aggregates of SQL: as DuckDB has them, or its own words for them."""

from __future__ import annotations

from pathlib import Path

from tests.sql_jobs import check

SCALARS = {
    "length": ("CHAR_LENGTH(carrier)", ""),
    "up": ("LOWER(UPPER(carrier))", ""),
    "both": ("CONCAT(carrier, '-', id)", ""),
    "piped": ("carrier || '-' || CAST(id AS VARCHAR)", ""),
    "part": ("SPLIT_INDEX(url, '/', 1)", "split_part(url, '/', 2)"),
    "split": ("SPLIT_PART(url, '/', 2)", ""),
    "extracted": ("REGEXP_EXTRACT(url, 'id=([0-9])', 1)", "nullif(regexp_extract(url, 'id=([0-9])', 1), '')"),
    "matches": ("REGEXP(url, 'id=[0-9]')", "regexp_matches(url, 'id=[0-9]')"),
    "replaced": ("REPLACE(url, 'd', 'D')", ""),
    "found": ("POSITION('d' IN url)", ""),
    "located": ("LOCATE('d', url)", "position('d' in url)"),
    "has": ("CONTAINS(url, 'id')", ""),
    "middle": ("SUBSTRING(url FROM 2 FOR 2)", ""),
    "begin": ("LEFT(url, 2)", ""),
    "trimmed": ("TRIM('  x ')", ""),
    "trimmed_of": ("TRIM(BOTH '/' FROM url)", ""),
    "trimmed_left": ("TRIM(LEADING '/' FROM url)", ""),
    "starts": ("STARTS_WITH(url, '/')", ""),
    "like_it": ("url LIKE '%id%'", ""),
    "day": ("DATE_FORMAT(f.\"at\", 'yyyy-MM-dd')", "strftime(f.\"at\", '%Y-%m-%d')"),
    "minute": ("DATE_FORMAT(f.\"at\", 'HH:mm:ss')", "strftime(f.\"at\", '%H:%M:%S')"),
    "hour": ('HOUR(f."at")', ""),
    "year": ('YEAR(f."at")', ""),
    "quarter": ('QUARTER(f."at")', ""),
    "taken": ('EXTRACT(DAY FROM f."at")', ""),
    "weekday": ('DAYOFWEEK(f."at")', 'dayofweek(f."at") + 1'),
    "of_year": ('DAYOFYEAR(f."at")', ""),
    "truncated": ("DATE_TRUNC('hour', f.\"at\")", ""),
    "floored": ('FLOOR(f."at" TO MINUTE)', "date_trunc('minute', f.\"at\")"),
    "shifted": ("f.\"at\" + INTERVAL '90' MINUTE", ""),
    "seconds": ('UNIX_TIMESTAMP(f."at")', 'epoch(f."at")::bigint'),
    "as_date": ('CAST(f."at" AS DATE)', 'cast(f."at" as date)'),
    "parsed": ("TO_DATE('2026-05-06')", "date '2026-05-06'"),
    "small": ("MOD(id, 7)", ""),
    "rounded": ("ROUND(id / 3, 2)", ""),
    "halves": ("ROUND(CAST(delay AS DOUBLE) / 2)", ""),
    "nothing_left": ("LEFT(url, 0)", ""),
    "nothing_right": ("RIGHT(url, 0)", ""),
    "but_two": ("LEFT(url, -2)", ""),
    "escaped": ("url LIKE '/_/b?id=7$&%' ESCAPE '$'", ""),
    "escaped_not": ("url NOT ILIKE '%$%ID=_' ESCAPE '$'", ""),
    "whole": ("FLOOR(id / 7)", ""),
    "power": ("POWER(CAST(id AS DOUBLE), 2)", ""),
    "least_of": ("LEAST(id, 50)", ""),
    "if_": ("IF(delay > 5, 'late', 'ok')", ""),
    "chosen": ("COALESCE(delay, -1)", ""),
    "no_ten": ("NULLIF(id, 10)", ""),
    "or_one": ("IFNULL(delay, 1)", ""),
    "between_": ("delay BETWEEN 3 AND 9", ""),
    "listed": ("carrier NOT IN ('A', 'B')", ""),
    "same": ("delay IS NOT DISTINCT FROM NULL", ""),
    "tried": ("TRY_CAST(url AS INT)", ""),
    "field": ("f.origin.code", ""),
}

AGGREGATES = {
    "n": ("COUNT(*)", ""),
    "kinds": ("COUNT(DISTINCT delay)", ""),
    "few": ("COUNT(DISTINCT delay) FILTER (WHERE id < 50)", ""),
    "total": ("SUM(delay) FILTER (WHERE id % 2 = 0)", ""),
    "counted": ("COUNT_IF(delay > 3)", ""),
    "mean": ("AVG(delay)", ""),
    "lowest": ("MIN(url)", ""),
    "middle": ("MEDIAN(delay)", ""),
    "high": ("QUANTILE(delay, 0.9)", "quantile_cont(delay, 0.9)"),
    "spread": ("STDDEV_SAMP(delay)", ""),
    "all_": ("BOOL_AND(delay > -30)", ""),
    "earliest": ('ARG_MIN(id, f."at")', ""),
    "mixed": ("MAX(delay) * 2 + MIN(id) - COUNT(*)", ""),
}


def query(functions: dict[str, tuple[str, str]], *, for_duckdb: bool, more: str = "") -> str:
    items = [f"{own or ours if for_duckdb else ours} AS {name}" for name, (ours, own) in functions.items()]
    return f"SELECT {', '.join(items)} FROM flights f {more}"


def test_functions_of_a_row(tmp_path: Path) -> None:
    check(query(SCALARS, for_duckdb=False), tmp_path, query(SCALARS, for_duckdb=True), fewest=100)


def test_aggregates_of_windows(tmp_path: Path) -> None:
    ours = query(AGGREGATES, for_duckdb=False).removesuffix("FROM flights f ")
    sql = f"""{ours}
        FROM TUMBLE(TABLE flights, DESCRIPTOR("at"), INTERVAL '1' HOUR) AS f GROUP BY carrier, window_start"""
    asked = query(AGGREGATES, for_duckdb=True, more="GROUP BY carrier, date_trunc('hour', f.\"at\")")
    check(sql, tmp_path, asked, fewest=20)
