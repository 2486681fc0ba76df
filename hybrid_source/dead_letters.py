"""What a source does with records that cannot be decoded."""

from __future__ import annotations

import polars as pl

from headrace.kernel.errors import DecodeError


def undecodable(errors: pl.DataFrame) -> DecodeError:
    """The error for the first of a batch's dead letters (``columns.ERRORS``)."""
    first = errors.row(0, named=True)
    return DecodeError(
        f"record {first['topic']}[{first['partition']}]@{first['offset']} cannot be decoded",
        detail=f"{first['reason']}; value begins {(first['value'] or b'')[:80]!r}",
        hint="set on_error: skip for the source, or give its port `errors` a sink, to go on without such records",
        context={name: first[name] for name in ("topic", "partition", "offset", "reason")},
    )
