"""What every operator promises: deterministic, pure, bounded, resumable, plain outputs.

An operator is a row of a table: how it starts, how it steps, what it is fed for a given run, and
which sizes its state states.
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
    exploration,
    gain,
    gate,
    ledger,
    loop,
    prefix,
    run,
    stall,
    strategy,
    transport,
)
from ontrack.operators.exploration import ExplorationParams
from ontrack.operators.findings import Signals
from ontrack.operators.gain import GainParams
from ontrack.operators.ledger import LedgerParams
from ontrack.operators.loop import LoopParams
from ontrack.operators.prefix import PrefixParams
from ontrack.operators.profiles import paper
from ontrack.operators.stall import StallParams
from ontrack.operators.strategy import StrategyParams
from ontrack.operators.vectors import StepVectors, step_texts
from ontrack.topics.errors import RunTooLong
from ontrack.topics.events import RunEnded, Step
from ontrack.topics.knowledge import ToolContract
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
CONTRACTS = {
    "git_commit": ToolContract(name="git_commit", consumes=("=tests_passed",)),
    "http": ToolContract(name="http", consumes=("args.id",), produces=("result.id",)),
    "edit_file": ToolContract(name="edit_file", effect="write"),
}
KNOWN = Lab([reference_of(SIX_STEPS, index) for index in range(2)], list(CONTRACTS.values()), SMALL)
BEGIN = KNOWN.state


def vectors_of(step: Step) -> StepVectors:
    return StepVectors(*map(embed, step_texts(step, 1000)))


@dataclass(frozen=True)
class Fed:
    """One admitted step, the run's state before and after it, and the alignment of it."""

    step: Step
    vectors: StepVectors
    admitted: admission.Admission
    before: run.RunState
    after: run.RunState
    artifacts: artifacts.Artifacts
    edges: tuple[tuple[int, int], ...]
    delta: prefix.Delta
    row: np.ndarray
    alignment: transport.Alignment | None
    signals: Signals


def fed(steps: Sequence[Step]) -> list[Fed]:
    """What run.step hands from operator to operator, written out."""
    state, found = BEGIN, []
    for step in steps:
        admitted = admission.admit("r", state.seen, state.highest, SMALL.steps_max, step)
        if admitted.duplicate:
            continue
        seq, vectors = admitted.seq, vectors_of(step)
        ids = artifacts.extract(SMALL.artifacts, step, CONTRACTS.get(step.tool))
        _, edges = ledger.step(SMALL.ledger, state.ledger, seq, state.prefix.size, ids)
        graph, delta = prefix.step(SMALL.prefix, state.prefix, seq, step.parents or (), edges.edges)
        row = transport.cost_row(SMALL.transport, REFERENCES, step, vectors)
        alignment = None
        if delta.node is not None and state.transport is not None:
            age = prefix.age_weights(SMALL.prefix, graph)
            _, alignment = transport.step(
                SMALL.transport, REFERENCES, state.transport, graph.hops, age, row
            )
        signals = signals_of(state, seq, step, vectors, alignment, delta)
        after = run.step(SMALL, state, step, admitted, vectors)[0]
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
    state: run.RunState,
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


def asked(state: run.RunState, step: Step, vectors: StepVectors) -> gate.GateAnswer:
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


assert BEGIN.knowledge.references is not None
REFERENCES = BEGIN.knowledge.references


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
    """

    start: Any
    step: Callable[[Any, Any], tuple[Any, Any]]
    feed: Callable[[Fed], Any]
    sizes: Callable[[Any], dict[str, tuple[int, int]]]


def stateless(function: Callable[..., Any], feed: Callable[[Fed], Any]) -> Operator:
    return Operator(None, lambda _, given: (None, function(*given)), feed, lambda _: {})


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
        "ancestors": (max((a.bit_length() for a in state.ancestors), default=0), most),
        "consumed": (state.consumed.bit_length(), most),
        "parents": (max((len(p) for p in state.parents), default=0), most),
        "node_of": (len(state.node_of), most),
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


def run_sizes(state: run.RunState) -> dict[str, tuple[int, int]]:
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


def run_step(state: run.RunState, given: Any) -> tuple[run.RunState, Any]:
    step, admitted, vectors = given
    after, *records = run.step(SMALL, state, step, admitted, vectors)
    return after, (records, run.end(SMALL, after, RunEnded(run_id="r")))


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
    "run": Operator(BEGIN, run_step, lambda f: (f.step, f.admitted, f.vectors), run_sizes),
}

every_operator = pytest.mark.parametrize("operator", OPERATORS.values(), ids=OPERATORS.keys())


def frozen(value: Any) -> Any:
    """A deep, hashable copy that is equal only where every byte is."""
    if isinstance(value, np.ndarray):
        return ("array", value.dtype.str, value.shape, value.tobytes())
    if isinstance(value, BaseModel):
        return (type(value).__name__, value.model_dump_json())
    if is_dataclass(value):
        return (type(value).__name__, *(frozen(getattr(value, f.name)) for f in fields(value)))
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
    return [given for given in map(operator.feed, fed(steps)) if given is not None]


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
