"""Runs of the simulated workplace: one, a set for the demo, references, or a fleet's stream."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from random import Random
from typing import TypeVar, get_args

from ontrack.pipeline.workplace.bugfix import BUGFIX_DESK
from ontrack.pipeline.workplace.execution import Draft, Grade, Header, events_of, execute
from ontrack.pipeline.workplace.faults import BENIGN, FAULTS, INJECTORS, Injected, Scene
from ontrack.pipeline.workplace.injection import FaultKind, FaultPlan
from ontrack.pipeline.workplace.reacting import react
from ontrack.pipeline.workplace.refunds import REFUNDS_DESK
from ontrack.pipeline.workplace.scheduling import SCHEDULING_DESK
from ontrack.pipeline.workplace.world import Desk, TaskPlan
from ontrack.topics.errors import InvalidSettings, UnknownName
from ontrack.topics.events import Event, Outcome, RunEnded, Step
from ontrack.topics.knowledge import Provenance, Reference, ReferenceStep, ToolContract

DESKS: tuple[Desk, ...] = (SCHEDULING_DESK, BUGFIX_DESK, REFUNDS_DESK)
TENANTS = ("north", "south", "west")
GRADES: tuple[Grade, ...] = get_args(Grade)

_Item = TypeVar("_Item")
_EPOCH = datetime(2026, 3, 2, 8, 0, tzinfo=UTC)
_TASKS: dict[str, tuple[Desk, TaskPlan]] = {
    task.task_id: (desk, task) for desk in DESKS for task in desk.tasks
}


@dataclass(frozen=True, slots=True)
class SimulatedRun:
    """A run with what is known about it.

    Parameters
    ----------
    events
        run_started, the steps, run_ended.
    fault
        The injected fault, or None for a clean run.
    onset_seq
        Number of the fault's first step: the first repetition of a loop, the first fruitless
        question of a stall, the call that failed before a retry.
    """

    events: list[Event]
    fault: str | None
    onset_seq: int | None
    desk: str
    task_id: str

    @property
    def run_id(self) -> str:
        """Id that all events share."""
        return self.events[0].run_id

    @property
    def title(self) -> str:
        """What to expect of the run, for people."""
        return "clean" if self.fault is None else f"{self.fault} from step {self.onset_seq}"

    @property
    def steps(self) -> list[Step]:
        """The steps, in order."""
        return [event for event in self.events if isinstance(event, Step)]

    @property
    def outcome(self) -> Outcome:
        """How the run ended."""
        end = self.events[-1]
        assert isinstance(end, RunEnded)
        return end.outcome


def task_ids() -> tuple[str, ...]:
    """Return the ids of all tasks, ``desk/task``."""
    return tuple(_TASKS)


def contracts() -> tuple[ToolContract, ...]:
    """Return the contracts of all desks' tools."""
    return tuple(contract for desk in DESKS for contract in desk.tools)


def simulate_run(
    task_id: str,
    seed: int,
    fault: str | None = None,
    run_id: str | None = None,
    *,
    grade: Grade = "full",
    started_at: datetime | None = None,
) -> SimulatedRun:
    """Return one run; the same task, seed and fault always give the same run.

    Runs of one task and seed that differ in the fault agree up to the fault.

    Parameters
    ----------
    task_id
        One of `task_ids`.
    seed
        Chooses order, phrasings, receipt numbers, times and cost.
    fault
        One of ``FAULTS`` (the run fails) or ``BENIGN`` (it succeeds); None for a clean run.
    run_id
        By default made of task, seed and fault.
    grade
        Metadata of the steps: ``full`` parents and artifact ids, ``partial`` ids, ``none``.
    started_at
        When the run begins; by default within a week of March 2026, by the seed.

    Raises
    ------
    UnknownName
        No such task, fault or grade.
    """
    desk, task = _known("task", task_id, _TASKS)
    _known("grade", grade, dict.fromkeys(GRADES))
    rng = Random(f"{task_id}|{seed}")
    clean = execute(task, rng)
    made = Injected(clean, 0, "success", None)
    if fault is not None:
        inject = _known("fault", fault, INJECTORS)
        made = inject(Scene(desk, task, clean, Random(f"{task_id}|{seed}|{fault}")))
    header = _header(desk, task_id, run_id or _name(task_id, seed, fault), grade, started_at, rng)
    header = replace(header, outcome=made.outcome, reason=made.reason)
    onset = None if fault is None else made.onset
    return SimulatedRun(list(events_of(header, made.drafts, rng)), fault, onset, desk.name, task_id)


@dataclass(frozen=True, slots=True)
class FaultyRun:
    """A run whose agent met faults: its events, and the faults by the number of their step."""

    events: list[Event]
    faults: dict[int, FaultKind]


def simulate_faulty(
    task_id: str,
    seed: int,
    plan: FaultPlan | None,
    run_id: str | None = None,
    *,
    grade: Grade = "full",
    started_at: datetime | None = None,
) -> FaultyRun:
    """Return a run whose agent reacts to the faults that it meets; see ``reacting``.

    Up to the first fault it is the run of :func:`simulate_run` with the same task and seed. The
    fault has dice of its own besides, so the same arguments always give the same run.

    Parameters
    ----------
    plan
        What goes wrong; None for a run in which nothing does.

    Raises
    ------
    UnknownName
        No such task or grade.
    """
    desk, task = _known("task", task_id, _TASKS)
    _known("grade", grade, dict.fromkeys(GRADES))
    rng = Random(f"{task_id}|{seed}")
    clean: list[Draft] = execute(task, rng)
    kind = None if plan is None else plan.kind
    made = react(desk, clean, plan, f"{task_id}|{seed}|{kind}")
    header = _header(desk, task_id, run_id or _name(task_id, seed, kind), grade, started_at, rng)
    header = replace(header, outcome=made.outcome, reason=made.reason)
    return FaultyRun(list(events_of(header, made.drafts, rng)), made.faults)


def _name(task_id: str, seed: int, fault: str | None) -> str:
    return "-".join(filter(None, [task_id.replace("/", "-"), str(seed), fault]))


def _header(
    desk: Desk, task_id: str, run_id: str, grade: Grade, started_at: datetime | None, rng: Random
) -> Header:
    """Return the header of a run that succeeds."""
    return Header(
        run_id=run_id,
        task_id=task_id,
        tenant=rng.choice(TENANTS),
        desk=desk,
        grade=grade,
        started_at=started_at or _EPOCH + timedelta(seconds=rng.randrange(5 * 86_400)),
        outcome="success",
        reason=None,
    )


def _known(kind: str, name: str, items: dict[str, _Item]) -> _Item:
    if name not in items:
        known = ", ".join(items)
        raise UnknownName(f"the workplace has no {kind} {name!r}; expected one of {known}")
    return items[name]


def references(per_task: int = 3, seed: int = 0, *, grade: Grade = "full") -> list[Reference]:
    """Return gold references: successful clean runs of every task.

    Their run ids begin with ``reference-``, so that a monitored run is never its own reference.
    """
    made = []
    for task_id in task_ids():
        for index in range(per_task):
            name = f"reference-{task_id.replace('/', '-')}-{seed}-{index}"
            run = simulate_run(task_id, _derived(name), run_id=name, grade=grade)
            made.append(
                Reference(
                    reference_id=name,
                    task_id=task_id,
                    provenance=Provenance.GOLD,
                    run_id=name,
                    steps=tuple(ReferenceStep.of(step) for step in run.steps),
                )
            )
    return made


def _derived(name: str) -> int:
    return Random(name).getrandbits(48)


def demo_runs(*, grade: Grade = "full") -> list[SimulatedRun]:
    """Return nine runs for the demo: three clean ones, five faults and a benign retry.

    The clean run of the bug desk does its steps in an order that no default reference has.
    """
    chosen: tuple[tuple[str, str, int, str | None], ...] = (
        ("clean-scheduling", "scheduling/move-meeting", 1, None),
        ("clean-bugfix-reordered", "bugfix/add-column", _new_order("bugfix/add-column"), None),
        ("clean-refunds", "refunds/damaged-item", 1, None),
        ("retry", "scheduling/cancel-duplicate", 2, "retry"),
        ("loop", "bugfix/ship-hotfix", 3, "loop"),
        ("stall", "scheduling/move-meeting", 4, "stall"),
        ("hallucination", "refunds/lost-parcel", 5, "hallucination"),
        ("inversion", "bugfix/add-column", 6, "inversion"),
        ("irreversible", "refunds/damaged-item", 7, "irreversible"),
    )
    return [
        simulate_run(task_id, seed, fault, run_id=f"demo-{number}-{name}", grade=grade)
        for number, (name, task_id, seed, fault) in enumerate(chosen, start=1)
    ]


def _new_order(task_id: str) -> int:
    """Return the first seed whose clean run has an order of tools that no reference has."""
    taken = {
        tuple(step.tool for step in reference.steps)
        for reference in references()
        if reference.task_id == task_id
    }
    seed = 0
    while tuple(step.tool for step in simulate_run(task_id, seed).steps) in taken:
        seed += 1
    return seed


def load_stream(
    runs: int, seed: int, fault_rate: float, *, grade: Grade = "full", gap_s: float = 1.0
) -> Iterator[Event]:
    """Yield the events of many runs as a fleet would: by time, with runs overlapping.

    A run starts every ``gap_s`` seconds of simulated time and lasts about 40, so memory holds some
    ``40 / gap_s`` runs, however many there are.

    Parameters
    ----------
    runs
        How many runs start.
    seed
        Chooses tasks, faults and the runs themselves.
    fault_rate
        Share of runs with one of ``FAULTS``, 0 to 1; of the others a fifth is a benign variation.
    grade
        Metadata of the steps.
    gap_s
        Seconds between two starts.

    Raises
    ------
    InvalidSettings
        The share lies outside 0 to 1, or the gap is not positive.
    """
    if not 0 <= fault_rate <= 1 or gap_s <= 0:
        raise InvalidSettings(
            f"fault_rate is {fault_rate} and gap_s {gap_s}; expected a share from 0 to 1 and a "
            "positive number of seconds"
        )
    return _interleaved(runs, seed, fault_rate, grade, gap_s)


def _interleaved(
    runs: int, seed: int, fault_rate: float, grade: Grade, gap_s: float
) -> Iterator[Event]:
    waiting: list[tuple[datetime, int, int, list[Event]]] = []  # time, run, position, events
    for number in range(runs):
        start = _EPOCH + timedelta(seconds=number * gap_s)
        while waiting and waiting[0][0] < start:
            yield _next(waiting)
        events = _fleet_run(number, seed, fault_rate, grade, start).events
        heapq.heappush(waiting, (start, number, 0, events))
    while waiting:
        yield _next(waiting)


def _next(waiting: list[tuple[datetime, int, int, list[Event]]]) -> Event:
    _, number, position, events = waiting[0]
    if position + 1 == len(events):
        heapq.heappop(waiting)
    else:
        time = events[position + 1].time
        assert time is not None
        heapq.heapreplace(waiting, (time, number, position + 1, events))
    return events[position]


def _fleet_run(
    number: int, seed: int, fault_rate: float, grade: Grade, start: datetime
) -> SimulatedRun:
    name = f"load-{seed}-{number}"
    rng = Random(name)
    if rng.random() < fault_rate:
        fault: str | None = rng.choice(FAULTS)
    else:
        fault = rng.choice(BENIGN) if rng.random() < 0.2 else None
    task_id = rng.choice(task_ids())
    return simulate_run(task_id, _derived(name), fault, name, grade=grade, started_at=start)
