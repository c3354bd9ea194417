from __future__ import annotations

import gc
import pickle
import tracemalloc
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from ontrack.operators import run, transport
from ontrack.operators.knowledge import Knowledge
from ontrack.operators.profiles import Profile, make_profile, paper
from ontrack.solver import kernels
from ontrack.topics.errors import ConflictingDuplicate, RunTooLong, UnknownName
from ontrack.topics.events import Step
from ontrack.topics.knowledge import Provenance, ReferenceStep, ToolContract
from ontrack.topics.verdicts import AFTER_HALT, WOULD_HALT
from tests import strategies
from tests.operators import lab as laboratory
from tests.operators.lab import SIX_STEPS, Lab, foreign, reference_of, step_of
from tests.operators.test_table2 import CONTRACTS, ORDER

STATE_BYTES_MAX = 150 * 1024
HEAP_BYTES_MAX = 150 * 1024


def profile(part: str = "", **changes: Any) -> Profile:
    base = paper("synthetic")
    if not part:
        return replace(base, **changes)
    return replace(base, **{part: replace(getattr(base, part), **changes)})


def six(**options: Any) -> Lab:
    return Lab([reference_of(SIX_STEPS, index) for index in range(3)], **options)


def steps(*names: str) -> list[Step]:
    return [step_of(SIX_STEPS, name, f"run{n}", seq=n) for n, name in enumerate(names or ORDER)]


def plain(number: int, **fields: Any) -> Step:
    given = {"args": {"n": number}, "result": f"word{number}", "consumed": (), "produced": ()}
    return Step(run_id="r", tool="look", **{**given, **fields})


def test_a_bare_stream_has_vital_signs_and_no_alignment() -> None:
    bare = Lab()
    bare.feed(plain(0), plain(1), plain(0))
    assert bare.names == ["OK", "OK", "LOOP"]
    assert bare.verdicts[0].score is bare.verdicts[0].coverage is None
    card = bare.end()
    assert (card.steps, card.final_score, card.verdicts) == (3, None, {"LOOP": 1, "OK": 2})


def test_with_schemas_only_the_gate_is_on() -> None:
    schemas = Lab(contracts=CONTRACTS)
    schemas.feed(step_of(SIX_STEPS, "commit"))
    assert schemas.names == ["BLOCK"]


def test_duplicates_are_dropped_and_leave_no_trace() -> None:
    once, twice = six(), six()
    once.feed(*steps())
    doubled = [step for step in steps() for _ in range(2)]
    twice.feed(*doubled, *steps())
    assert twice.verdicts == once.verdicts
    assert twice.end() == once.end()


def test_a_number_used_for_two_steps_is_an_error_and_the_run_goes_on() -> None:
    monitored = six()
    monitored.feed(*steps()[:2])
    with pytest.raises(ConflictingDuplicate):
        monitored.feed(foreign(1, seq=1))
    monitored.feed(*steps()[2:])
    assert monitored.names == ["OK"] * 6


def test_a_gap_and_a_late_step_are_flagged_on_their_verdicts_and_on_the_scorecard() -> None:
    monitored = six()
    happened = steps()
    monitored.feed(happened[0], happened[2], happened[1])
    assert [verdict.flags for verdict in monitored.verdicts] == [(), ("gap",), ("late",)]
    assert monitored.end().flags == ("gap", "late")


def test_a_late_producer_gives_a_retroactive_edge_and_says_so() -> None:
    monitored = six()
    happened = steps()
    monitored.feed(happened[1], happened[0])
    assert monitored.verdicts[1].flags == ("late", "retroactive_edge")
    assert monitored.state.prefix.parents == ((1,), ())


def test_a_parent_that_is_not_earlier_is_flagged() -> None:
    monitored = Lab()
    monitored.feed(plain(0, parents=(1,)), plain(1))
    assert [v.flags for v in monitored.verdicts] == [("parent_not_earlier",), ()]
    itself = Lab()
    itself.feed(plain(0, parents=(0,)))
    assert itself.verdicts[0].flags == ("parent_not_earlier",)


def test_the_last_step_a_run_may_have_halts_it_and_the_next_is_refused() -> None:
    monitored = Lab(profile=profile(steps_max=3))
    monitored.feed(*(plain(n) for n in range(3)))
    assert [act.intervention for act in monitored.interventions] == ["halt"]
    halt = monitored.interventions[0]
    assert (halt.seq, halt.severity, halt.authority) == (2, 3, "intervene")
    assert "3 steps" in halt.reason
    with pytest.raises(RunTooLong):
        monitored.feed(plain(3))
    assert monitored.end().interventions == {"halt": 1}


def test_the_limit_of_steps_halts_with_its_own_authority_and_not_that_of_the_references() -> None:
    generated = [reference_of(SIX_STEPS, 0, Provenance.GENERATED)]
    monitored = Lab(generated, profile=profile(steps_max=2))
    monitored.feed(*steps()[:2])
    assert monitored.verdicts[-1].authority == "inform"
    assert monitored.interventions[-1].authority == "intervene"


def test_a_dense_row_of_severe_steps_halts_once_and_what_follows_is_flagged() -> None:
    monitored = Lab()
    monitored.feed(*(plain(0) for _ in range(8)))
    halts = [act for act in monitored.interventions if act.intervention == "halt"]
    assert [act.seq for act in halts] == [4]
    assert halts[0].evidence == (1, 2, 3, 4)
    assert "4 of the last 6 steps were severe" in halts[0].reason
    flagged = [verdict.seq for verdict in monitored.verdicts if "after_halt" in verdict.flags]
    assert flagged == [5, 6, 7]


def test_a_run_in_shadow_is_not_halted_and_says_that_it_would_have_been() -> None:
    monitored = Lab()
    monitored.state = replace(monitored.state, shadow=True)
    monitored.feed(*(plain(0) for _ in range(6)))
    assert monitored.interventions == []
    flagged = [verdict.seq for verdict in monitored.verdicts if WOULD_HALT in verdict.flags]
    assert flagged == [4, 5]
    assert not any(AFTER_HALT in verdict.flags for verdict in monitored.verdicts)
    monitored.state = replace(monitored.state, shadow=False)
    monitored.feed(plain(0))
    assert [act.intervention for act in monitored.interventions] == ["halt"]


def test_generated_references_inform_and_never_intervene_or_halt() -> None:
    generated = [reference_of(SIX_STEPS, n, Provenance.GENERATED) for n in range(3)]
    monitored = Lab(generated)
    monitored.feed(*steps()[:1], *(foreign(n) for n in range(10)))
    assert "OFF_TRACK" in monitored.names
    assert monitored.interventions == []
    assert max(verdict.severity for verdict in monitored.verdicts) == 1


def test_axiomatic_references_warn_at_most() -> None:
    axiomatic = [reference_of(SIX_STEPS, n, Provenance.AXIOMATIC) for n in range(3)]
    monitored = Lab(axiomatic)
    monitored.feed(*steps()[:1], *(foreign(n) for n in range(10)))
    assert {act.intervention.value for act in monitored.interventions} == {"warn"}
    assert max(verdict.severity for verdict in monitored.verdicts) == 2


def test_a_verdict_that_the_converged_solve_does_not_share_is_withdrawn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monitored = six()
    monitored.feed(*steps()[:3], foreign(0), foreign(1))
    asked: list[int] = []
    real = transport.converge

    def nothing_leaks(*args: Any) -> transport.Alignment:
        found = real(*args)
        asked.append(len(found.leakages))
        near = found.cost.copy()
        near[:, 0] = 0.0
        return replace(found, leakages=np.zeros_like(found.leakages), cost=near)

    monkeypatch.setattr(transport, "converge", nothing_leaks)
    verdict = monitored.feed(foreign(2))[0]
    assert asked == [6], "only the step that would have been OFF_TRACK is solved again"
    assert verdict.verdict == "OK"
    assert verdict.confirmed is False
    assert verdict.flags == ("withdrawn",)
    assert monitored.interventions == []


def test_the_converged_solve_is_asked_only_where_the_fast_path_would_intervene(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def never(*args: Any) -> transport.Alignment:
        raise AssertionError("asked without need")

    monkeypatch.setattr(transport, "converge", never)
    monitored = six()
    monitored.feed(*steps())
    monitored.feed(*(plain(0) for _ in range(3)))
    assert "LOOP" in monitored.names
    assert {verdict.confirmed for verdict in monitored.verdicts} == {None}


def test_beyond_the_limit_of_nodes_vital_signs_go_on_and_it_is_said() -> None:
    monitored = six(profile=profile("prefix", nodes_max=3))
    monitored.feed(*steps(), steps()[5].model_copy(update={"seq": 6}))
    assert ["graph_full" in verdict.flags for verdict in monitored.verdicts] == [False] * 3 + [
        True
    ] * 4
    assert monitored.verdicts[3].coverage is None
    assert monitored.names[-1] == "LOOP"
    card = monitored.end()
    assert card.steps == 7
    assert "graph_full" in card.flags
    assert card.final_score is not None


def test_a_full_ledger_is_said_on_every_verdict_from_then_on() -> None:
    monitored = Lab(profile=profile("ledger", artifacts_max=1))
    monitored.feed(*(plain(n, produced=(f"id{n}",)) for n in range(3)))
    flagged = ["artifacts_full" in verdict.flags for verdict in monitored.verdicts]
    assert flagged == [False, True, True]


def test_a_blocked_call_that_ran_anyway_interferes_once_per_step() -> None:
    monitored = six(contracts=CONTRACTS)
    monitored.feed(*steps()[:4], step_of(SIX_STEPS, "commit", "now"))
    assert monitored.names[-1] == "BLOCK"
    assert [act.intervention for act in monitored.interventions] == ["block"]


def test_what_the_codec_mended_stands_on_the_verdict() -> None:
    monitored = Lab()
    event = plain(0)
    admission = laboratory.admit("r", monitored.state.seen, -1, 10, event)
    _, verdict, _ = run.step(
        monitored.profile, monitored.state, event, admission, monitored.vectors(event), ("mended",)
    )
    assert verdict.flags == ("mended",)


def test_a_run_without_a_step_ends_with_an_empty_scorecard() -> None:
    card = six().end()
    assert (card.steps, card.final_score, card.best_reference) == (0, None, None)


def test_cost_and_errors_add_up_on_the_scorecard() -> None:
    monitored = Lab()
    failing = laboratory.failed(plain(1, cost_usd=0.25))
    monitored.feed(plain(0, cost_usd=0.5), failing, plain(2))
    card = monitored.end()
    assert (card.cost_usd, card.errors) == (0.75, 1)


def test_settings_have_a_digest_that_changes_with_every_one_of_them() -> None:
    digests = {
        paper("synthetic").digest("a"),
        paper("synthetic").digest("b"),
        profile(steps_max=7).digest("a"),
        profile("loop", window=7).digest("a"),
    }
    assert len(digests) == 4
    assert make_profile("paper", "x").digest("x") == paper("x").digest("x")
    with pytest.raises(UnknownName, match="known profiles: default, paper"):
        make_profile("nope", "x")


@settings(max_examples=25)
@given(strategies.runs(), strategies.contracts(), strategies.references(2, 4))
def test_any_run_is_judged_step_by_step_whatever_comes(
    events: strategies.Run, contracts: tuple[ToolContract, ...], references: tuple[Any, ...]
) -> None:
    monitored = Lab(references, contracts)
    monitored.feed(*events.arrivals)
    assert sorted(verdict.seq for verdict in monitored.verdicts) == [s.seq for s in events.steps]
    by_seq = {verdict.seq: verdict for verdict in monitored.verdicts}
    for act in monitored.interventions:
        assert act.severity >= 2
        assert by_seq[act.seq].verdict == act.verdict
    card = monitored.end()
    assert card.steps == sum(card.verdicts.values()) == len(events.steps)
    assert sum(card.interventions.values()) == len(monitored.interventions)


def module_step(number: int, variant: int) -> Step:
    """A step as coding agents make them: long ids, six of them, most of them new."""
    return Step(
        run_id="2f0c6d1e-6f0b-4c86-9a61-6a3c5f0e8b11",
        seq=number,
        action=f"look into module {number}~{variant}",
        tool=f"tool_{number % 12}",
        args={"path": f"src/package/module_{number - number % 2}.py", "line": 1000 + number},
        result=f"src/package/module_{number}.py:{number}: def f_{number}\n"
        f"src/package/test_module_{number}.py:7: order-{1000 + number}, user{number}@example.com",
        call_id=f"toolu_{number:024d}",
    )


def forty_step_references() -> list[Any]:
    return [
        reference_of(SIX_STEPS, index).model_copy(
            update={"steps": tuple(ReferenceStep.of(module_step(n, index)) for n in range(40))}
        )
        for index in range(3)
    ]


def test_an_open_run_of_forty_steps_costs_at_most_150_kib(monkeypatch: pytest.MonkeyPatch) -> None:
    """t = m = 40, K = 3, d = 256: arrays and the pickled rest, without what runs share."""
    monkeypatch.setattr(laboratory, "DIMENSION", 256)
    monitored = Lab(forty_step_references())
    monitored.feed(*(module_step(number, 9) for number in range(40)))
    state = monitored.state
    assert state.transport is not None
    assert state.transport.cost.shape == (3, 40, 40)
    assert state.gain.results.rows.shape == state.loop.actions.rows.shape == (40, 256)
    assert len(state.ledger.entries) == 240
    own = pickle.dumps(replace(state, knowledge=Knowledge()), protocol=5)
    assert len(own) <= STATE_BYTES_MAX


def test_on_the_heap_small_objects_cost_it_little_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same run as Python allocates it; what the Rust maps allocate is not traced.

    By numpy, whatever kernel was chosen before: the compiled one carries its terms as well.
    """
    monkeypatch.setattr(kernels, "_in_force", None)
    monkeypatch.setattr(laboratory, "DIMENSION", 256)
    references = forty_step_references()
    Lab(references).feed(*(module_step(number, 9) for number in range(40)))  # fills caches
    monitored = Lab(references)
    state, events = monitored.state, [module_step(number, 9) for number in range(40)]
    inputs = [(event, monitored.vectors(event)) for event in events]
    gc.collect()
    tracemalloc.start()
    try:
        for event, vectors in inputs:
            admission = laboratory.admit("r", state.seen, state.highest, 5000, event)
            state = run.step(monitored.profile, state, event, admission, vectors)[0]
        gc.collect()
        heap, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert heap <= HEAP_BYTES_MAX, f"{heap / 1024:.0f} KiB"
