"""The library: a run meets what was published up to its first event, whatever was asked before."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ontrack.operators.knowledge import Knowledge
from ontrack.operators.profiles import make_profile, profile_names
from ontrack.pipeline.encoding.encoders import CachedEncoder, HashingEncoder
from ontrack.pipeline.folding.library import ALWAYS, Library
from ontrack.topics import codecs
from ontrack.topics.errors import InvalidInput
from ontrack.topics.knowledge import Provenance, Reference, ReferenceStep, Task, ToolContract

ENCODER = CachedEncoder(HashingEncoder())


def make(compiled_max: int = 8) -> Library:
    return Library(make_profile("paper", ENCODER.name), ENCODER, compiled_max)


def reference(
    name: str, *tools: str, run_id: str | None = None, task: str = "t", trust: str = "mined"
) -> Reference:
    return Reference(
        reference_id=name,
        task_id=task,
        run_id=run_id,
        provenance=Provenance(trust),
        steps=tuple(ReferenceStep(tool=tool) for tool in tools or ("look",)),
    )


def names(found: Knowledge) -> list[str]:
    return [] if found.references is None else [r.reference_id for r in found.references.references]


def tools(found: Knowledge) -> list[str]:
    """Tools of the nodes as alignment reads them, so of what was really compiled."""
    return [] if found.references is None else [tool for tool in found.references.tools if tool]


@pytest.mark.parametrize(
    ("time_ms", "met"), [(999, []), (1000, ["r"]), (1001, ["r"]), (None, ["r"])]
)
def test_a_reference_counts_from_the_millisecond_of_its_publication(
    time_ms: int | None, met: list[str]
) -> None:
    library = make()
    library.add_reference("r", reference("r"), 1000)
    assert names(library.knowledge("t", "a", time_ms)) == met


def test_what_is_filled_in_was_known_always() -> None:
    library = make()
    library.fill([reference("r")], [ToolContract(name="look")], [Task(id="t")])
    found = library.knowledge("t", "a", 0)
    assert names(found) == ["r"]
    assert list(found.contracts) == ["look"]
    assert library.counts() == {"references": 1, "contracts": 1, "tasks": 1}


def test_a_withdrawn_reference_is_met_by_runs_that_began_before_alone() -> None:
    library = make()
    library.add_reference("r", reference("r"), 1000)
    library.add_reference("r", None, 2000)
    assert names(library.knowledge("t", "a", 1999)) == ["r"]
    assert names(library.knowledge("t", "a", 2000)) == []
    assert library.counts()["references"] == 0


@pytest.mark.parametrize("order", [(1500, 2500), (2500, 1500), (1500, 2500, 1500)])
def test_a_replaced_reference_is_met_in_its_version_in_whatever_order_one_asks(
    order: Iterable[int],
) -> None:
    library = make()
    library.add_reference("r", reference("r", "old"), 1000)
    library.add_reference("r", reference("r", "new"), 2000)
    for time_ms in order:
        expected = ["old"] if time_ms < 2000 else ["new"]
        assert tools(library.knowledge("t", "a", time_ms)) == expected


def test_a_reference_replaced_after_it_was_compiled_is_compiled_again() -> None:
    library = make()
    library.fill([reference("r", "old")])
    assert tools(library.knowledge("t", "a", None)) == ["old"]
    library.fill([reference("r", "new")])
    assert tools(library.knowledge("t", "a", None)) == ["new"]


def test_a_task_replaced_after_it_was_compiled_is_compiled_again() -> None:
    library = make()
    for tool in ("old", "new"):
        library.add_task("t", Task(id="t", references=((ReferenceStep(tool=tool),),)), ALWAYS)
        assert tools(library.knowledge("t", "a", None)) == [tool]


def test_a_contract_that_comes_later_changes_the_graph_of_references() -> None:
    """Contracts say where artifacts stand, so they decide which steps depend on which."""
    library = make()
    steps = (
        ReferenceStep(tool="make", args={"id": "order-1"}),
        ReferenceStep(tool="use", args={"id": "order-1"}),
    )
    library.add_reference("r", Reference(reference_id="r", task_id="t", steps=steps), 0)

    def depends(time_ms: int) -> bool:
        compiled = library.knowledge("t", "a", time_ms).references
        assert compiled is not None
        return bool(compiled.arrays.parents.any())

    before = depends(10)
    library.add_contract("make", ToolContract(name="make", produces=("args.id",)), 1000)
    library.add_contract("use", ToolContract(name="use", consumes=("args.id",)), 1000)
    assert depends(1000)
    assert depends(10) == before


def test_a_run_is_never_its_own_reference() -> None:
    library = make()
    library.fill([reference("of-a", run_id="a"), reference("of-b", run_id="b")])
    assert names(library.knowledge("t", "a", None)) == ["of-b"]
    assert names(library.knowledge("t", "b", None)) == ["of-a"]
    assert names(library.knowledge("t", "c", None)) == ["of-a", "of-b"]


def test_a_run_alone_with_its_own_reference_has_none() -> None:
    library = make()
    library.fill([reference("of-a", run_id="a")])
    assert library.knowledge("t", "a", None).references is None


def test_the_most_trusted_references_come_first_and_no_more_than_the_profile_says() -> None:
    library = make()
    trusts = ["generated", "axiomatic", "mined", "gold"]
    library.fill(reference(f"{trust}-{n}", trust=trust) for trust in trusts for n in range(4))
    found = names(library.knowledge("t", "a", None))
    assert [name.split("-")[0] for name in found] == ["gold"] * 4 + ["mined"] * 4 + [
        "axiomatic"
    ] * 2


def test_references_written_in_a_task_are_gold() -> None:
    library = make()
    written = Task(id="t", references=((ReferenceStep(tool="by-hand"),),))
    library.fill([reference("a-mined")], tasks=[written])
    found = library.knowledge("t", "a", None).references
    assert found is not None
    assert [(r.reference_id, r.provenance) for r in found.references] == [
        ("t/0", "gold"),
        ("a-mined", "mined"),
    ]


def words(*chosen: str) -> st.SearchStrategy[str]:
    return st.sampled_from(chosen) | st.text(min_size=1, max_size=4)


PLACES = words("id", "args.id", "a[*].b", "=done", "", "[", "a..b", "*", "**", ".", "=", "[-1]")
CONTRACTS = st.fixed_dictionaries(
    {"name": words("look", "send")},
    optional={
        "effect": words("read", "write"),
        "identity": st.lists(PLACES, max_size=2),
        "produces": st.lists(PLACES, max_size=2),
        "consumes": st.lists(PLACES, max_size=2),
    },
)
STEPS = words("look", "send") | st.fixed_dictionaries(
    {"tool": words("look", "send")},
    optional={"args": st.dictionaries(words("id", "a"), words("x") | st.integers() | st.none())},
)
CONDITIONS = words("args.id == 'x'", "seen(args.a)", "task.who == 1", "args.", "1 + ")
TASKS = st.fixed_dictionaries(
    {"id": st.builds(str.__mul__, words("t"), st.sampled_from((1, 170, 510, 512)))},
    optional={
        "references": st.lists(
            st.lists(STEPS, min_size=1, max_size=3)
            | st.builds(
                list.__mul__, st.lists(STEPS, min_size=1, max_size=1), st.sampled_from((512, 513))
            ),
            max_size=3,
        ),
        "allowed": st.lists(
            words("look") | st.fixed_dictionaries({"tool": words("look"), "when": CONDITIONS}),
            max_size=2,
        ),
        "predicates": st.dictionaries(words("look"), CONDITIONS, max_size=1),
        "step_budget": st.integers(-1, 9),
        "goals": st.lists(words("look"), max_size=2),
    },
)


@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from(profile_names()), st.lists(TASKS, max_size=2), st.lists(CONTRACTS, max_size=2)
)
def test_whatever_tasks_and_contracts_are_taken_every_run_finds_its_knowledge(
    profile: str, tasks: list[dict[str, Any]], contracts: list[dict[str, Any]]
) -> None:
    library, taken = Library(make_profile(profile, ENCODER.name), ENCODER), []
    for task in tasks:
        try:
            for item in codecs.decode_tasks(task):
                library.add_task(item.id, item, ALWAYS)
                taken.append(item)
        except InvalidInput:
            continue  # refused where it was published, and nothing else is
    for contract in contracts:
        try:
            for tool in codecs.decode_tools(contract):
                library.add_contract(tool.name, tool, ALWAYS)
        except InvalidInput:
            continue
    last = {item.id: item for item in taken}
    for item in last.values():
        found = library.knowledge(item.id, "a", None)
        assert {name.rpartition("/")[0] for name in names(found)} <= {item.id}
        assert bool(names(found)) == any(
            len(steps) <= library._profile.reference_steps_max for steps in item.references
        )
    assert names(library.knowledge("unknown", "a", None)) == []


@pytest.mark.parametrize("task_id", [None, "", "other"])
def test_without_a_known_task_there_are_contracts_and_no_references(task_id: str | None) -> None:
    library = make()
    library.fill([reference("r")], [ToolContract(name="look")])
    found = library.knowledge(task_id, "a", None)
    assert found.references is None
    assert list(found.contracts) == ["look"]


def test_compiled_references_are_shared_and_bounded() -> None:
    library = make(compiled_max=2)
    library.fill(reference(task, task=task) for task in ("t0", "t1", "t2"))
    first = library.knowledge("t0", "a", None).references
    assert library.knowledge("t0", "b", None).references is first
    library.knowledge("t1", "a", None)
    assert library.knowledge("t0", "a", None).references is first  # used again, so kept
    library.knowledge("t2", "a", None)
    assert library.knowledge("t0", "a", None).references is first
    assert len(library._sets) == 2
    for time_ms in range(200):
        library.add_contract(f"tool-{time_ms}", ToolContract(name=f"tool-{time_ms}"), time_ms)
    for time_ms in range(200):
        library.knowledge("t0", "a", time_ms)
    assert len(library._sets) <= 2
    assert len(library._views) <= 64


def oracle(history: list[tuple[str, str, str | None, int]], task: str, time_ms: int) -> set[str]:
    """Tools of the references of a task at a time, by going through all that was published."""
    by_key: dict[str, tuple[str, str | None]] = {}
    for key, of_task, tool, published in sorted(history, key=lambda item: item[3]):
        if published <= time_ms:
            by_key[key] = (of_task, tool)
    return {tool for of_task, tool in by_key.values() if of_task == task and tool is not None}


publications = st.tuples(
    st.sampled_from(("r1", "r2", "r3")),
    st.sampled_from(("t", "u")),
    st.none() | st.sampled_from(("look", "edit", "send")),
    st.integers(0, 5),
)


@settings(max_examples=30)
@given(st.lists(st.tuples(publications, st.lists(st.integers(0, 6), max_size=3)), max_size=8))
def test_knowledge_is_what_the_history_says_however_questions_and_news_alternate(
    plays: list[tuple[tuple[str, str, str | None, int], list[int]]],
) -> None:
    library = make(compiled_max=3)
    history: list[Any] = []
    for (key, task, tool, published), questions in plays:
        item = None if tool is None else reference(key, tool, task=task)
        library.add_reference(key, item, published)
        history.append((key, task, tool, published))
        for time_ms in questions:
            for asked in ("t", "u"):
                found = library.knowledge(asked, "a", time_ms)
                assert set(tools(found)) == oracle(history, asked, time_ms)


def test_tasks_that_nobody_published_leave_nothing_behind() -> None:
    library = Library(make_profile("default", ENCODER.name), ENCODER)
    for number in range(50):
        known = library.knowledge(f"task-{number}", f"run-{number}", 1)
        assert known.plan is not None
        assert known.plan.task_id == f"task-{number}"
    assert not any(view.plans for view in library._views.values())


def test_a_thread_and_an_event_loop_ask_while_news_are_published() -> None:
    """Full shelves and a short interval: what is not guarded meets half of a change."""
    library = make(compiled_max=2)
    library.add_reference("old", reference("old", "look"), 1)
    library.fill(contracts=[ToolContract(name=f"old-{number}") for number in range(1_000)])
    done = threading.Event()

    def ask() -> int:
        asked = 0
        while not done.is_set():
            assert names(library.knowledge("t", "a", 1)) == ["old"]
            assert names(library.knowledge("t", "a", None))[:1] == ["old"]
            assert not library.is_shadowed(None, "t", None, None)
            asked += 1
        return asked

    async def publish() -> None:
        for number in range(150):
            library.add_contract(f"tool-{number}", ToolContract(name=f"tool-{number}"), 2 + number)
            library.add_reference(f"r{number % 3}", reference(f"r{number % 3}", "edit"), 2 + number)
            assert len(library.contracts_now()) == 1_001 + number
            assert names(library.knowledge("t", "b", 1)) == ["old"]
            await asyncio.sleep(0)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(1) as pool:
            asking = pool.submit(ask)
            try:
                asyncio.run(publish())
            finally:
                done.set()
            assert asking.result() > 0
    finally:
        sys.setswitchinterval(interval)
    assert names(library.knowledge("t", "a", None)) == ["old", "r0", "r1", "r2"]
