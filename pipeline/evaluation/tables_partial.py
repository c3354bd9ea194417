"""Tables 5 and 9: success or failure after k steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean, stdev
from typing import Final

from ontrack.pipeline.evaluation.corpus import Recording
from ontrack.pipeline.evaluation.statistics import Grouped, Resampled, auroc
from ontrack.pipeline.evaluation.tables_report import Table, interval, number
from ontrack.pipeline.evaluation.tables_split import balanced
from ontrack.pipeline.evaluation.tables_traces import KS
from ontrack.pipeline.evaluation.tables_watchings import SCORE, Watchings, lacks
from ontrack.pipeline.evaluation.watching import PROFILES

SEED_EACH, SEEDS = 100, 5

#: Columns of rival scores, by their names among the baselines.
_RIVALS: Final = {
    "linear_uot": "LinUOT",
    "cosine": "cosine",
    "n_steps": "n_steps",
    "graph_edit": "GED",
    "trigram": "trigram",
    "prerequisite_rules": "rules",
}


def table5(watchings: Sequence[Watchings]) -> Table:
    """AUROC after k steps, all runs with at least k steps."""
    made = Table(
        "Table 5: success or failure after k steps",
        "AUROC over all runs of the evaluation part with at least k steps, every method on the "
        "same runs, pooled over tasks as in the paper; 95 % intervals of 1,000 resamples of tasks. "
        "`paper` is the score, `default` the ranking score. Δ is the difference to cosine. The "
        "last two columns compare only runs of the same task.",
        (
            "corpus, k",
            "N",
            *PROFILES,
            *_RIVALS.values(),
            "Δ paper",
            "Δ default",
            "within task: paper",
            "within task: default",
        ),
    )
    for each, k, runs in _prefixes(watchings, made):
        grouped = Grouped([r.key for r in runs], [r.succeeded for r in runs], each.seed)
        columns = {p: each.column(runs, k, SCORE[p], p) for p in PROFILES}
        columns |= {name: each.column(runs, k, name, "paper") for name in _RIVALS}
        pooled: dict[str, Resampled] = {n: grouped.pooled(c) for n, c in columns.items()}
        within = [grouped.within_task(columns[profile]).estimate for profile in PROFILES]
        made.rows.append(
            (
                f"{each.part.corpus}, {k}",
                str(len(runs)),
                *(number(pooled[name].value) for name in columns),
                *(interval(pooled[p].minus(pooled["cosine"]), True) for p in PROFILES),
                *(interval(estimate) for estimate in within),
            )
        )
    return made


def table9(watchings: Sequence[Watchings]) -> Table:
    """Table 5 again on balanced samples, drawn by several seeds."""
    made = Table(
        "Table 9: several seeds, balanced",
        f"{SEEDS} seeds, each a balanced sample of at most {SEED_EACH} runs a class with at least "
        "k steps; split, references and λ stay. Mean ± standard deviation of AUROC; Δ to cosine; "
        "seeds with Δ > 0.",
        (
            "corpus, k",
            "N",
            *PROFILES,
            "cosine",
            *(text for p in PROFILES for text in (f"Δ {p}", f"{p}: seeds > 0")),
        ),
    )
    for each, k, runs in _prefixes(watchings, made):
        found: dict[str, list[float]] = {name: [] for name in (*PROFILES, "cosine")}
        size = 0
        for seed in range(SEEDS):
            name = f"{each.seed + seed}|seeds|{each.part.corpus}"
            sample = balanced(runs, SEED_EACH, name)
            size, good = len(sample), [run.succeeded for run in sample]
            for profile in PROFILES:
                column = each.column(sample, k, SCORE[profile], profile)
                found[profile].append(auroc(column, good) or 0.0)
            found["cosine"].append(auroc(each.column(sample, k, "cosine", "paper"), good) or 0)
        row = [f"{each.part.corpus}, {k}", str(size), *map(_spread, found.values())]
        for profile in PROFILES:
            gaps = [a - b for a, b in zip(found[profile], found["cosine"], strict=True)]
            row += [_spread(gaps), f"{sum(gap > 0 for gap in gaps)}/{SEEDS}"]
        made.rows.append(tuple(row))
    return made


def _spread(values: Sequence[float]) -> str:
    return f"{fmean(values):.3f} ± {stdev(values):.3f}"


def _prefixes(
    watchings: Sequence[Watchings], made: Table
) -> Iterator[tuple[Watchings, int, list[Recording]]]:
    """Yield the runs that have k steps, by corpus and k; where they do not serve, note why."""
    for each in watchings:
        for k in KS:
            runs = [run for run in each.runs if len(run.steps) >= k]
            if reason := lacks(runs):
                made.notes.append(f"{each.part.corpus}, k = {k}: {reason}.")
            else:
                yield each, k, runs
