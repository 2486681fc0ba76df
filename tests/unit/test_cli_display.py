"""What people see of a running job and of a plan."""

import io
import json
from contextlib import redirect_stdout
from pathlib import Path

import pytest
from rich.console import Console

from headrace.cli.consoles import FILE_WIDTH, output_console
from headrace.cli.live import LiveObserver, render_progress
from headrace.cli.logs import LogObserver, json_line, key_value_line
from headrace.cli.render_plan import print_plan
from headrace.cli.words import bytes_text, seconds_text, time_text
from headrace.jobs.plan import (
    BoundaryPlan,
    HandoverPlan,
    HistoryPlan,
    OperatorPlan,
    PartitionPlan,
    Plan,
    SinkPlan,
    SourcePlan,
    TailPlan,
)
from headrace.kernel.protocols import Determinism
from headrace.runtime.observer import (
    EpochReport,
    Event,
    Level,
    LostOffsets,
    PartitionLag,
    Phase,
    Progress,
    SilentPartition,
)
from headrace.testing import ManualClock

PROGRESS = Progress(
    Phase.HISTORY,
    epoch=7,
    records=1_234_567,
    records_per_second=45_678.9,
    nbytes=3 * 2**20,
    rows_out={"hourly": 321},
    history_fraction=0.4321,
    history_eta_s=95.0,
    lag=[PartitionLag("flights", 0, 90, 100), PartitionLag("flights", 1, 0, 5), PartitionLag("other", 0, 2, 2)],
    watermark=1_380_585_600_000_000,
    late_rows=3,
    lost=[LostOffsets("flights", 0, 10, 60)],
)
PLAN = Plan(
    job="delays",
    uid="delays",
    fingerprint="abc123",
    sources=[
        SourcePlan(
            "flights",
            HistoryPlan(
                "lake.flights.archive",
                42,
                ["carrier", "time_hour"],
                19,
                "dep_delay is not null",
                "dep_delay is not null",
                ["length(carrier) = 2"],
                3,
                12,
                3 * 2**20,
                12 * 2**20,
                1000,
                4000,
            ),
            TailPlan(
                ["flights"],
                "default",
                ["carrier"],
                19,
                None,
                [
                    PartitionPlan("flights", 1, 50, 200, 40, kept_s=5400.0),
                    PartitionPlan("flights", 0, 0, 100, 90),
                    PartitionPlan("flights", 2, 0, 10, None, ((3, 8), (9, 10))),
                ],
            ),
            BoundaryPlan("own record", "snapshot 42, summary headrace.boundary"),
            "time_hour, up to 2h out of order",
            handover=HandoverPlan(True, True, 5000, True, "include", "", "history", ["flights[1]"]),
        )
    ],
    operators=[
        OperatorPlan("filter", "filter", "flights", Determinism.EXACT),
        OperatorPlan("window", "window", "filter", Determinism.WITHIN_TOLERANCE, "fp1"),
    ],
    sinks=[
        SinkPlan("hourly", "iceberg", "window", "lake.flights.hourly", "exactly-once", ["carrier", "n"], exists=False)
    ],
    checkpoint_store="/state/jobs/delays",
    tables={"airlines": "lake.flights.airlines @ snapshot 7"},
    warnings=["the snapshot could not be tagged"],
)


def shown(renderable: object, width: int = 100) -> str:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(renderable)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


class TestProgress:
    def test_all_facts_are_shown(self) -> None:
        text = shown(render_progress("delays", PROGRESS, EpochReport(6, 10, {}, 1.0, 0.25, 0.25)))
        for fact in (
            "delays",
            "history",
            "1,234,567 rows, 3.0 MiB, 45,679 rows/s",
            "43.2%, 1m35s to go",
            "flights 15, other 0",
            "50 offsets: flights[0] 10 to 59",
            "2013-10-01T00:00:00Z",
            "hourly 321",
            "3 late",
            "7, last one 1.5s",
        ):
            assert fact in text

    def test_history_goes_away_in_the_tail(self) -> None:
        assert "to go" not in shown(render_progress("j", Progress(Phase.TAIL, history_fraction=1.0), None))

    def test_what_the_watermark_waits_for_stands_beside_it(self) -> None:
        waiting = [SilentPartition("flights", number) for number in range(7)]
        text = shown(render_progress("j", Progress(Phase.TAIL, silent=waiting), None))
        assert "waits for flights[0], flights[1], flights[2], flights[3], flights[4] and 2 more" in text
        assert "event_time.idle" in text
        assert "waits" not in shown(render_progress("j", Progress(Phase.TAIL), None))

    def test_many_topics_are_summed_up(self) -> None:
        lag = [PartitionLag(f"t{number}", 0, 0, number) for number in range(8)]
        assert "t7 7, t6 6, t5 5, t4 4, t3 3 and 3 more topics" in shown(
            render_progress("j", Progress(Phase.TAIL, lag=lag), None)
        )

    def test_live_display_keeps_events_and_says_that_it_stops(self) -> None:
        console = Console(file=io.StringIO(), width=100, force_terminal=True, color_system=None)
        live = LiveObserver("delays", console)
        with live.shown():
            live.on_progress(PROGRESS)
            live.on_epoch(EpochReport(7, 10, {}, 1.0, 0.0, 0.0))
            live.on_event(Event(Level.WARNING, "lag-grows", "retention passes [the boundary] in 2h"))
            live.stopping()
        assert isinstance(console.file, io.StringIO)
        text = console.file.getvalue()
        assert "lag-grows: retention passes [the boundary] in 2h" in text
        assert "stopping at the end of this epoch" in text


class TestLogs:
    def test_progress_is_paced_but_phases_are_not(self) -> None:
        clock, out = ManualClock(), io.StringIO()
        observer = LogObserver(json_line, out, clock)
        observer.on_progress(PROGRESS)
        observer.on_progress(PROGRESS)
        clock.advance(10_000_000)
        observer.on_progress(PROGRESS)
        observer.on_progress(Progress(Phase.TAIL))
        records = [json.loads(line) for line in out.getvalue().splitlines()]
        assert [record["phase"] for record in records] == ["history", "history", "tail"]
        assert records[0]["lag"] == {"flights": 15, "other": 0}
        assert records[0]["watermark"] == "2013-10-01T00:00:00Z"

    def test_events_hide_secrets(self) -> None:
        out = io.StringIO()
        LogObserver(key_value_line, out, ManualClock()).on_event(
            Event(Level.ERROR, "retry", "commit failed, again", {"token": "hush", "attempt": 2})
        )
        assert out.getvalue() == (
            "time=1970-01-01T00:00:00Z level=error event=note code=retry "
            'message="commit failed, again" token=*** attempt=2\n'
        )

    def test_closed_stream_does_not_stop_the_job(self) -> None:
        out = io.StringIO()
        out.close()
        LogObserver(json_line, out).on_epoch(EpochReport(1, 0, {}, 0.0, 0.0, 0.0))


class TestPlan:
    def test_all_facts_are_shown(self) -> None:
        text = shown_plan()
        for fact in (
            "lake.flights.archive @ snapshot 42",
            "carrier, time_hour (2 of 19)",
            "length(carrier) = 2",
            "3 of 12",
            "3.0 MiB of 12.0 MiB",
            "1,000 of 4,000",
            "own record",
            "snapshot 42, summary headrace.boundary",
            "partition by partition",
            "newer snapshots first",
            "when 5,000 records behind, or offsets are gone",
            "flights[1]",
            "gap: wanted offsets are gone in flights[1]",
            "lost: 6 offsets: flights[2] 3 to 7, flights[2] 9 to 9",
            "within tolerance",
            "fp1",
            "lake.flights.hourly (will be created)",
            "lake.flights.airlines @ snapshot 7",
            "warning: the snapshot could not be tagged",
        ):
            assert fact in text

    def test_partitions_are_sorted_and_their_lag_shown(self) -> None:
        words = [line.split() for line in shown_plan().splitlines()]
        rows = [line[1:] for line in words if line[:1] == ["flights"] and line[1:2] in (["0"], ["1"], ["2"])]
        assert rows == [
            ["0", "0", "100", "90", "10", "-"],
            ["1", "50", "200", "40", "160", "1h30m"],
            ["2", "0", "10", "-", "-", "-"],
        ]

    def test_json(self) -> None:
        plan = json.loads(json.dumps(PLAN.to_json()))
        assert plan["determinism"] == "within tolerance"
        assert [(at["lag"], at["gap"]) for at in plan["sources"][0]["tail"]["partitions"]] == [
            (160, True),
            (10, False),
            (None, False),
        ]


def test_lines_in_files_and_pipes_are_not_cut_to_the_width_of_a_terminal(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    with (tmp_path / "out.txt").open("w+") as file, redirect_stdout(file):
        assert output_console().width == FILE_WIDTH
        output_console().print("word " * 30)
        file.seek(0)
        assert len(file.read().splitlines()) == 1
    monkeypatch.setenv("COLUMNS", "90")
    assert output_console().width == 90


def shown_plan() -> str:
    console = Console(file=io.StringIO(), width=120, color_system=None)
    print_plan(PLAN, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize(
    ("given", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (2**40, "1.0 TiB"), (2**60, "1024.0 PiB")]
)
def test_bytes(given: int, text: str) -> None:
    assert bytes_text(given) == text


@pytest.mark.parametrize(("given", "text"), [(9.6, "10s"), (61, "1m01s"), (3700, "1h01m"), (90_000, "1d01h")])
def test_seconds(given: float, text: str) -> None:
    assert seconds_text(given) == text


def test_times_beyond_the_calendar_are_numbers() -> None:
    assert (time_text(None), time_text(10**18)) == ("-", str(10**18))
