"""What a table's properties say of the files that are written into it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from pyiceberg.io.pyarrow import compute_statistics_plan

from headrace.kernel.errors import UserError

if TYPE_CHECKING:
    from pyiceberg.table import Table

    from catalog.catalogs import TableName

DEFAULT_TARGET_FILE_SIZE: Final = 128 * 1024 * 1024
_FORMAT: Final = "write.format.default"
_CODEC: Final = "write.parquet.compression-codec"
_TARGET: Final = "write.target-file-size-bytes"
_METRICS: Final = "write.metadata.metrics."
_CODECS: Final[Mapping[str, str]] = {
    "zstd": "zstd",
    "gzip": "gzip",
    "snappy": "snappy",
    "brotli": "brotli",
    "lz4": "lz4",
    "lz4_raw": "lz4",
    "uncompressed": "uncompressed",
    "none": "uncompressed",
}
"""Iceberg's names, in any case, and Polars'."""


def check_writable(table: Table, name: TableName) -> Table:
    """The table, if this release can write to it as its properties say.

    Raises:
        UserError: It has format version 1 or 3, or does not hold Parquet (``TABLE_FORMAT``); a property has a value
            that means nothing (``TABLE_PROPERTY``).
    """
    file_format = table.properties.get(_FORMAT, "parquet")
    if table.metadata.format_version != 2 or file_format.lower() != "parquet":  # noqa: PLR2004 - the version that is written
        raise UserError(
            f"table {name} has format version {table.metadata.format_version} with {file_format} files",
            hint="write to a table of format version 2 with Parquet files",
            code="TABLE_FORMAT",
        )
    compression(table)
    target_file_size(table)
    try:
        compute_statistics_plan(table.schema(), table.properties)
    except ValueError as error:
        given = {key: value for key, value in table.properties.items() if key.startswith(_METRICS)}
        raise _wrong(table, f"{_METRICS}*", f"{error}, among {given}", "none, counts, truncate(N) or full") from error
    return table


def compression(table: Table) -> str:
    """The Parquet codec of its data files, as Polars names it; zstd if the table says nothing.

    Raises:
        UserError: ``TABLE_PROPERTY``.
    """
    wanted = table.properties.get(_CODEC, "zstd")
    if wanted.lower() not in _CODECS:
        raise _wrong(table, _CODEC, repr(wanted), ", ".join(_CODECS))
    return _CODECS[wanted.lower()]


def target_file_size(table: Table) -> int:
    """The size in bytes at which a data file is full; 128 MiB if the table says nothing.

    Raises:
        UserError: ``TABLE_PROPERTY``.
    """
    wanted = table.properties.get(_TARGET, str(DEFAULT_TARGET_FILE_SIZE))
    if not wanted.strip().isdecimal() or not int(wanted):
        raise _wrong(table, _TARGET, repr(wanted), "a number of bytes above 0")
    return int(wanted)


def _wrong(table: Table, key: str, found: str, wanted: str) -> UserError:
    return UserError(
        f"property {key} of table {'.'.join(table.name())} has a value that cannot be written by",
        detail=f"it is {found}",
        hint=f"set it to {wanted}",
        code="TABLE_PROPERTY",
    )
