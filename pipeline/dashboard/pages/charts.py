"""Charts: ECharts options of what the models say, as plain data.

What agents wrote is only ever a value, never a key, and no option is a function. A colour that
begins with two dashes is the page's variable of that name: see ``assets/chart.js``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from ontrack.pipeline.dashboard.pages.text import TONES, shown
from ontrack.pipeline.dashboard.run.model import (
    Coupling,
    GraphEdge,
    GraphNode,
    RunPicture,
    Series,
)

Options = dict[str, Any]

NODES_MAX = 300  # of the graph that are drawn: the latest
LABELLED_CELLS_MAX = 4_000  # of the heat map; with more of them signs could not be read
_STEP_PX, _LANE_PX = 92, 64
_TEXT = {"color": "--muted", "fontSize": 12}
_AXIS: Options = {"axisLine": {"lineStyle": {"color": "--line"}}, "axisLabel": _TEXT}
# A severity is told by its shape, too.
_SHAPES = ("circle", "roundRect", "diamond", "triangle")
_FRONTIER = {"satisfied": "✓", "active": "▸", "ahead": "", "dormant": ""}


def graph(picture: RunPicture) -> tuple[Options, str, int, int]:
    """Draw the prefix graph, from left to right, edges that came late dashed.

    Returns
    -------
    tuple
        Options, what a screen reader says, least width and height in pixels.
    """
    nodes = picture.nodes[-NODES_MAX:]
    lanes: Counter[int] = Counter()
    depths: dict[int, int] = {}
    data = []
    for node in nodes:
        data.append(_node(node, lanes[node.depth]))
        lanes[node.depth] += 1
        depths[node.seq] = node.depth
    edges = [edge for edge in picture.edges if edge.source in depths and edge.target in depths]
    late = sum(edge.retroactive for edge in edges)
    first, last = min(depths.values(), default=0), max(depths.values(), default=0)
    high = max(lanes.values(), default=1)
    hidden = {"type": "value", "show": False}
    options: Options = {
        "tooltip": {},
        "grid": {"left": 62, "right": 62, "top": 60, "bottom": 46},
        "xAxis": {**hidden, "min": first, "max": max(last, first + 1)},
        "yAxis": {**hidden, "inverse": True, "min": 0, "max": max(high - 1, 1)},
        "series": [
            {
                "type": "graph",
                "coordinateSystem": "cartesian2d",
                "data": data,
                "links": [_link(edge, depths) for edge in edges],
                "edgeSymbol": ["none", "arrow"],
                "edgeSymbolSize": 8,
                "label": {"show": True, "position": "bottom", "color": "--fg", "fontSize": 11},
            }
        ],
    }
    label = f"Prefix graph: {len(nodes)} steps, {len(edges)} edges, {late} of them found late"
    return options, label, (last - first) * _STEP_PX + 124, max(high - 1, 1) * _LANE_PX + 110


def _link(edge: GraphEdge, depths: dict[int, int]) -> Options:
    # Edges that pass over other steps are bent, by about as much whatever their length.
    far = max(1, depths[edge.target] - depths[edge.source])
    return {
        "source": str(edge.source),
        "target": str(edge.target),
        "lineStyle": {
            "type": "dashed" if edge.retroactive else "solid",
            "color": "--fill-other" if edge.retroactive else "--field",
            "width": 2.5 if edge.retroactive else 1.5,
            "curveness": (0.18 if edge.retroactive else 0.2 if far > 1 else 0.0) / far,
            "opacity": 1,
        },
        "label": {
            "show": edge.retroactive,
            "formatter": f"late, at {edge.found_at}",
            "color": "--fg",
            "fontSize": 11,
        },
    }


def _node(node: GraphNode, lane: int) -> Options:
    name = f"step {node.seq}: {shown(node.tool, 80)}, {node.verdict}"
    return {
        "id": str(node.seq),
        "name": name,
        "value": [node.depth, lane],
        "pick": str(node.seq),
        "symbol": _SHAPES[min(node.severity, 3)],
        "symbolSize": 20,
        "itemStyle": {
            "color": f"--fill-{TONES.get(node.verdict, 'info')}",
            "borderColor": "--card",
            "borderWidth": 1,
        },
        "label": {"formatter": _literal(f"{node.seq} {shown(node.tool, 12)}")},
        "tooltip": {"formatter": _literal(name)},
    }


def _literal(text: str) -> str:
    """Return text as a formatter that stands for itself: braces would name parts of the data."""
    return text.replace("{", "❴")


def heat_map(coupling: Coupling) -> tuple[Options, str, int, int]:
    """Draw the transport plan: rows are steps of the run, columns those of the reference.

    The frontier stands on it: a tick where a step of the reference is satisfied once the row's
    step has been judged, a wedge with a frame where it is active.

    Returns
    -------
    tuple
        Options, what a screen reader says, least width and height in pixels.
    """
    labelled = len(coupling.rows) * len(coupling.columns) <= LABELLED_CELLS_MAX
    data = [
        _cell(row, column, share, place, labelled)
        for row, (shares, places) in enumerate(zip(coupling.shares, coupling.frontier, strict=True))
        for column, (share, place) in enumerate(zip(shares, places, strict=True))
    ]
    columns = [f"{column.index} {shown(column.tool, 14)}" for column in coupling.columns]
    options: Options = {
        "tooltip": {"formatter": "{b}"},
        "grid": {"left": 56, "right": 16, "top": 12, "bottom": 122},
        "xAxis": {
            **_AXIS,
            "type": "category",
            "data": columns,
            "axisLabel": {**_TEXT, "rotate": 55, "interval": 0},
            "name": "step of the reference",
            "nameLocation": "middle",
            "nameGap": 100,
            "nameTextStyle": _TEXT,
        },
        "yAxis": {
            **_AXIS,
            "type": "category",
            "inverse": True,
            "data": list(coupling.labels) or [str(seq) for seq in coupling.rows],
            "name": "step of the run",
            "nameLocation": "middle",
            "nameRotate": 90,
            "nameGap": 36,
            "nameTextStyle": _TEXT,
        },
        "visualMap": {
            "min": 0,
            "max": 1,
            "dimension": 2,
            "show": False,
            "inRange": {"color": ["--heat-0", "--heat-1"]},
        },
        "series": [
            {"type": "heatmap", "data": data},
            # Once more, above the others: a neighbour would cover their frames.
            {"type": "heatmap", "data": [_framed(cell) for cell in data if cell["active"]]},
        ],
    }
    width = len(columns) * 34 + 90
    height = min(1_400, max(240, len(coupling.rows) * 24 + 150))
    return options, _coupling_words(coupling), width, height


def _cell(row: int, column: int, share: float, place: str, labelled: bool) -> Options:
    sign = _FRONTIER[place] if labelled else ""
    cell: Options = {
        "value": [column, row, round(share, 4)],
        "name": f"share {share:.2f}, {place}",
        "label": {"show": bool(sign), "formatter": sign, "fontSize": 12},
    }
    cell["label"]["color"] = "--card" if share > 0.5 else "--fg"
    cell["itemStyle"] = {"borderColor": "--card", "borderWidth": 1}
    cell["active"] = place == "active"
    return cell


def _framed(cell: Options) -> Options:
    return {**cell, "itemStyle": {"borderColor": "--fill-other", "borderWidth": 2}}


def _coupling_words(coupling: Coupling) -> str:
    if not coupling.frontier:
        return "Coupling: no step has been placed yet"
    last = coupling.frontier[-1]
    done = [str(i) for i, place in enumerate(last) if place == "satisfied"]
    active = [str(i) for i, place in enumerate(last) if place == "active"]
    return (
        f"Coupling of {len(coupling.rows)} steps with the {len(coupling.columns)} of the "
        f"reference; satisfied now: {', '.join(done) or 'none'}; "
        f"active: {', '.join(active) or 'none'}"
    )


def series(readings: Series) -> tuple[Options, str]:
    """Draw score, rank score, coverage and leakage over the steps; each line has its own dashes."""
    lines: list[tuple[str, Sequence[float | None], str, str, str]] = [
        ("score", readings.score, "--fill-info", "solid", "circle"),
        ("rank score", readings.rank_score, "--fill-other", "dashed", "diamond"),
        ("coverage", readings.coverage, "--fill-ok", "solid", "rect"),
        ("leakage", readings.leakage, "--fill-bad", "dotted", "triangle"),
    ]
    told = [line for line in lines if any(value is not None for value in line[1])]
    options: Options = {
        "tooltip": {"trigger": "axis"},
        "legend": {"top": 0, "textStyle": {"color": "--fg"}, "data": [line[0] for line in told]},
        "grid": {"left": 44, "right": 16, "top": 58, "bottom": 44},
        "xAxis": {
            **_AXIS,
            "type": "category",
            "data": [str(seq) for seq in readings.seqs],
            "name": "step",
            "nameLocation": "middle",
            "nameGap": 26,
            "nameTextStyle": _TEXT,
        },
        "yAxis": {
            **_AXIS,
            "type": "value",
            "scale": True,
            "splitLine": {"lineStyle": {"color": "--line"}},
        },
        "series": [
            {
                "type": "line",
                "name": name,
                "data": [None if value is None else round(value, 4) for value in values],
                "symbol": symbol,
                "symbolSize": 6,
                "itemStyle": {"color": colour},
                "lineStyle": {"type": dashes, "color": colour, "width": 2},
            }
            for name, values, colour, dashes, symbol in told
        ],
    }
    last = [f"{name} {_last(values)}" for name, values, *_ in told]
    return options, f"Readings over {len(readings.seqs)} steps; last: {', '.join(last) or 'none'}"


def _last(values: Sequence[float | None]) -> str:
    found = [value for value in values if value is not None]
    return f"{found[-1]:.2f}" if found else "none"
