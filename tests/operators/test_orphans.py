from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ontrack.operators import orphans
from ontrack.operators.orphans import OrphanParams, OrphanState
from ontrack.operators.sightings import SeenValues
from ontrack.topics.events import Step
from ontrack.topics.verdicts import Authority, VerdictName
from tests.operators.shop import CONTRACTS, IDENTITY, VALUES, Shop, shop_run

SHOP = Shop.of(shop_run(), shop_run(card="card_2"))


def call(tool: str, result: object = None, **args: object) -> Step:
    return Step(run_id="r", tool=tool, args=args, result=result)


def test_a_run_like_its_references_shows_nothing() -> None:
    assert [signal.name for signal in SHOP.judge(shop_run())] == [None, None, None]


def test_a_tool_that_nobody_knows_is_off_track_at_once() -> None:
    (signal,) = SHOP.judge([call("launch_rocket")])
    assert signal.name is VerdictName.OFF_TRACK
    assert signal.reason is not None
    assert signal.reason.signal == "unknown_tool"
    assert signal.evidence == (0,)


def test_switching_to_another_account_is_off_track_at_the_second_step() -> None:
    signals = SHOP.judge([*shop_run()[:2], *shop_run("eve", "W99", "card_9")])
    assert [signal.name for signal in signals[:4]] == [None, None, None, VerdictName.OFF_TRACK]
    assert signals[3].evidence == (2, 3)
    assert signals[3].reason is not None
    assert signals[3].reason.signal == "strangers"
    assert "steps 2, 3" in signals[3].reason.text


def test_what_a_stranger_brings_is_as_strange_as_the_stranger() -> None:
    lookup = call("get_order", {"next": "W98"}, order_id="W99")
    use = call("get_order", order_id="W98")
    assert [signal.stranger for signal in SHOP.judge([lookup, use])] == [True, True]


def test_a_declared_tool_that_names_nothing_is_no_stranger() -> None:
    signals = SHOP.judge([call("get_product"), call("close_account")])
    assert [signal.orphan for signal in signals] == [True, True]
    assert signals[1].name is VerdictName.WARN


def test_what_a_step_of_this_task_brings_is_at_home() -> None:
    first = shop_run()[0].model_copy(
        update={"result": {"id": "ann_id_9", "orders": ["W18", "W19"]}}
    )
    signals = SHOP.judge(
        [first, call("get_order", order_id="W18"), call("get_order", order_id="W19")]
    )
    assert [signal.orphan for signal in signals] == [False, True, True]
    assert not any(signal.stranger for signal in signals)
    assert signals[2].name is VerdictName.WARN


@pytest.mark.parametrize(
    ("plain", "name"),
    [
        (Authority.INTERVENE, VerdictName.OFF_TRACK),
        (Authority.WARN, VerdictName.WARN),
        (Authority.INFORM, VerdictName.EXPLORING),
    ],
)
def test_plain_orphans_go_as_far_as_the_self_test_lets_them(
    plain: Authority, name: VerdictName
) -> None:
    steps = [call("get_product", name="chair"), call("get_product", name="desk")]
    first = shop_run()[0].model_copy(update={"result": ["chair", "desk"]})
    assert SHOP.judge([first, *steps], plain=plain)[2].name is name


def test_a_retry_of_an_orphan_is_not_a_second_orphan() -> None:
    once = call("get_product", name="chair")
    assert [signal.name for signal in SHOP.judge([once, once, once])] == [None, None, None]


def test_an_effectful_call_before_the_one_it_depends_on_is_an_inversion() -> None:
    find, _, refund = shop_run()
    signal = SHOP.judge([find, refund])[1]
    assert signal.name is VerdictName.CAUSAL_INVERSION
    assert signal.reason is not None
    assert "get_order" in signal.reason.text
    assert signal.evidence == (1,)


def test_a_read_out_of_order_is_no_inversion() -> None:
    find, look, _ = shop_run()
    assert [signal.name for signal in SHOP.judge([look, find])] == [None, None]


def test_one_reference_that_does_it_in_this_order_is_enough() -> None:
    find, look, refund = shop_run()
    short = refund.model_copy(update={"seq": 0})
    assert SHOP.judge([find, refund])[1].name is VerdictName.CAUSAL_INVERSION
    other = Shop.of(shop_run(), [short, look.model_copy(update={"seq": 1})])
    assert other.judge([find, refund])[1].name is None


def test_a_reference_that_is_left_out_helps_nobody() -> None:
    two = Shop.of(shop_run(), shop_run("eve", "W99", "card_9"))
    steps = shop_run("eve", "W99", "card_9")
    assert two.judge(steps)[1].name is None
    assert two.judge(steps, without=0b10)[1].name is VerdictName.OFF_TRACK
    assert two.judge(shop_run(), without=0b10)[1].name is None


def test_impossible_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="orphans_max"):
        OrphanParams(window=2, orphans_max=3)


calls = st.sampled_from(
    [
        *shop_run(),
        *shop_run("eve", "W99", "card_9"),
        call("get_product", name="chair"),
        call("close_account", email="ann@shop.example"),
        call("launch_rocket"),
    ]
)


@settings(max_examples=30)
@given(st.lists(calls, max_size=12))
def test_off_track_is_what_counting_the_last_different_calls_says(steps: list[Step]) -> None:
    """Oracle: the whole run is kept, and orphans are counted by hand."""
    signals = SHOP.judge(steps)
    kept: list[tuple[int, bool, bool, tuple[str, str]]] = []
    for seq, (step, signal) in enumerate(zip(steps, signals, strict=True)):
        key = (step.tool, str(sorted(step.args.items())))
        again = signal.orphan and any(key == other for *_, other in kept[-3:] if _[1])
        if not again:
            kept.append((seq, signal.orphan, signal.stranger, key))
        if step.tool == "launch_rocket":
            assert signal.name is VerdictName.OFF_TRACK
        elif signal.orphan:
            strangers = sum(stranger for _, _, stranger, _ in kept[-3:])
            plain = sum(orphan for _, orphan, _, _ in kept[-3:])
            expected = VerdictName.WARN if plain >= 2 else None
            assert signal.name is (VerdictName.OFF_TRACK if strangers >= 2 else expected)


@settings(max_examples=30)
@given(st.lists(calls, max_size=12))
def test_every_finding_has_a_reason_and_names_steps_that_were(steps: list[Step]) -> None:
    for seq, signal in enumerate(SHOP.judge(steps)):
        assert (signal.name is None) == (signal.reason is None) == (not signal.evidence)
        assert all(0 <= place <= seq for place in signal.evidence)
        assert not signal.stranger or signal.orphan


@settings(max_examples=25)
@given(st.lists(calls, min_size=1, max_size=30), st.integers(1, 4))
def test_the_state_stays_within_its_limits(steps: list[Step], remembered: int) -> None:
    params = OrphanParams(remembered_max=remembered)
    state = OrphanState()
    row = np.ones((SHOP.references.count, SHOP.references.width), np.float32)
    for seq, step in enumerate(steps):
        before = state
        state, _ = orphans.step(
            params,
            VALUES,
            IDENTITY,
            CONTRACTS,
            SHOP.references,
            SHOP.values,
            before,
            SeenValues(),
            seq,
            step,
            row,
        )
        assert len(state.recent) <= params.window
        assert len(state.strangers) <= remembered
        assert set(state.called) <= set(SHOP.values.tools)
