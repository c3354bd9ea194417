"""What all experiments of ``ontrack evaluate`` share: options, the recorded runs, work, figures."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from ontrack.pipeline.blas import one_blas_thread
from ontrack.pipeline.cli.measures import progress, show_table
from ontrack.pipeline.cli.options import (
    encoder_option,
    format_option,
    json_option,
    paths_argument,
    profile_option,
    tools_option,
)

if TYPE_CHECKING:
    from ontrack.pipeline.evaluation.corpus import Recording
    from ontrack.pipeline.evaluation.measures import Measure
    from ontrack.pipeline.evaluation.watching import Setup, Watcher

Command = TypeVar("Command", bound=Callable[..., Any])
Job = TypeVar("Job")
Result = TypeVar("Result")

#: References a run, where nobody says how many.
REFERENCES: Final = 5


_REFERENCES: tuple[Callable[[Any], Any], ...] = (
    click.option(
        "--references",
        "count",
        type=click.IntRange(min=0),
        default=REFERENCES,
        show_default=True,
        metavar="N",
        help="Successful runs of the same task that a run is compared with, at most; never "
        "the run itself.",
    ),
    click.option(
        "--exclude-own-model",
        is_flag=True,
        help="No references by the model that made the run.",
    ),
    click.option(
        "--other-tasks",
        is_flag=True,
        help="References are N successes of other tasks, the same for every run; their tasks "
        "are left out. For corpora with one run a task.",
    ),
)


def options(name: str, references: bool = True) -> Callable[[Command], click.Command]:
    """Make a command of an experiment, with the options that all of them share.

    Parameters
    ----------
    references
        Whether it has those that say which references a run is compared with.
    """
    decorators: tuple[Callable[[Any], Any], ...] = (
        click.command(name=name),
        paths_argument(required=True),
        tools_option,
        format_option,
        profile_option,
        encoder_option,
        *(_REFERENCES if references else ()),
        click.option("--seed", type=int, default=0, show_default=True, help="Of every choice."),
        click.option(
            "--processes",
            type=click.IntRange(min=1),
            help="At work side by side [cores]; the figures do not depend on it.",
        ),
        json_option,
    )

    def decorate(function: Command) -> click.Command:
        decorated: Any = function
        for each in reversed(decorators):
            decorated = each(decorated)
        return decorated  # type: ignore[no-any-return]

    return decorate


def runs_option(default: int | None, text: str) -> Callable[[Command], Command]:
    """Add ``--runs``."""
    return click.option(
        "--runs",
        type=click.IntRange(min=1),
        default=default,
        show_default=default is not None,
        metavar="N",
        help=text,
    )


def plot_option(text: str) -> Callable[[Command], Command]:
    """Add ``--plot``."""
    return click.option(
        "--plot", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE.png", help=text
    )


def numbers(_context: click.Context, _parameter: click.Parameter, text: str) -> tuple[int, ...]:
    """Parse ``30,50``."""
    return _parsed(text, {}, "numbers such as 30,50")


def lengths(_context: click.Context, _parameter: click.Parameter, text: str) -> tuple[int, ...]:
    """Parse ``3,5,whole``; the whole run is 0."""
    return _parsed(text, {"whole": 0}, "numbers of steps such as 3,5,10, and `whole` for all")


def _parsed(text: str, words: Mapping[str, int], expected: str) -> tuple[int, ...]:
    found = []
    for part in (each.strip() for each in text.split(",")):
        if part in words:
            found.append(words[part])
        elif part.isascii() and part.isdigit() and int(part[:9]) > 0:
            found.append(int(part))
        else:
            raise click.BadParameter(f"{part[:40]!r}: expected {expected}")
    return tuple(dict.fromkeys(found))


@dataclass(frozen=True, slots=True)
class Experiment:
    """What an experiment works with."""

    setup: Setup
    chosen: dict[str, tuple[Recording, ...]]
    seed: int
    processes: int
    as_json: bool

    @property
    def recordings(self) -> tuple[Recording, ...]:
        """All recorded runs."""
        return self.setup.recordings

    @property
    def profile(self) -> str:
        """Name of the profile."""
        return self.setup.settings.profile

    def under(self, profile: str) -> Experiment:
        """Return the same under another profile, without what was chosen for this one."""
        settings = self.setup.settings
        if profile == settings.profile:
            return self
        changes: dict[str, Any] = {"profile": profile, "operators": {}, "calibration": None}
        changed = settings.model_copy(update=changes)
        return replace(self, setup=replace(self.setup, settings=changed))

    def each_profile(self, named: str | None) -> Iterator[tuple[str, Experiment]]:
        """Yield it under both profiles, or as it is where one was named."""
        from ontrack.pipeline.evaluation.watching import PROFILES

        for name in PROFILES if named is None else (self.profile,):
            yield name, self.under(name)

    def names(self, run: Recording) -> tuple[str, ...]:
        """Ids of a run's references."""
        return tuple(each.run_id for each in self.chosen.get(run.run_id, ()))

    def work(
        self, what: str, function: Callable[[Watcher, Job], Result], jobs: Sequence[Job]
    ) -> list[Result]:
        """Do jobs under a progress bar."""
        from ontrack.pipeline.evaluation.processes import run_jobs

        with progress(what, len(jobs)) as advance:
            return run_jobs(function, self.setup, jobs, self.processes, advance)

    def show(self, title: str, measures: Sequence[Measure]) -> None:
        """Print the figures, as lines for programs or as a table."""
        if self.as_json:
            for measure in measures:
                click.echo(json.dumps(measure.as_record()))
        else:
            show_table(title, measures)


def prepare(
    paths: tuple[str, ...],
    tools: tuple[str, ...],
    format_: str,
    profile: str | None,
    encoder: str | None,
    seed: int,
    processes: int | None,
    as_json: bool,
    count: int = REFERENCES,
    exclude_own_model: bool = False,
    other_tasks: bool = False,
    equal: bool = False,
) -> Experiment:
    """Read the recorded runs and choose each run's references.

    Parameters
    ----------
    equal
        Every run of a task gets equally many references.
    """
    one_blas_thread()  # before anything imports numpy
    from ontrack.pipeline.evaluation.corpus import ReferencePlan, read_corpora, told_apart
    from ontrack.pipeline.evaluation.processes import processors
    from ontrack.pipeline.evaluation.watching import Setup
    from ontrack.pipeline.log import set_up_logging
    from ontrack.pipeline.making import make_fold
    from ontrack.pipeline.reading.readers import read_tools
    from ontrack.pipeline.settings import load_settings

    settings = load_settings(profile=profile, encoder=encoder)
    set_up_logging("warning", settings.log_json)
    limits = make_fold(settings).profile
    contracts = tuple(tool for path in tools for tool in read_tools(path))
    recordings = read_corpora(paths, format_, settings.limits, settings.redaction)
    recordings, apart = told_apart(recordings, {tool.name: tool for tool in contracts})
    if apart:
        click.echo(f"{apart} task ids stand for several tasks; these are told apart", err=True)
    if count > limits.references_max:
        click.echo(
            f"a run is compared with at most {limits.references_max} references; "
            f"--references {count} is more",
            err=True,
        )
    plan = ReferencePlan(
        min(count, limits.references_max),
        limits.reference_steps_max,
        exclude_own_model,
        equal,
        other_tasks,
        seed,
    )
    chosen = plan.choose(recordings)
    bench = Experiment(
        Setup(settings, contracts, tuple(recordings)),
        chosen,
        seed,
        processes or processors(),
        as_json,
    )
    served = sum(bool(references) for references in chosen.values())
    click.echo(f"{len(recordings)} runs, {served} of them with references", err=True)
    return bench


def require_some(jobs: Sequence[object]) -> None:
    """Refuse to measure nothing. Raises :class:`~ontrack.topics.errors.InvalidInput`."""
    if not jobs:
        from ontrack.topics.errors import InvalidInput

        raise InvalidInput(
            "no successful run has a reference (another successful run of its task); give more "
            "runs a task, or --other-tasks"
        )
