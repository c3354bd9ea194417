"""The parts of the suite: the benches that there are, at sizes that fit their time."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import cycle
from math import isqrt
from time import perf_counter
from typing import TYPE_CHECKING, Final

from ontrack.pipeline.bench.aims import LONGEST
from ontrack.pipeline.bench.clock import Contestant, Figure, measure
from ontrack.pipeline.bench.row import LeftOut, Row
from ontrack.pipeline.bench.suite import Outcome, Part, Unavailable
from ontrack.pipeline.bench.yardsticks import NOT_INSTALLED
from ontrack.pipeline.settings import Settings
from ontrack.topics.errors import BrokerUnavailable

if TYPE_CHECKING:
    from ontrack.pipeline.bench.pipeline import Plan
    from ontrack.pipeline.evaluation.corpus import Recording

MEASURED_S_MIN: Final = 4.0  # of each part, however long its preparation took
EMBEDDED_EVENTS_PER_S: Final = 400.0  # a slow machine's; decides how many events fit the time
EVENTS_MIN, EVENTS_MAX = 1000, 20_000
PIPELINE_START_S: Final = 25.0  # topics, a worker that gets ready, a second process
HOOKS_START_S: Final = 6.0
HOOKS_RATE: Final = 100.0
QUESTIONS_PER_S: Final = 8.0
CONNECT_S: Final = 1.0
RUNS_A_TASK: Final = 5
LONG_PROBLEMS: Final = 2

APART: Final = (
    LeftOut("memory", "memory", "takes minutes with its 20,000 runs: ontrack bench memory"),
    LeftOut("scale", "scale", "starts up to three workers, for minutes: ontrack bench scale"),
    LeftOut("recovery", "recovery", "kills a worker and takes minutes: ontrack bench recovery"),
)


def parts(settings: Settings, corpora: Sequence[str], note: Callable[[str], None]) -> list[Part]:
    """Return everything that is measured in one run.

    Parameters
    ----------
    corpora
        Recorded runs for the vital signs; none: runs of the simulated workplace.
    note
        Takes a line about what is done next.
    """
    return [
        # First, so that its time is the others' where there is no broker.
        Part("pipeline", 7, lambda s: _pipeline(settings, note, s)),
        Part("step", 6, lambda s: _step(settings, s)),
        Part("horizon", 4, lambda s: _horizon(settings, s)),
        Part("vital", 3, lambda s: _vital(settings, corpora, s)),
        Part("distance", 2, _distance),
        Part("hooks", 2, lambda s: _hooks(settings, s)),
    ]


def _step(settings: Settings, seconds: float) -> list[Outcome]:
    from ontrack.pipeline.bench.steps import contestants

    began = perf_counter()
    taking_part = [*contestants(settings), _longest_solve()]
    found: list[Outcome] = _timed("step", taking_part, seconds, began)
    return found + _missing("step", taking_part, "pot")


def _longest_solve() -> Contestant:
    """Return the converged solve of a prefix just below what is folded in a thread."""
    from ontrack.pipeline.bench.alignments import converge, make_step
    from ontrack.pipeline.bench.steps import REFERENCES, label
    from ontrack.pipeline.folding.offload import CELLS_MAX

    size = isqrt(CELLS_MAX // REFERENCES)
    problems = cycle([make_step(size, REFERENCES, seed) for seed in range(LONG_PROBLEMS)])
    return Contestant(LONGEST, label(size), problems.__next__, converge)


def _horizon(settings: Settings, seconds: float) -> list[Outcome]:
    from ontrack.pipeline.bench import horizon

    began = perf_counter()
    run = horizon.LongRun(settings)
    taking_part = horizon.contestants(run)
    figures = measure(taking_part, _left(seconds, began)) if taking_part else []
    medians = {(each.name, each.size): each.p50_us for each in figures}
    found: list[Outcome] = []
    for each in figures:
        short = medians.get((each.name, horizon.label(horizon.SHORT)))
        row = Row.of("horizon", each)
        if each.size == horizon.label(horizon.LONG) and short is not None:
            to = f"{each.name} at t={horizon.SHORT}"
            row = replace(row, ratio_to=to, ratio=each.p50_us / short)
        found.append(row)
    for length, held in run.held_bytes.items():
        size = horizon.label(length)
        found.append(Row("horizon", "held", size, samples=1, held_bytes=held))
    for length in run.moments:
        size = horizon.label(length)
        for name in (horizon.MONITOR, horizon.TRANSPORT):
            if (name, size) not in medians:
                reason = f"at {length} steps none is aligned any more: the graph is full"
                found.append(LeftOut("horizon", f"{name} {size}", reason))
    return found


def _vital(settings: Settings, corpora: Sequence[str], seconds: float) -> list[Outcome]:
    from ontrack.pipeline.bench.vitals import contestants
    from ontrack.pipeline.evaluation.corpus import read_corpora

    began = perf_counter()
    if corpora:
        runs = read_corpora(corpora, limits=settings.limits, redaction=settings.redaction)
    else:
        runs = workplace_runs()
    taking_part = contestants(settings, runs)
    found: list[Outcome] = _timed("vital", taking_part, seconds, began)
    return found + _missing("vital", taking_part, "pm4py")


def workplace_runs() -> list[Recording]:
    """Return successes of the simulated workplace, some of each task."""
    from ontrack.pipeline.evaluation.corpus import Recording
    from ontrack.pipeline.workplace import simulate_run, task_ids

    return [
        Recording("workplace", run.run_id, task, True, None, "success", tuple(run.steps))
        for task in task_ids()
        for run in (simulate_run(task, seed) for seed in range(RUNS_A_TASK))
    ]


def _distance(seconds: float) -> list[Outcome]:
    from ontrack.pipeline.bench.distances import contestants

    began = perf_counter()
    taking_part = contestants()
    found: list[Outcome] = _timed("distance", taking_part, seconds, began)
    return found + _missing("distance", taking_part, "ek")


def _hooks(settings: Settings, seconds: float) -> list[Outcome]:
    from ontrack.pipeline.bench.hooks import figures, measure
    from ontrack.pipeline.bench.runner import run

    # A quarter as long again goes to the page that does nothing.
    flowing = max(MEASURED_S_MIN, (seconds - HOOKS_START_S) / 1.25)
    try:
        times = run(measure(settings, HOOKS_RATE, flowing))
    except (BrokerUnavailable, OSError) as error:
        raise Unavailable(f"the daemon does not answer: {error}") from error
    return [Row.of("hooks", each) for each in figures(times, HOOKS_RATE)]


def _pipeline(settings: Settings, note: Callable[[str], None], seconds: float) -> list[Outcome]:
    reason = _unreachable(settings.broker)
    if reason is not None:
        raise Unavailable(reason)
    from aiokafka.errors import KafkaError

    from ontrack.pipeline.bench.pipeline import measure
    from ontrack.pipeline.bench.runner import run

    try:
        figures = run(measure(settings, pipeline_plan(seconds), note))
    except (BrokerUnavailable, KafkaError) as error:
        raise Unavailable(f"{type(error).__name__}: {error}") from error
    return [Row.of("pipeline", each) for each in figures]


def pipeline_plan(seconds: float) -> Plan:
    """Return how much of ``bench pipeline`` fits in so many seconds.

    Half of them are for the backlog, which is worked through twice embedded, once by the worker at
    0.6 of that rate or less, and once by the bare loop; a third each of the rest for the end-to-end
    latency and the questions by both ways.
    """
    from ontrack.pipeline.bench.pipeline import Plan

    free = max(0.0, seconds - PIPELINE_START_S)
    events = int(0.5 * free * EMBEDDED_EVENTS_PER_S / 4.0)
    return Plan(
        events=min(EVENTS_MAX, max(EVENTS_MIN, events)),
        latency_s=max(MEASURED_S_MIN, free / 6),
        questions=max(20, int(QUESTIONS_PER_S * free / 6)),
    )


def _unreachable(broker: str) -> str | None:
    """Say why no broker of the list answers; None where one takes connections."""
    problem: OSError | ValueError | None = None
    for address in broker.split(","):
        host, _, port = address.strip().rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), CONNECT_S).close()
        except (OSError, ValueError) as error:
            problem = error
        else:
            return None
    return f"no broker at {broker} ({problem}): make kafka, or --broker HOST:PORT"


def _timed(
    bench: str, taking_part: Sequence[Contestant], seconds: float, began: float
) -> list[Outcome]:
    figures: list[Figure] = measure(taking_part, _left(seconds, began))
    return [Row.of(bench, each) for each in figures]


def _left(seconds: float, began: float) -> float:
    return max(MEASURED_S_MIN, seconds - (perf_counter() - began))


def _missing(bench: str, taking_part: Sequence[Contestant], name: str) -> list[Outcome]:
    if any(each.name == name for each in taking_part):
        return []
    return [LeftOut(bench, name, NOT_INSTALLED[name])]
