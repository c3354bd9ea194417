from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ontrack.operators import roles
from ontrack.operators.leaves import LEAVES_MAX, TEXT_CHARACTERS, Leaves, distance, leaves
from tests import strategies

LONG = "please move the delivery to the address of my office"


def apart(left: dict[str, Any], right: dict[str, Any], text: float = 0.5) -> float:
    return distance(leaves(left), leaves(right), text)


def test_each_argument_counts_the_same_however_long_its_text_is() -> None:
    order = {"order_id": "#W1", "item_ids": ["7", "8"], "payment": "card_1"}
    assert apart(order, {**order, "order_id": "#W2"}) == pytest.approx(1 / 3)
    assert apart(order, {**order, "item_ids": ["8", "9"]}) == pytest.approx((1 - 1 / 3) / 3)
    assert apart(order, {"order_id": "#W1"}) == pytest.approx(2 / 3)


def test_texts_are_compared_by_meaning_and_short_values_by_being_the_same() -> None:
    assert len(LONG) > TEXT_CHARACTERS
    assert apart({"summary": LONG}, {"summary": LONG[:-6] + "flat"}, text=0.2) == pytest.approx(0.2)
    assert apart({"summary": LONG}, {"summary": "moved"}, text=0.2) == pytest.approx(0.2)
    assert apart({"summary": "done"}, {"summary": "moved"}, text=0.2) == 1.0


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ({"n": 3.0}, {"n": 3}),
        ({"n": "3"}, {"n": 3}),
        ({"q": "two  words\n"}, {"q": "two words"}),
        ({"ids": ["a", "b"]}, {"ids": ["b", "a", "a"]}),
        ({"x": 1, "note": None}, {"x": 1}),
        ({"x": 1, "request_id": "77"}, {"x": 1, "request_id": "78"}),
        ({"path": "a.py", "uuid": "77"}, {"path": "a.py", "uuid": "78"}),
        ({"cmd": "run at 2026-01-01T10:00:00Z"}, {"cmd": "run at 2026-01-02T11:00:00Z"}),
        ({"a": {"x": 1, "ts": 5}}, {"a": {"x": 1, "ts": 6}}),
        ({}, {}),
    ],
)
def test_the_same_request_written_otherwise_is_no_distance(
    left: dict[str, Any], right: dict[str, Any]
) -> None:
    assert apart(left, right) == 0.0


def test_what_a_call_is_about_is_never_masked() -> None:
    assert apart({"id": "L1001"}, {"id": "L1002"}) == 1.0
    assert apart({"file": "1712345678.log"}, {"file": "1712345679.log"}) == 1.0


def test_true_is_not_one_and_items_are_told_apart_by_their_fields() -> None:
    assert apart({"x": True}, {"x": 1}) == 1.0
    flights = [{"number": "HAT1", "date": "2024-05-01"}, {"number": "HAT2", "date": "2024-05-02"}]
    assert set(leaves({"flights": flights}).values) == {"flights.number", "flights.date"}


def test_an_endless_argument_is_looked_at_up_to_a_limit() -> None:
    endless = {"items": list(range(10_000))}
    assert len(leaves(endless).values["items"]) == LEAVES_MAX
    assert apart(endless, endless) == 0.0


@given(strategies.arguments(), strategies.arguments(), st.floats(0, 1))
def test_the_distance_is_symmetric_in_the_unit_interval_and_zero_to_itself(
    left: dict[str, Any], right: dict[str, Any], text: float
) -> None:
    found = apart(left, right, text)
    assert 0.0 <= found <= 1.0
    assert found == pytest.approx(apart(right, left, text))
    assert apart(left, left, text) == 0.0


calls = st.tuples(st.sampled_from(("read", "edit", "send")), strategies.arguments())


def longer(call: tuple[str, dict[str, Any]], is_long: bool) -> tuple[str, dict[str, Any]]:
    return (call[0], {**call[1], "query": LONG + str(len(call[1]))}) if is_long else call


@given(
    st.lists(st.tuples(calls, st.booleans()) | st.none(), min_size=1, max_size=8),
    st.tuples(calls, st.booleans()),
    st.integers(0, 2**32 - 1),
)
def test_the_index_gives_the_distance_to_every_node(
    drawn: list[tuple[tuple[str, dict[str, Any]], bool] | None],
    own: tuple[tuple[str, dict[str, Any]], bool],
    seed: int,
) -> None:
    nodes = [None if node is None else longer(*node) for node in drawn]
    tool, args = longer(*own)
    index = roles.index(nodes)
    # Equal calls have equal texts, so equal vectors.
    rng = np.random.default_rng(seed)
    angles: dict[str, float] = {}
    rows = np.zeros((len(nodes), 2), np.float32)
    for place, node in enumerate(nodes):
        if node is not None:
            key = repr(sorted(leaves(node[1]).values.items(), key=repr))
            angle = angles.setdefault(key, float(rng.uniform(0, np.pi / 2)))
            rows[place] = np.cos(angle), np.sin(angle)
    vector = np.array([1.0, 0.0], np.float32)
    found = index.role_row(tool, args, rows, vector)
    tools = index.tool_row(tool)
    for place, node in enumerate(nodes):
        if node is None or node[0] != tool:
            assert found[place] == 1.0
            assert tools[place] > 0.0
        else:
            text = float(np.clip(1.0 - rows[place, 0], 0.0, 1.0))
            assert found[place] == pytest.approx(
                distance(leaves(args), leaves(node[1]), text), abs=1e-6
            )
            assert tools[place] == 0.0


def test_a_tool_that_no_reference_has_is_far_from_every_node() -> None:
    index = roles.index([("read_file", {"path": "a"}), None])
    row = index.role_row("send", {"path": "a"}, np.zeros((2, 2), np.float32), np.zeros(2))
    assert row.tolist() == [1.0, 1.0]
    assert index.tool_row("read_mail").tolist() == [pytest.approx(1 - 0.5 / 3), 1.0]


def test_equal_calls_are_compared_once() -> None:
    index = roles.index([("read", {"n": 3}), ("read", {"n": 3.0}), ("read", {"n": 4})])
    assert index.by_tool["read"].slots.shape == (1, 2)


def test_no_arguments_at_all_compile_too() -> None:
    index = roles.index([("read", {}), ("read", {"n": 1})])
    rows = np.zeros((2, 2), np.float32)
    assert index.role_row("read", {}, rows, rows[0]).tolist() == [0.0, 1.0]
    assert index.role_row("read", {"m": 1}, rows, rows[0]).tolist() == [1.0, 1.0]
    assert isinstance(leaves({}), Leaves)
