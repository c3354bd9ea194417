from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ontrack.operators import selftest
from ontrack.operators.identity import IdentityParams, check
from ontrack.operators.orphans import OrphanParams
from ontrack.operators.selftest import RuleTest, SelfTest, SelfTestParams
from ontrack.operators.sightings import SeenValues
from ontrack.operators.values import compile_values
from ontrack.topics.events import Call, Step
from ontrack.topics.verdicts import Authority, VerdictName
from tests.operators.shop import (
    BY_ROLE,
    CONTRACTS,
    IDENTITY,
    VALUES,
    Shop,
    reference_of,
    shop_run,
)

INTERVENE, WARN, INFORM = Authority.INTERVENE, Authority.WARN, Authority.INFORM
PARAMS = SelfTestParams()


def outcome(*runs: Sequence[Step]) -> SelfTest:
    shop = Shop.of(*runs)
    return selftest.run(
        PARAMS,
        VALUES,
        IDENTITY,
        OrphanParams(),
        BY_ROLE,
        CONTRACTS,
        shop.references,
        shop.values,
    )


def blocked(tool: str, **args: object):
    values = Shop.of(shop_run()).values
    call = Call(tool=tool, args=args)
    return check(IDENTITY, VALUES, CONTRACTS, values, SeenValues(), call)


def test_members_that_agree_give_every_rule_its_authority() -> None:
    found = outcome(shop_run(), shop_run(), shop_run())
    assert (found.members, found.blocked, found.orphan_steps) == (3, 0, 0)
    assert found.gate_mode == "values"
    assert found.orphans.authority is INTERVENE
    assert found.gate_authority(blocked("close_account", email="e")) is INTERVENE


def test_objects_that_differ_take_the_value_rule_down_to_a_warning_and_no_other() -> None:
    found = outcome(shop_run(), shop_run("bob", "W18", "card_2"), shop_run("cem", "W19", "card_3"))
    assert found.values == RuleTest(3, WARN)
    assert found.tools == RuleTest(0, INTERVENE)
    assert found.false_block_rate == 1.0
    answer = blocked("refund_order", order_id="W99", card="card_1")
    assert found.gate_authority(answer) is WARN
    assert found.gate_authority(blocked("close_account", email="e")) is INTERVENE


def test_of_several_reasons_the_surest_counts_and_others_are_not_its_business() -> None:
    found = outcome(shop_run(), shop_run("bob", "W18", "card_2"))
    assert found.authority_of("unseen_value") is WARN
    assert found.authority_of("unseen_value", "unseen_tool") is INTERVENE
    assert found.authority_of("prerequisites") is INTERVENE


def test_where_only_sources_hold_the_gate_goes_by_sources() -> None:
    look, refund = shop_run()[1:]
    other = look.model_copy(update={"result": {"order_id": "W17", "card": "card_2"}})
    pay = refund.model_copy(update={"args": {"order_id": "W17", "card": "card_2"}})
    found = outcome(shop_run(), [shop_run()[0], other, pay])
    assert found.values.authority is WARN
    assert found.sources.authority is INTERVENE
    assert found.gate_mode == "sources"


def test_a_tool_that_one_member_alone_uses_takes_the_tool_rule_down() -> None:
    close = Step(run_id="r", tool="close_account", args={"email": "ann@shop.example"}, seq=3)
    found = outcome(shop_run(), shop_run(), [*shop_run(), close])
    assert found.tools == RuleTest(1, WARN)
    assert found.values == RuleTest(0, INTERVENE)


def test_one_member_is_no_test_and_says_so() -> None:
    found = outcome(shop_run())
    assert found.members == found.steps == 0
    assert found.values.authority is INTERVENE
    assert found.orphans.authority is WARN


def test_a_pool_holds_back_what_each_small_set_lets_pass() -> None:
    good, bad = outcome(shop_run(), shop_run()), outcome(shop_run(), shop_run("bob", "W18", "c_2"))
    pool = selftest.pooled(PARAMS, [good, *[bad] * 5])
    assert pool is not None
    assert (pool.members, pool.values.flagged) == (12, 10)
    held = selftest.limited(good, pool)
    assert held.values.authority is WARN
    assert held.tools.authority is INTERVENE
    assert held.orphans.authority is INFORM


def test_a_pool_of_one_slip_in_a_few_is_within_chance() -> None:
    good, bad = outcome(shop_run(), shop_run()), outcome(shop_run(), shop_run("bob", "W18", "c_2"))
    pool = selftest.pooled(PARAMS, [good] * 6 + [bad])
    assert pool is not None
    assert pool.values.flagged == 2
    assert pool.values.authority is INTERVENE


def test_untested_sets_make_no_pool() -> None:
    assert selftest.pooled(PARAMS, [outcome(shop_run())]) is None
    assert selftest.limited(outcome(shop_run()), None) == outcome(shop_run())


def test_a_share_over_one_is_refused() -> None:
    with pytest.raises(ValueError, match="false_alarms_max"):
        SelfTestParams(false_alarms_max=1.5)


shop_runs = st.builds(
    shop_run,
    st.sampled_from(("ann", "bob")),
    st.sampled_from(("W17", "W18")),
    st.sampled_from(("card_1", "card_2")),
)
members = st.lists(
    shop_runs.flatmap(
        lambda steps: st.permutations(steps).map(lambda kept: kept[:2]) | st.just(steps)
    ),
    min_size=2,
    max_size=4,
)


@settings(max_examples=30)
@given(members)
def test_it_is_compiling_the_others_anew_for_every_member(runs: list[list[Step]]) -> None:
    """Oracle: each member against a set that was compiled without it."""
    numbered = [
        [step.model_copy(update={"seq": seq}) for seq, step in enumerate(steps)] for steps in runs
    ]
    tools = values = strangers = inversions = orphan_steps = 0
    for index, steps in enumerate(numbered):
        others = [one for place, one in enumerate(numbered) if place != index]
        held = compile_values(VALUES, [reference_of(one) for one in others], CONTRACTS)
        signals = {
            reason.signal
            for step in steps
            for reason in check(
                IdentityParams(), VALUES, CONTRACTS, held, SeenValues(), step
            ).reasons
        }
        tools += "unseen_tool" in signals
        values += "unseen_value" in signals
        judged = Shop.of(*others).judge(steps)
        strangers += any(signal.name is VerdictName.OFF_TRACK for signal in judged)
        inversions += any(signal.name is VerdictName.CAUSAL_INVERSION for signal in judged)
        orphan_steps += sum(signal.orphan for signal in judged)
    found = outcome(*numbered)
    assert found.tools.flagged == tools
    assert found.values.flagged == values
    assert found.inversion.flagged == inversions
    assert found.orphan_steps == orphan_steps
    assert found.strangers.flagged == strangers


def test_strangers_that_most_good_runs_have_say_nothing_and_in_a_few_they_warn() -> None:
    def strangers(flagged: int, members: int) -> RuleTest:
        return selftest._tested(PARAMS, "strangers", flagged, members)

    assert [strangers(n, 10).authority for n in (1, 2, 5, 6)] == [INTERVENE, WARN, WARN, INFORM]
    assert selftest._tested(PARAMS, "values", 10, 10).authority is WARN
    open_test = RuleTest(0, INTERVENE)
    rules = dict.fromkeys(("undeclared", "tools", "values", "sources", "inversion"), open_test)
    blind = RuleTest(3, INFORM)
    test = SelfTest(
        3, 0, strangers=blind, orphans=RuleTest(3, WARN), steps=9, orphan_steps=6, **rules
    )
    pool = selftest.pooled(PARAMS, [test])
    assert pool is not None
    assert selftest.limited(test, pool).strangers.authority is INFORM
    assert test.authority_of("strangers") is INFORM
    # Members of one kind that mostly pass do not give it back.
    others = replace(test, members=40, strangers=RuleTest(8, WARN))
    whole = selftest.pooled(PARAMS, [test, others])
    assert whole is not None
    assert whole.strangers.authority is WARN
    assert selftest.limited(test, whole).strangers.authority is INFORM
