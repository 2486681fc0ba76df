"""Rule: a record in the folder of Parquet files (docs/boundary-format.md)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final

from headrace.kernel.boundary import Boundary
from headrace.kernel.errors import BoundaryError, UnavailableError
from hybrid_source.boundary import layouts
from hybrid_source.boundary.rule import BoundaryContext, Unusable
from hybrid_source.parquet_history import ParquetHistory
from hybrid_source.resolution import Resolution

FILE: Final = "_headrace_boundary.json"


@dataclass(frozen=True, slots=True)
class SidecarBoundary:
    """``_headrace_boundary.json`` beside the files: the public record, written after the files that it speaks of.

    The folder must be as it was when it was pinned, else the record could speak of files that are not read; and a file
    that is younger than the record holds rows that it does not speak of, which only offset columns can tell apart.
    """

    name: str = "boundary file of the folder"
    looks_for: str = f"a file {FILE} beside the Parquet files"

    def resolve(self, context: BoundaryContext) -> Resolution | Unusable | None:
        """See :class:`hybrid_source.boundary.rule.BoundaryRule`.

        Raises:
            BoundaryError: The file does not follow the format.
            UnavailableError: The folder has changed since it was pinned: plan again.
        """
        history = context.history
        if not isinstance(history, ParquetHistory):
            return None
        found = history.beside(FILE)
        if found is None:
            return None
        listed, content = found
        if not history.unchanged():
            raise UnavailableError(
                f"the files of {history.name} have changed while the boundary was read", hint="run it again"
            )
        record = _record(listed.path, content)
        topic = record.topics.get(context.topic)
        if topic is None:
            known = ", ".join(sorted(record.topics)) or "no topic"
            return Unusable(f"{listed.path} is about {known}, not about {context.topic}")
        columns = None if topic.earlier else layouts.any_known(history.stored)
        younger = [file.path for file in history.files if file.changed_us > listed.changed_us]
        if younger and columns is None:
            return Unusable(
                f"{younger[0]} is younger than {listed.path}, and its rows carry no offsets that would tell which of "
                "them the record speaks of"
            )
        covered = ", ".join(f"{number}: {covered.next}" for number, covered in sorted(topic.partitions.items()))
        evidence = f"{listed.path}: next offset by partition {{{covered}}}"
        if younger:
            evidence += f"; {len(younger)} files are younger, of whose rows those below it are read"
        return Resolution(record, self.name, evidence, trim=bool(younger), columns=columns)


def _record(path: str, content: bytes) -> Boundary:
    try:
        return Boundary.from_json(json.loads(content))
    except (ValueError, AttributeError) as error:
        raise BoundaryError(
            f"boundary file {path} cannot be read",
            detail=str(error),
            hint="write it as docs/boundary-format.md says, or state the boundary in the job",
            code="BOUNDARY_UNREADABLE",
        ) from error
