"""``headrace state``: what the operators of a job hold in a checkpoint."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import typer
from rich.table import Table

from headrace.cli.consoles import output_console
from headrace.cli.settings import Settings
from headrace.cli.words import bytes_text, count_text
from headrace.jobs.compile import compile_job
from headrace.jobs.loading import load_job
from headrace.jobs.state_tables import CheckpointState


def show_state(
    path: Path,
    table: str | None,
    settings: Settings,
    *,
    where: str | None,
    limit: int | None,
    epoch: int | None,
    as_json: bool,
) -> None:
    """Print the rows of a table of a job's state, or which tables there are.

    Raises:
        NotFoundError: There is no such checkpoint, operator or table.
        HeadraceError: The job or ``where`` is wrong, or the checkpoint store does not answer.
    """
    found = CheckpointState(compile_job(load_job(path), settings.load()), epoch)
    if table is None:
        _list(found, as_json=as_json)
        return
    rows = found.read(table, where, limit)
    if as_json:
        typer.echo(_as_json(rows))
    else:
        _print(rows)


def _list(found: CheckpointState, *, as_json: bool) -> None:
    record, tables = found.record, found.tables()
    if as_json:
        listed = [table.to_json() for table in tables]
        typer.echo(json.dumps({"job": record.job_uid, "epoch": record.epoch, "tables": listed}))
        return
    console = output_console()
    console.print(f"job {record.job_uid}, epoch {record.epoch}", style="bold", highlight=False)
    if not tables:
        console.print("none of its operators has state")
        return
    shown = Table("operator", "table", "rows", "size", "key", "definition", box=None)
    for column in shown.columns[2:4]:
        column.justify = "right"
    for table in tables:
        size = bytes_text(table.nbytes)
        key = ", ".join(table.key) or "-"
        shown.add_row(table.operator, table.table, count_text(table.rows), size, key, table.definition)
    console.print(shown)


def _as_json(rows: pl.DataFrame) -> str:
    wide = pl.selectors.by_dtype(pl.Int128, pl.UInt128)
    return rows.with_columns(wide.cast(pl.String)).write_json()


def _print(rows: pl.DataFrame) -> None:
    with pl.Config(tbl_rows=-1, tbl_cols=-1, tbl_hide_dataframe_shape=True, tbl_width_chars=-1, fmt_str_lengths=200):
        typer.echo(str(rows))
    typer.echo(f"{count_text(rows.height)} rows")
