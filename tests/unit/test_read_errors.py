"""Errors of Polars' readers, as Headrace errors."""

from pathlib import Path

import polars as pl
import pytest

from headrace.kernel.errors import InternalError, SnapshotGoneError, UnavailableError
from hybrid_source.read_errors import reading


def test_snp_01_a_file_that_vanishes_while_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pl.DataFrame({"a": [1]}).write_parquet(path)
    rows = pl.scan_parquet(path)
    path.unlink()
    with (
        pytest.raises(SnapshotGoneError, match=r"a file of the history of s is no longer available") as caught,
        reading("history of s"),
    ):
        rows.collect(engine="streaming")
    assert "a.parquet" in caught.value.detail


def test_a_store_that_does_not_answer() -> None:
    options = {
        "aws_endpoint_url": "http://127.0.0.1:9",
        "aws_allow_http": "true",
        "aws_access_key_id": "k",
        "aws_secret_access_key": "s",
        "aws_region": "r",
        "max_retries": 0,
    }
    rows = pl.scan_parquet("s3://bucket/a.parquet", storage_options=options)
    with pytest.raises(UnavailableError, match="cannot read the history of s"), reading("history of s"):
        rows.collect(engine="streaming")


def test_errors_of_the_plan_pass_unchanged() -> None:
    rows = pl.LazyFrame({"a": ["x"]}).select(pl.col("a").cast(pl.Int64))
    with pytest.raises(pl.exceptions.InvalidOperationError), reading("history of s"):
        rows.collect()


def test_a_panic_of_polars_is_an_error_that_names_the_files() -> None:
    def panicking() -> None:
        raise pl.exceptions.PanicException("assertion failed: range.end as u64 <= self.size")

    with (
        pytest.raises(InternalError, match="Polars gave up while it read the history of s") as caught,
        reading("history of s", ["a.parquet"]),
    ):
        panicking()
    assert "range.end" in caught.value.detail
    assert "a.parquet" in caught.value.detail
