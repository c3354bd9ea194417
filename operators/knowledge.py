"""Knowledge: what a run is compared with, fixed at its first event."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ontrack.operators.references import ReferenceSet
from ontrack.operators.scoring_plan import TaskPlan
from ontrack.operators.selftest import SelfTest
from ontrack.operators.values import ReferenceValues
from ontrack.topics.knowledge import Provenance, ToolContract


@dataclass(frozen=True, slots=True)
class Knowledge:
    """Contracts, references and what was compiled from both.

    ``values`` and ``selftest`` belong to the references. ``plan`` is what the path is scored
    against; None where paths are not scored.
    """

    contracts: Mapping[str, ToolContract] = field(default_factory=dict)
    references: ReferenceSet | None = None
    values: ReferenceValues | None = None
    selftest: SelfTest | None = None
    plan: TaskPlan | None = None

    def provenance_of(self, best: int | None) -> Provenance | None:
        """Return where a reference comes from; None without one."""
        if self.references is None or best is None:
            return None
        return self.references.references[best].provenance

    def reference_id(self, best: int | None) -> str | None:
        """Return the id of a reference; None without one."""
        if self.references is None or best is None:
            return None
        return self.references.references[best].reference_id
