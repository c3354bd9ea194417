"""Redaction by path: grammar, matching against an oracle, digests."""

from __future__ import annotations

import hashlib
import hmac
import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ontrack.operators.redaction import LEVELS_MAX, Redaction
from ontrack.topics.errors import InvalidSettings
from ontrack.topics.events import ErrorInfo, RunEnded, Step
from ontrack.topics.knowledge import Reference, ReferenceStep, Task


def digest(value: Any, key: bytes | None = None) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    found = hashlib.sha256(text) if key is None else hmac.new(key, text, hashlib.sha256)
    return f"redacted:{found.hexdigest()[:12]}"


def test_a_named_argument_becomes_a_digest_and_the_rest_stays() -> None:
    step = Step(run_id="r", tool="login", args={"user": "ann", "password": "hunter2"})
    redacted = Redaction(["args.password"]).event(step)
    assert redacted.args == {"user": "ann", "password": digest("hunter2")}
    assert redacted.model_copy(update={"args": step.args}) == step


VALUE = {
    "card": {"number": 41, "pins": [1, 2]},
    "list": [{"ssn": "a", "n": 1}, {"ssn": "b"}],
    "a.b": "dotted",
    "deep": {"x": {"y": {"ssn": "c"}}},
    "none": None,
}


@pytest.mark.parametrize(
    ("path", "places"),
    [
        ("args.card.number", [("card", "number")]),
        ("args.card", [("card",)]),
        ("args.card.*", [("card", "number"), ("card", "pins")]),
        ("args.card.pins[1]", [("card", "pins", 1)]),
        ("args.card.pins[*]", [("card", "pins", 0), ("card", "pins", 1)]),
        ("args.list.ssn", [("list", 0, "ssn"), ("list", 1, "ssn")]),
        ("args.list[0].ssn", [("list", 0, "ssn")]),
        ("args.**.ssn", [("list", 0, "ssn"), ("list", 1, "ssn"), ("deep", "x", "y", "ssn")]),
        ("args.deep.**.ssn", [("deep", "x", "y", "ssn")]),
        ('args."a.b"', [("a.b",)]),
        ("args", [("card",), ("list",), ("a.b",), ("deep",)]),
        ("args.none", []),
        ("args.missing.x", []),
        ("result.card", []),
    ],
)
def test_each_form_of_the_grammar_names_its_places(
    path: str, places: list[tuple[str | int, ...]]
) -> None:
    wanted = json.loads(json.dumps(VALUE))
    for place in places:
        node = wanted
        for part in place[:-1]:
            node = node[part]
        node[place[-1]] = digest(node[place[-1]])
    before = json.dumps(VALUE)
    assert Redaction([path]).value("args", VALUE) == wanted
    assert json.dumps(VALUE) == before


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("", "begins with none of args"),
        ("arg.password", "begins with none of args"),
        ("args.", r"'\.' cannot be read"),
        ("args..a", r"'\.\.a' cannot be read"),
        ("args[x]", r"'\[x\]' cannot be read"),
        ("args.a*", r"'\*' cannot be read"),
        ('args."a', "cannot be read"),
        (r'args."\x"', "no JSON string"),
        ("args.**", "nothing follows"),
        ("action.x", "action is a text"),
        ("argspassword", "begins with none of args"),
    ],
)
def test_a_path_that_is_none_is_refused_with_what_is_wrong(path: str, problem: str) -> None:
    with pytest.raises(InvalidSettings, match=problem):
        Redaction([path])


NAMES = ("a", "b", "0", "1", "*")
PARTS = st.sampled_from([".a", ".b", '."*"', ".*", ".**", "[0]", "[1]", "[*]"])
VALUES = st.recursive(
    st.none() | st.integers(-5, 5) | st.sampled_from(["x", "", "{", "redacted:0123456789ab"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=3)
    ),
    max_leaves=12,
)


@st.composite
def paths(draw: st.DrawFn) -> str:
    parts = draw(st.lists(PARTS, max_size=4))
    return "result" + "".join(parts) + (".a" if parts and parts[-1] == ".**" else "")


def matches(parts: list[str], place: list[str | int]) -> bool:
    """The grammar's words, one after the other, on the whole way to a place."""
    if not parts:
        return not place
    head, rest = parts[0], parts[1:]
    if head == ".**":
        return matches(rest, place) or (bool(place) and matches(parts, place[1:]))
    if not place:
        return False
    if head in (".*", "[*]"):
        return matches(rest, place[1:])
    name = "*" if head == '."*"' else head.strip(".[]")
    if str(place[0]) == name and matches(rest, place[1:]):
        return True
    return isinstance(place[0], int) and not name.isdigit() and matches(parts, place[1:])


def slowly(value: Any, rules: list[list[str]], place: list[str | int]) -> Any:
    if value is None:
        return None
    if any(matches(rule, place) for rule in rules):
        is_done = isinstance(value, str) and value == "redacted:0123456789ab"
        return value if is_done else digest(value)
    if isinstance(value, dict):
        return {name: slowly(child, rules, [*place, name]) for name, child in value.items()}
    if isinstance(value, list):
        return [slowly(child, rules, [*place, i]) for i, child in enumerate(value)]
    return value


def split(path: str) -> list[str]:
    parts, rest = [], path.removeprefix("result")
    while rest:
        known = (".**", ".*", ".a", ".b", '."*"', "[0]", "[1]", "[*]")
        part = next(part for part in known if rest.startswith(part))
        parts.append(part)
        rest = rest[len(part) :]
    return parts


@given(st.lists(paths(), max_size=3), VALUES)
@example(["result.**.a", "result.**.b"], {"b": [{"a": 1}, [{"a": {"b": 2}}]]})
@example(["result[0].a"], {"0": {"a": 1}})
def test_what_is_replaced_is_what_the_grammar_says(rules: list[str], value: Any) -> None:
    found = Redaction(rules).value("result", value)
    assert found == slowly(value, [split(rule) for rule in rules], [])


@given(st.lists(paths(), max_size=3), VALUES, st.none() | st.binary(min_size=16, max_size=16))
def test_twice_is_once_and_the_order_of_rules_is_nothing(
    rules: list[str], value: Any, key: bytes | None
) -> None:
    redaction = Redaction(rules, key)
    once = redaction.value("result", value)
    assert redaction.value("result", once) == once
    again = Redaction([*reversed(rules), *rules], key)
    assert again.value("result", value) == once
    assert again.fingerprint == redaction.fingerprint


def test_equal_values_have_equal_digests_wherever_they_stand() -> None:
    redaction = Redaction(["args.to", "result.**.id"])
    sent = redaction.value("args", {"to": {"b": 1, "a": 2}})["to"]
    assert sent == redaction.value("result", [{"id": {"a": 2, "b": 1}}])[0]["id"]


def test_a_key_makes_the_digest_an_hmac() -> None:
    key = b"0123456789abcdef"
    assert Redaction(["args.pin"], key).value("args", {"pin": 1234}) == {"pin": digest(1234, key)}


def test_text_that_is_json_is_looked_into_and_other_text_is_left() -> None:
    redaction = Redaction(["result.**.ssn"])
    text = json.dumps({"people": [{"ssn": "078-05-1120", "name": "Ann"}]})
    inside = json.loads(redaction.value("result", text))
    assert inside == {"people": [{"ssn": digest("078-05-1120"), "name": "Ann"}]}
    twice = redaction.value("result", json.dumps(text))
    assert json.loads(json.loads(twice)) == inside
    for other in ("{ not JSON", '{"name": "Ann"}', "ssn: 078-05-1120"):
        assert redaction.value("result", other) is other


def test_what_is_too_deep_to_look_through_is_replaced_whole() -> None:
    deep: Any = {"ssn": "078-05-1120"}
    for _ in range(LEVELS_MAX):
        deep = [deep]
    assert "078" not in json.dumps(Redaction(["result.**.ssn"]).value("result", deep))
    text = "[" * 300 + '{"ssn": "078-05-1120"}' + "]" * 300
    assert "078" not in Redaction(["result.**.ssn"]).value("result", text)


def test_errors_ids_and_texts_can_be_named() -> None:
    redaction = Redaction(["error", "consumed", "action", "reason"])
    step = Step(
        run_id="r",
        tool="t",
        action="pay 4111",
        error=ErrorInfo(type="Declined", message="card 4111"),
        consumed=("4111", "x"),
    )
    redacted = redaction.event(step)
    assert redacted.action == digest("pay 4111")
    assert redacted.error == ErrorInfo(type=digest("Declined"), message=digest("card 4111"))
    assert redacted.consumed == (digest("4111"), digest("x"))
    assert redaction.event(RunEnded(run_id="r", reason="4111")).reason == digest("4111")
    only = Redaction(["error.message"]).event(step).error
    assert only == ErrorInfo(type="Declined", message=digest("card 4111"))


def test_objects_of_a_program_are_seen_as_the_json_that_they_become() -> None:
    class Card:
        pass

    step = Step(run_id="r", tool="t", args={"cards": ({"pin": 7},), "n": 2**70})
    redacted = Redaction(["args.cards.pin"]).plainly(step)
    assert redacted.args == {"cards": [{"pin": digest(7)}], "n": 2**70}
    big = Redaction(["args.n"]).plainly(step)
    assert big.args["n"] == digest(str(2**70))  # as a worker reads it, who digests it too


def test_references_and_tasks_are_redacted_like_runs() -> None:
    step = ReferenceStep(tool="t", args={"pin": 7})
    redaction = Redaction(["args.pin"])
    reference = Reference(reference_id="a", task_id="x", steps=(step,))
    assert redaction.reference(reference).steps[0].args == {"pin": digest(7)}
    task = Task(id="x", references=((step,),))
    assert redaction.task(task).references[0][0].args == {"pin": digest(7)}


def test_without_rules_nothing_is_touched_and_nothing_is_named() -> None:
    step = Step(run_id="r", tool="t", args={"pin": 7})
    nothing = Redaction()
    assert not nothing
    assert nothing.event(step) is step
    assert nothing.plainly(step) is step
    assert nothing.fingerprint == ""


def test_rules_and_key_are_told_apart_by_the_fingerprint() -> None:
    made = [
        Redaction(["args.a"]),
        Redaction(["args.b"]),
        Redaction(['args."*"']),
        Redaction(["args.*"]),
        Redaction(["args.a", "args.b"]),
        Redaction(["args.a"], b"0123456789abcdef"),
        Redaction(["args.a"], b"0123456789abcdeg"),
    ]
    assert len({redaction.fingerprint for redaction in made}) == len(made)
