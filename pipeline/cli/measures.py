"""How experiments look on a terminal: a bar while they run, then a table of their figures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import monotonic
from typing import TYPE_CHECKING, Any

import click

from ontrack.pipeline.terminal import printable

if TYPE_CHECKING:
    from ontrack.pipeline.evaluation.measures import Measure

LINE_S = 10.0  # at least so long between two lines of progress, where there is no terminal
NOTES_SHOWN = ("warned_at", "loop_at", "by_step", "steps")


@contextmanager
def progress(what: str, total: int) -> Iterator[Callable[[], None]]:
    """Show a bar on stderr; where that is no terminal, a line now and then."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        yield _lines(what, total)
        return
    columns = ("{task.description}", BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task(what, total=total)
        yield lambda: progress.advance(task)


def _lines(what: str, total: int) -> Callable[[], None]:
    """Say how far it is, now and then: what takes minutes without a word looks hung."""
    done, told_s = 0, monotonic()

    def advance() -> None:
        nonlocal done, told_s
        done += 1
        if monotonic() - told_s >= LINE_S:
            told_s = monotonic()
            click.echo(f"{what}: {done:,} of {total:,}", err=True)

    return advance


def show_table(title: str, measures: Sequence[Measure]) -> None:
    """Print figures for people."""
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, box=SIMPLE, padding=(0, 1, 0, 0), pad_edge=False)
    for heading in ("corpus", "measure", "method"):
        table.add_column(heading, no_wrap=True)
    for heading in ("k", "value", "95 % interval", "n"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("note")
    before: tuple[object, ...] | None = None
    for each in _in_blocks([measure.as_record() for measure in measures]):
        block = (each["corpus"], each["k"])
        if before not in (None, block):
            table.add_section()
        before = block
        against = f" - {each['against']}" if "against" in each else ""
        interval = "" if each["low"] is None else f"{each['low']:.3f} … {each['high']:.3f}"
        table.add_row(
            printable(each["corpus"]),
            each["measure"],
            printable(each["method"]) + against,
            "" if each["k"] is None else str(each["k"]),
            "" if each["value"] is None else f"{each['value']:.3f}",
            interval,
            f"{each['n']:,}",
            ", ".join(f"{name} {each[name]}" for name in NOTES_SHOWN if each.get(name) is not None),
        )
    Console().print(table, markup=False)


def _in_blocks(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Put rows of the same corpus, k and measure together, in the order of their first ones."""

    def places(name: str) -> dict[object, int]:
        return {value: at for at, value in enumerate(dict.fromkeys(r[name] for r in records))}

    orders = {name: places(name) for name in ("corpus", "k", "measure")}
    return sorted(records, key=lambda each: [orders[name][each[name]] for name in orders])
