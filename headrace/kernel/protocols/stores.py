"""What lasts: blobs, the head of a job, and tables for lookups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from headrace.kernel.protocols.values import Json

if TYPE_CHECKING:
    import polars as pl


class BlobStore(Protocol):
    """Durable named blobs, written once. Names are relative, ``/``-separated."""

    def put(self, name: str, data: bytes) -> None:
        """Write durably under a name never used before.

        Raises:
            FencedError: The name exists: somebody else works on this job.
        """

    def get(self, name: str) -> bytes:
        """Read.

        Raises:
            NotFoundError: No such blob.
        """

    def delete(self, name: str) -> None:
        """Remove; no error when it is gone."""

    def list(self, prefix: str) -> Sequence[str]:
        """Names that begin with ``prefix``, sorted."""


@dataclass(frozen=True, slots=True)
class Head:
    """The decision: which record is the job's last epoch, and who may make the next one."""

    sequence: int
    owner: str
    nonce: str
    lineage: str
    record: str | None


class HeadStore(Protocol):
    """One head for each job, changed only by compare-and-swap."""

    def read(self) -> Head | None:
        """The head as it is now."""

    def swap(self, expected: Head | None, new: Head) -> None:
        """Replace ``expected`` by ``new`` atomically. A lost reply is resolved by reading the nonce back.

        Raises:
            FencedError: The head is no longer ``expected``.
        """


class LookupTable(Protocol):
    """A static table for lookup joins, pinned for the life of a lineage."""

    @property
    def schema(self) -> pl.Schema:
        """Its columns."""

    def pin(self) -> Json:
        """Which version to use from now on (a snapshot id); kept in the checkpoint."""

    def load(self, pin: Json) -> pl.DataFrame:
        """The rows of that version."""
