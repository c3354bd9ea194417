"""Which outputs become evaluation events, and what these say."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from ontrack.pipeline.embedded import EmbeddedMonitor, proposal_of
from ontrack.pipeline.settings import Settings
from ontrack.pipeline.telemetry.evaluations import Rules, encodable, guardrail
from ontrack.pipeline.workplace import contracts, demo_runs, references
from ontrack.topics.events import Agent, Step, TraceRef
from ontrack.topics.verdicts import (
    Authority,
    DeadLetter,
    Decision,
    Intervention,
    Output,
    Reason,
    Scorecard,
    Verdict,
    VerdictName,
)

TRACE = TraceRef(trace_id="4bf92f3577b34da6a3ce929d0e0e4736", span_id="00f067aa0ba902b7")
STAMP: dict[str, Any] = {"profile": "default", "settings": "s1", "engine": "1.0"}
LOOP = Verdict(
    id="r1:4",
    run_id="r1",
    seq=4,
    task_id="refund",
    tool="search",
    verdict=VerdictName.LOOP,
    severity=3,
    reasons=(
        Reason(signal="repeats", value=4, threshold=3, text="The call was made 4 times."),
        Reason(signal="gain", value=0.01, threshold=0.05, text="Nothing new came."),
    ),
    score=0.25,
    authority=Authority.INTERVENE,
    confirmed=None,
    trace=TRACE,
    **STAMP,
)


def test_a_loop_becomes_an_evaluation_of_the_span_that_made_the_call() -> None:
    evaluation = Rules().evaluation(LOOP)
    assert evaluation is not None
    assert evaluation.trace == TRACE
    assert evaluation.warns
    assert evaluation.attributes == {
        "gen_ai.evaluation.name": "ontrack.verdict",
        "gen_ai.evaluation.score.label": "LOOP",
        "gen_ai.evaluation.score.value": 0.25,
        "gen_ai.evaluation.explanation": "The call was made 4 times. Nothing new came.",
        "gen_ai.conversation.id": "r1",
        "gen_ai.tool.name": "search",
        "ontrack.id": "r1:4",
        "ontrack.task_id": "refund",
        "ontrack.seq": 4,
        "ontrack.severity": 3,
        "ontrack.authority": "intervene",
        "ontrack.profile": "default",
        "ontrack.settings": "s1",
        "ontrack.engine": "1.0",
    }


def test_where_texts_may_quote_arguments_figures_are_given_instead() -> None:
    evaluation = Rules(quotes_arguments=True).evaluation(LOOP)
    assert evaluation is not None
    said = evaluation.attributes["gen_ai.evaluation.explanation"]
    assert said == "repeats 4 (threshold 3). gain 0.01 (threshold 0.05)."


def test_a_scorecard_evaluates_the_conversation_and_keeps_the_hosts_words_to_itself() -> None:
    scorecard = Scorecard(
        id="r1:end",
        run_id="r1",
        agent=Agent(id="a", name="Agent", version="2"),
        outcome="failure",
        reason="the customer said zq9Secret",
        steps=3,
        errors=1,
        final_score=0.5,
        reference_coverage=0.75,
        verdicts={"OK": 2, "LOOP": 1},
        interventions={"replan": 1},
        **STAMP,
    )
    evaluation = Rules().evaluation(scorecard)
    assert evaluation is not None
    said = evaluation.attributes
    assert said["gen_ai.evaluation.name"] == "ontrack.final_score"
    assert said["gen_ai.evaluation.score.value"] == 0.5
    assert said["gen_ai.evaluation.score.label"] == "LOOP"
    assert said["gen_ai.evaluation.explanation"] == (
        "3 steps: 2 OK, 1 LOOP; interventions: 1 replan; reference covered to 75%."
    )
    assert said["gen_ai.agent.name"] == "Agent"
    assert said["ontrack.interventions"] == 1
    assert "zq9Secret" not in str(said)


def told(rules: Rules, outputs: list[Output]) -> list[Output]:
    return [output for output in outputs if rules.evaluation(output) is not None]


def test_what_is_told_follows_the_settings() -> None:
    monitor = EmbeddedMonitor(Settings(encoder="hashing"), references(), contracts())
    outputs: list[Output] = list(monitor.feed_bytes(b"junk"))
    for event in (event for run in demo_runs() for event in run.events):
        if isinstance(event, Step):
            outputs.append(monitor.propose(proposal_of(event)))
        outputs += monitor.feed(event)
    kinds = {type(output) for output in outputs}
    assert kinds == {Verdict, Intervention, Decision, Scorecard, DeadLetter}
    assert told(Rules(), outputs) == [
        output
        for output in outputs
        if (isinstance(output, Verdict) and output.verdict is not VerdictName.OK)
        or isinstance(output, (Intervention, Scorecard))
    ]
    everything = told(Rules(verdicts="all", guardrails=True), outputs)
    assert everything == [item for item in outputs if not isinstance(item, DeadLetter)]
    refused = set(map(id, told(Rules(guardrails=True), outputs)))
    assert {item.decision for item in outputs if isinstance(item, Decision) and id(item) in refused}
    assert not [
        item
        for item in outputs
        if isinstance(item, Decision) and item.decision == "allow" and id(item) in refused
    ]


def test_only_the_flag_brings_the_attributes_that_are_proposals() -> None:
    decision = Decision(
        id="r:0:abc",
        run_id="r",
        seq=0,
        tool="pay",
        effect="destructive",
        decision="block",
        reasons=(Reason(signal="contract", text="The order is missing."),),
        call_sha256="abc",
        authority=Authority.INTERVENE,
        **STAMP,
    )
    assert Rules().evaluation(decision) is None
    evaluation = Rules(guardrails=True).evaluation(decision)
    assert evaluation is not None
    proposed = {k: v for k, v in evaluation.attributes.items() if "guardrail" in k}
    assert proposed == {
        "gen_ai.guardrail.component.name": "ontrack",
        "gen_ai.guardrail.verdict.type": "deny",
        "gen_ai.guardrail.verdict.reason": "The order is missing.",
        "gen_ai.guardrail.target.type": "input",
        "gen_ai.guardrail.target.subtype": "tool_call",
    }
    assert guardrail("allow", "c1")["gen_ai.guardrail.target.id"] == "c1"
    for output in (LOOP, decision.model_copy(update={"decision": "allow"})):
        plain = Rules(verdicts="all").evaluation(output)
        assert plain is None or not [name for name in plain.attributes if "guardrail" in name]


@given(st.text(st.characters(min_codepoint=0xD700, max_codepoint=0xE100) | st.characters()))
def test_every_text_can_be_encoded_afterwards(text: str) -> None:
    sent = encodable(text)
    assert sent.encode("utf-8").decode("utf-8") == sent
    if not any(0xD800 <= ord(character) < 0xE000 for character in text):
        assert sent == text
