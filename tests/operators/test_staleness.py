from __future__ import annotations

from ontrack.operators.mining import MiningParams, Success, mine
from ontrack.operators.staleness import shorter, stale
from ontrack.operators.stripping import StripParams
from ontrack.topics.knowledge import Reference, ReferenceStep, Task, ToolContract
from tests.operators.shop import CONTRACTS, shop_run

PARAMS = StripParams()
STEPS = tuple(ReferenceStep.of(step) for step in shop_run())
(MINED,) = mine(MiningParams(), CONTRACTS, "t", [Success("old", STEPS)]).references
ALLOWS = Task(id="t", allowed=("refund_order",))


def test_a_reference_that_still_fits_is_not_stale() -> None:
    assert stale(PARAMS, CONTRACTS, {"t": ALLOWS}, [MINED]) == []
    assert stale(PARAMS, {}, {}, [MINED]) == []


def test_a_tool_that_is_gone_is_told_once_a_reference() -> None:
    left = {name: tool for name, tool in CONTRACTS.items() if name != "get_order"}
    (found,) = stale(PARAMS, left, {}, [MINED])
    assert (found.kind, found.tool, found.reference) == ("missing_tool", "get_order", MINED)


def test_an_effect_that_changed_is_told_where_it_is_known_what_it_was() -> None:
    now = CONTRACTS | {"get_order": ToolContract(name="get_order", declared_effect="write")}
    (found,) = stale(PARAMS, now, {}, [MINED])
    assert found.kind == "effect_changed"
    assert "was declared read when this was mined and is write now" in found.text
    written = Reference(reference_id="gold", task_id="t", steps=STEPS)
    assert stale(PARAMS, now, {}, [written]) == []


def test_an_effect_that_the_task_does_not_allow_any_more_is_told() -> None:
    (found,) = stale(PARAMS, CONTRACTS, {"t": Task(id="t", allowed=())}, [MINED])
    assert (found.kind, found.tool) == ("not_allowed", "refund_order")
    assert stale(PARAMS, CONTRACTS, {"t": Task(id="t")}, [MINED]) == []


def test_fewer_steps_to_the_same_effects_are_a_shorter_path() -> None:
    direct = Success("new", (STEPS[1], STEPS[1], STEPS[2]))
    (found,) = shorter(PARAMS, CONTRACTS, [MINED], {"t": [direct, Success("same", STEPS)]})
    assert (found.run_id, found.run_steps, found.effects) == ("new", 2, 1)
    assert "reached the same 1 effectful call in 2 steps instead of 3" in found.text


def test_other_effects_are_another_end() -> None:
    other = Success("new", STEPS[:1] + tuple(ReferenceStep.of(s) for s in shop_run("bob"))[2:])
    nothing = Success("none", STEPS[:1])
    assert shorter(PARAMS, CONTRACTS, [MINED], {"t": [other, nothing]}) != []
    another = Success("new", (STEPS[2].model_copy(update={"args": {"order_id": "W99"}}),))
    assert shorter(PARAMS, CONTRACTS, [MINED], {"t": [another, nothing]}) == []
    assert shorter(PARAMS, CONTRACTS, [MINED], {"u": [Success("new", STEPS[1:])]}) == []
