"""Tables 2 and 3 of the paper and its campaign: scenarios whose right answer is known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Final, NamedTuple

import numpy as np

from ontrack.pipeline.embedded import EmbeddedMonitor
from ontrack.pipeline.evaluation.controlled import (
    SIX_CONTRACTS,
    SIX_STEPS,
    Controlled,
    ControlledTask,
    SyntheticEncoder,
    again,
    failed,
    foreign,
    random_task,
    valid_order,
)
from ontrack.pipeline.settings import Settings
from ontrack.topics.events import Step
from ontrack.topics.knowledge import Reference, ToolContract
from ontrack.topics.verdicts import Verdict

SILENCE: Final = "silence"
CAMPAIGN_TASKS: Final = 40
BENIGN: Final = ("clean", "reordered", "retry", "branch")
FAULTY: Final = {
    "loop": "LOOP",
    "hallucination": "OFF_TRACK",
    "inversion": "CAUSAL_INVERSION",
}
_QUIET: Final = frozenset({"OK", "EXPLORING"})
#: Steps of a cycle: the profiles differ in how many repeats they wait for.
_CYCLE_STEPS: Final = 10
_STREAK: Final = 4
_SWEEP_RUNS: Final = 50


class Outcome(NamedTuple):
    """What became of a scenario: what fired, how many steps after the onset, as expected or not."""

    scenario: str
    expected: str
    fired: str
    latency: int | None
    right: bool
    note: str = ""


def _silent(name: str, run: Controlled, note: str = "") -> Outcome:
    loud = [each.verdict.value for each in run.verdicts if each.verdict.value not in _QUIET]
    loud += [f"intervention {each.intervention.value}" for each in run.interventions]
    fired = ", ".join(dict.fromkeys(loud)) or SILENCE
    return Outcome(name, SILENCE, fired, None, not loud, note)


def _fires(name: str, expected: str, verdicts: Sequence[Verdict], note: str = "") -> Outcome:
    """Say when the expected verdict came after the onset, and what came in its place if not."""
    names = [each.verdict.value for each in verdicts]
    if expected in names:
        return Outcome(name, expected, expected, names.index(expected), True, note)
    others = [each for each in names if each not in _QUIET]
    fired = ", ".join(dict.fromkeys(others)) or SILENCE
    latency = names.index(others[0]) if others else None
    return Outcome(name, expected, fired, latency, False, note)


def _cycle(steps: Sequence[Step], length: int) -> list[Step]:
    return [again(step, number) for number, step in enumerate(islice(cycle(steps), length))]


def table2(settings: Settings) -> list[Outcome]:
    """Run the eight scenarios of the six-step task; E and H are given tool contracts."""
    steps = SIX_STEPS.steps(SIX_STEPS.names, "run")
    made: list[Outcome] = []

    clean = Controlled(settings, SIX_STEPS)
    clean.feed(steps)
    leaks = [each.leakage for each in clean.verdicts if each.leakage is not None]
    made.append(
        _silent("A clean run in order", clean, f"valid steps leak {max(leaks):.2f} or less")
    )

    swapped = Controlled(settings, SIX_STEPS)
    swapped.feed([steps[0], steps[2], steps[1], *steps[3:]])
    scores = [f"{run.end().final_score:.4f}" for run in (clean, swapped)]
    outcome = _silent("B valid reordering", swapped, f"final scores {' and '.join(scores)}")
    made.append(outcome._replace(right=outcome.right and scores[0] == scores[1]))

    looping = Controlled(settings, SIX_STEPS)
    looping.feed(steps[:3])
    made.append(_fires("C two-step cycle", "LOOP", looping.feed(_cycle(steps[1:3], _CYCLE_STEPS))))

    lost = Controlled(settings, SIX_STEPS)
    lost.feed(steps[:3])
    streak = lost.feed([foreign(number) for number in range(_STREAK)])
    leaks = [each.leakage for each in streak if each.leakage is not None]
    note = f"foreign steps leak {min(leaks):.2f} or more"
    made.append(_fires("D hallucination streak", "OFF_TRACK", streak, note))

    early = Controlled(settings, SIX_STEPS, SIX_CONTRACTS)
    early.feed(steps[:1])
    premature = SIX_STEPS.step("test", "early").model_copy(update={"consumed": ()})
    made.append(_fires("E causal inversion", "CAUSAL_INVERSION", early.feed([premature])))

    retry = Controlled(settings, SIX_STEPS)
    retry.feed([steps[0], failed(steps[1]), again(steps[1]), *steps[2:]])
    made.append(_silent("F retry after a tool error", retry))

    branch = Controlled(settings, SIX_STEPS)
    branch.feed([*steps[:3], foreign(0), foreign(1), *steps[3:]])
    made.append(_silent("G parallel branch of two steps", branch))

    gated = Controlled(settings, SIX_STEPS, SIX_CONTRACTS)
    gated.feed(steps[:4])
    decision = gated.ask(SIX_STEPS.step("commit", "now")).decision.upper()
    latency = 0 if decision == "BLOCK" else None
    blocked = decision == "BLOCK"
    made.append(
        Outcome("H irreversible without prerequisites", "BLOCK", decision, latency, blocked)
    )
    return made


def table3(settings: Settings) -> list[Outcome]:
    """Ask the gate in both directions, and in fifty benign runs that end in a valid call."""
    steps = SIX_STEPS.steps(SIX_STEPS.names, "run")
    commit = SIX_STEPS.step("commit", "now")
    odd = foreign(3).model_copy(update={"tool": "git_push_force"})

    def answer(
        name: str, expected: str, run: Controlled, before: int, call: Step, *also: str
    ) -> Outcome:
        run.feed(steps[:before])
        decision = run.ask(call).decision
        return Outcome(name, expected, decision, None, decision in (expected, *also))

    known = [Controlled(settings, SIX_STEPS, SIX_CONTRACTS) for _ in range(2)]
    schema_only = Controlled(settings, None, SIX_CONTRACTS)
    made = [
        answer("G-a valid, prerequisites and reference", "allow", known[0], 5, commit),
        answer("G-b missing prerequisite", "block", schema_only, 4, commit),
        answer("G-c valid by schema, no reference match", "block", known[1], 5, odd),
        answer("G-d nothing known", "allow", Controlled(settings, None), 0, commit, "unknown"),
    ]
    blocked = sum(_benign_commit(settings, seed) for seed in range(_SWEEP_RUNS))
    right = blocked == 0
    name = f"false blocks in {_SWEEP_RUNS} benign runs"
    return [*made, Outcome(name, "0", str(blocked), None, right)]


def _benign_commit(settings: Settings, seed: int) -> bool:
    """Tell whether the gate blocks the valid last call of a run with detours and swaps."""
    rng = np.random.default_rng(seed)
    names = SIX_STEPS.names[:5]
    if rng.random() < 0.5:
        names[1], names[2] = names[2], names[1]
    run = Controlled(settings, SIX_STEPS, SIX_CONTRACTS)
    for place, name in enumerate(names):
        if place and rng.random() < 0.2:
            run.feed([foreign(int(rng.integers(1000)))])
        run.feed([SIX_STEPS.step(name, f"seed{seed}")])
    return run.ask(SIX_STEPS.step("commit", f"s{seed}")).decision == "block"


@dataclass(frozen=True, slots=True)
class Campaign:
    """Random tasks under seven conditions.

    Parameters
    ----------
    latencies
        By fault: steps from the onset to the verdict in each task, None where it was not found.
    disturbed
        By benign condition: runs with a warning, a severe verdict or an intervention.
    gap_max
        Largest difference between the last running score and the final one, in clean runs.
    tasks
        Runs a condition.
    """

    latencies: dict[str, list[int | None]]
    disturbed: dict[str, int]
    gap_max: float
    tasks: int


def campaign(
    settings: Settings, tasks: int = CAMPAIGN_TASKS, advance: Callable[[], None] = lambda: None
) -> Campaign:
    """Run every condition on every task; ``advance`` is called once a task."""
    latencies: dict[str, list[int | None]] = {fault: [] for fault in FAULTY}
    disturbed = dict.fromkeys(BENIGN, 0)
    gaps = [0.0]
    for seed in range(tasks):
        task = random_task(seed)
        for fault, expected in FAULTY.items():
            steps, onset = scenario(task, fault, seed)
            run = Controlled(settings, task, contracts_of(task, fault))
            run.feed(steps[:onset])
            names = [each.verdict.value for each in run.feed(steps[onset:])]
            latencies[fault].append(names.index(expected) if expected in names else None)
        for condition in BENIGN:
            run = Controlled(settings, task)
            run.feed(scenario(task, condition, seed)[0])
            disturbed[condition] += not _silent(condition, run).right
            if condition == "clean":
                last, final = run.verdicts[-1].score, run.end().final_score
                gaps.append(abs((last or 0.0) - (final or 0.0)))
        advance()
    return Campaign(latencies, disturbed, max(gaps), tasks)


def contracts_of(task: ControlledTask, condition: str) -> Sequence[ToolContract]:
    """Return the contracts of a condition: only an inversion rests on them."""
    return task.contracts() if condition == "inversion" else ()


def staged(
    settings: Settings,
    task: ControlledTask,
    references: Sequence[Reference],
    condition: str,
    seed: int,
) -> tuple[EmbeddedMonitor, list[Step]]:
    """Return a monitor that knows the references, and the steps of :func:`scenario` to feed it."""
    steps, _ = scenario(task, condition, seed)
    contracts = contracts_of(task, condition)
    monitor = EmbeddedMonitor(settings, references, contracts, encoder=SyntheticEncoder())
    return monitor, [step.model_copy(update={"task_id": task.name}) for step in steps]


def scenario(task: ControlledTask, condition: str, seed: int) -> tuple[list[Step], int]:
    """Return the steps of a task under one condition of the campaign, and the fault's first place.

    Without a fault, that place is their number.
    """
    if condition in FAULTY:
        return _faulty(task, condition, np.random.default_rng(10_000 + seed))
    steps = _benign(task, condition, np.random.default_rng(20_000 + seed))
    return steps, len(steps)


def _faulty(task: ControlledTask, fault: str, rng: np.random.Generator) -> tuple[list[Step], int]:
    order = valid_order(task, rng)
    steps = task.steps(order, f"v{rng.integers(1_000_000)}")
    if fault == "inversion":
        candidates = beyond_lookahead(task, order[0])
        early = candidates[int(rng.integers(len(candidates)))]
        return [*steps[:1], task.step(early, "early")], 1
    start = int(rng.integers(2, len(steps) - 1))
    if fault == "loop":
        return [*steps[:start], *_cycle(steps[start - 2 : start], _CYCLE_STEPS)], start
    strays = [foreign(int(rng.integers(10**6))) for _ in range(_STREAK)]
    return [*steps[:start], *strays], start


def _benign(task: ControlledTask, condition: str, rng: np.random.Generator) -> list[Step]:
    names = valid_order(task, rng) if condition == "reordered" else task.names
    steps = task.steps(names, f"v{rng.integers(1_000_000)}")
    place = int(rng.integers(1, len(steps) - 1))
    if condition == "retry":
        return [*steps[:place], failed(steps[place]), again(steps[place]), *steps[place + 1 :]]
    if condition == "branch":
        side = [foreign(int(rng.integers(10**6))) for _ in range(2)]
        return [*steps[:place], *side, *steps[place:]]
    return steps


def beyond_lookahead(task: ControlledTask, done: str) -> list[str]:
    """Return what is neither open after one step nor a child of an open one.

    The mask leaves children of open nodes a part of their mass, so a step that comes one level too
    early does not leak: so much haste the procedure tolerates by design.
    """
    open_now = {node.name for node in task.nodes if set(node.parents) <= {done}}
    return [
        node.name
        for node in task.nodes
        if node.name != done
        and node.name not in open_now
        and not set(node.parents) & (open_now | {done})
    ]
