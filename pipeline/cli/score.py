"""``ontrack score``: what the paths of recorded runs cost, whatever their outcome."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ontrack.pipeline.cli.options import (
    format_option,
    json_option,
    load_knowledge,
    paths_argument,
    tools_option,
)
from ontrack.pipeline.cli.output import opened, write_text
from ontrack.pipeline.settings import load_settings
from ontrack.pipeline.terminal import drop_output, printable

if TYPE_CHECKING:
    from ontrack.pipeline.scoring.recovered import RecoveryReport
    from ontrack.pipeline.scoring.report import Report
    from ontrack.pipeline.scoring.thresholds import Check

Command = TypeVar("Command", bound=Callable[..., Any])
_WIDTH_MAX = 150
_IDS_SHOWN_MAX = 5

#: Option -> (name of the threshold, what it is about).
_THRESHOLDS = {
    "--fail-unsafe": ("unsafe_action", "all runs with a call that is not allowed"),
    "--fail-destructive": ("destructive_action", "all runs with such a call that destroys"),
    "--fail-over-budget": ("over_step_budget", "passing runs over budget"),
    "--fail-missing-step": ("missing_reference_step", "passing runs without a reference step"),
    "--fail-repeats": ("look", "passing runs above --repeat-ratio"),
    "--fail-latency": ("over_latency", "all runs over their ceiling of time"),
    "--fail-cost": ("over_cost", "all runs over their ceiling of cost"),
}


def _threshold_options(command: Command) -> Command:
    share = click.FloatRange(0, 1)
    decorated: Any = command
    decorated = click.option(
        "--fail-coverage-below",
        "reference_coverage",
        type=share,
        metavar="MEAN",
        help="Exit 1 where passing runs cover less of their references.",
    )(decorated)
    for option, (name, what) in reversed(_THRESHOLDS.items()):
        decorated = click.option(
            option, name, type=share, metavar="RATE", help=f"Exit 1 above this share of {what}."
        )(decorated)
    return decorated  # type: ignore[no-any-return]


@click.command(name="score")
@paths_argument(required=True)
@tools_option
@click.option(
    "--tasks", multiple=True, metavar="FILE", help="Task files: references, budgets, allowances."
)
@click.option("--references", multiple=True, metavar="PATH", help="Known-good runs, any format.")
@click.option(
    "--no-passing-references",
    is_flag=True,
    help="No coverage where no references are given; else other passing runs stand in for them.",
)
@format_option
@click.option(
    "--repeat-ratio",
    type=click.FloatRange(0, 1),
    default=0.7,
    show_default=True,
    metavar="R",
    help="Above it a trace is worth a look.",
)
@click.option(
    "--recovery-is-waste", is_flag=True, help="Count retries after errors among calls to be saved."
)
@click.option(
    "--recovery", is_flag=True, help="What became of injected faults, by kind; see `simulate`."
)
@json_option
@click.option("--html", metavar="FILE", help="Write the report as one page, plots included.")
@click.option("--junit", metavar="FILE", help="Write thresholds and runs as JUnit XML.")
@_threshold_options
def command(
    paths: tuple[str, ...],
    tools: tuple[str, ...],
    tasks: tuple[str, ...],
    references: tuple[str, ...],
    no_passing_references: bool,
    format_: str,
    repeat_ratio: float,
    recovery_is_waste: bool,
    recovery: bool,
    as_json: bool,
    html: str | None,
    junit: str | None,
    **limits: float | None,
) -> None:
    """Score the paths of the runs in PATH…: steps, repeats, extras, unsafe calls, time, cost.

    Passing runs first: a long path that ends correctly is where the trade-off is. Without --tasks,
    budgets come from what passing runs took. Exit 1 where a --fail option's limit is exceeded, or
    where what it is about could not be measured. See docs/scoring.md.
    """
    from ontrack.operators.scoring_plan import ScoringParams
    from ontrack.pipeline.scoring.files import Against, score_files
    from ontrack.pipeline.scoring.junit import JUnit
    from ontrack.pipeline.scoring.recovered import RecoveryReport, as_lines
    from ontrack.pipeline.scoring.report import Report, as_line
    from ontrack.pipeline.scoring.thresholds import check

    settings = load_settings()
    known = (references, "mined", False, tools, tasks, "auto")
    given = load_knowledge((), settings.limits, *known, redaction=settings.redaction)
    params = ScoringParams(repeat_ratio_max=repeat_ratio, recovery_is_waste=recovery_is_waste)
    against = Against.of(
        params, given.tasks, given.contracts, given.references, not no_passing_references
    )
    report = Report(repeat_ratio, tools_known=bool(given.contracts))
    apart: list[str] = []
    recovered = RecoveryReport() if recovery else None
    runs = score_files(
        paths,
        against,
        format_,
        settings.limits,
        settings.redaction,
        on_apart=apart.extend,
        recovery=recovery,
    )
    with ExitStack() as stack:
        collected = None if junit is None else stack.enter_context(JUnit(repeat_ratio))
        for run in runs:
            report.add(run)
            if recovered is not None:
                recovered.add(run)
            if collected is not None:
                collected.add(run)
            if as_json:
                _print_all((as_line(run), *as_lines(run)), files=html or junit)
        checks = check(report, {name: at for name, at in limits.items() if at is not None})
        if collected is not None and junit is not None:
            with opened(junit) as out:
                collected.write(out, checks)
    if as_json:
        told = {} if recovered is None else {"recovery": recovered.as_record()}
        thresholds = [each.as_record() for each in checks]
        summary = {**report.as_record(), **told, "thresholds": thresholds}
        _print_all((summary,), files=html)
    if html is not None:
        from ontrack.pipeline.scoring.html import page

        write_text(html, page(report, paths, checks))
    if not as_json:
        _show(report, recovered, checks)
    _tell(apart, checks)
    if not all(each.ok for each in checks):
        sys.exit(1)


def _show(report: Report, recovered: RecoveryReport | None, checks: Sequence[Check]) -> None:
    from ontrack.pipeline.scoring.group import Rate
    from ontrack.pipeline.scoring.table import figures, notes, percent

    passed = Rate.of(report.groups["passing"].runs, report.everything.runs)
    click.echo(f"{report.everything.runs:,} runs, passed {percent(passed, interval=True)}\n")
    names = [name for name, group in report.groups.items() if group.runs]
    at = [place for place, name in enumerate(report.groups, 1) if name in names]
    rows = [(row[0], *(row[place] for place in at)) for row in figures(report)]
    _columns(("", *names), rows)
    _heading("What runs were measured against")
    for text in notes(report):
        click.echo(f"  {_plain(text)}")
    _flag_rate(report)
    if report.unsafe_tools:
        _heading("Unsafe calls by tool")
        found = report.unsafe_tools.most_common()
        _columns(("", "", ""), [(tool, effect, f"{calls:,}") for (tool, effect), calls in found])
    if recovered is not None:
        _recovery(recovered)
    if report.worth:
        _heading("Most worth looking at")
    for place, each in enumerate(report.worth, 1):
        task = f", task {each.task_id}" if each.task_id is not None else ""
        click.echo(f"{place:>3}. {_plain(f'{each.run_id}{task}, {each.outcome}')}")
        for reason in each.reasons:
            click.echo(f"     {_plain(reason)}")
    if checks:
        _heading("Thresholds")
    for check in checks:
        label = click.style("ok    ", fg="green") if check.ok else click.style("failed", fg="red")
        click.echo(f"  {label} {check.name}: {_plain(check.text)}")


def _recovery(recovered: RecoveryReport) -> None:
    """Show what became of injected faults."""
    from ontrack.pipeline.scoring.recovered import HEADINGS

    _heading("Back on course after injected faults")
    if rows := recovered.rows():
        _columns(HEADINGS, rows)
    for text in recovered.notes():
        click.echo(f"  {text}")


def _flag_rate(report: Report) -> None:
    """Show where budgets sit on what passing runs took."""
    from ontrack.pipeline.scoring.table import percent

    curve = report.flag_curve()
    if not curve:
        return
    _heading("Passing runs that a budget flags")
    used = percent(report.groups["passing"].rate("over_step_budget"), interval=True)
    rows = [("the budgets in use", "", used or "no budgets")]
    for point in curve:
        name = f"one budget at p{point.quantile * 100:.0f}"
        rows.append((name, f"{point.steps:g}", f"{point.flagged:.1%}"))
    _columns(("", "steps", "flagged"), rows)


def _columns(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print columns side by side, the first one to the left."""
    lines = [tuple(headings), *(tuple(_plain(cell, 60) for cell in row) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for number, cells in enumerate(lines):
        if not any(cells):
            continue
        padded = [cells[0].ljust(widths[0])]
        padded += [cell.rjust(width) for cell, width in zip(cells[1:], widths[1:], strict=True)]
        click.echo(click.style("   ".join(padded).rstrip(), bold=number == 0))


def _heading(text: str) -> None:
    click.echo(f"\n{click.style(text, bold=True)}")


def _tell(apart: Sequence[str], checks: Sequence[Check]) -> None:
    """Say on stderr what the table does not."""
    if apart:
        shown = ", ".join(_plain(name, 40) for name in apart[:_IDS_SHOWN_MAX])
        more = f" and {len(apart) - _IDS_SHOWN_MAX} more" if len(apart) > _IDS_SHOWN_MAX else ""
        click.echo(
            f"task ids that mean different tasks in different files, by their tools: {shown}{more};"
            " what passing runs took is counted apart",
            err=True,
        )
    for check in checks:
        if not check.ok:
            click.echo(f"failed: {check.name}: {_plain(check.text)}", err=True)


def _print_all(records: Iterable[Mapping[str, Any]], files: str | None) -> None:
    """Print a line each; a reader that went away (``| head``) does not end the writing of files."""
    try:
        for record in records:
            text = json.dumps(record, ensure_ascii=False, allow_nan=False)
            sys.stdout.buffer.write(text.encode("utf-8", "replace") + b"\n")
        sys.stdout.flush()
    except BrokenPipeError:
        if files is None:
            raise
        drop_output()


def _plain(text: str, width: int = _WIDTH_MAX) -> str:
    clean = printable(text)
    return clean if len(clean) <= width else clean[: width - 1] + "…"
