"""``ontrack compare``: how far recorded runs are from reference runs, step by step."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Any

import click

from ontrack.pipeline.cli.options import format_option, json_option, load_knowledge, paths_argument
from ontrack.pipeline.settings import load_settings
from ontrack.pipeline.terminal import printable
from ontrack.topics.errors import InvalidInput

if TYPE_CHECKING:
    from ontrack.operators.trajectory_costs import Canonicaliser
    from ontrack.pipeline.comparing import Compared, Pairing, RecordedRun
    from ontrack.topics.knowledge import ReferenceStep

_COLOURS = {"same": "green", "differs": "yellow", "extra": "red", "missing": "magenta"}
_COLUMNS = 110  # where the output is no terminal
_MARGIN = 18  # what a row needs beside its two calls
_VALUE_CHARACTERS = 32
_PAIRS_LISTED = 20


@click.command(name="compare")
@paths_argument(required=True)
@click.option(
    "--reference",
    "references",
    multiple=True,
    required=True,
    metavar="PATH",
    help="What to compare with: runs in any format, or references; may be given again.",
)
@click.option(
    "--scheme",
    type=click.Choice(["in_order", "exact", "any_order", "superset"]),
    default="in_order",
    show_default=True,
    help="What counts; docs/distance.md says how they differ.",
)
@click.option(
    "--dag",
    is_flag=True,
    help="With in_order: steps of the reference that do not depend on each other may come in any "
    "order.",
)
@click.option(
    "--by",
    type=click.Choice(["auto", "run", "task"]),
    default="auto",
    show_default=True,
    help="What makes a pair: the run's id, or its task (the nearest reference counts).",
)
@click.option("--tools", multiple=True, metavar="FILE", help="Tool contracts: weights by effect.")
@click.option(
    "--weight",
    "told",
    multiple=True,
    metavar="WHAT=NUMBER",
    help="Weight of an effect (destructive=20), a tool (refund=5) or an argument "
    "(refund:amount=4); may be given again.",
)
@click.option("--fold", is_flag=True, help="Ignore case and repeated white space in arguments.")
@format_option
@click.option(
    "--show",
    type=click.IntRange(min=0),
    default=3,
    show_default=True,
    metavar="N",
    help="Pairs shown side by side, the farthest ones first; --json prints all.",
)
@click.option(
    "--fail-above",
    type=click.FloatRange(min=0, max=1),
    metavar="X",
    help="Exit 1 when the normalised distance of all pairs together is above X.",
)
@json_option
def command(
    paths: tuple[str, ...],
    references: tuple[str, ...],
    scheme: Any,
    dag: bool,
    by: Any,
    tools: tuple[str, ...],
    told: tuple[str, ...],
    fold: bool,
    format_: str,
    show: int,
    fail_above: float | None,
    as_json: bool,
) -> None:
    """Compare runs of PATH… with reference runs: distance and alignment, step by step.

    One run and one reference are a pair. Of several, runs of the same id are pairs; where no id is
    on both sides, each run is compared with the references of its task, and the nearest counts.
    The distance of all pairs together is the sum of distances divided by the sum of largest ones.
    """
    from ontrack.operators.dependencies import declares
    from ontrack.operators.trajectory import TrajectoryDistance, corpus_distance, fold_text
    from ontrack.pipeline.cli.measures import progress
    from ontrack.pipeline.comparing import compare_all, pair_up, read_runs, weights_of

    if dag and scheme != "in_order":
        raise click.UsageError(f"--dag goes with --scheme in_order, not with {scheme}")
    if "-" in paths and "-" in references:
        raise click.UsageError("only one of PATH and --reference can be standard input")
    settings = load_settings()
    limits, redaction = settings.limits, settings.redaction
    given = load_knowledge((), limits, (), "mined", False, tools, (), "auto")
    told_weights = _weights(told)
    weights = weights_of(given.contracts, told_weights)
    runs = read_runs(paths, limits, redaction, format_)
    others = read_runs(references, limits, redaction, may_be_references=True)
    _tell_unused(told_weights, [*runs, *others])
    pairing = pair_up(runs, others, by)
    _tell_alone(pairing, len(others))
    if dag and not any(map(declares, (step for each in others for step in each.steps))):
        click.echo("no reference declares parents or consumed: --dag changes nothing", err=True)
    canonicaliser = fold_text if fold else None
    distance = TrajectoryDistance(scheme, weights, canonicaliser, dag)
    found: list[Compared] = []
    with progress("pairs", len(pairing.pairs)) as advance:
        for each in compare_all(distance, pairing, advance):
            found.append(each)
            if as_json:
                click.echo(json.dumps(_record(each, dag)))
    together = corpus_distance(each.comparison for each in found)
    summary = {
        "type": "summary",
        "scheme": scheme,
        "dag": dag,
        "paired_by": pairing.rule,
        "pairs": len(found),
        "unpaired": len(pairing.alone),
        "distance": sum(each.comparison.distance for each in found),
        "max_distance": sum(each.comparison.max_distance for each in found),
        "normalised": together,
    }
    if as_json:
        click.echo(json.dumps(summary))
    else:
        _show(found, summary, show, canonicaliser)
    if fail_above is not None and together > fail_above:
        click.echo(f"normalised distance {together:.4f} is above {fail_above:g}", err=True)
        sys.exit(1)


def _weights(told: Sequence[str]) -> dict[str, float]:
    found: dict[str, float] = {}
    for each in told:
        name, equals, number = each.rpartition("=")
        try:
            found[name] = float(number)
        except ValueError:
            equals = ""
        if not (name and equals):
            raise click.BadParameter(
                f"{printable(each[:80])!r}: expected WHAT=NUMBER, such as destructive=20",
                param_hint="--weight",
            )
    return found


def _tell_unused(weights: Mapping[str, float], runs: Sequence[RecordedRun]) -> None:
    from ontrack.topics.knowledge import Effect

    tools = {step.tool for run in runs for step in run.steps}
    for name in weights:
        if name not in list(Effect) and not tools & {name, name.rpartition(":")[0]}:
            click.echo(f"--weight {printable(name[:80])}: no run calls this tool", err=True)


def _tell_alone(pairing: Pairing, references: int) -> None:
    if not pairing.pairs:
        raise InvalidInput(
            f"nothing to compare: none of the {len(pairing.alone)} runs shares its "
            + ("id" if pairing.rule == "run" else "task_id")
            + f" with another run among the {references} references; give one run and one "
            "reference, runs of the same ids, or references of the same tasks"
        )
    if pairing.alone:
        names = ", ".join(printable(run.run_id[:60]) for run in pairing.alone[:3])
        more = ", …" if len(pairing.alone) > 3 else ""
        click.echo(
            f"{len(pairing.alone)} runs without a reference left out: {names}{more}", err=True
        )


def _record(each: Compared, dag: bool) -> dict[str, Any]:
    found = each.comparison
    record: dict[str, Any] = {
        "type": "comparison",
        "run_id": each.run.run_id,
        "reference_id": each.reference.run_id,
        "task_id": each.run.task_id,
        "scheme": found.scheme,
        "dag": dag,
        "distance": found.distance,
        "max_distance": found.max_distance,
        "normalised": found.normalised,
        "alignment": found.alignment,
    }
    if dag:
        record |= {"is_exact": found.is_exact, "lower_bound": found.lower_bound}
    return record


def _show(
    found: Sequence[Compared],
    summary: Mapping[str, Any],
    show: int,
    canonicaliser: Canonicaliser | None,
) -> None:
    """Show the farthest pairs side by side, then the list of pairs, then all together."""
    farthest = sorted(found, key=lambda each: -each.comparison.normalised)
    for each in farthest[:show]:
        _show_pair(each, canonicaliser)
    if len(found) > 1:
        _show_list(farthest[:_PAIRS_LISTED], len(found))
    pairs = "pair" if summary["pairs"] == 1 else "pairs"
    paired = {"one": "one against one", "run": "by run id", "task": "by task"}
    click.echo(
        f"{summary['scheme']}{', dag' if summary['dag'] else ''}: distance "
        f"{summary['distance']:g} of at most {summary['max_distance']:g} = "
        f"{summary['normalised']:.4f}, {summary['pairs']} {pairs} "
        f"({paired[summary['paired_by']]})"
    )


def _show_pair(each: Compared, canonicaliser: Canonicaliser | None) -> None:
    width = max(24, (get_terminal_size((_COLUMNS, 24)).columns - _MARGIN) // 2)
    task = "" if each.run.task_id is None else f", task {each.run.task_id}"
    click.echo(printable(f"{each.run.run_id} against {each.reference.run_id}{task}"))
    click.echo(f"{'':9}{'run':{width}} {'reference':{width}} {'cost':>6}")
    for what, run, reference, cost, differences in _side_by_side(each, canonicaliser):
        label = click.style(f"{what:8}", fg=_COLOURS[what])
        left, right = _cut(run, width), _cut(reference, width)
        click.echo(f"{label} {left:{width}} {right:{width}} {cost:>6}".rstrip())
        for line in differences:
            click.echo(f"{'':11}{line}")
    click.echo(f"{'':9}{_totals(each)}\n")


def _side_by_side(
    each: Compared, canonicaliser: Canonicaliser | None
) -> Iterator[tuple[str, str, str, str, list[str]]]:
    """Yield what is the case, the run's step, the reference's, the cost, and what differs."""
    from ontrack.operators.trajectory_costs import differing

    for i, j, cost in each.comparison.alignment:
        run, reference = _at(each.run, i), _at(each.reference, j)
        what, differences = "same", []
        if run is None:
            what = "missing"
        elif reference is None:
            what = "extra"
        elif run.tool != reference.tool:
            what = "differs"
        elif names := differing(run.args, reference.args, canonicaliser):
            what = "differs"
            differences = [
                f"{_cut(name)}: {_value(run.args, name)} → {_value(reference.args, name)}"
                for name in names
            ]
        shown = f"{cost:g}" if cost else ""
        yield what, _call(i, run), _call(j, reference), shown, differences


def _at(run: RecordedRun, place: int | None) -> ReferenceStep | None:
    return None if place is None else run.steps[place]


def _call(place: int | None, step: ReferenceStep | None) -> str:
    if step is None:
        return ""
    args = ", ".join(f"{name}={_value(step.args, name)}" for name in step.args)
    return f"{place:>3} {step.tool}({args})"


def _value(args: Mapping[str, Any], name: str) -> str:
    if name not in args:
        return "(none)"
    return _cut(json.dumps(args[name], ensure_ascii=False, default=str))


def _cut(text: str, characters: int = _VALUE_CHARACTERS) -> str:
    clean = printable(text)
    return clean if len(clean) <= characters else clean[: characters - 1] + "…"


def _totals(each: Compared) -> str:
    found = each.comparison
    proven = "" if found.is_exact else f" (at least {found.lower_bound:g}; the search was ended)"
    return (
        f"distance {found.distance:g}{proven} of at most {found.max_distance:g} = "
        f"{found.normalised:.4f}"
    )


def _show_list(farthest: Sequence[Compared], total: int) -> None:
    listed = "pairs" if total == len(farthest) else f"the {len(farthest)} farthest of {total} pairs"
    click.echo(
        f"{listed}\n{'run':26} {'reference':26} {'steps':>9} {'distance':>9} {'of':>7} {'share':>7}"
    )
    for each in farthest:
        found = each.comparison
        steps = f"{len(each.run.steps)}/{len(each.reference.steps)}"
        distance = f"{found.distance:g}" + ("" if found.is_exact else "?")
        click.echo(
            f"{_cut(each.run.run_id, 26):26} {_cut(each.reference.run_id, 26):26} {steps:>9} "
            f"{distance:>9} {found.max_distance:>7g} {found.normalised:>7.4f}"
        )
    click.echo()
