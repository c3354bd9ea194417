"""Loops and stalls: found by the third round, and honest work left alone."""

from __future__ import annotations

from dataclasses import astuple, fields
from typing import Any, NamedTuple

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ontrack.operators import repeats
from ontrack.operators.repeats import (
    RepeatKind,
    RepeatLevel,
    RepeatParams,
    RepeatSignal,
    RepeatState,
    Streak,
)
from ontrack.topics.events import ErrorInfo, Step
from ontrack.topics.knowledge import ToolContract
from tests.strategies import steps

PARAMS = RepeatParams()
POLLED = ToolContract(name="status", poll=True, effect="read")
Contracts = dict[str, ToolContract]


def call(tool: str, result: Any, error: str | None = None, /, **args: Any) -> Step:
    return Step(run_id="r", tool=tool, args=args, result=result, error=error)


def fold(
    run: list[Step], contracts: Contracts | None = None, params: RepeatParams = PARAMS
) -> list[RepeatSignal]:
    state, signals = RepeatState(), []
    for seq, event in enumerate(run):
        contract = (contracts or {}).get(event.tool)
        state, signal = repeats.step(params, state, seq, event, contract)
        signals.append(signal)
    return signals


def first(signals: list[RepeatSignal], level: RepeatLevel) -> int | None:
    """Return how many steps it took to a level, counted from 1."""
    levels = (RepeatLevel.NONE, RepeatLevel.WARN, RepeatLevel.LOOP)
    reached = levels.index(level)
    return next((n for n, s in enumerate(signals, 1) if levels.index(s.level) >= reached), None)


def found(run: list[Step], contracts: Contracts | None = None) -> tuple[int | None, int | None]:
    signals = fold(run, contracts)
    return first(signals, RepeatLevel.WARN), first(signals, RepeatLevel.LOOP)


def test_the_fourth_identical_call_warns_and_the_seventh_is_a_loop() -> None:
    run = [call("login", "ok"), *[call("search_flights", [1, 2], to="Oslo")] * 7]
    signals = fold(run)
    assert [signal.level for signal in signals] == ["none"] * 4 + ["warn"] * 3 + ["loop"]
    warned, looped = signals[4], signals[7]
    assert (warned.kind, warned.count, warned.threshold) == (RepeatKind.EXACT, 3, 3)
    assert (looped.kind, looped.count, looped.threshold) == (RepeatKind.EXACT, 6, 6)
    assert warned.evidence == (1, 2, 3, 4)
    assert warned.text.startswith(
        "fourth identical `search_flights` with the same result since step 1; "
        "the results have not changed"
    )
    assert "Oslo" not in warned.text


def test_a_clock_in_the_result_is_no_progress_and_a_counter_is() -> None:
    assert found([call("read", f"X at 2026-01-01T10:00:{n:02}Z", path="a") for n in range(9)]) == (
        4,
        7,
    )
    assert found([call("read", f"X, {n}% done", path="a") for n in range(40)]) == (None, None)


@pytest.mark.parametrize(("length", "warned"), [(1, 4), (2, 5), (3, 7), (4, 9), (10, 21)])
def test_a_cycle_is_found_as_its_third_round_begins(length: int, warned: int) -> None:
    cycle = [call(f"tool{n}", f"result {n}") for n in range(length)]
    assert found(cycle * 8) == (warned, warned + 3)


def test_reading_everything_once_more_is_no_loop() -> None:
    files = [call("read", f"content {n}", path=f"f{n}") for n in range(12)]
    assert found(files * 2) == (None, None)


def test_a_round_with_one_new_result_is_progress() -> None:
    run = []
    for failures in range(20, 0, -1):
        run += [call("edit", "ok", path="a", text=failures), call("test", f"{failures} failed")]
    assert found(run) == (None, None)


@pytest.mark.parametrize(
    ("result", "error"),
    [
        ("EACCES", "EACCES"),
        ("no results", None),
        ([], None),
        ({"error": "boom"}, None),
        ("Error: boom", None),
        ("Nothing found", None),
        ("The item does not exist.", None),
        ("Permission denied", None),
    ],
)
def test_other_arguments_with_the_same_failure_or_nothing_are_jitter(
    result: Any, error: str | None
) -> None:
    run = [call("search", result, error, path="a", limit=n) for n in range(9)]
    assert found(run) == (4, 7)
    assert fold(run)[3].kind is RepeatKind.JITTER


@pytest.mark.parametrize("result", ["ok", "", None, "Saved.", {"status": "ok"}])
def test_the_same_short_success_for_other_arguments_is_work(result: Any) -> None:
    assert found([call("edit", result, path=f"f{n}") for n in range(40)]) == (None, None)
    assert found([call("think", result, thought=f"so {n}") for n in range(40)]) == (None, None)


@pytest.mark.parametrize("result", [{"error": None, "stored": 3}, {"failed": 0, "passed": 12}])
def test_a_field_that_says_there_was_no_error_is_no_failure(result: Any) -> None:
    run = [call("store", result, order=f"A-{n}") for n in range(9)]
    assert found(run) == (None, None)
    told = {"error": "no such order", "stored": 0}
    assert found([call("store", told, order=f"A-{n}") for n in range(9)])[0] is not None


def test_contracts_say_whether_nothing_is_an_answer() -> None:
    run = [call("put", "not found", query=f"a {n}") for n in range(9)]
    assert found(run, {"put": ToolContract(name="put", effect="write")}) == (4, 7)
    assert found(run, {"put": ToolContract(name="put")}) == (4, 7)
    run = [call("put", "saved", query=f"a {n}") for n in range(9)]
    assert found(run, {"put": ToolContract(name="put", effect="write")}) == (None, None)
    run = [call("look", "a wall", query=f"a {n}") for n in range(9)]
    assert found(run, {"look": ToolContract(name="look", effect="read")}) == (4, 7)
    assert found(run) == (None, None)


def test_a_failed_write_is_no_success() -> None:
    run = [call("put", None, "boom", query=f"a {n}") for n in range(9)]
    assert found(run, {"put": ToolContract(name="put", effect="write")}) == (4, 7)


def test_reading_a_list_may_warn_but_not_halt() -> None:
    run = [call("read", "not found", path=f"f{n}") for n in range(60)]
    signals = fold(run)
    assert found(run) == (4, None)
    assert {signal.kind for signal in signals[3:]} == {RepeatKind.LISTING}
    assert found([call("read", "not found", id=n) for n in range(60)]) == (4, None)


def test_a_list_that_begins_anew_is_a_loop() -> None:
    names = [f"f{n}" for n in range(5)] * 5
    assert found([call("read", "not found", path=name) for name in names])[1] is not None


def test_a_contract_names_what_a_call_is_about() -> None:
    run = [call("look", "not found", path="a", ref=str(n)) for n in range(12)]
    assert found(run) == (4, 7)
    by_ref = {"look": ToolContract(name="look", identity=("args.ref",))}
    assert found(run, by_ref) == (4, None)


def test_more_retries_allowed_move_the_limit_after_an_error_only() -> None:
    params = RepeatParams(retries_max=5)
    failing = fold([call("read", None, "boom")] * 12, params=params)
    assert first(failing, RepeatLevel.WARN) == 7
    assert failing[6].threshold == 6
    assert first(fold([call("read", "x")] * 12, params=params), RepeatLevel.WARN) == 4


def test_a_declared_poll_is_silent_for_twenty_unchanged_answers_and_never_a_loop() -> None:
    run = [call("status", "running", id=1)] * 80
    signals = fold(run, {"status": POLLED})
    assert (first(signals, RepeatLevel.WARN), first(signals, RepeatLevel.LOOP)) == (21, None)
    assert (signals[20].kind, signals[20].count, signals[20].threshold) == (
        RepeatKind.POLL,
        20,
        20,
    )
    asleep = [call("sleep", "ok", s=5), call("status", "running", id=1)] * 15
    assert found(asleep, {"status": POLLED}) == (None, None)


def test_an_answer_that_moves_starts_the_count_of_polls_again() -> None:
    run = [*[call("status", "5%")] * 20, call("status", "6%"), *[call("status", "6%")] * 19]
    assert found(run, {"status": POLLED}) == (None, None)


@pytest.mark.parametrize(
    "result",
    [
        "running",
        "Job 7 is still running.",
        "pending (3 of 9)",
        "Status: IN PROGRESS",
        {"status": "queued"},
        {"state": "in_progress", "description": "a long text " * 50},
    ],
)
def test_work_under_way_warns_and_is_a_loop_only_after_twenty_answers(result: Any) -> None:
    run = [call("check", result, id=1)] * 25
    signals = fold(run)
    assert found(run) == (4, 21)
    assert (signals[3].kind, signals[20].threshold) == (RepeatKind.PENDING, 20)
    assert found([call("sleep", "ok"), call("check", result, id=1)] * 15)[1] is None


@pytest.mark.parametrize(
    "result", ["the result of running `ls`", "Error: pending changes", "no runningmate"]
)
def test_a_word_alone_does_not_say_that_work_is_under_way(result: str) -> None:
    run = [call("check", result, id=1)] * 9
    assert found(run) == (4, 7)
    assert fold(run)[3].kind is RepeatKind.EXACT


def test_waiting_once_does_not_excuse_what_comes_after() -> None:
    run = [call("check", "running")] * 2 + [call("read", "x")] * 12
    assert found(run)[1] is not None


@given(st.lists(steps(), max_size=40))
def test_the_state_is_bounded_plain_and_can_be_packed(run: list[Step]) -> None:
    params = RepeatParams(calls_max=4, results_max=3, objects_max=2, evidence_max=3)
    state = RepeatState()
    for seq, event in enumerate(run * 3):
        state, signal = repeats.step(params, state, seq, event)
        assert len(state.calls) <= 20 * 4
        assert len(state.results) <= 8 * 3
        assert len(state.streak.objects) <= 8 * 2
        assert len(state.streak.seqs) <= 3
        assert len(signal.evidence) <= 3
        assert set(signal.evidence) <= set(range(seq + 1))
    *parts, streak = msgpack.unpackb(msgpack.packb(astuple(state)), use_list=False)
    assert RepeatState(*parts, Streak(*streak)) == state
    assert all(
        type(getattr(state.streak, f.name)) in (int, bool, bytes, tuple) for f in fields(Streak)
    )


def test_the_default_state_holds_at_most_128_hashes() -> None:
    assert PARAMS.calls_max + PARAMS.results_max + PARAMS.objects_max == 128


@given(st.lists(steps(), min_size=1, max_size=20), st.integers(0, 3))
def test_a_new_result_sets_everything_back(run: list[Step], rounds: int) -> None:
    state = RepeatState()
    for seq, event in enumerate(run * rounds):
        state, _ = repeats.step(PARAMS, state, seq, event)
    new = call("search_code", "a result that no generated step has")
    after, signal = repeats.step(PARAMS, state, 999, new)
    assert signal == RepeatSignal()
    assert (after.streak, after.polls) == (Streak(), 0)
    again = state
    assert repeats.step(PARAMS, again, 999, new) == (after, signal)


@given(st.lists(steps(), max_size=12))
def test_a_run_without_repeats_is_never_warned(run: list[Step]) -> None:
    different = [step.model_copy(update={"result": f"result {n}"}) for n, step in enumerate(run)]
    assert all(signal == RepeatSignal() for signal in fold(different))


@given(st.lists(steps(), min_size=1, max_size=12))
def test_any_run_repeated_often_enough_is_found(run: list[Step]) -> None:
    levels = [signal.level for signal in fold(run * 12)]
    assert levels[-1] is not RepeatLevel.NONE


@pytest.mark.parametrize("setting", ["repeats_max", "polls_max", "calls_max", "text_bytes_max"])
def test_a_limit_out_of_range_is_refused(setting: str) -> None:
    with pytest.raises(ValueError, match=setting):
        RepeatParams(**{setting: 0})


class Token(NamedTuple):
    """A call of the oracle's small world."""

    tool: str
    path: str
    result: str


RESULTS = ("new", "not found", "Error: x", "pending", "ok")
CONTRACTS = {
    "poll": ToolContract(name="poll", poll=True, effect="read"),
    "look": ToolContract(name="look", effect="read"),
    "save": ToolContract(name="save", effect="write"),
}


def oracle(run: list[Token], at: int) -> tuple[str, str | None, int]:
    """Say level, kind and count of a step by looking at the whole run before it."""

    def seen(n: int) -> bool:
        return run[n] in run[:n]

    def repeated(n: int) -> bool:
        token = run[n]
        known = any((t.tool, t.result) == (token.tool, token.result) for t in run[:n])
        idle = token.result == "not found" or token.tool in ("poll", "look")
        return seen(n) or (known and (token.result == "Error: x" or idle))

    if not repeated(at):
        return "none", None, 0
    start = at
    while start > 0 and repeated(start - 1):
        start -= 1
    if run[at].tool == "poll":
        polls = sum(run[n].tool == "poll" for n in range(start, at + 1))
        return ("warn", "poll", polls) if polls >= 20 else ("none", None, 0)
    while any(run[n].tool == "poll" for n in range(start, at + 1)):
        start += 1
    streak = range(start, at + 1)

    exact = 0
    while exact < len(streak) and seen(at - exact):
        exact += 1

    def back(n: int) -> bool:
        earlier = run[start:n]
        if seen(n):
            return run[n] in earlier
        return any((t.tool, t.result) == (run[n].tool, run[n].result) for t in earlier)

    returned = [n for n in streak if back(n)]
    if len(streak) < 3 or not returned:
        return "none", None, 0
    level = "loop" if len(streak) >= 6 and at - returned[0] >= 3 else "warn"
    waits = [n for n in streak if run[n].result == "pending"]
    if waits and at - waits[-1] < 3:
        return "loop" if len(waits) >= 20 else "warn", "pending", len(streak)
    objects = [(run[n].tool, run[n].path) for n in streak]
    if len(set(objects)) == len(objects):
        return "warn", "listing", len(streak)
    return level, *(("exact", exact) if exact >= 3 else ("jitter", len(streak)))


@given(
    st.lists(
        st.lists(
            st.builds(
                Token,
                st.sampled_from(("read", "find", *CONTRACTS)),
                st.sampled_from(("a", "b", "c")),
                st.sampled_from(RESULTS),
            ),
            min_size=1,
            max_size=4,
        ).flatmap(lambda part: st.integers(1, 8).map(lambda rounds: part * rounds)),
        max_size=3,
    ).map(lambda parts: [token for part in parts for token in part])
)
def test_the_bounded_detector_agrees_with_one_that_remembers_everything(run: list[Token]) -> None:
    signals = fold([call(t.tool, t.result, path=t.path) for t in run], CONTRACTS)
    told = [(s.level.value, s.kind and s.kind.value, s.count) for s in signals]
    assert told == [oracle(run, at) for at in range(len(run))]


def test_errors_count_by_their_kind_and_text() -> None:
    other = [
        Step(run_id="r", tool="read", args={}, error=ErrorInfo(type=kind, message="m"))
        for kind in ("a", "b") * 6
    ]
    assert found(other) == (5, 8)
