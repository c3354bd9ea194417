"""The published schemas: up to date, true, and changed only in ways that break nobody."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from typing import Any

import jsonschema
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ontrack.topics.catalog import catalogue
from ontrack.topics.codecs import decode_event, decode_output, decode_proposal, encode
from ontrack.topics.compatibility import breaks
from ontrack.topics.errors import UnknownName
from ontrack.topics.events import Step
from ontrack.topics.schemas.records import (
    TOPICS,
    breaks_of,
    direction_of,
    record_schema,
    record_schema_text,
    released_text,
)
from ontrack.topics.verdicts import DeadLetter, DeadLetterError, Intervention, Reason, Verdict
from tests.strategies import steps
from tests.topics.schema_values import values_of

Schema = dict[str, Any]

VERDICT = Verdict(
    id="r:0",
    run_id="r",
    seq=0,
    verdict="LOOP",
    severity=2,
    authority="intervene",
    reasons=(Reason(signal="repeat", text="again"),),
    profile="p",
    settings="s",
    engine="e",
)
INTERVENTION = Intervention(
    id="r:0:halt",
    run_id="r",
    seq=0,
    intervention="halt",
    verdict="LOOP",
    severity=3,
    reason="stop",
    authority="intervene",
    profile="p",
    settings="s",
    engine="e",
)
LETTER = DeadLetter(
    id="t:0:1",
    topic="t",
    partition=0,
    offset=1,
    headers=(("a", None),),
    error=DeadLetterError(name="WrongShape", text="x"),
)


def validator(schema: Schema) -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(schema)


# ------------------------------------------------------------------ the files


@pytest.mark.parametrize("topic", TOPICS)
def test_the_released_schemas_are_up_to_date_and_break_nobody(topic: str) -> None:
    found = breaks_of(topic)
    assert not found, (
        f"{topic}: a program written for the released schema breaks. Take the change back, or add "
        "a field beside the old one:\n" + "\n".join(found)
    )
    assert released_text(topic) == record_schema_text(topic), (
        f"no reader breaks; run: ontrack topics schema {topic} --write topics/schemas/v1"
    )


def test_every_topic_with_a_model_has_a_schema() -> None:
    assert set(TOPICS) == {spec.name for spec in catalogue(prefix="") if spec.models}
    assert {direction_of(topic) for topic in TOPICS} == {"read", "write"}
    for ask in (record_schema, released_text, direction_of):
        with pytest.raises(UnknownName, match="ontrack.events"):
            ask("ontrack.events")


@pytest.mark.parametrize("topic", TOPICS)
def test_a_schema_is_valid_and_says_what_it_is(topic: str) -> None:
    made = record_schema(topic)
    jsonschema.Draft202012Validator.check_schema(made)
    assert made["$id"] == f"urn:ontrack:v1:{topic}.schema.json"
    text = record_schema_text(topic)
    assert "``" not in text
    assert ":mod:" not in text


@pytest.mark.parametrize(
    ("topic", "record"),
    [("verdicts", VERDICT), ("interventions", INTERVENTION), ("dead-letters", LETTER)],
)
def test_what_is_written_is_as_the_schema_says(topic: str, record: Any) -> None:
    written = json.loads(encode(record))
    validator(record_schema(topic)).validate(written)
    assert not validator(record_schema(topic)).is_valid({**written, "type": "lunch"})


@given(steps())
def test_every_step_that_we_write_is_as_the_schema_of_events_says(step: Step) -> None:
    validator(record_schema("events")).validate(json.loads(encode(step)))


@settings(max_examples=40)
@given(st.data())
@pytest.mark.parametrize(
    ("topic", "decode"),
    [
        ("events", decode_event),
        ("proposals", decode_proposal),
        ("verdicts", decode_output),
        ("interventions", decode_output),
        ("decisions", decode_output),
        ("dead-letters", decode_output),
    ],
)
def test_what_the_schema_describes_can_be_decoded(
    topic: str, decode: Callable[[bytes], Any], data: st.DataObject
) -> None:
    made = record_schema(topic)
    value = data.draw(values_of(made, made))
    validator(made).validate(value)
    decode(json.dumps(value).encode())


# ------------------------------------------------------------------ compatibility


def model(**fields: Any) -> Schema:
    required = [name for name, field in fields.items() if field.pop("must", False)]
    return {"type": "object", "properties": fields, "required": required}


A_TEXT = {"type": "string"}


@pytest.mark.parametrize(
    ("old", "new", "read", "write"),
    [
        # old, new, what breaks where we read, what breaks where we write
        (model(a=A_TEXT), model(a=A_TEXT, b=A_TEXT), None, None),
        (model(a=A_TEXT, b=A_TEXT), model(a=A_TEXT), "b: the field was removed", "was removed"),
        (model(a=A_TEXT), model(a={**A_TEXT, "must": True}), "made required", None),
        (model(a={**A_TEXT, "must": True}), model(a=A_TEXT), None, "no longer always there"),
        (model(a=A_TEXT), model(a=A_TEXT, b={**A_TEXT, "must": True}), "b: .*required", None),
        (model(a={"type": "number"}), model(a={"type": "integer"}), "type was number", None),
        (model(a={"type": "integer"}), model(a={"type": "number"}), None, "type was integer"),
        (model(a=A_TEXT), model(a={"type": "array"}), "string, is array", "string, is array"),
        (model(a=A_TEXT), model(a={"anyOf": [A_TEXT, {"type": "null"}]}), None, "is null"),
        (model(a={"type": ["string", "null"]}), model(a=A_TEXT), "type was null", None),
        (model(a={"enum": ["x", "y"]}), model(a={"enum": ["x"]}), "value 'y' was removed", None),
        (model(a={"const": "x"}), model(a={"enum": ["x", "y"]}), None, "value 'y' was added"),
        (model(a=A_TEXT), model(a={"enum": ["x"]}), "only 'x' can be read", None),
        (model(a=A_TEXT), model(a={**A_TEXT, "maxLength": 5}), "maxLength was free, is 5", None),
        (
            model(a={**A_TEXT, "maxLength": 9}),
            model(a={**A_TEXT, "maxLength": 5}),
            "maxLength was 9, is 5",
            None,
        ),
        (
            model(a={"type": "integer", "minimum": 0}),
            model(a={"type": "integer"}),
            None,
            "minimum was 0, is free",
        ),
        (model(a=A_TEXT), model(a={**A_TEXT, "pattern": "^x"}), "pattern was free", None),
        (model(a=A_TEXT), model(a={}), None, "type was string, is anything"),
        (
            model(a={"type": "array", "items": A_TEXT}),
            model(a={"type": "array", "items": {"type": "null"}}),
            r"\[\*\]: type was string",
            r"\[\*\]: type was string",
        ),
        (
            model(a={"type": "array", "prefixItems": [A_TEXT, A_TEXT], "maxItems": 2}),
            model(a={"type": "array", "prefixItems": [A_TEXT, {}], "maxItems": 2}),
            None,
            r"\[1\]: type was string",
        ),
        (
            {"type": "object", "additionalProperties": {"type": "integer"}},
            {"type": "object", "additionalProperties": {"type": "number"}},
            None,
            r"\$\.\*: type was integer",
        ),
        (
            model(a=A_TEXT),
            {**model(a=A_TEXT), "additionalProperties": False},
            "refused now",
            None,
        ),
        (model(a=A_TEXT), model(a={**A_TEXT, "contentEncoding": "x"}), "judged", "judged"),
    ],
)
def test_a_change_breaks_who_it_breaks(
    old: Schema, new: Schema, read: str | None, write: str | None
) -> None:
    for direction, expected in (("read", read), ("write", write)):
        found = breaks(old, new, direction)  # type: ignore[arg-type]
        if expected is None:
            assert found == []
        else:
            with pytest.raises(AssertionError, match=expected):
                raise AssertionError(found)
            assert len(found) == 1


def test_references_are_followed_also_into_themselves() -> None:
    def tree(leaf: Schema) -> Schema:
        below = {"anyOf": [{"$ref": "#/$defs/Tree"}, {"type": "null"}]}
        return {"$ref": "#/$defs/Tree", "$defs": {"Tree": model(below=below, leaf=leaf)}}

    assert breaks(tree(A_TEXT), tree(A_TEXT), "read") == []
    found = breaks(tree(A_TEXT), tree({"type": "null"}), "read")
    assert "$.leaf: type was string, is null" in found


@pytest.mark.parametrize(
    "node",
    [
        {"type": "object", "propertyNames": {"$ref": "#/$defs/Kind"}},
        {"allOf": [{"$ref": "#/$defs/Kind"}]},
        {"not": {"$ref": "#/$defs/Kind"}},
        {"anyOf": [A_TEXT], "oneOf": [{"$ref": "#/$defs/Kind"}]},
    ],
)
def test_a_change_behind_a_reference_is_seen_where_keywords_are_compared_as_they_stand(
    node: Schema,
) -> None:
    def kinds(*values: str) -> Schema:
        return {**model(a=dict(node)), "$defs": {"Kind": {"enum": list(values)}}}

    for direction in ("read", "write"):
        assert breaks(kinds("x"), kinds("x"), direction) == []  # type: ignore[arg-type]
        assert breaks(kinds("x"), kinds("y"), direction)  # type: ignore[arg-type]


def test_what_python_takes_for_equal_is_not_the_same_in_json() -> None:
    assert breaks(model(a={"const": 1}), model(a={"const": True}), "read")
    assert breaks(model(a={"enum": [0, 1]}), model(a={"enum": [False, 1]}), "write")


def test_a_change_of_one_kind_of_record_is_named_there() -> None:
    def either(*more: str) -> Schema:
        started = model(type={"const": "a"}, x=A_TEXT)
        ended = model(type={"const": "b"}, **{name: dict(A_TEXT) for name in more})
        return {"oneOf": [started, ended]}

    assert breaks(either("y", "z"), either("y"), "read") == ["$.z: the field was removed"]
    assert breaks({"oneOf": either()["oneOf"][:1]}, either(), "read") == []
    assert breaks(either(), {"oneOf": either()["oneOf"][:1]}, "read") != []


def test_another_direction_is_unknown() -> None:
    with pytest.raises(UnknownName, match="sideways"):
        breaks({}, {}, "sideways")  # type: ignore[arg-type]


# Each changes a schema in place; the first list breaks no reader of what others send, the second
# does. Where we are the writer it is the other way round.
Change = Callable[[Schema], bool]


def _widen_limit(node: Schema) -> bool:
    if node.get("type") != "string" or "enum" in node or "maxLength" not in node:
        return False
    node["maxLength"] += 7
    return True


def _drop_limit(node: Schema) -> bool:
    return node.get("type") in ("string", "integer") and bool(
        [
            node.pop(name)
            for name in ("maxLength", "minLength", "minimum", "maximum")
            if name in node
        ]
    )


def _allow_an_array(node: Schema) -> bool:
    if node.get("type") != "string" or "const" in node:
        return False
    kept = dict(node)
    node.clear()
    node["anyOf"] = [kept, {"type": "array"}]
    return True


def _add_enum_value(node: Schema) -> bool:
    if "enum" not in node:
        return False
    node["enum"] = [*node["enum"], "and-a-new-one"]
    return True


def _make_optional(node: Schema) -> bool:
    return bool(node.get("required")) and bool(node["required"].pop())


def _add_field(node: Schema) -> bool:
    if not node.get("properties"):
        return False
    node["properties"]["a_new_field"] = {"type": "integer"}
    return True


WIDER: tuple[Change, ...] = (
    _widen_limit,
    _drop_limit,
    _allow_an_array,
    _add_enum_value,
    _make_optional,
    _add_field,
)


def nodes(schema: Any) -> Iterator[Schema]:
    """Every schema inside, in a fixed order; constants of unions stay as they are."""
    if isinstance(schema, list):
        for child in schema:
            yield from nodes(child)
    elif isinstance(schema, dict):
        yield schema
        for name, child in list(schema.items()):
            if name in ("properties", "$defs"):
                for inner in list(child.values()):
                    yield from nodes(inner)
            elif name in ("anyOf", "oneOf", "items", "prefixItems", "additionalProperties"):
                yield from nodes(child)


def widened(data: st.DataObject, topic: str) -> tuple[Schema, Schema]:
    """A published schema, and one that accepts more."""
    old = record_schema(topic)
    new = copy.deepcopy(old)
    change = data.draw(st.sampled_from(WIDER))
    places = [place for place, node in enumerate(nodes(new)) if change(copy.deepcopy(node))]
    assume(places)
    assert change(list(nodes(new))[data.draw(st.sampled_from(places))])
    return old, new


def closed(schema: Any) -> Any:
    """The same, where what has no name is not sent."""
    if isinstance(schema, list):
        return [closed(child) for child in schema]
    if not isinstance(schema, dict):
        return schema
    found = {name: closed(child) for name, child in schema.items()}
    if isinstance(found.get("properties"), dict) and found.get("type") == "object":
        found.setdefault("additionalProperties", False)
    return found


@settings(max_examples=30)
@given(st.data(), st.sampled_from(TOPICS))
def test_what_was_sent_by_the_old_schema_is_valid_by_a_compatible_one(
    data: st.DataObject, topic: str
) -> None:
    old, new = widened(data, topic)
    assert breaks(old, new, "read") == []
    if "a_new_field" not in json.dumps(new):  # which, taken away again, is missed
        assert breaks(new, old, "write") == []
    sent = data.draw(values_of(old, old))
    validator(new).validate(sent)


@settings(max_examples=30)
@given(st.data(), st.sampled_from(TOPICS))
def test_the_reverse_of_a_widening_is_named_where_it_happened(
    data: st.DataObject, topic: str
) -> None:
    narrow, wide = widened(data, topic)
    found = breaks(wide, narrow, "read")
    assert found
    assert all(text.startswith("$.") for text in found)
    has_more_fields = "a_new_field" in json.dumps(wide)
    assert bool(breaks(narrow, wide, "write")) != has_more_fields


WITNESSES: tuple[tuple[Schema, Schema, Any], ...] = (
    (model(a=A_TEXT), model(a={**A_TEXT, "must": True}), {}),
    (model(a={"type": "number"}), model(a={"type": "integer"}), {"a": 0.5}),
    (model(a={"enum": ["x", "y"]}), model(a={"enum": ["x"]}), {"a": "y"}),
    (model(a=A_TEXT), model(a={**A_TEXT, "maxLength": 1}), {"a": "ab"}),
    (model(a=A_TEXT, b=A_TEXT), model(a=A_TEXT), {"b": "told"}),
    (model(a={"type": ["string", "null"]}), model(a=A_TEXT), {"a": None}),
    (model(a={}), model(a=A_TEXT), {"a": 1}),
    (model(a=A_TEXT), model(a={**A_TEXT, "pattern": "^x"}), {"a": "y"}),
)


@pytest.mark.parametrize(("old", "new", "witness"), WITNESSES)
def test_of_every_kind_of_break_there_is_a_value_that_breaks(
    old: Schema, new: Schema, witness: Any
) -> None:
    assert validator(closed(old)).is_valid(witness)
    assert not validator(closed(new)).is_valid(witness)
    assert breaks(old, new, "read")
