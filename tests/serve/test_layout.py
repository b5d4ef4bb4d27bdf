"""The drawing of graphs: layers, no overlaps, lines that meet their boxes."""

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.serve.layout import GAP_Y, HEIGHT, MAX_NODES, WIDTH, draw


def test_a_chain_goes_from_left_to_right():
    drawing = draw(["a", "b", "c"], [("a", "b"), ("b", "c")])
    boxes = drawing.boxes
    assert [boxes[n].layer for n in "abc"] == [0, 1, 2]
    assert boxes["a"].x < boxes["b"].x < boxes["c"].x
    assert boxes["a"].y == boxes["b"].y == boxes["c"].y


def test_lines_begin_and_end_at_their_boxes():
    drawing = draw(["a", "b", "c"], [("a", "c"), ("b", "c"), ("a", "b")])
    for (source, target), path in drawing.paths.items():
        numbers = [float(n) for n in re.findall(r"-?\d+\.?\d*", path)]
        start, end = drawing.boxes[source], drawing.boxes[target]
        assert numbers[0] == pytest.approx(start.x + WIDTH, abs=0.1)
        assert start.y <= numbers[1] <= start.y + HEIGHT
        assert numbers[-2] == pytest.approx(end.x, abs=0.1)
        assert end.y <= numbers[-1] <= end.y + HEIGHT


def test_crossings_that_need_not_be_are_removed():
    drawing = draw(["a", "b", "x", "y"], [("a", "y"), ("b", "x")])
    boxes = drawing.boxes
    assert (boxes["a"].y < boxes["b"].y) == (boxes["y"].y < boxes["x"].y)


def test_a_node_keeps_its_least_layer_and_empty_layers_are_closed():
    drawing = draw(["source", "lone", "result"], [("source", "result")], {"lone": 1, "result": 5})
    assert {n: drawing.boxes[n].layer for n in drawing.boxes} == {"source": 0, "lone": 1, "result": 2}
    assert drawing.layers == 3


def test_a_cycle_is_drawn_without_the_line_that_closes_it():
    drawing = draw(["a", "b"], [("a", "b"), ("b", "a")])
    assert len(drawing.paths) == 1


def test_nothing_is_a_drawing_too():
    assert draw([], []).boxes == {}


def test_bounds_and_unknown_nodes_are_refused():
    with pytest.raises(ValueError, match="at most"):
        draw([str(i) for i in range(MAX_NODES + 1)], [])
    with pytest.raises(ValueError, match="known nodes"):
        draw(["a"], [("a", "b")])


@given(st.lists(st.tuples(st.integers(0, 11), st.integers(0, 11)), max_size=40))
def test_boxes_never_overlap(edges):
    nodes = [str(i) for i in range(12)]
    drawing = draw(nodes, [(str(a), str(b)) for a, b in edges if a != b])
    columns = {}
    for box in drawing.boxes.values():
        columns.setdefault(box.x, []).append(box.y)
        assert box.y >= 0 and box.y + HEIGHT <= drawing.height and box.x + WIDTH <= drawing.width
    for tops in columns.values():
        tops.sort()
        assert all(lower - upper >= HEIGHT + GAP_Y - 0.01 for upper, lower in pairwise(tops))
    assert all(drawing.boxes[a].layer < drawing.boxes[b].layer for a, b in drawing.paths)
