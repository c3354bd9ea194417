"""Acting: what must happen to a run after a step, and what a halt or a resumption changes."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from ontrack.operators import abort, loop, repeats, stall
from ontrack.operators.profiles import Profile
from ontrack.operators.report import parent_halt
from ontrack.operators.state import RunState, counted
from ontrack.operators.verdict import VerdictOutput
from ontrack.topics.verdicts import Intervention, InterventionName


class Act(NamedTuple):
    """What must happen, why, and the steps that are the evidence."""

    wanted: InterventionName
    reason: str
    evidence: tuple[int, ...]


def act_on(
    profile: Profile,
    state: RunState,
    seq: int,
    output: VerdictOutput,
    density: abort.AbortSignal | None,
    steps: int,
) -> Act | None:
    """Say what must happen after a step; None: nothing.

    Parameters
    ----------
    state
        Before the step.
    density
        What the severe ones among the last steps say.
    steps
        Steps of the run, this one included.
    """
    if steps >= profile.steps_max:
        text = f"the run has reached {profile.steps_max} steps, the most a run may have"
        return Act(InterventionName.HALT, text, (seq,))
    reason = output.reasons[0].text if output.reasons else ""
    if density is not None and density.halt:
        severe = len(density.evidence)
        text = f"{severe} of the last {density.window} steps were severe; {reason}"
        return Act(InterventionName.HALT, text, density.evidence)
    wanted = output.intervention
    if wanted is None:
        return None
    lasts = episode_of(output) == state.episode or state.abort.halted
    if profile.once and lasts and wanted is not InterventionName.BLOCK:
        return None
    return Act(wanted, reason, output.evidence)


def episode_of(output: VerdictOutput) -> tuple[str, ...]:
    """Name what a verdict is about: as long as it stays the same, it is one and the same alarm."""
    return (output.name.value, *(reason.signal for reason in output.reasons[:1]))


def done(state: RunState, wanted: InterventionName) -> RunState:
    """Return a run to which an intervention was said."""
    halted = state.abort.halted or wanted is InterventionName.HALT
    return replace(
        state,
        abort=replace(state.abort, halted=halted),
        interventions=counted(state.interventions, wanted),
    )


def halt_by_parent(state: RunState, parent_run_id: str) -> tuple[RunState, Intervention]:
    """Halt a run because the one that started it was halted."""
    halts = state.interventions.get(InterventionName.HALT, 0)
    seq = max(state.highest, 0)
    said = parent_halt(state.stamp, state.identity, seq, parent_run_id, halts)
    return done(state, InterventionName.HALT), said


def resume(state: RunState) -> RunState:
    """Let a halted run go on: what was counted towards its halt is counted anew.

    What it has seen, done and obtained stays, so that prerequisites stay fulfilled.
    """
    return replace(
        state,
        abort=abort.AbortState(),
        episode=(),
        loop=loop.LoopState(),
        stall=stall.StallState(),
        repeats=repeats.RepeatState(),
    )
