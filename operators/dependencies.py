"""What a recorded run says about which of its steps depend on which."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ontrack.solver.arrays import Bools
from ontrack.topics.events import Step
from ontrack.topics.knowledge import ReferenceStep


def declared_order(steps: Sequence[object]) -> Bools:
    """Return who has to come before whom, (m, m): ``before[j, k]`` for j < k, not transitive.

    A step that declares ``parents`` or ``consumed``, be they empty, depends on these parents and on
    the last steps before it that produced what it consumed, and on nothing else. A step that
    declares neither, or is no step of a recording, keeps its place: it comes after all before it.
    Parents that are not among the steps before it are passed over.

    Parameters
    ----------
    steps
        In the order of the recording.
    """
    before = np.zeros((len(steps), len(steps)), dtype=np.bool_)
    place_of: dict[int, int] = {}
    producer: dict[str, int] = {}
    for k, step in enumerate(steps):
        if not declares(step):
            before[:k, k] = True
        if isinstance(step, Step | ReferenceStep):
            found = [place_of.get(seq) for seq in step.parents or ()]
            found += [producer.get(artifact) for artifact in step.consumed or ()]
            for j in found:
                if j is not None:
                    before[j, k] = True
            place_of.setdefault(k if step.seq is None else step.seq, k)
            producer.update((artifact, k) for artifact in step.produced or ())
    return before


def declares(step: object) -> bool:
    """Tell whether a step says what it depends on, if only that it depends on nothing."""
    return isinstance(step, Step | ReferenceStep) and not (
        step.parents is None and step.consumed is None
    )
