"""The splits of a history in their order, planned and computed ahead in threads of their own.

So the latency of an object store is paid for several splits at once, and a slow scan does not hold up the partitions
that are live. What has been computed is in no position until it has been taken.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from functools import partial
from typing import Final, Generic, Protocol, TypeVar

import polars as pl

from headrace.kernel.columns import ROW_WATERMARK
from headrace.kernel.protocols import FirstSegment, Origin, ReadRequest

logger: Final = logging.getLogger(__name__)

CLOSE_S: Final = 30.0
"""How long the end of a reading waits for scans that are under way."""


class Readable(Protocol):
    """A split."""

    @property
    def rows(self) -> pl.LazyFrame:
        """Its rows; may look at its files."""

    @property
    def files(self) -> Sequence[str]:
        """Where they stand, for messages."""


Split = TypeVar("Split", bound=Readable)


@dataclass(frozen=True, slots=True)
class Taken(Generic[Split]):
    """A split in its turn.

    Attributes:
        split: The split.
        rows: Its lazy rows.
        computed: What was computed of them; None: nothing.
    """

    split: Split
    rows: pl.LazyFrame
    computed: object = None


def read_ahead(
    splits: Iterator[Split],
    request: ReadRequest,
    concurrency: int,
    *,
    origin: Origin = "history",
    late_below: int | None = None,
) -> ReadAhead[Split]:
    """Splits with what the request computes of them; see :class:`headrace.kernel.protocols.FirstSegment`.

    Args:
        splits: The splits, in order.
        request: What is read of them.
        concurrency: See :class:`ReadAhead`.
        origin: Where their rows are from.
        late_below: The watermark that rows of them may lie below, and against which all are measured; None: none does.
    """
    judged = late_below is not None and ROW_WATERMARK in (request.columns or ())
    mark = pl.lit(late_below, pl.Int64).alias(ROW_WATERMARK) if judged else None
    if request.compute is None or not concurrency:
        return ReadAhead(splits, mark=mark)
    compute = partial(_computed, request.compute, origin, late_below is not None)
    return ReadAhead(splits, compute, concurrency, mark=mark)


def _computed(
    compute: FirstSegment,
    origin: Origin,
    maybe_late: bool,  # noqa: FBT001
    rows: pl.LazyFrame,
    files: Sequence[str],
) -> object:
    return compute(rows, origin, maybe_late=maybe_late, files=files)


class ReadAhead(Generic[Split]):
    """An iterator of splits that says whether the next one is there yet. Used by one thread.

    Args:
        splits: The splits, in order; only one thread at a time asks for the next.
        compute: What makes a result of the rows of a split, which are in these files. It runs for several splits at
            once, in any order. None: nothing is computed, and each split is planned when it is taken.
        concurrency: Splits that are planned, computed or waiting to be taken, at most.
        close_s: How long :meth:`close` waits.
        mark: A column that every row gets.
    """

    def __init__(
        self,
        splits: Iterator[Split],
        compute: Callable[[pl.LazyFrame, Sequence[str]], object] | None = None,
        concurrency: int = 0,
        *,
        close_s: float = CLOSE_S,
        mark: pl.Expr | None = None,
    ) -> None:
        self._mark = mark
        self._splits = splits
        self._compute = compute
        self._close_s = close_s
        self._slots: deque[Future[Taken[Split] | None]] = deque()
        self._wanted: queue.SimpleQueue[Future[Taken[Split] | None] | None] = queue.SimpleQueue()
        self._planning = threading.Lock()
        # A scan that hangs must not keep the process from ending, as one in a pool would.
        self._threads = [
            threading.Thread(target=self._work, name=f"history-{number}", daemon=True)
            for number in range(concurrency if compute is not None else 0)
        ]
        for thread in self._threads:
            self._begin_one()
            thread.start()

    def ready(self, timeout: float) -> bool:
        """Whether :meth:`take` will give its answer at once; waits up to ``timeout`` seconds for that."""
        return not self._slots or bool(wait([self._slots[0]], timeout).done)

    def take(self) -> Taken[Split] | None:
        """The next split with what was computed of it, or None behind the last one. May wait.

        Raises:
            BaseException: What planning or computing this split has raised.
        """
        if not self._threads:
            split = next(self._splits, None)
            return None if split is None else Taken(split, self._rows(split))
        found = self._slots.popleft().result()
        self._begin_one()
        return found

    def close(self) -> None:
        """Wait for what is being computed, at most ``close_s``; what has not been taken is dropped.

        A scan that hangs is left behind: its thread keeps no process from ending, and nothing takes what it gives.
        """
        for slot in self._slots:
            slot.cancel()
        for _ in self._threads:
            self._wanted.put(None)
        deadline = time.monotonic() + self._close_s
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        left = sum(thread.is_alive() for thread in self._threads)
        if left:
            logger.warning("%d splits of the history are still being read; they are dropped", left)
        self._slots.clear()

    def _begin_one(self) -> None:
        slot: Future[Taken[Split] | None] = Future()
        self._slots.append(slot)
        self._wanted.put(slot)

    def _work(self) -> None:
        while True:
            with self._planning:  # the slots get their splits in order
                slot = self._wanted.get()
                if slot is None:
                    return
                if not slot.set_running_or_notify_cancel():
                    continue
                try:
                    split = next(self._splits, None)
                except BaseException as error:  # noqa: BLE001 - carried to the thread that takes it
                    slot.set_exception(error)
                    continue
            self._fill(slot, split)

    def _fill(self, slot: Future[Taken[Split] | None], split: Split | None) -> None:
        try:
            slot.set_result(None if split is None else self._taken(split))
        except BaseException as error:  # noqa: BLE001 - carried to the thread that takes it
            slot.set_exception(error)

    def _taken(self, split: Split) -> Taken[Split]:
        rows = self._rows(split)
        return Taken(split, rows, None if self._compute is None else self._compute(rows, split.files))

    def _rows(self, split: Split) -> pl.LazyFrame:
        return split.rows if self._mark is None else split.rows.with_columns(self._mark)
