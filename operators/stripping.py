"""Stripping: a recorded success without its retries and dead ends.

A reference should show what a task takes. What is left out here is only what cannot be part of
that: a failed attempt at a call that was made again, a repeat that brought nothing new, and a read
whose result nobody used and that no other success of the task has. A successful call that may have
an effect always stays.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import pairwise

from ontrack.operators.artifacts import ArtifactParams
from ontrack.operators.identity import IdentityParams, is_effectful
from ontrack.operators.limits import require
from ontrack.operators.references import graph_of
from ontrack.operators.volatile import canonical_arguments, canonical_result
from ontrack.topics.events import Call
from ontrack.topics.knowledge import ReferenceStep, ToolContract

CallKey = bytes
Contracts = Mapping[str, ToolContract]


@dataclass(frozen=True, slots=True)
class StripParams:
    """What may be left out.

    Parameters
    ----------
    others_min
        Other successes of the task from which on it says something that none of them has a call.
        With two of them, reads that differ legitimately went, and clean runs were warned for them.
    text_bytes_max
        Bytes of arguments and results that are compared.
    """

    others_min: int = 4
    text_bytes_max: int = 65_536
    artifacts: ArtifactParams = ArtifactParams()
    identity: IdentityParams = IdentityParams()

    def __post_init__(self) -> None:
        require(self, 1, 1000, "others_min")
        require(self, 64, 10_000_000, "text_bytes_max")


@dataclass(frozen=True, slots=True)
class Stripped:
    """What is left of a run; ``retries`` and ``dead_ends`` are sequence numbers left out."""

    steps: tuple[ReferenceStep, ...]
    retries: tuple[int, ...] = ()
    dead_ends: tuple[int, ...] = ()


def numbered(steps: Sequence[ReferenceStep]) -> tuple[ReferenceStep, ...]:
    """Give steps their places as numbers, unless they have numbers that rise already."""
    numbers = [step.seq for step in steps if step.seq is not None]
    if len(numbers) == len(steps) and all(one < next_ for one, next_ in pairwise(numbers)):
        return tuple(steps)
    return tuple(step.model_copy(update={"seq": place}) for place, step in enumerate(steps))


def call_key(params: StripParams, call: Call, contracts: Contracts) -> CallKey:
    """Return what is equal for calls that ask for the same; volatile arguments left out."""
    contract = contracts.get(call.tool)
    identity = None if contract is None else contract.identity
    asked = canonical_arguments(call.args, params.text_bytes_max, identity)
    return blake2b(call.tool.encode("utf-8", "replace") + b"\0" + asked, digest_size=16).digest()


def only_reads(params: StripParams, tool: str, contracts: Contracts) -> bool:
    """Tell whether a tool is declared to have no effect, and not to talk to the open world."""
    return tool in contracts and not is_effectful(params.identity, tool, contracts)


def may_write(params: StripParams, tool: str, contracts: Contracts) -> bool:
    """Tell whether a tool is declared to have an effect."""
    return tool in contracts and is_effectful(params.identity, tool, contracts)


def effects_of(
    params: StripParams, steps: Sequence[ReferenceStep], contracts: Contracts
) -> tuple[CallKey, ...]:
    """Return the successful calls that are declared to have an effect, sorted."""
    return tuple(
        sorted(
            call_key(params, step, contracts)
            for step in steps
            if step.error is None and may_write(params, step.tool, contracts)
        )
    )


def strip_retries(
    params: StripParams, steps: Sequence[ReferenceStep], contracts: Contracts
) -> Stripped:
    """Leave out failed attempts at calls that come again, and repeats that changed nothing.

    A repeat is the same call with the same result, not declared to have an effect, with nothing
    since its first time that may have changed the world: a test run again after an edit stays.

    Parameters
    ----------
    steps
        Numbered, in order.
    """
    keys = [call_key(params, step, contracts) for step in steps]
    last_place = {key: place for place, key in enumerate(keys)}
    twin_of: dict[int, int] = {}
    first: dict[tuple[CallKey, bytes], int] = {}
    changed_at = -1
    kept: list[ReferenceStep] = []
    for place, (step, key) in enumerate(zip(steps, keys, strict=True)):
        if step.error is not None:
            if last_place[key] > place:
                twin_of[_seq(step)] = _seq(steps[last_place[key]])
                continue
        else:
            told = canonical_result(step.result, None, params.text_bytes_max)
            before = first.get((key, blake2b(told, digest_size=16).digest()))
            repeats = before is not None and before >= changed_at
            if repeats and not may_write(params, step.tool, contracts):
                assert before is not None
                twin_of[_seq(step)] = _seq(steps[before])
                continue
            first[(key, blake2b(told, digest_size=16).digest())] = place
            if not only_reads(params, step.tool, contracts):
                changed_at = place
        kept.append(step)
    return Stripped(_with_parents(kept, twin_of), tuple(twin_of))


def strip_dead_ends(
    params: StripParams,
    steps: Sequence[ReferenceStep],
    contracts: Contracts,
    shared: Collection[CallKey],
    others: int,
) -> Stripped:
    """Leave out reads and failures whose artifacts nobody consumed and that no other success has.

    The last step stays: it may be the answer.

    Parameters
    ----------
    steps
        Numbered, in order.
    shared
        Calls of the other successes of the task.
    others
        Number of these.
    """
    left = list(steps)
    gone: list[int] = []
    while others >= params.others_min:
        graph = graph_of(left, contracts, params.artifacts)
        consumed = {parent for parents in graph.parents for parent in parents}
        ends = {
            place
            for place, step in enumerate(left[:-1])
            if place not in consumed
            and (step.error is not None or only_reads(params, step.tool, contracts))
            and call_key(params, step, contracts) not in shared
        }
        if not ends:
            break
        gone += [_seq(left[place]) for place in ends]
        left = [step for place, step in enumerate(left) if place not in ends]
    return Stripped(tuple(left), dead_ends=tuple(sorted(gone)))


def _seq(step: ReferenceStep) -> int:
    assert step.seq is not None, "number the steps first"
    return step.seq


def _with_parents(
    steps: Sequence[ReferenceStep], twin_of: Mapping[int, int]
) -> tuple[ReferenceStep, ...]:
    """Point declared parents to what stayed in the place of what went."""
    mended = []
    for step in steps:
        if step.parents and any(parent in twin_of for parent in step.parents):
            now = dict.fromkeys(twin_of.get(parent, parent) for parent in step.parents)
            parents = tuple(parent for parent in now if parent < _seq(step))
            step = step.model_copy(update={"parents": parents})
        mended.append(step)
    return tuple(mended)
