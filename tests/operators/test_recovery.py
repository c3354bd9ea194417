from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ontrack.operators.recovery import Fault, MadeCall, Recovery, recoveries
from ontrack.operators.scoring_coverage import ReferencePath
from ontrack.operators.scoring_plan import ScoringParams, TaskPlan
from ontrack.topics.events import Outcome, Step

PARAMS = ScoringParams()
NINE = datetime(2026, 3, 2, 9, tzinfo=UTC)
SEEN, UNSEEN = Fault("timeout", True), Fault("timeout", False)


def plan(*paths: str, reviewed: bool = True) -> TaskPlan:
    """References written as words: a call a letter."""
    walked = tuple(ReferencePath(f"ref-{at}", tuple(path)) for at, path in enumerate(paths))
    return TaskPlan(paths=walked, reviewed=reviewed)


def call(
    at: int, tool: str, path: str = "x", error: str | None = None, fault: Fault | None = None
) -> MadeCall:
    """A call that takes five seconds of every ten and costs a cent."""
    step = Step(
        run_id="r",
        seq=at,
        tool=tool,
        args={"path": path},
        result=None if error else "done",
        error=error,  # type: ignore[arg-type]  # text becomes a message
        ended_at=NINE + timedelta(seconds=10 * at + 5),
        cost_usd=0.01,
    )
    return MadeCall(at, step, fault)


def told(
    calls: list[MadeCall], outcome: Outcome = "success", against: TaskPlan | None = None
) -> tuple[Recovery, ...]:
    return recoveries(PARAMS, against or TaskPlan(), {}, calls, outcome)


def test_a_call_that_succeeds_at_the_third_attempt_is_recovered_in_two_calls() -> None:
    calls = [
        call(0, "find"),
        call(1, "book", error="timed out", fault=SEEN),
        call(2, "book", error="timed out"),
        call(3, "book"),
        call(4, "reply"),
    ]
    assert told(calls) == (Recovery(1, "book", "timeout", True, None, "same_call", 2, 0.02, 20.0),)


def test_the_same_call_is_that_of_the_same_canonical_arguments() -> None:
    other = [call(0, "book", "a", "down", SEEN), call(1, "book", "b")]
    assert [found.recovered for found in told(other)] == [False]
    step = call(1, "book").step.model_copy(update={"args": {"path": "x", "request_id": "17"}})
    same = [call(0, "book", "x", "down", SEEN), MadeCall(1, step)]
    assert [found.way for found in told(same)] == ["same_call"]


def test_going_on_along_the_reference_is_being_back_on_course() -> None:
    calls = [call(0, "a"), call(1, "b", error="down", fault=SEEN), call(2, "z"), call(3, "c")]
    (found,) = told(calls, against=plan("abc"))
    assert (found.recovered, found.way, found.calls) == (True, "reference", 2)
    assert told(calls)[0].recovered is False
    assert told(calls, against=plan("abc", reviewed=False))[0].recovered is False


def test_of_several_references_those_count_that_were_followed_best() -> None:
    calls = [call(0, "a"), call(1, "q", error="down", fault=SEEN), call(2, "c"), call(3, "b")]
    (found,) = told(calls, against=plan("abx", "cde"))
    assert (found.way, found.calls) == ("reference", 2)


def test_a_wrong_answer_is_none_even_if_it_looks_like_success() -> None:
    wrong = Fault("wrong_result", True)
    calls = [call(0, "a", fault=wrong), call(1, "a", fault=wrong)]
    assert [found.recovered for found in told(calls)] == [False, False]
    assert [found.calls for found in told([*calls, call(2, "a")])] == [2, 1]


def test_a_result_that_says_error_is_no_success() -> None:
    said = call(1, "a").step.model_copy(update={"result": "Error: no such thing"})
    calls = [call(0, "a", error="down", fault=SEEN), MadeCall(1, said)]
    assert told(calls)[0].recovered is False


@pytest.mark.parametrize("outcome", ["failure", "cancelled"])
def test_a_run_that_ends_badly_has_recovered_nothing(outcome: Outcome) -> None:
    calls = [call(0, "a", error="down", fault=SEEN), call(1, "a")]
    assert told(calls, outcome) == (Recovery(0, "a", "timeout", False),)


def test_where_nobody_says_how_a_run_ended_its_reference_has_to_be_covered() -> None:
    calls = [call(0, "a", error="down", fault=SEEN), call(1, "a")]
    assert told(calls, "unknown", plan("a"))[0].recovered is True
    assert told(calls, "unknown", plan("ab"))[0].recovered is False
    assert told(calls, "unknown") == (Recovery(0, "a", "timeout", None, "no_outcome"),)


def test_nothing_is_said_of_a_fault_that_the_agent_did_not_see() -> None:
    calls = [call(0, "a", error="down", fault=UNSEEN), call(1, "a")]
    assert told(calls) == (Recovery(0, "a", "timeout", None, "not_seen"),)


def test_without_prices_and_timestamps_cost_and_seconds_are_unknown() -> None:
    bare = [Step(run_id="r", tool="a", error="down"), Step(run_id="r", tool="a")]
    calls = [MadeCall(0, bare[0], SEEN), MadeCall(1, bare[1])]
    (found,) = told(calls)
    assert (found.calls, found.cost_usd, found.seconds) == (1, None, None)


def test_clocks_that_disagree_do_not_make_time_run_backwards() -> None:
    late = call(9, "a", error="down", fault=SEEN).step
    assert told([MadeCall(0, late, SEEN), call(1, "a")])[0].seconds == 0.0


def test_an_empty_run_has_nothing_to_recover() -> None:
    assert told([]) == ()


CALLS = st.lists(
    st.tuples(
        st.sampled_from("abc"),
        st.sampled_from("xy"),
        st.sampled_from([None, None, "down"]),
        st.sampled_from([None, None, SEEN, UNSEEN]),
    ),
    max_size=8,
).map(lambda rows: [call(at, *row) for at, row in enumerate(rows)])
PLANS = st.lists(st.text("abc", min_size=1, max_size=4), max_size=2).map(lambda words: plan(*words))
OUTCOMES = st.sampled_from(["success", "failure", "cancelled", "unknown"])


def oracle(calls: list[MadeCall], outcome: Outcome, against: TaskPlan) -> list[object]:
    """Go through the whole run again for every fault, by the words of the definition."""
    paths = [list(path.tools) for path in against.paths]

    def sound(made: MadeCall) -> bool:
        return made.fault is None and made.step.error is None

    def left(path: list[str], upto: int) -> list[str]:
        rest = list(path)
        for made in calls[:upto]:
            if rest and sound(made) and made.step.tool == rest[0]:
                rest.pop(0)
        return rest

    well: bool | None = outcome == "success"
    if outcome == "unknown":
        well = any(not left(path, len(calls)) for path in paths) if paths else None
    found: list[object] = []
    for at, made in enumerate(calls):
        if made.fault is None:
            continue
        if not made.fault.seen_by_agent or well is None:
            found.append((made.seq, None, None))
            continue
        rests = [(len(left(path, at)) / len(path), left(path, at)) for path in paths]
        ahead = set()
        for share, rest in rests:
            if share == min(each for each, _ in rests):
                onward = rest[1:] if rest and rest[0] == made.step.tool else rest
                ahead |= set(onward[:1])
        hits = [
            later.seq - made.seq
            for later in calls[at + 1 :]
            if sound(later)
            and (
                (later.step.tool, later.step.args) == (made.step.tool, made.step.args)
                or later.step.tool in ahead
            )
        ]
        found.append((made.seq, bool(hits) and well, hits[0] if hits and well else None))
    return found


@given(CALLS, OUTCOMES, PLANS)
def test_it_says_what_going_through_the_run_again_says(
    calls: list[MadeCall], outcome: Outcome, against: TaskPlan
) -> None:
    found = told(calls, outcome, against)
    said = [(each.seq, each.recovered, each.calls) for each in found]
    assert said == oracle(calls, outcome, against)


@given(CALLS, OUTCOMES, PLANS)
def test_there_is_a_recovery_for_each_fault_and_figures_only_where_it_recovered(
    calls: list[MadeCall], outcome: Outcome, against: TaskPlan
) -> None:
    found = told(calls, outcome, against)
    assert [each.seq for each in found] == [made.seq for made in calls if made.fault]
    for each in found:
        assert (each.recovered is None) == (each.unmeasured is not None)
        figures = (each.way, each.calls, each.cost_usd, each.seconds)
        if each.recovered:
            assert each.calls is not None
            assert each.cost_usd == pytest.approx(0.01 * each.calls)
            assert each.seconds == pytest.approx(10.0 * each.calls)
        else:
            assert figures == (None, None, None, None)


@given(CALLS, OUTCOMES, PLANS)
def test_a_run_without_faults_has_nothing_to_recover(
    calls: list[MadeCall], outcome: Outcome, against: TaskPlan
) -> None:
    assert told([made._replace(fault=None) for made in calls], outcome, against) == ()
