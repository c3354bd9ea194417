from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ontrack.operators import strategy
from ontrack.operators.exploration import ExplorationSignal
from ontrack.operators.findings import Signals, authority_of
from ontrack.operators.gate import GateFinding
from ontrack.operators.judging import findings_of
from ontrack.operators.loop import LoopSignal
from ontrack.operators.profiles import paper
from ontrack.operators.stall import StallSignal
from ontrack.operators.strategy import StrategyParams, StrategyState
from ontrack.operators.transport import Alignment
from ontrack.operators.verdict import VerdictOutput, choose
from ontrack.topics.knowledge import Effect, Provenance
from ontrack.topics.verdicts import Authority, InterventionName, Reason
from tests.operators.test_exploration import alignment

CALM = Signals(
    seq=9,
    tool="read",
    loop=LoopSignal(0.0, (), False),
    stall=StallSignal(False, None, ()),
    gain=0.8,
    gate=None,
    alignment=alignment([0.1], [[0.1, 0.9, 0.9, 0.9]]),
    exploration=ExplorationSignal(False, None, False, 0.0, ()),
    provenance=Provenance.GOLD,
)
FRONTIER = Reason(signal="frontier", value=0.0, threshold=0.3, text="too early")
MISSING = Reason(signal="prerequisites", value=1.0, threshold=0.0, text="not there")
ALARMS: dict[str, dict[str, Any]] = {
    "BLOCK": {"gate": GateFinding("block", Effect.DESTRUCTIVE, (FRONTIER,), (2,), 0)},
    "CAUSAL_INVERSION": {"exploration": ExplorationSignal(False, 9, False, 0.0, ())},
    "OFF_TRACK": {"exploration": ExplorationSignal(False, None, True, 0.4, (7, 8, 9))},
    "LOOP": {"loop": LoopSignal(1.0, (3, 5), False)},
    "STALLED": {"stall": StallSignal(True, 0.0, (6, 7, 8, 9))},
    "EXPLORING": {"exploration": ExplorationSignal(True, None, False, 0.1, (9,))},
}
BY_REFERENCES = ("CAUSAL_INVERSION", "OFF_TRACK", "EXPLORING")


def judge(**changes: Any) -> VerdictOutput:
    signals = replace(CALM, **changes)
    profile = paper()
    found = findings_of(profile, signals, profile.exploration)
    return choose(found, authority_of(signals.provenance))


def raised(name: str, **changes: Any) -> VerdictOutput:
    return judge(**{**ALARMS[name], **changes})


def test_a_step_that_raises_nothing_is_ok() -> None:
    output = judge()
    assert (output.name, output.severity, output.reasons, output.intervention) == (
        "OK",
        0,
        (),
        None,
    )


@pytest.mark.parametrize("name", ALARMS)
def test_each_alarm_gives_its_verdict_with_text_value_and_threshold(name: str) -> None:
    output = raised(name)
    assert output.name == name
    reason = output.reasons[0]
    assert len(reason.text) > 5
    assert reason.value is not None
    assert reason.threshold is not None
    assert output.evidence


def test_the_gravest_verdict_wins_and_the_reasons_of_all_go_along() -> None:
    order = ["BLOCK", "CAUSAL_INVERSION", "LOOP", "STALLED"]
    for first in range(len(order)):
        changes: dict[str, Any] = {}
        for name in order[first:]:
            changes |= ALARMS[name]
        output = judge(**changes)
        assert output.name == order[first]
        assert len(output.reasons) == len(order) - first


def test_off_track_gives_way_to_what_says_more_exactly_what_is_wrong() -> None:
    both = ExplorationSignal(True, 9, True, 0.4, (7, 8, 9))
    assert judge(exploration=both).name == "CAUSAL_INVERSION"
    for name in ("LOOP", "STALLED"):
        output = judge(**{**ALARMS["OFF_TRACK"], **ALARMS[name]})
        assert output.name == name
        assert [reason.signal for reason in output.reasons][1] == "unresolved_mass"
        assert not output.by_transport


@pytest.mark.parametrize("name", BY_REFERENCES)
@pytest.mark.parametrize(
    ("provenance", "authority", "severity_max"),
    [
        (Provenance.GOLD, Authority.INTERVENE, 3),
        (Provenance.MINED, Authority.INTERVENE, 3),
        (Provenance.AXIOMATIC, Authority.WARN, 2),
        (Provenance.GENERATED, Authority.INFORM, 1),
    ],
)
def test_authority_comes_from_the_provenance_of_the_reference(
    name: str, provenance: Provenance, authority: Authority, severity_max: int
) -> None:
    output = raised(name, provenance=provenance)
    assert output.name == name
    assert output.authority is authority
    assert output.severity == min(severity_max, 1 if name == "EXPLORING" else 3)
    wanted = {
        Authority.INTERVENE: InterventionName.REPLAN,
        Authority.WARN: InterventionName.WARN,
        Authority.INFORM: None,
    }
    assert output.intervention is (None if name == "EXPLORING" else wanted[authority])


@pytest.mark.parametrize("name", ["LOOP", "STALLED"])
@pytest.mark.parametrize("provenance", [None, Provenance.GENERATED])
def test_vital_signs_need_no_reference_for_their_authority(
    name: str, provenance: Provenance | None
) -> None:
    output = raised(name, provenance=provenance)
    assert output.authority is Authority.INTERVENE
    assert output.severity == 3
    assert not output.by_transport


def test_only_verdicts_that_rest_on_the_coupling_ask_for_the_converged_solve() -> None:
    assert {name for name in ALARMS if raised(name).by_transport} == {
        "CAUSAL_INVERSION",
        "OFF_TRACK",
    }


def test_a_block_by_match_has_the_authority_of_the_reference_the_gate_used() -> None:
    informed = raised("BLOCK", gate_provenance=Provenance.GENERATED)
    assert informed.authority is Authority.INFORM
    assert informed.intervention is None
    assert raised("BLOCK", gate_provenance=Provenance.GOLD).intervention == "block"


def test_a_missing_prerequisite_blocks_whatever_the_references_are() -> None:
    answer = GateFinding("block", Effect.DESTRUCTIVE, (MISSING, FRONTIER), (), 0)
    output = judge(gate=answer, gate_provenance=Provenance.GENERATED)
    assert output.authority is Authority.INTERVENE
    assert output.intervention == "block"


@pytest.mark.parametrize("decision", ["allow", "unknown"])
def test_a_gate_that_lets_pass_is_no_finding(decision: Any) -> None:
    assert judge(gate=GateFinding(decision, Effect.READ, (), (), None)).name == "OK"


def following(best: int, gap: float = 0.5) -> Alignment:
    losses = np.full(2, gap)
    losses[best] = 0.0
    return replace(alignment([0.1], [[0.1, 0.9, 0.9, 0.9]]), best=best, losses=losses)


def strategies_followed(bests: list[int], gap: float = 0.5) -> list[VerdictOutput]:
    state, outputs = StrategyState(), []
    for seq, best in enumerate(bests):
        aligned = following(best, gap)
        state, signal = strategy.step(StrategyParams(), state, seq, aligned)
        outputs.append(judge(seq=seq, alignment=aligned, strategy=signal))
    return outputs


def test_changing_the_strategy_once_or_twice_is_benign_and_the_third_time_warns() -> None:
    outputs = strategies_followed([0, 1, 1, 0, 0, 1, 1])
    assert [output.name for output in outputs] == ["OK"] * 5 + ["WARN", "OK"]
    warning = outputs[5]
    assert warning.evidence == (1, 3, 5)
    assert warning.intervention == "warn"
    assert warning.by_transport
    assert warning.reasons[0].threshold == 2.0


def test_a_difference_within_the_margin_is_no_change_of_strategy() -> None:
    assert {o.name for o in strategies_followed([0, 1] * 6, gap=0.01)} == {"OK"}


def test_changes_long_ago_are_forgotten() -> None:
    slow = [0] * 8 + [1] * 8 + [0] * 8 + [1] * 8
    assert {output.name for output in strategies_followed(slow)} == {"OK"}


@given(
    st.sets(st.sampled_from(sorted(ALARMS))),
    st.none() | st.sampled_from(Provenance),
    st.none() | st.sampled_from(Provenance),
)
def test_severity_and_intervention_never_exceed_the_authority(
    names: set[str], provenance: Provenance | None, gate_provenance: Provenance | None
) -> None:
    changes: dict[str, Any] = {"provenance": provenance, "gate_provenance": gate_provenance}
    for name in sorted(names):
        changes |= ALARMS[name]
    output = judge(**changes)
    cap = {"intervene": 3, "warn": 2, "inform": 1}[output.authority.value]
    assert output.severity <= cap
    if output.authority is Authority.INFORM:
        assert output.intervention is None
    if output.authority is Authority.WARN:
        assert output.intervention in (None, "warn")
    assert output.intervention != "halt"
