"""What only S3 has: lost replies, stores without conditional writes, refused credentials. On a real store."""

from __future__ import annotations

import threading
import uuid
from dataclasses import dataclass, field
from typing import Any

import boto3
import pytest
from botocore.exceptions import ReadTimeoutError

from headrace.kernel.errors import (
    AccessDeniedError,
    CommitUnknownError,
    ConfigError,
    FencedError,
    UnavailableError,
)
from headrace.kernel.protocols import Head
from headrace.state.s3 import S3BlobStore, S3HeadStore, probe_conditional_writes
from headrace.state.stores import open_store

pytestmark = pytest.mark.services


@dataclass
class Wire:
    """A client whose puts reach the store, but whose answers do not always come back."""

    client: Any
    lose: int = 0
    drop: int = 0
    before: list[Any] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.client, name)

    def put_object(self, **options: Any) -> Any:
        if self.before:
            self.before.pop(0)()
        if self.drop:
            self.drop -= 1
            raise ReadTimeoutError(endpoint_url="x")
        found = self.client.put_object(**options)
        if self.lose:
            self.lose -= 1
            raise ReadTimeoutError(endpoint_url="x")
        return found

    def put_twice(self, **options: Any) -> Any:
        """What a client library does that does not see the first answer."""
        self.client.put_object(**options)
        return self.client.put_object(**options)


@pytest.fixture
def options(stack: Any) -> dict[str, Any]:
    s3 = stack.endpoints.s3
    return {
        "endpoint_url": s3.endpoint,
        "aws_access_key_id": s3.access_key,
        "aws_secret_access_key": s3.secret_key,
        "region_name": s3.region,
    }


@pytest.fixture
def bucket(stack: Any) -> str:
    return str(stack.endpoints.s3.bucket)


@pytest.fixture
def wire(options: dict[str, Any]) -> Wire:
    return Wire(boto3.client("s3", **options))


@pytest.fixture
def prefix() -> str:
    return f"jobs/{uuid.uuid4().hex}"


def head(sequence: int, owner: str = "me") -> Head:
    return Head(sequence, owner, uuid.uuid4().hex, "lineage", None)


def test_a_put_that_the_library_repeated_has_worked(wire: Wire, bucket: str, prefix: str) -> None:
    blobs = S3BlobStore(wire, bucket, prefix)
    wire.put_object = wire.put_twice  # type: ignore[method-assign]
    blobs.put("name", b"data")
    assert blobs.get("name") == b"data"
    with pytest.raises(FencedError):
        blobs.put("name", b"data")


def test_a_swap_that_the_library_repeated_has_worked(wire: Wire, bucket: str, prefix: str) -> None:
    heads = S3HeadStore(wire, bucket, prefix)
    first, second = head(1), head(2)
    wire.put_object = wire.put_twice  # type: ignore[method-assign]
    heads.swap(None, first)
    heads.swap(first, second)
    assert heads.read() == second


def test_a_swap_whose_answer_was_lost_has_worked(wire: Wire, bucket: str, prefix: str) -> None:
    heads = S3HeadStore(wire, bucket, prefix)
    first, second = head(1), head(2)
    wire.lose = 1
    heads.swap(None, first)
    wire.lose = 1
    heads.swap(first, second)
    assert heads.read() == second


def test_a_swap_that_never_arrived_is_sent_again(wire: Wire, bucket: str, prefix: str) -> None:
    heads = S3HeadStore(wire, bucket, prefix)
    first = head(1)
    wire.drop = 2
    heads.swap(None, first)
    assert heads.read() == first


def test_a_swap_without_any_answer_is_unknown(wire: Wire, bucket: str, prefix: str) -> None:
    heads = S3HeadStore(wire, bucket, prefix)
    wire.drop = 10
    with pytest.raises(CommitUnknownError) as caught:
        heads.swap(None, head(1))
    assert not caught.value.retryable


def test_another_s_swap_between_reading_and_writing_wins(wire: Wire, bucket: str, prefix: str) -> None:
    heads = S3HeadStore(wire, bucket, prefix)
    other = S3HeadStore(wire.client, bucket, prefix)
    first, mine, theirs = head(1), head(2), head(2, "other")
    heads.swap(None, first)
    wire.before = [lambda: other.swap(first, theirs)]
    with pytest.raises(FencedError, match="taken over"):
        heads.swap(first, mine)
    assert heads.read() == theirs


def test_a_lost_blob_answer_is_unavailable(wire: Wire, bucket: str, prefix: str) -> None:
    wire.lose = 1
    with pytest.raises(UnavailableError):
        S3BlobStore(wire, bucket, prefix).put("name", b"data")


@pytest.mark.parametrize("ignored", ["IfNoneMatch", "IfMatch"])
def test_a_store_that_ignores_conditions_is_refused(wire: Wire, bucket: str, prefix: str, ignored: str) -> None:
    def careless(**options: Any) -> Any:
        options.pop(ignored, None)
        return wire.client.put_object(**options)

    wire.put_object = careless  # type: ignore[method-assign]
    with pytest.raises(ConfigError) as caught:
        probe_conditional_writes(wire, bucket, prefix + "/")
    assert caught.value.code == "STORE_UNSAFE"
    assert wire.client.list_objects_v2(Bucket=bucket, Prefix=prefix).get("Contents") is None


def test_a_wrong_secret(options: dict[str, Any], bucket: str, prefix: str) -> None:
    with pytest.raises(AccessDeniedError):
        open_store(f"s3://{bucket}/{prefix}", {"s3": {**options, "aws_secret_access_key": "wrong"}})


def test_one_winner_among_threads(options: dict[str, Any], bucket: str, prefix: str) -> None:
    stores = [open_store(f"s3://{bucket}/{prefix}", {"s3": options}) for _ in range(4)]
    first = head(1)
    stores[0].head.swap(None, first)
    barrier = threading.Barrier(len(stores))
    won: list[int] = []

    def swap(number: int) -> None:
        barrier.wait()
        try:
            stores[number].head.swap(first, head(2, str(number)))
        except FencedError:
            return
        won.append(number)

    threads = [threading.Thread(target=swap, args=(number,)) for number in range(len(stores))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    found = stores[0].head.read()
    assert found is not None
    assert found.owner == str(won[0])
