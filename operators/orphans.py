"""Off track and out of order, by what all references of a task hold (profile ``default``).

Two questions to every step, both answered on the nearest node over **all** references and nodes:

* is it an orphan, with no counterpart anywhere? Two of the last three mean that the run has left
  its task, the more surely if they are strangers: orphans about objects that neither a reference
  nor a result of a step that belongs here has named;
* is it an effectful step whose counterpart depends on a tool that this run has not called yet?
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ontrack.operators.canonical import call_key
from ontrack.operators.identity import IdentityParams, is_effectful
from ontrack.operators.limits import require
from ontrack.operators.references import ReferenceSet
from ontrack.operators.sightings import SeenValues, find
from ontrack.operators.values import ReferenceValues, ValueParams, identity_arguments
from ontrack.topics.events import Call
from ontrack.topics.knowledge import ToolContract
from ontrack.topics.verdicts import Authority, Reason, VerdictName

#: Signals of the reasons: which rule found something.
UNKNOWN_TOOL, STRANGERS, ORPHANS = "unknown_tool", "strangers", "orphans"
PARENT_TOOL = "parent_tool"

_OUT_OF_REACH = np.float32(2.0)  # beyond any cost


@dataclass(frozen=True, slots=True)
class OrphanParams:
    """Thresholds.

    Parameters
    ----------
    orphan_cost
        Attribute cost of the nearest node above which a step has no counterpart.
    window, orphans_max
        Off track are ``orphans_max`` orphans among the last ``window`` steps.
    inversion_cost
        Attribute cost up to which a node is the counterpart whose parents must have come.
    remembered_max
        Strangers remembered, whose results excuse nobody.
    """

    orphan_cost: float = 0.45
    window: int = 3
    orphans_max: int = 2
    inversion_cost: float = 0.3
    remembered_max: int = 64

    def __post_init__(self) -> None:
        require(self, 0.0, 1.0, "orphan_cost", "inversion_cost")
        require(self, 1, 100, "window")
        require(self, 1, self.window, "orphans_max")
        require(self, 1, 10_000, "remembered_max")


@dataclass(frozen=True, slots=True)
class OrphanState:
    """What is kept of a run.

    Parameters
    ----------
    recent
        (sequence number, orphan, stranger, digest of the call where it is an orphan) of the last
        steps, at most ``window``. The same call again, a retry, takes no new place.
    strangers
        Sequence numbers of the latest strangers, at most ``remembered_max``.
    called
        Tools of the references that this run has called, sorted.
    """

    recent: tuple[tuple[int, bool, bool, bytes], ...] = ()
    strangers: tuple[int, ...] = ()
    called: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class OrphanSignal:
    """What one step shows.

    Parameters
    ----------
    cost
        Attribute cost of the nearest node over all references.
    orphan, stranger
        Whether the step is one.
    name
        EXPLORING, WARN, OFF_TRACK or CAUSAL_INVERSION; None where nothing is wrong.
    reason
        Signal, value, threshold and a sentence to act on; None where nothing is wrong.
    evidence
        Sequence numbers of the steps that it rests on.
    """

    cost: float
    orphan: bool
    stranger: bool
    name: VerdictName | None = None
    reason: Reason | None = None
    evidence: tuple[int, ...] = ()


def step(
    params: OrphanParams,
    value_params: ValueParams,
    identity_params: IdentityParams,
    contracts: Mapping[str, ToolContract],
    references: ReferenceSet,
    values: ReferenceValues,
    state: OrphanState,
    seen: SeenValues,
    seq: int,
    call: Call,
    row: npt.NDArray[np.float32],
    plain: Authority = Authority.WARN,
    without: int = 0,
    strange: Authority = Authority.INTERVENE,
) -> tuple[OrphanState, OrphanSignal]:
    """Judge one step by its cost row.

    Parameters
    ----------
    seen
        Values of the results before this step.
    row
        Attribute cost against every reference node, shape (K, M).
    plain
        How far orphans that are no strangers may go, by the set's self-test: OFF_TRACK, WARN or
        EXPLORING.
    strange
        The same of strangers; INFORM takes them for plain orphans.
    without
        Bit mask of references to leave out (the self-test leaves out the one under test).
    """
    costs = _usable(references, row, without)
    nearest = float(costs.min())
    others = (1 << values.count) - 1 & ~without
    # References made from contracts say what a task must take, not what else it may.
    orphan = nearest > params.orphan_cost and bool(others & ~values.silent)
    used = bool(values.tools.get(call.tool, 0) & others)
    stranger = orphan and _is_stranger(
        value_params, contracts, values, state, seen, call, others, used
    )
    recent = state.recent
    key = call_key(call.tool, call.args) if orphan else b""
    if not orphan or all(key != other for _, _, _, other in recent):
        recent = (*recent, (seq, orphan, stranger, key))[-params.window :]
    strangers = (*state.strangers, seq)[-params.remembered_max :] if stranger else state.strangers
    called = state.called
    if call.tool not in called and call.tool in values.tools:
        called = tuple(sorted((*called, call.tool)))
    new_state = OrphanState(recent, strangers, called)
    if not used and contracts and call.tool not in contracts:
        reason = _unknown_tool(call.tool, nearest, params.orphan_cost)
        return new_state, OrphanSignal(
            nearest, orphan, stranger, VerdictName.OFF_TRACK, reason, (seq,)
        )
    if orphan:
        name, found, evidence = _off_track(params, recent, nearest, plain, strange)
        return new_state, OrphanSignal(nearest, True, stranger, name, found, evidence)
    if nearest <= params.inversion_cost and is_effectful(identity_params, call.tool, contracts):
        missing = _missing_parents(params, references, costs, call.tool, state.called)
        if missing:
            reason = _too_early(call.tool, missing, nearest, params.inversion_cost)
            return new_state, OrphanSignal(
                nearest, False, False, VerdictName.CAUSAL_INVERSION, reason, (seq,)
            )
    return new_state, OrphanSignal(nearest, orphan, stranger)


def _usable(
    references: ReferenceSet, row: npt.NDArray[np.float32], without: int
) -> npt.NDArray[np.float32]:
    """Return the row with padding, and references that are left out, out of reach."""
    usable = np.where(references.arrays.valid, row, _OUT_OF_REACH)
    for index in range(references.count if without else 0):
        if without >> index & 1:
            usable[index] = _OUT_OF_REACH
    return usable


def _is_stranger(
    params: ValueParams,
    contracts: Mapping[str, ToolContract],
    values: ReferenceValues,
    state: OrphanState,
    seen: SeenValues,
    call: Call,
    others: int,
    used: bool,
) -> bool:
    """Tell whether an orphan is about something that nothing before it, or beside it, named.

    What the result of a stranger names is as strange as the stranger: else one step would do to
    make a whole other task look at home. A call that names nothing is a stranger where
    neither references nor contracts know its tool.
    """
    arguments = [
        argument
        for argument in identity_arguments(params, call, contracts.get(call.tool))
        if not argument.is_text and _is_name(argument.value)
    ]
    if not arguments:
        return not used and call.tool not in contracts
    for argument in arguments:
        if values.anywhere.get(argument.value, 0) & others:
            continue
        if set(find(seen, argument.value).seqs) <= set(state.strangers):
            return True
    return False


def _is_name(value: str) -> bool:
    """Tell what can name a thing from truth values and small numbers, which any call may hold."""
    return value not in ("true", "false") and not (len(value) < 4 and value.isdigit())


_PLAIN = {
    Authority.INTERVENE: VerdictName.OFF_TRACK,
    Authority.WARN: VerdictName.WARN,
    Authority.INFORM: VerdictName.EXPLORING,
}


def _off_track(
    params: OrphanParams,
    recent: tuple[tuple[int, bool, bool, bytes], ...],
    nearest: float,
    plain: Authority,
    strange: Authority,
) -> tuple[VerdictName | None, Reason | None, tuple[int, ...]]:
    orphans = tuple(seq for seq, orphan, _, _ in recent if orphan)
    strangers = tuple(seq for seq, _, stranger, _ in recent if stranger)
    if len(orphans) < params.orphans_max:
        return None, None, ()
    sure = len(strangers) >= params.orphans_max and strange is not Authority.INFORM
    evidence = strangers if sure else orphans
    about = " and are about things that nothing in this task has named" if sure else ""
    text = (
        f"steps {', '.join(map(str, evidence))} are like no step of any reference of this task"
        f"{about}; go back to what the task asks for, or plan again"
    )
    reason = Reason(
        signal=STRANGERS if sure else ORPHANS,
        value=nearest,
        threshold=params.orphan_cost,
        text=text,
    )
    return VerdictName.OFF_TRACK if sure else _PLAIN[plain], reason, evidence


def _missing_parents(
    params: OrphanParams,
    references: ReferenceSet,
    costs: npt.NDArray[np.float32],
    tool: str,
    called: tuple[str, ...],
) -> tuple[str, ...]:
    """Return the tools that the step's counterpart depends on and that were not called.

    References order their work differently: as long as one counterpart has its parents, there is a
    way of doing the task in which the step is not too early.
    """
    missing: tuple[str, ...] = ()
    for index, node in np.argwhere(costs <= params.inversion_cost).tolist():
        begin = index * references.width
        parents = np.flatnonzero(references.arrays.parents[index, node])
        wanted = {references.tools[begin + parent] for parent in parents.tolist()}
        absent = tuple(sorted(wanted - {tool} - set(called)))
        if not absent:
            return ()
        missing = missing if missing and len(missing) <= len(absent) else absent
    return missing


def _unknown_tool(tool: str, nearest: float, threshold: float) -> Reason:
    text = (
        f"{tool} is neither a declared tool nor used by any reference of this task; "
        "go back to what the task asks for"
    )
    return Reason(signal=UNKNOWN_TOOL, value=nearest, threshold=threshold, text=text)


def _too_early(tool: str, missing: tuple[str, ...], nearest: float, threshold: float) -> Reason:
    text = (
        f"{tool} comes too early: the references call {', '.join(missing)} first and use what it "
        "returns; do that before"
    )
    return Reason(signal=PARENT_TOOL, value=nearest, threshold=threshold, text=text)
