"""``ontrack calibrate``: thresholds chosen on labelled runs, within budgets of false alarms.

One threshold after the other, each with the choices before it. What a choice is worth is told on
tasks that had no say in it: folds are split by task, and each is judged by what the others chose.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from ontrack.pipeline.calibrated import Budget, Choice
from ontrack.pipeline.evaluation.calibration_knobs import (
    KNOBS,
    Knob,
    Value,
    current,
    with_value,
)
from ontrack.pipeline.evaluation.calibration_readings import (
    Material,
    Reading,
    ReadingJob,
    Unit,
    read,
)
from ontrack.pipeline.evaluation.statistics import Grouped
from ontrack.pipeline.evaluation.tables import Work
from ontrack.pipeline.evaluation.tables_variants import Variant, watcher_of
from ontrack.pipeline.evaluation.watching import Setup, Watcher
from ontrack.topics.errors import InvalidInput

#: No event in n runs says, at 95 %, that its share is below 3/n.
RULE_OF_THREE: Final = 3.0


@dataclass(frozen=True, slots=True)
class Calibrated:
    """Changes to the profile, and how each came about."""

    operators: dict[str, Any]
    choices: tuple[Choice, ...]


def calibrate(
    setup: Setup, material: Material, budget: Budget, folds: int, seed: int, work: Work
) -> Calibrated:
    """Choose every threshold of the settings' profile.

    Raises
    ------
    InvalidInput
        Nothing can be calibrated of this profile, or there are fewer tasks than folds.
    """
    name = setup.settings.profile
    if name not in KNOBS:
        raise InvalidInput(f"nothing is known of thresholds of profile {name!r} to calibrate")
    tasks = sorted({run.key for run in material.runs})
    if len(tasks) < folds:
        raise InvalidInput(
            f"the labelled runs are of {len(tasks)} tasks; {folds} folds that share no task need "
            f"{folds} or more (see --folds)"
        )
    fold_of = assign_folds(tasks, folds, seed)
    operators, choices = dict(setup.settings.operators), []
    watcher = Watcher(setup)
    for knob in KNOBS[name]:
        profile = watcher_of(watcher, Variant.of(name, operators)).profile
        own = current(profile, knob.key)
        if own is None:
            continue  # the settings have switched its operator off
        choice = _choose(knob, own, operators, name, material, budget, fold_of, seed, work)
        operators = with_value(operators, knob.key, choice.value)
        choices.append(choice)
    return Calibrated(operators, tuple(choices))


def assign_folds(tasks: Sequence[str], folds: int, seed: int) -> dict[str, int]:
    """Deal tasks out to folds of equal size."""
    shuffled = list(tasks)
    Random(f"{seed}|folds").shuffle(shuffled)
    return {task: place % folds for place, task in enumerate(shuffled)}


def _choose(
    knob: Knob,
    own: Value,
    operators: dict[str, Any],
    profile: str,
    material: Material,
    budget: Budget,
    fold_of: Mapping[str, int],
    seed: int,
    work: Work,
) -> Choice:
    units = material.units(knob)
    # The profile's own value comes first: of equal ones, it stays.
    values = tuple(dict.fromkeys((own, *knob.values)))
    variants = [Variant.of(profile, with_value(operators, knob.key, each)) for each in values]
    jobs = [ReadingJob(unit, knob.gain, each, seed) for each in variants for unit in units]
    found = work(knob.key, read, jobs)
    readings = {
        value: found[place * len(units) : (place + 1) * len(units)]
        for place, value in enumerate(values)
    }
    return select(knob, units, readings, knob.budget(budget), fold_of, seed)


def select(
    knob: Knob,
    units: Sequence[Unit],
    readings: Mapping[Value, Sequence[Reading]],
    budget: float,
    fold_of: Mapping[str, int],
    seed: int,
) -> Choice:
    """Choose a value on all units, and tell what choosing so is worth on tasks left out.

    Parameters
    ----------
    readings
        By value, one reading a unit; of equally good values the first one wins.
    """
    places = range(len(units))
    own = next(iter(readings))
    clean = [reading.disturbed for reading in readings[own] if reading.disturbed is not None]
    if not clean:
        note = "no clean run to weigh it on: the profile's own value stays"
        return Choice(key=knob.key, value=own, gain=knob.gain, n=0, note=note)
    needed = math.ceil(RULE_OF_THREE / budget) if budget else math.inf
    if len(clean) < needed and sum(clean) <= budget * len(clean):
        # A more sensitive value would look as good here, and there is no telling whether it is.
        readings = {own: readings[own]}
    value = _best(units, readings, budget, places, seed)
    by_fold: dict[int, Value] = {}
    for fold in sorted(set(fold_of.values())):
        others = [place for place in places if fold_of[units[place].task] != fold]
        by_fold[fold] = _best(units, readings, budget, others, seed)
    held_out = [readings[by_fold[fold_of[units[at].task]]][at] for at in places]
    disturbed, gain = _figures(units, readings[value], places, seed)
    out_disturbed, out_gain = _figures(units, held_out, places, seed)
    note = ""
    if disturbed is not None and disturbed > budget:
        note = "no value keeps the budget: the least disturbing one"
    elif len(readings) == 1:
        note = f"showing so small a share takes {needed} clean runs: the profile's own value stays"
    return Choice(
        key=knob.key,
        value=value,
        limit=knob.limit,
        budget=budget,
        gain=knob.gain,
        n=len(clean),
        disturbed=_rounded(disturbed),
        found=_rounded(gain),
        held_out_disturbed=_rounded(out_disturbed),
        held_out_found=_rounded(out_gain),
        chosen_by_fold=tuple(by_fold.values()),
        note=note,
    )


def _best(
    units: Sequence[Unit],
    readings: Mapping[Value, Sequence[Reading]],
    budget: float,
    places: Sequence[int],
    seed: int,
) -> Value:
    """Return the value that gains most within the budget; where none keeps it, disturbs least."""

    def merit(value: Value) -> tuple[bool, float, float]:
        disturbed, gain = _figures(units, readings[value], places, seed)
        share = disturbed or 0.0
        # Differences below a thousandth are noise: they must not move a value.
        gained = round(gain or 0.0, 3)
        return (True, gained, -share) if share <= budget else (False, -share, gained)

    return max(readings, key=merit)


def _figures(
    units: Sequence[Unit], readings: Sequence[Reading], places: Sequence[int], seed: int
) -> tuple[float | None, float | None]:
    """Return the share of clean runs disturbed, and the gain."""
    disturbed = [readings[at].disturbed for at in places]
    clean = [each for each in disturbed if each is not None]
    share = sum(clean) / len(clean) if clean else None
    gains = [(units[at], gain) for at in places if (gain := readings[at].gain) is not None]
    if not gains:
        return share, None
    if any(unit.succeeded and unit.kind is None for unit, _ in gains):
        return share, _area(gains, seed)
    return share, sum(gain for _, gain in gains) / len(gains)


def _area(gains: Sequence[tuple[Unit, float]], seed: int) -> float | None:
    """Return the AUROC within tasks; over all runs where no task has both outcomes."""
    grouped = Grouped(
        [unit.task for unit, _ in gains], [unit.succeeded for unit, _ in gains], seed, resamples=1
    )
    scores = [score for _, score in gains]
    within = grouped.within_task(scores).value
    return grouped.pooled(scores).value if within is None else within


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
