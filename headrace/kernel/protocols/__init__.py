"""The seams: sources, operators, sinks, stores. Frames cross them as Polars frames, positions as JSON values.

Factories (``Source``, ``StatefulOperator``, ``Sink``) are cheap and do no I/O when they are built; what they open
(``SourceReader``, ``OperatorInstance``, ``SinkWriter``) holds resources and gets its earlier state only as the
argument that resumes it. ``close`` may never run: a process can be killed at any line.
"""

from headrace.kernel.protocols.operators import (
    COUNTS,
    Determinism,
    OperatorContext,
    OperatorInstance,
    OperatorState,
    ShowsState,
    StatefulOperator,
    Ticks,
    Transform,
)
from headrace.kernel.protocols.sinks import (
    Entry,
    EpochId,
    Sink,
    SinkContext,
    SinkWriter,
)
from headrace.kernel.protocols.sources import (
    Batch,
    FirstSegment,
    Note,
    ReadRequest,
    Source,
    SourceReader,
)
from headrace.kernel.protocols.stores import (
    BlobStore,
    Head,
    HeadStore,
    LookupTable,
)
from headrace.kernel.protocols.values import (
    ERRORS,
    LATE,
    MAIN,
    Emission,
    Json,
    Origin,
    Position,
    PreCommit,
)

__all__ = [
    "COUNTS",
    "ERRORS",
    "LATE",
    "MAIN",
    "Batch",
    "BlobStore",
    "Determinism",
    "Emission",
    "Entry",
    "EpochId",
    "FirstSegment",
    "Head",
    "HeadStore",
    "Json",
    "LookupTable",
    "Note",
    "OperatorContext",
    "OperatorInstance",
    "OperatorState",
    "Origin",
    "Position",
    "PreCommit",
    "ReadRequest",
    "ShowsState",
    "Sink",
    "SinkContext",
    "SinkWriter",
    "Source",
    "SourceReader",
    "StatefulOperator",
    "Ticks",
    "Transform",
]
