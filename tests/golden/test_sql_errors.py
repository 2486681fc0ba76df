"""What SQL says of what it does not support: message, line, column and cure, as files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace.jobs.parse import parse_job
from headrace.kernel.errors import SpecError

FOLDER = Path(__file__).parent / "sql_errors"


def told(sql: str) -> str:
    """What is said of a job with this SQL."""
    stream = {"carrier": "string", "at": "timestamptz"}
    sources: dict[str, Any] = {
        "flights": {"tail": {"topic": "f", "schema": {**stream, "delay": "int64"}}, "event_time": {"column": "at"}},
        "alerts": {"tail": {"topic": "a", "schema": {**stream, "level": "int64"}}, "event_time": {"column": "at"}},
    }
    job = {
        "name": "j",
        "sources": {name: source for name, source in sources.items() if name in sql} or sources,
        "tables": {"airlines": {"parquet": "airlines.parquet"}} if "airlines" in sql else {},
        "sql": sql,
        "sinks": [{"id": "out", "kafka": {"topic": "out", "key": "carrier"}}],
    }
    with pytest.raises(SpecError) as caught:
        parse_job(job, places={("sql",): "job.yaml:9:1"})
    error = caught.value
    lines = [f"{error.code}: {error.message}"]
    lines += [f"  {error.detail}"] if error.detail else []
    lines += [f"  hint: {error.hint}"] if error.hint else []
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("name", sorted(path.stem for path in FOLDER.glob("*.sql")))
def test_what_is_refused_says_where_and_why(name: str) -> None:
    found = told((FOLDER / f"{name}.sql").read_text(encoding="utf-8"))
    assert found == (FOLDER / f"{name}.expected").read_text(encoding="utf-8")
