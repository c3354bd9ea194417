"""Long runs, references as long as they are, and many of them open at the same time."""

from __future__ import annotations

from collections.abc import Iterator

from ontrack.pipeline.workplace import simulate_run, task_ids
from ontrack.topics.events import Step
from ontrack.topics.knowledge import Provenance, Reference, ReferenceStep

REFERENCES_A_TASK = 3
WAVE_RUNS = 500  # runs that are active at the same time


def run_id_of(number: int) -> str:
    """Return the id of an open run."""
    return f"open-{number}"


def long_run(number: int, steps: int, *, run_id: str | None = None) -> list[Step]:
    """Return a clean run of a chosen length: executions of one task of the workplace, in a row.

    Parameters
    ----------
    number
        Chooses the task, in turn, and each execution's order, phrasings and receipts.
    steps
        How many steps; ``seq`` counts them from 0.
    """
    tasks = task_ids()
    name = run_id or run_id_of(number)
    made: list[Step] = []
    for execution in range(steps):
        if len(made) >= steps:
            break
        before = len(made)
        for step in simulate_run(tasks[number % len(tasks)], number * 64 + execution).steps:
            parents = None if step.parents is None else tuple(p + before for p in step.parents)
            changes = {
                "run_id": name,
                "seq": before + (step.seq or 0),
                "call_id": f"{execution}-{step.call_id}",
                "parents": parents,
            }
            made.append(step.model_copy(update=changes))
    return made[:steps]


def long_references(steps: int) -> list[Reference]:
    """Return references as long as the runs, ``REFERENCES_A_TASK`` for each task."""
    tasks = task_ids()
    made = []
    for index in range(len(tasks) * REFERENCES_A_TASK):
        name = f"reference-{index}"
        run = long_run(10_000_000 * len(tasks) + index, steps, run_id=name)
        made.append(
            Reference(
                reference_id=name,
                task_id=tasks[index % len(tasks)],
                provenance=Provenance.GOLD,
                run_id=name,
                steps=tuple(ReferenceStep.of(step) for step in run),
            )
        )
    return made


def open_runs(runs: int, steps: int, wave: int = WAVE_RUNS) -> Iterator[Step]:
    """Yield the steps of runs that never end: ``wave`` runs take turns, then the next ones.

    The last step of every run comes at the very end, when all the others are in memory, so each
    run comes back once after it has been idle for long.
    """
    for first in range(0, runs, wave):
        active = [long_run(number, steps) for number in range(first, min(first + wave, runs))]
        for seq in range(steps - 1):
            for run in active:
                yield run[seq]
    for number in range(runs):
        yield long_run(number, steps)[-1]
