"""Roles: the nodes of references by tool and argument, so that a step meets all of them at once.

How far two calls are apart is defined in :mod:`ontrack.operators.leaves`; here it is compiled.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ontrack.operators.canonical import tool_distance
from ontrack.operators.leaves import Leaves, leaves
from ontrack.solver.cost import cosine_distance

Float = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class _Path:
    """One path of a tool's calls: a slot for each value set that a node has there.

    Parameters
    ----------
    line
        Its line in the table.
    absent
        The slot of having no value.
    slot_of
        The slots of the value sets.
    is_plain
        Single values only: they are the same or they are not.
    has_texts
        Whether one of them holds a text.
    slots
        Its line of the table, shape (rows,).
    has_value, has_text
        Which rows have a value there, and which a text, shape (rows,).
    """

    line: int
    absent: int
    slot_of: Mapping[frozenset[bytes], int]
    is_plain: bool
    has_texts: bool
    slots: npt.NDArray[np.intp]
    has_value: npt.NDArray[np.bool_]
    has_text: npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class ToolNodes:
    """The reference nodes of one tool, equal calls once, as a table of value slots.

    A call meets all of them by one distance for each slot and one sum along the rows.

    Parameters
    ----------
    cells
        Where the nodes stand among all, shape (n,).
    rows
        Which row of the table each node has, shape (n,).
    examples
        A node of each row, shape (rows,).
    slots
        Slot of the value at each path, shape (paths, rows).
    blank
        For a call without arguments, of each slot: its distance, and whether either side has a
        value; shape (2, slots).
    paths
        The table's lines.
    """

    cells: npt.NDArray[np.intp]
    rows: npt.NDArray[np.intp]
    examples: npt.NDArray[np.intp]
    slots: npt.NDArray[np.intp]
    blank: Float
    paths: Mapping[str, _Path]

    def distances(
        self, call: Leaves, nodes: npt.NDArray[np.float32], vector: npt.NDArray[np.float32]
    ) -> Float:
        """Return :func:`leaves.distance` of a call to each row, shape (rows,)."""
        of_slot = self.blank.copy()
        distance, has_value = of_slot[0], of_slot[1]
        unknown = len(call.values)
        texts: list[tuple[_Path, int, bool]] = []
        for path, values in call.values.items():
            known = self.paths.get(path)
            if known is None:
                continue
            unknown -= 1
            distance[known.absent] = has_value[known.absent] = 1.0
            same = known.slot_of.get(values, -1)
            if len(values) > 1 or not known.is_plain:
                for other, slot in known.slot_of.items():
                    distance[slot] = 1.0 - len(values & other) / len(values | other)
            elif same >= 0:
                distance[same] = 0.0
            if known.has_texts or path in call.texts:
                texts.append((known, same, path in call.texts))
        parts = of_slot.take(self.slots, axis=1)
        if texts:
            distances = cosine_distance(nodes.take(self.examples, axis=0), vector)
            _compare_texts(parts[0], texts, distances)
        total, paths = np.add.reduce(parts, axis=1)
        found: Float = (total + unknown) / np.maximum(paths + unknown, 1.0)
        return found


def _compare_texts(
    parts: Float, texts: Sequence[tuple[_Path, int, bool]], distances: Float
) -> None:
    """Put the distance of the texts where one side has a text and the other a value."""
    for known, same, is_text in texts:
        differ = known.has_value if is_text else known.has_text
        if same >= 0:
            differ = differ & (known.slots != same)
        np.copyto(parts[known.line], distances, where=differ)


@dataclass(frozen=True, slots=True)
class RoleIndex:
    """Reference nodes by tool, so that a step meets only those it can play the part of.

    Parameters
    ----------
    by_tool
        The nodes of each tool.
    tools
        The different tools, the empty one of padding among them.
    tool_of
        Which of them each node has, shape (n,).
    tool_rows
        Tool distance of each known tool to every node, shape (n,), read only.
    silent
        Nodes by tool that say which tool is called and nothing of its arguments.
    """

    by_tool: Mapping[str, ToolNodes]
    tools: tuple[str, ...]
    tool_of: npt.NDArray[np.intp]
    tool_rows: Mapping[str, Float]
    silent: Mapping[str, npt.NDArray[np.intp]]

    def tool_row(self, tool: str) -> Float:
        """Return d_tool of a call to every node, shape (n,); not to be written to."""
        row = self.tool_rows.get(tool)
        return _tool_row(tool, self.tools, self.tool_of) if row is None else row

    def role_row(
        self,
        tool: str,
        args: Mapping[str, Any],
        nodes: npt.NDArray[np.float32],
        vector: npt.NDArray[np.float32],
    ) -> Float:
        """Return d_role of a call to every node, shape (n,): 1 where the tools differ.

        A node that is silent about its arguments differs in none.

        Parameters
        ----------
        nodes, vector
            Vectors of the arguments: of every node, shape (n, d), and of the call, shape (d,).
            Read only where a text has to be compared: one vector of all arguments ranks runs as
            well as one of each text, and costs no encoder call.
        """
        row = np.ones(len(self.tool_of))
        known = self.by_tool.get(tool)
        if known is None:
            return row
        found = known.distances(leaves(args), nodes, vector)
        row[known.cells] = found[known.rows]
        if self.silent and tool in self.silent:
            row[self.silent[tool]] = 0.0
        return row


def index(
    calls: Sequence[tuple[str, Mapping[str, Any]] | None], silent: Collection[int] = ()
) -> RoleIndex:
    """Compile reference nodes for :class:`RoleIndex`.

    Parameters
    ----------
    calls
        Tool and arguments of each node; None for padding.
    silent
        Nodes whose arguments nobody knows.
    """
    names = [call[0] if call else "" for call in calls]
    tools = tuple(dict.fromkeys(names))
    number = {tool: place for place, tool in enumerate(tools)}
    tool_of = np.array([number[name] for name in names], dtype=np.intp)
    cells: dict[str, list[tuple[int, Leaves]]] = {}
    for cell, call in enumerate(calls):
        if call is not None:
            cells.setdefault(call[0], []).append((cell, leaves(call[1])))
    rows = {tool: _tool_row(tool, tools, tool_of) for tool in cells}
    by_tool = {tool: _nodes(found) for tool, found in cells.items()}
    without = {name: [cell for cell in silent if names[cell] == name] for name in cells}
    unsaid = {name: np.array(found, dtype=np.intp) for name, found in without.items() if found}
    return RoleIndex(by_tool, tools, tool_of, rows, unsaid)


def _nodes(found: Sequence[tuple[int, Leaves]]) -> ToolNodes:
    row_of: dict[frozenset[tuple[str, frozenset[bytes]]], int] = {}
    examples: dict[int, int] = {}
    rows: list[int] = []
    calls: list[Leaves] = []
    for cell, call in found:
        row = row_of.setdefault(frozenset(call.values.items()), len(calls))
        if row == len(calls):
            calls.append(call)
            examples[row] = cell
        rows.append(row)
    names = dict.fromkeys(path for call in calls for path in call.values)
    slots = np.zeros((len(names), len(calls)), dtype=np.intp)
    paths: dict[str, _Path] = {}
    absent: list[int] = []
    slot = 0
    for line, name in enumerate(names):
        absent.append(slot)
        slot_of: dict[frozenset[bytes], int] = {}
        texts: set[int] = set()
        for row, call in enumerate(calls):
            values = call.values.get(name)
            if values is None:
                slots[line, row] = absent[-1]
                continue
            own = slot_of.setdefault(values, absent[-1] + 1 + len(slot_of))
            slots[line, row] = own
            if name in call.texts:
                texts.add(own)
        is_plain = all(len(values) == 1 for values in slot_of)
        paths[name] = _Path(
            line=line,
            absent=absent[-1],
            slot_of=slot_of,
            is_plain=is_plain,
            has_texts=bool(texts),
            slots=slots[line],
            has_value=slots[line] != absent[-1],
            has_text=np.isin(slots[line], list(texts)),
        )
        slot += 1 + len(slot_of)
    blank = np.ones((2, slot))
    blank[:, absent] = 0.0
    return ToolNodes(
        cells=np.array([cell for cell, _ in found], dtype=np.intp),
        rows=np.array(rows, dtype=np.intp),
        examples=np.array(list(examples.values()), dtype=np.intp),
        slots=slots,
        blank=blank,
        paths=paths,
    )


def _tool_row(tool: str, tools: Sequence[str], tool_of: npt.NDArray[np.intp]) -> Float:
    row: Float = np.array([tool_distance(tool, other) for other in tools])[tool_of]
    row.flags.writeable = False
    return row
