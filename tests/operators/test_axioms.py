from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ontrack.operators import identity
from ontrack.operators.artifacts import ArtifactParams
from ontrack.operators.axioms import artifact_name, axiomatic
from ontrack.operators.gate import GateFinding
from ontrack.operators.references import compile_references, graph_of, texts
from ontrack.operators.sightings import SeenValues
from ontrack.operators.values import compile_values
from ontrack.pipeline.workplace import contracts as workplace_contracts
from ontrack.topics.errors import UnknownName
from ontrack.topics.events import Call
from ontrack.topics.knowledge import Provenance, Reference, ToolContract
from tests.operators.lab import embed
from tests.operators.shop import CONTRACTS, IDENTITY, VALUES, Shop, reference_of, shop_run

SHOP = {
    contract.name: contract
    for contract in (
        ToolContract(name="find_user", effect="read", produces=("result.user_id",)),
        ToolContract(
            name="list_orders",
            effect="read",
            consumes=("args.user_id",),
            produces=("result.orders[*].id",),
        ),
        ToolContract(name="approve", effect="write", produces=("=approved",)),
        ToolContract(name="refund", effect="write", consumes=("args.order_id", "=approved", "to")),
    )
}


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("args.order_id", "order"),
        ("result.orders[*].id", "order"),
        ("order.number", "order"),
        ("$.result.patches", "patch"),
        ("arguments.userId", "user"),
        ("result.address", "address"),
        ("result.policies[0]", "policy"),
        ("id", "id"),
        ("result", ""),
        ("=tests_passed", "=tests_passed"),
    ],
)
def test_paths_of_producers_and_consumers_name_the_same_artifact(path: str, name: str) -> None:
    assert artifact_name(path) == name


def test_producers_come_before_consumers_and_what_nobody_makes_is_given() -> None:
    found = axiomatic(SHOP, "refund", ["refund"])
    tools = [step.tool for step in found.reference.steps]
    assert tools == ["find_user", "list_orders", "approve", "refund"]
    assert [step.parents for step in found.reference.steps] == [(), (0,), (), (1, 2)]
    assert found.given == ("to",)
    assert found.reference.provenance is Provenance.AXIOMATIC
    graph = graph_of(found.reference.steps, SHOP, ArtifactParams())
    assert [sorted(parents) for parents in graph.parents] == [[], [0], [], [1, 2]]


def test_a_goal_may_be_an_artifact() -> None:
    found = axiomatic(SHOP, "look", ["order", "=approved"])
    tools = [step.tool for step in found.reference.steps]
    assert tools == ["find_user", "list_orders", "approve"]


def test_a_goal_that_nobody_knows_is_named() -> None:
    with pytest.raises(UnknownName, match="task 'refund': the goal 'invoice'"):
        axiomatic(SHOP, "refund", ["invoice"])


def test_of_several_producers_none_is_a_must() -> None:
    more = SHOP | {"guess": ToolContract(name="guess", effect="write", produces=("result.user",))}
    found = axiomatic(more, "look", ["list_orders"])
    assert [(step.tool, step.parents) for step in found.reference.steps] == [
        ("find_user", ()),
        ("list_orders", ()),
    ]


def test_tools_that_need_each_other_end_somewhere() -> None:
    circle = {
        name: ToolContract(name=name, consumes=(f"args.{needs}",), produces=(f"result.{makes}",))
        for name, needs, makes in (("a", "y", "x"), ("b", "x", "y"))
    }
    found = axiomatic(circle, "t", ["a"])
    assert [step.tool for step in found.reference.steps] == ["b", "a"]
    assert found.given == ("x",)


def gate(references: Sequence[Reference], order: str) -> GateFinding:
    values = compile_values(VALUES, references, CONTRACTS)
    refund = Call(tool="refund_order", args={"order_id": order, "card": "card_1"})
    return identity.check(IDENTITY, VALUES, CONTRACTS, values, SeenValues(), refund)


def test_contracts_say_which_tools_and_nothing_of_their_values() -> None:
    made = axiomatic(CONTRACTS, "t", ["find_user", "refund_order"]).reference
    assert gate([made], "W17").decision == "allow"
    close = Call(tool="close_account")
    values = compile_values(VALUES, [made], CONTRACTS)
    answer = identity.check(IDENTITY, VALUES, CONTRACTS, values, SeenValues(), close)
    assert answer.decision == "block"
    seen = reference_of(shop_run())
    assert gate([seen, made], "W17").decision == "allow"
    assert gate([seen, made], "W18").decision == "block"  # recorded runs know the values


def test_a_step_that_contracts_alone_know_is_no_orphan_and_neither_is_one_more_read() -> None:
    made = axiomatic(CONTRACTS, "t", ["find_user", "refund_order"]).reference
    vectors = [embed(text) for text in texts([made])]
    shop = Shop(
        compile_references([made], CONTRACTS, vectors, ArtifactParams()),
        compile_values(VALUES, [made], CONTRACTS),
    )
    signals = shop.judge(shop_run())
    assert [signal.name for signal in signals] == [None, None, None]
    assert [signal.cost for signal in signals] == pytest.approx([0.0, signals[1].cost, 0.0])


WORKPLACE = {contract.name: contract for contract in workplace_contracts()}


@given(st.lists(st.sampled_from(sorted(WORKPLACE)), min_size=1, max_size=4))
def test_every_tool_stands_once_after_its_parents_and_every_goal_is_there(goals: list[str]) -> None:
    found = axiomatic(WORKPLACE, "t", goals)
    tools = [step.tool for step in found.reference.steps]
    assert len(tools) == len(set(tools))
    assert set(goals) <= set(tools)
    for place, step in enumerate(found.reference.steps):
        assert step.seq == place
        assert all(parent < place for parent in step.parents or ())
    assert axiomatic(WORKPLACE, "t", goals) == found
