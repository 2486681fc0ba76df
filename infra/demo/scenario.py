"""The demonstration, step by step, on the dev stack; everything a user would do goes through the command line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import polars as pl
from confluent_kafka import TopicPartition

from catalog.catalogs import Catalogs
from catalog.tables import load_or_create
from headrace.kafka.cluster import KafkaCluster
from headrace.kafka.metadata import KafkaMetadata
from headrace.kernel.errors import InternalError, UnavailableError
from infra import dev
from infra.demo import data, traffic
from infra.demo.expected import Comparison, batch_computation, compare, from_json_records

TOPIC: Final = "flights"
OUTPUT_TOPIC: Final = "hourly-delays"
ARCHIVE: Final = "lake.flights.archive"
AIRLINES: Final = "lake.flights.airlines"
OUTPUT_TABLE: Final = "lake.flights.hourly_delays"
OVERLAP: Final = 5_000
"""Records per partition below the boundary that retention has not deleted yet."""

DEADLINE_S: Final = 180.0
JOB: Final = Path(__file__).with_name("job.yaml")


@dataclass(frozen=True, slots=True)
class Result:
    """What the demo saw.

    Attributes:
        table: Comparison of the Iceberg table with the batch computation.
        topic: Comparison of the Kafka topic with it.
        seam: The seam proof of the job, as ``headrace seam --json`` gives it.
        killed_at_epoch: The epoch that was running when the job was killed.
        seconds: Duration, without downloads.
        locations: Where everything is, for an independent check.
    """

    table: Comparison
    topic: Comparison
    seam: Any
    killed_at_epoch: int
    seconds: float
    locations: Mapping[str, Any] = field(default_factory=dict)

    @property
    def equal(self) -> bool:
        """Whether both outputs are exactly what the batch computation gives."""
        return self.table.equal and self.topic.equal

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "equal": self.equal,
            "table": self.table.to_json(),
            "topic": self.topic.to_json(),
            "seam": self.seam,
            "killed_at_epoch": self.killed_at_epoch,
            "seconds": round(self.seconds, 1),
            "locations": dict(self.locations),
        }


Say = Callable[[str], None]


class Demo:
    """One run of the demonstration in a folder of its own.

    Args:
        folder: For the stack, the configuration and the job's state.
        say: Told of each step.
    """

    def __init__(self, folder: Path, say: Say) -> None:
        self._folder = folder
        self._say = say

    def run(self) -> Result:
        """Run it; the stack is left up.

        Raises:
            HeadraceError: A step failed; the message says which.
        """
        started = time.monotonic()
        self._start_stack()
        flights, airlines = data.flights(), data.airlines()
        before = flights.filter(pl.col("month") < data.FIRST_LIVE_MONTH)
        after = flights.filter(pl.col("month") >= data.FIRST_LIVE_MONTH)
        self._prepare(before, airlines)
        self._archive()
        self._forget()
        killed = self._live(after)
        self._say("finish: the same job again, up to the end of the topic")
        self._headrace("run", str(JOB), "--until", "caught-up")
        expected = batch_computation(flights, airlines)
        result = Result(
            compare(self._table_rows(), expected),
            compare(self._topic_rows(), expected),
            json.loads(self._headrace("seam", str(JOB), "--json")),
            killed,
            time.monotonic() - started,
            self._locations(),
        )
        self._say(
            f"Iceberg: {result.table.rows} rows of {result.table.expected}; "
            f"Kafka: {result.topic.rows} rows of {result.topic.expected}; "
            f"{'both equal' if result.equal else 'NOT EQUAL to'} the batch computation"
        )
        return result

    # --------------------------------------------------------------------------------------------------------- steps

    def _start_stack(self) -> None:
        self._say("start Kafka, S3 and an Iceberg REST catalog")
        endpoints = dev.up(self._folder / "stack")
        self._config = self._folder / "headrace.toml"
        self._config.write_text(dev.render_settings(endpoints, self._folder), encoding="utf-8")
        settings = tomllib.loads(self._config.read_text(encoding="utf-8"))
        self._cluster = KafkaCluster("default", settings["kafka"]["default"])
        self._metadata = KafkaMetadata(self._cluster)
        self._catalogs = Catalogs(settings["catalogs"])

    def _prepare(self, before: pl.DataFrame, airlines: pl.DataFrame) -> None:
        self._say(f"January to September: {before.height} flights to topic {TOPIC}")
        traffic.create_topic(self._cluster, TOPIC)
        traffic.produce(self._cluster, TOPIC, before)
        table = load_or_create(self._catalogs, AIRLINES, airlines.schema)
        table.append(airlines.to_arrow(compat_level=pl.CompatLevel.oldest()))

    def _archive(self) -> None:
        self._say(f"archive the topic into {ARCHIVE}, with its boundary record")
        columns = json.dumps(data.FLIGHT_SCHEMA)
        self._headrace("archive", TOPIC, ARCHIVE, "--schema", columns, "--until", "caught-up")

    def _forget(self) -> None:
        ends = self._metadata.latest(self._metadata.describe(TOPIC).places)
        starts = {at.partition: max(0, end - OVERLAP) for at, end in ends.items()}
        self._say(f"retention deletes all but the last {OVERLAP} records of each partition")
        traffic.delete_before(self._cluster, TOPIC, starts)

    def _live(self, after: pl.DataFrame) -> int:
        """Run the job while October to December happens, kill it on the way, start it again, stop it gracefully."""
        self._say(f"run the job while October to December happens: {after.height} flights")
        half = after.height // 2
        first, second = (self._producer(rows) for rows in (after[:half], after[half:]))
        job = self._start_job()
        first.start()
        try:
            epoch = self._wait_for_tail_epoch(job)
            job.send_signal(signal.SIGKILL)
            job.wait()
            # One after the other: both at once would put October behind December, late beyond the declared bound.
            first.join()
            second.start()
            self._say(f"kill -9 during epoch {epoch + 1}; start it again")
            job = self._start_job()
            self._wait_for_tail_epoch(job)
        finally:
            for producer in (first, second):
                if producer.ident is not None:
                    producer.join()
            job.send_signal(signal.SIGTERM)
            job.wait(DEADLINE_S)
        if job.returncode != 0:
            raise InternalError(f"the job ended with exit code {job.returncode} after SIGTERM", detail=self._log_tail())
        return epoch + 1

    def _producer(self, flights: pl.DataFrame) -> threading.Thread:
        return threading.Thread(target=traffic.produce, args=(self._cluster, TOPIC, flights), kwargs={"paced": True})

    # --------------------------------------------------------------------------------------------------- observation

    def _start_job(self) -> subprocess.Popen[bytes]:
        self._log = self._folder / f"run-{time.monotonic_ns()}.log"
        with self._log.open("wb") as log:
            return subprocess.Popen(
                [*_headrace(), "run", str(JOB), "--json-logs"], env=self._environment(), stdout=log, stderr=log
            )

    def _wait_for_tail_epoch(self, job: subprocess.Popen[bytes]) -> int:
        """Wait until the job has committed an epoch with rows of the tail; its number."""
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            in_tail = False
            for event in self._events():
                in_tail = in_tail or event.get("code") in {"handover", "recovered"}
                if in_tail and event.get("event") == "epoch" and event["records"]:
                    return int(event["epoch"])
            if job.poll() is not None:
                raise InternalError(f"the job ended early with exit code {job.returncode}", detail=self._log_tail())
            time.sleep(0.1)
        raise UnavailableError("the job committed nothing in time", detail=self._log_tail())

    def _events(self) -> list[dict[str, Any]]:
        lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()
        return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]

    def _log_tail(self) -> str:
        return "\n".join(self._log.read_text(encoding="utf-8", errors="replace").splitlines()[-15:])

    def _table_rows(self) -> pl.DataFrame:
        return pl.DataFrame(self._catalogs.load(OUTPUT_TABLE).scan().to_arrow())

    def _topic_rows(self) -> pl.DataFrame:
        places = self._metadata.describe(OUTPUT_TOPIC).places
        ends = {at.partition: end for at, end in self._metadata.stable(places).items()}
        consumer = self._cluster.consumer()
        consumer.assign([TopicPartition(OUTPUT_TOPIC, partition, 0) for partition in ends])
        values: list[bytes] = []
        open_partitions = {partition for partition, end in ends.items() if end}
        while open_partitions:
            for message in consumer.consume(10_000, 1.0):
                if message.error() is not None:
                    open_partitions.discard(message.partition() or 0)
                elif (value := message.value()) is not None:
                    values.append(value)
        consumer.close()
        return from_json_records(values)

    def _locations(self) -> dict[str, Any]:
        return {
            "config": str(self._config),
            "job": str(JOB),
            "archive_table": ARCHIVE,
            "output_table": OUTPUT_TABLE,
            "topic": TOPIC,
            "output_topic": OUTPUT_TOPIC,
            "stack": str(self._folder / "stack"),
        }

    # ------------------------------------------------------------------------------------------------------- plumbing

    def _environment(self) -> dict[str, str]:
        return {**os.environ, "HEADRACE_CONFIG": str(self._config)}

    def _headrace(self, *arguments: str) -> str:
        done = subprocess.run(
            [*_headrace(), *arguments], env=self._environment(), capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise InternalError(
                f"headrace {arguments[0]} ended with exit code {done.returncode}", detail=done.stderr.strip()[-2000:]
            )
        return done.stdout


def _headrace() -> list[str]:
    return [sys.executable, "-m", "headrace.cli"]
