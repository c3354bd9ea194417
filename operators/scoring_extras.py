"""Extras: what the calls over budget were: recovery, redundant repeats, or exploration.

The rule: calls are counted in the order of the run; those that come after the budget is used up
are over budget, and each of them is exactly one kind, by the first test that holds:

* ``recovery``: the call right before it failed, or this very call failed when it was last made;
* ``redundant_repeat``: an earlier call, within the budget or not, had the same tool and canonical
  arguments and brought the same result;
* ``exploration``: neither.

The kinds add up to the calls over budget. That is counted twice, by kind here and by steps in the
budget, and compared: a shortfall is an error of ours and is raised, not hidden in the residual.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from hashlib import blake2b
from typing import NamedTuple

from ontrack.operators.failing import has_failed
from ontrack.operators.scoring_repeats import HASH_BYTES, find, name_hash
from ontrack.operators.volatile import canonical_arguments, canonical_result
from ontrack.topics.events import Step
from ontrack.topics.knowledge import ToolContract

_PAIR_BYTES = 2 * HASH_BYTES


class InternalError(AssertionError):
    """Figures that must agree by definition do not: a defect of OnTrack, not of the input."""


class ExtraKind(StrEnum):
    """What a call over budget was."""

    RECOVERY = "recovery"
    REDUNDANT_REPEAT = "redundant_repeat"
    EXPLORATION = "exploration"


@dataclass(frozen=True, slots=True)
class Extras:
    """Calls over budget, by kind."""

    recovery: int = 0
    redundant_repeat: int = 0
    exploration: int = 0

    @property
    def total(self) -> int:
        """All of them."""
        return self.recovery + self.redundant_repeat + self.exploration

    def waste(self, recovery_is_waste: bool = False) -> int:
        """Return the calls to be saved; a retry after a failure is none unless asked for."""
        return self.total - (0 if recovery_is_waste else self.recovery)


@dataclass(frozen=True, slots=True)
class CallMemory:
    """The calls of a run so far, as hashes.

    Parameters
    ----------
    pairs
        16 bytes a call with its result, the ones longest ago first; each once.
    failed
        8 bytes a call that failed when it was last made, the ones longest ago first.
    after_error
        The last call failed.
    """

    pairs: bytes = b""
    failed: bytes = b""
    after_error: bool = False


class CanonicalCall(NamedTuple):
    """A step without what is volatile: see :mod:`ontrack.operators.volatile`."""

    arguments: bytes
    result: bytes


def canonical(event: Step, contract: ToolContract | None, text_bytes_max: int) -> CanonicalCall:
    """Write down a step so that repeats become equal."""
    identity = None if contract is None else contract.identity
    return CanonicalCall(
        canonical_arguments(event.args, text_bytes_max, identity, masked=False),
        canonical_result(event.result, event.error, text_bytes_max),
    )


def step(
    memory: CallMemory, event: Step, call: CanonicalCall, calls_max: int
) -> tuple[CallMemory, ExtraKind]:
    """Tell what kind of extra a call would be, and remember it.

    The memory holds the last ``calls_max`` different calls with their results; a repeat of what
    was forgotten counts as exploration.
    """
    asked = name_hash(event.tool) + call.arguments
    digest = blake2b(asked, digest_size=HASH_BYTES).digest()
    pair = digest + blake2b(call.result, digest_size=HASH_BYTES).digest()
    known, failed_at = find(memory.pairs, pair) >= 0, find(memory.failed, digest)
    if memory.after_error or failed_at >= 0:
        kind = ExtraKind.RECOVERY
    elif known:
        kind = ExtraKind.REDUNDANT_REPEAT
    else:
        kind = ExtraKind.EXPLORATION
    failed = memory.failed
    if failed_at >= 0:
        failed = failed[:failed_at] + failed[failed_at + HASH_BYTES :]
    failed_now = has_failed(event.error, call.result)
    if failed_now:
        failed = (failed + digest)[-calls_max * HASH_BYTES :]
    pairs = memory.pairs if known else (memory.pairs + pair)[-calls_max * _PAIR_BYTES :]
    return CallMemory(pairs, failed, failed_now), kind


def counted(extras: Extras, kind: ExtraKind) -> Extras:
    """Count one more call over budget."""
    if kind is ExtraKind.RECOVERY:
        return replace(extras, recovery=extras.recovery + 1)
    if kind is ExtraKind.REDUNDANT_REPEAT:
        return replace(extras, redundant_repeat=extras.redundant_repeat + 1)
    return replace(extras, exploration=extras.exploration + 1)


def checked(extras: Extras, over_budget_by: int) -> Extras:
    """Return the extras if they add up to the calls over budget.

    Raises
    ------
    InternalError
        They do not.
    """
    if extras.total != over_budget_by:
        raise InternalError(
            f"{over_budget_by} calls are over budget, but their kinds add up to {extras.total}: "
            f"{extras}; please report this as a defect of OnTrack"
        )
    return extras
