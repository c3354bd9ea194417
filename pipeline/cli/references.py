"""``ontrack references``: mine what runs are compared with, check it, look at it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from ontrack.pipeline.cli.measures import progress
from ontrack.pipeline.cli.options import (
    broker_option,
    json_option,
    load_knowledge,
    paths_argument,
    tasks_option,
    tell_left_out,
    tools_option,
)
from ontrack.pipeline.cli.output import opened
from ontrack.pipeline.settings import Settings, load_settings
from ontrack.pipeline.terminal import printable
from ontrack.topics.errors import InvalidInput
from ontrack.topics.knowledge import Reference, Task, ToolContract

if TYPE_CHECKING:
    from ontrack.operators.profiles import Profile
    from ontrack.pipeline.encoding.encoders import CachedEncoder
    from ontrack.pipeline.mining import MinedSets, Successes

IDS_SHOWN_MAX = 5

_from_topic = click.option(
    "--from-topic", is_flag=True, help="Read what is published instead of PATH."
)
_format = click.option(
    "--format", "format_", default="auto", show_default=True, help="Format of recorded runs."
)
_encoder = click.option("--encoder", metavar="NAME", help="Text encoder of the self-test.")


@click.group(name="references")
def command() -> None:
    """Mine references from successful runs, check them, show them."""


@command.command()
@paths_argument(required=False)
@_from_topic
@broker_option
@tools_option
@click.option("--tasks", multiple=True, metavar="FILE", help="Task files, for --axiomatic.")
@_format
@_encoder
@click.option(
    "--output", "-o", metavar="FILE", help="Write the references there; - is standard output."
)
@click.option(
    "--keep",
    type=click.IntRange(min=1, max=100),
    default=10,
    show_default=True,
    metavar="N",
    help="References a task has at most.",
)
@click.option("--split", is_flag=True, help="Name the tasks that share an id apart: 17#1, 17#2, …")
@click.option(
    "--axiomatic",
    is_flag=True,
    help="Make references from --tools alone: what the goals need, in order. They only warn.",
)
@click.option(
    "--goal",
    "goals",
    multiple=True,
    metavar="TASK=NAME",
    help="With --axiomatic: a tool or artifact that a task comes down to; repeatable.",
)
@json_option
def mine(
    paths: tuple[str, ...],
    from_topic: bool,
    broker: str | None,
    tools: tuple[str, ...],
    tasks: tuple[str, ...],
    format_: str,
    encoder: str | None,
    output: str | None,
    keep: int,
    split: bool,
    axiomatic: bool,
    goals: tuple[str, ...],
    as_json: bool,
) -> None:
    """Make references from the successful runs of PATH…, or of the events topic.

    Per task: retries and dead ends are left out, the most central run and those farthest from it
    are kept, and the set is tested: would its members have stopped each other? Tools with --tools:
    without contracts nothing is known to only read, and little is left out.
    """
    settings = load_settings(broker=broker, encoder=encoder)
    if axiomatic:
        if paths or from_topic or split:
            raise click.UsageError("--axiomatic reads --tools and --tasks, no runs")
        found = _axiomatic(_given(settings, tools, tasks), goals)
        _write(output, found)
        if output != "-":
            from ontrack.pipeline.cli.reference_tables import show_references

            show_references(found, {}, {}, as_json)
        return
    if goals:
        raise click.UsageError("--goal is for --axiomatic")
    if bool(paths) == from_topic:
        raise click.UsageError("give either PATH… or --from-topic")
    given = _given(settings, tools, tasks, from_topic)
    successes = _successes(settings, paths, format_, from_topic)
    if not successes.by_task():
        raise InvalidInput(
            f"none of the {successes.runs} runs both names a task and ended with success; "
            "references need a task_id, and a run_ended with outcome success"
        )
    sets = _mined(settings, given, successes, keep, split)
    _tell_collisions(sets, split)
    _write(output, sets.references)
    if output != "-":
        from ontrack.pipeline.cli.reference_tables import show_mined

        show_mined(sets, as_json)
    click.echo(
        f"{successes.runs} runs, {sum(len(task.successes) for task in sets.tasks)} successes of "
        f"{len(sets.tasks)} tasks, {len(sets.references)} references"
        + ("" if output else "; nothing is written without --output FILE"),
        err=True,
    )


@command.command()
@paths_argument(required=False)
@_from_topic
@broker_option
@tools_option
@tasks_option
@click.option("--runs", multiple=True, metavar="PATH", help="Recent runs, any format.")
@_format
@_encoder
@json_option
def check(
    paths: tuple[str, ...],
    from_topic: bool,
    broker: str | None,
    tools: tuple[str, ...],
    tasks: tuple[str, ...],
    runs: tuple[str, ...],
    format_: str,
    encoder: str | None,
    as_json: bool,
) -> None:
    """Test the references of PATH…, or those published, and find the stale ones; these exit 1.

    Stale is a reference whose tool is not among --tools any more, or has another effect than when
    it was mined, or one that --tasks do not allow. With --runs also: references that a recent
    success undercuts, so that fewer steps are not taken for a regression.
    """
    from ontrack.operators.staleness import shorter, stale
    from ontrack.operators.stripping import StripParams
    from ontrack.pipeline.cli.reference_tables import show_checked
    from ontrack.pipeline.mining import self_tests, successes_in

    settings = load_settings(broker=broker, encoder=encoder)
    given = _given(settings, tools, tasks, from_topic)
    references = _references(settings, paths, from_topic, given)
    gone = stale(StripParams(), given.contracts, given.tasks, references)
    undercut = []
    if runs:
        if not given.contracts:
            raise click.UsageError("--runs needs --tools: which calls have an effect?")
        recent = successes_in(runs, format_, settings.limits, settings.redaction).by_task()
        undercut = shorter(StripParams(), given.contracts, references, recent)
    profile, made = _profile(settings)
    tests = self_tests(profile, made, given.contracts, references)
    show_checked(references, tests, gone, undercut, as_json)
    if gone:
        sys.exit(1)


@command.command()
@paths_argument(required=False)
@_from_topic
@broker_option
@click.option("--task", "task_ids", multiple=True, metavar="ID", help="Only this task; repeatable.")
@tools_option
@_encoder
@json_option
def show(
    paths: tuple[str, ...],
    from_topic: bool,
    broker: str | None,
    task_ids: tuple[str, ...],
    tools: tuple[str, ...],
    encoder: str | None,
    as_json: bool,
) -> None:
    """Show the references of PATH…, or those published: steps, edges, where they come from.

    --json prints them as they stand on their topic, and the self-test of each set.
    """
    from ontrack.pipeline.cli.reference_tables import show_references
    from ontrack.pipeline.mining import self_tests

    settings = load_settings(broker=broker, encoder=encoder)
    given = _given(settings, tools, (), from_topic)
    references = _references(settings, paths, from_topic, given)
    profile, made = _profile(settings)
    if task_ids:
        unknown = set(task_ids) - {reference.task_id for reference in references}
        if unknown:
            raise click.UsageError(f"no references of task {min(unknown)!r}")
    tests = self_tests(profile, made, given.contracts, references)
    wanted = [item for item in references if not task_ids or item.task_id in task_ids]
    show_references(wanted, tests, given.contracts, as_json)


@command.command()
@click.argument("reference_ids", nargs=-1, metavar="ID…")
@click.option(
    "--task", "task_ids", multiple=True, metavar="ID", help="All of this task; repeatable."
)
@broker_option
@click.option("--dry-run", is_flag=True, help="Only say which ones would go.")
def withdraw(
    reference_ids: tuple[str, ...], task_ids: tuple[str, ...], broker: str | None, dry_run: bool
) -> None:
    """Withdraw published references, whatever they come from.

    Runs that begin from then on are not compared with them; those that are open keep them to their
    end. What a task file brings along is withdrawn by sending the task without it.
    """
    if not reference_ids and not task_ids:
        raise click.UsageError("name references by their ids, or all those of a task by --task")
    from ontrack.pipeline.kafka.published import published_knowledge
    from ontrack.pipeline.kafka.sender import withdraw_references

    settings = load_settings(broker=broker)

    async def go() -> None:
        published = (await published_knowledge(settings)).references
        tasks = {reference.reference_id: reference.task_id for reference in published}
        absent = sorted(set(reference_ids) - set(tasks))
        empty = sorted(set(task_ids) - set(tasks.values()))
        if absent or empty:
            what = f"reference {absent[0]!r}" if absent else f"reference of task {empty[0]!r}"
            raise click.UsageError(
                f"no {what} is published; nothing was withdrawn. "
                "`ontrack references show --from-topic` lists those that are"
            )
        wanted = [name for name, task in tasks.items() if name in reference_ids or task in task_ids]
        for name in wanted:
            click.echo(printable(f"{name}  {tasks[name]}"))
        gone = 0 if dry_run else await withdraw_references(settings, wanted)
        click.echo(f"{gone} references withdrawn", err=True)

    asyncio.run(go())


@dataclass(frozen=True, slots=True)
class _Given:
    """Contracts by name, tasks by id, and what is published."""

    contracts: Mapping[str, ToolContract]
    tasks: Mapping[str, Task]
    published: tuple[Reference, ...] = ()


def _given(
    settings: Settings,
    tools: Sequence[str],
    tasks: Sequence[str],
    from_topic: bool = False,
) -> _Given:
    """Read contracts and tasks; files win over what is published under the same name."""
    told = load_knowledge((), settings.limits, (), "mined", False, tools, tasks, "auto")
    contracts: dict[str, ToolContract] = {}
    by_id: dict[str, Task] = {}
    published: tuple[Reference, ...] = ()
    if from_topic:
        from ontrack.pipeline.kafka.published import published_knowledge

        found = asyncio.run(published_knowledge(settings))
        contracts = {tool.name: tool for tool in found.contracts}
        by_id = {task.id: task for task in found.tasks}
        published = tuple(found.references)
        if found.unreadable:
            click.echo(f"{found.unreadable} unreadable messages passed over", err=True)
    contracts |= {tool.name: tool for tool in told.contracts}
    by_id |= {task.id: task for task in told.tasks}
    return _Given(contracts, by_id, published)


def _references(
    settings: Settings, paths: Sequence[str], from_topic: bool, given: _Given
) -> list[Reference]:
    """Read references, and those written in tasks."""
    if bool(paths) == from_topic:
        raise click.UsageError("give either PATH… or --from-topic")
    from ontrack.pipeline.reading import readers

    found = list(given.published)
    if paths:
        left_out: list[tuple[str, str]] = []
        found = readers.read_references(
            paths,
            on_skipped=lambda run_id, why: left_out.append((run_id, why)),
            redaction=settings.redaction,
        )
        if left_out:
            tell_left_out(left_out)
    written = [item for task in given.tasks.values() for item in task.written_references()]
    return sorted([*found, *written], key=lambda item: (item.task_id, item.reference_id))


def _successes(
    settings: Settings, paths: Sequence[str], format_: str, from_topic: bool
) -> Successes:
    if from_topic:
        from ontrack.pipeline.kafka.published import published_runs

        return asyncio.run(published_runs(settings))
    from ontrack.pipeline.mining import successes_in

    return successes_in(paths, format_, settings.limits, settings.redaction)


def _mined(
    settings: Settings, given: _Given, successes: Successes, keep: int, split: bool
) -> MinedSets:
    from ontrack.operators.mining import MiningParams
    from ontrack.pipeline.mining import mine_sets

    by_task = successes.by_task()
    params = MiningParams(keep_min=min(3, keep), keep_max=keep)
    profile, made = _profile(settings)
    with progress("tasks", len(by_task)) as advance:
        return mine_sets(params, profile, made, given.contracts, by_task, split, advance)


def _axiomatic(given: _Given, goals: Sequence[str]) -> list[Reference]:
    """Make one reference a task that has goals: given, declared, or the effects it allows."""
    from ontrack.operators.axioms import axiomatic

    wanted: dict[str, list[str]] = {}
    for goal in goals:
        task_id, equals, name = goal.partition("=")
        if not (task_id and equals and name):
            raise click.BadParameter(f"{goal[:80]!r}: expected TASK=NAME", param_hint="--goal")
        wanted.setdefault(task_id, []).append(name)
    for task in given.tasks.values():
        declared = task.goals or tuple(item.tool for item in task.allowed or ())
        if declared and task.id not in wanted:
            wanted[task.id] = list(declared)
    if not given.contracts or not wanted:
        raise click.UsageError(
            "--axiomatic needs --tools, and goals: --goal TASK=NAME, or --tasks whose tasks have "
            "goals or allowed effects"
        )
    found = []
    for task_id, names in sorted(wanted.items()):
        made = axiomatic(given.contracts, task_id, names)
        found.append(made.reference)
        if made.given:
            click.echo(
                printable(f"{task_id}: nothing produces {', '.join(made.given)}; taken as given"),
                err=True,
            )
    return found


def _profile(settings: Settings) -> tuple[Profile, CachedEncoder]:
    """Return the profile that tests sets, and the encoder; the paper's has no self-test."""
    from ontrack.pipeline.making import encoder_of, profile_of

    made = encoder_of(settings)
    profile = profile_of(settings, made.name)
    if profile.selftest is None:
        default = settings.model_copy(update={"profile": "default", "operators": {}})
        profile = profile_of(default, made.name)
    return profile, made


def _write(output: str | None, references: Sequence[Reference]) -> None:
    if output is None:
        return
    from ontrack.topics import codecs

    with opened(output) as out:
        out.writelines(codecs.encode(reference) + b"\n" for reference in references)


def _tell_collisions(sets: MinedSets, split: bool) -> None:
    if not sets.collisions:
        return
    shown = ", ".join(
        f"{printable(task_id)} ({' + '.join(str(len(group)) for group in groups)})"
        for task_id, groups in list(sets.collisions.items())[:IDS_SHOWN_MAX]
    )
    more = len(sets.collisions) - IDS_SHOWN_MAX
    what = (
        "they are named 17#1, 17#2 and so on; runs need these ids to meet them"
        if split
        else "references of one stop runs of the other; --split names them apart, and runs need "
        "ids that differ"
    )
    click.echo(
        f"{len(sets.collisions)} task ids seem to stand for several tasks, whose successes share "
        f"hardly any values or tools: {shown}{f' and {more} more' if more > 0 else ''}; {what}",
        err=True,
    )
