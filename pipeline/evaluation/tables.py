"""``ontrack evaluate tables``: the paper's Tables 2-9 on given corpora, as one report."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Any, Final, Protocol, TypeVar

from ontrack.pipeline.evaluation.corpus import Recording
from ontrack.pipeline.evaluation.injected import Herd
from ontrack.pipeline.evaluation.ranking import WHOLE_RUN
from ontrack.pipeline.evaluation.statistics import auroc
from ontrack.pipeline.evaluation.tables_faults import flag, plan, rows, table4
from ontrack.pipeline.evaluation.tables_partial import table5, table9
from ontrack.pipeline.evaluation.tables_report import Table, grid, number
from ontrack.pipeline.evaluation.tables_split import Split, split
from ontrack.pipeline.evaluation.tables_traces import TraceJob, trace
from ontrack.pipeline.evaluation.tables_variants import Variant, watcher_of
from ontrack.pipeline.evaluation.tables_watchings import Watchings, lacks
from ontrack.pipeline.evaluation.tables_whole import table6, table7, table8
from ontrack.pipeline.evaluation.watching import PROFILES, Setup, Watcher

#: The paper's grid of section 6.2.
GRID: Final = (0.01, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0)
LAMBDA_CLASS_MIN: Final = 5

Job = TypeVar("Job")
Result = TypeVar("Result")


class Work(Protocol):
    """Does jobs, on as many processes as there are: what, function, jobs."""

    def __call__(
        self, what: str, function: Callable[[Watcher, Any], Result], jobs: Sequence[Any]
    ) -> list[Result]:
        """Return the results in the order of the jobs."""
        ...


def recorded_tables(setup: Setup, seed: int, runs_max: int, work: Work) -> list[Table]:
    """Measure Tables 4-9 on the recordings of a setup, after a table of how they were split.

    Parameters
    ----------
    seed
        Of the split, of samples, injections and resamples.
    runs_max
        Runs a corpus and kind in Table 4, at most.
    """
    steps_max = Watcher(setup).profile.reference_steps_max
    corpora: dict[str, list[Recording]] = {}
    for run in setup.recordings:
        corpora.setdefault(run.corpus, []).append(run)
    parts = [split(corpus, runs, seed, steps_max) for corpus, runs in corpora.items()]
    base = {
        profile: Variant.of(
            profile, setup.settings.operators if profile == setup.settings.profile else None
        )
        for profile in PROFILES
    }
    areas = _lambda_areas(parts, base["paper"], work)
    shipped = watcher_of(Watcher(setup), base["paper"]).profile.transport.solver.lam
    lams = {part.corpus: _best(areas[part.corpus], shipped) for part in parts}
    variants = {
        part.corpus: {
            "paper": base["paper"].with_solver(lam=lams[part.corpus]),
            "default": base["default"],
        }
        for part in parts
    }
    watchings = _watch(parts, variants, seed, work)
    herd = Herd(setup.recordings, {each.name: each for each in setup.contracts})
    tables = {part.corpus: rows(*variants[part.corpus].values()) for part in parts}
    jobs = {part.corpus: plan(part, herd, tables[part.corpus], seed, runs_max) for part in parts}
    flat = [job for own in jobs.values() for job in own]
    answers = iter(work("Table 4", flag, flat))
    flags = {corpus: [(job, next(answers)) for job in own] for corpus, own in jobs.items()}
    return [
        _splits(parts, areas, lams, shipped),
        table4(next(iter(tables.values()), ()), flags),
        table5(watchings),
        table6(watchings),
        table7(watchings),
        table8(watchings),
        table9(watchings),
    ]


def _lambda_areas(
    parts: Sequence[Split], paper: Variant, work: Work
) -> dict[str, dict[float, float]]:
    """Return the AUROC of the paper's score on each calibration part under each lambda."""
    jobs, owners = [], []
    for part in parts:
        if lacks(part.calibration, LAMBDA_CLASS_MIN):
            continue
        for lam in GRID:
            variant = paper.with_solver(lam=lam)
            for run in part.calibration:
                names = tuple(each.run_id for each in part.references[run.run_id])
                jobs.append(TraceJob(run.run_id, names, variant, (WHOLE_RUN,), end=False))
                owners.append((part.corpus, lam, run.succeeded))
    scores: dict[tuple[str, float], list[tuple[float, bool]]] = {}
    for (corpus, lam, good), facts in zip(owners, work("λ", trace, jobs), strict=True):
        score = facts.scores[WHOLE_RUN]["score"]
        scores.setdefault((corpus, lam), []).append((0.0 if score is None else score, good))
    areas: dict[str, dict[float, float]] = {part.corpus: {} for part in parts}
    for (corpus, lam), pairs in scores.items():
        area = auroc([score for score, _ in pairs], [good for _, good in pairs])
        if area is not None:
            areas[corpus][lam] = area
    return areas


def _best(areas: dict[float, float], shipped: float) -> float:
    """Return the lambda of the largest area, the smallest one of equals; else the profile's."""
    return max(areas, key=lambda lam: (areas[lam], -lam)) if areas else shipped


def _watch(
    parts: Sequence[Split], variants: dict[str, dict[str, Variant]], seed: int, work: Work
) -> list[Watchings]:
    jobs, owners = [], []
    for part in parts:
        for run in part.evaluation:
            names = tuple(each.run_id for each in part.references[run.run_id])
            for profile in PROFILES:
                variant = variants[part.corpus][profile]
                jobs.append(TraceJob(run.run_id, names, variant, rivals=profile == PROFILES[0]))
                owners.append((part.corpus, profile, run.run_id))
    facts: dict[str, dict[str, dict[str, Any]]] = {
        part.corpus: {profile: {} for profile in PROFILES} for part in parts
    }
    for (corpus, profile, run_id), found in zip(
        owners, work("Tables 5-9", trace, jobs), strict=True
    ):
        facts[corpus][profile][run_id] = found
    return [Watchings(part, facts[part.corpus], seed) for part in parts]


def _splits(
    parts: Sequence[Split],
    areas: dict[str, dict[float, float]],
    lams: dict[str, float],
    shipped: float,
) -> Table:
    made = Table(
        "Corpora, split and λ",
        "No task is in two parts. Where most runs have successes of their own task, these are the "
        "references (at most five, the same number for every run of a task, never the run itself); "
        "elsewhere, as in the paper, five successes of tasks set apart, the same for every run. λ "
        "of `paper` has the largest AUROC of the whole run's score on the calibration part; "
        "`default` is as shipped.",
        (
            "corpus",
            "runs",
            "tasks: calibration / references / evaluation",
            "references",
            "evaluation: successes / failures",
            "λ",
            *(f"AUROC at λ = {lam:g}" for lam in GRID),
        ),
    )
    for part in parts:
        good = sum(run.succeeded for run in part.evaluation)
        found = areas[part.corpus]
        made.rows.append(
            (
                part.corpus,
                str(len(part.evaluation) + len(part.calibration)),
                " / ".join(map(str, part.tasks)),
                "same task" if part.same_task else "other tasks",
                f"{good} / {len(part.evaluation) - good}",
                f"{lams[part.corpus]:g}",
                *(number(found.get(lam)) for lam in GRID),
            )
        )
        if part.without:
            made.notes.append(
                f"{part.corpus}: {part.without} runs have no reference or no outcome."
            )
        if not found:
            reason = lacks(part.calibration, LAMBDA_CLASS_MIN)
            made.notes.append(
                f"{part.corpus}: the calibration part has {reason}; λ stays at {shipped:g}."
            )
    return made


def report(
    tables: Sequence[Table], command: str, setup: Setup, encoder: str, seed: int, processes: int
) -> str:
    """Return the whole report as Markdown: what was run where, then the tables."""
    counts: dict[str, int] = {}
    for run in setup.recordings:
        counts[run.corpus] = counts.get(run.corpus, 0) + 1
    facts = [
        ("command", f"`{command}`"),
        ("seed", str(seed)),
        ("runs", ", ".join(f"{name} {count}" for name, count in counts.items())),
        ("tool contracts", str(len(setup.contracts))),
        ("encoder", encoder),
        ("OnTrack", version("ontrack")),
        ("machine", machine()),
        ("processes", str(processes)),
    ]
    head = "# The paper's tables on recorded runs\n\n" + grid(("what", "value"), facts)
    return "\n\n".join([head, *(table.markdown() for table in tables)]) + "\n"


def machine() -> str:
    """Return what the figures were computed on."""
    cores = len(os.sched_getaffinity(0))
    libraries = ", ".join(f"{name} {version(name)}" for name in ("numpy", "scipy"))
    return (
        f"{platform.machine()}, {cores} cores, {platform.system()}, "
        f"Python {platform.python_version()}, {libraries}"
    )
