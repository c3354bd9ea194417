"""Faults and attacks, put into recorded clean runs: pure functions of their seed.

Each takes the events of one run and gives back other events with consecutive sequence numbers, and
the number of the first step that is not as it was recorded. What follows an inserted step stays as
recorded: the injections test detectors, they do not simulate what an agent would have done next.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random

from ontrack.operators.artifacts import ArtifactParams, extract
from ontrack.operators.ledger import LedgerParams, LedgerState
from ontrack.operators.ledger import step as enter
from ontrack.pipeline.evaluation.attacks import ATTACKS, NotInjectable, Source, attack_on
from ontrack.topics.events import ErrorInfo, Event, Step
from ontrack.topics.knowledge import ToolContract

FAULTS = (
    "loop",
    "stall",
    "foreign_tool",
    "splice",
    "inversion",
    "tool_error",
    "missing_artifact",
)
KINDS = (*FAULTS, "malicious_call", *(f"malicious_call:{attack}" for attack in ATTACKS))
"""Everything that can be injected; ``malicious_call`` draws one of :data:`ATTACKS`."""

__all__ = ["ATTACKS", "FAULTS", "KINDS", "NotInjectable", "inject"]

LOOP_STEPS, STALL_STEPS, FOREIGN_STEPS, SPLICE_STEPS_MIN = 8, 8, 3, 3

Donors = Sequence[Sequence[Event]]


def inject(
    kind: str,
    events: Sequence[Event],
    rng: Random,
    donors: Donors = (),
    contracts: Mapping[str, ToolContract] | None = None,
) -> tuple[list[Event], int]:
    """Return the events with one injection, and the sequence number of its first step.

    Parameters
    ----------
    kind
        One of :data:`KINDS`.
    events
        One run; its steps in order.
    donors
        Other runs to take steps from: of another domain for ``foreign_tool``, of other tasks of
        the same domain for ``splice`` and ``malicious_call``.
    contracts
        Say which calls have an effect (``inversion``, ``malicious_call``).

    Raises
    ------
    NotInjectable
        The run or its donors have nothing that this kind needs.
    ValueError
        The kind is unknown.
    """
    name, _, attack = kind.partition(":")
    if kind not in KINDS:
        raise ValueError(f"no injection {kind!r}; known: {', '.join(KINDS)}")
    steps = [event for event in events if isinstance(event, Step)]
    if not steps:
        raise NotInjectable("the run has no steps")
    given = tuple(tuple(e for e in donor if isinstance(e, Step)) for donor in donors)
    source = Source(steps, rng, tuple(donor for donor in given if donor), contracts or {})
    changed, first = (
        attack_on(source, attack) if name == "malicious_call" else _FAULTS[name](source)
    )
    return _rebuilt(events, changed), first


def _loop(source: Source) -> tuple[list[Step], int]:
    """Repeat one or two steps, with their results, over and over."""
    at = source.place()
    period = source.rng.randint(1, min(2, at))
    cycle = source.steps[at - period : at]
    copies = [cycle[number % period] for number in range(LOOP_STEPS)]
    return [*source.steps[:at], *copies, *source.steps[at:]], at


def _stall(source: Source) -> tuple[list[Step], int]:
    """Go on with ever new arguments that always bring the same empty result."""
    at = source.place()
    model = source.steps[at - 1]
    varied = [
        model.model_copy(
            update={
                "args": {**model.args, "attempt_note": f"variant {number + 1}"},
                "result": "no results",
                "error": None,
            }
        )
        for number in range(STALL_STEPS)
    ]
    return [*source.steps[:at], *varied, *source.steps[at:]], at


def _foreign_tool(source: Source) -> tuple[list[Step], int]:
    """Insert a streak of calls of tools that this run never uses."""
    own = {step.tool for step in source.steps}
    streaks = [
        donor[start : start + FOREIGN_STEPS]
        for donor in source.donors
        for start in range(len(donor) - FOREIGN_STEPS + 1)
        if not own & {step.tool for step in donor[start : start + FOREIGN_STEPS]}
    ]
    if not streaks:
        raise NotInjectable("no donor has a streak of other tools")
    at = source.place()
    return [*source.steps[:at], *source.rng.choice(streaks), *source.steps[at:]], at


def _splice(source: Source) -> tuple[list[Step], int]:
    """Go on with the end of another run: the agent has switched to another task."""
    donors = [donor for donor in source.donors if len(donor) >= SPLICE_STEPS_MIN]
    if not donors:
        raise NotInjectable(f"no donor has {SPLICE_STEPS_MIN} steps")
    donor = source.rng.choice(donors)
    at = source.rng.randint(1, max(1, len(source.steps) - 1))
    start = source.rng.randint(0, len(donor) - SPLICE_STEPS_MIN)
    return [*source.steps[:at], *donor[start:]], at


def _inversion(source: Source) -> tuple[list[Step], int]:
    """Move an effectful step before the first call of a tool that it depends on."""
    first_call: dict[str, int] = {}
    for place, step in enumerate(source.steps):
        first_call.setdefault(step.tool, place)
    moves = [
        (place, first_call[source.steps[parent].tool])
        for place, parents in enumerate(_parents(source))
        if source.is_effectful(source.steps[place])
        for parent in parents
        if source.steps[parent].tool != source.steps[place].tool
    ]
    if not moves:
        raise NotInjectable("no effectful step depends on an earlier one")
    place, target = source.rng.choice(moves)
    rest = [*source.steps[:place], *source.steps[place + 1 :]]
    return [*rest[:target], source.steps[place], *rest[target:]], target


def _tool_error(source: Source) -> tuple[list[Step], int]:
    """Let a step fail once before it succeeds: an honest retry, which should stay unremarked."""
    at = source.place() - 1
    error = ErrorInfo(type="TimeoutError", message="the tool did not answer in time")
    failed = source.steps[at].model_copy(
        update={"result": None, "error": error, "produced": None, "call_id": None}
    )
    return [*source.steps[:at], failed, *source.steps[at:]], at


def _missing_artifact(source: Source) -> tuple[list[Step], int]:
    """Leave out a step that a later one depends on; the later one is the first wrong step."""
    pairs = [
        (parent, place) for place, parents in enumerate(_parents(source)) for parent in parents
    ]
    if not pairs:
        raise NotInjectable("no step depends on an earlier one")
    parent, place = source.rng.choice(pairs)
    return [*source.steps[:parent], *source.steps[parent + 1 :]], place - 1


_FAULTS: dict[str, Callable[[Source], tuple[list[Step], int]]] = {
    "loop": _loop,
    "stall": _stall,
    "foreign_tool": _foreign_tool,
    "splice": _splice,
    "inversion": _inversion,
    "tool_error": _tool_error,
    "missing_artifact": _missing_artifact,
}


def _parents(source: Source) -> list[tuple[int, ...]]:
    """Return the earlier steps that each step depends on, by what it declares or consumes."""
    params, limits = ArtifactParams(), LedgerParams()
    state, found = LedgerState(), []
    number_of = {step.seq: place for place, step in enumerate(source.steps) if step.seq is not None}
    for place, step in enumerate(source.steps):
        artifacts = extract(params, step, source.contracts.get(step.tool))
        state, output = enter(limits, state, place, place, artifacts)
        declared = [number_of[seq] for seq in step.parents or () if seq in number_of]
        parents = {*declared, *(one for one, other in output.edges if other == place)}
        found.append(tuple(sorted(parent for parent in parents if parent < place)))
    return found


def _rebuilt(events: Sequence[Event], changed: list[Step]) -> list[Event]:
    """Put the steps back among the run's other events, numbered from 0.

    Steps keep their parents where these are still there; inserted ones belong to this run, and
    have no time of their own.
    """
    model = next(event for event in events if isinstance(event, Step))
    own = {id(event) for event in events}
    places: dict[int, int] = {}
    for place, step in enumerate(changed):
        if step.seq is not None and id(step) in own:
            places.setdefault(step.seq, place)
    steps: list[Event] = []
    known: set[str] = set()
    for place, step in enumerate(changed):
        parents = step.parents
        if parents is not None:
            kept = (places[seq] for seq in parents if seq in places)
            parents = tuple(parent for parent in kept if parent < place)
        call_id = None if step.call_id in known else step.call_id
        known.update(() if call_id is None else (call_id,))
        steps.append(
            step.model_copy(
                update={
                    "run_id": model.run_id,
                    "task_id": model.task_id,
                    "agent": model.agent,
                    "tenant": model.tenant,
                    "parent_run_id": model.parent_run_id,
                    "seq": place,
                    "parents": parents,
                    "call_id": call_id,
                }
            )
        )
    _spread_times(steps)
    first = next(place for place, event in enumerate(events) if isinstance(event, Step))
    before = [event for event in events[:first] if not isinstance(event, Step)]
    after = [event for event in events[first:] if not isinstance(event, Step)]
    return [*before, *steps, *after]


def _spread_times(steps: list[Event]) -> None:
    """Let no step be earlier than the one before it."""
    for place in range(1, len(steps)):
        before, step = steps[place - 1], steps[place]
        late = before.time is not None and (step.time is None or step.time < before.time)
        if late:
            steps[place] = step.model_copy(update={"time": before.time})
