"""``ontrack bench all``: every figure in one run, as lines for programs or as tables."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import click

from ontrack.pipeline.bench.machine import (
    circumstances,
    load,
    machine_facts,
    processor_ticks,
    stolen,
)
from ontrack.pipeline.blas import one_blas_thread

if TYPE_CHECKING:
    from rich.table import Table

    from ontrack.pipeline.bench.aims import Judged
    from ontrack.pipeline.bench.row import LeftOut, Row
    from ontrack.pipeline.bench.suite import Part


def run_all(
    broker: str | None, corpora: Sequence[str], seconds: float | None, as_json: bool
) -> None:
    """Measure all parts with this machine's settings."""
    one_blas_thread()  # before anything imports numpy
    from ontrack.pipeline.bench.suite import TOTAL_S
    from ontrack.pipeline.bench.suite_parts import parts
    from ontrack.pipeline.log import set_up_logging
    from ontrack.pipeline.settings import load_settings

    settings = load_settings(broker=broker)
    set_up_logging("warning", settings.log_json)
    machine = machine_facts() | settings.model_dump(include={"profile", "encoder", "runtime"})
    show(parts(settings, corpora, _note), seconds or TOTAL_S, machine | circumstances(), as_json)


def show(
    parts: Sequence[Part],
    seconds: float,
    machine: dict[str, Any],
    as_json: bool,
    clock: Callable[[], float] = time.perf_counter,
) -> None:
    """Run parts and show what they come to: each line at once as JSON, or tables at the end."""
    from ontrack.pipeline.bench.aims import judge
    from ontrack.pipeline.bench.row import Row
    from ontrack.pipeline.bench.suite import run
    from ontrack.pipeline.bench.suite_parts import APART

    began, ticks = clock(), processor_ticks()
    rows: list[Row] = []
    left_out: list[LeftOut] = []
    if as_json:
        _line({"type": "machine"} | machine)
    for found in chain(run(parts, seconds, _note, clock), APART):
        if isinstance(found, Row):
            rows.append(found)
        else:
            left_out.append(found)
            _note(f"{found.bench}: {found.name} is left out: {found.reason}")
        if as_json:
            _line(found.as_record())
    judged = judge(rows)
    end = {"seconds": round(clock() - began, 1), "load": load()}
    share = stolen(ticks, processor_ticks())
    end["steal"] = None if share is None else round(share, 4)
    if as_json:
        for each in judged:
            _line(each.as_record())
        _line({"type": "end"} | end)
    else:
        _tables(rows, left_out, judged, machine, end)


def _tables(
    rows: Sequence[Row],
    left_out: Sequence[LeftOut],
    judged: Sequence[Judged],
    machine: dict[str, Any],
    end: dict[str, Any],
) -> None:
    from rich.console import Console

    console = Console()
    console.print(_figures(rows))
    if left_out:
        console.print(_table("Left out", ("bench", "name", "reason"), (), map(_fields, left_out)))
    aims = [
        (
            each.aim.name,
            each.aim.aim,
            _number(each.figure),
            _number(each.quiet),
            each.verdict,
            each.aim.note,
        )
        for each in judged
    ]
    headings = ("aim", "is to be", "is", "by p20", "", "how it is read")
    console.print(_table("Aims", headings, headings[1:4], aims))
    facts = ", ".join(f"{name} {value}" for name, value in machine.items() if value is not None)
    console.print(facts, style="dim", highlight=False, markup=False)
    console.print(
        ", ".join(f"{name} {value}" for name, value in end.items()),
        style="dim",
        highlight=False,
        markup=False,
    )


def _figures(rows: Sequence[Row]) -> Table:
    def time_of(us: float | None) -> str:
        return "" if us is None else f"{us:,.0f}"

    right = ("p50", "p95", "p99", "events/s", "ratio", "samples")
    cells = [
        (
            row.bench,
            row.name,
            row.size,
            *map(time_of, (row.p50_us, row.p95_us, row.p99_us)),
            "" if row.events_per_s is None else f"{row.events_per_s:,.0f}",
            "" if row.ratio is None else f"{row.ratio:,.2f}",
            _explained(row),
            f"{row.samples:,}",
        )
        for row in rows
    ]
    headings = ("bench", "name", "size", "p50", "p95", "p99", "events/s", "ratio", "to", "samples")
    return _table("All benches, times in µs", headings, right, cells)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:,.2f}"


def _explained(row: Row) -> str:
    if row.held_bytes is not None:
        return f"holds {row.held_bytes / 2**20:.2f} MiB"
    return row.ratio_to or ""


def _fields(each: LeftOut) -> tuple[str, str, str]:
    return each.bench, each.name, each.reason


def _table(
    title: str,
    headings: Sequence[str],
    right: Sequence[str],
    rows: Iterable[Sequence[str]],
) -> Table:
    from rich.box import SIMPLE
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title, box=SIMPLE, padding=(0, 1, 0, 0), pad_edge=False)
    for heading in headings:
        numeric = heading in right
        table.add_column(
            heading, justify="right" if numeric else "left", overflow="fold", no_wrap=numeric
        )
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def _line(record: dict[str, Any]) -> None:
    click.echo(json.dumps(record))


def _note(text: str) -> None:
    click.echo(text, err=True)
