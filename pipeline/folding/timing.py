"""How long the engine takes, measured around it: the fold itself knows no clock."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ontrack.pipeline.folding.fold import Fold
    from ontrack.pipeline.folding.partition import PartitionState
    from ontrack.pipeline.folding.record import Record, Said


Observe = Callable[[float], None]


def unobserved(_seconds: float) -> None:
    """Take a time and forget it."""


def timed_apply(
    fold: Fold, state: PartitionState, record: Record, observe: Observe = unobserved
) -> list[Said]:
    """Fold one record and tell how many seconds that took, in whichever thread it is done."""
    began = time.perf_counter()
    said = fold.apply(state, record)
    observe(time.perf_counter() - began)
    return said
