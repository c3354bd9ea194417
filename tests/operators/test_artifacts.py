from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ontrack.operators.artifacts import ArtifactParams, Artifacts, extract, parsed_result
from ontrack.topics.events import ErrorInfo, Proposal, Step
from ontrack.topics.knowledge import ToolContract
from tests import strategies

PARAMS = ArtifactParams()


def step(**fields: Any) -> Step:
    return Step(**{"run_id": "r", "tool": "t", **fields})


def of(contract: ToolContract | None = None, **fields: Any) -> Artifacts:
    return extract(PARAMS, step(**fields), contract)


def by_paths(consumes: str = "", produces: str = "", **fields: Any) -> Artifacts:
    contract = ToolContract(
        name="t",
        consumes=(consumes,) if consumes else (),
        produces=(produces,) if produces else (),
    )
    return of(contract, **fields)


def test_what_an_event_declares_is_taken_as_it_is() -> None:
    found = of(args={"path": "src/x.py"}, result="src/y.py", consumed=("in",), produced=("out",))
    assert found == Artifacts(consumed=("in",), produced=("out",))


def test_without_metadata_ids_are_read_from_arguments_and_result() -> None:
    found = of(args={"path": "src/config.py"}, result="wrote src/config.py.bak for ann@example.com")
    assert found.consumed == found.mentioned == ("src/config.py",)
    assert found.produced == ("src/config.py.bak", "ann@example.com")
    assert found.required == ()


def test_a_harness_that_logs_one_side_leaves_the_other_to_the_rules() -> None:
    only_in = of(args={"q": "docs/z.md"}, consumed=(), result="src/config.py:12: timeout=5")
    assert only_in == Artifacts((), ("src/config.py",), ())
    only_out = of(args={"path": "src/config.py"}, produced=("report-7",))
    assert only_out == Artifacts(("src/config.py",), ("report-7",), ("src/config.py",))


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("see src/config.py, then docs/a.md.", ("src/config.py", "docs/a.md")),
        ("src/config.py:12:timeout=5\nsrc/b.py:3: x=1", ("src/config.py", "src/b.py")),
        ("mail ann@example.com about order:12345", ("ann@example.com", "order:12345")),
        ("ticket #421 is T_9", ("#421", "T_9")),
        ("at http://host:8080/x", ("http://host:8080/x",)),
        ("The build failed because nothing was found in there.", ()),
        ("Wait, what? No (really): never!", ()),
        ("a 12 b", ()),
    ],
)
def test_built_in_rules_find_paths_ids_and_addresses_but_not_prose(
    text: str, ids: tuple[str, ...]
) -> None:
    assert of(result=text).produced == ids


def test_numbers_count_as_ids_from_four_digits_on() -> None:
    assert of(result={"id": 12345, "page": 2, "ok": True, "none": None}).produced == ("12345",)


@pytest.mark.parametrize(
    ("path", "args", "ids"),
    [
        ("args.path", {"path": "a.py"}, ("a.py",)),
        ("arguments.path", {"path": "a.py"}, ("a.py",)),
        ("path", {"path": "a.py"}, ("a.py",)),
        ("$.path", {"path": "a.py"}, ("a.py",)),
        ("order.id", {"order": {"id": 7}}, ("7",)),
        ("items[*].id", {"items": [{"id": "a"}, {"id": "b"}]}, ("a", "b")),
        ("items.id", {"items": [{"id": "a"}, {"id": "b"}]}, ("a", "b")),
        ("items[1]", {"items": ["a", "b"]}, ("b",)),
        ("items", {"items": ["a", "b", "a"]}, ("a", "b")),
        ("by.*.id", {"by": {"x": {"id": "a"}}}, ("a",)),
        ("=tests_passed", {}, ("tests_passed",)),
        ("missing.path", {"path": "a.py"}, ()),
        ("flag", {"flag": True}, ()),
        ("empty", {"empty": ""}, ()),
    ],
)
def test_a_contract_path_points_into_the_arguments(
    path: str, args: dict[str, Any], ids: tuple[str, ...]
) -> None:
    found = by_paths(consumes=path, args=args)
    assert found.consumed == found.required == ids
    assert found.produced == found.mentioned == ()


@pytest.mark.parametrize("path", ["result.id", "id", "$.id", "$.result.id"])
def test_a_contract_path_points_into_the_result(path: str) -> None:
    assert by_paths(produces=path, result={"id": "o-1"}).produced == ("o-1",)


def test_a_path_may_name_the_other_side() -> None:
    assert by_paths(produces="args.path", args={"path": "a.py"}).produced == ("a.py",)


def test_a_result_that_is_json_in_a_string_is_read_as_data() -> None:
    assert by_paths(produces="items[*].id", result='{"items": [{"id": 5}]}').produced == ("5",)
    assert parsed_result('["a"]') == ["a"]
    assert parsed_result("{not json") == "{not json"


def test_a_contract_adds_to_what_is_declared() -> None:
    contract = ToolContract(name="t", consumes=("args.path",))
    found = of(contract, args={"path": "a.py"}, consumed=("declared",))
    assert found.consumed == ("declared", "a.py")
    assert found.required == ("a.py",)


def test_a_contract_that_only_states_the_effect_leaves_the_rules_on() -> None:
    assert of(ToolContract(name="t", effect="read"), result="a.py").produced == ("a.py",)


@pytest.mark.parametrize("produced", [None, ("out",)])
@pytest.mark.parametrize("contract", [None, ToolContract(name="t", produces=("=done",))])
def test_a_failed_step_produces_nothing(
    produced: tuple[str, ...] | None, contract: ToolContract | None
) -> None:
    found = of(contract, result="src/a.py", error=ErrorInfo(message="boom"), produced=produced)
    assert found.produced == ()


def test_a_proposal_has_no_result_to_read() -> None:
    proposal = Proposal(run_id="r", tool="t", args={"path": "a.py"})
    assert extract(PARAMS, proposal, None) == Artifacts(("a.py",), (), ("a.py",))


def test_a_long_string_is_text_and_not_an_id() -> None:
    assert of(args={"body": "a/" * 200}).consumed != ("a/" * 200,)
    assert all(len(found) <= 200 for found in of(args={"body": "a/" * 200}).consumed)


@given(strategies.steps(), strategies.contracts(), st.integers(1, 4), st.integers(1, 50))
def test_ids_are_unique_and_within_the_limits(
    event: Step, contracts: tuple[ToolContract, ...], ids_max: int, characters_max: int
) -> None:
    params = ArtifactParams(ids_per_step_max=ids_max, characters_max=characters_max)
    found = extract(params, event, {c.name: c for c in contracts}.get(event.tool))
    for ids in (found.consumed, found.produced, found.mentioned, found.required):
        assert len(ids) <= ids_max
        assert len(set(ids)) == len(ids)
        assert all(ids)


@given(strategies.steps(grade=strategies.Grade.NONE))
def test_key_order_of_arguments_does_not_matter_to_the_set_of_ids(event: Step) -> None:
    turned = event.model_copy(update={"args": dict(reversed(event.args.items()))})
    assert set(extract(PARAMS, event, None).consumed) == set(extract(PARAMS, turned, None).consumed)


def test_a_document_that_a_contract_points_at_is_an_id_by_its_digest() -> None:
    """The gate may require it, and a ledger of thousands must not hold thousands of documents."""
    contract = ToolContract(name="t", consumes=("args.body",), produces=("result",))
    text = "a long letter " * 1000
    found = of(contract, args={"body": text}, result=text)
    assert found.consumed == found.produced == found.required
    assert len(found.consumed[0]) <= PARAMS.id_characters_max
    assert of(contract, args={"body": text + "."}).consumed != found.consumed
    assert len(of(consumed=("x" * 1000,), produced=()).consumed[0]) <= PARAMS.id_characters_max
