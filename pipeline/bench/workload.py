"""The events of ``bench pipeline``: runs of the simulated workplace, as a fleet would send them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from ontrack.pipeline.embedded import proposal_of
from ontrack.pipeline.workplace import load_stream, simulate_run, task_ids
from ontrack.topics import codecs
from ontrack.topics.events import Event, Proposal, Step

FAULT_RATE = 0.25
RUNS_MAX = 1_000_000_000  # only those that are taken are made
GAP_S = 0.4  # of simulated time between two starts: about 100 runs are open at any time


@dataclass(frozen=True, slots=True)
class Message:
    """One event as it is sent; ``verdict_id`` names the verdict it must give, None if none."""

    key: bytes
    value: bytes
    verdict_id: str | None


@dataclass(frozen=True, slots=True)
class Asked:
    """A run that stays open, and the next call its agent would ask about."""

    events: tuple[Message, ...]
    proposal: Proposal


def fleet(events: int, seed: int) -> list[Message]:
    """Return the first events of a fleet's stream; another seed gives other runs."""
    # No run has fewer than three events, so there are more than enough.
    stream = load_stream(events // 3 + 1, seed, FAULT_RATE, gap_s=GAP_S)
    return [_message(event) for event in islice(stream, events)]


def endless(seed: int) -> Iterator[Message]:
    """Yield the events of a fleet for as long as somebody takes them."""
    return map(_message, load_stream(RUNS_MAX, seed, FAULT_RATE, gap_s=GAP_S))


def asked_runs(count: int, seed: int) -> Iterator[Asked]:
    """Yield clean runs up to their middle, each with the call that comes next.

    The question has no number, so that it is answered from what is there: with one the worker
    would wait for the step before, which is the latency of that step and not of the gate.
    """
    tasks = task_ids()
    for number in range(count):
        run = simulate_run(
            tasks[number % len(tasks)], seed * 10_000 + number, run_id=f"asked-{seed}-{number}"
        )
        middle = len(run.steps) // 2
        proposal = proposal_of(run.steps[middle]).model_copy(update={"seq": None})
        yield Asked(tuple(map(_message, run.events[: middle + 1])), proposal)


def _message(event: Event) -> Message:
    verdict_id = f"{event.run_id}:{event.seq}" if isinstance(event, Step) else None
    return Message(event.run_id.encode(), codecs.encode(event), verdict_id)
