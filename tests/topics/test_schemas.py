"""The schemas of tools files and tasks files: up to date, valid, of one mind with the loader."""

import json
from importlib import resources
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ontrack.topics.codecs import decode_tasks, decode_tools, encode
from ontrack.topics.errors import UnknownName, WrongShape
from ontrack.topics.schemas import KINDS, file_schema, schema_text
from tests.strategies import contracts

TOOLS = {
    "tools": [
        {"name": "read", "annotations": {"readOnlyHint": True}, "title": "passed over"},
        {"name": "write", "effect": "write", "domain": "mail", "external": True, "poll": False},
        {
            "name": "find",
            "inputSchema": {"type": "object"},
            "identity": ["id"],
            "annotations": None,
        },
    ]
}
TASKS = {
    "$schema": "tasks.schema.json",
    "tasks": [
        {"id": "plain"},
        {
            "id": "meeting",
            "references": [["read", {"tool": "write", "args": {"to": "a"}}]],
            "step_budget": 8,
            "allowed": ["write", {"tool": "find", "when": "args.id == task.id"}],
            "predicates": {"write": "seen(args.to)"},
            "vars": {"id": 7, "people": ["a", "b"]},
            "goals": ["write"],
            "cost_usd_max": 0.5,
            "latency_s_max": 60,
        },
        {"id": "other", "step_budget": {"rule": "median_plus_sd", "value": 9.5}, "allowed": None},
    ],
}


def is_valid(kind: str, data: Any) -> bool:
    return bool(jsonschema.Draft202012Validator(file_schema(kind)).is_valid(data))


@pytest.mark.parametrize("kind", KINDS)
def test_the_files_beside_the_code_are_up_to_date(kind: str) -> None:
    packaged = resources.files("ontrack.topics.schemas") / f"{kind}.schema.json"
    assert packaged.read_text(encoding="utf-8") == schema_text(kind), (
        f"write it anew: ontrack contracts schema {kind} --out topics/schemas/{kind}.schema.json"
    )


@pytest.mark.parametrize("kind", KINDS)
def test_a_schema_is_valid_and_says_what_it_is(kind: str) -> None:
    made = file_schema(kind)
    jsonschema.Draft202012Validator.check_schema(made)
    assert made["$schema"].endswith("2020-12/schema")
    assert made["$id"] == f"urn:ontrack:{kind}.schema.json"
    assert made["title"] == f"OnTrack {kind} file"
    assert made["description"]


@pytest.mark.parametrize(("kind", "model"), [("tools", "ToolContract"), ("tasks", "Task")])
def test_every_field_has_a_description_without_markup(kind: str, model: str) -> None:
    fields = file_schema(kind)["$defs"][model]["properties"]
    texts = {name: field.get("description") for name, field in fields.items() if name != "type"}
    assert all(texts.values()), texts
    assert "``" not in schema_text(kind)


def test_what_the_schema_accepts_is_loaded() -> None:
    assert is_valid("tools", TOOLS)
    assert len(decode_tools(TOOLS)) == 3
    assert is_valid("tasks", TASKS)
    assert len(decode_tasks(TASKS)) == 3


@given(contracts())
def test_what_we_write_ourselves_is_valid(tools: tuple[Any, ...]) -> None:
    assert is_valid("tools", {"tools": [json.loads(encode(tool)) for tool in tools]})


@pytest.mark.parametrize(
    ("kind", "item"),
    [
        ("tools", {"effect": "write"}),
        ("tools", {"name": ""}),
        ("tools", {"name": "a", "effect": "writes"}),
        ("tools", {"name": "a", "identity": "id"}),
        ("tasks", {"allowed": []}),
        ("tasks", {"id": "a", "allowed": "write"}),
        ("tasks", {"id": "a", "allowed": [{"when": "true"}]}),
        ("tasks", {"id": "a", "predicates": ["true"]}),
        ("tasks", {"id": "a", "vars": ["a"]}),
        ("tasks", {"id": "a", "step_budget": -1}),
        ("tasks", {"id": "a", "step_budget": {"rule": "guess", "value": 1}}),
        ("tasks", {"id": "a", "references": [[{"args": {}}]]}),
    ],
)
def test_what_the_loader_refuses_the_schema_refuses(kind: str, item: dict[str, Any]) -> None:
    assert not is_valid(kind, {kind: [item]})
    with pytest.raises(WrongShape):
        (decode_tools if kind == "tools" else decode_tasks)({kind: [item]})


@pytest.mark.parametrize("field", ["predicate", "allow", "stepBudget"])
def test_a_misspelt_field_of_a_task_is_marked(field: str) -> None:
    assert not is_valid("tasks", {"tasks": [{"id": "a", field: {}}]})


@given(st.text(max_size=20).filter(lambda name: name not in KINDS))
def test_other_schemas_are_unknown(name: str) -> None:
    with pytest.raises(UnknownName):
        file_schema(name)
