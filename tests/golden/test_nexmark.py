"""The queries of Nexmark as SQL jobs, against the same questions asked of DuckDB."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.nexmark import jobs
from benchmarks.nexmark.events import Nexmark


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Events out of order by up to two seconds, slow enough for several windows."""
    folder = tmp_path_factory.mktemp("nexmark") / "data"
    jobs.write(folder, 10_000, Nexmark(step_us=4_000, disorder_us=2_000_000))
    return folder


@pytest.mark.parametrize("query", jobs.QUERIES)
def test_a_query_gives_what_duckdb_gives(query: str, data: Path, tmp_path: Path) -> None:
    expected = jobs.wanted(query, data)
    found = jobs.run(query, data, tmp_path)[1]
    assert jobs.difference(query, found, expected) is None
    assert expected.height > 0


def test_a_wrong_result_is_seen(data: Path) -> None:
    expected = jobs.wanted("q4", data)
    assert jobs.difference("q4", expected.tail(-1), expected) is not None
    assert jobs.difference("q4", expected.with_columns(expected["average"] + 1), expected) is not None
