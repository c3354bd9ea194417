"""Table 3 of the paper: the gate lets valid calls pass and blocks the others."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tests.operators.lab import (
    SIX_STEPS,
    Lab,
    LabTask,
    Node,
    foreign,
    reference_of,
    step_of,
)
from tests.operators.test_table2 import CONTRACTS, ORDER, lab, paraphrased


def test_g_a_a_valid_irreversible_call_is_allowed() -> None:
    monitored = lab(contracts=CONTRACTS)
    monitored.feed(*paraphrased()[:5])
    decision = monitored.propose(step_of(SIX_STEPS, "commit", "now"))
    assert decision.decision == "allow", decision
    assert decision.evidence == (4,)
    assert decision.effect == "destructive"


def test_g_b_a_missing_prerequisite_is_blocked() -> None:
    alone = Lab(contracts=CONTRACTS)
    alone.feed(*paraphrased()[:4])
    decision = alone.propose(step_of(SIX_STEPS, "commit", "now"))
    assert decision.decision == "block"
    assert "run_tests" not in decision.reasons[0].text
    assert "tests_passed" in decision.reasons[0].text
    alone.feed(paraphrased()[4])
    assert alone.propose(step_of(SIX_STEPS, "commit", "now")).decision == "allow"


def test_g_c_a_call_in_order_by_its_schema_but_without_reference_match_is_blocked() -> None:
    monitored = lab(contracts=CONTRACTS)
    monitored.feed(*paraphrased()[:5])
    odd = foreign(0, tool="git_push_force", action="weather 3")
    decision = monitored.propose(odd)
    assert decision.decision == "block"
    assert decision.reasons[0].signal == "proposal_cost"


def test_g_d_with_nothing_known_the_policy_allows() -> None:
    bare = Lab()
    decision = bare.propose(step_of(SIX_STEPS, "commit"))
    assert decision.decision == "unknown"
    assert decision.reasons == ()


def test_a_reversible_tool_is_never_blocked() -> None:
    monitored = lab(contracts=CONTRACTS)
    assert monitored.propose(step_of(SIX_STEPS, "edit")).decision == "allow"


def test_no_valid_irreversible_call_is_blocked_in_fifty_benign_runs() -> None:
    blocked = 0
    for seed in range(50):
        random = np.random.default_rng(seed)
        names = list(ORDER[:5])
        if random.random() < 0.5:
            names[1], names[2] = names[2], names[1]
        monitored = lab(contracts=CONTRACTS)
        for position, name in enumerate(names):
            if position and random.random() < 0.2:
                monitored.feed(foreign(int(random.integers(1000))))
            monitored.feed(step_of(SIX_STEPS, name, f"seed{seed}"))
        blocked += monitored.propose(step_of(SIX_STEPS, "commit", f"s{seed}")).decision != "allow"
    assert blocked == 0


def test_a_cached_frontier_would_have_blocked_the_valid_call() -> None:
    """The gate reads the coupling as it is now; the one before the last event is too old."""
    monitored = lab(contracts=CONTRACTS)
    monitored.feed(*paraphrased()[:4])
    before = monitored.state
    monitored.feed(paraphrased()[4])
    call = step_of(SIX_STEPS, "commit", "now")
    assert monitored.propose(call).decision == "allow"
    monitored.state = replace(before, ledger=monitored.state.ledger)
    stale = monitored.propose(call)
    assert stale.decision == "block"
    assert [reason.signal for reason in stale.reasons] == ["frontier"]


def test_the_reference_helper_yields_what_the_scenarios_assume() -> None:
    reference = reference_of(SIX_STEPS)
    assert [step.tool for step in reference.steps][-1] == "git_commit"


def test_a_step_that_is_done_may_be_repeated_though_what_precedes_it_is_not_seen() -> None:
    """Active or satisfied: mass on a node proves it, whatever its parents' mass says."""
    monitored = lab(contracts=CONTRACTS)
    monitored.feed(*paraphrased()[:1])
    transport = monitored.state.transport
    plan = np.zeros_like(transport.plan)
    plan[:, 0, ORDER.index("commit")] = 1.0 / 6
    monitored.state = replace(monitored.state, transport=replace(transport, plan=plan))
    decision = monitored.propose(step_of(SIX_STEPS, "commit", "again"))
    assert [reason.signal for reason in decision.reasons] == ["prerequisites"]


def test_the_gate_asks_the_reference_that_the_run_follows() -> None:
    other = LabTask("six", tuple(Node(f"x{n}", f"other_tool_{n}") for n in range(6)))
    references = [reference_of(other).model_copy(update={"reference_id": "first"})]
    monitored = Lab([*references, reference_of(SIX_STEPS)], contracts=CONTRACTS)
    monitored.feed(*paraphrased()[:5])
    decision = monitored.propose(step_of(SIX_STEPS, "commit", "now"))
    assert (decision.decision, decision.best_reference) == ("allow", "six-0")
