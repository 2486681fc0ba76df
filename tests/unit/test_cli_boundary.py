"""``headrace boundary``: what is printed, and how offsets are written."""

import json
from pathlib import Path

import pyarrow as pa
import pytest

from catalog.catalogs import Catalogs, TableName
from catalog.commit import set_boundary
from headrace.cli.app import run
from headrace.cli.boundary import parse_offset
from headrace.jobs.config import load_config
from headrace.kernel.boundary import Boundary, PartitionRange, TopicBoundary
from headrace.kernel.errors import ExitCode, UserError

TABLE = "local.shop.orders"


@pytest.fixture
def state(tmp_path: Path) -> list[str]:
    """Options that select a state folder with an empty table in its local catalog."""
    (tmp_path / "headrace.toml").touch()
    config = load_config(tmp_path / "headrace.toml", environ={})
    catalogs = Catalogs(config.catalogs)
    local = catalogs.catalog("local")
    local.create_namespace("shop")
    local.create_table("shop.orders", pa.schema([("id", pa.int64())]))
    catalogs.close()
    return ["--config", str(tmp_path / "headrace.toml")]


def record(options: list[str]) -> int:
    catalogs = Catalogs(load_config(options[1], environ={}).catalogs)
    covered = Boundary({"orders": TopicBoundary({0: PartitionRange(0, 12), 1: PartitionRange(3, 7)}, "id-1")})
    snapshot = set_boundary(catalogs, TableName.parse(TABLE), covered)
    catalogs.close()
    return snapshot


def test_table_without_record(state: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["boundary", "show", TABLE, *state]) == ExitCode.USER
    assert "error[BOUNDARY_NOT_FOUND]: table local.shop.orders has no boundary record" in capsys.readouterr().err


def test_unknown_table_and_snapshot(state: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["boundary", "show", "local.shop.order", *state]) == ExitCode.USER
    assert "error[TABLE_NOT_FOUND]" in capsys.readouterr().err
    assert run(["boundary", "show", TABLE, "--snapshot", "5", *state]) == ExitCode.USER
    assert "error[SNAPSHOT_NOT_FOUND]" in capsys.readouterr().err


def test_record_is_shown_with_its_evidence(state: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    snapshot = record(state)
    assert run(["boundary", "show", TABLE, *state]) == ExitCode.OK
    lines = capsys.readouterr().out.splitlines()
    assert f"recorded in snapshot {snapshot}" in lines[0]
    assert lines[1:] == [
        "topic orders (id id-1)",
        "  partition 0: offsets 0 up to 12, exclusive",
        "  partition 1: offsets 3 up to 7, exclusive",
    ]
    assert run(["boundary", "show", TABLE, "--json", "--snapshot", str(snapshot), *state]) == ExitCode.OK
    shown = json.loads(capsys.readouterr().out)
    assert shown["recorded_in"] == snapshot
    assert shown["boundary"]["topics"]["orders"]["partitions"]["1"] == {"start": 3, "next": 7}


def test_every_rule_is_shown_for_a_topic(state: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["boundary", "show", TABLE, "--topic", "orders", *state]) == ExitCode.OK
    text = capsys.readouterr().out
    assert "topic orders: empty history" in text
    assert "not there   recorded boundary: a boundary record of Headrace" in text
    assert "not tried   columns of Redpanda" in text
    snapshot = record(state)
    assert run(["boundary", "show", TABLE, "--topic", "orders", "--json", *state]) == ExitCode.OK
    shown = json.loads(capsys.readouterr().out)
    assert (shown["snapshot"], shown["topic"]) == (snapshot, "orders")
    assert shown["resolution"]["rule"] == "recorded boundary"
    assert shown["resolution"]["record"]["topics"]["orders"]["partitions"]["1"] == {"start": 3, "next": 7}
    assert [entry["outcome"] for entry in shown["tried"]][:2] == ["applied", "not tried"]


def test_a_topic_that_no_rule_knows_is_refused_after_the_verdicts(
    state: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    catalogs = Catalogs(load_config(state[1], environ={}).catalogs)
    catalogs.load(TABLE).append(
        pa.table({"id": [1]}), snapshot_properties={"flink.job-id": "a", "flink.max-committed-checkpoint-id": "4"}
    )
    catalogs.close()
    assert run(["boundary", "show", TABLE, "--topic", "orders", "--json", *state]) == ExitCode.DATA
    output = capsys.readouterr()
    assert json.loads(output.out)["resolution"] is None
    assert "error[BOUNDARY_MISSING]: no boundary between local.shop.orders and topic orders" in output.err
    assert "Flink records no offsets" in output.err


def test_reset_needs_a_record_and_a_yes(state: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["boundary", "reset", TABLE, *state]) == ExitCode.USER
    assert "error[BOUNDARY_NOT_FOUND]" in capsys.readouterr().err
    record(state)
    assert run(["boundary", "reset", TABLE, "--topic", "payments", *state]) == ExitCode.USER
    assert "does not know topic 'payments'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0:1834", (0, PartitionRange(0, 1834))),
        ("12:5-9", (12, PartitionRange(5, 9))),
        ("0:0", (0, PartitionRange(0, 0))),
    ],
)
def test_offsets(text: str, expected: tuple[int, PartitionRange]) -> None:
    assert parse_offset(text) == expected


@pytest.mark.parametrize("text", ["", "5", "a:1", "0:-1", "0:9-5", "0:1:2", "0:1.5"])
def test_wrong_offsets(text: str) -> None:
    with pytest.raises(UserError, match="is no offset of a partition"):
        parse_offset(text)
