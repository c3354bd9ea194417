"""References, compiled once into the arrays that alignment reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ontrack.operators import ledger, prefix, roles
from ontrack.operators.artifacts import ArtifactParams, extract
from ontrack.operators.canonical import arguments_text
from ontrack.operators.roles import RoleIndex
from ontrack.operators.vectors import Vector, result_text
from ontrack.solver.problem import ReferenceArrays, pack_references
from ontrack.topics.knowledge import Provenance, Reference, ReferenceStep, ToolContract


@dataclass(frozen=True, slots=True)
class ReferenceSet:
    """Same-task references side by side.

    Parameters
    ----------
    references
        The K references, best provenance first.
    arrays
        Structure, parents and marginals, padded to M = max m_k.
    actions, arguments
        Unit vectors of all nodes, shape (K * M, d); padding and missing texts are zero.
    has_action
        Which nodes have an action text, shape (K * M,).
    tools
        Tool of each node, length K * M; padding is the empty string.
    results
        Unit vectors of what the nodes returned, shape (K * M, d); zero where that is not known.
    has_result
        Which nodes have a result, shape (K * M,).
    roles
        The nodes' arguments by tool and path, cells as in ``tools``.
    """

    references: tuple[Reference, ...]
    arrays: ReferenceArrays
    actions: npt.NDArray[np.float32]
    arguments: npt.NDArray[np.float32]
    has_action: npt.NDArray[np.bool_]
    tools: tuple[str, ...]
    results: npt.NDArray[np.float32]
    has_result: npt.NDArray[np.bool_]
    roles: RoleIndex

    @property
    def count(self) -> int:
        """Number of references K."""
        return len(self.references)

    @property
    def width(self) -> int:
        """Padded number of nodes M."""
        return self.arrays.width


RESULT_CHARACTERS_MAX = 65_536
"""Characters of a reference's result that are given to the encoder."""

_TRUST = {
    Provenance.GOLD: 0,
    Provenance.MINED: 1,
    Provenance.AXIOMATIC: 2,
    Provenance.GENERATED: 3,
}


def choose(
    references: Sequence[Reference], run_id: str, count_max: int, steps_max: int
) -> tuple[Reference, ...]:
    """Choose the references of a run: never the run itself, most trusted first, at most K.

    References longer than ``steps_max`` are left out. The choice depends on nothing but the
    references themselves, so it is the same wherever the run is monitored.
    """
    others = [
        reference
        for reference in references
        if reference.run_id != run_id and len(reference.steps) <= steps_max
    ]
    others.sort(key=lambda reference: (_TRUST[reference.provenance], reference.reference_id))
    return tuple(others[:count_max])


def tools_of(references: Sequence[Reference]) -> frozenset[str]:
    """Return the tools that references call."""
    return frozenset(step.tool for reference in references for step in reference.steps)


def texts(references: Sequence[Reference]) -> list[str]:
    """Return every text that :func:`compile_references` needs a vector of.

    Three a step: action, arguments, result; empty where there is none.
    """
    found: list[str] = []
    for reference in references:
        for step in reference.steps:
            found.append(step.action or "")
            found.append(arguments_text(step.args))
            found.append(result_text(step.result, step.error, RESULT_CHARACTERS_MAX))
    return found


def compile_references(
    references: Sequence[Reference],
    contracts: Mapping[str, ToolContract],
    vectors: Sequence[Vector],
    artifact_params: ArtifactParams,
) -> ReferenceSet:
    """Build the arrays of a reference set.

    Parameters
    ----------
    references
        K >= 1 references.
    contracts
        Tool contracts by name; they say where artifacts stand.
    vectors
        One vector per text of :func:`texts`, in that order.
    """
    graphs = [graph_of(reference.steps, contracts, artifact_params) for reference in references]
    arrays = pack_references(
        [graph.hops for graph in graphs], [_parent_matrix(graph) for graph in graphs]
    )
    count, width = arrays.nu.shape
    cells = count * width
    # Per cell: action, arguments, result, as texts() has them.
    of_cell = np.zeros((3, cells, len(vectors[0])), dtype=np.float32)
    has_action = np.zeros(cells, dtype=bool)
    calls: list[tuple[str, dict[str, Any]] | None] = [None] * cells
    silent: list[int] = []
    position = 0
    for index, reference in enumerate(references):
        names_only = reference.names_only
        for node, step in enumerate(reference.steps):
            cell = index * width + node
            of_cell[:, cell] = vectors[position : position + 3]
            has_action[cell] = bool(step.action)
            calls[cell] = step.tool, step.args
            if names_only:
                silent.append(cell)
            position += 3
    actions, arguments, results = of_cell
    return ReferenceSet(
        references=tuple(references),
        arrays=arrays,
        actions=actions,
        arguments=arguments,
        has_action=has_action,
        tools=tuple(call[0] if call else "" for call in calls),
        results=results,
        has_result=results.any(axis=1),
        roles=roles.index(calls, silent),
    )


def graph_of(
    steps: Sequence[ReferenceStep],
    contracts: Mapping[str, ToolContract],
    artifact_params: ArtifactParams,
) -> prefix.PrefixState:
    """Grow a reference's graph with the very operators that grow a run's."""
    ledger_params = ledger.LedgerParams()
    prefix_params = prefix.PrefixParams(nodes_max=len(steps))
    ledger_state, graph = ledger.LedgerState(), prefix.PrefixState()
    numbered = all(step.seq is not None for step in steps)
    for node, step in enumerate(steps):
        seq = step.seq if numbered and step.seq is not None else node
        artifacts = extract(artifact_params, step, contracts.get(step.tool))
        ledger_state, found = ledger.step(ledger_params, ledger_state, seq, node, artifacts)
        graph, _ = prefix.step(prefix_params, graph, seq, step.parents or (), found.edges)
    return graph


def _parent_matrix(graph: prefix.PrefixState) -> npt.NDArray[np.bool_]:
    matrix = np.zeros((graph.size, graph.size), dtype=bool)
    for node, parents in enumerate(graph.parents):
        matrix[node, list(parents)] = True
    return matrix
