"""Mining: from the recorded successes of one task to a few references that differ.

Every run is stripped, and a few are kept: the most central one, then again and again the one
farthest from those kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import numpy as np
import numpy.typing as npt

from ontrack.operators.canonical import reference_id
from ontrack.operators.limits import require
from ontrack.operators.stripping import (
    CallKey,
    Contracts,
    StripParams,
    Stripped,
    call_key,
    numbered,
    strip_dead_ends,
    strip_retries,
)
from ontrack.solver.alignment import in_order
from ontrack.topics.knowledge import Effect, Mined, Provenance, Reference, ReferenceStep

Float = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class MiningParams:
    """How many are kept.

    Parameters
    ----------
    keep_min
        Successes kept although they repeat others: that several agree is worth knowing.
    keep_max
        References a task has at most.
    steps_max
        A longer run, after stripping, is no reference.
    compared_max
        Runs that are compared each with each; of more, this many spread evenly over their order.
    """

    keep_min: int = 3
    keep_max: int = 10
    steps_max: int = 128
    compared_max: int = 64
    strip: StripParams = StripParams()

    def __post_init__(self) -> None:
        require(self, 1, 1000, "keep_min", "keep_max", "compared_max")
        require(self, 1, 512, "steps_max")


@dataclass(frozen=True, slots=True)
class Success:
    """A recorded success: its steps in order, where it was read and when it ran."""

    run_id: str
    steps: tuple[ReferenceStep, ...]
    source: str = ""
    run_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class MinedTask:
    """What became of one task.

    Parameters
    ----------
    successes
        All of them.
    references
        Those kept, the most central first.
    too_long
        Successes left out for their length.
    """

    task_id: str
    successes: tuple[Success, ...]
    references: tuple[Reference, ...]
    too_long: int


def mine(
    params: MiningParams, contracts: Contracts, task_id: str, successes: Sequence[Success]
) -> MinedTask:
    """Strip the successes of one task and keep a few that differ.

    What comes out depends on the successes alone, not on their order.
    """
    ordered = sorted(successes, key=lambda success: (success.run_id, success.source))
    stripped = _stripped(params, contracts, ordered)
    short = [i for i, one in enumerate(stripped) if len(one.steps) <= params.steps_max]
    sequences = [CallSequence.of(params, contracts, stripped[place].steps) for place in short]
    kept = [short[place] for place in choose(params, sequences)]
    references = tuple(
        _reference(params, contracts, task_id, ordered[place], stripped[place], len(ordered))
        for place in kept
    )
    return MinedTask(task_id, tuple(ordered), references, len(ordered) - len(short))


@dataclass(frozen=True, slots=True)
class CallSequence:
    """A run as its calls: the tool and the whole call of each step."""

    tools: tuple[str, ...]
    calls: tuple[CallKey, ...]

    @classmethod
    def of(
        cls, params: MiningParams, contracts: Contracts, steps: Sequence[ReferenceStep]
    ) -> CallSequence:
        """Return the calls of steps."""
        return cls(
            tuple(step.tool for step in steps),
            tuple(call_key(params.strip, step, contracts) for step in steps),
        )


def choose(params: MiningParams, sequences: Sequence[CallSequence]) -> list[int]:
    """Return the places of those kept: the medoid, then greedily the farthest (max-min).

    The shorter one at a tie. From ``keep_min`` on a sequence that repeats one kept adds nothing.

    Source: Gonzalez (1985), farthest-first traversal.
    """
    if not sequences:
        return []
    count = len(sequences)
    places = list(range(count))
    if count > params.compared_max:
        spread = np.linspace(0, count - 1, params.compared_max).round().astype(int)
        places = sorted(set(spread.tolist()))
    apart = np.zeros((len(places), len(places)))
    for row, one in enumerate(places):
        for column in range(row):
            found = distance(sequences[one], sequences[places[column]])
            apart[row, column] = apart[column, row] = found
    lengths = [len(sequences[place].calls) for place in places]

    def best(score: Float) -> int:
        return min(range(len(places)), key=lambda at: (-round(float(score[at]), 9), lengths[at]))

    kept = [best(-apart.sum(axis=1))]
    nearest = apart[kept[0]].copy()
    while len(kept) < min(params.keep_max, len(places)):
        nearest[kept] = -1.0
        farthest = best(nearest)
        if nearest[farthest] <= 0.0 and len(kept) >= params.keep_min:
            break
        kept.append(farthest)
        nearest = np.minimum(nearest, apart[farthest])
    return [places[at] for at in kept]


def distance(one: CallSequence, other: CallSequence) -> float:
    """Return the edit distance of two call sequences, in [0, 1].

    Inserting or leaving out a call costs 1, another tool 1, the same tool with other arguments 0.5;
    divided by the longer one's length.

    Source: Levenshtein (1966), with a graded substitution; :mod:`ontrack.solver.alignment`.
    """
    ids: dict[object, int] = {}
    tools, calls = (
        [
            np.array([ids.setdefault(each, len(ids)) for each in names], dtype=np.int64)
            for names in pair
        ]
        for pair in ((one.tools, other.tools), (one.calls, other.calls))
    )
    longest = max(len(one.calls), len(other.calls))
    if not longest:
        return 0.0
    swap = np.where(
        calls[0][:, None] == calls[1], 0.0, np.where(tools[0][:, None] == tools[1], 0.5, 1.0)
    )
    return in_order(swap, np.ones(len(calls[0])), np.ones(len(calls[1]))).distance / longest


def _stripped(
    params: MiningParams, contracts: Contracts, successes: Sequence[Success]
) -> list[Stripped]:
    runs = [
        strip_retries(params.strip, numbered(success.steps), contracts) for success in successes
    ]
    own = [{call_key(params.strip, step, contracts) for step in run.steps} for run in runs]
    having = Counter(key for keys in own for key in keys)
    found = []
    for run, keys in zip(runs, own, strict=True):
        shared = {key for key in keys if having[key] > 1}
        ends = strip_dead_ends(params.strip, run.steps, contracts, shared, len(runs) - 1)
        found.append(Stripped(ends.steps, run.retries, ends.dead_ends))
    return found


def _reference(
    params: MiningParams,
    contracts: Contracts,
    task_id: str,
    success: Success,
    stripped: Stripped,
    successes: int,
) -> Reference:
    tools = sorted({step.tool for step in stripped.steps})
    effects: dict[str, Effect] = {
        tool: contracts[tool].effect for tool in tools if tool in contracts
    }
    return Reference(
        reference_id=reference_id(task_id, success.run_id, stripped.steps),
        task_id=task_id,
        provenance=Provenance.MINED,
        run_id=success.run_id,
        steps=stripped.steps,
        mined=Mined(
            source=success.source,
            run_at=success.run_at,
            successes=successes,
            retries=stripped.retries,
            dead_ends=stripped.dead_ends,
            effects=effects,
        ),
    )
