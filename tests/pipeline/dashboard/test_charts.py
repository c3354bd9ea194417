"""Charts: what the models say as ECharts options, which are data and nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from ontrack.pipeline.dashboard.fleet.model import Minutes, filled
from ontrack.pipeline.dashboard.pages import charts, sparks
from ontrack.pipeline.dashboard.run.model import (
    Coupling,
    GraphEdge,
    GraphNode,
    ReferenceColumn,
    RunPicture,
    Series,
)
from tests.pipeline.dashboard.said import intervention, verdict


def picture(nodes: tuple[GraphNode, ...], edges: tuple[GraphEdge, ...]) -> RunPicture:
    return RunPicture(
        run_id="r",
        agent=None,
        task_id=None,
        tenant=None,
        parent_run_id=None,
        shadow=False,
        state="open",
        outcome=None,
        timeline=(),
        nodes=nodes,
        edges=edges,
        coupling=None,
        series=Series(),
        scorecard={},
        final=False,
        settings={},
    )


def coupling(tool: str = "search", rows: int = 2, columns: int = 3) -> Coupling:
    return Coupling(
        reference_id="gold",
        provenance="gold",
        rows=tuple(range(rows)),
        columns=tuple(ReferenceColumn(i, tool, None, ()) for i in range(columns)),
        shares=tuple(tuple(float(i == j) for j in range(columns)) for i in range(rows)),
        costs=tuple((0.5,) * columns for _ in range(rows)),
        frontier=tuple(
            tuple("satisfied" if j < i else "active" if j == i else "ahead" for j in range(columns))
            for i in range(rows)
        ),
    )


def keys(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from keys(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from keys(item)


CHAIN = (
    GraphNode(0, "search", "OK", 0, 0),
    GraphNode(1, "read", "LOOP", 2, 1),
    GraphNode(2, "edit", "OK", 0, 2),
)


def test_late_edges_are_dashed_and_labelled_and_others_are_not() -> None:
    edges = (GraphEdge(0, 1, False, 1), GraphEdge(1, 2, True, 5))
    options, label, width, height = charts.graph(picture(CHAIN, edges))
    (series,) = options["series"]
    plain, late = series["links"]
    assert (plain["lineStyle"]["type"], plain["label"]["show"]) == ("solid", False)
    assert (late["lineStyle"]["type"], late["label"]["show"]) == ("dashed", True)
    assert late["label"]["formatter"] == "late, at 5"
    assert [node["value"] for node in series["data"]] == [[0, 0], [1, 0], [2, 0]]
    assert series["data"][1]["symbol"] != series["data"][0]["symbol"], "a shape for a severity"
    assert label == "Prefix graph: 3 steps, 2 edges, 1 of them found late"
    assert width > 0
    assert height > 0


def test_steps_of_the_same_depth_stand_below_each_other() -> None:
    nodes = tuple(GraphNode(seq, "t", "OK", 0, 0) for seq in range(3))
    options, *_ = charts.graph(picture(nodes, ()))
    assert [node["value"] for node in options["series"][0]["data"]] == [[0, 0], [0, 1], [0, 2]]


def test_of_a_long_run_the_latest_steps_are_drawn_with_the_edges_between_them() -> None:
    count = charts.NODES_MAX + 50
    nodes = tuple(GraphNode(seq, "t", "OK", 0, seq) for seq in range(count))
    edges = tuple(GraphEdge(seq, seq + 1, False, seq + 1) for seq in range(count - 1))
    options, *_ = charts.graph(picture(nodes, edges))
    series = options["series"][0]
    assert [series["data"][0]["id"], series["data"][-1]["id"]] == ["50", str(count - 1)]
    assert len(series["links"]) == charts.NODES_MAX - 1


def test_the_heat_map_shows_every_cell_and_frames_the_frontier() -> None:
    options, label, *_ = charts.heat_map(coupling())
    cells, framed = (series["data"] for series in options["series"])
    assert [cell["value"] for cell in cells][:3] == [[0, 0, 1.0], [1, 0, 0.0], [2, 0, 0.0]]
    assert len(cells) == 6
    assert [cell["value"][:2] for cell in framed] == [[0, 0], [1, 1]]
    assert cells[3]["label"]["formatter"] == "✓"
    assert label.endswith("satisfied now: 0; active: 1")


def test_signs_are_left_out_where_nobody_could_read_them() -> None:
    options, *_ = charts.heat_map(coupling(rows=100, columns=50))
    assert not any(cell["label"]["show"] for cell in options["series"][0]["data"])


def test_readings_that_are_nowhere_have_no_line() -> None:
    none = (None, None)
    readings = Series(
        seqs=(0, 1),
        score=(0.5, None),
        rank_score=none,
        coverage=(0.1, 0.25),
        leakage=none,
    )
    options, label = charts.series(readings)
    assert [line["name"] for line in options["series"]] == ["score", "coverage"]
    assert options["series"][0]["data"] == [0.5, None]
    assert label == "Readings over 2 steps; last: score 0.50, coverage 0.25"


def test_small_charts_count_by_minute_and_say_it_in_words() -> None:
    at = 60_000
    model = filled(
        [
            (verdict("a", 0), at),
            (verdict("a", 1, "WARN"), at),
            (verdict("a", 2, "LOOP"), 2 * at),
            (intervention("a", 2, "halt"), 2 * at),
        ]
    )
    events, wrong, acted, ended = sparks.sparks(model.minutes(2 * at + 5, 3))
    assert events[1][0]["values"] == [0, 2, 1]
    assert [one["values"] for one in wrong[1]] == [[0, 0, 0], [0, 1, 0], [0, 0, 1]]
    assert [one["values"] for one in acted[1]] == [[0, 0, 0], [0, 0, 1], [0, 0, 0]]
    assert wrong[2] == "1 this minute"
    assert "2 in the last 3 minutes: explore 0, warn 1, wrong 1" in wrong[3]
    assert sum(sum(one["values"]) for one in ended[1]) == 0


def test_small_charts_of_nothing_are_empty_bars() -> None:
    for _, bars, value, _ in sparks.sparks(Minutes(starts_ms=(0, 60_000))):
        assert all(one["values"] == [0, 0] for one in bars)
        assert value == "0 this minute"


@given(st.text(max_size=40))
def test_what_agents_write_is_a_value_and_never_a_key_or_a_template(tool: str) -> None:
    node = GraphNode(0, tool, "OK", 0, 0)
    drawn, *_ = charts.graph(picture((node,), ()))
    heat, *_ = charts.heat_map(coupling(tool))
    plain, *_ = charts.graph(picture((CHAIN[0],), ()))
    assert set(keys(drawn)) == set(keys(plain))
    assert set(keys(heat)) == set(keys(charts.heat_map(coupling())[0]))
    assert not any(key.startswith(":") for key in keys([drawn, heat]))
    made = drawn["series"][0]["data"][0]
    assert "{" not in made["label"]["formatter"] + made["tooltip"]["formatter"]
    json.dumps([drawn, heat])
