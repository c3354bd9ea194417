"""The split of the paper's Tables 4-9: tasks for calibration, for references, for evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

from ontrack.pipeline.evaluation.corpus import Recording, ReferencePlan

REFERENCE_TASKS: Final = 5
CALIBRATION_SHARE: Final = 0.1
#: With few tasks a tenth says nothing; but no more than a third is given away.
CALIBRATION_TASKS_MIN: Final = 20
CALIBRATION_SHARE_MAX: Final = 1 / 3
SAME_TASK_SHARE: Final = 0.5


@dataclass(frozen=True, slots=True)
class Split:
    """Runs of one corpus by what they are used for; no task is in two parts.

    Parameters
    ----------
    calibration, evaluation
        Runs with an outcome and references.
    references
        By run id.
    same_task
        Whether references are other successes of the same task; else they are five successes of
        tasks set apart, the same ones for every run.
    tasks
        Number of tasks for calibration, references and evaluation.
    without
        Runs of these tasks that have no reference or no outcome, and are left out.
    """

    corpus: str
    calibration: tuple[Recording, ...]
    evaluation: tuple[Recording, ...]
    references: dict[str, tuple[Recording, ...]]
    same_task: bool
    tasks: tuple[int, int, int]
    without: int


def split(corpus: str, runs: Sequence[Recording], seed: int, steps_max: int) -> Split:
    """Split a corpus by task; where most runs have references of their own task, with these."""
    own = ReferencePlan(REFERENCE_TASKS, steps_max, equal=True, seed=seed).choose(runs)
    same_task = sum(bool(own[run.run_id]) for run in runs) >= SAME_TASK_SHARE * len(runs)
    tasks = sorted({run.key for run in runs})
    Random(f"{seed}|partition|{corpus}").shuffle(tasks)
    kept: list[str] = []
    references = own
    if not same_task:
        usable = {run.key for run in runs if run.succeeded and len(run.steps) <= steps_max}
        kept = [task for task in tasks if task in usable][:REFERENCE_TASKS]
        first: dict[str, Recording] = {}
        for run in sorted(runs, key=lambda each: each.run_id):
            if run.key in kept and run.succeeded and len(run.steps) <= steps_max:
                first.setdefault(run.key, run)
        chosen = tuple(first[task] for task in kept)
        references = {run.run_id: chosen for run in runs}
    left = [task for task in tasks if task not in kept]
    wanted = max(CALIBRATION_TASKS_MIN, round(CALIBRATION_SHARE * len(tasks)))
    held = set(left[: min(wanted, int(CALIBRATION_SHARE_MAX * len(left)))])
    used = [
        run
        for run in runs
        if run.key not in kept and run.outcome in ("success", "failure") and references[run.run_id]
    ]
    return Split(
        corpus,
        tuple(run for run in used if run.key in held),
        tuple(run for run in used if run.key not in held),
        references,
        same_task,
        (len(held), len(kept), len(left) - len(held)),
        sum(run.key not in kept for run in runs) - len(used),
    )


def balanced(runs: Sequence[Recording], each: int, name: str) -> list[Recording]:
    """Return as many successes as failures, at most ``each`` of either, drawn by a named seed."""
    rng = Random(name)
    classes = [[run for run in runs if run.succeeded is good] for good in (True, False)]
    count = min(each, *map(len, classes))
    return [run for members in classes for run in rng.sample(members, count)]
