"""Confirming: no intervention rests on the fast path's coupling alone.

Where a step's verdict would intervene because of it, the converged solve is asked, and the step is
judged again by that.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from ontrack.operators import pooling, prefix
from ontrack.operators.judging import Judged, for_converged, judge
from ontrack.operators.profiles import Profile
from ontrack.operators.sensing import Sensed
from ontrack.operators.state import RunState


class Confirmed(NamedTuple):
    """A judgement that holds.

    Parameters
    ----------
    withdrawn
        The verdict of the fast path was another one.
    confirmed
        Whether a verdict that rests on the coupling was confirmed; None where none does.
    """

    judged: Judged
    withdrawn: bool = False
    confirmed: bool | None = None


def judge_and_confirm(profile: Profile, state: RunState, sensed: Sensed) -> Confirmed:
    """Judge a step; confirm or withdraw by the converged solve what would intervene.

    Parameters
    ----------
    state
        Before the step.
    """
    known, lifecycle = state.knowledge, profile.exploration
    references, moved = known.references, sensed.moved
    signals, consumed = sensed.signals, sensed.delta.consumed
    explored, followed = state.exploration, state.strategy
    judged = judge(profile, known, explored, followed, signals, consumed, lifecycle)
    if not judged.output.by_transport or judged.output.intervention is None:
        return Confirmed(judged)
    assert references is not None
    assert sensed.aligned_before is not None
    assert moved.transport is not None
    age = prefix.age_weights(profile.prefix, moved.prefix)
    converged = pooling.converge(
        profile.transport,
        references,
        sensed.aligned_before,
        moved.transport,
        moved.prefix.hops,
        age,
    )
    signals = replace(signals, alignment=converged)
    solved = judge(profile, known, explored, followed, signals, consumed, for_converged(lifecycle))
    confirmed = None
    if solved.output.by_transport:
        confirmed = solved.output.intervention is not None
    elif solved.output.intervention is None:
        confirmed = False
    return Confirmed(solved, solved.output.name != judged.output.name, confirmed)
