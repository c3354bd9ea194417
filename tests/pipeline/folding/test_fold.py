"""The fold: bad input and faults of ours cost one record, never a run; same records, same bytes."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from ontrack.operators.profiles import make_profile
from ontrack.pipeline.encoding.encoders import CachedEncoder, HashingEncoder
from ontrack.pipeline.folding.fold import Fold
from ontrack.pipeline.folding.library import Library
from ontrack.pipeline.folding.partition import PartitionState
from ontrack.pipeline.folding.record import Record
from ontrack.pipeline.making import make_fold
from ontrack.pipeline.metrics import Metrics
from ontrack.pipeline.settings import Settings
from ontrack.pipeline.workplace import contracts, references, simulate_run, task_ids
from ontrack.topics import codecs
from ontrack.topics.events import Event, Proposal, RunEnded, RunStarted, Step
from ontrack.topics.verdicts import (
    SHADOW,
    WOULD_HALT,
    DeadLetter,
    Intervention,
    Output,
    Scorecard,
    Verdict,
)
from tests import strategies as fleets

TOPIC = "ontrack.events"
NOW_MS = 1_700_000_000_000


def fresh_fold(knowing: bool = True, **changes: Any) -> Fold:
    """A fold with the hashing encoder; ``knowing`` fills in the workplace's knowledge."""
    fold = make_fold(Settings(encoder="hashing", **changes))
    if knowing:
        fold.library.fill(references(), contracts())
    return fold


def small_fold(steps_max: int) -> Fold:
    encoder = CachedEncoder(HashingEncoder())
    profile = replace(make_profile("paper", encoder.name), steps_max=steps_max)
    return Fold(profile, encoder, Library(profile, encoder))


def record(value: bytes, offset: int = 0, key: bytes | None = None, **place: Any) -> Record:
    return Record(value, key, offset=offset, **place)


def records(events: Iterable[Event]) -> list[Record]:
    """The events as they stand on one partition."""
    return [
        Record(codecs.encode(event), event.run_id.encode(), TOPIC, 0, offset, NOW_MS + offset)
        for offset, event in enumerate(events)
    ]


def folded(fold: Fold, given: Iterable[Record]) -> list[Output]:
    state = PartitionState()
    return [output for item in given for output in fold.apply(state, item)]


def said(outputs: Iterable[Output]) -> list[bytes]:
    return [codecs.encode(output) for output in outputs]


def workplace_run(fault: str | None = None, seed: int = 1, run_id: str = "a") -> list[Event]:
    return list(simulate_run(task_ids()[0], seed, fault, run_id=run_id).events)


def text(**fields: Any) -> bytes:
    return json.dumps({"type": "step", "run_id": "a", "tool": "look", **fields}).encode()


def nested(depth: int) -> bytes:
    inner = "[" * depth + "]" * depth
    return f'{{"type":"step","run_id":"a","tool":"t","args":{{"a":{inner}}}}}'.encode()


BAD: dict[str, tuple[bytes, str]] = {
    "no bytes": (b"", "MalformedMessage"),
    "no text": (b"\xff\xfe\x00", "MalformedMessage"),
    "half a message": (text()[:-1], "MalformedMessage"),
    "an array": (b"[1]", "WrongShape"),
    "a number": (b"17", "WrongShape"),
    "no run id": (b'{"type":"step","tool":"t"}', "WrongShape"),
    "an empty run id": (text(run_id=""), "WrongShape"),
    "a run id that is a number": (text(run_id=7), "WrongShape"),
    "a tool that is a list": (text(tool=["t"]), "WrongShape"),
    "arguments that are text": (text(args="all"), "WrongShape"),
    "seq as text": (text(seq="1"), "WrongShape"),
    "seq below zero": (text(seq=-1), "WrongShape"),
    "seq with a fraction": (text(seq=1.5), "WrongShape"),
    "seq beyond all numbers": (text(seq=10**30), "WrongShape"),
    "an infinite cost": (text(cost_usd=float("inf")), "WrongShape"),
    "a time without a zone": (text(time="2026-01-01T00:00:00"), "WrongShape"),
    "an unknown type": (text(type="lunch"), "UnknownEventType"),
    "no type": (b'{"run_id":"a","tool":"t"}', "UnknownEventType"),
    "too many bytes": (text(result="x" * 1_100_000), "MessageTooLarge"),
    "too deep": (nested(70), "TooDeep"),
    "deeper than a parser goes": (nested(100_000), "TooDeep"),
    "another step 0": (text(seq=0, result="other"), "ConflictingDuplicate"),
    "a proposal": (text(type="proposal"), "UnknownEventType"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_message_is_kept_with_its_bytes_and_the_run_goes_on_as_if_it_never_was(
    case: str,
) -> None:
    raw, name = BAD[case]
    good = records(workplace_run("loop"))
    undisturbed = said(folded(fresh_fold(), good))
    bad = Record(raw, b"a", TOPIC, 0, 999, NOW_MS, (("trace", b"\x00\xff"), ("empty", None)))
    for place in (1, 4):
        if name == "ConflictingDuplicate" and place < 2:
            continue  # there is no step 0 yet to be in conflict with
        outputs = folded(fresh_fold(), [*good[:place], bad, *good[place:]])
        (letter,) = [output for output in outputs if isinstance(output, DeadLetter)]
        assert letter.error.name == name
        assert len(letter.error.text) > 10
        assert len(letter.error.text) < 500
        assert base64.b64decode(letter.value_base64 or "") == raw
        assert base64.b64decode(letter.key_base64 or "") == b"a"
        assert letter.headers == (
            ("trace", base64.b64encode(b"\x00\xff").decode()),
            ("empty", None),
        )
        assert (letter.id, letter.topic, letter.offset) == (f"{TOPIC}:0:999", TOPIC, 999)
        assert said(output for output in outputs if output is not letter) == undisturbed


@pytest.mark.parametrize("key", [None, b"", b"other", b"A"])
def test_on_a_topic_the_key_must_be_the_run_id(key: bytes | None) -> None:
    (letter,) = folded(fresh_fold(), [record(text(), 3, key, topic=TOPIC, timestamp_ms=NOW_MS)])
    assert isinstance(letter, DeadLetter)
    assert letter.error.name == "KeyMismatch"
    assert letter.key_base64 == (None if key is None else base64.b64encode(key).decode())


def test_an_event_after_the_end_is_refused_whatever_it_is() -> None:
    fold, state = fresh_fold(), PartitionState()
    for event in workplace_run():
        fold.apply(state, record(codecs.encode(event)))
    late = (Step(run_id="a", tool="look"), RunStarted(run_id="a"), RunEnded(run_id="a"))
    for event in late:
        (letter,) = fold.apply(state, record(codecs.encode(event)))
        assert isinstance(letter, DeadLetter)
        assert letter.error.name == "EventAfterEnd"
    assert not state.runs
    answer = fold.decide(state, record(codecs.encode(Proposal(run_id="a", tool="look"))))
    assert isinstance(answer, DeadLetter)
    assert answer.error.name == "EventAfterEnd"


@pytest.mark.parametrize(
    ("raw", "flag"),
    [
        (text(args={"x": float("nan")}), "non_finite"),
        (text(result=[float("-inf")]), "non_finite"),
        (text(args={"x": 10**400}), "huge_number"),
        (text(result={"x": -(2**70)}), "huge_number"),
        (text(result="cut \ud83d here"), "lone_surrogates"),
        (text(seq=3), "gap"),
    ],
)
def test_what_can_be_mended_is_judged_and_flagged(raw: bytes, flag: str) -> None:
    fold, state, metrics = fresh_fold(), PartitionState(), Metrics()
    (verdict,) = fold.apply(state, record(raw))
    metrics.count(verdict)
    assert isinstance(verdict, Verdict)
    assert flag in verdict.flags
    assert f'ontrack_flagged_steps_total{{flag="{flag}"}} 1.0' in metrics.text().decode()
    (card,) = fold.apply(state, record(codecs.encode(RunEnded(run_id="a"))))
    assert isinstance(card, Scorecard)
    assert flag in card.flags  # the scorecard remembers


def test_a_run_that_begins_in_the_middle_is_judged_as_it_arrives_and_flagged() -> None:
    steps = [Step(run_id="a", seq=seq, tool="look", args={"n": seq}) for seq in (3, 1, 2, 4)]
    verdicts = folded(fresh_fold(), records(steps))
    assert [(v.seq, v.flags) for v in verdicts if isinstance(v, Verdict)] == [
        (3, ("gap",)),  # the first one of a run never waits
        (1, ("late",)),
        (2, ("late",)),
        (4, ()),
    ]


def test_a_step_that_comes_again_is_dropped_and_counted() -> None:
    fold, state = fresh_fold(), PartitionState()
    items = records([Step(run_id="a", seq=seq, tool="look", args={"n": seq}) for seq in (0, 1)])
    outputs = [len(fold.apply(state, item)) for item in (*items, items[0], items[1], items[0])]
    assert outputs == [1, 1, 0, 0, 0]
    assert state.duplicates == 3


def test_steps_beyond_the_limit_halt_the_run_once_and_are_then_refused() -> None:
    fold, state = small_fold(steps_max=3), PartitionState()
    steps = [Step(run_id="a", tool="look", args={"n": n}) for n in range(5)]
    kinds = [
        [
            output.error.name if isinstance(output, DeadLetter) else output.type
            for output in fold.apply(state, item)
        ]
        for item in records(steps)
    ]
    assert kinds == [
        ["verdict"],
        ["verdict"],
        ["intervention", "verdict"],
        ["RunTooLong"],
        ["RunTooLong"],
    ]
    (card,) = fold.apply(state, record(codecs.encode(RunEnded(run_id="a"))))
    assert isinstance(card, Scorecard)
    assert card.steps == 3
    assert card.interventions == {"halt": 1}


def test_the_halt_at_the_limit_says_why() -> None:
    outputs = folded(small_fold(steps_max=1), [record(text())])
    (halt,) = [output for output in outputs if isinstance(output, Intervention)]
    assert halt.intervention == "halt"
    assert "1 steps" in halt.reason


class BreaksOnce:
    """An encoder that fails at one call and works before and after."""

    def __init__(self, at: int) -> None:
        self._encoder = HashingEncoder()
        self.name, self.dimension = self._encoder.name, self._encoder.dimension
        self._left = at

    def encode(self, texts: Sequence[str]) -> Any:
        self._left -= 1
        if self._left == 0:
            self.fail(texts)
        return self._encoder.encode(texts)

    def fail(self, texts: Sequence[str]) -> None:
        raise ZeroDivisionError("a fault of ours")


@pytest.mark.parametrize("at", [1, 2, 4, 6])
def test_a_fault_of_ours_costs_one_record_and_leaves_the_run_as_it_was(at: int) -> None:
    steps = [Step(run_id="a", seq=n, tool="look", args={"n": n}, result=f"r{n}") for n in range(6)]
    items = records([step.model_copy(update={"seq": None}) for step in steps])
    encoder = CachedEncoder(BreaksOnce(at))
    profile = make_profile("paper", encoder.name)
    fold, state = Fold(profile, encoder, Library(profile, encoder)), PartitionState()
    outputs: list[Output] = []
    with capture_logs() as logs:
        for item in items:
            before = state.runs.get("a")
            found = fold.apply(state, item)
            outputs += found
            if isinstance(found[0], DeadLetter):
                assert state.runs.get("a") is before
    (letter,) = [output for output in outputs if isinstance(output, DeadLetter)]
    assert letter.error.name == "ZeroDivisionError"
    assert letter.offset == at - 1
    assert base64.b64decode(letter.value_base64 or "") == items[at - 1].value
    assert [entry["event"] for entry in logs] == ["fold_failed"]
    plain = Fold(profile, CachedEncoder(HashingEncoder()), Library(profile, encoder))
    without = [item for item in items if item.offset != letter.offset]
    assert said(output for output in outputs if output is not letter) == said(
        folded(plain, without)
    )


def test_a_fault_in_the_gate_becomes_a_dead_letter_too() -> None:
    encoder = CachedEncoder(BreaksOnce(1))
    profile = make_profile("paper", encoder.name)
    fold, state = Fold(profile, encoder, Library(profile, encoder)), PartitionState()
    asked = record(codecs.encode(Proposal(run_id="a", tool="look")))
    with capture_logs():
        letter = fold.decide(state, asked)
    assert isinstance(letter, DeadLetter)
    assert letter.error.name == "ZeroDivisionError"
    assert fold.decide(state, asked).type == "decision"
    assert not state.runs  # a question opens no run


def test_only_the_latest_ended_runs_are_remembered() -> None:
    fold = fresh_fold(ended_runs_max=2)
    state = fold.partition()
    for run_id in ("a", "b", "c"):
        fold.apply(state, record(codecs.encode(RunEnded(run_id=run_id))))
    assert list(state.ended) == ["b", "c"]
    assert not state.runs
    (letter,) = fold.apply(state, record(text(run_id="b")))
    assert letter.type == "dead_letter"
    (verdict,) = fold.apply(state, record(text(run_id="a")))  # forgotten, so it begins anew
    assert verdict.type == "verdict"


def test_an_end_without_a_beginning_gives_an_empty_scorecard() -> None:
    (card,) = folded(fresh_fold(), records([RunEnded(run_id="a", outcome="failure")]))
    assert isinstance(card, Scorecard)
    assert (card.steps, card.outcome, card.verdicts) == (0, "failure", {})


def test_shadow_mode_says_the_same_verdicts_and_intervenes_never() -> None:
    events = records(workplace_run("loop"))
    loud = folded(fresh_fold(), events)
    quiet = folded(fresh_fold(intervene=False), events)
    assert any(isinstance(output, Intervention) for output in loud)
    verdicts = [output for output in loud if isinstance(output, Verdict)]
    unheard = [output for output in quiet if isinstance(output, Verdict)]
    assert [plainly(output) for output in verdicts] == [plainly(output) for output in unheard]
    assert not any(isinstance(output, Intervention) for output in quiet)


def plainly(verdict: Verdict) -> Verdict:
    flags = tuple(flag for flag in verdict.flags if flag not in (SHADOW, WOULD_HALT))
    return verdict.model_copy(update={"flags": flags})


def test_what_a_monitor_in_shadow_mode_says_can_be_told_apart() -> None:
    events = [*workplace_run("loop"), RunEnded(run_id="a")]
    loud = folded(fresh_fold(), records(events))
    quiet = folded(fresh_fold(intervene=False), records(events))
    halts = [o.seq for o in loud if isinstance(o, Intervention) and o.intervention == "halt"]
    verdicts = [output for output in quiet if isinstance(output, Verdict)]
    assert halts == [output.seq for output in verdicts if WOULD_HALT in output.flags]
    assert halts
    assert all(SHADOW in output.flags for output in verdicts)
    assert not any(SHADOW in output.flags for output in loud if isinstance(output, Verdict))
    (card,) = [output for output in quiet if isinstance(output, Scorecard)]
    assert {SHADOW, WOULD_HALT} <= set(card.flags)


FAULTS = (None, "loop", "stall", "hallucination", "inversion", "irreversible", "retry")


@st.composite
def interleaved(draw: st.DrawFn) -> list[list[Event]]:
    """Arrivals of several runs: odd ones and, now and then, one of the workplace."""
    streams: list[list[Event]] = []
    for index in range(draw(st.integers(1, 3))):
        run_id = f"r{index}"
        if draw(st.booleans()):
            fault, seed = draw(st.sampled_from(FAULTS)), draw(st.integers(0, 3))
            task = draw(st.sampled_from(task_ids()))
            streams.append(list(simulate_run(task, seed, fault, run_id=run_id).events))
        else:
            run = draw(fleets.runs(steps_max=6))
            streams.append([step.model_copy(update={"run_id": run_id}) for step in run.arrivals])
    return streams


def shuffled(draw: Callable[[st.SearchStrategy[Any]], Any], streams: list[list[Event]]) -> Any:
    """Merge the streams, each in its own order."""
    turns = [index for index, stream in enumerate(streams) for _ in stream]
    waiting = [iter(stream) for stream in streams]
    return [next(waiting[index]) for index in draw(st.permutations(turns))]


@settings(max_examples=25)
@given(st.data())
def test_the_same_records_give_the_same_bytes_and_other_runs_change_nothing(data: Any) -> None:
    streams = data.draw(interleaved())
    together = records(shuffled(data.draw, streams))
    outputs = folded(fresh_fold(), together)
    assert said(outputs) == said(folded(fresh_fold(), together))
    assert not any(isinstance(output, DeadLetter) for output in outputs)
    for index, stream in enumerate(streams):
        alone = folded(fresh_fold(), records(stream))
        mine = [output for output in outputs if getattr(output, "run_id", None) == f"r{index}"]
        assert said(mine) == said(alone)


@settings(max_examples=30)
@given(st.lists(st.binary(max_size=40) | st.sampled_from([raw for raw, _ in BAD.values()])))
def test_whatever_bytes_come_every_record_is_answered_and_nothing_escapes(raw: list[bytes]) -> None:
    fold, state = fresh_fold(knowing=False), PartitionState()
    for offset, value in enumerate(raw):
        outputs = fold.apply(state, record(value[:200_000], offset))
        assert outputs or state.duplicates or state.runs
        for output in outputs:
            assert json.loads(codecs.encode(output))["type"] == output.type
