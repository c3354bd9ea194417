"""Variants of the monitor: a profile with single parts switched off, as jobs can name them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from ontrack.pipeline.evaluation.watching import Setup, Watcher


@dataclass(frozen=True, slots=True)
class Variant:
    """A profile and changes to it, as JSON: values that can be compared and sent.

    Parameters
    ----------
    references
        Whether the monitor is given any; without, only the vital signs (L1) are left.
    """

    profile: str
    operators: str = "{}"
    references: bool = True

    @classmethod
    def of(
        cls, profile: str, operators: Mapping[str, Any] | None = None, references: bool = True
    ) -> Variant:
        """Return the variant with these changes."""
        return cls(profile, json.dumps(dict(operators or {}), sort_keys=True), references)

    def with_solver(self, **values: float) -> Variant:
        """Return the variant with other values of the solver."""
        operators = json.loads(self.operators)
        solver = operators.setdefault("transport", {}).setdefault("solver", {})
        solver |= values
        return Variant.of(self.profile, operators, self.references)


@lru_cache(maxsize=32)
def watcher_of(watcher: Watcher, variant: Variant) -> Watcher:
    """Return a watcher like this one under another variant; made once a process."""
    operators = json.loads(variant.operators)
    settings = watcher.settings.model_copy(
        update={"profile": variant.profile, "operators": operators, "calibration": None}
    )
    made = Watcher(
        Setup(settings, tuple(watcher.contracts.values()), tuple(watcher.recordings.values()))
    )
    made.encoder = watcher.encoder
    return made
