"""Drawing a directed graph in layers, from left to right: where each box stands and how each line runs. Values in, values out.

After Sugiyama, Tagawa and Toda (1981): layers by longest path, invisible boxes where a line passes a layer, order within a layer
by the mean of the neighbours' places, a few sweeps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

WIDTH, HEIGHT = 214.0, 54.0  # of a box
GAP_X, GAP_Y = 84.0, 14.0
PASSING = 10.0  # height that a line takes where it passes a layer
MARGIN = 8.0
SWEEPS = 6
MAX_NODES = 400  # a larger graph is not drawn: nobody could read it


@dataclass(frozen=True)
class Box:
    """A node's place: its upper left corner, and its layer."""

    x: float
    y: float
    layer: int


@dataclass(frozen=True)
class Drawing:
    """A laid out graph: its size, the boxes by node, and an SVG path for each line."""

    width: float
    height: float
    boxes: Mapping[str, Box]
    paths: Mapping[tuple[str, str], str]
    layers: int


def draw(nodes: Sequence[str], edges: Sequence[tuple[str, str]], layers: Mapping[str, int] | None = None) -> Drawing:
    """Place the nodes; nodes without a line between them keep their order. Cycles are cut where they close.

    layers: the least layer of a node, for nodes that belong in a column whatever leads to them.
    Raises ValueError for more than MAX_NODES nodes, or a line between nodes that are not there.
    """
    if len(nodes) > MAX_NODES:
        raise ValueError(f"expected at most {MAX_NODES} nodes, got {len(nodes)}.")
    if unknown := {n for edge in edges for n in edge} - set(nodes):
        raise ValueError(f"expected lines between known nodes, got {sorted(unknown)}.")
    layer = _layers(nodes, edges, layers or {})
    forward = [(a, b) for a, b in dict.fromkeys(edges) if layer[a] < layer[b]]
    columns, chains = _columns(nodes, forward, layer)
    links = [(a, b) for chain in chains.values() for a, b in pairwise(chain)]
    _order(columns, links)
    spots = _spots(columns, links)
    bottom = max((y + height for y, height in spots.values()), default=0.0)
    x = {n: MARGIN + column * (WIDTH + GAP_X) for column, names in enumerate(columns) for n in names}
    leaving, arriving = _ports(chains, spots)
    return Drawing(
        width=2 * MARGIN + max(len(columns), 1) * WIDTH + max(len(columns) - 1, 0) * GAP_X,
        height=bottom + MARGIN,
        boxes={n: Box(x[n], spots[n][0], layer[n]) for n in nodes},
        paths={edge: _path(chain, x, spots, leaving[edge], arriving[edge]) for edge, chain in chains.items()},
        layers=len(columns),
    )


def _layers(nodes: Sequence[str], edges: Sequence[tuple[str, str]], least: Mapping[str, int]) -> dict[str, int]:
    before: dict[str, list[str]] = {n: [] for n in nodes}
    for a, b in edges:
        before[b].append(a)
    found: dict[str, int] = {}
    open_: set[str] = set()

    def depth(node: str) -> int:
        if node not in found:
            open_.add(node)
            found[node] = max([depth(b) + 1 for b in before[node] if b not in open_] + [least.get(node, 0)])
            open_.discard(node)
        return found[node]

    for node in nodes:
        depth(node)
    used = {layer: place for place, layer in enumerate(sorted(set(found.values())))}
    return {node: used[layer] for node, layer in found.items()}


def _columns(
    nodes: Sequence[str], edges: Sequence[tuple[str, str]], layer: Mapping[str, int]
) -> tuple[list[list[str]], dict[tuple[str, str], list[str]]]:
    columns: list[list[str]] = [[] for _ in range(max(layer.values(), default=-1) + 1)]
    for node in nodes:
        columns[layer[node]].append(node)
    chains = {}
    for a, b in edges:
        passing = [f"{a}\0{b}\0{i}" for i in range(layer[a] + 1, layer[b])]
        for offset, name in enumerate(passing):
            columns[layer[a] + 1 + offset].append(name)
        chains[a, b] = [a, *passing, b]
    return columns, chains


def _order(columns: list[list[str]], links: Sequence[tuple[str, str]]) -> None:
    for sweep in range(SWEEPS):
        downward = sweep % 2 == 0
        for column in range(1, len(columns)) if downward else range(len(columns) - 2, -1, -1):
            neighbours: dict[str, list[float]] = {n: [] for n in columns[column]}
            beside = columns[column - 1 if downward else column + 1]
            place = {n: i / max(len(beside) - 1, 1) for i, n in enumerate(beside)}
            for a, b in links:
                here, there = (b, a) if downward else (a, b)
                if here in neighbours and there in place:
                    neighbours[here].append(place[there])
            own = {n: i / max(len(columns[column]) - 1, 1) for i, n in enumerate(columns[column])}
            mean = {n: sum(found) / len(found) if found else own[n] for n, found in neighbours.items()}
            columns[column].sort(key=lambda n, mean=mean: mean[n])  # type: ignore[misc]


def _spots(columns: Sequence[Sequence[str]], links: Sequence[tuple[str, str]]) -> dict[str, tuple[float, float]]:
    """Return top and height of every box: columns centred first, then boxes drawn towards their neighbours without overlap."""
    height = {n: PASSING if "\0" in n else HEIGHT for names in columns for n in names}
    tall = [sum(height[n] + GAP_Y for n in names) - GAP_Y for names in columns]
    top: dict[str, float] = {}
    for names, own in zip(columns, tall, strict=True):
        y = MARGIN + (max(tall) - own) / 2
        for n in names:
            top[n] = y
            y += height[n] + GAP_Y
    near: dict[str, list[str]] = {n: [] for n in top}
    for a, b in links:
        near[a].append(b)
        near[b].append(a)
    for _ in range(SWEEPS):
        for names in columns:
            wanted = [
                sum(top[m] + height[m] / 2 for m in near[n]) / len(near[n]) - height[n] / 2 if near[n] else top[n]
                for n in names
            ]
            top.update(zip(names, _apart(wanted, [height[n] for n in names]), strict=True))
    lowest = min(top.values(), default=0.0)
    return {n: (y - lowest + MARGIN, height[n]) for n, y in top.items()}


def _apart(wanted: Sequence[float], heights: Sequence[float]) -> list[float]:
    """Return places near the wanted ones, in order and GAP_Y apart: boxes that would overlap move as one block to their mean."""
    blocks: list[tuple[float, float, int]] = []  # place, height with gaps, boxes
    for want, height in zip(wanted, heights, strict=True):
        blocks.append((want, height + GAP_Y, 1))
        while len(blocks) > 1 and blocks[-2][0] + blocks[-2][1] > blocks[-1][0]:
            (y1, h1, n1), (y2, h2, n2) = blocks[-2:]
            blocks[-2:] = [((y1 * n1 + (y2 - h1) * n2) / (n1 + n2), h1 + h2, n1 + n2)]
    places: list[float] = []
    for y, _, boxes in blocks:
        for _ in range(boxes):
            places.append(y)
            y += heights[len(places) - 1] + GAP_Y
    return places


Ports = dict[tuple[str, str], float]


def _ports(
    chains: Mapping[tuple[str, str], Sequence[str]], spots: Mapping[str, tuple[float, float]]
) -> tuple[Ports, Ports]:
    """Return the heights at which each line leaves and arrives: several lines at one side of a box are spread along it."""
    leaving: Ports = {}
    arriving: Ports = {}
    for ports, end, beside in ((leaving, 0, 1), (arriving, 1, -2)):
        at: dict[str, list[tuple[str, str]]] = {}
        for edge in chains:
            at.setdefault(edge[end], []).append(edge)
        for node, lines in at.items():
            top, height = spots[node]
            lines.sort(key=lambda edge, beside=beside: spots[chains[edge][beside]][0])  # type: ignore[misc]
            spread = min(height * 0.55, 13.0 * (len(lines) - 1))
            for i, edge in enumerate(lines):
                share = i / (len(lines) - 1) - 0.5 if len(lines) > 1 else 0.0
                ports[edge] = top + height / 2 + spread * share
    return leaving, arriving


def _path(
    chain: Sequence[str],
    x: Mapping[str, float],
    spots: Mapping[str, tuple[float, float]],
    leaving: float,
    arriving: float,
) -> str:
    at_x, at_y = x[chain[0]] + WIDTH, leaving
    parts = [f"M{at_x:.1f} {at_y:.1f}"]
    for name in chain[1:]:
        last = name is chain[-1]
        to_x, to_y = x[name], arriving if last else spots[name][0] + spots[name][1] / 2
        bend = (to_x - at_x) / 2
        parts.append(f"C{at_x + bend:.1f} {at_y:.1f} {to_x - bend:.1f} {to_y:.1f} {to_x:.1f} {to_y:.1f}")
        at_x, at_y = to_x, to_y
        if not last:
            parts.append(f"H{to_x + WIDTH:.1f}")
            at_x = to_x + WIDTH
    return "".join(parts)
