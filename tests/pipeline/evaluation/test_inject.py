from __future__ import annotations

from datetime import UTC, datetime, timedelta
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ontrack.pipeline.evaluation.inject import (
    ATTACKS,
    FOREIGN_STEPS,
    KINDS,
    LOOP_STEPS,
    STALL_STEPS,
    NotInjectable,
    inject,
)
from ontrack.topics.events import Event, RunEnded, RunStarted, Step
from tests import strategies
from tests.operators.shop import CONTRACTS, shop_run


def whole(steps: list[Step]) -> list[Event]:
    return [RunStarted(run_id="ann"), *steps, RunEnded(run_id="ann", outcome="success")]


OTHERS = [shop_run("eve", "W99", "card_9"), shop_run("bob", "W50", "card_5")]
WEATHER = [Step(run_id="w", tool=f"weather_{n}", args={"city": f"c{n}"}) for n in range(5)]


def injected(kind: str, seed: int = 0, donors: object = OTHERS) -> tuple[list[Step], int]:
    events, first = inject(kind, whole(shop_run()), Random(seed), donors, CONTRACTS)
    assert isinstance(events[0], RunStarted)
    assert isinstance(events[-1], RunEnded)
    steps = [event for event in events if isinstance(event, Step)]
    assert [step.seq for step in steps] == list(range(len(steps)))
    assert {step.run_id for step in steps} == {"ann"}
    assert 0 <= first < len(steps)
    return steps, first


@pytest.mark.parametrize("seed", range(5))
def test_a_loop_repeats_what_was_there_with_its_results(seed: int) -> None:
    steps, first = injected("loop", seed)
    assert len(steps) == 3 + LOOP_STEPS
    before = {(s.tool, str(s.args), str(s.result)) for s in steps[:first]}
    for step in steps[first : first + LOOP_STEPS]:
        assert (step.tool, str(step.args), str(step.result)) in before


def test_what_depended_on_a_step_still_depends_on_the_first_of_its_copies() -> None:
    find, look, refund = shop_run()
    steps = [find, look, refund.model_copy(update={"parents": (1,)})]
    places = set()
    for seed in range(20):
        events, first = inject("loop", steps, Random(seed))
        places.add(first)
        if first == 2:
            assert events[-1].parents == (1,)
    assert 2 in places


def test_a_stall_asks_for_something_else_every_time_and_gets_the_same() -> None:
    steps, first = injected("stall")
    streak = steps[first : first + STALL_STEPS]
    assert len({str(step.args) for step in streak}) == STALL_STEPS
    assert {step.result for step in streak} == {"no results"}


def test_a_foreign_streak_uses_tools_that_the_run_does_not() -> None:
    steps, first = injected("foreign_tool", donors=[WEATHER])
    assert all(s.tool.startswith("weather") for s in steps[first : first + FOREIGN_STEPS])
    assert len(steps) == 3 + FOREIGN_STEPS


def test_a_splice_ends_as_another_run_ends() -> None:
    steps, first = injected("splice", donors=OTHERS[:1])
    assert [s.args for s in steps[first:]] == [s.args for s in OTHERS[0]]


def test_an_inversion_moves_the_effect_before_the_tool_that_it_depends_on() -> None:
    steps, first = injected("inversion")
    assert sorted(s.tool for s in steps) == sorted(s.tool for s in shop_run())
    assert steps[first].tool == "refund_order"
    assert "get_order" in [s.tool for s in steps[first:]]


def test_a_tool_error_is_one_failure_before_the_success() -> None:
    steps, first = injected("tool_error")
    assert steps[first].error is not None
    assert steps[first].result is None
    assert (steps[first].tool, steps[first].args) == (steps[first + 1].tool, steps[first + 1].args)
    assert steps[first + 1].error is None


def test_a_missing_artifact_leaves_out_what_a_later_step_uses() -> None:
    steps, first = injected("missing_artifact")
    assert len(steps) == 2
    assert steps[first].tool in ("get_order", "refund_order")


@pytest.mark.parametrize("attack", ATTACKS)
def test_every_attack_is_asked_for_by_an_earlier_result(attack: str) -> None:
    steps, first = injected(f"malicious_call:{attack}", seed=3, donors=[*OTHERS, _closing()])
    bad = steps[first]
    asked = [s for s in steps[:first] if f"call {bad.tool} with" in str(s.result)]
    assert len(asked) == 1
    own = [(s.tool, s.args) for s in shop_run()]
    assert (bad.tool, bad.args) not in own


def test_data_leaves_in_the_address_of_a_read() -> None:
    steps, first = injected("malicious_call:exfiltration")
    assert steps[first].tool not in CONTRACTS
    assert steps[first].args["url"].startswith("https://")


def test_an_attackers_value_looks_like_the_one_it_replaces() -> None:
    steps, first = injected("malicious_call:attacker_value")
    real = next(s for s in shop_run() if s.tool == steps[first].tool)
    ((name, value),) = [(n, v) for n, v in steps[first].args.items() if v != real.args[n]]
    assert len(value) == len(real.args[name])


def test_looking_somebody_up_comes_before_using_their_order() -> None:
    steps, first = injected("malicious_call:foreign_lookup", donors=OTHERS[:1])
    assert steps[first].args["order_id"] == "W99"
    assert any("W99" in str(s.result) for s in steps[:first] if s.tool == "get_order")


def test_what_a_run_does_not_offer_is_said() -> None:
    reads = [step for step in shop_run() if step.tool != "refund_order"]
    with pytest.raises(NotInjectable, match="effectful"):
        inject("inversion", reads, Random(0), (), CONTRACTS)
    with pytest.raises(NotInjectable, match="donor"):
        inject("splice", reads, Random(0))
    with pytest.raises(ValueError, match="no injection 'gremlins'"):
        inject("gremlins", reads, Random(0))


def test_no_step_is_earlier_than_the_one_before_it() -> None:
    start = datetime(2026, 1, 1, tzinfo=UTC)
    timed = [
        step.model_copy(update={"time": start + timedelta(seconds=seq)})
        for seq, step in enumerate(shop_run())
    ]
    for kind in ("inversion", "splice", "loop"):
        events, _ = inject(kind, timed, Random(1), OTHERS, CONTRACTS)
        times = [event.time for event in events]
        assert None not in times
        assert times == sorted(times, key=lambda time: time or start)


@settings(max_examples=30)
@given(
    st.sampled_from(KINDS),
    st.lists(strategies.steps(), min_size=1, max_size=6),
    st.lists(st.lists(strategies.steps(), max_size=5), max_size=3),
    st.integers(0, 5),
)
def test_any_run_is_injected_alike_by_the_same_seed_and_left_as_it_was(
    kind: str, steps: list[Step], donors: list[list[Step]], seed: int
) -> None:
    numbered = [step.model_copy(update={"seq": seq}) for seq, step in enumerate(steps)]
    before = [step.model_dump_json() for step in numbered]
    try:
        events, first = inject(kind, numbered, Random(seed), donors, CONTRACTS)
    except NotInjectable:
        return
    assert [step.model_dump_json() for step in numbered] == before
    assert (events, first) == inject(kind, numbered, Random(seed), donors, CONTRACTS)
    assert [event.seq for event in events] == list(range(len(events)))
    assert 0 <= first < len(events)
    kept = [s for s in events if any(s.tool == old.tool and s.args == old.args for old in steps)]
    assert all(parent < s.seq for s in kept for parent in s.parents or () if s.seq is not None)


def _closing() -> list[Step]:
    return [Step(run_id="z", tool="close_account", args={"email": "zoe@shop.example"})]
