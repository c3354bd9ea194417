"""Recorded clean runs with one injection each: which run, which donors, by the seed alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from random import Random
from typing import Final, NamedTuple

from ontrack.pipeline.evaluation.corpus import Recording
from ontrack.pipeline.evaluation.inject import NotInjectable, inject
from ontrack.pipeline.workplace import simulate_run, task_ids
from ontrack.topics.events import Event
from ontrack.topics.knowledge import ToolContract

DONORS: Final = 20


class Injection(NamedTuple):
    """Events of a run with an injection, and the first step that is not as recorded."""

    events: list[Event]
    first: int


class Herd:
    """The recordings that donors are taken from.

    Parameters
    ----------
    recordings
        Of all corpora.
    contracts
        Tools by name.
    """

    def __init__(
        self, recordings: Sequence[Recording], contracts: Mapping[str, ToolContract]
    ) -> None:
        self._contracts = contracts
        self._by_corpus: dict[str, list[Recording]] = {}
        for run in recordings:
            self._by_corpus.setdefault(run.corpus, []).append(run)
        self._tools = {
            corpus: {step.tool for run in runs for step in run.steps}
            for corpus, runs in self._by_corpus.items()
        }

    def inject(self, kind: str, run: Recording, seed: int) -> Injection | None:
        """Return the run with one injection, or None where it offers no place for this kind."""
        rng = Random(f"{seed}|{kind}|{run.run_id}")
        donors = self._foreign(run, rng) if kind == "foreign_tool" else self._kin(run, rng)
        try:
            return Injection(*inject(kind, run.events, rng, donors, self._contracts))
        except NotInjectable:
            return None

    def _kin(self, run: Recording, rng: Random) -> list[list[Event]]:
        """Return runs of other tasks of the same corpus."""
        others = [other for other in self._by_corpus[run.corpus] if other.task != run.task]
        return [other.events for other in rng.sample(others, min(DONORS, len(others)))]

    def _foreign(self, run: Recording, rng: Random) -> list[list[Event]]:
        """Return runs of corpora that share no tool with this one; else of the workplace.

        Where this corpus is the workplace, runs of its other tasks are all there is.
        """
        own = self._tools[run.corpus]
        others = [
            other
            for corpus, runs in self._by_corpus.items()
            if not own & self._tools[corpus]
            for other in runs
        ]
        if others:
            return [other.events for other in rng.sample(others, min(DONORS, len(others)))]
        lent = [events for events, tools in _workplace() if not own & tools]
        return lent or self._kin(run, rng)


@lru_cache(maxsize=1)
def _workplace() -> list[tuple[list[Event], frozenset[str]]]:
    runs = [simulate_run(task_id, 0) for task_id in task_ids()]
    return [([*run.steps], frozenset(step.tool for step in run.steps)) for run in runs]


def clean_runs(
    recordings: Sequence[Recording],
    references: Mapping[str, Sequence[Recording]],
    seed: int,
) -> dict[str, list[Recording]]:
    """Return the successful runs of each corpus that have references, in an order by the seed."""
    found: dict[str, list[Recording]] = {}
    for run in recordings:
        if run.succeeded and references.get(run.run_id):
            found.setdefault(run.corpus, []).append(run)
    for corpus, runs in found.items():
        Random(f"{seed}|hosts|{corpus}").shuffle(runs)
    return found
