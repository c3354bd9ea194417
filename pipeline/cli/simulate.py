"""``ontrack simulate``: runs with injected faults, made or recorded, as files or onto Kafka."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from random import Random
from typing import get_args

import click

from ontrack.operators.recovery import Fault
from ontrack.pipeline.cli.options import broker_option, format_option, paths_argument
from ontrack.pipeline.cli.output import STDOUT, opened
from ontrack.pipeline.reading.event_reader import SourceEvent
from ontrack.pipeline.settings import Settings, load_settings
from ontrack.pipeline.workplace.injection import FaultKind, FaultPlan, inject_recorded
from ontrack.topics import codecs
from ontrack.topics.events import Step

RUNS = 60


@dataclass
class _Counts:
    runs: int = 0
    faults: int = 0
    spared: int = 0

    def add(self, faults: int) -> None:
        self.runs += 1
        self.faults += faults
        self.spared += not faults


@click.command(name="simulate")
@paths_argument(required=False)
@click.option("--runs", type=click.IntRange(1), metavar="N", help=f"Generate N runs [{RUNS}].")
@click.option(
    "--fault",
    "kinds",
    multiple=True,
    type=click.Choice(get_args(FaultKind)),
    help="What goes wrong; several take turns, run by run. Without it generated runs are clean.",
)
@click.option("--at", type=click.IntRange(0), metavar="STEP", help="Hit this call, from 0.")
@click.option(
    "--rate",
    type=click.FloatRange(0, 1),
    metavar="P",
    help="Hit each call with this chance; else one call of a run, at random. For flaky: each call "
    "of one tool [0.3].",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Another one, other runs.")
@format_option
@click.option("--out", metavar="FILE", help="Write the events there; standard output otherwise.")
@click.option(
    "--references-out", metavar="FILE", help="Write the references of the generated tasks there."
)
@broker_option
@click.option(
    "--rate-per-s",
    type=click.FloatRange(0, min_open=True),
    metavar="R",
    help="Events a second, with --broker; as fast as they go otherwise.",
)
def command(
    paths: tuple[str, ...],
    runs: int | None,
    kinds: tuple[FaultKind, ...],
    at: int | None,
    rate: float | None,
    seed: int,
    format_: str,
    out: str | None,
    references_out: str | None,
    broker: str | None,
    rate_per_s: float | None,
) -> None:
    """Put faults into generated runs, or into the recorded ones of PATH….

    Agents of generated runs meet the faults and react: they retry, look elsewhere or give up, and
    `ontrack score --recovery` tells what became of it. Recorded agents never saw the fault, so
    of these it says nothing. Events go to --out, or to Kafka with --broker. Exit 1 where no run
    offered a place for the fault. See docs/scoring.md.
    """
    _check_usage(paths, runs, kinds, at, rate, out, references_out, broker, rate_per_s)
    settings = load_settings(broker=broker)
    plans = [FaultPlan(kind, at, rate) for kind in kinds]
    counts = _Counts()
    if references_out is not None:
        _write_references(references_out)
    if paths:
        events = _recorded(paths, format_, settings, plans, seed, counts)
    else:
        events = _generated(runs or RUNS, plans, seed, counts)
    if broker is not None:
        _send(settings, events, rate_per_s)
    else:
        with opened(out or STDOUT) as stream:
            stream.writelines(event.raw + b"\n" for event in events)
    _tell(counts, bool(plans), bool(paths))
    if plans and rate is None and not counts.faults and "flaky" not in kinds:
        sys.exit(1)


def _check_usage(
    paths: tuple[str, ...],
    runs: int | None,
    kinds: tuple[FaultKind, ...],
    at: int | None,
    rate: float | None,
    out: str | None,
    references_out: str | None,
    broker: str | None,
    rate_per_s: float | None,
) -> None:
    wrong = {
        "give either PATH… or --runs": bool(paths) and runs is not None,
        "PATH… needs a --fault": bool(paths) and not kinds,
        "--references-out is for generated runs, not for PATH…": bool(paths)
        and references_out is not None,
        "--at and --rate need a --fault": not kinds and (at is not None or rate is not None),
        "give either --at or --rate": at is not None and rate is not None,
        "flaky tools fail at a --rate, not --at one call": at is not None and "flaky" in kinds,
        "give either --out or --broker": out is not None and broker is not None,
        "--rate-per-s is for --broker": rate_per_s is not None and broker is None,
    }
    for message, is_so in wrong.items():
        if is_so:
            raise click.UsageError(message)


def _generated(
    runs: int, plans: list[FaultPlan], seed: int, counts: _Counts
) -> Iterator[SourceEvent]:
    """Yield generated runs, one after the other; every task meets every fault in turn."""
    from ontrack.pipeline.scoring.marks import marked
    from ontrack.pipeline.workplace import simulate_faulty, task_ids

    tasks = task_ids()
    for number in range(runs):
        plan = plans[number // len(tasks) % len(plans)] if plans else None
        name = f"simulated-{seed}-{number}" + (f"-{plan.kind}" if plan else "")
        run_seed = Random(f"{seed}|{number}").getrandbits(48)
        made = simulate_faulty(tasks[number % len(tasks)], run_seed, plan, name)
        counts.add(len(made.faults))
        for event in made.events:
            kind = made.faults.get(event.seq or 0) if isinstance(event, Step) else None
            if kind is not None and isinstance(event, Step):
                raw = marked(event, Fault(kind, seen_by_agent=True))
            else:
                raw = codecs.encode(event)
            yield SourceEvent(event, raw, (), "", 0)


class _Kept:
    """The events of one recorded run."""

    def __init__(self) -> None:
        self.events: list[SourceEvent] = []

    def take(self, found: SourceEvent) -> None:
        self.events.append(found)

    def steps(self) -> list[tuple[int, Step]]:
        """Return the steps with their places among the events: by number, each once."""
        from ontrack.pipeline.reading.runs import in_order

        found = [(at, each.event) for at, each in enumerate(self.events)]
        steps = [(at, event) for at, event in found if isinstance(event, Step)]
        return in_order(steps, lambda step: step[1].seq)


def _recorded(
    paths: tuple[str, ...],
    format_: str,
    settings: Settings,
    plans: list[FaultPlan],
    seed: int,
    counts: _Counts,
) -> Iterator[SourceEvent]:
    """Yield recorded runs as they end, with faults; all lines but those of the faults as read."""
    from ontrack.pipeline.reading import readers
    from ontrack.pipeline.reading.runs import by_run
    from ontrack.pipeline.scoring.marks import marked

    reader = readers.read_events(paths, format_, limits=settings.limits)
    for number, (head, run) in enumerate(by_run(reader, lambda head: _Kept())):
        plan = plans[number % len(plans)]
        steps = run.steps()
        rng = Random(f"{seed}|{plan.kind}|{head.run_id}")
        hit = inject_recorded(plan, [step for _, step in steps], rng)
        counts.add(len(hit))
        for place, step in hit.items():
            at = steps[place][0]
            raw = marked(step, Fault(plan.kind, seen_by_agent=False))
            run.events[at] = run.events[at]._replace(event=step, raw=raw)
        yield from run.events


def _send(settings: Settings, events: Iterable[SourceEvent], rate_per_s: float | None) -> None:
    from ontrack.pipeline.kafka.sender import send_events

    if settings.redaction:
        click.echo("redacted events are written anew, so they lose the marks of faults", err=True)
    count = asyncio.run(send_events(settings, events, rate_per_s))
    click.echo(f"{count:,} events sent", err=True)


def _write_references(path: str) -> None:
    from ontrack.pipeline.workplace import references

    with opened(path) as out:
        out.writelines(codecs.encode(reference) + b"\n" for reference in references())


def _tell(counts: _Counts, faulty: bool, recorded: bool) -> None:
    told = f"{counts.runs:,} runs"
    if faulty:
        told += f", {counts.faults:,} faults injected, {counts.spared:,} runs without one"
    click.echo(told, err=True)
    if recorded:
        click.echo(
            "what follows a fault is as it was recorded, by an agent that did not see it: path "
            "figures and verdicts can be measured on these runs, recovery cannot",
            err=True,
        )
