"""What a source does at the seam beyond the single switch, as declared by the job."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HandoverPolicy:
    """Policies of the handover.

    Attributes:
        per_partition: A partition goes live when its own history is done, where rows carry partition and offset.
        chase: At the end of the history a newer version of the table is read before the topic takes over.
        lag: A tail that is more records behind than this goes back to the lake; None: never for that reason.
        on_truncation: A tail whose next offsets have been deleted goes back to the lake, where the lake has them.
        as_live: Rows of the history are late as they would have been in the topic: the history is read in the order
            of its offsets, with the tail's row watermarks.
        worthwhile: How many records a newer version must add, for it to be read when nothing compels to.
        lag_every_s: Seconds between two looks at the lag.
    """

    per_partition: bool = True
    chase: bool = True
    lag: int | None = None
    on_truncation: bool = True
    as_live: bool = False
    worthwhile: int = 100_000
    lag_every_s: float = 10.0

    @property
    def looks_back(self) -> bool:
        """What the topic has lost is looked for in the lake."""
        return self.chase or self.on_truncation
