"""What was seen of the runs of one corpus, for the tables that look at whole or partial runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ontrack.pipeline.evaluation.corpus import Recording
from ontrack.pipeline.evaluation.policies import Course
from ontrack.pipeline.evaluation.tables_split import Split
from ontrack.pipeline.evaluation.tables_traces import Facts
from ontrack.pipeline.evaluation.watching import PROFILES

#: What ranks runs under each profile.
SCORE: Final = {"paper": "score", "default": "rank_score"}
CLASS_MIN: Final = 10  # runs a class, below which an area says nothing


@dataclass(frozen=True, slots=True)
class Watchings:
    """The evaluation runs of one corpus with what was seen of each, by profile and run id."""

    part: Split
    facts: Mapping[str, Mapping[str, Facts]]
    seed: int

    @property
    def runs(self) -> tuple[Recording, ...]:
        """The runs to evaluate."""
        return self.part.evaluation

    def column(self, runs: Sequence[Recording], k: int, name: str, profile: str) -> list[float]:
        """Return one score of each run; a run without one stands in the middle of the others."""
        found = [self.facts[profile][run.run_id].scores[k].get(name) for run in runs]
        present = sorted(each for each in found if each is not None)
        middle = present[len(present) // 2] if present else 0.0
        return [middle if each is None else each for each in found]

    def course(self, run: Recording, profile: str) -> Course:
        """Return what policies see of a run under a profile; the cosine is nobody's."""
        own, first = (self.facts[name][run.run_id].course for name in (profile, PROFILES[0]))
        return Course(own.severe, own.halt, first.cosine, own.spent)


def lacks(runs: Sequence[Recording], each: int = CLASS_MIN) -> str:
    """Say why runs cannot carry a comparison of successes and failures; empty where they can."""
    counts = Counter(run.succeeded for run in runs)
    if min(counts[True], counts[False]) >= each:
        return ""
    return f"{counts[True]} successes and {counts[False]} failures; it takes {each} of either"
