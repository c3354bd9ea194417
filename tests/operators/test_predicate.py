"""Conditions in CEL: what they see, what they cannot do, and that they always end."""

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ontrack.operators.predicate import Answer, PredicateError, compile_predicate, evaluate
from ontrack.operators.predicate_names import fields_read, lexemes
from tests.strategies import arguments, json_values


def holds(expression: str, args: dict[str, Any], seen: Any = lambda _: False) -> Answer:
    return evaluate(compile_predicate(expression), args, {"limit": 3}, seen)


@pytest.mark.parametrize(
    ("expression", "args"),
    [
        ("args.n < task.limit", {"n": 2}),
        ("args.n == 2.0", {"n": 2}),
        ("args['a-b'] == null", {"a-b": None}),
        ("!has(args.force) || !args.force", {}),
        ("args.to.all(t, t.endsWith('@example.com'))", {"to": ["a@example.com"]}),
        ("args.path.matches('^/tmp/[a-z]+$')", {"path": "/tmp/abc"}),
        ("args.order.items.exists(i, i.id == 7)", {"order": {"items": [{"id": 7}]}}),
        ("args.name == 'é' + '\\u00fc'", {"name": "éü"}),
        ("args.missing == 1 || true", {}),
        ("args.flag", {"flag": True}),
    ],
)
def test_what_conditions_can_say(expression: str, args: dict[str, Any]) -> None:
    assert holds(expression, args) == Answer(True)


def test_what_is_no_truth_value_does_not_allow() -> None:
    answer = holds("args.flag", {"flag": "true"})
    assert not answer.holds
    assert answer.why == "it gives a string, expected true or false"


@given(json_values())
def test_seen_is_asked_with_the_value_of_the_argument(value: Any) -> None:
    assume("\\u0000" not in json.dumps(value))
    asked: list[object] = []
    answer = holds("seen(args.x)", {"x": value}, lambda found: not asked.append(found))
    assert answer == Answer(True)
    assert asked == [value]


@pytest.mark.parametrize(
    ("expression", "args"),
    [
        ("args.to == 'ana@x.com'", {"to": "ana@x.com\0,evil@y.com"}),
        ("args.to.endsWith('@x.com')", {"to": "ana@x.com\0,evil@y.com"}),
        ("args.to.matches('^[a-z]+@x[.]com$')", {"to": "ana@x.com\0,evil@y.com"}),
        ("seen(args.to)", {"to": "ana@x.com\0,evil@y.com"}),
        ("args.to.all(t, t.endsWith('@x.com'))", {"to": ["ana@x.com\0,evil@y.com"]}),
        ("args.page.owner == 'ana'", {"page": {"owner\0": "ana"}}),
    ],
)
def test_what_stands_behind_a_nul_is_not_overlooked(expression: str, args: dict[str, Any]) -> None:
    answer = holds(expression, args, lambda value: value == "ana@x.com")
    assert not answer.holds
    assert "NUL" in answer.why


def test_a_condition_does_not_end_at_a_nul() -> None:
    with pytest.raises(PredicateError, match="NUL"):
        compile_predicate("args.n == 1\0 && args.m == 2")


def test_an_exception_of_seen_is_passed_on() -> None:
    def broken(_value: object) -> bool:
        raise KeyError("broken")

    with pytest.raises(KeyError, match="broken"):
        holds("seen(args.x) || true", {"x": 1}, broken)


def test_threads_do_not_see_each_others_values() -> None:
    condition = compile_predicate("args.xs.all(x, seen(x))")

    def ask(number: int) -> bool:
        own = list(range(number, number + 50))
        return all(evaluate(condition, {"xs": own}, {}, own.__contains__).holds for _ in range(20))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(ask, range(0, 1000, 50)))


@pytest.mark.parametrize(
    "expression",
    [
        "args.xs.all(a, args.xs.all(b, args.xs.all(c, a + b + c >= 0)))",
        "args.xs.exists(a, args.xs.exists(b, args.text.contains('aaaaaaaaaaaaab')))",
        "args.xs.exists(a, args.xs.exists(b, args.text.matches('(a+a+)+b')))",
    ],
)
def test_a_condition_that_multiplies_its_work_is_stopped(expression: str) -> None:
    answer = holds(expression, {"xs": list(range(120)), "text": "a" * 1500})
    assert not answer.holds
    assert "too many steps" in answer.why


@pytest.mark.parametrize(
    "expression",
    [
        "args.to.matches(args.form)",
        "args.forms.all(f, args.to.matches(f))",
        "matches(args.to, args.form)",
        "args.to.matches(task.form + args.form)",
        "args.to.matches(task.forms[args.n])",
        "args.to.matches(task.form.size() > 0 ? args.form : 'x')",
    ],
)
def test_a_pattern_that_an_agent_could_write_is_refused(expression: str) -> None:
    with pytest.raises(PredicateError, match="pattern of `matches`"):
        compile_predicate(expression)


@pytest.mark.parametrize(
    "expression",
    ["args.to.matches(r'^a[,)]b$')", "matches(args.to, task.forms['a'])", "args.a == 'matches(x)'"],
)
def test_a_pattern_that_the_author_wrote_is_none_of_these(expression: str) -> None:
    compile_predicate(expression)


@pytest.mark.parametrize(
    ("expression", "characters"),
    [
        ("args.text != ''", 32_000),
        ("args.text != '' && args.to.all(t, t != '')", 8_000),
        ("args.text != '' && args.to.all(t, args.to.exists(u, u == t))", 2_000),
    ],
)
def test_the_more_a_condition_repeats_the_less_it_may_look_at(
    expression: str, characters: int
) -> None:
    assert holds(expression, {"text": "x" * characters, "to": ["a"]}).holds
    answer = holds(expression, {"text": "x" * (characters + 1000), "to": ["a"]})
    assert not answer.holds
    assert "too much to check" in answer.why


@pytest.mark.parametrize(
    "expression", ["__import__('os')", "open('x')", "args.__class__()", "args.x = 1", "[1] + [2]"]
)
def test_nothing_of_python_can_be_reached(expression: str) -> None:
    with pytest.raises(PredicateError):
        compile_predicate(expression)


@given(arguments(), st.sampled_from(("args.path == 'a'", "args.id > 3", "seen(args.options)")))
def test_every_call_gets_an_answer_without_its_values(args: dict[str, Any], text: str) -> None:
    args["query"] = "very-secret"
    answer = holds(text, args)
    assert answer.holds or answer.why
    assert "very-secret" not in answer.why


# ------------------------------------------------------------------ names that are read


@pytest.mark.parametrize(
    ("expression", "names"),
    [
        ("args.a == args['b'] && args [ \"c\" ] == args . d", {"a", "b", "c", "d"}),
        ("'args.a' == \"args.b\" // args.c", set()),
        ("r'\\' == args.a", {"a"}),
        ("'''args.b ' args.c''' == args.a", {"a"}),
        ("'\\'args.b' == args.a", {"a"}),
        ("task.args.a == 1", set()),
        ("x[0].args.a == 1", set()),
        ("size(args) == 1", None),
        ("args.size() == 1", None),
        ("args[task.name] == 1", None),
        ("args['\\x61'] == 1", None),
        ("'a' in args", None),
        ("1 in .args.a", None),
        ("args.`a-b` == 1", None),
    ],
)
def test_names_that_an_expression_reads(expression: str, names: set[str] | None) -> None:
    found = fields_read("args", lexemes(expression))
    assert (None if found is None else set(found)) == names


TEMPLATES = (
    "args.{0} == args.{1}",
    "has(args.{0}) && args['{1}'] != null",
    "'{0}' in args || args.{1} == 1",
    "args.size() > 1 || args.{0} == 1",
    "[args].all(a, a.{0} == 1)",
)


@given(st.sampled_from(TEMPLATES), arguments())
def test_leaving_out_what_is_not_read_changes_no_answer(
    template: str, args: dict[str, Any]
) -> None:
    condition = compile_predicate(template.format("path", "id"))
    everything = type(condition)(
        condition.expression, condition.program, None, None, condition.bounds
    )
    whole = evaluate(everything, args, {}, lambda _: False)
    assert evaluate(condition, args, {}, lambda _: False).holds == whole.holds
