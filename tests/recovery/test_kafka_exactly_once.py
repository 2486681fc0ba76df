"""The engine with Kafka sinks on a real broker: killed everywhere, timed out, fenced. Each row is there once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from headrace.kernel import crash
from headrace.kernel.errors import FencedError
from headrace.state.stores import open_store
from headrace.testing import CRASH_POINTS, CRASH_VARIABLE
from infra.dev.process import wait_until
from tests.recovery.kafka_job import ROWS, KafkaJob

if TYPE_CHECKING:
    from tests.kafka import KafkaHelper

pytestmark = pytest.mark.services

EPOCHS = 4


@pytest.fixture
def job(kafka: KafkaHelper, tmp_path: Path) -> KafkaJob:
    topics = [kafka.topic(2, prefix="eo") for _ in range(2)]
    return KafkaJob(f"job-{uuid.uuid4().hex[:8]}", kafka.bootstrap, str(tmp_path / "store"), topics, EPOCHS)


def with_timeout(job: KafkaJob, milliseconds: int) -> KafkaJob:
    return replace(job, options={"transaction.timeout.ms": milliseconds})


def numbers(kafka: KafkaHelper, job: KafkaJob) -> list[list[int]]:
    return [sorted(json.loads(value or b"")["n"] for value in kafka.values(topic)) for topic in job.topics]


def everything(job: KafkaJob) -> list[list[int]]:
    return [list(range(job.epochs * ROWS))] * len(job.topics)


def open_transaction(kafka: KafkaHelper, topic: str) -> bool:
    return any(
        kafka.watermarks(topic, partition)[1] < kafka.watermarks(topic, partition, isolation="read_uncommitted")[1]
        for partition in kafka.partitions(topic)
    )


def test_snk_04_killed_at_every_point_in_turn(kafka: KafkaHelper, job: KafkaJob) -> None:
    # Two sinks may share a partition of markers: what a killed one left open then ends by its timeout.
    job = with_timeout(job, 5000)
    program = [sys.executable, str(Path(__file__).with_name("kafka_job.py")), job.dump()]
    killed = []
    for point in CRASH_POINTS:
        if not point.startswith("iceberg"):
            done = subprocess.run(program, env={**os.environ, CRASH_VARIABLE: f"{point}:1"}, check=False)
            killed.append(done.returncode)
    assert set(killed) == {-9}
    job.run()
    assert numbers(kafka, job) == everything(job)


def test_kaf_05_a_transaction_timed_out_before_its_commit(kafka: KafkaHelper, job: KafkaJob) -> None:
    job = with_timeout(job, 1000)
    held: list[Any] = []

    def hold(point: str) -> None:
        if point == "kafka-before-commit" and not held:
            held.append(point)
            assert wait_until(lambda: not open_transaction(kafka, job.topics[0]), 60)

    uninstall = crash.install(hold)
    try:
        result = job.run()
    finally:
        uninstall()
    assert held
    assert result.restarts == 1
    assert numbers(kafka, job) == everything(job)


@pytest.mark.parametrize("at", ["after-prepare", "kafka-before-commit"])
def test_kaf_05_an_instance_that_was_paused_and_replaced_stops(kafka: KafkaHelper, job: KafkaJob, at: str) -> None:
    """SNK-03 too: the second one runs to its end while the first is paused in the middle of an epoch."""
    paused: list[Any] = []

    def pause(point: str) -> None:
        if point == at and not paused:
            paused.append(point)
            subprocess.run(
                [sys.executable, str(Path(__file__).with_name("kafka_job.py")), job.dump()], check=True, timeout=120
            )
            paused.append(open_store(job.store).head.read())

    uninstall = crash.install(pause)
    try:
        with pytest.raises(FencedError):
            job.run()
    finally:
        uninstall()
    assert numbers(kafka, job) == everything(job)
    assert open_store(job.store).head.read() == paused[1]
