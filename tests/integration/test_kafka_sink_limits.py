"""The Kafka sink on a real broker: records over the limit, transactions out of time, fenced writers."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace

import polars as pl
import pytest

from headrace.kernel.errors import (
    FencedError,
    RejectedRecordError,
    TransactionAbortedError,
)
from tests.kafka_target import Target, prepared, rows

pytestmark = pytest.mark.services


@pytest.mark.parametrize("client_limit", [None, 8_000_000])
def test_kaf_04_a_record_over_the_limit_ends_the_epoch(target: Target, client_limit: int | None) -> None:
    """Once refused by the client, once by the broker."""
    options = {} if client_limit is None else {"message.max.bytes": client_limit}
    writer = target.ready(**options)
    small = rows(1, 3)
    big = small.head(1).with_columns(k=pl.lit(os.urandom(1_500_000).hex()))
    sink = replace(target.sink(**options), key=("n",))
    writer = target.writer(sink)
    writer.recover(None)
    writer.write(pl.concat([small.head(1), big.with_columns(n=pl.lit(2, pl.Int64)), small.tail(1)]))
    with pytest.raises(RejectedRecordError, match="with key '2'") as caught:
        writer.prepare(target.epoch(1), None)
    context = caught.value.context
    assert context["size"] > 2_000_000
    assert 1_000_000 <= context["limit"] < 1_100_000
    assert not caught.value.retryable
    assert target.visible() == []
    assert not target.open_transaction()
    writer.abort()
    writer.commit(prepared(writer, target.epoch(1, "b"), small))
    assert target.visible() == [1, 3]


def test_kaf_05_a_transaction_that_was_timed_out(target: Target) -> None:
    writer = target.ready(transaction_timeout_ms=1000)
    pre_commit = prepared(writer, target.epoch(1), rows(1, 2))
    wait_for(lambda: not target.open_transaction())
    assert target.visible() == []
    with pytest.raises(TransactionAbortedError) as caught:
        writer.commit(pre_commit)
    assert caught.value.code == "TRANSACTION_TIMED_OUT"
    writer.recover(pre_commit)
    assert target.visible() == [1, 2]
    writer.commit(prepared(writer, target.epoch(2), rows(3)))
    assert target.visible() == [1, 2, 3]


def test_kaf_05_a_fenced_writer_commits_nothing(target: Target) -> None:
    paused = target.ready()
    pre_commit = prepared(paused, target.epoch(1), rows(1))
    second = target.ready()
    with pytest.raises(FencedError) as caught:
        paused.commit(pre_commit)
    assert (caught.value.code, caught.value.retryable) == ("PRODUCER_FENCED", False)
    paused.abort()
    paused.close()
    assert target.visible() == []
    second.commit(prepared(second, target.epoch(1, "b"), rows(1)))
    assert target.visible() == [1]


def test_kaf_05_a_writer_that_was_fenced_while_idle_prepares_nothing(target: Target) -> None:
    paused = target.ready()
    paused.write(rows(1))
    target.ready()
    with pytest.raises(FencedError):
        paused.prepare(target.epoch(1), None)
    paused.abort()
    paused.close()
    assert target.visible() == []


def wait_for(condition: Callable[[], bool]) -> None:
    from infra.dev.process import wait_until

    assert wait_until(condition, 30.0)
