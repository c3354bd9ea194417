"""What every operator promises: deterministic, pure, bounded, resumable, plain outputs.

An operator is a row of a table: how it starts, how it steps, what it is fed for a given run, and
which sizes its state states. Rows that profile ``default`` alone has are fed from a run under it.

Not every module is an operator. ``selftest``, ``compile_values``, ``mining``, ``stripping``,
``axioms``, ``staleness`` and ``grouping`` take a whole set of references or runs at once and keep
no state, so nothing can be resumed or forked: a second, shorter table holds them to the rest.
``judging``, ``asking``, ``findings``, ``report`` and ``verdict`` are parts of the step of a run and
are held to everything in its rows. ``roles`` and ``references`` are data that a set is compiled to;
``redaction``, ``overrides`` and ``profiles`` act on settings and messages before any run.
"""

from __future__ import annotations

import copy
import json
import math
import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from enum import Enum
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel
from rpds import HashTrieMap

from ontrack.operators import (
    abort,
    admission,
    artifacts,
    axioms,
    exploration,
    fleet,
    gain,
    gate,
    grouping,
    identity,
    ledger,
    loop,
    mining,
    orphans,
    paths,
    prefix,
    ranking,
    repeats,
    run,
    scoring,
    scoring_plan,
    scoring_unsafe,
    selftest,
    sightings,
    staleness,
    stall,
    strategy,
    stripping,
    transport,
    values,
)
from ontrack.operators.exploration import ExplorationParams
from ontrack.operators.findings import Signals
from ontrack.operators.fleet_state import FleetParams, FleetState
from ontrack.operators.gain import GainParams
from ontrack.operators.knowledge import Knowledge
from ontrack.operators.ledger import LedgerParams
from ontrack.operators.loop import LoopParams
from ontrack.operators.orphans import OrphanParams
from ontrack.operators.predicate import Predicate
from ontrack.operators.prefix import PrefixParams
from ontrack.operators.profiles import Profile, default, paper
from ontrack.operators.ranking import RankParams, RankWeights
from ontrack.operators.references import compile_references, texts
from ontrack.operators.repeats import RepeatParams
from ontrack.operators.scoring_coverage import ReferencePath
from ontrack.operators.sightings import SightingParams
from ontrack.operators.stall import StallParams
from ontrack.operators.state import RunState
from ontrack.operators.strategy import StrategyParams
from ontrack.operators.vectors import StepVectors, step_texts
from ontrack.topics.errors import RunTooLong
from ontrack.topics.events import RunEnded, Step
from ontrack.topics.knowledge import AllowedEffect, Reference, ReferenceStep, Task, ToolContract
from tests import strategies
from tests.operators.lab import SIX_STEPS, Lab, embed, foreign, reference_of, step_of

# Limits so small that a run of a few steps is far beyond them.
SMALL = replace(
    paper("synthetic"),
    ledger=LedgerParams(artifacts_max=6, waiting_max=2),
    prefix=PrefixParams(nodes_max=7, waiting_max=3),
    loop=LoopParams(window=3),
    gain=GainParams(window=3),
    stall=StallParams(window=2),
    exploration=ExplorationParams(grace=2),
    strategy=StrategyParams(switch_window=3),
    abort=abort.AbortParams(window=3),
    steps_max=40,
)
SMALL_DEFAULT = replace(
    default("synthetic"),
    ledger=SMALL.ledger,
    prefix=SMALL.prefix,
    repeats=RepeatParams(calls_max=5, results_max=4, objects_max=3, evidence_max=3),
    # By default the order of steps has no weight, and its row is not computed.
    ranking=RankParams(weights=RankWeights(order=0.5)),
    orphans=OrphanParams(window=3, remembered_max=4),
    sightings=SightingParams(records_max=16, values_per_result_max=4),
    abort=SMALL.abort,
    scoring=scoring_plan.ScoringParams(
        calls_max=5,
        tools_max=4,
        unsafe_max=2,
    ),
    steps_max=SMALL.steps_max,
)
SMALL_FLEET = FleetParams(
    lateness_ms=120_000,
    silent_ms=600_000,
    groups_max=2,
    runs_max=2,
    ended_max=2,
    seq_max=64,
    ids_per_run_max=3,
    ids_max=4,
)
CONTRACTS = {
    "git_commit": ToolContract(name="git_commit", consumes=("=tests_passed",)),
    "http": ToolContract(name="http", consumes=("args.id",), produces=("result.id",)),
    "edit_file": ToolContract(name="edit_file", effect="write"),
}
KNOWN = Lab([reference_of(SIX_STEPS, index) for index in range(2)], list(CONTRACTS.values()), SMALL)
BEGIN = KNOWN.state


assert BEGIN.knowledge.references is not None
REFERENCES = BEGIN.knowledge.references
VALUES = values.compile_values(SMALL_DEFAULT.values, REFERENCES.references, CONTRACTS)
assert SMALL_DEFAULT.selftest is not None
assert SMALL_DEFAULT.identity is not None
assert SMALL_DEFAULT.orphans is not None
assert SMALL_DEFAULT.ranking is not None
assert SMALL_DEFAULT.repeats is not None
assert SMALL_DEFAULT.scoring is not None
PLAN = scoring_plan.compile_plan(
    SMALL_DEFAULT.scoring,
    Task(
        id="task",
        step_budget=3,  # type: ignore[arg-type]
        allowed=(AllowedEffect(tool="edit_file", when="seen(args.path)"),),
        cost_usd_max=0.1,
        latency_s_max=1,
    ),
    CONTRACTS,
    [ReferencePath.of(reference) for reference in REFERENCES.references],
)
SELF_TEST_OF = (
    SMALL_DEFAULT.selftest,
    SMALL_DEFAULT.values,
    SMALL_DEFAULT.identity,
    SMALL_DEFAULT.orphans,
    SMALL_DEFAULT.transport,
    CONTRACTS,
    REFERENCES,
    VALUES,
)
BEGIN_DEFAULT = replace(
    BEGIN,
    knowledge=Knowledge(CONTRACTS, REFERENCES, VALUES, selftest.run(*SELF_TEST_OF), PLAN),
    scoring=scoring.start(PLAN),
)


def vectors_of(step: Step) -> StepVectors:
    return StepVectors(*map(embed, step_texts(step, 1000)))


@dataclass(frozen=True)
class Fed:
    """One admitted step, the run's state before and after it, and the alignment of it."""

    step: Step
    vectors: StepVectors
    admitted: admission.Admission
    before: RunState
    after: RunState
    artifacts: artifacts.Artifacts
    edges: tuple[tuple[int, int], ...]
    delta: prefix.Delta
    row: np.ndarray
    alignment: transport.Alignment | None
    signals: Signals | None


def fed(steps: Sequence[Step], profile: Profile = SMALL) -> list[Fed]:
    """What run.step hands from operator to operator, written out; signals are the paper's."""
    state, found = BEGIN if profile is SMALL else BEGIN_DEFAULT, []
    for step in steps:
        admitted = admission.admit("r", state.seen, state.highest, profile.steps_max, step)
        if admitted.duplicate:
            continue
        seq, vectors = admitted.seq, vectors_of(step)
        ids = artifacts.extract(profile.artifacts, step, CONTRACTS.get(step.tool))
        _, edges = ledger.step(profile.ledger, state.ledger, seq, state.prefix.size, ids)
        graph, delta = prefix.step(
            profile.prefix, state.prefix, seq, step.parents or (), edges.edges
        )
        row = transport.cost_row(profile.transport, REFERENCES, step, vectors)
        alignment = None
        if delta.node is not None and state.transport is not None:
            age = prefix.age_weights(profile.prefix, graph)
            _, alignment = transport.step(
                profile.transport, REFERENCES, state.transport, graph.hops, age, row
            )
        signals = None
        if profile is SMALL:
            signals = signals_of(state, seq, step, vectors, alignment, delta)
        after = run.step(profile, state, step, admitted, vectors)[0]
        found.append(
            Fed(
                step,
                vectors,
                admitted,
                state,
                after,
                ids,
                edges.edges,
                delta,
                row,
                alignment,
                signals,
            )
        )
        state = after
    return found


def signals_of(
    state: RunState,
    seq: int,
    step: Step,
    vectors: StepVectors,
    alignment: transport.Alignment | None,
    delta: prefix.Delta,
) -> Signals:
    gained = gain.step(SMALL.gain, state.gain, vectors.result)[1]
    covered = None if alignment is None else covered_steps(alignment)
    explored = None
    if alignment is not None:
        explored = exploration.step(
            SMALL.exploration, state.exploration, seq, alignment, delta.consumed
        )[1]
    return Signals(
        seq=seq,
        tool=step.tool,
        loop=loop.step(SMALL.loop, state.loop, seq, step, vectors.action)[1],
        stall=stall.step(SMALL.stall, state.stall, seq, gained, covered)[1],
        gain=gained,
        gate=asked(state, step, vectors),
        alignment=alignment,
        exploration=explored,
        provenance=None,
    )


def covered_steps(alignment: transport.Alignment) -> float:
    return alignment.coverage * len(alignment.parents)


def asked(state: RunState, step: Step, vectors: StepVectors) -> gate.GateFinding:
    return gate.check(
        SMALL.gate,
        SMALL.transport.solver,
        SMALL.transport.weights,
        SMALL.artifacts,
        CONTRACTS,
        REFERENCES,
        state.ledger,
        state.transport,
        state.prefix.hops,
        step,
        vectors,
    )


@dataclass(frozen=True)
class Operator:
    """A row of the table.

    Parameters
    ----------
    start
        State before the first event.
    step
        (state, input) -> (state, output).
    feed
        The input at one step of a run; None where the operator is left out.
    sizes
        Of each part of a state: its size and the limit that it states.
    profile
        Under which the run is that it is fed from.
    """

    start: Any
    step: Callable[[Any, Any], tuple[Any, Any]]
    feed: Callable[[Fed], Any]
    sizes: Callable[[Any], dict[str, tuple[int, int]]]
    profile: Profile = SMALL


def stateless(
    function: Callable[..., Any], feed: Callable[[Fed], Any], profile: Profile = SMALL
) -> Operator:
    return Operator(None, lambda _, given: (None, function(*given)), feed, lambda _: {}, profile)


def ledger_sizes(state: ledger.LedgerState) -> dict[str, tuple[int, int]]:
    waiting = max((len(entry.waiting) for entry in state.entries.values()), default=0)
    limits = SMALL.ledger
    return {
        "entries": (len(state.entries), limits.artifacts_max),
        "waiting": (waiting, limits.waiting_max),
    }


def prefix_sizes(state: prefix.PrefixState) -> dict[str, tuple[int, int]]:
    most = SMALL.prefix.nodes_max
    return {
        "nodes": (state.size, most),
        "hops": (state.hops.size, most * most),
        "consumed": (state.consumed.bit_length(), most),
        "parents": (max((len(p) for p in state.parents), default=0), most),
        "waiting": (len(state.waiting), SMALL.prefix.waiting_max),
    }


def transport_sizes(state: transport.TransportState) -> dict[str, tuple[int, int]]:
    most = REFERENCES.count * REFERENCES.width * SMALL.prefix.nodes_max
    return {"plan": (state.coupling.plan.size, most), "cost": (state.cost.size, most)}


def loop_sizes(state: loop.LoopState) -> dict[str, tuple[int, int]]:
    window = SMALL.loop.window
    return {"calls": (len(state.predecessors), window), "actions": (len(state.actions), window)}


def exploration_sizes(state: exploration.ExplorationState) -> dict[str, tuple[int, int]]:
    grace = SMALL.exploration.grace
    return {
        "pending": (len(state.pending), grace),
        "branches": (len(state.branches), grace + 1),
        "orphans kept": (len(state.orphans), SMALL.exploration.orphans_max),
    }


def stall_sizes(state: stall.StallState) -> dict[str, tuple[int, int]]:
    window = SMALL.stall.window
    return {
        "streak": (len(state.streak), 4 * window),
        "covered": (len(state.covered), window),
    }


def repeats_sizes(state: repeats.RepeatState) -> dict[str, tuple[int, int]]:
    limits = SMALL_DEFAULT.repeats
    return {
        "calls": (len(state.calls), 20 * limits.calls_max),
        "results": (len(state.results), 8 * limits.results_max),
        "objects": (len(state.streak.objects), 8 * limits.objects_max),
        "seqs": (len(state.streak.seqs), limits.evidence_max),
    }


def orphans_sizes(state: orphans.OrphanState) -> dict[str, tuple[int, int]]:
    limits = SMALL_DEFAULT.orphans
    return {
        "recent": (len(state.recent), limits.window),
        "strangers": (len(state.strangers), limits.remembered_max),
        "called": (len(state.called), len(VALUES.tools)),
    }


def ranking_sizes(state: ranking.RankState) -> dict[str, tuple[int, int]]:
    return {"row": (state.row.size, REFERENCES.count * (REFERENCES.width + 1))}


def sightings_sizes(state: sightings.SeenValues) -> dict[str, tuple[int, int]]:
    return {"records": (len(state.table), SMALL_DEFAULT.sightings.records_max)}


def scoring_sizes(state: scoring.ScoringState) -> dict[str, tuple[int, int]]:
    limits = SMALL_DEFAULT.scoring
    return {
        "tools": (len(state.tools), 8 * limits.tools_max),
        "calls": (len(state.calls.pairs), 16 * limits.calls_max),
        "unsafe": (len(state.unsafe), limits.unsafe_max),
    }


def default_run_sizes(state: RunState) -> dict[str, tuple[int, int]]:
    assert state.transport is not None
    found = {"seen": (len(state.seen), SMALL_DEFAULT.steps_max)}
    parts = {
        "ledger": ledger_sizes(state.ledger),
        "prefix": prefix_sizes(state.prefix),
        "transport": transport_sizes(state.transport),
        "ranking": {} if state.ranking is None else ranking_sizes(state.ranking),
        "repeats": repeats_sizes(state.repeats),
        "orphans": orphans_sizes(state.orphans),
        "values": sightings_sizes(state.values),
        "scoring": scoring_sizes(state.scoring),
    }
    for name, part in parts.items():
        found |= {f"{name}.{key}": size for key, size in part.items()}
    return found


def run_sizes(state: RunState) -> dict[str, tuple[int, int]]:
    assert state.transport is not None
    found = {
        "seen": (len(state.seen), SMALL.steps_max),
        "verdicts": (len(state.verdicts), 8),
        "interventions": (len(state.interventions), 4),
        "flags": (len(state.flags), 12),
    }
    parts = {
        "ledger": ledger_sizes(state.ledger),
        "prefix": prefix_sizes(state.prefix),
        "transport": transport_sizes(state.transport),
        "loop": loop_sizes(state.loop),
        "gain": {"results": (len(state.gain.results), SMALL.gain.window)},
        "stall": stall_sizes(state.stall),
        "exploration": exploration_sizes(state.exploration),
        "strategy": {"switches": (len(state.strategy.switches), SMALL.strategy.switch_window)},
        "abort": {"recent": (len(state.abort.recent), SMALL.abort.window)},
    }
    for name, part in parts.items():
        found |= {f"{name}.{key}": size for key, size in part.items()}
    return found


def admit_step(state: tuple[HashTrieMap[int, bytes], int], step: Step) -> tuple[Any, Any]:
    seen, highest = state
    found = admission.admit("r", seen, highest, SMALL.steps_max, step)
    return (seen.insert(found.seq, found.digest), max(highest, found.seq)), found


def run_step_under(profile: Profile) -> Callable[[RunState, Any], tuple[RunState, Any]]:
    def run_step(state: RunState, given: Any) -> tuple[RunState, Any]:
        step, admitted, vectors = given
        after, *records = run.step(profile, state, step, admitted, vectors)
        return after, (records, run.end(profile, after, RunEnded(run_id="r")))

    return run_step


def told_of(found: Fed) -> tuple[list[Any], int]:
    """What is said of a step, a minute a step; every ten steps another run begins, in its own task.

    So there are more runs, groups and ended ones than may be remembered.
    """
    after, *said = run.step(SMALL, found.before, found.step, found.admitted, found.vectors)
    name = {"run_id": f"r{found.admitted.seq // 100}", "task_id": f"t{found.admitted.seq // 100}"}
    outputs = [
        *said,
        run.end(SMALL, after, RunEnded(run_id="r")) if len(after.seen) % 10 == 0 else None,
    ]
    return [each.model_copy(update=name) for each in outputs if each], len(after.seen) * 60_000


def fleet_step(state: FleetState, given: Any) -> tuple[FleetState, Any]:
    outputs, at_ms = given
    for output in outputs:
        state = fleet.step(SMALL_FLEET, state, output, at_ms)
    state, lines, more = fleet.due(SMALL_FLEET, state, at_ms)
    return state, ([line.model_dump(mode="json") for line in lines], more)


def fleet_sizes(state: FleetState) -> dict[str, tuple[int, int]]:
    limits = SMALL_FLEET
    of_run = [len(known.ids) for known in state.runs.values()]
    bits = [known.seqs.bit_length() for known in state.runs.values()]
    return {
        "runs": (len(state.runs), limits.runs_max),
        "ended": (len(state.ended), limits.ended_max),
        "ended_order": (len(state.ended_order), limits.ended_max),
        "groups": (len(state.bases), limits.groups_max + 1),
        "minutes": (len(state.windows), limits.lateness_ms // 60_000 + 2),
        "ids": (state.ids, limits.ids_max),
        "ids of a run": (max(of_run, default=0), limits.ids_per_run_max),
        "seqs": (max(bits, default=0), limits.seq_max),
        "wheel": (sum(map(len, state.wheel.values())), limits.runs_max),
    }


def see_and_find(state: sightings.SeenValues, given: Any) -> tuple[sightings.SeenValues, Any]:
    seq, step, wanted = given
    after = sightings.see(
        SMALL_DEFAULT.sightings, state, seq, step.tool, step.result, trusted=step.error is None
    )
    return after, [sightings.find(after, value) for value in wanted]


def values_of(step: Step) -> tuple[values.Argument, ...]:
    return values.identity_arguments(SMALL_DEFAULT.values, step, CONTRACTS.get(step.tool))


def aligned_only(make: Callable[[Fed], Any]) -> Callable[[Fed], Any]:
    return lambda f: None if f.alignment is None else make(f)


OPERATORS: Mapping[str, Operator] = {
    "artifacts": stateless(
        artifacts.extract, lambda f: (SMALL.artifacts, f.step, CONTRACTS.get(f.step.tool))
    ),
    "gate": stateless(asked, lambda f: (f.before, f.step, f.vectors)),
    "admission": Operator(
        (HashTrieMap(), -1),
        admit_step,
        lambda f: f.step,
        lambda state: {"seen": (len(state[0]), SMALL.steps_max)},
    ),
    "ledger": Operator(
        ledger.LedgerState(),
        lambda state, given: ledger.step(SMALL.ledger, state, *given),
        lambda f: (f.admitted.seq, f.before.prefix.size, f.artifacts),
        ledger_sizes,
    ),
    "prefix": Operator(
        prefix.PrefixState(),
        lambda state, given: prefix.step(SMALL.prefix, state, *given),
        lambda f: (f.admitted.seq, f.step.parents or (), f.edges),
        prefix_sizes,
    ),
    "transport": Operator(
        transport.start(REFERENCES),
        lambda state, given: transport.step(SMALL.transport, REFERENCES, state, *given),
        aligned_only(
            lambda f: (
                f.after.prefix.hops,
                prefix.age_weights(SMALL.prefix, f.after.prefix),
                f.row,
            )
        ),
        transport_sizes,
    ),
    "loop": Operator(
        loop.LoopState(),
        lambda state, given: loop.step(SMALL.loop, state, *given),
        lambda f: (f.admitted.seq, f.step, f.vectors.action),
        loop_sizes,
    ),
    "gain": Operator(
        gain.GainState(),
        lambda state, result: gain.step(SMALL.gain, state, result),
        lambda f: f.vectors.result,
        lambda state: {"results": (len(state.results), SMALL.gain.window)},
    ),
    "stall": Operator(
        stall.StallState(),
        lambda state, given: stall.step(SMALL.stall, state, *given),
        lambda f: (
            f.admitted.seq,
            f.signals.gain,
            None if f.alignment is None else covered_steps(f.alignment),
        ),
        stall_sizes,
    ),
    "exploration": Operator(
        exploration.ExplorationState(),
        lambda state, given: exploration.step(SMALL.exploration, state, *given),
        aligned_only(lambda f: (f.admitted.seq, f.alignment, f.delta.consumed)),
        exploration_sizes,
    ),
    "strategy": Operator(
        strategy.StrategyState(),
        lambda state, given: strategy.step(SMALL.strategy, state, *given),
        aligned_only(lambda f: (f.admitted.seq, f.alignment)),
        lambda state: {"switches": (len(state.switches), SMALL.strategy.switch_window)},
    ),
    "abort": Operator(
        abort.AbortState(),
        lambda state, given: abort.step(SMALL.abort, state, *given),
        lambda f: (f.admitted.seq, f.signals.loop.score > 0),
        lambda state: {"recent": (len(state.recent), SMALL.abort.window)},
    ),
    "paths": stateless(
        lambda value: [*paths.scalars(value, keys=True)], lambda f: ((f.step.args, f.step.result),)
    ),
    "values": stateless(values_of, lambda f: (f.step,)),
    "identity": stateless(
        identity.check,
        lambda f: (
            SMALL_DEFAULT.identity,
            SMALL_DEFAULT.values,
            CONTRACTS,
            VALUES,
            f.before.values,
            f.step,
        ),
        SMALL_DEFAULT,
    ),
    "sightings": Operator(
        sightings.SeenValues(),
        see_and_find,
        lambda f: (f.admitted.seq, f.step, [argument.value for argument in values_of(f.step)]),
        sightings_sizes,
    ),
    "repeats": Operator(
        repeats.RepeatState(),
        lambda state, given: repeats.step(SMALL_DEFAULT.repeats, state, *given),
        lambda f: (f.admitted.seq, f.step, CONTRACTS.get(f.step.tool)),
        repeats_sizes,
        SMALL_DEFAULT,
    ),
    "orphans": Operator(
        orphans.OrphanState(),
        lambda state, given: orphans.step(
            SMALL_DEFAULT.orphans,
            SMALL_DEFAULT.values,
            SMALL_DEFAULT.identity,
            CONTRACTS,
            REFERENCES,
            VALUES,
            state,
            *given,
        ),
        lambda f: (f.before.values, f.admitted.seq, f.step, f.row),
        orphans_sizes,
        SMALL_DEFAULT,
    ),
    "ranking": Operator(
        ranking.start(SMALL_DEFAULT.ranking, REFERENCES),
        lambda state, given: ranking.step(SMALL_DEFAULT.ranking, REFERENCES, state, *given),
        aligned_only(
            lambda f: (
                f.after.transport,
                f.alignment,
                f.step,
                f.vectors.result,
                f.step.tool == "edit_file",
                f.step.error is not None,
            )
        ),
        ranking_sizes,
        SMALL_DEFAULT,
    ),
    "scoring": Operator(
        scoring.start(PLAN),
        lambda state, given: scoring.step(SMALL_DEFAULT.scoring, PLAN, state, *given),
        lambda f: (
            f.admitted.seq,
            f.step,
            CONTRACTS.get(f.step.tool),
            scoring_unsafe.seen_in(f.before.values),
        ),
        scoring_sizes,
        SMALL_DEFAULT,
    ),
    "fleet": Operator(FleetState(), fleet_step, told_of, fleet_sizes),
    "run": Operator(
        BEGIN, run_step_under(SMALL), lambda f: (f.step, f.admitted, f.vectors), run_sizes
    ),
    "run under default": Operator(
        BEGIN_DEFAULT,
        run_step_under(SMALL_DEFAULT),
        lambda f: (f.step, f.admitted, f.vectors),
        default_run_sizes,
        SMALL_DEFAULT,
    ),
}

every_operator = pytest.mark.parametrize("operator", OPERATORS.values(), ids=OPERATORS.keys())


def frozen(value: Any) -> Any:
    """A deep, hashable copy that is equal only where every byte is."""
    if isinstance(value, np.ndarray):
        return ("array", value.dtype.str, value.shape, value.tobytes())
    if isinstance(value, BaseModel):
        return (type(value).__name__, value.model_dump_json())
    if isinstance(value, Predicate):
        return ("predicate", value.expression)  # its program is the library's
    if is_dataclass(value):
        # What a kernel keeps beside arrays is made of them; it is no state.
        kept = [f.name for f in fields(value) if f.name != "derived"]
        return (type(value).__name__, *(frozen(getattr(value, name)) for name in kept))
    if isinstance(value, Mapping | HashTrieMap):
        return ("map", frozenset((frozen(key), frozen(item)) for key, item in value.items()))
    if isinstance(value, tuple | list):
        return (type(value).__name__, *map(frozen, value))
    return (type(value).__name__, repr(value))


def plain(value: Any) -> Any:
    """Outputs as JSON data; raises on anything that is none or not finite."""
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, BaseModel):
        return plain(value.model_dump(mode="python"))
    if is_dataclass(value):
        return {f.name: plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, float):
        assert math.isfinite(value)
    assert value is None or type(value) in (bool, int, float, str), type(value)
    return value


def inputs_of(operator: Operator, steps: Sequence[Step]) -> list[Any]:
    return [
        given for given in map(operator.feed, fed(steps, operator.profile)) if given is not None
    ]


def fold(operator: Operator, state: Any, inputs: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """All states, the first one included, and all outputs."""
    states, outputs = [state], []
    for item in inputs:
        state, output = operator.step(state, item)
        states.append(state)
        outputs.append(output)
    return states, outputs


def busy_run(length: int = 36) -> list[Step]:
    """Everything at once: good steps, repeats, foreign ones, absent parents, new ids, a stall."""
    names = [node.name for node in SIX_STEPS.nodes]
    steps = []
    for number in range(length):
        kind = number % 5
        if kind == 0:
            step = foreign(number)
        elif kind == 1:
            step = foreign(1, parents=(10 * number - 3, 10 * number - 7))
        elif kind == 2:
            step = step_of(SIX_STEPS, names[number % 6], "same", result="same")
        else:
            step = step_of(SIX_STEPS, names[number % 6], number, produced=(f"new-{number}",))
        if number >= length - 12:
            step = step.model_copy(update={"result": "nothing new"})
        waiting = (*(step.consumed or ()), "never-made")
        steps.append(step.model_copy(update={"seq": 10 * number, "consumed": waiting}))
    return steps


@every_operator
@settings(max_examples=10)
@given(arrived=strategies.runs())
def test_the_same_inputs_give_the_same_bytes(operator: Operator, arrived: strategies.Run) -> None:
    inputs = inputs_of(operator, arrived.arrivals)
    once = fold(operator, operator.start, inputs)
    again = fold(operator, copy.deepcopy(operator.start), copy.deepcopy(inputs))
    assert frozen(once) == frozen(again)


@every_operator
@settings(max_examples=10)
@given(arrived=strategies.runs())
def test_neither_inputs_nor_any_earlier_state_change(
    operator: Operator, arrived: strategies.Run
) -> None:
    inputs = inputs_of(operator, arrived.arrivals)
    seen_inputs, state, seen = frozen(inputs), operator.start, []
    for given_now in inputs:
        seen.append((state, frozen(state)))
        state, _ = operator.step(state, given_now)
    assert frozen(inputs) == seen_inputs
    for earlier, as_it_was in seen:
        assert frozen(earlier) == as_it_was


@every_operator
@settings(max_examples=10)
@given(data=st.data(), arrived=strategies.runs(duplicates=False))
def test_two_continuations_of_one_state_do_not_disturb_each_other(
    operator: Operator, data: st.DataObject, arrived: strategies.Run
) -> None:
    cut = data.draw(st.integers(0, len(arrived.arrivals)))
    begun = arrived.arrivals[:cut]
    shared = inputs_of(operator, begun)
    one = inputs_of(operator, arrived.arrivals)[len(shared) :]
    other = inputs_of(operator, [*begun, *(foreign(n, seq=100 + n) for n in range(3))])
    fork = fold(operator, operator.start, shared)[0][-1]
    first = fold(operator, fork, one)
    as_it_was = frozen(first)
    fold(operator, fork, other[len(shared) :])
    assert frozen(first) == as_it_was
    assert frozen(fold(operator, fork, one)) == as_it_was


@every_operator
@pytest.mark.parametrize("kept", [copy.deepcopy, lambda s: pickle.loads(pickle.dumps(s))])
@settings(max_examples=10)
@given(data=st.data(), arrived=strategies.runs())
def test_it_resumes_from_any_earlier_state(
    operator: Operator, kept: Callable[[Any], Any], data: st.DataObject, arrived: strategies.Run
) -> None:
    inputs = inputs_of(operator, arrived.arrivals)
    cut = data.draw(st.integers(0, len(inputs)))
    states, outputs = fold(operator, operator.start, inputs)
    resumed_states, resumed = fold(operator, kept(states[cut]), inputs[cut:])
    assert frozen(resumed) == frozen(outputs[cut:])
    assert frozen(resumed_states[-1]) == frozen(states[-1])


@every_operator
@settings(max_examples=10)
@given(arrived=strategies.runs())
def test_outputs_are_finite_and_can_be_written_as_json(
    operator: Operator, arrived: strategies.Run
) -> None:
    inputs = inputs_of(operator, arrived.arrivals)
    _, outputs = fold(operator, operator.start, inputs)
    json.dumps([plain(output) for output in outputs], allow_nan=False)


@every_operator
def test_far_beyond_its_limits_no_part_of_a_state_exceeds_them(operator: Operator) -> None:
    inputs = inputs_of(operator, busy_run())
    states, _ = fold(operator, operator.start, inputs)
    largest: dict[str, int] = {}
    for state in states:
        for part, (size, limit) in operator.sizes(state).items():
            assert size <= limit, f"{part}: {size} of at most {limit}"
            largest[part] = max(largest.get(part, 0), size)
    idle = [part for part, size in largest.items() if size == 0]
    assert not idle, f"the run does not exercise {idle}"


def successes_of(steps: Sequence[Step]) -> list[mining.Success]:
    """A run, its first half, and the run from behind, as if each had succeeded."""
    whole = tuple(ReferenceStep.of(step.model_copy(update={"seq": None})) for step in steps)
    cuts = {"whole": whole, "half": whole[: len(whole) // 2 + 1], "back": whole[::-1]}
    return [mining.Success(run_id, cut) for run_id, cut in cuts.items() if cut]


def references_of(steps: Sequence[Step]) -> list[Reference]:
    return list(mining.mine(mining.MiningParams(), CONTRACTS, "t", successes_of(steps)).references)


def self_test_of(references: Sequence[Reference]) -> Any:
    if not references:
        return None
    vectors = [embed(text) for text in texts(references)]
    compiled = compile_references(references, CONTRACTS, vectors, SMALL_DEFAULT.artifacts)
    found = values.compile_values(SMALL_DEFAULT.values, references, CONTRACTS)
    tested = selftest.run(*SELF_TEST_OF[:6], compiled, found)
    pool = selftest.pooled(SELF_TEST_OF[0], [tested, tested])
    return tested, pool, selftest.limited(tested, pool)


# Functions of a whole set: from the steps of a run to the input, from the input to the output.
OF_SETS: Mapping[str, tuple[Callable[[Sequence[Step]], Any], Callable[[Any], Any]]] = {
    "compile_values": (
        references_of,
        lambda given: values.compile_values(SMALL_DEFAULT.values, given, CONTRACTS),
    ),
    "selftest": (references_of, self_test_of),
    "mining": (
        successes_of,
        lambda given: mining.mine(mining.MiningParams(), CONTRACTS, "t", given),
    ),
    "stripping": (
        successes_of,
        lambda given: [
            stripping.strip_retries(
                stripping.StripParams(), stripping.numbered(success.steps), CONTRACTS
            )
            for success in given
        ],
    ),
    "grouping": (
        successes_of,
        lambda given: grouping.groups(grouping.GroupParams(), CONTRACTS, given),
    ),
    "staleness": (
        references_of,
        lambda given: staleness.stale(stripping.StripParams(), CONTRACTS, {}, given),
    ),
    "axioms": (
        lambda steps: ["http", *(step.tool for step in steps if step.tool in CONTRACTS)],
        lambda given: axioms.axiomatic(CONTRACTS, "t", given),
    ),
}


@pytest.mark.parametrize("name", OF_SETS)
@settings(max_examples=10)
@given(arrived=strategies.runs(duplicates=False))
def test_a_function_of_a_whole_set_is_deterministic_and_pure_and_its_output_plain(
    name: str, arrived: strategies.Run
) -> None:
    given_by, function = OF_SETS[name]
    given_now = given_by(arrived.arrivals)
    as_it_was = frozen(given_now)
    output = function(given_now)
    assert frozen(given_now) == as_it_was
    assert frozen(function(copy.deepcopy(given_now))) == frozen(output)
    json.dumps(written(output), allow_nan=False)


def written(value: Any) -> Any:
    """As plain does, where keys of a mapping may be numbers or places."""
    if is_dataclass(value):
        return {f.name: written(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return [[written(key), written(item)] for key, item in value.items()]
    if isinstance(value, tuple | list):
        return [written(item) for item in value]
    return plain(value)


def test_each_limit_that_cuts_something_off_is_said_on_the_verdict() -> None:
    _, outputs = fold(OPERATORS["run"], BEGIN, inputs_of(OPERATORS["run"], busy_run()))
    last = outputs[-1][0][0]
    assert {"artifacts_full", "graph_full"} <= set(last.flags)


def test_beyond_steps_max_a_run_is_refused() -> None:
    with pytest.raises(RunTooLong):
        inputs_of(OPERATORS["run"], busy_run(SMALL.steps_max + 1))


def test_the_written_out_order_is_the_one_that_run_step_takes() -> None:
    """Otherwise the operators would be fed something here that they never get there."""
    for found in fed(busy_run()):
        states = {"ledger": (found.admitted.seq, found.before.prefix.size, found.artifacts)}
        after, _ = OPERATORS["ledger"].step(found.before.ledger, states["ledger"])
        assert frozen(after) == frozen(found.after.ledger)
        graph, _ = OPERATORS["prefix"].step(found.before.prefix, OPERATORS["prefix"].feed(found))
        assert frozen(graph) == frozen(found.after.prefix)
        if found.alignment is not None:
            moved, _ = OPERATORS["transport"].step(
                found.before.transport, OPERATORS["transport"].feed(found)
            )
            assert frozen(moved) == frozen(found.after.transport)
