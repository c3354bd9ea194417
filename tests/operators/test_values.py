from __future__ import annotations

from hypothesis import given, settings

from ontrack.operators.sightings import source_key
from ontrack.operators.values import (
    GIVEN,
    Argument,
    ValueParams,
    compile_values,
    identity_arguments,
)
from ontrack.topics.events import Call
from ontrack.topics.knowledge import Reference, ReferenceStep, ToolContract
from tests import strategies

PARAMS = ValueParams()


def reference(*steps: ReferenceStep, name: str = "r") -> Reference:
    return Reference(reference_id=name, task_id="t", steps=steps)


def test_ids_addresses_and_names_are_identity_and_prose_and_dates_are_not() -> None:
    call = Call(
        tool="send_mail",
        args={
            "to": "Ann@Example.com",
            "email_body": "as agreed",
            "reason": "asked for",
            "date": "2026-01-31",
            "at": "10:30",
            "copies": 2.0,
            "urgent": True,
            "order": {"id": "#W17", "items": ["i1", "i2"]},
            "attachment": "x y" * 40,
            "ids": '["j1"]',
        },
    )
    assert identity_arguments(PARAMS, call, None) == (
        Argument("to", "ann@example.com"),
        Argument("copies", "2"),
        Argument("urgent", "true"),
        Argument("order.id", "#w17"),
        Argument("order.items[*]", "i1"),
        Argument("order.items[*]", "i2"),
        Argument("attachment", "x y" * 40, is_text=True),
        Argument("ids[*]", "j1"),
    )


def test_a_declared_identity_is_taken_as_declared_even_where_it_is_prose_or_long() -> None:
    contract = ToolContract(name="post", identity=("args.subject", "items[0].id"))
    args = {"subject": "s" * 90, "to": "ann", "items": [{"id": 1, "note": "n"}, {"id": 2}]}
    found = identity_arguments(PARAMS, Call(tool="post", args=args), contract)
    assert [argument.path for argument in found] == ["subject", "items[*].id", "items[*].id"]


def test_references_know_where_a_value_came_from() -> None:
    values = compile_values(
        PARAMS,
        [
            reference(
                ReferenceStep(tool="get_user", args={"name": "ann"}, result={"card": "c1"}),
                ReferenceStep(tool="pay", args={"card": "c1"}),
            ),
            reference(ReferenceStep(tool="pay", args={"card": "c2"}), name="s"),
        ],
        {},
    )
    assert values.tools == {"get_user": 0b01, "pay": 0b11}
    assert values.by_place["pay", "card"] == {"c1": 0b01, "c2": 0b10}
    assert values.sources["pay", "card"] == {source_key("get_user", "card"): 0b01, GIVEN: 0b10}
    assert values.anywhere == {"ann": 0b01, "c1": 0b01, "c2": 0b10}


@settings(max_examples=30)
@given(strategies.references())
def test_leaving_a_reference_out_by_mask_is_compiling_without_it(
    references: tuple[Reference, ...],
) -> None:
    whole = compile_values(PARAMS, references, {})
    for index in range(len(references)):
        rest = [one for place, one in enumerate(references) if place != index]
        alone = compile_values(PARAMS, rest, {})
        others = ~(1 << index)
        assert {t for t, mask in whole.tools.items() if mask & others} == set(alone.tools)
        kept = {
            place: {value for value, mask in found.items() if mask & others}
            for place, found in whole.by_place.items()
        }
        assert {place: found for place, found in kept.items() if found} == {
            place: set(found) for place, found in alone.by_place.items()
        }
