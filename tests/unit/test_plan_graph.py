"""What `headrace plan` draws: nodes, what is pushed where, what runs as one plan, where keys are dealt out."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import polars as pl
import pytest
from rich.console import Console

from headrace.cli import app
from headrace.cli.draw_plan import mermaid, svg, tree
from headrace.jobs.compile import compile_job
from headrace.jobs.config import load_config
from headrace.jobs.loading import load_job_text
from headrace.jobs.plan_graph import GraphEdge, PlanGraph
from headrace.jobs.planning import plan_job

JOB = """
name: drawn
parallelism: 3
sources:
  s: {{history: {{parquet: "{folder}/in.parquet"}}, event_time: {{column: t}}}}
  o: {{history: {{parquet: "{folder}/in.parquet"}}, event_time: {{column: t}}}}
steps:
  - {{id: known, from: s, filter: "v > 0 and k <> '<x>'"}}
  - {{id: slim, select: [t, k, v]}}
  - {{id: hourly, window: {{tumbling: 1h, by: k, aggregate: {{n: count(*)}}}}}}
  - {{id: many, filter: n > 1}}
  - {{id: both, join: {{left: slim, right: o, on: k, right_prefix: o_, within: 10m}}}}
  - {{id: best, top: {{n: 2, order_by: [v desc], by: k, tumbling: 1d}}}}
  - {{id: late, from: best.late, select: [k, v]}}
  - {{id: all, from: many, window: {{tumbling: 1d, aggregate: {{n: count(*)}}}}}}
sinks:
  - {{id: out, from: all, iceberg: {{table: local.ns.out, create: true}}}}
  - {{id: top, from: best, iceberg: {{table: local.ns.top, create: true}}}}
  - {{id: too-late, from: late, iceberg: {{table: local.ns.late, create: true}}}}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    schema = {"t": pl.Datetime("us"), "k": pl.String(), "v": pl.Int64(), "unread": pl.Int64()}
    pl.DataFrame(schema=schema).write_parquet(tmp_path / "in.parquet")
    return tmp_path


@pytest.fixture
def graph(folder: Path) -> PlanGraph:
    config = load_config(state_path=folder / "state", cwd=folder)
    return plan_job(compile_job(load_job_text(JOB.format(folder=folder), "job.yaml"), config)).graph


def test_nodes_say_what_is_read_what_is_promised_and_by_what_keys_are_dealt_out(graph: PlanGraph) -> None:
    nodes = {node.id: node for node in graph.nodes}
    read = nodes["s"].reads
    assert "unread" not in read[0]
    assert '"v"' in read[1]
    assert (nodes["hourly"].key, nodes["hourly"].instances) == (["k"], 3)
    assert (nodes["both"].key, nodes["best"].key) == (["k"], ["k"])
    assert (nodes["all"].key, nodes["all"].instances) == ([], 1)
    assert nodes["known"].determinism == "exact"


def test_edges_skip_the_tags_of_joins_and_tell_exchange_and_ports(graph: PlanGraph) -> None:
    assert GraphEdge("slim", "main", "both", exchange=True) in graph.edges
    assert GraphEdge("o", "main", "both", exchange=True) in graph.edges
    assert GraphEdge("best", "late", "late", exchange=False) in graph.edges
    assert GraphEdge("many", "main", "all", exchange=False) in graph.edges
    assert len(graph.edges) == 12


def test_segments_are_what_runs_as_one_plan_up_to_the_partial_aggregation(graph: PlanGraph) -> None:
    segments = {segment.start: segment for segment in graph.segments}
    assert (segments["s"].steps, sorted(segments["s"].partials)) == (["known", "slim"], ["both", "hourly"])
    assert (segments["hourly"].steps, segments["hourly"].partials) == (["many"], ["all"])
    assert (segments["best.late"].steps, segments["best.late"].sinks) == (["late"], ["too-late"])


def test_the_tree_shows_each_node_once_and_points_to_it_afterwards(graph: PlanGraph) -> None:
    console = Console(width=200, color_system=None)
    with console.capture() as shown:
        console.print(*tree(graph))
    text = shown.get()
    assert text.count("both: join, exact, 3 x by k") == 1
    assert "both (see there)" in text
    assert "late -> late: select" in text


def test_mermaid_has_all_nodes_and_edges_and_escapes_what_would_end_a_label(graph: PlanGraph) -> None:
    text = mermaid(graph)
    assert len(re.findall(r":::\w+$", text, re.MULTILINE)) == len(graph.nodes)
    assert len(re.findall(r"^  n\d+ (-->|==>)", text, re.MULTILINE)) == len(graph.edges)
    for label in re.findall(r'"(.*)"', text):
        assert '"' not in label
        assert "<x>" not in label


def test_svg_is_well_formed_and_no_boxes_overlap(graph: PlanGraph) -> None:
    root = ET.fromstring(svg(graph))
    space = "{http://www.w3.org/2000/svg}"
    boxes = [[float(box.attrib[at]) for at in ("x", "y", "width", "height")] for box in root.iter(f"{space}rect")]
    assert len(boxes) == len(graph.nodes)
    assert len(list(root.iter(f"{space}path"))) == len(graph.edges)
    for index, (x, y, width, height) in enumerate(boxes):
        assert x + width <= float(root.attrib["width"])
        assert y + height <= float(root.attrib["height"])
        for ox, oy, owidth, oheight in boxes[:index]:
            assert x + width <= ox or ox + owidth <= x or y + height <= oy or oy + oheight <= y


@pytest.mark.parametrize(("form", "begins"), [("mermaid", "flowchart LR\n"), ("svg", "<svg "), ("json", "{\n")])
def test_the_command_prints_drawings(folder: Path, capsys: pytest.CaptureFixture[str], form: str, begins: str) -> None:
    (folder / "job.yaml").write_text(JOB.format(folder=folder))
    assert app.run(["plan", str(folder / "job.yaml"), "--state", str(folder / "state"), "--format", form]) == 0
    assert capsys.readouterr().out.startswith(begins)
