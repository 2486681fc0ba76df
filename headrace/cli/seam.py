"""``headrace seam``: the seam proof of a job."""

from __future__ import annotations

import json
from pathlib import Path

import typer
from rich.console import Console
from rich.table import Table

from headrace.cli.consoles import output_console
from headrace.cli.settings import Settings
from headrace.cli.words import count_text
from headrace.jobs.compile import compile_job
from headrace.jobs.loading import load_job
from headrace.jobs.seam import PartitionSeam, SeamProof, prove_seam


def show_seam(path: Path, settings: Settings, *, as_json: bool) -> None:
    """Print the seam proof of the job in a file.

    Raises:
        NotFoundError: The job has no checkpoint, or no seam.
        HeadraceError: The job is wrong, or a service does not answer.
    """
    proof = prove_seam(compile_job(load_job(path), settings.load()))
    if as_json:
        typer.echo(json.dumps(proof.to_json()))
    else:
        print_seam(proof, output_console())


def print_seam(proof: SeamProof, console: Console) -> None:
    """Write a proof for people."""
    for source in proof.sources:
        console.print(f"source {source.source}, epoch {proof.epoch} ({source.phase})", style="bold")
        console.print(f"boundary by {source.rule}: {source.evidence}", markup=False, highlight=False)
        table = Table(
            "topic",
            "partition",
            "lake rows",
            "lake last",
            "boundary",
            "tail start",
            "tail next",
            "missing",
            "twice",
            box=None,
        )
        for column in table.columns[1:]:
            column.justify = "right"
        for partition in source.partitions:
            table.add_row(*_cells(partition), style=None if partition.exact else "red")
        console.print(table)
        for switch in source.switches:
            where = ", ".join(f"{topic}[{partition}] {at}" for (topic, partition), at in sorted(switch.at.items()))
            console.print(f"{switch.kind} by {switch.rule} at {where}", markup=False, highlight=False)
        for partition in source.partitions:
            for first, after in partition.lost:
                place = f"{partition.topic}[{partition.partition}]"
                console.print(f"{place}: offsets {first} to {after} (exclusive) were gone, and are lost", style="red")
            if partition.lake and partition.lake.holes:
                ranges = ", ".join(f"{start} to {end}" for start, end in partition.lake.holes)
                console.print(f"{partition.topic}[{partition.partition}]: no rows for offsets {ranges} (exclusive)")
    console.print("the seam is exact" if proof.exact else "the seam is NOT exact", style="bold")


def _cells(at: PartitionSeam) -> tuple[str, ...]:
    lake = at.lake
    twice = at.overlap + (lake.duplicates if lake else 0)
    return (
        at.topic,
        str(at.partition),
        count_text(lake.rows) if lake else "-",
        *("-" if value is None else count_text(value) for value in (lake.last if lake else None, at.boundary)),
        *("-" if value is None else count_text(value) for value in (at.tail_first, at.tail_next)),
        count_text(at.missing),
        count_text(twice),
    )
