"""What a task allows: the stray write, conditions on arguments, wrong task files."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ontrack.operators.allowance import Allowance, Breach, check, compile_allowance
from ontrack.topics.errors import InvalidAllowance, InvalidInput
from ontrack.topics.events import Call
from ontrack.topics.knowledge import Effect, Task, ToolContract
from tests.strategies import TOOLS, arguments, contracts

CONTRACTS = {
    tool.name: tool
    for tool in (
        ToolContract(name="thread.read", effect="read"),
        ToolContract(name="calendar.book", effect="write", domain="calendar"),
        ToolContract(name="calendar.remove", effect="destructive", domain="calendar"),
        ToolContract(name="mail.answer", effect="write", domain="mail", external=True),
        ToolContract(name="drive.save", effect="write", domain="drive"),
    )
}


def nothing_seen(_value: object) -> bool:
    return False


def allowance(**fields: Any) -> Allowance:
    made = compile_allowance(Task(id="meeting", **fields), CONTRACTS)
    assert made is not None
    return made


def asked(
    allowed: Allowance,
    tool: str,
    seen: Callable[[object], bool] = nothing_seen,
    **args: Any,
) -> Breach | None:
    return check(allowed, CONTRACTS.get(tool), Call(tool=tool, args=args), seen)


def wrong(**fields: Any) -> InvalidAllowance:
    with pytest.raises(InvalidAllowance) as caught:
        compile_allowance(Task(id="meeting", **fields), CONTRACTS)
    assert isinstance(caught.value, InvalidInput)
    assert str(caught.value).startswith('task "meeting", tool "')
    return caught.value


def test_the_file_that_nobody_asked_for_is_a_breach() -> None:
    allowed = allowance(allowed=["calendar.book", "mail.answer"])
    path = ("thread.read", "calendar.book", "drive.save", "mail.answer")
    found = [breach for tool in path if (breach := asked(allowed, tool, title="secret"))]
    assert found == [
        Breach(
            "drive.save",
            Effect.WRITE,
            '"drive.save" writes (domain "drive"), and task "meeting" does not allow it',
        )
    ]


def test_writes_destruction_and_unknown_tools_are_told_apart() -> None:
    allowed = allowance(allowed=[])
    effects = {
        tool: breach.effect
        for tool in (*CONTRACTS, "new.tool")
        if (breach := asked(allowed, tool)) is not None
    }
    assert effects == {
        "calendar.book": Effect.WRITE,
        "calendar.remove": Effect.DESTRUCTIVE,
        "mail.answer": Effect.WRITE,
        "drive.save": Effect.WRITE,
        "new.tool": Effect.UNKNOWN,
    }


def test_an_unknown_tool_that_the_task_names_is_allowed() -> None:
    assert asked(allowance(allowed=["new.tool"]), "new.tool") is None


def test_a_task_that_declares_nothing_has_no_allowance() -> None:
    assert compile_allowance(Task(id="meeting"), CONTRACTS) is None


def test_the_owner_must_be_the_requester_or_a_participant() -> None:
    condition = "args.owner == task.requester || args.owner in task.participants"
    allowed = allowance(
        allowed=[{"tool": "calendar.book", "when": condition}],
        vars={"requester": "ana@example.com", "participants": ["bo@example.com"]},
    )
    assert asked(allowed, "calendar.book", owner="ana@example.com") is None
    assert asked(allowed, "calendar.book", owner="bo@example.com") is None
    breach = asked(allowed, "calendar.book", owner="boss@example.com")
    assert breach is not None
    assert condition in breach.reason
    assert "boss@example.com" not in breach.reason


def test_the_recipient_must_have_been_seen_before() -> None:
    allowed = allowance(allowed=["mail.answer"], predicates={"mail.answer": "seen(args.to)"})
    thread = {"ana@example.com"}
    assert asked(allowed, "mail.answer", thread.__contains__, to="ana@example.com") is None
    assert asked(allowed, "mail.answer", thread.__contains__, to="eve@example.com") is not None


def test_entries_of_one_tool_are_alternatives_and_predicates_hold_besides() -> None:
    allowed = allowance(
        allowed=[
            {"tool": "calendar.book", "when": "args.room == 'small'"},
            {"tool": "calendar.book", "when": "args.room == 'large'"},
        ],
        predicates={"calendar.book": "args.minutes <= 45"},
    )
    assert asked(allowed, "calendar.book", room="small", minutes=45) is None
    assert asked(allowed, "calendar.book", room="large", minutes=30) is None
    assert asked(allowed, "calendar.book", room="roof", minutes=30) is not None
    assert asked(allowed, "calendar.book", room="small", minutes=60) is not None


def test_an_entry_without_condition_wins_over_one_with() -> None:
    allowed = allowance(allowed=[{"tool": "drive.save", "when": "args.a == 1"}, "drive.save"])
    assert asked(allowed, "drive.save", a=2) is None


@pytest.mark.parametrize(
    ("args", "why"),
    [
        ({}, "the call has no argument `owner`"),
        ({"owner": {}}, "it reads a field that is not there"),
        ({"owner": {"rank": "secret"}}, "of another type"),
        ({"owner": {"rank": 2**70}}, "cannot be decided for these arguments"),
        ({"owner": {"rank": ["secret"] * 2000}}, "more than 1000 values or 32768 characters"),
        ({"owner": {"rank": "secret" * 9999}}, "more than 1000 values or 32768 characters"),
    ],
)
def test_a_condition_that_fails_does_not_allow_and_says_why(args: Any, why: str) -> None:
    allowed = allowance(allowed=[{"tool": "calendar.book", "when": "args.owner.rank > 3"}])
    breach = asked(allowed, "calendar.book", **args)
    assert breach is not None
    assert why in breach.reason
    assert "secret" not in breach.reason
    assert str(2**70) not in breach.reason


def test_arguments_that_a_condition_does_not_read_may_be_of_any_size() -> None:
    allowed = allowance(allowed=[{"tool": "drive.save", "when": "args.path.startsWith('/tmp/')"}])
    assert asked(allowed, "drive.save", path="/tmp/a", text="x" * 100_000) is None


# ------------------------------------------------------------------ wrong task files


@pytest.mark.parametrize("allowed", [None, [], ["calendar.book"]])
def test_a_predicate_on_a_tool_that_is_not_allowed_is_an_error(allowed: Any) -> None:
    error = wrong(allowed=allowed, predicates={"drive.save": "args.path != ''"})
    assert (error.task_id, error.tool) == ("meeting", "drive.save")
    assert error.expression == "args.path != ''"
    assert "the tool is not allowed" in str(error)
    assert "remove the predicate" in str(error)


@pytest.mark.parametrize(
    ("expression", "line", "column", "text"),
    [
        ("args.owner ==", 1, 14, "no valid CEL: unexpected end"),
        ("args.owner == 'ana", 1, 15, "no valid CEL"),
        ("", 1, 1, "no valid CEL: unexpected end"),
        ("argz.owner == 1", 1, 1, "unknown name `argz`"),
        ("args.owner == 1 &&\n  argz.x == 2", 2, 3, "unknown name `argz`"),
        ("args.x == 1 && now() > 2", 1, 16, "unknown function `now`"),
        ("args.owner == task.requestr", 1, 15, "task.requestr"),
        ("args.owner == task['requestr']", 1, 15, "declared are requester"),
        ("seen()", 1, 5, "`seen` with more or less than one value"),
        ("args.to.all(task, task != '')", 1, 13, "`task` as the name of an element"),
        ("args.to.map(t, t) == []", 1, None, "uses `map`"),
        ("args.x == 1 || 2", 1, None, "types that never fit"),
        ("args.x + 1", None, None, "type int, expected true or false"),
        ("'yes'", None, None, "type string, expected true or false"),
        ("(" * 40 + "true" + ")" * 40, None, None, "nested deeper than 32 levels"),
        ("args.x == 1 || " * 70 + "true", None, None, "the limit is 1000"),
        ("\ud800", None, None, "cannot be compiled"),
    ],
)
def test_a_condition_that_cannot_be_used_is_an_error_with_its_place(
    expression: str, line: int | None, column: int | None, text: str
) -> None:
    entry = {"tool": "calendar.book", "when": expression}
    error = wrong(allowed=[entry], vars={"requester": "ana"})
    assert text in str(error)
    assert error.expression == expression
    assert error.line == line
    assert column is None or error.column == column
    same = wrong(
        allowed=["calendar.book"],
        predicates={"calendar.book": expression},
        vars={"requester": "ana"},
    )
    assert str(same) == str(error)


def test_a_name_in_quotation_marks_is_no_variable() -> None:
    allowed = allowance(allowed=[{"tool": "drive.save", "when": "args.a == 'task.x' // task.y"}])
    assert asked(allowed, "drive.save", a="task.x") is None


def test_variables_that_are_too_large_are_an_error() -> None:
    error = wrong(
        allowed=[{"tool": "drive.save", "when": "args.a in task.names"}],
        vars={"names": list(range(2000))},
    )
    assert "shorten `vars`" in str(error)
    unread = {"names": list(range(2000)), "a": 1}
    allowance(allowed=[{"tool": "drive.save", "when": "args.a == task.a"}], vars=unread)


def test_an_argument_that_the_schema_rules_out_is_an_error() -> None:
    closed = {"type": "object", "properties": {"path": {}}, "additionalProperties": False}
    task = Task(id="meeting", allowed=[{"tool": "save", "when": "args.pth == 'a'"}])
    with pytest.raises(InvalidAllowance, match=r"args\.pth.*line 1, column 1"):
        compile_allowance(task, {"save": ToolContract(name="save", inputSchema=closed)})
    is_open = {"type": "object", "properties": {"path": {}}}
    assert compile_allowance(task, {"save": ToolContract(name="save", inputSchema=is_open)})


# ------------------------------------------------------------------ properties

CONDITIONS = ("true", "false", "args.path == 'a'", "seen(args.id)", "size(args.items) < 2")


@st.composite
def allowances(draw: st.DrawFn) -> Allowance:
    names = draw(st.lists(st.sampled_from(TOOLS), max_size=4))
    conditions = st.none() | st.sampled_from(CONDITIONS)
    entries = [{"tool": name, "when": draw(conditions)} for name in names]
    required = {name: draw(st.sampled_from(CONDITIONS)) for name in names[:1]}
    task = Task(id="t", allowed=entries, predicates=required)
    made = compile_allowance(task, {})
    assert made is not None
    return made


calls = st.builds(Call, tool=st.sampled_from(TOOLS), args=arguments())


@given(allowances(), contracts(), calls, st.booleans())
def test_a_call_that_only_reads_is_never_a_breach(
    allowed: Allowance, tools: tuple[ToolContract, ...], call: Call, was_seen: bool
) -> None:
    contract = {tool.name: tool for tool in tools}.get(call.tool)
    breach = check(allowed, contract, call, lambda _: was_seen)
    if contract is not None and contract.effect is Effect.READ:
        assert breach is None
    elif call.tool not in allowed.rules:
        assert breach is not None
        assert breach.effect == (Effect.UNKNOWN if contract is None else contract.effect)


@given(contracts(), calls)
def test_an_empty_allowance_reports_every_effectful_call(
    tools: tuple[ToolContract, ...], call: Call
) -> None:
    nothing = compile_allowance(Task(id="t", allowed=()), {})
    assert nothing is not None
    contract = {tool.name: tool for tool in tools}.get(call.tool)
    reads = contract is not None and contract.effect is Effect.READ
    assert (check(nothing, contract, call, lambda _: True) is None) == reads


@given(allowances(), calls, st.booleans())
def test_the_same_call_gets_the_same_answer(allowed: Allowance, call: Call, was_seen: bool) -> None:
    answers = {check(allowed, None, call, lambda _: was_seen) for _ in range(3)}
    assert len(answers) == 1
