"""Hypothesis strategies of events, runs, contracts and references: the one home of all of them.

What is generated is what the codec lets through: no lone surrogates, no NaN, integers within 64
bits. Everything else that hosts send is in: odd texts, nested arguments, missing metadata, steps
that fail, arrive late, twice or not at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import Any

from hypothesis import strategies as st

from ontrack.topics.events import ErrorInfo, Step
from ontrack.topics.knowledge import Provenance, Reference, ReferenceStep, ToolContract

TOOLS = ("search_code", "open_log", "check_schema", "edit_file", "run_tests", "git_commit", "http")
ARTIFACTS = ("src/config.py", "order-17", "ann@example.com", "#42", "T_9", "a.b", "日本-1")
ODD_TEXTS = (
    "",
    " ",
    "…",
    "\u202eevil\u202c",
    "line\nbreak\ttab",
    "null",
    '{"id": "order-17"',
    '["order-17", {"id": 5}]',
    "src/config.py:12: timeout=5",
    "x" * 300,
    "\U0001f600" * 3,
)


class Grade(Enum):
    """How much dependency metadata a harness gives (section 1 of the specification)."""

    FULL = "full"
    PARTIAL = "partial"
    NONE = "none"


@cache
def texts() -> st.SearchStrategy[str]:
    """Any text without surrogates, often an odd one."""
    return st.sampled_from(ODD_TEXTS) | st.text(max_size=12)


@cache
def json_values(leaves_max: int = 4) -> st.SearchStrategy[Any]:
    """JSON values as they come out of the codec, nested, often holding artifact ids."""
    leaves = (
        st.none()
        | st.booleans()
        | st.integers(-(2**63), 2**63 - 1)
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.sampled_from(ARTIFACTS)
        | texts()
    )
    return st.recursive(
        leaves,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts(), inner, max_size=3),
        max_leaves=leaves_max,
    )


@cache
def arguments() -> st.SearchStrategy[dict[str, Any]]:
    """Arguments of a call: a few common names, any values."""
    names = st.sampled_from(("path", "id", "query", "options", "items"))
    return st.dictionaries(names, json_values(), max_size=3)


@cache
def artifact_ids() -> st.SearchStrategy[tuple[str, ...]]:
    """Up to three artifact ids of a small pool, so that steps share them."""
    return st.lists(st.sampled_from(ARTIFACTS), max_size=3, unique=True).map(tuple)


@st.composite
def steps(
    draw: st.DrawFn, seq: int | None = None, grade: Grade | None = None, run_id: str = "r"
) -> Step:
    """One step; ``grade`` None draws one of the three.

    Declared parents point to earlier, missing, later and (wrongly) the same step.
    """
    chosen = draw(st.sampled_from(Grade)) if grade is None else grade
    near = st.integers(max(0, (seq or 0) - 4), (seq or 0) + 2)
    parents = st.lists(near, max_size=3).map(tuple)
    failed = draw(st.sampled_from((False, False, False, True)))
    return Step(
        run_id=run_id,
        seq=seq,
        action=draw(st.none() | texts() | st.sampled_from(("do read", "do edit", "do test"))),
        tool=draw(st.sampled_from(TOOLS)),
        args=draw(arguments()),
        result=None if failed else draw(json_values()),
        error=ErrorInfo(message=draw(texts())) if failed else None,
        call_id=draw(st.none() | st.sampled_from(("c1", "c2"))),
        parents=draw(parents) if chosen is Grade.FULL else None,
        consumed=None if chosen is Grade.NONE else draw(artifact_ids()),
        produced=draw(artifact_ids()) if chosen is Grade.FULL else None,
        cost_usd=draw(st.none() | st.floats(0, 10)),
    )


@dataclass(frozen=True)
class Run:
    """A run as it happened and as it arrived.

    Parameters
    ----------
    steps
        Steps in the order of the run, numbered, with gaps where some were lost.
    arrivals
        The same steps as they came in: some late, some twice.
    """

    steps: tuple[Step, ...]
    arrivals: tuple[Step, ...]


@st.composite
def runs(
    draw: st.DrawFn,
    steps_max: int = 10,
    grade: Grade | None = None,
    gaps: bool = True,
    duplicates: bool = True,
    late: bool = True,
) -> Run:
    """A run with duplicates, gaps and late steps, as far as each is wanted."""
    count = draw(st.integers(1, steps_max))
    lost = draw(st.sets(st.integers(0, count - 1), max_size=2)) if gaps else set()
    numbers = [number for number in range(count) if number not in lost] or [0]
    happened = tuple(draw(steps(number, grade)) for number in numbers)
    arrivals = list(draw(delayed(happened))) if late else list(happened)
    if duplicates:
        for again in draw(st.lists(st.sampled_from(happened), max_size=2)):
            first = arrivals.index(again)
            arrivals.insert(draw(st.integers(first + 1, len(arrivals))), again)
    return Run(happened, tuple(arrivals))


@st.composite
def delayed(draw: st.DrawFn, happened: Sequence[Step], delay_max: int = 4) -> tuple[Step, ...]:
    """The same steps, each up to ``delay_max`` places late."""
    delays = [draw(st.sampled_from((0, 0, 0, delay_max - 1, delay_max))) for _ in happened]
    order = sorted(range(len(happened)), key=lambda place: (place + delays[place], place))
    return tuple(happened[place] for place in order)


@cache
def contracts() -> st.SearchStrategy[tuple[ToolContract, ...]]:
    """Contracts of some of the tools, each tool at most once."""
    places = st.sampled_from(("args.path", "result.id", "path", "items[*].id", "$.result", "=done"))
    paths = st.lists(places, max_size=2, unique=True).map(tuple)

    def contract(name: str) -> st.SearchStrategy[ToolContract]:
        return st.builds(
            ToolContract,
            name=st.just(name),
            declared_effect=st.sampled_from((None, "read", "write", "destructive")),
            external=st.sampled_from((None, True)),
            consumes=paths,
            produces=paths,
        )

    tools = st.lists(st.sampled_from(TOOLS), max_size=4, unique=True)
    return tools.flatmap(lambda names: st.tuples(*map(contract, names)))


@st.composite
def references(draw: st.DrawFn, count_max: int = 3, steps_max: int = 6) -> tuple[Reference, ...]:
    """One to ``count_max`` references of very different lengths and any provenance."""
    found = []
    for index in range(draw(st.integers(1, count_max))):
        length = draw(st.integers(1, steps_max))
        body = [ReferenceStep.of(draw(steps(number))) for number in range(length)]
        provenance = draw(st.sampled_from(Provenance))
        found.append(
            Reference(
                reference_id=f"ref-{index}", task_id="t", provenance=provenance, steps=tuple(body)
            )
        )
    return tuple(found)
