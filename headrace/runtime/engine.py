"""One attempt at running a job: from the head of the job to a stop, an end or a failure.

The order of an epoch (shared with docs/exactly-once.md): run, barrier (positions, sinks prepare, operators snapshot),
checkpoint (blobs, record, head swapped: this is the decision), commit (Kafka before Iceberg), retire. Every step
may be the last one before a SIGKILL; the next attempt starts from the head.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import Final
from uuid import uuid4

from headrace.kernel import crash
from headrace.kernel.clock import Clock
from headrace.kernel.errors import ExternalError, GraphChangedError, HeadraceError, UnavailableError
from headrace.kernel.protocols import (
    BlobStore,
    EpochId,
    Head,
    Json,
    Position,
    PreCommit,
    SinkContext,
    SourceReader,
)
from headrace.runtime.dataflow import Dataflow
from headrace.runtime.exchange import Workers
from headrace.runtime.first_segment import GraphSegment
from headrace.runtime.job import CheckpointPolicy, Leases, Program, RunOptions
from headrace.runtime.lease_keeper import LeaseKeeper
from headrace.runtime.observer import EpochReport, Event, Level, Observer, Phase, StopSignal
from headrace.runtime.progress import Meter
from headrace.runtime.pump import DEPTH, Computed, Ended, Failed, Item, Pump
from headrace.runtime.pushdown import absent, requests
from headrace.runtime.schemas import resolve
from headrace.runtime.state_fit import open_operators, refuse_changed
from headrace.state.backend import StateBackend, StateOptions
from headrace.state.checkpoint import CheckpointStore
from headrace.state.records import Checkpoint, SavedOperator

IDLE_S: Final = 0.2


class Attempt:
    """One attempt. Used by one thread; not reusable.

    Args:
        program: The job.
        checkpoints: Its checkpoints; this attempt owns the head already.
        head: The head as this instance wrote it.
        record: The checkpoint the head names, or None for a new lineage.
        blobs: Where sinks stage.
        policy: When epochs end.
        options: How the run ends.
        observer: Told of progress, epochs and events.
        stop: Asks for a graceful stop.
        clock: Paces epochs.
        meter: Counts over all attempts of a run.
        leases: Keep the versions that the checkpoints need.
        state: How much memory keyed state may take, and where it spills to.
    """

    def __init__(
        self,
        program: Program,
        checkpoints: CheckpointStore,
        head: Head,
        record: Checkpoint | None,
        *,
        blobs: BlobStore,
        policy: CheckpointPolicy,
        options: RunOptions,
        observer: Observer,
        stop: StopSignal,
        clock: Clock,
        meter: Meter,
        leases: Leases,
        state: StateOptions,
    ) -> None:
        self._program = program
        self._checkpoints = checkpoints
        self.head = head
        self._record = record
        self._blobs = blobs
        self._policy = policy
        self._options = options
        self._observer = observer
        self._stop = stop
        self._clock = clock
        self._meter = meter
        self._leases = LeaseKeeper(leases, observer, clock)
        self._state = StateBackend(state)
        self._workers = Workers(options.parallelism or 1)
        self.epoch = record.epoch if record else 0
        self.epochs_done = 0
        self.opened = False
        self._queue: queue.Queue[Item] = queue.Queue(DEPTH)
        self._pumps: dict[str, Pump] = {}
        self._readers: dict[str, SourceReader] = {}
        self._positions: dict[str, Position] = {}
        self._decided: dict[str, Position] = {}
        self._watermarks: dict[str, int] = {}
        self._moved = False
        self._hung = False

    def run(self) -> bool:
        """Run to a stop or an end.

        Returns:
            True when the job is finished: drained, with nothing more to do for a later run.
        """
        record = self._record
        clean = False
        try:
            self._open(record)
            self.opened = True
            if record is not None and record.finished:
                finished = True
                self._event(
                    Level.INFO,
                    "already-finished",
                    f"the job was drained at epoch {record.epoch}; give it another uid to run it afresh",
                    epoch=record.epoch,
                )
            else:
                for pump in self._pumps.values():
                    pump.start()
                finished = self._end(ended=self._loop())
            clean = True
            with suppress(ExternalError):  # without the note, only a change of sinks needs one more run
                self._checkpoints.note_committed(self.head)
        finally:
            self._close(abort=not clean)
        return finished

    # ------------------------------------------------------------------------------------------------------- opening

    def _open(self, record: Checkpoint | None) -> None:
        self._pins = dict(self._program.pin(record.pins if record else {}))
        self._graph = self._program.graph(self._pins)
        if record is not None:
            refuse_changed(record, self._graph)
            self._refuse_unfinished(record)
        saved = self._checkpoints.restore(record, self._state.runs) if record else {}
        states = {name: operator.state for name, operator in saved.items()}
        schemas = resolve(self._graph)
        operators = open_operators(self._graph, schemas, states, record, self._state, self._workers)
        self._flow = Dataflow(self._graph, schemas, operators)
        decided = record.epoch if record else None
        restored = record is not None and record.lineage != self.head.lineage
        context = SinkContext(self._program.uid, self.head.lineage, self._blobs, decided, restored)
        if record is None:
            # A job that cannot be planned must leave no trace in its targets.
            self._begin_sources()
            self._flow.open_sinks(context, {})
            self._save(prepared={}, finished=False)
        else:
            # What was decided is committed even if the sources cannot be opened any more.
            self._flow.open_sinks(context, record.pre_commits)
            if record.finished:
                return
            self._watermarks = {name: at for name, at in record.watermarks.items() if at is not None}
            self._open_sources(record.positions)
            self._keep_leases(decided=False)
            self._event(Level.INFO, "recovered", f"resumed from epoch {record.epoch}", epoch=record.epoch)

    def _refuse_unfinished(self, record: Checkpoint) -> None:
        gone = sorted(record.pre_commits.keys() - {node.id for node in self._graph.sinks()})
        if gone and not self._checkpoints.is_committed(self.head):
            raise GraphChangedError(
                f"job {record.job_uid} no longer has the sink {gone[0]!r}, to which epoch {record.epoch} may not be "
                "committed yet",
                detail=f"sinks with a pending commit that the job no longer has: {', '.join(gone)}",
                hint="run the job once more with its former sinks and stop it, then change it",
                context={"sinks": gone, "epoch": record.epoch},
            )

    def _begin_sources(self) -> None:
        """Decide where each source begins, and lease that before any file of it is planned."""
        begins = self._decided = {node.id: node.source.begin() for node in self._graph.sources()}
        self._keep_leases(decided=False)
        try:
            self._open_sources(begins)
        except HeadraceError:
            self._leases.end(finished=True)
            raise

    def _open_sources(self, positions: Mapping[str, Position]) -> None:
        pushed = requests(self._graph, self._options.until, goes_on=not self._checkpoints.has_ended(self.head))
        for node in self._graph.sources():
            request = pushed[node.id]
            segment = GraphSegment(node.id, self._graph, absent(self._graph, node.id, request.columns or ()))
            reader = node.source.open(replace(request, compute=segment), positions.get(node.id))
            self._readers[node.id] = reader
            self._positions[node.id] = self._decided[node.id] = reader.position
            self._pumps[node.id] = Pump(node.id, reader, segment, self._queue, self._clock)

    # ------------------------------------------------------------------------------------------------------- running

    def _loop(self) -> bool:
        """Process batches until a stop (False) or until every source has ended (True)."""
        running = set(self._pumps)
        self._begin_epoch()
        while running:
            if self._stop.is_set:
                return False
            try:
                item = self._queue.get(timeout=IDLE_S)
            except queue.Empty:
                item = None
            self._moved |= self._flow.tick(self._clock.now_us())
            match item:
                case Computed():
                    self._process(item)
                case Ended():
                    running.discard(item.source)
                    self._flow.end(item.source, self._watermarks)
                case Failed():
                    raise item.error
                case None:
                    pass
            if self._due():
                self._barrier(finished=False)
            elif self._leases.due:
                self._keep_leases(decided=False)
            self._report()
        return True

    def _report(self, phase: Phase | None = None) -> None:
        self._meter.report(
            self._observer, self._pumps, self._flow, self.epoch + 1, self._watermarks, self._clock, phase
        )

    def _process(self, item: Computed) -> None:
        for note in item.notes:
            self._event(Level.INFO, note.code, note.message, source=item.source)
        self._flow.accept(item.results)
        if item.errors is not None:
            self._flow.accept_errors(item.source, item.errors)
        if item.watermark is not None and item.watermark > self._watermarks.get(item.source, item.watermark - 1):
            self._watermarks[item.source] = item.watermark
            self._flow.advance(self._watermarks)
        self._positions[item.source] = item.position
        self._moved = True
        self._meter.count(item.records, item.nbytes)

    def _end(self, *, ended: bool) -> bool:
        """The last epoch: drained or suspended."""
        drain = self._options.on_end == "drain" if ended else self._stop.drain
        # Without state there is nothing to fire: the same job may go on later.
        finished = drain and bool(self._graph.stateful())
        if drain:
            self._report(Phase.DRAINING)
            self._flow.drain()
        if self._moved or finished:
            self._barrier(finished=finished)
        if ended:
            # The next run is to have an end of its own; one that is killed before this goes on to that of this one.
            self._checkpoints.note_ended(self.head)
        if ended or finished:
            self._leases.end(finished=finished)
        self._report(Phase.FINISHED)
        return finished

    # ------------------------------------------------------------------------------------------------------- barrier

    def _begin_epoch(self) -> None:
        self._moved = False
        self._epoch_started = self._clock.monotonic()
        self._meter.begin_epoch(self._flow)

    def _due(self) -> bool:
        if not self._moved:
            return False
        elapsed_us = (self._clock.monotonic() - self._epoch_started) * 1e6
        return (
            elapsed_us >= self._policy.interval_us
            or (self._policy.rows is not None and self._meter.epoch_records >= self._policy.rows)
            or (self._policy.nbytes is not None and self._meter.epoch_bytes >= self._policy.nbytes)
        )

    def _barrier(self, *, finished: bool) -> None:
        started = self._clock.monotonic()
        prepared = self._within_timeout(finished=finished)
        decided = self._clock.monotonic()
        for index, node in enumerate(node for node in self._graph.sinks() if node.id in prepared):
            if index:
                crash.point("between-commits")
            self._flow.commit(node.id, prepared[node.id])
        crash.point("after-commit")
        committed = self._clock.monotonic()
        self._retire()
        self._decided = dict(self._positions)
        self._keep_leases(decided=True)
        self.epochs_done += 1
        self._observer.on_epoch(
            EpochReport(
                self.epoch,
                self._meter.epoch_records,
                self._meter.epoch_rows_out(self._flow),
                started - self._epoch_started,
                decided - started,
                committed - decided,
                watermark=min(self._watermarks.values(), default=None),
            )
        )
        self._begin_epoch()

    def _retire(self) -> None:
        """Tidying up: the epoch is committed whatever comes of it, and the next one tries again."""
        try:
            self._checkpoints.retire(self.head, self._policy.retain)
        except HeadraceError as error:
            text = f"old checkpoints are not removed: {error.message}"
            self._event(Level.WARNING, "retire-failed", text, epoch=self.epoch, error=error.to_dict())

    def _within_timeout(self, *, finished: bool) -> dict[str, PreCommit]:
        future: Future[dict[str, PreCommit]] = Future()

        def decide() -> None:
            try:
                future.set_result(self._decide(finished=finished))
            except BaseException as error:  # noqa: BLE001 - carried to the engine's thread, which raises it
                future.set_exception(error)

        # A thread that hangs must not keep the process from ending, as one of a pool would.
        threading.Thread(target=decide, name="checkpoint", daemon=True).start()
        try:
            return future.result(self._policy.timeout_s)
        except FutureTimeoutError as error:
            # The thread may still swap the head later; the next attempt's own swap makes that one fail.
            self._hung = not future.done()
            raise UnavailableError(
                f"checkpoint of epoch {self.epoch + 1} did not finish in {self._policy.timeout_s:g} s",
                hint="look at the checkpoint store and the sinks, or raise checkpoint.timeout",
                code="CHECKPOINT_TIMEOUT",
            ) from error

    def _decide(self, *, finished: bool) -> dict[str, PreCommit]:
        crash.point("before-prepare")
        coverage = {source: reader.coverage(self._positions[source]) for source, reader in self._readers.items()}
        epoch = EpochId(self._program.uid, self.head.lineage, self.epoch + 1, uuid4().hex)
        prepared = self._flow.prepare(epoch, coverage)
        crash.point("after-prepare")
        self._save(prepared=prepared, finished=finished, epoch=epoch)
        return prepared

    def _save(self, *, prepared: Mapping[str, PreCommit], finished: bool, epoch: EpochId | None = None) -> None:
        found = self._flow.snapshot()
        states = {
            node.id: SavedOperator(node.fingerprint, self._graph.inputs(node), found[node.id])
            for node in self._graph.stateful()
        }
        number = epoch.epoch if epoch else 0
        name, _ = self._checkpoints.save(
            Checkpoint(
                job_uid=self._program.uid,
                lineage=self.head.lineage,
                epoch=number,
                attempt=epoch.attempt if epoch else uuid4().hex,
                created_us=self._clock.now_us(),
                positions=dict(self._positions),
                pins=self._pins,
                watermarks=dict(self._watermarks),
                pre_commits=dict(prepared),
                fingerprint=self._graph.fingerprint(),
                finished=finished,
            ),
            states,
        )
        crash.point("after-record")
        self.head = self._checkpoints.advance(self.head, name)
        self.epoch = number
        crash.point("after-head")

    # ------------------------------------------------------------------------------------------------------- closing

    def _close(self, *, abort: bool) -> None:
        with ExitStack() as closing:  # all of it, whatever fails
            flow = getattr(self, "_flow", None)
            if flow is not None and not self._hung:
                closing.callback(flow.close, abort=abort)
            for pump in self._pumps.values():
                closing.callback(pump.close)
            closing.callback(self._state.close)
            closing.callback(self._workers.close)

    def _keep_leases(self, *, decided: bool) -> None:
        """Of the decided positions: what has been read since may be read again."""
        self._leases.keep(self._decided, self._pins, decided=decided)

    def _event(self, level: Level, code: str, message: str, **context: Json) -> None:
        self._observer.on_event(Event(level, code, message, context))
