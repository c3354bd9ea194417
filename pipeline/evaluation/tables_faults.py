"""Table 4: faults in recorded successes, under the monitor and under parts of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from ontrack.pipeline.evaluation.baselines import prerequisites
from ontrack.pipeline.evaluation.corpus import Recording
from ontrack.pipeline.evaluation.injected import Herd, clean_runs
from ontrack.pipeline.evaluation.tables_report import NONE, Table
from ontrack.pipeline.evaluation.tables_split import Split
from ontrack.pipeline.evaluation.tables_variants import Variant, watcher_of
from ontrack.pipeline.evaluation.watching import Watcher

BENIGN_RUNS: Final = 40
FAULTY_RUNS: Final = 30
CLEAN: Final = "clean"
#: The paper's columns by the injections that make them.
KINDS: Final = {
    "loop": "Loop",
    "foreign_tool": "Halluc (foreign tools)",
    "splice": "Halluc (splice)",
    "inversion": "Invert",
    "stall": "Stall",
}
RULES: Final = "prerequisite rules"


class Row(NamedTuple):
    """One line of the table: the monitor under a variant, or the vital signs and the rules."""

    name: str
    variant: Variant
    rules: bool = False


@dataclass(frozen=True, slots=True)
class FlagJob:
    """One run, clean or with a fault, under several rows."""

    run_id: str
    references: tuple[str, ...]
    kind: str
    rows: tuple[Row, ...]
    seed: int


def rows(paper: Variant, default: Variant) -> tuple[Row, ...]:
    """Return the paper's variants, and those of ``default`` that change its verdicts.

    No verdict of ``default`` rests on the coupling (only its ranking score does), so it has no
    variant without mask or structure.
    """
    signs, default_signs = (
        Variant(each.profile, each.operators, references=False) for each in (paper, default)
    )
    no_mask = paper.with_solver(lookahead_weight=1.0, dormant_weight=1.0)
    return (
        Row("paper: full", paper),
        Row("paper: no mask", no_mask),
        Row("paper: no structure (theta = 0)", paper.with_solver(theta=0.0)),
        Row("paper: L1 only", signs),
        Row(f"paper: L1 and {RULES}", signs, rules=True),
        Row("paper: frozen frontier (kappa = 1)", paper.with_solver(kappa=1.0)),
        Row("default: full", default),
        Row("default: L1 only", default_signs),
    )


def plan(
    part: Split, herd: Herd, table: tuple[Row, ...], seed: int, runs_max: int
) -> list[FlagJob]:
    """Return the jobs: clean runs, and runs with each fault that they have a place for."""
    hosts = clean_runs(part.evaluation, part.references, seed).get(part.corpus, [])
    jobs = []
    for kind in (CLEAN, *KINDS):
        wanted = min(runs_max, BENIGN_RUNS if kind == CLEAN else FAULTY_RUNS)
        fit = (run for run in hosts if kind == CLEAN or herd.inject(kind, run, seed) is not None)
        for run, _ in zip(fit, range(wanted), strict=False):
            names = tuple(each.run_id for each in part.references[run.run_id])
            jobs.append(FlagJob(run.run_id, names, kind, table, seed))
    return jobs


def flag(watcher: Watcher, job: FlagJob) -> tuple[bool, ...]:
    """Tell for each row whether any verdict of the run is an alarm."""
    run, references = watcher.recordings[job.run_id], watcher.named(job.references)
    events = run.events
    if job.kind != CLEAN:
        made = watcher.herd.inject(job.kind, run, job.seed)
        assert made is not None, "planned from the same seed"
        events = made.events
    flagged: dict[Variant, bool] = {}
    for row in job.rows:
        if row.variant not in flagged:
            known = references if row.variant.references else ()
            watched = watcher_of(watcher, row.variant).watch(events, run.task, known)
            flagged[row.variant] = any(each.is_alarm for each in watched.seen)
    tools = [event.tool for event in events if event.type == "step"]
    broken = breaks_rules(tools, references)
    return tuple(flagged[row.variant] or (row.rules and broken) for row in job.rows)


def breaks_rules(tools: Sequence[str], references: Sequence[Recording]) -> bool:
    """Tell whether a tool is called before one that precedes it in every reference with it."""
    rules = prerequisites([[step.tool for step in each.steps] for each in references])
    called: set[str] = set()
    for tool in tools:
        if not rules.get(tool, frozenset()) <= called:
            return True
        called.add(tool)
    return False


def table4(
    table: Sequence[Row], results: Mapping[str, Sequence[tuple[FlagJob, tuple[bool, ...]]]]
) -> Table:
    """Faults in successes: runs with a severe verdict, by variant."""
    made = Table(
        "Table 4: components on recorded runs",
        f"Up to {BENIGN_RUNS} successes of the evaluation part as they were, and up to 30 for each "
        "fault put into them. A run counts as soon as any of its verdicts is an alarm, wherever in "
        "the run (the paper's criterion: severe; in `default`, the warning that a run goes round "
        "is one too), so recall is to be read beside FPR. λ is the one chosen "
        "on the calibration part; `paper` and `default` are otherwise as shipped. A frozen "
        "frontier has κ = 1, the largest value the solver takes (the paper's was 100). No verdict "
        "of `default` rests on the coupling, so mask and structure have no rows there.",
        ("corpus, variant", *KINDS.values(), "FPR"),
    )
    for corpus, pairs in results.items():
        if not pairs:
            made.notes.append(f"{corpus}: no success of the evaluation part has a reference.")
            continue
        for place, row in enumerate(table):
            cells = []
            for kind in (*KINDS, CLEAN):
                hits = [flags[place] for job, flags in pairs if job.kind == kind]
                cells.append(f"{sum(hits)}/{len(hits)}" if hits else NONE)
            made.rows.append((f"{corpus}, {row.name}", *cells))
        missing = [
            text for kind, text in KINDS.items() if not any(job.kind == kind for job, _ in pairs)
        ]
        if missing:
            made.notes.append(
                f"{corpus}: no run offers a place for {', '.join(missing)} (an inversion needs a "
                "call with a declared effect that depends on an earlier call; see --tools)."
            )
    return made
