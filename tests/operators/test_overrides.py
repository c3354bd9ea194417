"""Overrides: single settings of a profile by name, with errors that name the key."""

from dataclasses import fields, is_dataclass, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ontrack.operators.overrides import override
from ontrack.operators.profiles import Profile, default, paper
from ontrack.topics.errors import InvalidSettings


def test_a_setting_is_changed_by_its_name_and_nothing_else_is() -> None:
    changed = override(paper("x"), {"transport": {"solver": {"lam": 0.12}}})
    assert changed.transport.solver.lam == 0.12
    solver = replace(changed.transport.solver, lam=paper("x").transport.solver.lam)
    assert replace(changed, transport=replace(changed.transport, solver=solver)) == paper("x")


def test_what_is_changed_shows_in_the_digest() -> None:
    changed = override(default("x"), {"repeats": {"repeats_max": 4}})
    assert changed.digest("x") != default("x").digest("x")
    assert override(default("x"), {}).digest("x") == default("x").digest("x")


def test_an_operator_is_switched_off_and_on() -> None:
    assert override(paper("x"), {"stall": False}).stall is None
    assert override(default("x"), {"stall": True}).stall == paper("x").stall
    stall = override(default("x"), {"stall": {"window": 9}}).stall
    assert stall is not None
    assert stall.window == 9


def test_a_whole_number_may_be_written_for_a_fraction_and_the_other_way_round() -> None:
    changed = override(paper("x"), {"transport": {"solver": {"lam": 1}}, "stall": {"window": 6.0}})
    assert isinstance(changed.transport.solver.lam, float)
    assert changed.stall is not None
    assert isinstance(changed.stall.window, int)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"transprot": {}}, "operators.transprot: no such setting; known: artifacts, ledger"),
        ({"transport": {"solver": {"lambda": 1}}}, "operators.transport.solver.lambda: no such"),
        (
            {"transport": {"solver": {"lam": -1}}},
            "operators.transport.solver: lam must be positive",
        ),
        ({"transport": {"solver": {"lam": "0.1"}}}, "solver.lam: expected a number, found '0.1'"),
        ({"transport": {"solver": 0.1}}, "operators.transport.solver: expected a table"),
        ({"transport": {"cost": "words"}}, "operators.transport.cost: expected one of 'text'"),
        ({"transport": False}, "operators.transport: expected a table of settings, found False"),
        ({"stall": {"window": 2.5}}, "operators.stall.window: expected a whole number, found 2.5"),
        ({"stall": {"window": True}}, "operators.stall.window: expected a whole number"),
        ({"stall": 3}, "operators.stall: expected a table of settings or true or false"),
        ({"once": 1}, "operators.once: expected true or false, found 1"),
        ({"selftest": {"untested": "maybe"}}, "operators.selftest.untested: expected one of"),
        ({"name": "mine"}, "operators.name: no such setting"),
        ({"show_arguments": True}, "operators.show_arguments: no such setting"),
    ],
)
def test_a_wrong_setting_is_an_error_that_names_it(values: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidSettings) as raised:
        override(paper("x"), values)
    assert says in str(raised.value)


@pytest.mark.parametrize("number", [float("inf"), float("nan")])
def test_a_whole_number_is_finite(number: float) -> None:
    with pytest.raises(InvalidSettings, match="operators.stall.window: expected a whole number"):
        override(paper("x"), {"stall": {"window": number}})


def plain(params: Any) -> dict[str, Any]:
    """Write every setting of a profile down, as a file would."""
    found = {}
    for item in fields(params):
        value = getattr(params, item.name)
        if isinstance(params, Profile) and item.name in ("name", "show_arguments"):
            continue
        if value is None:
            found[item.name] = False
        else:
            found[item.name] = plain(value) if is_dataclass(value) else value
    return found


@pytest.mark.parametrize(
    ("gate", "instead"),
    [
        ({"unknown_tools": "reversible"}, "operators.identity.undeclared"),
        ({"match_cost_max": 0.2}, "operators.identity.mode"),
    ],
)
def test_a_setting_that_nothing_would_look_at_is_refused_with_the_one_that_works(
    gate: dict[str, Any], instead: str
) -> None:
    with pytest.raises(InvalidSettings) as raised:
        override(default("x"), {"gate": gate})
    assert "profile 'default'" in str(raised.value)
    assert str(raised.value).endswith(f"set {instead} instead")
    with pytest.raises(InvalidSettings, match="in profile 'paper'"):
        override(paper("x"), {"gate": gate, "identity": True})
    for fine in (
        override(paper("x"), {"gate": gate}),
        override(default("x"), {"gate": gate, "identity": False}),
    ):
        assert fine.gate == replace(paper("x").gate, **gate)


@given(st.sampled_from([paper, default]), st.sampled_from([paper, default]))
def test_a_profile_written_down_in_full_turns_any_other_into_it(of: Any, into: Any) -> None:
    assert override(into("x"), plain(of("x"))) == replace(of("x"), name=into("x").name)
