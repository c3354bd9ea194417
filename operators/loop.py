"""Loop score (L1): has this very call been made before in the run?

Table 1 of the paper: a near-duplicate predecessor in action, tool and arguments; duplicates of a
step that failed are exempt up to ``retries_max`` attempts.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ontrack.operators.canonical import call_key
from ontrack.operators.limits import require
from ontrack.operators.vectors import History, Vector
from ontrack.topics.events import Step


@dataclass(frozen=True, slots=True)
class LoopParams:
    """When a step counts as a repeat.

    Parameters
    ----------
    action_similarity_min
        Cosine between the stated intents above which they count as the same. Arguments must be
        equal: static embeddings cannot tell one order number from another.
    retries_max
        r_max: repeats of a failed step that are not a loop.
    window
        Predecessors remembered; older ones cannot be repeated.
    """

    action_similarity_min: float = 0.9
    retries_max: int = 2
    window: int = 64

    def __post_init__(self) -> None:
        require(self, 1, 4096, "window")
        require(self, 0, 100, "retries_max")
        require(self, -1.0, 1.0, "action_similarity_min")


@dataclass(frozen=True, slots=True)
class Predecessor:
    """A remembered step: its call, place, whether it failed, whether it had an intent."""

    key: bytes
    seq: int
    failed: bool
    has_action: bool


@dataclass(frozen=True, slots=True)
class LoopState:
    """The last ``window`` steps."""

    predecessors: tuple[Predecessor, ...] = ()
    actions: History = field(default_factory=History)


@dataclass(frozen=True, slots=True)
class LoopSignal:
    """``score`` 1 for a repeat, 0 otherwise; ``repeats`` are the earlier steps."""

    score: float
    repeats: tuple[int, ...]
    exempt: bool


def step(
    params: LoopParams,
    state: LoopState,
    seq: int,
    event: Step,
    action: Vector,
    is_poll: bool = False,
) -> tuple[LoopState, LoopSignal]:
    """Compare a step with its predecessors and remember it.

    A tool whose contract says that it is polled is meant to be called again: never a loop.
    """
    key = call_key(event.tool, event.args)
    # An intent without any known word ("...") has a zero vector: as good as none.
    has_action = bool(event.action) and bool(action.any())
    same = [i for i, before in enumerate(state.predecessors) if before.key == key]
    if same:
        similarity = state.actions.cosines(action, same)
        same = [
            i
            for i, cosine in zip(same, similarity.tolist(), strict=True)
            if not has_action
            or not state.predecessors[i].has_action
            or cosine >= params.action_similarity_min
        ]
    trailing_failures = 0
    for i in reversed(same):
        if not state.predecessors[i].failed:
            break
        trailing_failures += 1
    exempt = is_poll or 0 < trailing_failures <= params.retries_max
    repeats = tuple(state.predecessors[i].seq for i in same)
    signal = LoopSignal(1.0 if repeats and not exempt else 0.0, repeats, exempt)
    remembered = Predecessor(key, seq, event.error is not None, has_action)
    predecessors = (*state.predecessors, remembered)[-params.window :]
    return LoopState(predecessors, state.actions.push(action, params.window)), signal
