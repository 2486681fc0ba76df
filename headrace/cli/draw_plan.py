"""The graph of a plan as a tree of text, as Mermaid and as SVG."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Final

from rich.text import Text
from rich.tree import Tree

from headrace.jobs.plan_graph import GraphEdge, GraphNode, PlanGraph
from headrace.kernel.protocols import MAIN

_STYLES: Final = {"source": "cyan", "step": "", "state": "yellow", "sink": "green"}
_FILLS: Final = {"source": "#e0f2fe", "step": "#ffffff", "state": "#fef3c7", "sink": "#dcfce7"}
_LINE: Final = 16
_CHAR: Final = 6.7
_GAP: Final = (70, 24)
_MARGIN: Final = 12
_WIDEST: Final = 44


def lines(node: GraphNode) -> list[str]:
    """What is said of a node: its id, then what it is."""
    title = node.id if node.kind == node.id else f"{node.id}: {node.kind}"
    out = [title, *node.reads, *([node.determinism] if node.determinism else [])]
    if node.role == "state":
        out.append(f"{node.instances} x by {', '.join(node.key)}" if node.key else "one instance")
    return out


def tree(graph: PlanGraph) -> Sequence[Tree]:
    """A tree for each source. What several nodes feed stands under the first of them, and is named under the others."""
    nodes = {node.id: node for node in graph.nodes}
    seen: set[str] = set()

    def grow(parent: Tree, start: str) -> None:
        for edge in graph.edges:
            if edge.start != start:
                continue
            node = nodes[edge.end]
            known = node.id in seen
            seen.add(node.id)
            way = "" if edge.port == MAIN else f"{edge.port} -> "
            text = f"{way}{node.id} (see there)" if known else f"{way}{', '.join(lines(node))}"
            branch = parent.add(Text(text, style="dim" if known else _STYLES[node.role]))
            if not known:
                grow(branch, node.id)

    out = []
    for node in graph.nodes:
        if node.role == "source":
            root = Tree(Text(", ".join(lines(node)), style=_STYLES["source"]), guide_style="dim")
            grow(root, node.id)
            out.append(root)
    return out


def mermaid(graph: PlanGraph) -> str:
    """A Mermaid flowchart. Thick arrows deal partials out by key; what is joined by thin ones runs as one plan."""
    names = {node.id: f"n{index}" for index, node in enumerate(graph.nodes)}
    shapes = {"source": ("[(", ")]"), "step": ("[", "]"), "state": ("[[", "]]"), "sink": ("([", "])")}
    out = ["flowchart LR"]
    for node in graph.nodes:
        left, right = shapes[node.role]
        label = "<br/>".join(escape(line).replace("&quot;", "#quot;").replace("&#x27;", "'") for line in lines(node))
        out.append(f'  {names[node.id]}{left}"{label}"{right}:::{node.role}')
    for edge in graph.edges:
        port = "" if edge.port == MAIN else f"|{edge.port}|"
        out.append(f"  {names[edge.start]} {'==>' if edge.exchange else '-->'}{port} {names[edge.end]}")
    out += [f"  classDef {role} fill:{fill},stroke:#475569,color:#0f172a" for role, fill in _FILLS.items()]
    return "\n".join(out) + "\n"


def svg(graph: PlanGraph) -> str:
    """A drawing in layers from left to right. Thick lines deal partials out by key."""
    boxes = _placed(graph)
    width = max((box.right for box in boxes.values()), default=0) + _MARGIN
    height = max((box.y + box.height for box in boxes.values()), default=0) + _MARGIN
    body = [*(_line(edge, boxes) for edge in graph.edges), *(box.drawn() for box in boxes.values())]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" font-family="ui-monospace, monospace" font-size="11">\n'
        + "\n".join(body)
        + "\n</svg>\n"
    )


class _Box:
    """A node with its place."""

    def __init__(self, node: GraphNode) -> None:
        self.role = node.role
        self.lines = [part for line in lines(node) for part in _wrapped(line)]
        self.width = max(len(line) for line in self.lines) * _CHAR + 16
        self.height = len(self.lines) * _LINE + 10
        self.x = self.y = 0.0

    @property
    def right(self) -> float:
        return self.x + self.width

    @property
    def middle(self) -> float:
        return self.y + self.height / 2

    def drawn(self) -> str:
        weights = ["bold", *["normal"] * (len(self.lines) - 1)]
        rows = "".join(
            f'<text x="{self.x + 8:.1f}" y="{self.y + 16 + index * _LINE:.1f}" font-weight="{weight}" '
            f'fill="#0f172a">{escape(line)}</text>'
            for index, (line, weight) in enumerate(zip(self.lines, weights, strict=True))
        )
        return (
            f'<rect x="{self.x:.1f}" y="{self.y:.1f}" width="{self.width:.1f}" height="{self.height:.1f}" rx="6" '
            f'fill="{_FILLS[self.role]}" stroke="#475569"/>{rows}'
        )


def _wrapped(line: str) -> Iterator[str]:
    for start in range(0, max(len(line), 1), _WIDEST):
        yield line[start : start + _WIDEST]


def _placed(graph: PlanGraph) -> Mapping[str, _Box]:
    """Boxes in layers: a node stands right of everything that feeds it, about as high as that on average."""
    boxes = {node.id: _Box(node) for node in graph.nodes}
    above: dict[str, list[str]] = {node.id: [] for node in graph.nodes}
    for edge in graph.edges:
        above[edge.end].append(edge.start)
    layers: dict[str, int] = {}
    for node in graph.nodes:
        layers[node.id] = 1 + max((layers[start] for start in above[node.id]), default=-1)
    x = float(_MARGIN)
    for layer in range(max(layers.values(), default=-1) + 1):
        members = [node_id for node_id, at in layers.items() if at == layer]
        wanted = {
            node_id: sum(boxes[start].middle for start in above[node_id]) / max(len(above[node_id]), 1)
            for node_id in members
        }
        y = float(_MARGIN)
        for node_id in sorted(members, key=lambda node_id: wanted[node_id]):
            box = boxes[node_id]
            box.x, box.y = x, max(y, wanted[node_id] - box.height / 2)
            y = box.y + box.height + _GAP[1]
        x = max(boxes[node_id].right for node_id in members) + _GAP[0]
    return boxes


def _line(edge: GraphEdge, boxes: Mapping[str, _Box]) -> str:
    start, end = boxes[edge.start], boxes[edge.end]
    bend = max((end.x - start.right) / 2, 20)
    path = (
        f"M{start.right:.1f},{start.middle:.1f} C{start.right + bend:.1f},{start.middle:.1f} "
        f"{end.x - bend:.1f},{end.middle:.1f} {end.x:.1f},{end.middle:.1f}"
    )
    dashes = "" if edge.port == MAIN else ' stroke-dasharray="4 3"'
    drawn = f'<path d="{path}" fill="none" stroke="#475569" stroke-width="{3 if edge.exchange else 1}"{dashes}/>'
    if edge.port == MAIN:
        return drawn
    x, y = start.right + 6, start.middle - 5
    return f'{drawn}<text x="{x:.1f}" y="{y:.1f}" fill="#475569">{escape(edge.port)}</text>'
