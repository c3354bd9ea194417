"""Pre-execution gate (L3, section 8): may this irreversible call run?

It runs on the proposal (action, tool, arguments), before any result exists and before the step
enters the coupling. Reversible tools are never blocked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ontrack.operators import pooling
from ontrack.operators.artifacts import ArtifactParams, absent_arguments, extract
from ontrack.operators.canonical import tool_distance
from ontrack.operators.ledger import LedgerState
from ontrack.operators.limits import require
from ontrack.operators.prefix import Hops
from ontrack.operators.references import ReferenceSet
from ontrack.operators.transport import TransportState
from ontrack.operators.vectors import StepVectors
from ontrack.solver import cost, frontier, objective, structure
from ontrack.solver.cost import CostWeights
from ontrack.solver.problem import ReferenceArrays, SolverParams
from ontrack.topics.events import Call
from ontrack.topics.knowledge import Effect, ToolContract
from ontrack.topics.verdicts import Reason


@dataclass(frozen=True, slots=True)
class GateParams:
    """Policy of the gate.

    The first two are the paper's: a gate that compares identities
    (:class:`ontrack.operators.identity.IdentityParams`) has settings of its own in their place.

    Parameters
    ----------
    match_cost_max
        theta_match: cost of the nearest reference node above which a proposal matches nothing.
    unknown_tools
        How a tool without a contract is treated where contracts were given: ``irreversible`` asks
        for a reference match, ``reversible`` lets it pass.
    nothing_known
        The answer to a call about which there is neither a contract nor, where it matters, a
        reference: ``allow`` lets it pass as unknown. An explicit policy, not a safety guarantee.
    """

    match_cost_max: float = 0.40
    unknown_tools: Literal["irreversible", "reversible"] = "irreversible"
    nothing_known: Literal["allow", "block"] = "allow"

    def __post_init__(self) -> None:
        require(self, 0.0, 1.0, "match_cost_max")


@dataclass(frozen=True, slots=True)
class GateFinding:
    """``decision`` is unknown where a policy, not knowledge, let the call pass."""

    decision: Literal["allow", "block", "unknown"]
    effect: Effect
    reasons: tuple[Reason, ...]
    evidence: tuple[int, ...]
    best: int | None


def effect_of(tool: str, contracts: Mapping[str, ToolContract]) -> Effect:
    """Return a tool's effect class; UNKNOWN without a contract."""
    contract = contracts.get(tool)
    return Effect.UNKNOWN if contract is None else contract.effect


def is_irreversible(params: GateParams, tool: str, contracts: Mapping[str, ToolContract]) -> bool:
    """Tell whether the gate has to look at a tool.

    Irreversible is what destroys, and what leaves the house (a write to an external domain).
    """
    contract = contracts.get(tool)
    if contract is None:
        return bool(contracts) and params.unknown_tools == "irreversible"
    return contract.effect is Effect.DESTRUCTIVE or (
        contract.effect is Effect.WRITE and bool(contract.external)
    )


def check(
    params: GateParams,
    solver: SolverParams,
    weights: CostWeights,
    artifact_params: ArtifactParams,
    contracts: Mapping[str, ToolContract],
    references: ReferenceSet | None,
    ledger: LedgerState,
    transport: TransportState | None,
    hops: Hops,
    call: Call,
    vectors: StepVectors,
    show_arguments: bool = False,
) -> GateFinding:
    """Answer one proposal against the state before it.

    Parameters
    ----------
    show_arguments
        Name the artifacts that are missing, and not only their places.
    """
    effect = effect_of(call.tool, contracts)
    contract = contracts.get(call.tool)
    if not is_irreversible(params, call.tool, contracts):
        if contract is None:
            return by_policy(params, effect)
        return GateFinding("allow", effect, (), (), None)
    if contract is None and references is None:
        return by_policy(params, effect)
    reasons, evidence = prerequisites(artifact_params, contract, ledger, call, show_arguments)
    best: int | None = None
    if references is not None and transport is None:
        # Nobody can say any more where the run stands in its task: that is no reason to let it.
        text = f"{call.tool} cannot be undone, and the run is too long to be compared any further"
        reasons.append(Reason(signal="alignment_stopped", text=text))
    elif references is not None and transport is not None:
        best, reason = _proposal_match(
            params, solver, weights, references, transport, hops, call, vectors
        )
        if reason is not None:
            reasons.append(reason)
    decision: Literal["allow", "block"] = "block" if reasons else "allow"
    return GateFinding(decision, effect, tuple(reasons), evidence, best)


def prerequisites(
    params: ArtifactParams,
    contract: ToolContract | None,
    ledger: LedgerState,
    call: Call,
    show_arguments: bool = False,
) -> tuple[list[Reason], tuple[int, ...]]:
    """Check that what a call needs was produced in this run.

    Returns
    -------
    reasons, evidence
        Why it may not run yet, and the steps that produced what is there.
    """
    if contract is None:
        return [], ()
    evidence: set[int] = set()
    missing = list(absent_arguments(contract, call.args))
    for artifact in extract(params, call, contract).required:
        producer = ledger.producer(artifact)
        if producer is None:
            missing.append(artifact)
        else:
            evidence.add(producer)
    reasons = [_missing(call.tool, missing, contract, show_arguments)] if missing else []
    return reasons, tuple(sorted(evidence))


def by_policy(params: GateParams, effect: Effect) -> GateFinding:
    """Answer a call about which nothing is known."""
    if params.nothing_known == "allow":
        return GateFinding("unknown", effect, (), (), None)
    text = (
        "nothing is known about this tool or task, and the policy is to block then; "
        "load tool contracts or references"
    )
    return GateFinding("block", effect, (Reason(signal="policy", text=text),), (), None)


def _missing(
    tool: str, missing: Sequence[str], contract: ToolContract, show_arguments: bool
) -> Reason:
    # Ids are arguments, and arguments stay out of verdicts: name the places, not the values.
    count = len(missing)
    text = (
        f"{tool} needs {', '.join(contract.consumes)}, but no step of this run has produced "
        f"{'it' if count == 1 else 'them'}; obtain {'it' if count == 1 else 'them'} first"
    )
    if show_arguments:
        text += f"; missing: {', '.join(missing)}"
    return Reason(signal="prerequisites", value=float(count), threshold=0.0, text=text)


def _proposal_match(
    params: GateParams,
    solver: SolverParams,
    weights: CostWeights,
    references: ReferenceSet,
    transport: TransportState,
    hops: Hops,
    call: Call,
    vectors: StepVectors,
) -> tuple[int, Reason | None]:
    """One-row proposal alignment against the frontier recomputed from the current coupling.

    Reading the frontier that the last event used would be one event stale and block valid calls
    (section 8).
    """
    names, arrays, transport = pooling.members(references, transport)
    column_mass = objective.column_mass(transport.coupling.plan)
    now = frontier.frontier(column_mass, arrays, solver)
    place = _current_best(solver, arrays, transport, hops, now)
    best, size = names[place], int(arrays.sizes[place])
    begin = best * references.width
    cells = slice(begin, begin + size)
    tools = np.array([tool_distance(call.tool, other) for other in references.tools[cells]])
    costs = weights.delta * tools
    if call.action:
        action = cost.cosine_distance(references.actions[cells], vectors.action)
        costs = costs + weights.alpha * np.where(references.has_action[cells], action, tools)
    else:
        costs = costs + weights.alpha * tools
    nearest = int(costs.argmin())
    name = references.references[best].reference_id
    if float(costs[nearest]) >= params.match_cost_max:
        text = f"{call.tool} matches no step of reference {name}; check that the task asks for it"
        return best, Reason(
            signal="proposal_cost",
            value=float(costs[nearest]),
            threshold=params.match_cost_max,
            text=text,
        )
    near = np.flatnonzero(costs < params.match_cost_max)
    open_nodes = now.active[place] | now.satisfied[place]
    if not open_nodes[near[costs[near] <= costs[nearest] + 1e-9]].any():
        parents = np.flatnonzero(arrays.parents[place, nearest] & ~now.satisfied[place])
        wanted = ", ".join(references.tools[begin + parent] for parent in parents)
        text = f"{call.tool} comes too early: reference {name} does {wanted} before it"
        return best, Reason(signal="frontier", value=0.0, threshold=solver.kappa, text=text)
    return best, None


def _current_best(
    solver: SolverParams,
    arrays: ReferenceArrays,
    transport: TransportState,
    hops: Hops,
    now: frontier.Frontier,
) -> int:
    """Index of the reference that the run follows now (lowest loss of the current coupling)."""
    if transport.plan.shape[1] == 0 or arrays.count == 1:
        return 0
    losses = transport.losses(solver, arrays, structure.distances(hops), now.marginal)
    return int(losses.argmin())
