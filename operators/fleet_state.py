"""What the fleet aggregates remember: windows, runs, groups; and the same as plain values.

Everything is immutable. All limits hold for one partition:

========================= ============================================================
limit                     beyond it
========================= ============================================================
``groups_max``            a new group is counted as ``(others)``; groups without open
                          runs or open windows are forgotten first, and with them what
                          ``saved_steps`` compares with
``runs_max``              a new run is counted, but neither as started nor as open, and
                          its outputs count again when they are repeated
``ended_max``             the run that ended first is forgotten; were it repeated after
                          that, it would be counted as a new one
``ids_per_run_max``,      ids are no longer remembered: what is repeated counts again
``ids_max``
========================= ============================================================
"""

from __future__ import annotations

from dataclasses import astuple, dataclass, field, fields
from typing import Any, Final

from rpds import HashTrieMap

from ontrack.operators.savings import RUNS_MIN
from ontrack.topics.errors import InvalidSettings, InvalidSnapshot
from ontrack.topics.fleet import MINUTE_MS, NAME_MAX, GroupKey

_KIND: Final = "fleet-1"


@dataclass(frozen=True, slots=True)
class FleetParams:
    """Limits of the aggregates of one partition.

    Parameters
    ----------
    lateness_ms
        How long after its end a minute takes what belongs to it.
    silent_ms
        A run without an output for so long is no longer open; longer than the time after which
        the monitor itself closes a silent run.
    seq_max
        Verdicts of steps below it are remembered as one bit each.
    baseline_runs_min
        Failed runs of a group that ``saved_steps`` needs for a comparison.
    minutes_max
        Minutes that one call of ``due`` goes on at most.

    Raises
    ------
    InvalidSettings
        A limit is below 1, or ``minutes_max`` does not exceed the lateness.
    """

    lateness_ms: int = 600_000
    silent_ms: int = 25_200_000
    groups_max: int = 1000
    runs_max: int = 20_000
    ended_max: int = 20_000
    seq_max: int = 8192
    ids_per_run_max: int = 1024
    ids_max: int = 200_000
    baseline_runs_min: int = RUNS_MIN
    minutes_max: int = 60

    def __post_init__(self) -> None:
        if (
            min(astuple(self)) < 1
            or self.minutes_max * MINUTE_MS < self.lateness_ms + 2 * MINUTE_MS
        ):
            raise InvalidSettings(
                f"fleet limits {self}: expected each at least 1, and minutes_max to be two minutes "
                "longer than lateness_ms"
            )


@dataclass(frozen=True, slots=True)
class Window:
    """One minute of one group.

    Parameters
    ----------
    closed
        Open runs that ended, or fell silent for good.
    cost
        By outcome, in millionths of a dollar: whole numbers add up the same in any order.
    lost_runs, lost_steps
        Of failed and cancelled runs that were not halted.
    halted
        Halted runs that ended without success, by their steps.
    changed
        Whether something was counted since the last line.
    told
        ``open_runs`` and ``saved_steps`` of the last line.
    """

    started: int = 0
    closed: int = 0
    finished: HashTrieMap[str, int] = field(default_factory=HashTrieMap)
    verdicts: HashTrieMap[str, int] = field(default_factory=HashTrieMap)
    interventions: HashTrieMap[str, int] = field(default_factory=HashTrieMap)
    blocks: int = 0
    unsafe_runs: int = 0
    unsafe_checked: int = 0
    over_budget_runs: int = 0
    budgeted_runs: int = 0
    steps: HashTrieMap[str, int] = field(default_factory=HashTrieMap)
    cost: HashTrieMap[str, int] = field(default_factory=HashTrieMap)
    lost_runs: int = 0
    lost_steps: int = 0
    halted: HashTrieMap[int, int] = field(default_factory=HashTrieMap)
    late: int = 0
    revision: int = 0
    changed: bool = True
    told: tuple[int, float] = (0, 0.0)


@dataclass(frozen=True, slots=True)
class Base:
    """What a group's final minutes come to: open runs, failed runs without a halt, the last one."""

    open_runs: int = 0
    lost_runs: int = 0
    lost_steps: int = 0
    minute: int = -1


@dataclass(frozen=True, slots=True)
class Run:
    """One run, from its first output until its end cannot be revised any more.

    Parameters
    ----------
    group, first_ms
        Of its earliest output, which started it; None while only the gate has spoken of it.
    last_ms
        Of its latest output.
    closed
        Minute in which it was counted as closed.
    seqs
        Steps with a verdict, a bit each.
    ids
        Digests of other ids.
    check
        Minute of the wheel at which it is looked at again.
    """

    group: GroupKey | None = None
    first_ms: int | None = None
    last_ms: int = -1
    closed: int | None = None
    seqs: int = 0
    ids: HashTrieMap[bytes, None] = field(default_factory=HashTrieMap)
    check: int = -1


@dataclass(frozen=True, slots=True)
class FleetState:
    """Aggregates of one partition.

    Parameters
    ----------
    now_ms
        The latest time of an output, or told to ``due``; it never goes back.
    through
        The last minute that is final; None before the first.
    told
        The last minute of which lines were made.
    dirty
        Whether a minute that was told has changed since.
    windows
        By minute and group, later than ``through``.
    bases
        Sums of final minutes by group; every known group has one.
    runs
        By digest of the run id.
    wheel
        By minute, the runs to look at then: each run stands in one place.
    swept
        The last minute of the wheel that was looked at.
    ended, ended_order, ended_first
        Digests of runs that ended before, and the same by number, in the order in which they are
        forgotten; which number is the first.
    ids
        Ids remembered, over all runs.
    untracked
        Outputs of runs beyond ``runs_max``.
    """

    now_ms: int = -1
    through: int | None = None
    told: int = -1
    dirty: bool = False
    windows: HashTrieMap[int, HashTrieMap[GroupKey, Window]] = field(default_factory=HashTrieMap)
    bases: HashTrieMap[GroupKey, Base] = field(default_factory=HashTrieMap)
    runs: HashTrieMap[bytes, Run] = field(default_factory=HashTrieMap)
    wheel: HashTrieMap[int, HashTrieMap[bytes, None]] = field(default_factory=HashTrieMap)
    swept: int = -1
    ended: HashTrieMap[bytes, None] = field(default_factory=HashTrieMap)
    ended_order: HashTrieMap[int, bytes] = field(default_factory=HashTrieMap)
    ended_first: int = 0
    ids: int = 0
    untracked: int = 0


def dump(state: FleetState) -> list[Any]:
    """Return a state as plain values: texts, bytes, numbers and lists; equal ones for equal states.

    What follows from the rest (the wheel, the count of ids) is left out.
    """
    groups = sorted(state.bases, key=lambda key: key.text)
    place = {key: number for number, key in enumerate(groups)}
    windows = [
        [minute, place[key], *(_plain(getattr(window, item.name)) for item in fields(Window))]
        for minute, at in sorted(state.windows.items())
        for key, window in sorted(at.items(), key=lambda item: place[item[0]])
    ]
    runs = [
        [
            digest,
            None if run.group is None else place[run.group],
            run.first_ms,
            run.last_ms,
            run.closed,
            run.seqs.to_bytes((run.seqs.bit_length() + 7) // 8, "little"),
            sorted(run.ids),
            run.check,
        ]
        for digest, run in sorted(state.runs.items())
    ]
    return [
        _KIND,
        [state.now_ms, state.through, state.told, state.dirty, state.swept, state.untracked],
        [[*key, *astuple(state.bases[key])] for key in groups],
        windows,
        runs,
        [digest for _, digest in sorted(state.ended_order.items())],
    ]


def load(parts: Any) -> FleetState:
    """Return the state that :func:`dump` was given.

    Raises
    ------
    InvalidSnapshot
        It is something else, or was written by another version.
    """
    try:
        kind, scalars, bases, windows, runs, ended = parts
        if kind != _KIND:
            raise ValueError(f"kind {kind!r}")
        return _loaded(scalars, bases, windows, runs, ended)
    except (ValueError, TypeError, IndexError, AttributeError) as error:
        raise InvalidSnapshot(
            f"the fleet's state is not of this version ({error}); it is made anew from the outputs"
        ) from None


def _loaded(scalars: Any, bases: Any, windows: Any, runs: Any, ended: Any) -> FleetState:
    groups = [GroupKey(*row[:3]) for row in bases]
    if any(len(name or "") > NAME_MAX for group in groups for name in group):
        raise ValueError("a name that is too long for a line")  # no worker got past that line
    by_minute: dict[int, HashTrieMap[GroupKey, Window]] = {}
    for minute, place, *values in windows:
        at = by_minute.get(minute, HashTrieMap())
        by_minute[minute] = at.insert(groups[place], _window(values))
    known: dict[bytes, Run] = {}
    wheel: dict[int, HashTrieMap[bytes, None]] = {}
    for digest, place, first_ms, last_ms, closed, seqs, ids, check in runs:
        known[digest] = Run(
            None if place is None else groups[place],
            first_ms,
            last_ms,
            closed,
            int.from_bytes(seqs, "little"),
            HashTrieMap(dict.fromkeys(ids)),
            check,
        )
        wheel[check] = wheel.get(check, HashTrieMap()).insert(digest, None)
    now_ms, through, told, dirty, swept, untracked = scalars
    return FleetState(
        now_ms,
        through,
        told,
        dirty,
        HashTrieMap(by_minute),
        HashTrieMap({key: Base(*row[3:]) for key, row in zip(groups, bases, strict=True)}),
        HashTrieMap(known),
        HashTrieMap(wheel),
        swept,
        HashTrieMap(dict.fromkeys(ended)),
        HashTrieMap(dict(enumerate(ended))),
        0,
        sum(len(run.ids) for run in known.values()),
        untracked,
    )


def _window(values: list[Any]) -> Window:
    named = dict(zip([item.name for item in fields(Window)], values, strict=True))
    for name in ("finished", "verdicts", "interventions", "steps", "cost", "halted"):
        named[name] = HashTrieMap(dict(named[name]))
    named["told"] = tuple(named["told"])
    return Window(**named)


def _plain(value: Any) -> Any:
    return sorted(value.items()) if isinstance(value, HashTrieMap) else value
