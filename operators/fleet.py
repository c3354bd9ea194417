"""Fleet: what the runs of each group did in each minute, from the outputs of one partition.

:func:`step` counts an output in the minute of its time; :func:`due` makes the lines of minutes that
have ended, and again of those that have changed since. What a final line says is a function of the
outputs and their times, as long as each comes within the lateness: of their order it is not, and
an output that is repeated later (workers do that after a crash) changes nothing.

* A run starts with its earliest verdict, intervention or scorecard, whichever is read first, and is
  open, in the group of that output, until its scorecard.
* Everything else counts in the minute and the group of the output that says it.
* Halted are runs whose scorecard counts a halt that was said. What they saved is estimated by
  :mod:`ontrack.operators.savings`, against the lost runs of the group up to the same minute.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Final, TypeVar

from rpds import HashTrieMap

from ontrack.operators.fleet_lines import Due, made
from ontrack.operators.fleet_state import Base, FleetParams, FleetState, Run, Window
from ontrack.operators.savings import Part, part_of
from ontrack.topics.fleet import MINUTE_MS, OTHERS, GroupKey, group_of
from ontrack.topics.verdicts import (
    Decision,
    Intervention,
    Output,
    Scorecard,
    Verdict,
    was_halted,
)

_ID_BYTES: Final = 16
_MICRO: Final = 1_000_000
_COST_MAX: Final = 1e9  # a price beyond it is none
_TIME_MS_MAX: Final = 253_370_764_800_000  # the year 9999: no calendar goes further
_OTHERS: Final = GroupKey(OTHERS, OTHERS, OTHERS)

Told = Verdict | Intervention | Decision | Scorecard
Name = TypeVar("Name", str, int)


def step(params: FleetParams, state: FleetState, output: Output, time_ms: int) -> FleetState:
    """Count an output.

    What was counted before (the same id) changes nothing, nor does an output of a run whose end is
    final. What comes too late for its minute is counted as late, in the latest minute, and nowhere
    else; a run that ends so is no longer open.

    Parameters
    ----------
    time_ms
        The broker's time of the output, in ms since 1970.
    """
    if not isinstance(output, Told):
        return state
    time_ms = min(max(0, time_ms), _TIME_MS_MAX)
    state = replace(state, now_ms=max(state.now_ms, time_ms))
    if isinstance(output, Decision) and output.decision != "block":
        return state
    digest = _digest(output.run_id)
    if digest in state.ended:
        return state
    run = state.runs.get(digest)
    if run is None and len(state.runs) >= params.runs_max:
        return _count(params, replace(state, untracked=state.untracked + 1), output, time_ms)
    run = run or Run()
    if _is_known(params, run, output):
        return state
    state, run = _remember(params, state, run, output, max(run.last_ms, time_ms))
    group = group_of(output)
    if not _is_late(params, state, time_ms // MINUTE_MS):
        if not isinstance(output, Decision):
            state, run = _start(params, state, run, group, time_ms)
        if isinstance(output, Scorecard):
            state, run = _close(params, state, run, time_ms // MINUTE_MS)
    elif isinstance(output, Scorecard):
        state, run = _close(params, state, run, state.now_ms // MINUTE_MS)
    state = _count(params, state, output, time_ms)
    return _kept(params, state, digest, run)


def due(params: FleetParams, state: FleetState, now_ms: int, partition: int | None = None) -> Due:
    """Make the lines that are due: of minutes that ended, changed after that, or are final now.

    A group has a line for each minute in which something was counted or runs were open. One call
    goes on by ``minutes_max`` minutes at most; where it says ``more``, call it again.

    Parameters
    ----------
    now_ms
        The broker's time; everything that it had appended before should have been counted.
    partition
        For the lines.
    """
    state = replace(state, now_ms=max(state.now_ms, now_ms))
    return made(params, _sweep(params, state), partition)


def _count(params: FleetParams, state: FleetState, output: Told, time_ms: int) -> FleetState:
    minute, counted = time_ms // MINUTE_MS, _counter_of(output)
    if _is_late(params, state, minute):
        minute, counted = state.now_ms // MINUTE_MS, _count_late
    return _change(params, state, minute, group_of(output), counted)[0]


def _counter_of(output: Told) -> Callable[[Window], Window]:
    if isinstance(output, Verdict):
        name = output.verdict.value
        return lambda w: replace(w, changed=True, verdicts=_plus(w.verdicts, name))
    if isinstance(output, Intervention):
        wanted = output.intervention.value
        return lambda w: replace(w, changed=True, interventions=_plus(w.interventions, wanted))
    if isinstance(output, Scorecard):
        card = output
        return lambda w: _finished(w, card)
    return lambda w: replace(w, changed=True, blocks=w.blocks + 1)


def _count_late(window: Window) -> Window:
    return replace(window, changed=True, late=window.late + 1)


def _finished(window: Window, card: Scorecard) -> Window:
    """Count a run that ended."""
    part = part_of(card.outcome, was_halted(card))
    is_lost = part is Part.LOST
    cost = card.cost_usd
    if cost is not None and math.isfinite(cost) and abs(cost) <= _COST_MAX:
        window = replace(window, cost=_plus(window.cost, card.outcome, round(cost * _MICRO)))
    if part is Part.STOPPED:
        window = replace(window, halted=_plus(window.halted, card.steps))
    return replace(
        window,
        changed=True,
        finished=_plus(window.finished, card.outcome),
        steps=_plus(window.steps, card.outcome, card.steps),
        unsafe_runs=window.unsafe_runs + bool(card.unsafe_count),
        unsafe_checked=window.unsafe_checked + (card.unsafe_count is not None),
        over_budget_runs=window.over_budget_runs + bool(card.over_budget_by),
        budgeted_runs=window.budgeted_runs + (card.step_budget is not None),
        lost_runs=window.lost_runs + is_lost,
        lost_steps=window.lost_steps + (card.steps if is_lost else 0),
    )


def _start(
    params: FleetParams, state: FleetState, run: Run, group: GroupKey, time_ms: int
) -> tuple[FleetState, Run]:
    """Count a run as started; where an earlier output of it comes, it started then."""
    if run.first_ms is not None and run.group is not None:
        is_tie = time_ms == run.first_ms and group != run.group
        # Of two at one time the group decides, so that their order does not.
        if time_ms >= run.first_ms and not (is_tie and group.text < run.group.text):
            return state, run
        state = _add_started(params, state, run.first_ms // MINUTE_MS, run.group, -1)[0]
    state, own = _add_started(params, state, time_ms // MINUTE_MS, group, 1)
    if run.closed is not None:
        closed = _not_final(state, run.closed)
        if run.group is not None:
            state = _add_closed(params, state, closed, run.group, -1)
        state = _add_closed(params, state, closed, own, 1)
    return state, replace(run, group=own, first_ms=time_ms)


def _close(params: FleetParams, state: FleetState, run: Run, minute: int) -> tuple[FleetState, Run]:
    """Count a run as open no longer; one that never started has only ended."""
    if run.group is not None:
        state = _add_closed(params, state, minute, run.group, 1)
    return state, replace(run, closed=minute)


def _add_started(
    params: FleetParams, state: FleetState, minute: int, group: GroupKey, count: int
) -> tuple[FleetState, GroupKey]:
    return _change(
        params,
        state,
        minute,
        group,
        lambda w: replace(w, changed=True, started=w.started + count),
    )


def _add_closed(
    params: FleetParams, state: FleetState, minute: int, group: GroupKey, count: int
) -> FleetState:
    return _change(
        params,
        state,
        minute,
        group,
        lambda w: replace(w, changed=True, closed=w.closed + count),
    )[0]


def _change(
    params: FleetParams,
    state: FleetState,
    minute: int,
    group: GroupKey,
    change: Callable[[Window], Window],
) -> tuple[FleetState, GroupKey]:
    """Change a window; return the group that it was counted for, too.

    ``change`` also marks the window as changed: one copy of it is enough.
    """
    if group not in state.bases:
        if len(state.bases) >= params.groups_max:
            group = _OTHERS
        if group not in state.bases:
            state = replace(state, bases=state.bases.insert(group, Base()))
    at: HashTrieMap[GroupKey, Window] = state.windows.get(minute, HashTrieMap())
    at = at.insert(group, change(at.get(group) or Window()))
    windows = state.windows.insert(minute, at)
    return replace(state, windows=windows, dirty=state.dirty or minute <= state.told), group


def _not_final(state: FleetState, minute: int) -> int:
    """Return the minute, or the latest one where it is final."""
    is_final = state.through is not None and minute <= state.through
    return state.now_ms // MINUTE_MS if is_final else minute


def _is_late(params: FleetParams, state: FleetState, minute: int) -> bool:
    is_over = (minute + 1) * MINUTE_MS + params.lateness_ms <= state.now_ms
    return is_over or (state.through is not None and minute <= state.through)


def _is_known(params: FleetParams, run: Run, output: Told) -> bool:
    if isinstance(output, Scorecard):
        return run.closed is not None
    if isinstance(output, Verdict) and 0 <= output.seq < params.seq_max:
        return bool(run.seqs >> output.seq & 1)
    return _digest(output.id) in run.ids


def _remember(
    params: FleetParams, state: FleetState, run: Run, output: Told, last_ms: int
) -> tuple[FleetState, Run]:
    if isinstance(output, Verdict) and 0 <= output.seq < params.seq_max:
        return state, replace(run, seqs=run.seqs | 1 << output.seq, last_ms=last_ms)
    is_full = len(run.ids) >= params.ids_per_run_max or state.ids >= params.ids_max
    if isinstance(output, Scorecard) or is_full:  # the end is remembered by itself
        return state, replace(run, last_ms=last_ms)
    ids = run.ids.insert(_digest(output.id), None)
    return replace(state, ids=state.ids + 1), replace(run, ids=ids, last_ms=last_ms)


def _kept(params: FleetParams, state: FleetState, digest: bytes, run: Run) -> FleetState:
    """Keep a run, at its place in the wheel."""
    check = run.check if run.check > state.swept and run.closed is None else -1
    if check < 0:
        check = max(_deadline_ms(params, run) // MINUTE_MS, state.swept) + 1
    if check == run.check:
        return replace(state, runs=state.runs.insert(digest, run))
    wheel = _without(state.wheel, run.check, digest)
    wheel = wheel.insert(check, wheel.get(check, HashTrieMap()).insert(digest, None))
    runs = state.runs.insert(digest, replace(run, check=check))
    return replace(state, runs=runs, wheel=wheel)


def _deadline_ms(params: FleetParams, run: Run) -> int:
    """Return when a run is forgotten, unless it is heard of before."""
    if run.closed is None:
        return run.last_ms + params.silent_ms
    return max(run.last_ms, (run.closed + 1) * MINUTE_MS) + params.lateness_ms


def _sweep(params: FleetParams, state: FleetState) -> FleetState:
    """Forget runs that ended long enough ago, and those that have been silent for too long."""
    now = state.now_ms // MINUTE_MS
    if now <= state.swept:
        return state
    passed = sorted(minute for minute in state.wheel if minute <= now)
    state = replace(state, swept=now)
    for minute in passed:
        for digest in sorted(state.wheel[minute]):
            run = state.runs[digest]
            deadline_ms = _deadline_ms(params, run)
            if deadline_ms // MINUTE_MS >= now:
                state = _kept(params, state, digest, run)
                continue
            if run.closed is None and run.group is not None:
                silent = _not_final(state, deadline_ms // MINUTE_MS)
                state = _add_closed(params, state, silent, run.group, 1)
            state = _forget(params, state, digest, run)
    return state


def _forget(params: FleetParams, state: FleetState, digest: bytes, run: Run) -> FleetState:
    state = replace(
        state,
        runs=state.runs.remove(digest),
        wheel=_without(state.wheel, run.check, digest),
        ids=state.ids - len(run.ids),
    )
    if run.closed is None:
        return state
    ended, order, first = state.ended, state.ended_order, state.ended_first
    ended, order = ended.insert(digest, None), order.insert(first + len(order), digest)
    while len(order) > params.ended_max:
        ended, order, first = ended.remove(order[first]), order.remove(first), first + 1
    return replace(state, ended=ended, ended_order=order, ended_first=first)


def _without(
    wheel: HashTrieMap[int, HashTrieMap[bytes, None]], minute: int, digest: bytes
) -> HashTrieMap[int, HashTrieMap[bytes, None]]:
    at = wheel.get(minute)
    if at is None:
        return wheel
    at = at.discard(digest)
    return wheel.insert(minute, at) if len(at) else wheel.remove(minute)


def _plus(counts: HashTrieMap[Name, int], name: Name, count: int = 1) -> HashTrieMap[Name, int]:
    return counts.insert(name, counts.get(name, 0) + count)


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=_ID_BYTES).digest()
