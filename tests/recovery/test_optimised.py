"""Jobs give the same with and without pushing predicates and columns below state, through the real engine.

Random logs, graphs, filters, cuts, batches and epochs, with rows that are late; event times are different, so that no
rows are tied.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from dataclasses import replace

import polars as pl
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headrace.jobs.compile_joins import JoinedStream, join_nodes
from headrace.jobs.spec_joins import JoinSpec
from headrace.kernel import columns
from headrace.runtime.graph import Graph, SinkNode, SourceNode, StatefulNode, Stream, TransformNode
from headrace.runtime.job import CheckpointPolicy, RunOptions
from headrace.runtime.observer import SilentObserver, StopSignal
from headrace.runtime.optimiser import optimised
from headrace.runtime.restarts import run
from headrace.testing import MemorySink, MemoryTable, StaticProgram, memory_store
from headrace.testing.script import Script
from headrace.testing.stages import scripted_source
from operators.dedup import Dedup
from operators.early_window import EarlyWindow
from operators.keyed_aggregate import KeyedAggregate
from operators.running_top import RunningTop
from operators.session import SessionWindow
from operators.stateless import Filter, Select
from operators.top import TopN
from operators.union import Union
from operators.window import CumulatingWindow, HoppingWindow, TumblingWindow
from tests.worlds import random_log

SECOND = 1_000_000
EXAMPLES = max(25, int(os.environ.get("HEADRACE_EXAMPLES", "0")))
ROWS = pl.Schema({"ts": pl.Datetime("us"), "k": pl.String(), "v": pl.Int64(), "w": pl.Int64(), "f": pl.Float64()})
TESTS = (
    *("k = 'a'", "k <> 'b'", "k in ('a', 'c')", "k is null", "k is not null or v > 1", "length(k) = 1", "k like 'a%'"),
    *("v > 0", "v is null", "w <= 2", "v % 2 = 0", "v + 1 > w", "f > 0", "f is null or f < 2.5", "coalesce(v, 1) = 1"),
    *("(k = 'a' and v > 0) or (k = 'b' and w > 1)", "k = 'a' or v > 100", "not (k = 'a' and v > 0)", "upper(k) = 'B'"),
    "case when k = 'a' then v > 0 else w > 0 end",
)
WHOLE = {"n": "count(*)", "s": "sum(v)", "lo": "min(w)", "f": "max(f)", "g": "first(v)"}
SHAPED = {"ts": "window_start", "k": "k", "v": "s", "w": "cast(n as bigint)", "f": "f"}
KINDS = ("inner", "left", "right", "full", "semi", "anti")


class Drawn:
    """A random graph under construction; every stream has the columns of ``ROWS``, maybe with a weight."""

    def __init__(self, dice, sources):
        self.dice = dice
        self.nodes = [SourceNode(name, source) for name, source in sources.items()]
        self.number = 0
        self.tied = False

    def id(self):
        self.number += 1
        return f"n{self.number}"

    def through(self, made, *inputs):
        kind = StatefulNode if hasattr(made, "open") else TransformNode
        self.nodes.append(kind(made.id, inputs[0], made, *([inputs[1:]] if inputs[1:] else [])))
        return Stream(made.id)

    def filtered(self, stream):
        for _ in range(self.dice.randint(0, 2)):
            test = " and ".join(self.dice.sample(TESTS, self.dice.randint(1, 2)))
            stream = self.through(Filter(self.id(), test), stream)
        return stream

    def renamed(self, stream):
        if self.dice.random() < 0.5:
            return stream
        return self.through(Select(self.id(), {"ts": "ts", "k": "k", "v": "w", "w": "v", "f": "f"}), stream)

    def united(self, left, right):
        return self.through(Union(self.id(), ROWS), left, right)

    @property
    def order(self):
        """An order without ties: behind windows and joins, event times are no longer different."""
        return [(name, name == "ts") for name in (ROWS if self.tied else ["ts"]) if name != "k"]

    def windowed(self, stream):
        dice, self.tied = self.dice, True
        by = dice.choice([["k"], ["k"], ["w", "k"]])
        made = dice.choice(
            [
                lambda: TumblingWindow(self.id(), "ts", 20 * SECOND, WHOLE, by=by),
                lambda: HoppingWindow(self.id(), "ts", 30 * SECOND, 10 * SECOND, WHOLE, by=by),
                lambda: CumulatingWindow(self.id(), "ts", 30 * SECOND, 10 * SECOND, WHOLE, by=by),
                lambda: SessionWindow(self.id(), "ts", 15 * SECOND, WHOLE, by=by),
            ]
        )()
        return self.through(Select(self.id(), SHAPED), self.through(made, stream))

    def kept(self, stream):
        dice, key = self.dice, [name for name in ("v", "w", "f") if self.tied]
        made = dice.choice(
            [
                lambda: Dedup(
                    self.id(), "ts", list(dict.fromkeys([*dice.choice([["k"], ["k", "v"], ["k", "f"]]), *key]))
                ),
                lambda: Dedup(self.id(), "ts", ["k", *key], "last", 20 * SECOND),
                lambda: TopN(self.id(), "ts", 2, self.order, ["k"], 30 * SECOND),
                lambda: TopN(self.id(), "ts", 1, self.order, ["k"]),
            ]
        )()
        return self.through(made, stream)

    def joined(self, left, right, how=None, kind=None):
        dice, step, self.tied = self.dice, self.id(), True
        how = how or dice.choice(["inner", "left", "semi", "anti"])
        kind = kind or dice.choice(["within", "window", "as_of"])
        if kind == "as_of" and how not in {"inner", "left"}:
            kind = "within"
        more = {"within": {"within": "15s"}, "window": {"window": {"tumbling": "20s"}}, "as_of": {"as_of": "backward"}}
        on = dice.choice(["k", "k", {"k": "r_k"}, {"v": "r_v"}])
        prefix = {"right_prefix": "r_"} if on == "k" else {}
        if on != "k":
            right = self.through(Select(self.id(), {f"r_{name}": name for name in ROWS}), right)
        where = {"where": "v > r_w or r_w is null"} if kind != "as_of" and dice.random() < 0.3 else {}
        spec = JoinSpec(left=str(left), right=str(right), on=on, how=how, **prefix, **where, **more.get(kind, {}))
        time = "ts" if on == "k" else "r_ts"
        schema = ROWS if on == "k" else pl.Schema({f"r_{name}": dtype for name, dtype in ROWS.items()})
        self.nodes += join_nodes(step, spec, JoinedStream(left, ROWS, "ts"), JoinedStream(right, schema, time))
        stream = Stream(step)
        if how in {"semi", "anti"}:
            wanted = {name: name for name in ROWS}
        else:
            key = "k" if on == "k" else "coalesce(k, r_k)"
            wanted = {"ts": "ts", "k": key, "v": "coalesce(v, r_v)", "w": "r_w", "f": "r_f"}
        test = dice.choice([*TESTS, *([] if how in {"semi", "anti"} else ["r_v > 0", "r_v is null", "r_f < 2"])])
        stream = self.through(Filter(self.id(), test), stream)
        return self.through(Select(self.id(), wanted), stream)

    def ended(self, stream, other):
        dice = self.dice
        match dice.randint(0, 4):
            case 0:
                totals = KeyedAggregate(self.id(), WHOLE, ["k"], "ts")
                return self.filtered_by(["k = 'a'", "s > 0", "n > 1 and k <> 'b'"], self.through(totals, stream))
            case 1:
                top = RunningTop(self.id(), 2, self.order, ["k"], "place")
                return self.filtered_by(["k = 'a'", "place = 1 and k <> 'b'", "v > 0"], self.through(top, stream))
            case 2:
                return self.joined(stream, other, dice.choice(KINDS), dice.choice(["within", "window", "regular"]))
            case 3:
                early = TumblingWindow(self.id(), "ts", 30 * SECOND, WHOLE, by=["k"])
                stream = self.through(EarlyWindow(early, 10 * SECOND), stream)
                return self.filtered_by(["k = 'a'", "k <> 'b' and s > 0"], stream)
            case _:
                return stream

    def filtered_by(self, tests, stream):
        return self.through(Filter(self.id(), self.dice.choice(tests)), stream)

    def sink(self, stream, schema):
        names = self.dice.sample(schema, self.dice.randint(1, len(schema)))
        stream = self.through(Select(self.id(), names), stream)
        self.nodes.append(SinkNode(f"to-{stream.node}", stream, MemorySink(stream.node, MemoryTable()), None))

    def graph(self):
        dice, (a, b) = self.dice, (Stream(node.id) for node in self.nodes[:2])
        stream = self.united(a, self.filtered(b)) if dice.random() < 0.4 else a
        for _ in range(dice.randint(1, 2)):
            stream = self.filtered(self.renamed(stream))
            way = dice.choice([self.windowed, self.kept, lambda rows: self.joined(rows, self.filtered(b))])
            stream = way(stream)
            if dice.random() < 0.3:
                self.sink(self.filtered(stream), list(ROWS))
        if dice.random() < 0.3:
            timed = next(node for node in self.nodes if isinstance(node, StatefulNode))
            late = self.through(Select(self.id(), {"one": "1"}), Stream(timed.id, "late"))
            self.sink(late, ["one"])
        self.ending(self.filtered(stream), b)
        return Graph(self.nodes)

    def ending(self, stream, other):
        before = len(self.nodes)
        stream = self.ended(stream, other)
        kinds = [type(node.operator) for node in self.nodes[before:] if isinstance(node, StatefulNode)]
        aggregated = {KeyedAggregate: ["k", *WHOLE], EarlyWindow: ["k", "window_start", *WHOLE]}
        self.sink(stream, aggregated.get(kinds[0], list(ROWS)) if kinds else list(ROWS))


def random_rows(dice, first):
    """A log with all columns, with different event times, some of which are late."""
    log, partitions = random_log(dice, most=25), {}
    for number, (at, rows) in enumerate(log.partitions.items(), first):
        more = [
            (dice.choice([None, 0, 1, 2, 3]), dice.choice([None, 0.0, -0.0, 1.5, float("nan"), 3.0])) for _ in rows["v"]
        ]
        moved = rows.with_columns(
            ts=pl.col("ts") + pl.duration(microseconds=pl.int_range(pl.len()) * 8 + number),
            k=pl.when(pl.Series([dice.random() < 0.8 for _ in more], dtype=pl.Boolean)).then("k"),
        )
        partitions[at] = moved.hstack(pl.DataFrame(more, schema={"w": pl.Int64, "f": pl.Float64}, orient="row")).select(
            *ROWS
        )
    time = replace(log.event_time, out_of_orderness_us=dice.choice([5, 21]) * SECOND)
    return replace(
        log, payload=ROWS, partitions={at: rows.select(*ROWS) for at, rows in partitions.items()}, event_time=time
    )


def sources_of(logs, scripts):
    found = {}
    for name, log in logs.items():
        source = scripted_source(log, scripts[name])
        schema = pl.Schema({column: source.schema[column] for column in (*ROWS, columns.ROW_WATERMARK)})
        found[name] = replace(source, name=name, schema=schema)
    return found


def outcome(graph, rows):
    policy = CheckpointPolicy(interval_us=10**12, rows=rows, timeout_s=60)
    program = StaticProgram("job", graph)
    assert run(program, memory_store(), policy, RunOptions("caught-up", "drain"), SilentObserver(), StopSignal())
    return {node.id: table_of(node.sink.table.rows()) for node in graph.sinks()}


def table_of(rows):
    """What rows come to: how often each is there; 0.0 and -0.0 are one value, of equal rows either is kept."""
    found = Counter()
    for row in rows.to_dicts():
        weight = row.pop(columns.WEIGHT, 1)
        values = ((name, value + 0.0 if isinstance(value, float) else value) for name, value in row.items())
        found[tuple(sorted((name, repr(value)) for name, value in values))] += weight
    return {row: count for row, count in found.items() if count}


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.integers(0, 2**63))
@example(713095)
def test_opt_05_with_and_without_pushdown_a_job_gives_the_same(seed) -> None:
    dice = random.Random(seed)
    logs = {name: random_rows(dice, first) for name, first in (("a", 0), ("b", 4))}
    cuts = {name: {at: dice.randint(0, log.end(at)) for at in log.partitions} for name, log in logs.items()}
    scripts = {
        name: Script([cut], [[0, 2, 5]], [(n, dice.randint(1, 5)) for n in range(4)]) for name, cut in cuts.items()
    }
    shape, rows = dice.random(), dice.randint(1, 30)
    made = [Drawn(random.Random(shape), sources_of(logs, scripts)).graph() for _ in range(2)]
    found = [outcome(graph, rows) for graph in (made[0], optimised(made[1]))]
    assert found[1] == found[0]
