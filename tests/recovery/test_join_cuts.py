"""Cut-invariance of every join of two streams, through the real engine.

Random logs, cuts, splits, polls, epochs, crashes and degrees of parallelism; two sources read by two threads; against a
model row by row.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from dataclasses import replace
from datetime import datetime, timedelta

import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.jobs.compile_joins import JoinedStream, join_nodes
from headrace.jobs.spec_joins import JoinSpec
from headrace.kernel import columns
from headrace.runtime.graph import Graph, SinkNode, SourceNode, Stream
from headrace.testing import MemorySink, MemoryTable, StaticProgram
from headrace.testing.script import ScriptedLog
from tests.engine import named_source, random_crashes, run_to_end
from tests.worlds import EPOCH, PAYLOAD, random_log, random_script

EXAMPLES = max(10, int(os.environ.get("HEADRACE_EXAMPLES", "0")) // 4)
KINDS = {
    "near": {"within": {"lower": "-10s", "upper": "25s"}},
    "same": {"window": {"hopping": "30s", "every": "15s"}},
    "held": {"as_of": "backward"},
    "ever": {"where": "v <= r_v"},
}
HOWS = ("inner", "left", "right", "full", "semi", "anti")
Tuples = list[tuple]


def job(sources, tables, hows, a, b):
    nodes = [SourceNode(name, source) for name, source in sources.items()]
    for name, kind in KINDS.items():
        spec = JoinSpec.model_validate(
            {"left": a, "right": b, "on": ["k"], "how": hows[name], "right_prefix": "r_", **kind}
        )
        sides = [JoinedStream(Stream(of), sources[of].schema, "ts") for of in (a, b)]
        nodes += join_nodes(name, spec, *sides)
        nodes.append(SinkNode(f"to-{name}", Stream(name), MemorySink(name, tables[name]), None))
    return StaticProgram("job", Graph(nodes))


def outcome(made, hows, a, b, dice):
    tables = {name: MemoryTable() for name in KINDS}
    scripts = {name: replace(random_script(dice, log), until=None) for name, log in made.items()}
    program = job({name: named_source(name, log, scripts[name]) for name, log in made.items()}, tables, hows, a, b)
    parallelisms = [dice.randint(1, 3) for _ in range(4)]
    assert run_to_end(program, dice.randint(1, 30), random_crashes(dice), parallelisms) == "finished"
    return {name: table.rows() for name, table in tables.items()}


def on_time(log: ScriptedLog) -> ScriptedLog:
    """A log without late rows: a silent partition holds the watermark."""
    return replace(log, event_time=replace(log.event_time, idle_us=None))


def near(a, b) -> bool:
    return a[1] == b[1] and timedelta(seconds=-10) <= a[0] - b[0] <= timedelta(seconds=25)


def ever(a, b) -> bool:
    return a[1] == b[1] and a[2] <= b[2]


def model(how: str, left: Tuples, right: Tuples, match, *more) -> Tuples:
    if how in {"semi", "anti"}:
        return [(*a, *more) for a in left if any(match(a, b) for b in right) == (how == "semi")]
    out = [(*a, b[0], b[2], *more) for a in left for b in right if match(a, b)]
    if how in {"left", "full"}:
        out += [(*a, None, None, *more) for a in left if not any(match(a, b) for b in right)]
    if how in {"right", "full"}:
        out += [(None, b[1], None, b[0], b[2], *more) for b in right if not any(match(a, b) for a in left)]
    return out


def windows(how: str, left: Tuples, right: Tuples) -> Tuples:
    out = []
    starts = {EPOCH + timedelta(seconds=15 * n) for n in range(-300, 600)}
    for start in starts:
        end = start + timedelta(seconds=30)
        mine, other = ([row for row in rows if start <= row[0] < end] for rows in (left, right))
        out += model(how, mine, other, lambda a, b: a[1] == b[1], start, end)
    return out


def versions(how: str, left: Tuples, right: Tuples) -> Tuples:
    out = []
    for a in left:
        found = max(((b[0], b[2]) for b in right if b[1] == a[1] and b[0] <= a[0]), default=None)
        if found is not None or how == "left":
            out.append((*a, *(found or (None, None))))
    return out


def table_of(found: pl.DataFrame) -> Counter:
    total: Counter = Counter()
    names = [name for name in found.columns if name != columns.WEIGHT]
    weights = found[columns.WEIGHT] if columns.WEIGHT in found.columns else [1] * found.height
    for row, weight in zip(found.select(names).rows(), weights, strict=True):
        total[row] += weight
    return Counter({row: count for row, count in total.items() if count})


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.integers(0, 2**63))
def test_output_is_the_same_for_every_cut_split_batch_switch_and_crash_of_both_logs(seed) -> None:
    dice = random.Random(seed)
    made = {name: on_time(random_log(dice, most=16)) for name in ("a", "b")}
    a, b = dice.choice([("a", "b"), ("b", "a"), ("a", "a")])  # a log may be joined with itself
    made = {name: log for name, log in made.items() if name in {a, b}}
    hows = {name: dice.choice(HOWS[:2] if name == "held" else HOWS) for name in KINDS}
    found = outcome(made, hows, a, b, dice)
    all_left, all_right = (made[name].rows().select(list(PAYLOAD)).rows() for name in (a, b))
    left, right = ([row for row in rows if isinstance(row[0], datetime)] for rows in (all_left, all_right))
    wanted = {
        "near": model(hows["near"], left, right, near),
        "same": windows(hows["same"], left, right),
        "held": versions(hows["held"], left, right),
        "ever": model(hows["ever"], all_left, all_right, ever),
    }
    for name, rows in wanted.items():
        assert table_of(found[name]) == Counter(rows), f"{name}, {hows[name]}"
