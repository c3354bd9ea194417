"""The public API as a program of a user's, for type checkers and for Python: it runs as well.

``mypy --strict`` reads it against the checkout and, in ``scripts/package``, against the installed
wheel. A line with ``type: ignore`` is one that a checker has to refuse: were it accepted, the
ignore would be unused, which strict checking reports.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, assert_type

from ontrack.pipeline.sdk import (
    Agent,
    Blocked,
    DeadLetter,
    Decision,
    EmbeddedMonitor,
    GateAnswer,
    Intervention,
    Monitor,
    OnTrackError,
    Output,
    Proposal,
    Reference,
    RunEnded,
    RunStarted,
    Scorecard,
    Settings,
    Step,
    SyncMonitor,
    Task,
    ToolContract,
    Verdict,
    VerdictName,
    current_run,
    declared_contracts,
    load_settings,
    monitored,
    references_from_successes,
    score_trajectory,
    tool,
    unsafe_actions,
)

settings = load_settings(encoder="hashing", kernel="numpy")
assert_type(settings, Settings)


@tool(effect="read", produces=["result.order"])
def find_order(customer: str) -> dict[str, str]:
    return {"order": "ord-12345"}


@tool(effect="destructive", consumes=["args.order"])
async def refund(order: str, amount: float = 10.0) -> str:
    await asyncio.sleep(0)
    return f"{amount} paid back"


@tool
def look_up(place: str) -> list[str]:
    return [place]


def search(place: str) -> list[str]:
    return [place]


def events() -> list[Output]:
    """Feed a monitor with events."""
    monitor = EmbeddedMonitor(
        settings, contracts=[ToolContract(name="find_order", effect="read")], tasks=[Task(id="t")]
    )
    decision = monitor.propose(Proposal(run_id="r-1", tool="find_order", args={"customer": "Ada"}))
    assert_type(decision, Decision)
    said = monitor.feed(RunStarted(run_id="r-1", agent=Agent(id="clerk")))
    said += monitor.feed(Step(run_id="r-1", tool="find_order", result={"order": "A-17"}))
    said += monitor.feed(RunEnded(run_id="r-1", outcome="success"))
    assert_type(said, list[Verdict | Intervention | Decision | Scorecard | DeadLetter])
    return said


def told(output: Output) -> str:
    """Tell what was said; ``type`` is what the kinds differ in."""
    if output.type == "verdict":
        assert_type(output, Verdict)
        assert_type(output.verdict, VerdictName)
        assert_type(output.coverage, float | None)
        return f"{output.id} {output.verdict}"
    if output.type == "intervention":
        assert_type(output, Intervention)
        return output.reason
    if isinstance(output, DeadLetter):
        return output.error.name
    return output.type


def synchronous() -> None:
    """Run decorated tools in a block."""
    with SyncMonitor(
        embedded=EmbeddedMonitor(settings), run_id="r-2", settings=settings, on_output=told
    ) as run:
        assert_type(run, SyncMonitor)
        assert_type(find_order("Ada"), dict[str, str])
        assert_type(look_up(place="attic"), list[str])
        assert_type(run.check("search", {"q": "parcel"}), GateAnswer)
        assert_type(run.step("search", {"q": "parcel"}, result=[]), tuple[Output, ...])


async def asynchronous() -> None:
    """Run an asynchronous tool, and be refused."""
    async with Monitor(
        embedded=EmbeddedMonitor(settings), run_id="r-3", agent="clerk", settings=settings
    ) as run:
        assert_type(run, Monitor)
        assert current_run() is run
        try:
            assert_type(await refund("ord-12345"), str)
        except Blocked as blocked:
            assert_type(blocked.answer, GateAnswer)
            told_of: OnTrackError = blocked  # every error of ours is one
            assert_type(str(told_of), str)
        bound = monitored(run)(search)
        assert_type(await asyncio.to_thread(bound, "attic"), list[str])


def offline() -> None:
    """Score a path, read references."""
    score = score_trajectory(["find_order", "refund"], Task(id="t"))
    assert score is not None
    assert list(unsafe_actions(["find_order"], Task(id="t"))) == []
    assert_type(references_from_successes([]), list[Reference])
    assert_type(declared_contracts(), tuple[ToolContract, ...])


if TYPE_CHECKING:
    from ontrack.pipeline.sdk import Moniter  # type: ignore[attr-defined]  # noqa: F401

    find_order(7)  # type: ignore[arg-type]
    find_order("Ada").append("x")  # type: ignore[attr-defined]
    tool(effect="harmless")  # type: ignore[call-overload]
    Step(run_id="r-1")  # type: ignore[call-arg]
    Step(run_id="r-1", tool="t", tol="u")  # type: ignore[call-arg]
    RunEnded(run_id="r-1", outcome="fine")  # type: ignore[arg-type]
    EmbeddedMonitor()  # type: ignore[call-arg]
    EmbeddedMonitor(settings).feed("step")  # type: ignore[arg-type]
    Monitor("r-1")  # type: ignore[call-arg]
    with Monitor(run_id="r-1"):  # type: ignore[attr-defined]
        pass


if __name__ == "__main__":
    assert [told(output) for output in events()] == ["r-1:0 OK", "scorecard"]
    synchronous()
    asyncio.run(asynchronous())
    offline()
