from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings

from ontrack.operators.gate import GateParams, effect_of, is_irreversible
from ontrack.operators.profiles import Profile, default, paper
from ontrack.operators.values import compile_values
from ontrack.topics.knowledge import Effect, Provenance, Reference, ToolContract
from ontrack.topics.verdicts import Decision
from tests import strategies
from tests.operators.lab import SIX_STEPS, Lab, failed, foreign, reference_of, step_of
from tests.operators.test_table2 import CONTRACTS, ORDER

NAMES = list(ORDER)


def profile(**changes: Any) -> Profile:
    base = paper("synthetic")
    return replace(base, gate=replace(base.gate, **changes))


def monitored(
    done: int,
    contracts: tuple[ToolContract, ...] = CONTRACTS,
    provenance: Provenance | None = Provenance.GOLD,
    settings_: Profile | None = None,
) -> Lab:
    """A run of the six-step task after ``done`` steps."""
    references = [] if provenance is None else [reference_of(SIX_STEPS, 0, provenance)]
    lab = Lab(references, contracts, settings_)
    lab.feed(*(step_of(SIX_STEPS, name, "run") for name in NAMES[:done]))
    return lab


def commit(lab: Lab) -> Decision:
    return lab.propose(step_of(SIX_STEPS, "commit", "run"))


def test_a_commit_is_blocked_before_the_tests_and_allowed_after() -> None:
    assert commit(monitored(4)).decision == "block"
    assert commit(monitored(5)).decision == "allow"


def test_a_blocked_call_is_told_what_is_missing_without_naming_arguments() -> None:
    contracts = (ToolContract(name="git_commit", consumes=("args.build",)),)
    step = step_of(SIX_STEPS, "commit", "run", args={"build": "secret-build-77"})
    decision = monitored(5, contracts, None).propose(step)
    assert decision.decision == "block"
    assert "args.build" in decision.reasons[0].text
    assert "secret" not in decision.model_dump_json()


def test_a_prerequisite_must_have_been_produced_and_not_only_mentioned() -> None:
    contracts = (ToolContract(name="git_commit", consumes=("args.build",)),)
    lab = Lab(contracts=contracts)
    step = step_of(SIX_STEPS, "commit", args={"build": "build-77"})
    lab.feed(step_of(SIX_STEPS, "read", args={"id": "build-77"}, consumed=None, produced=None))
    assert lab.propose(step).decision == "block"
    lab.feed(step_of(SIX_STEPS, "test", result="made build-77", consumed=None, produced=None))
    found = lab.propose(step)
    assert (found.decision, found.evidence) == ("allow", (1,))


def test_a_failed_step_provides_no_prerequisite() -> None:
    lab = monitored(4)
    lab.feed(failed(step_of(SIX_STEPS, "test", "run"), "red"))
    assert "prerequisites" in {reason.signal for reason in commit(lab).reasons}


@pytest.mark.parametrize(
    ("contract", "irreversible"),
    [
        ({"effect": "read"}, False),
        ({"effect": "write"}, False),
        ({"effect": "write", "external": True}, True),
        ({"effect": "read", "external": True}, False),
        ({"effect": "destructive"}, True),
        ({}, True),
        ({"annotations": {"readOnlyHint": True}}, False),
        ({"annotations": {"destructiveHint": False}}, False),
    ],
)
def test_what_destroys_or_leaves_the_house_is_irreversible(
    contract: dict[str, Any], irreversible: bool
) -> None:
    known = {"t": ToolContract(name="t", **contract)}
    assert is_irreversible(GateParams(), "t", known) is irreversible
    assert effect_of("other", known) is Effect.UNKNOWN


def test_a_reversible_call_passes_whatever_else_is_wrong() -> None:
    assert monitored(0).propose(step_of(SIX_STEPS, "edit")).decision == "allow"
    assert monitored(0).propose(foreign(1, tool="edit_file")).decision == "allow"


def test_an_unknown_tool_needs_a_reference_match_unless_the_policy_says_otherwise() -> None:
    odd = foreign(1)
    strict = monitored(5).propose(odd)
    assert (strict.decision, strict.effect) == ("block", "unknown")
    assert strict.reasons[0].signal == "proposal_cost"
    lenient = monitored(5, settings_=profile(unknown_tools="reversible"))
    assert lenient.propose(odd).decision == "unknown"


def test_where_nothing_is_known_the_policy_decides_and_says_so() -> None:
    step = step_of(SIX_STEPS, "commit")
    assert monitored(0, (), None).propose(step).decision == "unknown"
    closed = monitored(0, (), None, profile(nothing_known="block")).propose(step)
    assert closed.decision == "block"
    assert closed.reasons[0].signal == "policy"
    assert "load tool contracts" in closed.reasons[0].text


@pytest.mark.parametrize(
    ("contracts", "tool", "references", "open_", "closed"),
    [
        ((), "rm_all", None, "unknown", "block"),
        ((ToolContract(name="rm_all", effect="write"),), "rm_all", None, "unknown", "block"),
        ((ToolContract(name="rm_all", effect="destructive"),), "rm_all", None, "unknown", "block"),
        ((ToolContract(name="rm_all", effect="read"),), "rm_all", None, "allow", "allow"),
        (CONTRACTS, "rm_all", None, "unknown", "block"),
        (CONTRACTS, "rm_all", Provenance.GOLD, "block", "block"),
        ((), "edit_file", Provenance.GOLD, "unknown", "unknown"),  # the references use it
        ((), "rm_all", Provenance.GOLD, "unknown", "block"),
    ],
)
def test_the_default_gate_blocks_what_nothing_is_known_about_where_it_is_to(
    contracts: tuple[ToolContract, ...],
    tool: str,
    references: Provenance | None,
    open_: str,
    closed: str,
) -> None:
    by_default = default("synthetic")
    tight = replace(by_default, gate=replace(by_default.gate, nothing_known="block"))
    for profile_, decision in ((by_default, open_), (tight, closed)):
        lab = monitored(0, contracts, references, profile_)
        if references is not None:
            by_name = lab.state.knowledge.contracts
            values = compile_values(profile_.values, [reference_of(SIX_STEPS)], by_name)
            known = replace(lab.state.knowledge, values=values)
            lab.state = replace(lab.state, knowledge=known)
        found = lab.propose(foreign(1, tool=tool))
        assert found.decision == decision
        if (open_, decision) == ("unknown", "block"):
            assert [reason.signal for reason in found.reasons] == ["policy"]
            assert found.authority == "intervene"


def test_the_frontier_is_that_of_the_coupling_now_in_both_directions() -> None:
    for done in range(6):
        contracts = (ToolContract(name="git_commit", effect="destructive"),)
        decision = commit(monitored(done, contracts))
        assert decision.decision == ("allow" if done >= 5 else "block"), done
        if done < 5:
            assert [reason.signal for reason in decision.reasons] == ["frontier"]
            assert "run_tests" in decision.reasons[0].text


@pytest.mark.parametrize(
    ("provenance", "answer"),
    [
        (Provenance.GOLD, "block"),
        (Provenance.MINED, "block"),
        (Provenance.AXIOMATIC, "unknown"),
        (Provenance.GENERATED, "unknown"),
    ],
)
def test_only_trusted_references_may_block(provenance: Provenance, answer: str) -> None:
    contracts = (ToolContract(name="git_commit", effect="destructive"),)
    assert commit(monitored(0, contracts, provenance)).decision == answer


def test_a_missing_prerequisite_blocks_whatever_the_references_are() -> None:
    assert commit(monitored(0, provenance=Provenance.GENERATED)).decision == "block"


def test_a_proposal_without_an_intent_is_matched_by_its_tool() -> None:
    lab = monitored(5)
    mute = step_of(SIX_STEPS, "commit", action=None)
    assert lab.propose(mute).decision == "allow"
    assert lab.propose(mute.model_copy(update={"tool": "git_push"})).decision == "block"


def test_a_decision_is_bound_to_the_exact_call() -> None:
    lab = monitored(5)
    one, same, other = (
        lab.propose(step_of(SIX_STEPS, "commit", args=args))
        for args in ({"a": 1, "b": 2}, {"b": 2, "a": 1}, {"a": 1, "b": 3})
    )
    assert one.call_sha256 == same.call_sha256 != other.call_sha256
    assert one.id == same.id != other.id


def test_beyond_the_limit_of_nodes_nothing_irreversible_passes() -> None:
    """The coupling stands still there, and nobody can say where the run is in its task."""
    base = profile()
    small = replace(base, prefix=replace(base.prefix, nodes_max=4))
    lab = monitored(5, settings_=small)
    assert "graph_full" in lab.verdicts[-1].flags
    stopped = commit(lab)
    assert (stopped.decision, [r.signal for r in stopped.reasons]) == (
        "block",
        ["alignment_stopped"],
    )
    assert "too long" in stopped.reasons[0].text
    assert lab.propose(step_of(SIX_STEPS, "edit")).decision == "allow"  # it can be undone
    assert "prerequisites" in {r.signal for r in commit(monitored(4, settings_=small)).reasons}


@settings(max_examples=25)
@given(strategies.runs(steps_max=4), strategies.contracts(), strategies.references(2, 3))
def test_any_proposal_gets_an_answer_with_its_reasons_and_leaves_the_run_alone(
    run: strategies.Run, contracts: tuple[ToolContract, ...], references: tuple[Reference, ...]
) -> None:
    lab = Lab(references, contracts)
    lab.feed(*run.arrivals)
    before = lab.state
    for step in run.steps:
        decision = lab.propose(step)
        assert lab.state is before
        if decision.decision == "block":
            assert decision.reasons
            assert is_irreversible(lab.profile.gate, step.tool, before.knowledge.contracts), (
                "a reversible call was blocked"
            )
        assert all(reason.text for reason in decision.reasons)
