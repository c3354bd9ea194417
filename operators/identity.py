"""Gate of profile ``default``: may this effectful call, with these objects, run in this task?

References of the same task show which tools it takes and on what they are used. A call that
writes, destroys or talks to the open world passes where a reference uses the tool, and has each of
the call's identity values at the same place. That a value stands in an earlier result excuses
nothing: injected instructions arrive through results.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from ontrack.operators.gate import GateFinding, effect_of
from ontrack.operators.limits import require
from ontrack.operators.sightings import SeenValues, find
from ontrack.operators.values import (
    GIVEN,
    Argument,
    ReferenceValues,
    ValueParams,
    identity_arguments,
)
from ontrack.topics.events import Call
from ontrack.topics.knowledge import Effect, ToolContract
from ontrack.topics.verdicts import Reason

#: Signals of the reasons: which rule stopped a call.
UNDECLARED_TOOL, UNSEEN_TOOL = "undeclared_tool", "unseen_tool"
UNSEEN_VALUE, UNSEEN_SOURCE = "unseen_value", "unseen_source"


@dataclass(frozen=True, slots=True)
class IdentityParams:
    """Policy of the gate.

    Parameters
    ----------
    mode
        ``values``: a value must stand at the same place in a reference. ``sources``: or it must
        have come into the run from a place that a reference took such a value from; for tasks
        whose objects differ from run to run. ``tools``: values are not looked at.
    undeclared
        How a tool without a contract is treated where contracts were given.
    places_shown_max
        Places that a reason names.
    """

    mode: Literal["values", "sources", "tools"] = "values"
    undeclared: Literal["effectful", "harmless"] = "effectful"
    places_shown_max: int = 4

    def __post_init__(self) -> None:
        require(self, 1, 100, "places_shown_max")


def is_effectful(params: IdentityParams, tool: str, contracts: Mapping[str, ToolContract]) -> bool:
    """Tell whether the gate looks at a tool: it writes, destroys, or talks to the open world.

    Reads of the open world count, since data leaves through them. Without any contracts nothing is
    known to have an effect.
    """
    contract = contracts.get(tool)
    if contract is None:
        return bool(contracts) and params.undeclared == "effectful"
    if contract.effect in (Effect.WRITE, Effect.DESTRUCTIVE):
        return True
    return contract.external is not False and bool(
        contract.external or contract.annotations.open_world
    )


def check(
    params: IdentityParams,
    value_params: ValueParams,
    contracts: Mapping[str, ToolContract],
    references: ReferenceValues | None,
    seen: SeenValues,
    call: Call,
    without: int = 0,
) -> GateFinding:
    """Answer one proposal against what the references do.

    Parameters
    ----------
    seen
        Values of the run's results so far: they name the steps a strange value came from and, in
        mode ``sources``, decide.
    without
        Bit mask of references to leave out (the self-test leaves out the one under test).

    Returns
    -------
    GateFinding
        ``unknown`` where an effectful call meets no references; ``best`` is the most trusted
        reference that uses the tool, else the most trusted one.
    """
    effect = effect_of(call.tool, contracts)
    if not is_effectful(params, call.tool, contracts):
        unknown = effect is Effect.UNKNOWN
        return GateFinding("unknown" if unknown else "allow", effect, (), (), None)
    others = 0 if references is None else (1 << references.count) - 1 & ~without
    if references is None or not others:
        return GateFinding("unknown", effect, (), (), None)
    users = references.tools.get(call.tool, 0) & others
    best = _lowest(users or others)
    if not users:
        return GateFinding("block", effect, (_unseen_tool(call.tool, others, effect),), (), best)
    if effect is Effect.UNKNOWN:
        # References use it, so it belongs to the task; nobody has said that it does any harm.
        return GateFinding("unknown", effect, (), (), best)
    if params.mode == "tools" or not users & ~references.silent:
        return GateFinding("allow", effect, (), (), best)
    strange, seqs = _strange(params, value_params, contracts, references, seen, call, others)
    if not strange:
        return GateFinding("allow", effect, (), (), best)
    # Names of arguments may be anything that an agent makes up: say those that references have.
    places = [
        argument.path if (call.tool, argument.path) in references.by_place else "another argument"
        for argument in strange
    ]
    reason = _unseen_value(params, call.tool, places, seqs, users)
    return GateFinding("block", effect, (reason,), seqs, best)


def is_known(
    value_params: ValueParams,
    contracts: Mapping[str, ToolContract],
    references: ReferenceValues,
    seen: SeenValues,
    call: Call,
    without: int = 0,
) -> bool:
    """Tell whether all that a call is about is known: by the references, or by a known source.

    What such a call returns may be a source in turn (``trusted`` in
    :func:`ontrack.operators.sightings.see`); what an unknown one returns is not, else looking up
    somebody else's account would make it fair game.
    """
    others = (1 << references.count) - 1 & ~without
    users = references.tools.get(call.tool, 0) & others
    if not users & ~references.silent:
        return False
    by_source = IdentityParams(mode="sources")
    return not _strange(by_source, value_params, contracts, references, seen, call, others)[0]


def _strange(
    params: IdentityParams,
    value_params: ValueParams,
    contracts: Mapping[str, ToolContract],
    references: ReferenceValues,
    seen: SeenValues,
    call: Call,
    others: int,
) -> tuple[list[Argument], tuple[int, ...]]:
    """Return the arguments that references do not explain, and the steps that brought them."""
    strange: list[Argument] = []
    seqs: set[int] = set()
    for argument in identity_arguments(value_params, call, contracts.get(call.tool)):
        place = (call.tool, argument.path)
        held = references.by_place.get(place, {})
        if held.get(argument.value, 0) & others or (argument.is_text and not held):
            continue
        found = find(seen, argument.value)
        if params.mode == "sources":
            known = references.sources.get(place, {})
            # What is not found was given by the task, unless results held more than was kept.
            given = (GIVEN,) if seen.is_complete else ()
            sources = found.sources if found.seqs else given
            if any(known.get(source, 0) & others for source in sources):
                continue
        strange.append(argument)
        seqs.update(found.seqs)
    return strange, tuple(sorted(seqs))


def _lowest(mask: int) -> int:
    return (mask & -mask).bit_length() - 1


def _counted(mask: int) -> str:
    count = mask.bit_count()
    return "the one reference" if count == 1 else f"any of the {count} references"


def _unseen_tool(tool: str, others: int, effect: Effect) -> Reason:
    undeclared = effect is Effect.UNKNOWN
    what = f"{tool}, which has no contract," if undeclared else tool
    text = (
        f"{what} is not used by {_counted(others)} of this task; do not run it unless the task "
        "itself asks for it, and have a person confirm it"
    )
    signal = UNDECLARED_TOOL if undeclared else UNSEEN_TOOL
    return Reason(signal=signal, value=0.0, threshold=1.0, text=text)


def _unseen_value(
    params: IdentityParams, tool: str, places: list[str], steps: tuple[int, ...], users: int
) -> Reason:
    # Values are arguments, and arguments stay out of verdicts: name the places.
    paths = list(dict.fromkeys(places))
    shown = ", ".join(paths[: params.places_shown_max])
    if len(paths) > params.places_shown_max:
        shown += f" and {len(paths) - params.places_shown_max} more"
    if params.mode == "sources":
        found = f"{tool}: {shown} neither has a value of {_counted(users)} of this task that use"
        found += "s it" if users.bit_count() == 1 else " it"
        found += ", nor comes from where they take it"
    else:
        found = f"{tool}: {shown} has a value that is not in {_counted(users)} of this task"
    if steps:
        word = "step" if len(steps) == 1 else "steps"
        found += f"; it stood in the result of {word} {', '.join(map(str, steps[:4]))}"
    text = f"{found}. Check that whoever gave the task named it, not a page, file or message"
    signal = UNSEEN_SOURCE if params.mode == "sources" else UNSEEN_VALUE
    return Reason(signal=signal, value=float(len(places)), threshold=0.0, text=text)
