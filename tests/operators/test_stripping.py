from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from ontrack.operators.stripping import (
    StripParams,
    call_key,
    effects_of,
    numbered,
    strip_dead_ends,
    strip_retries,
)
from ontrack.topics.events import ErrorInfo
from ontrack.topics.knowledge import ReferenceStep, ToolContract
from tests import strategies

PARAMS = StripParams()
CONTRACTS = {
    contract.name: contract
    for contract in (
        ToolContract(name="look", declared_effect="read"),
        ToolContract(name="ask_web", declared_effect="read", external=True),
        ToolContract(name="pay", declared_effect="write"),
    )
}


def call(tool: str, result: Any = "fine", failed: bool = False, **args: Any) -> ReferenceStep:
    error = ErrorInfo(message="timeout") if failed else None
    return ReferenceStep(tool=tool, args=args, result=None if failed else result, error=error)


def run(*calls: ReferenceStep) -> tuple[ReferenceStep, ...]:
    return numbered(calls)


def kept(steps: tuple[ReferenceStep, ...]) -> list[int | None]:
    return [step.seq for step in steps]


def test_a_failed_call_that_is_made_again_goes_and_the_last_attempt_stays() -> None:
    steps = run(
        call("look", failed=True, order="A-17"),
        call("look", failed=True, order="A-17"),
        call("look", order="A-17"),
        call("pay", failed=True, order="A-17"),
        call("pay", order="A-17"),
    )
    found = strip_retries(PARAMS, steps, CONTRACTS)
    assert kept(found.steps) == [2, 4]
    assert found.retries == (0, 1, 3)


def test_a_failed_call_that_is_put_right_is_no_retry() -> None:
    steps = run(call("look", failed=True, order="A17"), call("look", order="A-17"))
    assert strip_retries(PARAMS, steps, CONTRACTS).steps == steps


def test_the_same_read_with_the_same_result_goes_where_only_reads_lie_between() -> None:
    one, other = call("look", "paid", order="A-17"), call("look", "open", order="B-20")
    assert kept(strip_retries(PARAMS, run(one, other, one), CONTRACTS).steps) == [0, 1]


def test_looking_again_after_a_write_stays_even_if_nothing_changed() -> None:
    look = call("look", "paid", order="A-17")
    steps = run(look, call("pay", order="A-17"), look)
    assert strip_retries(PARAMS, steps, CONTRACTS).steps == steps


def test_looking_again_with_another_result_stays() -> None:
    steps = run(call("look", "open", order="A-17"), call("look", "paid", order="A-17"))
    assert strip_retries(PARAMS, steps, CONTRACTS).steps == steps


def test_a_payment_made_twice_was_made_twice() -> None:
    steps = run(call("pay", order="A-17"), call("pay", order="A-17"))
    assert strip_retries(PARAMS, steps, CONTRACTS).steps == steps


def test_without_contracts_only_what_follows_itself_is_a_repeat() -> None:
    look, other = call("look", "paid", order="A-17"), call("other")
    found = strip_retries(PARAMS, run(look, look, other, look), {})
    assert kept(found.steps) == [0, 2, 3]


def test_parents_point_to_what_stayed() -> None:
    look = call("look", "paid", order="A-17")
    user = call("pay", order="A-17").model_copy(update={"parents": (1, 2)})
    failed = call("look", failed=True, order="B-20")
    again = call("look", order="B-20")
    found = strip_retries(PARAMS, run(look, look, failed, user, again), CONTRACTS)
    assert kept(found.steps) == [0, 3, 4]
    assert found.steps[1].parents == (0,)  # the retry of step 2 came later


def dead_ends(steps: tuple[ReferenceStep, ...], *shared: ReferenceStep, others: int = 4) -> Any:
    keys = {call_key(PARAMS, step, CONTRACTS) for step in shared}
    return strip_dead_ends(PARAMS, steps, CONTRACTS, keys, others)


def test_a_read_that_nobody_used_and_no_other_success_has_is_a_dead_end() -> None:
    steps = run(
        call("look", {"order": "ord-77"}, customer="cus-5"),
        call("look", {"order": "ord-99"}, customer="cus-6"),
        call("pay", order="ord-77"),
    )
    found = dead_ends(steps)
    assert kept(found.steps) == [0, 2]
    assert found.dead_ends == (1,)
    assert dead_ends(steps, steps[1]).steps == steps
    assert dead_ends(steps, others=3).steps == steps


def test_what_only_fed_a_dead_end_goes_with_it() -> None:
    steps = run(
        call("look", {"folder": "dir-31"}, q="docs"),
        call("look", {"page": "none"}, folder="dir-31"),
        call("pay", order="ord-77"),
    )
    assert kept(dead_ends(steps).steps) == [2]


def test_neither_writes_nor_the_open_world_nor_unknown_tools_nor_the_end_are_dead_ends() -> None:
    steps = run(call("pay", sum=5), call("ask_web", q="rates"), call("mystery"), call("look", x=1))
    assert dead_ends(steps).steps == steps


def test_a_failure_that_led_nowhere_is_a_dead_end_whatever_the_tool() -> None:
    steps = run(call("pay", failed=True, order="ord-1"), call("pay", order="ord-2"))
    assert kept(dead_ends(steps).steps) == [1]


CALLS = st.builds(
    call,
    tool=st.sampled_from(("look", "ask_web", "pay", "mystery")),
    result=st.sampled_from(("fine", "open", {"order": "ord-77"})),
    failed=st.sampled_from((False, False, False, True)),
    order=st.sampled_from(("ord-77", "ord-99")),
)


@given(st.lists(CALLS, min_size=1, max_size=12))
def test_what_is_left_is_part_of_the_run_with_all_its_effects_and_nothing_more_to_strip(
    calls: list[ReferenceStep],
) -> None:
    steps = run(*calls)
    retried = strip_retries(PARAMS, steps, CONTRACTS)
    found = dead_ends(retried.steps)
    numbers = kept(found.steps)
    assert numbers == sorted(set(numbers))
    assert sorted([*numbers, *retried.retries, *found.dead_ends]) == list(range(len(steps)))
    for step in found.steps:
        assert step.seq is not None
        before = steps[step.seq]
        assert (step.tool, step.args, step.result) == (before.tool, before.args, before.result)
    assert effects_of(PARAMS, found.steps, CONTRACTS) == effects_of(PARAMS, steps, CONTRACTS)
    assert strip_retries(PARAMS, found.steps, CONTRACTS).steps == found.steps
    assert dead_ends(found.steps).steps == found.steps


@given(strategies.runs(gaps=False, late=False, duplicates=False))
def test_any_run_can_be_stripped_and_every_call_that_succeeded_stays(run: strategies.Run) -> None:
    steps = numbered([ReferenceStep.of(step) for step in run.steps])
    found = strip_retries(PARAMS, steps, {})
    had = {call_key(PARAMS, step, {}) for step in steps if step.error is None}
    assert had <= {call_key(PARAMS, step, {}) for step in found.steps}
