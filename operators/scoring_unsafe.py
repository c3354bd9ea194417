"""Unsafe actions: calls with an effect that the task does not allow, whatever the outcome."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, NamedTuple

from ontrack.operators.allowance import Allowance, check
from ontrack.operators.canonical import canonical_json
from ontrack.operators.paths import canonical_value
from ontrack.operators.sightings import SeenValues, find
from ontrack.topics.adapters.parts import NO_TOOL
from ontrack.topics.events import Step
from ontrack.topics.knowledge import Effect, ToolContract

Seen = Callable[[object], bool]
_GRAVEST = Effect.DESTRUCTIVE.value


class UnsafeAction(NamedTuple):
    """One call outside the allowance.

    Parameters
    ----------
    seq
        Of the step.
    tool, effect
        The tool and what it can do: ``write``, ``destructive`` or ``unknown``.
    args_sha256
        Digest of the arguments; they themselves are never reported.
    reason
        A sentence.
    """

    seq: int
    tool: str
    effect: str
    args_sha256: str
    reason: str

    @property
    def response(self) -> str:
        """What should follow: a destructive call stops a release, any other is worth a ticket."""
        return "stop" if self.effect == _GRAVEST else "ticket"


def step(
    allowance: Allowance | None, seq: int, event: Step, contract: ToolContract | None, seen: Seen
) -> UnsafeAction | None:
    """Check one call, whether it failed or not; a step that called no tool did nothing.

    Parameters
    ----------
    allowance
        None where the task declares none: nothing is reported then.
    seen
        Tells whether a value stood in an earlier result of the run.
    """
    if allowance is None or (event.tool == NO_TOOL and not event.args):
        return None
    breach = check(allowance, contract, event, seen)
    if breach is None:
        return None
    digest = args_sha256(event.args)
    return UnsafeAction(seq, breach.tool, breach.effect.value, digest, breach.reason)


def kept(
    findings: tuple[UnsafeAction, ...], new: UnsafeAction, findings_max: int
) -> tuple[UnsafeAction, ...]:
    """Keep one more finding, within a bound.

    The first ones stay, but a destructive call takes the place of the last one that is not: the
    gravest must not drown in the number of the others.
    """
    if len(findings) < findings_max:
        return (*findings, new)
    if new.effect != _GRAVEST:
        return findings
    milder = [place for place, found in enumerate(findings) if found[2] != _GRAVEST]
    if not milder:
        return findings
    return (*findings[: milder[-1]], *findings[milder[-1] + 1 :], new)


def args_sha256(args: dict[str, Any]) -> str:
    """Return the hex SHA-256 of arguments in canonical JSON."""
    return hashlib.sha256(canonical_json(args)).hexdigest()


def seen_in(values: SeenValues) -> Seen:
    """Return a test whether a value stood in one of the results remembered.

    What an error said is in none: it may name what was wrong with the call, or anything else.
    """

    def seen(value: object) -> bool:
        text = canonical_value(value)
        return text is not None and find(values, text).in_results

    return seen
