"""Loops and stalls (L1): calls that were made before and brought what they brought before.

Exact hashes of canonical calls and results, a bounded memory of them, and two counters that
anything new sets back. ``seen``: this call brought this result before. ``soft``: another call of
the tool did, and it failed, found nothing, or only reads. ``exact`` counts seen steps in a row,
``jitter`` seen or soft ones. A streak warns once it is long enough *and* goes round: something
came back that the streak itself already held. Reading once more what was read long ago is not
going round.

Whatever cannot be told from honest work may warn but not halt: reading a list, waiting for
something that is under way, a tool that is declared to be polled.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import StrEnum
from hashlib import blake2b

from ontrack.operators.failing import has_failed, says_error
from ontrack.operators.limits import require
from ontrack.operators.volatile import Written, identity_of, write_down
from ontrack.topics.events import Step
from ontrack.topics.knowledge import Effect, ToolContract


@dataclass(frozen=True, slots=True)
class RepeatParams:
    """When repeats count, and how much is remembered.

    Parameters
    ----------
    repeats_max
        Steps in a row without anything new at which a run is warned.
    grace
        Steps more after which it is a loop that may be halted.
    retries_max
        r_max: repeats of a failed call that are not a loop.
    polls_max
        Unchanged answers in a row of a tool declared ``poll`` at which it is warned.
    pending_max
        Unchanged answers that say that work is under way, from which on they may be a loop.
    short_bytes_max
        A longer result is content, whatever words it holds.
    text_bytes_max
        Bytes of the arguments and of the result that are compared.
    calls_max, results_max, objects_max
        Hashes remembered: of calls with their results, of results by tool, and of what the calls
        of the current streak are about.
    evidence_max
        Steps named as evidence.
    """

    repeats_max: int = 3
    grace: int = 3
    retries_max: int = 2
    polls_max: int = 20
    pending_max: int = 20
    short_bytes_max: int = 200
    text_bytes_max: int = 65_536
    calls_max: int = 64
    results_max: int = 32
    objects_max: int = 32
    evidence_max: int = 8

    def __post_init__(self) -> None:
        require(self, 1, 1000, "repeats_max", "polls_max", "pending_max")
        require(self, 0, 1000, "grace", "retries_max")
        require(self, 2, 4096, "calls_max", "results_max", "objects_max", "evidence_max")
        require(self, 1, 4096, "short_bytes_max")
        require(self, 64, 10_000_000, "text_bytes_max")


class RepeatLevel(StrEnum):
    """What should follow: nothing, a warning, or a verdict that may halt the run."""

    NONE = "none"
    WARN = "warn"
    LOOP = "loop"


class RepeatKind(StrEnum):
    """In what way a run repeats itself."""

    EXACT = "exact"
    JITTER = "jitter"
    POLL = "poll"
    PENDING = "pending"
    LISTING = "listing"


@dataclass(frozen=True, slots=True)
class Streak:
    """Steps in a row that brought nothing new.

    Parameters
    ----------
    exact, jitter
        How many were seen, up to now; how many were seen or soft.
    alike
        How many were the very call and result of the step before.
    calls, results
        Different calls, and different results, among them: the newest ones remembered.
    cycling
        Steps since one came back that the streak already held, this one included; 0 before.
    pending, waited
        How many said that work is under way; how many came after the last that did.
    listing
        Each call was about something else.
    objects
        Hashes of what the calls were about.
    seqs
        The last of these steps.
    """

    exact: int = 0
    jitter: int = 0
    alike: int = 0
    calls: int = 0
    results: int = 0
    cycling: int = 0
    pending: int = 0
    waited: int = 0
    listing: bool = False
    objects: bytes = b""
    seqs: tuple[int, ...] = ()


_BROKEN = Streak()
_HASH, _RECORD = 8, 20  # bytes


@dataclass(frozen=True, slots=True)
class RepeatState:
    """Hashes remembered, the ones longest ago first, and the current streak.

    Parameters
    ----------
    calls
        Records of 20 bytes: hash of a call with its result (8), the step that brought it first
        (8), how often it came (4).
    results
        Hashes of a tool with a result, 8 bytes each.
    polls
        Unchanged answers of polled tools since anything new came.
    """

    calls: bytes = b""
    results: bytes = b""
    polls: int = 0
    streak: Streak = _BROKEN


@dataclass(frozen=True, slots=True)
class RepeatSignal:
    """What was found at one step.

    Parameters
    ----------
    kind
        None while there is nothing to say.
    count
        Steps in a row without anything new.
    threshold
        The count from which on ``level`` holds.
    evidence
        Where the repeated result came from first and the streak's last steps, in order.
    text
        A sentence to act on; it quotes no argument and no result.
    """

    level: RepeatLevel = RepeatLevel.NONE
    kind: RepeatKind | None = None
    count: int = 0
    threshold: int = 0
    evidence: tuple[int, ...] = ()
    text: str = ""


_SILENT = RepeatSignal()

_NOTHING = re.compile(
    rb"\s*(?:\[\s*\]|\{\s*\}|null|none|nothing|empty|0)\s*\Z"
    rb"|\b(?:no|0|zero) (?:\w+ ){0,3}?(?:results?|match(?:es)?|items?|entries|rows|records|hits"
    rb"|data|output|files?|documents?|such|named)\b"
    rb"|\b(?:not|nothing|never|nowhere) (?:be |been )?(?:found|exist|available|permitted|allowed)"
    rb"|\b(?:cannot|can't|couldn't|could not|unable to|not authori[sz]ed) "
    rb"|denied|forbidden|unauthori[sz]ed|unavailable",
    re.IGNORECASE,
)
_WORDS_UNDER_WAY = (
    rb"(?:running|pending|queued|waiting|processing|in[ _-]?progress|under ?way|not (?:yet )?ready)"
)
# "still running." and "pending (3 of 9)", not "the result of running `ls`".
_UNDER_WAY = re.compile(
    rb"\b" + _WORDS_UNDER_WAY + rb"(?=\s*+(?:[^\w\s`/\\-]|since\b|for\b|at\b|\Z))", re.IGNORECASE
)
_STATUS_UNDER_WAY = re.compile(
    rb"\"(?:status|state|phase)\"\s*+:\s*+\"" + _WORDS_UNDER_WAY + rb"\"", re.IGNORECASE
)


def step(
    params: RepeatParams,
    state: RepeatState,
    seq: int,
    event: Step,
    contract: ToolContract | None = None,
    written: Written | None = None,
) -> tuple[RepeatState, RepeatSignal]:
    """Compare a step with those remembered, remember it, and say whether the run goes round.

    Parameters
    ----------
    contract
        The tool's, None where nobody declared it: what a tool does is then read off its results,
        never off its name.
    written
        The step in at most ``text_bytes_max``, where the caller has written it down already.
    """
    identity = None if contract is None else contract.identity
    asked, _, answer = written or write_down(
        event.args, event.result, event.error, params.text_bytes_max, identity
    )
    tool = event.tool.encode("utf-8", "replace")
    result = blake2b(tool + b"\0" + answer, digest_size=_HASH).digest()
    call = blake2b(asked + result, digest_size=_HASH).digest()
    place = _place(state.calls, call, _RECORD)
    result_place = _place(state.results, result, _HASH)

    failed, repeated = False, place >= 0
    if result_place >= 0:
        failed = has_failed(event.error, answer)
        repeated = repeated or _is_soft(params, contract, failed, answer)
    grown = _remembering(params, state, seq, call, place, result, result_place)
    if not repeated:
        return grown, _SILENT
    if contract is not None and contract.poll:
        # Between polls a run may do anything, such as sleep: they break the streak of the others.
        streak = Streak(seqs=_last(params, state.streak.seqs, seq))
        grown = replace(grown, polls=state.polls + 1, streak=streak)
        return grown, _poll_signal(params, grown, event.tool)
    under_way = event.error is None and _says_under_way(params, answer)
    about = identity_of(event.args, params.text_bytes_max, identity)
    streak = _longer(
        params, state, seq, place, result_place, under_way, tool + b"\0" + about if about else b""
    )
    grown = replace(grown, polls=state.polls, streak=streak)
    return grown, _signal(params, grown, event.tool, failed)


def _place(memory: bytes, digest: bytes, record: int) -> int:
    """Return the offset of the record that begins with a hash, -1 if none does."""
    place = memory.find(digest)
    while place >= 0 and place % record:
        place = memory.find(digest, place + 1)
    return place


def _is_soft(
    params: RepeatParams, contract: ToolContract | None, failed: bool, answer: bytes
) -> bool:
    """Tell whether a known result of a new call is no progress."""
    if failed or (contract is not None and contract.effect is Effect.READ):
        return True
    # Of a tool that writes too: one that found nothing has changed nothing.
    return len(answer) <= params.short_bytes_max and _NOTHING.search(answer) is not None


def _says_under_way(params: RepeatParams, answer: bytes) -> bool:
    """Tell whether a result says that work goes on: in a few words, or in a field of a record."""
    if says_error(answer):
        return False
    if len(answer) <= params.short_bytes_max:
        return _UNDER_WAY.search(answer) is not None
    return _STATUS_UNDER_WAY.search(answer) is not None


def _longer(
    params: RepeatParams,
    state: RepeatState,
    seq: int,
    place: int,
    result_place: int,
    under_way: bool,
    about: bytes,
) -> Streak:
    """Return the streak with one more step that brought nothing new."""
    streak = state.streak
    objects, is_other = streak.objects, False
    if about:
        digest = blake2b(about, digest_size=_HASH).digest()
        is_other = _place(objects, digest, _HASH) < 0
        if is_other:
            objects = (objects + digest)[-_HASH * params.objects_max :]
    # What was remembered last comes last: the streak's calls and results stand at the ends.
    call_age = (len(state.calls) - place) // _RECORD
    seen, same_as_before = place >= 0, place >= 0 and call_age == 1
    call_is_back = seen and call_age <= streak.calls
    result_age = (len(state.results) - result_place) // _HASH
    result_is_back = result_place >= 0 and result_age <= streak.results
    is_back = call_is_back if seen else result_is_back
    return Streak(
        exact=streak.exact + 1 if seen else 0,
        jitter=streak.jitter + 1,
        alike=streak.alike + 1 if same_as_before else 0,
        calls=streak.calls + (not call_is_back),
        results=streak.results + (not result_is_back),
        cycling=streak.cycling + 1 if is_back or streak.cycling else 0,
        pending=streak.pending + under_way,
        waited=0 if under_way else streak.waited + 1,
        listing=is_other and (streak.listing or streak.jitter == 0),
        objects=objects,
        seqs=_last(params, streak.seqs, seq),
    )


def _last(params: RepeatParams, seqs: tuple[int, ...], seq: int) -> tuple[int, ...]:
    return (*seqs, seq)[-params.evidence_max :]


def _remembering(
    params: RepeatParams,
    state: RepeatState,
    seq: int,
    call: bytes,
    place: int,
    result: bytes,
    result_place: int,
) -> RepeatState:
    """Return the state with this step's hashes as the newest ones, and no streak."""
    calls, results = state.calls, state.results
    if place >= 0:
        first, count = _record_at(calls, place)
        calls = calls[:place] + calls[place + _RECORD :]
        count = min(count + 1, 2**32 - 1)
    else:
        first, count = seq, 1
    if result_place >= 0:
        results = results[:result_place] + results[result_place + _HASH :]
    record = call + first.to_bytes(8, "big") + count.to_bytes(4, "big")
    return RepeatState(
        (calls + record)[-_RECORD * params.calls_max :],
        (results + result)[-_HASH * params.results_max :],
    )


def _record_at(calls: bytes, place: int) -> tuple[int, int]:
    """Return of the call at an offset which step brought it first, and how often it came."""
    number = calls[place + _HASH : place + _RECORD]
    return int.from_bytes(number[:8], "big"), int.from_bytes(number[8:], "big")


def _poll_signal(params: RepeatParams, state: RepeatState, tool: str) -> RepeatSignal:
    if state.polls < params.polls_max:
        return _SILENT
    text = (
        f"`{tool}` was polled {state.polls} times since anything changed; "
        "wait longer before asking again, or find out what holds it up"
    )
    return RepeatSignal(
        RepeatLevel.WARN,
        RepeatKind.POLL,
        state.polls,
        params.polls_max,
        _evidence(params, state),
        text,
    )


def _signal(params: RepeatParams, state: RepeatState, tool: str, failed: bool) -> RepeatSignal:
    """Judge a streak: which counter has reached what."""
    streak = state.streak
    warn_at = max(params.repeats_max, params.retries_max + 1) if failed else params.repeats_max
    if streak.jitter < warn_at or not streak.cycling:
        return _SILENT
    loop_at = warn_at + params.grace
    beyond = min(streak.jitter - warn_at, streak.cycling - 1)
    may_halt = beyond >= params.grace
    kind = RepeatKind.EXACT if streak.exact >= warn_at else RepeatKind.JITTER
    count = streak.exact if kind is RepeatKind.EXACT else streak.jitter
    if streak.pending and streak.waited < params.repeats_max:
        kind, count, loop_at = RepeatKind.PENDING, streak.jitter, params.pending_max
        may_halt = streak.pending >= loop_at
    elif streak.listing:
        kind, count, may_halt = RepeatKind.LISTING, streak.jitter, False
    return RepeatSignal(
        RepeatLevel.LOOP if may_halt else RepeatLevel.WARN,
        kind,
        count,
        loop_at if may_halt else warn_at,
        _evidence(params, state),
        _sentence(kind, state, tool, count),
    )


def _evidence(params: RepeatParams, state: RepeatState) -> tuple[int, ...]:
    """Return where the newest result came from first, and the streak's last steps."""
    kept = state.streak.seqs[-(params.evidence_max - 1) :]
    first, _ = _record_at(state.calls, len(state.calls) - _RECORD)
    return tuple(sorted({first, *kept}))


def _sentence(kind: RepeatKind, state: RepeatState, tool: str, count: int) -> str:
    first, times = _record_at(state.calls, len(state.calls) - _RECORD)
    time = _ordinal(times)
    if kind is RepeatKind.EXACT and state.streak.alike >= count:
        return (
            f"{time} identical `{tool}` with the same result since step {first}; the results have "
            "not changed: use what it returned, or try something else"
        )
    if kind is RepeatKind.EXACT:
        return (
            f"the last {count} steps repeat earlier calls with the same results, `{tool}` for the "
            f"{time} time since step {first}; nothing has changed: leave this cycle"
        )
    if kind is RepeatKind.PENDING:
        return (
            f"the last {count} steps brought nothing new, and `{tool}` is still waiting for work "
            "under way; wait longer before asking again, or do something else meanwhile"
        )
    if kind is RepeatKind.LISTING:
        return (
            f"the last {count} calls, each about something else, brought only results that were "
            f"known, `{tool}` the last of them; check that they ask for the right things"
        )
    return (
        f"the last {count} steps brought only results that were known; changing the arguments of "
        f"`{tool}` has not helped: try another way"
    )


_ORDINALS = ("zeroth", "first", "second", "third", "fourth", "fifth", "sixth", "seventh")


def _ordinal(number: int) -> str:
    if number < len(_ORDINALS):
        return _ORDINALS[number]
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10)
    return f"{number}{ending or 'th'}"
