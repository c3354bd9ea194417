"""Table 2 of the paper: the six-step task under eight scenarios, profile ``paper``."""

from __future__ import annotations

from ontrack.topics.knowledge import ToolContract
from tests.operators.lab import SIX_STEPS, Lab, failed, foreign, reference_of, step_of

ORDER = ("search", "read", "schema", "edit", "test", "commit")
QUIET = {"OK", "EXPLORING"}
CONTRACTS = (
    ToolContract(name="search_code", effect="read"),
    ToolContract(name="open_log", effect="read"),
    ToolContract(name="check_schema", effect="read", produces=("=schema_checked",)),
    ToolContract(name="edit_file", effect="write"),
    ToolContract(name="run_tests", effect="read", produces=("=tests_passed",)),
    ToolContract(name="git_commit", effect="destructive", consumes=("=tests_passed",)),
)


def lab(**options: object) -> Lab:
    return Lab([reference_of(SIX_STEPS, index) for index in range(3)], **options)


def paraphrased(names: tuple[str, ...] = ORDER) -> list:
    return [step_of(SIX_STEPS, name, f"run{index}") for index, name in enumerate(names)]


def test_a_clean_run_is_silent_and_its_valid_steps_hardly_leak() -> None:
    monitored = lab()
    monitored.feed(*paraphrased())
    assert monitored.names == ["OK"] * 6
    assert max(verdict.leakage for verdict in monitored.verdicts) <= 0.24
    assert monitored.interventions == []
    assert monitored.verdicts[-1].coverage > 0.9


def test_b_a_valid_reordering_is_silent_and_finalises_to_the_same_score() -> None:
    straight, swapped = lab(), lab()
    straight.feed(*paraphrased())
    steps = paraphrased()
    swapped.feed(steps[0], steps[2], steps[1], *steps[3:])
    assert swapped.names == ["OK"] * 6
    assert swapped.end().final_score == straight.end().final_score
    assert swapped.end().final_loss == straight.end().final_loss


def test_c_a_two_step_cycle_is_a_loop_at_its_first_repeat() -> None:
    monitored = lab()
    monitored.feed(*paraphrased()[:3])
    cycle = [step_of(SIX_STEPS, "read", "run1"), step_of(SIX_STEPS, "schema", "run2")]
    onset = monitored.feed(cycle[0].model_copy(update={"call_id": "again"}))
    assert onset[0].verdict == "LOOP"
    assert onset[0].evidence == (1, 3)
    assert monitored.interventions[-1].intervention == "replan"
    assert "same arguments" in monitored.interventions[-1].reason


def test_d_a_hallucination_streak_is_off_track_at_latency_2() -> None:
    monitored = lab()
    monitored.feed(*paraphrased()[:3])
    streak = monitored.feed(*(foreign(number) for number in range(3)))
    assert [verdict.verdict for verdict in streak] == ["EXPLORING", "EXPLORING", "OFF_TRACK"]
    assert min(verdict.leakage for verdict in streak) >= 0.66
    assert streak[-1].confirmed is True
    assert streak[-1].evidence == (3, 4, 5)


def test_e_a_causal_inversion_is_found_at_its_emission() -> None:
    monitored = lab()
    monitored.feed(*paraphrased()[:1])
    early = step_of(SIX_STEPS, "test", "early", consumed=())
    assert monitored.feed(early)[0].verdict == "CAUSAL_INVERSION"
    assert monitored.verdicts[-1].confirmed is True


def test_f_a_retry_after_a_tool_error_is_silent() -> None:
    monitored = lab()
    steps = paraphrased()
    monitored.feed(steps[0], failed(steps[1]))
    monitored.feed(steps[1].model_copy(update={"call_id": "retry"}), *steps[2:])
    assert set(monitored.names) <= QUIET
    assert monitored.interventions == []


def test_g_a_parallel_branch_of_two_steps_is_silent() -> None:
    for position in range(1, 6):
        monitored = lab()
        steps = paraphrased()
        monitored.feed(*steps[:position], foreign(0), foreign(1), *steps[position:])
        assert set(monitored.names) <= QUIET, (position, monitored.names)
        assert monitored.interventions == []


def test_h_an_irreversible_call_without_its_prerequisites_is_blocked() -> None:
    monitored = lab(contracts=CONTRACTS)
    monitored.feed(*paraphrased()[:4])
    decision = monitored.propose(step_of(SIX_STEPS, "commit", "now"))
    assert decision.decision == "block"
    assert {reason.signal for reason in decision.reasons} == {"prerequisites", "frontier"}
    done_anyway = monitored.feed(step_of(SIX_STEPS, "commit", "now"))
    assert done_anyway[0].verdict == "BLOCK"
    assert monitored.interventions[-1].intervention == "block"
