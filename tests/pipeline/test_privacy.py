"""What agents and tools say stays out of verdicts, decisions, error texts and logs."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import structlog
from hypothesis import example, given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from ontrack.operators.profiles import make_profile, profile_names
from ontrack.pipeline.embedded import EmbeddedMonitor
from ontrack.pipeline.encoding.encoders import CachedEncoder
from ontrack.pipeline.folding.fold import Fold
from ontrack.pipeline.folding.library import Library
from ontrack.pipeline.folding.record import Record
from ontrack.pipeline.kafka import sender
from ontrack.pipeline.log import set_up_logging
from ontrack.pipeline.making import make_fold
from ontrack.pipeline.reading.event_reader import SourceEvent
from ontrack.pipeline.sdk.client import Monitor
from ontrack.pipeline.settings import Settings
from ontrack.topics import codecs
from ontrack.topics.errors import InvalidEvent
from ontrack.topics.events import ErrorInfo, Event, Proposal, RunEnded, Step
from ontrack.topics.knowledge import Reference, ReferenceStep, Task, ToolContract
from ontrack.topics.verdicts import DeadLetter, Decision, Verdict
from tests.pipeline.folding.test_fold import BreaksOnce

SETTINGS = Settings(encoder="hashing", profile="paper")
SECRET = "zq9Secret"
CONTRACTS = (
    ToolContract(name="look", declared_effect="read", produces=("result.order",)),
    ToolContract(name="refund", declared_effect="destructive", consumes=("args.order",)),
)
REFERENCES = (
    Reference(
        reference_id="known",
        task_id="x",
        steps=(
            ReferenceStep(tool="look", args={"q": "order"}, result={"order": "A-1"}),
            ReferenceStep(tool="refund", args={"order": "A-1"}),
        ),
    ),
)


def private(output: Any) -> str:
    """All that an output says of its own: a dead letter's original bytes are not its own."""
    if isinstance(output, DeadLetter):
        output = output.model_copy(update={"value_base64": None, "key_base64": None, "headers": ()})
    return codecs.encode(output).decode()


SECRETS = st.sampled_from(
    [SECRET, f"say {SECRET}!", f"{SECRET}-1.txt", f'{{"order": "{SECRET}"}}', f"[{SECRET}", ""]
)
VALUES = st.recursive(
    SECRETS | st.integers(-3, 3) | st.none(),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from(["order", SECRET]), inner, max_size=2)
    ),
    max_leaves=4,
)
ARGUMENTS = st.dictionaries(st.sampled_from(["order", "q", SECRET]), VALUES, max_size=2)
TOOLS = st.sampled_from(["look", "refund", "nobody_declared_this"])
STEPS = st.builds(
    Step,
    run_id=st.sampled_from(["r", "s"]),
    task_id=st.just("x"),
    seq=st.none() | st.integers(0, 3),
    tool=TOOLS,
    args=ARGUMENTS,
    result=VALUES,
    action=st.none() | SECRETS,
    error=st.none() | st.builds(ErrorInfo, message=SECRETS, type=st.none() | SECRETS),
    consumed=st.none() | st.just((SECRET,)),
)
ENDS = st.builds(RunEnded, run_id=st.sampled_from(["r", "s"]))


def damaged(step: Step, how: int) -> bytes:
    """A step as no codec lets it through, in one of many ways."""
    raw = codecs.encode(step)
    fields = json.loads(raw)
    wrong: list[dict[str, Any]] = [
        {"args": SECRET},
        {"args": [SECRET]},
        {"error": [SECRET]},
        {"error": {"message": {"why": SECRET}}},
        {"error": {"type": 7, "message": SECRET}},
        {"action": {"say": SECRET}},
        {"action": [SECRET]},
        {"consumed": SECRET},
        {"produced": [{"id": SECRET}]},
        {"consumed": [SECRET * 200]},
        {"call_id": {"id": SECRET}},
        {"seq": "3"},
        {"tool": None},
        {"args": {"deep": json.loads("[" * 70 + f'"{SECRET}"' + "]" * 70)}},
    ]
    texts = [
        raw[:-2],
        raw + b"x",
        b'"' + SECRET.encode() + b'"',
        SECRET.encode() + b" is no JSON",
        b'{"' + SECRET.encode() + b'": ' + SECRET.encode(),
        b"[" + raw + b"]",
        raw.replace(b'"type":"step"', b'"type":"stop"'),
        raw.replace(SECRET.encode(), b"\xff" + SECRET.encode()),
        raw[:-1] + b', "x": ' + b"9" * 5000 + b"}",
    ]
    if how < len(wrong):
        return json.dumps(fields | wrong[how]).encode()
    return texts[(how - len(wrong)) % len(texts)]


@st.composite
def messages(draw: st.DrawFn) -> list[bytes]:
    """Steps, repeats, conflicts, ends and damaged messages of two runs."""
    found: list[bytes] = []
    steps = draw(st.lists(STEPS, min_size=1, max_size=3))
    for _ in range(draw(st.integers(1, 8))):
        step = draw(st.sampled_from(steps))
        kind = draw(st.integers(0, 5))
        if kind == 0:
            found.append(damaged(step, draw(st.integers(0, 22))))
        elif kind == 1:
            found.append(codecs.encode(draw(ENDS)))
        elif kind == 2:
            found.append(codecs.encode(step.model_copy(update={"seq": 0})))
        else:
            found.append(codecs.encode(step.model_copy(update={"seq": None})))
    return found


def said_of(fold: Fold, values: Sequence[bytes]) -> Iterator[Any]:
    """Everything that the fold says of messages, as events and as proposals."""
    state = fold.partition()
    for offset, value in enumerate(values):
        asked = value.replace(b'"type":"step"', b'"type":"proposal"')
        yield fold.decide(state, Record(asked, offset=offset))
        yield from fold.apply(state, Record(value, offset=offset))
    for run_id in ("r", "s"):
        end = codecs.encode(RunEnded(run_id=run_id))
        yield from fold.apply(state, Record(end, offset=len(values)))


class Quoting(BreaksOnce):
    """An encoder that sometimes fails with what it was given in its error."""

    def fail(self, texts: Sequence[str]) -> None:
        raise ValueError(f"cannot encode {list(texts)} {SECRET}")


@settings(deadline=None)  # the first one loads tables
@given(messages(), st.integers(0, 6), st.sampled_from(profile_names()))
@example(
    [damaged(Step(run_id="r", tool="look", args={"q": SECRET}), how) for how in range(23)],
    0,
    "default",
)
@example([codecs.encode(Step(run_id="r", tool="look", args={"q": SECRET}))] * 9, 0, "default")
@example([codecs.encode(Step(run_id="r", tool="look", args={"q": SECRET}))] * 4, 0, "paper")
@example([codecs.encode(Step(run_id="r", tool="refund", args={"order": SECRET}))] * 2, 2, "default")
def test_no_argument_result_or_error_text_is_in_what_the_monitor_says_or_logs(
    values: list[bytes], fails_at: int, name: str
) -> None:
    encoder = CachedEncoder(Quoting(fails_at))
    profile = make_profile(name, encoder.name)
    fold = Fold(profile, encoder, Library(profile, encoder))
    fold.library.fill((), CONTRACTS)
    with capture_logs() as logs:
        said = list(said_of(fold, values))
    for output in said:
        assert SECRET not in private(output)
    for entry in logs:
        assert SECRET not in str(entry)
        assert "exc_info" not in entry, "a traceback ends with the text of the error"


@settings(deadline=None)
@given(messages(), st.sampled_from(profile_names()))
def test_neither_is_it_with_references(values: list[bytes], name: str) -> None:
    fold = make_fold(Settings(encoder="hashing", profile=name))
    fold.library.fill(REFERENCES, CONTRACTS)
    for output in said_of(fold, values):
        assert SECRET not in private(output)


@settings(deadline=None)
@given(messages(), st.sampled_from(profile_names()))
def test_neither_is_it_with_references_and_rules(values: list[bytes], name: str) -> None:
    rules = ("args", "result", "error.message")
    fold = make_fold(Settings(encoder="hashing", profile=name, redact=rules))
    fold.library.fill(REFERENCES, CONTRACTS)
    for output in said_of(fold, values):
        assert SECRET not in private(output)


def test_the_cases_above_give_every_kind_of_output() -> None:
    """Otherwise the two tests above might look at nothing."""
    fold = make_fold(SETTINGS)
    fold.library.fill(REFERENCES, CONTRACTS)
    loop = codecs.encode(Step(run_id="r", task_id="x", tool="look", args={"q": SECRET}))
    undone = codecs.encode(Step(run_id="r", tool="refund", args={"order": SECRET}))
    conflict = codecs.encode(Step(run_id="r", seq=0, tool="look", args={"q": SECRET + "2"}))
    bad = [damaged(Step(run_id="r", tool="look"), how) for how in range(23)]
    said = list(said_of(fold, [loop, loop, loop, undone, conflict, *bad]))
    assert {type(output).__name__ for output in said} == {
        "Verdict",
        "Intervention",
        "Decision",
        "Scorecard",
        "DeadLetter",
    }
    errors = {output.error.name for output in said if isinstance(output, DeadLetter)}
    assert {"MalformedMessage", "WrongShape", "UnknownEventType", "TooDeep"} < errors
    assert "ConflictingDuplicate" in errors
    assert any(isinstance(output, Verdict) and output.verdict == "LOOP" for output in said)
    blocked = [o for o in said if isinstance(o, Decision) and o.decision == "block"]
    assert any("needs args.order" in reason.text for o in blocked for reason in o.reasons)


def test_who_wants_to_see_arguments_says_so_and_the_settings_are_others() -> None:
    shows = Settings(encoder="hashing", profile="paper", show_arguments=True)
    hidden, shown = (EmbeddedMonitor(s, (), CONTRACTS) for s in (SETTINGS, shows))
    step = Step(run_id="r", tool="look", args={"q": SECRET})
    for monitor, is_shown in ((hidden, False), (shown, True)):
        for _ in range(2):
            (*_, verdict) = monitor.feed(step)
        decision = monitor.propose(Proposal(run_id="r", tool="refund", args={"order": SECRET}))
        (letter,) = monitor.feed_bytes(damaged(step, 0))
        (junk,) = monitor.feed_bytes(SECRET.encode())
        for output in (verdict, decision, letter, junk):
            assert (SECRET in private(output)) is is_shown, output
    assert hidden.fold.stamp.settings != shown.fold.stamp.settings


@pytest.mark.parametrize("as_json", [False, True])
def test_a_traceback_names_an_error_and_its_causes_without_their_texts(
    as_json: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = io.StringIO()
    monkeypatch.setattr("sys.stderr", written)
    root = logging.getLogger()
    before = root.handlers[:], root.level, structlog.get_config()
    try:
        set_up_logging("info", as_json)
        try:
            try:
                raise ValueError(SECRET)
            except ValueError as error:
                raise InvalidEvent("a text of ours") from error
        except InvalidEvent:
            structlog.get_logger("t").exception("it_failed")
            logging.getLogger("faust.x").exception("that too")
    finally:
        root.handlers[:] = before[0]
        root.setLevel(before[1])
        structlog.configure(**before[2])
    text = written.getvalue()
    assert SECRET not in text
    assert text.count("builtins.ValueError") == 2
    assert text.count("InvalidEvent: a text of ours") == 2
    assert "test_privacy.py" in text


# ------------------------------------------------------------------ redaction on its way

RULES = Settings(
    encoder="hashing", profile="paper", redact=("args.card", "args.**.pin", "result.card")
)
STEP = Step(
    run_id="r", tool="pay", args={"card": SECRET, "to": {"pin": SECRET}}, result={"card": SECRET}
)


def without_numbers(outputs: Sequence[Any]) -> list[dict[str, Any]]:
    left_out = {"settings"}
    return [output.model_dump(mode="json", exclude=left_out) for output in outputs]


def test_loops_and_artifacts_survive_redaction() -> None:
    contracts = (
        ToolContract(name="look", declared_effect="read", produces=("result.card",)),
        ToolContract(name="pay", declared_effect="destructive", consumes=("args.card",)),
    )
    steps = [
        Step(run_id="r", tool="look", args={}, result={"card": SECRET}),
        *[Step(run_id="r", tool="pay", args={"card": SECRET}, result="paid")] * 2,
        Step(run_id="r", tool="pay", args={"card": "another"}, result="paid"),
    ]
    plain, redacted = (EmbeddedMonitor(s, (), contracts) for s in (SETTINGS, RULES))
    told = [[out for step in steps for out in m.feed(step)] for m in (plain, redacted)]
    verdicts = [[o.verdict for o in said if isinstance(o, Verdict)] for said in told]
    assert verdicts[0] == verdicts[1] == ["OK", "OK", "LOOP", "BLOCK"]
    evidence = [[o.evidence for o in said if isinstance(o, Verdict)] for said in told]
    assert evidence[0] == evidence[1]


def test_what_a_sender_has_redacted_gives_the_same_bytes_as_what_the_worker_redacts() -> None:
    raw, sent = EmbeddedMonitor(RULES), EmbeddedMonitor(RULES)
    assert raw.feed(STEP) == sent.feed(RULES.redaction.plainly(STEP))
    call = Proposal(run_id="r", tool="pay", args=STEP.args)
    decision = raw.propose(call)
    assert decision == sent.propose(RULES.redaction.plainly(call))
    assert decision.call_sha256 != EmbeddedMonitor(SETTINGS).propose(call).call_sha256


def test_a_dead_letter_keeps_the_original_bytes_even_so() -> None:
    monitor = EmbeddedMonitor(RULES)
    raw = codecs.encode(STEP)[:-1]
    (letter,) = monitor.feed_bytes(raw)
    assert isinstance(letter, DeadLetter)
    assert letter.value_bytes == len(raw)
    assert SECRET not in private(letter)


def test_rules_are_part_of_the_settings_and_none_is_as_it_was() -> None:
    def digest(**more: Any) -> str:
        return make_fold(Settings(encoder="hashing", profile="paper", **more)).stamp.settings

    profile = make_profile("paper", make_fold(SETTINGS).encoder.name)
    encoder = make_fold(SETTINGS).encoder.name
    assert digest() == profile.digest(encoder) == profile.digest(encoder, "")
    assert digest(redact_key="0123456789abcdef") == digest()
    others = [
        digest(redact="args.a"),
        digest(redact="args.b"),
        digest(redact="args.a", redact_key="0123456789abcdef"),
        digest(show_arguments=True),
    ]
    assert len({digest(), *others}) == 5
    assert digest(redact="args.a, args.b") == digest(redact=("args.b", "args.a", "args.a"))


def test_references_meet_runs_redacted_alike() -> None:
    steps = (ReferenceStep(tool="pay", args={"card": SECRET}, result={"card": SECRET}),)
    reference = Reference(reference_id="a", task_id="x", steps=steps)
    monitor = EmbeddedMonitor(RULES, (reference,))
    knowledge = monitor.fold.library.knowledge("x", "r", None)
    assert knowledge.references is not None
    assert SECRET not in str(knowledge.references.references)
    run = Step(run_id="r", task_id="x", tool="pay", args={"card": SECRET}, result={"card": SECRET})
    (verdict,) = monitor.feed(run)
    assert isinstance(verdict, Verdict)
    (plain,) = EmbeddedMonitor(SETTINGS, (reference,)).feed(run)
    assert isinstance(plain, Verdict)
    assert verdict.score == plain.score


class Wire:
    """Takes the place of a producer, and keeps what would leave the process."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []

    async def send(self, _topic: str, value: bytes, **_more: Any) -> Any:
        self.sent.append(value)

        async def acknowledged() -> None:
            return None

        return acknowledged()

    async def send_and_wait(self, topic: str, value: bytes, **more: Any) -> None:
        await (await self.send(topic, value, **more))

    async def stop(self) -> None:
        return None


async def test_send_redacts_before_anything_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    wire = Wire()

    async def start_producer(_settings: Settings) -> Wire:
        return wire

    async def counts_of(_settings: Settings, *names: str) -> dict[str, int]:
        return dict.fromkeys(names, 1)

    monkeypatch.setattr(sender, "start_producer", start_producer)
    monkeypatch.setattr(sender, "counts_of", counts_of)
    # Said twice, and in a field that nobody knows: the line itself must not be sent.
    raw = codecs.encode(STEP)[:-1] + b',"old":"' + SECRET.encode() + b'"}'
    read = SourceEvent(STEP, raw, (), "runs.jsonl", 1)
    events: list[Event | SourceEvent] = [STEP, read]
    assert await sender.send_events(RULES, events, None) == 2
    step = ReferenceStep(tool="pay", args=STEP.args)
    await sender.send_knowledge(
        RULES,
        [Reference(reference_id="a", task_id="x", steps=(step,))],
        (),
        [Task(id="x", references=((step,),))],
    )
    assert len(wire.sent) == 4
    assert all(SECRET.encode() not in value for value in wire.sent)
    assert await sender.send_events(SETTINGS, [read], None) == 1
    assert wire.sent[-1] == raw


async def test_the_client_redacts_before_anything_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[Any] = []
    embedded = EmbeddedMonitor(SETTINGS)
    async with Monitor(run_id="r", embedded=embedded, settings=RULES) as run:
        channel = run._channel  # whatever it is: nothing may come to it unredacted
        send, ask = channel.send, channel.ask

        async def watched_send(event: Event) -> Any:
            sent.append(event)
            return await send(event)

        async def watched_ask(proposal: Proposal, deadline_s: float) -> Any:
            sent.append(proposal)
            return await ask(proposal, deadline_s)

        monkeypatch.setattr(channel, "send", watched_send)
        monkeypatch.setattr(channel, "ask", watched_ask)
        answer = await run.check("pay", STEP.args)
        silent = await run.check("pay", STEP.args, deadline_ms=0)
        await run.step("pay", STEP.args, result=STEP.result)
    assert [event.type for event in sent] == ["proposal", "step", "run_ended"]
    assert all(SECRET.encode() not in codecs.encode(event) for event in sent)
    assert answer.call_sha256 == silent.call_sha256


def test_wrong_rules_and_short_keys_are_said_with_their_setting() -> None:
    from ontrack.pipeline.settings import load_settings
    from ontrack.topics.errors import InvalidSettings

    with pytest.raises(InvalidSettings, match=r"redact: the path 'arg\.x': it begins with none"):
        load_settings(redact="args.ok,arg.x")
    with pytest.raises(InvalidSettings, match="redact_key"):
        load_settings(redact="args.ok", redact_key="short")
