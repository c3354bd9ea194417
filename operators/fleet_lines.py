"""The lines of the fleet's minutes: which are due, and what they say."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from rpds import HashTrieMap

from ontrack.operators.fleet_state import Base, FleetParams, FleetState, Window
from ontrack.operators.savings import steps_saved
from ontrack.topics.fleet import MINUTE_MS, FleetAggregate, FleetGroup, GroupKey, line_id, minute_at

_MICRO = 1_000_000
_SAVED_DIGITS = 3


class Due(NamedTuple):
    """The state after it, the lines, and whether to ask again."""

    state: FleetState
    lines: list[FleetAggregate]
    more: bool


@dataclass(slots=True)
class _Running:
    """A group's sums up to and with the minute at hand."""

    open_runs: int
    lost_runs: int
    lost_steps: int

    def add(self, window: Window) -> None:
        self.open_runs += window.started - window.closed
        self.lost_runs += window.lost_runs
        self.lost_steps += window.lost_steps

    def saved_steps(self, window: Window, runs_min: int) -> float:
        """Return what halted runs saved; 0 where that cannot be told."""
        saved = steps_saved(window.halted.items(), self.lost_runs, self.lost_steps, runs_min)
        return round(saved / self.lost_runs, _SAVED_DIGITS) if saved else 0.0


def made(params: FleetParams, state: FleetState, partition: int | None) -> Due:
    """Make the lines that are due at the state's own time."""
    state = _skipped(params, state)
    ended = state.now_ms // MINUTE_MS - 1
    through = state.through
    if through is None:
        return Due(state, [], more=False)
    last = min(ended, through + params.minutes_max)
    final = min(_last_final(params, state), last)
    if not state.dirty and final <= through and last <= state.told:
        return Due(state, [], more=False)
    running = {
        key: _Running(base.open_runs, base.lost_runs, base.lost_steps)
        for key, base in state.bases.items()
    }
    lines: list[FleetAggregate] = []
    for minute in range(through + 1, last + 1):
        state, told = _minute(params, state, running, minute, minute <= final)
        lines += [_line(minute, key, window, minute <= final, partition) for key, window in told]
    state = replace(state, through=max(through, final), told=max(state.told, last), dirty=False)
    return Due(_fewer_groups(params, state), lines, more=last < ended)


def _last_final(params: FleetParams, state: FleetState) -> int:
    return (state.now_ms - params.lateness_ms) // MINUTE_MS - 1


def _skipped(params: FleetParams, state: FleetState) -> FleetState:
    """Pass over minutes without anything: before the first window, where no run is open."""
    if any(base.open_runs for base in state.bases.values()):
        return state
    if state.through is None and not len(state.windows):
        return state
    # Never beyond what is final: an earlier minute may still come.
    empty = _last_final(params, state)
    empty = min(empty, min(state.windows, default=empty + 1) - 1)
    return replace(state, through=empty if state.through is None else max(state.through, empty))


def _minute(
    params: FleetParams,
    state: FleetState,
    running: dict[GroupKey, _Running],
    minute: int,
    is_final: bool,
) -> tuple[FleetState, list[tuple[GroupKey, Window]]]:
    """Return the windows of one minute that are to be told; a final one moves to the sums."""
    lines: list[tuple[GroupKey, Window]] = []
    at: HashTrieMap[GroupKey, Window] = state.windows.get(minute, HashTrieMap())
    bases = state.bases
    keys = {*at, *(key for key, sums in running.items() if sums.open_runs)}
    for key in sorted(keys, key=lambda key: key.text):
        window, sums = at.get(key, Window()), running[key]
        sums.add(window)
        told = sums.open_runs, sums.saved_steps(window, params.baseline_runs_min)
        if is_final or window.changed or told != window.told:
            window = replace(window, revision=window.revision + 1, changed=False, told=told)
            lines.append((key, window))
            at = at.insert(key, window)
        if is_final:
            bases = bases.insert(key, Base(sums.open_runs, sums.lost_runs, sums.lost_steps, minute))
    if is_final or not len(at):
        windows = state.windows.discard(minute)
    else:
        windows = state.windows.insert(minute, at)
    return replace(state, windows=windows, bases=bases), lines


def _line(
    minute: int, key: GroupKey, window: Window, is_final: bool, partition: int | None
) -> FleetAggregate:
    begins = minute_at(minute)
    open_runs, saved_steps = window.told
    return FleetAggregate(
        id=line_id(begins, partition, key),
        minute=begins,
        partition=partition,
        group=FleetGroup(agent=key.agent, task_id=key.task_id, tenant=key.tenant),
        open_runs=open_runs,
        started=window.started,
        finished=_sorted(window.finished),
        verdicts=_sorted(window.verdicts),
        interventions=_sorted(window.interventions),
        blocks=window.blocks,
        unsafe_runs=window.unsafe_runs,
        unsafe_checked=window.unsafe_checked,
        over_budget_runs=window.over_budget_runs,
        budgeted_runs=window.budgeted_runs,
        steps=_sorted(window.steps),
        cost_usd={name: micro / _MICRO for name, micro in sorted(window.cost.items())},
        saved_steps=saved_steps,
        late=window.late,
        revision=window.revision,
        final=is_final,
    )


def _sorted(counts: HashTrieMap[str, int]) -> dict[str, int]:
    return dict(sorted(counts.items()))


def _fewer_groups(params: FleetParams, state: FleetState) -> FleetState:
    """Forget groups in which nothing goes on, where there are as many as there may be."""
    if len(state.bases) < params.groups_max:
        return state
    busy = {key for at in state.windows.values() for key in at}
    busy |= {run.group for run in state.runs.values() if run.group is not None}
    quiet = sorted(
        (base.minute, key.text, key)
        for key, base in state.bases.items()
        if key not in busy and base.open_runs == 0
    )
    bases = state.bases
    for _, _, key in quiet[: max(1, params.groups_max // 10)]:
        bases = bases.remove(key)
    return replace(state, bases=bases)
