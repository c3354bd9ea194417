"""Tables 6, 7 and 8: stopping early, how runs end, and success or failure of whole runs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from random import Random
from statistics import median
from typing import Final

from ontrack.pipeline.evaluation.corpus import Recording
from ontrack.pipeline.evaluation.policies import POLICIES, Course, flag_density
from ontrack.pipeline.evaluation.ranking import WHOLE_RUN
from ontrack.pipeline.evaluation.statistics import Grouped, wilson
from ontrack.pipeline.evaluation.tables_report import NONE, Table, interval, percent
from ontrack.pipeline.evaluation.tables_split import balanced
from ontrack.pipeline.evaluation.tables_watchings import CLASS_MIN, Watchings, lacks
from ontrack.pipeline.evaluation.watching import PROFILES

ABORT_EACH, EXIT_EACH, OUTCOME_EACH = 150, 50, 50

#: Ends that mean that a run was cut off: money, context, steps or time ran out.
_CUT_OFF: Final = re.compile(r"cost|context|budget|limit|max_steps|max_turns|timeout", re.I)


def table6(watchings: Sequence[Watchings]) -> Table:
    """Abort by the density of severe verdicts, and its rivals."""
    made = Table(
        "Table 6: stopping early",
        f"A balanced sample of the evaluation part, at most {ABORT_EACH} runs a class. A run is "
        "stopped when the share of severe verdicts among its last six steps reaches the threshold. "
        "Saved: steps of failing runs that would not have been taken. Precision is that at the "
        "evaluation part's own base rate. Rival policies learn their thresholds from other tasks. "
        "Wilson's 95 % intervals.",
        ("corpus, policy, profile", "true stops", "false stops", "saved", "precision"),
    )
    for each in watchings:
        if reason := lacks(each.runs):
            made.notes.append(f"{each.part.corpus}: {reason}.")
            continue
        sample = balanced(each.runs, ABORT_EACH, f"{each.seed}|abort|{each.part.corpus}")
        base = sum(not run.succeeded for run in each.runs) / len(each.runs)
        made.notes.append(
            f"{each.part.corpus}: {len(sample) // 2} runs a class; {100 * base:.0f} % of the "
            "evaluation part failed."
        )
        for name, policy in POLICIES.items():
            of_monitor = name.startswith(("flag", "halt", "hybrid"))
            for profile in PROFILES if of_monitor else PROFILES[:1]:
                courses = [each.course(run, profile) for run in sample]
                stops = policy(sample, courses)
                label = f"{each.part.corpus}, {name}" + (f", {profile}" if of_monitor else "")
                made.rows.append((label, *_stopped(sample, courses, stops, base)))
    return made


def _stopped(
    runs: Sequence[Recording],
    courses: Sequence[Course],
    stops: Sequence[int | None],
    base: float,
) -> tuple[str, ...]:
    ends = list(zip(runs, courses, stops, strict=True))
    bad = [(course.length, stop) for run, course, stop in ends if not run.succeeded]
    good = [stop is not None for run, _, stop in ends if run.succeeded]
    true = wilson(sum(stop is not None for _, stop in bad), len(bad))
    false = wilson(sum(good), len(good))
    saved = sum(length - 1 - stop for length, stop in bad if stop is not None)
    share = saved / sum(length for length, _ in bad)
    hits, misses = (true.value or 0.0) * base, (false.value or 0.0) * (1 - base)
    precision = f"{100 * hits / (hits + misses):.0f} %" if hits + misses else NONE
    return percent(true), percent(false), f"{100 * share:.1f} %", precision


_SIGNALS: Final = (
    ("paper: score", "score", "paper"),
    ("default: ranking score", "rank_score", "default"),
    ("paper: leakage", "leak", "paper"),
    ("default: leakage", "leak", "default"),
    ("paper: flags", "flags", "paper"),
    ("default: flags", "flags", "default"),
    ("cosine", "cosine", "paper"),
    ("n_steps", "n_steps", "paper"),
    ("Markov surprise", "markov_surprise", "paper"),
    ("spent", "cost", "paper"),
    ("grep_frac", "grep_frac", "paper"),
)


def _areas(each: Watchings, runs: Sequence[Recording], positive: Sequence[bool]) -> tuple[str, ...]:
    grouped = Grouped([run.key for run in runs], positive, each.seed)
    return tuple(
        interval(grouped.pooled(each.column(runs, WHOLE_RUN, name, profile)).estimate)
        for _, name, profile in _SIGNALS
    )


def table7(watchings: Sequence[Watchings]) -> Table:
    """Tell runs that were cut off from runs that ended by themselves."""
    made = Table(
        "Table 7: how runs end",
        "Runs cut off (cost, context, steps or time ran out, by the recorded reason) against those "
        f"that ended by themselves; at most {EXIT_EACH} a class, whole runs. AUROC of telling "
        "apart, higher for those that ended by themselves; flag density 0.6: the share of runs cut "
        "off in which it fires, and after which part of the run (median).",
        ("corpus", "N", *(name for name, *_ in _SIGNALS), "flag density 0.6 (paper)", "after"),
    )
    for each in watchings:
        rated = [run for run in each.runs if run.reason]
        if not rated:
            made.notes.append(f"{each.part.corpus}: its runs do not say why they ended.")
            continue
        cut = [run for run in rated if _CUT_OFF.search(run.reason or "")]
        whole = [run for run in rated if run not in cut]
        counts = Counter(run.reason for run in rated)
        told = ", ".join(f"{reason} {count}" for reason, count in counts.most_common(6))
        if min(len(cut), len(whole)) < CLASS_MIN:
            made.notes.append(
                f"{each.part.corpus}: {len(cut)} runs were cut off and {len(whole)} ended by "
                f"themselves; it takes {CLASS_MIN} of either ({told})."
            )
            continue
        made.notes.append(f"{each.part.corpus}: reasons {told}.")
        size = min(len(cut), len(whole), EXIT_EACH)
        name = f"{each.seed}|exit|{each.part.corpus}"
        chosen = [*_drawn(whole, size, name), *_drawn(cut, size, name)]
        areas = _areas(each, chosen, [run not in cut for run in chosen])
        courses = [each.course(run, "paper") for run in chosen if run in cut]
        stops = flag_density(0.6)([run for run in chosen if run in cut], courses)
        fired = [
            (stop + 1) / course.length
            for stop, course in zip(stops, courses, strict=True)
            if stop is not None
        ]
        after = f"{100 * median(fired):.0f} %" if fired else NONE
        share = percent(wilson(len(fired), len(stops)))
        made.rows.append((each.part.corpus, str(len(chosen)), *areas, share, after))
    return made


def _drawn(runs: Sequence[Recording], count: int, name: str) -> list[Recording]:
    """Draw runs in the way balanced samples are drawn: of one class only."""
    return Random(name).sample(list(runs), count)


def table8(watchings: Sequence[Watchings]) -> Table:
    """Whole runs: success or failure, by each signal of the run."""
    made = Table(
        "Table 8: success or failure of whole runs",
        f"A balanced sample of the evaluation part, at most {OUTCOME_EACH} runs a class. AUROC, "
        "oriented so that higher predicts success; 95 % intervals of 1,000 resamples of tasks.",
        ("corpus", "N", *(name for name, *_ in _SIGNALS)),
    )
    for each in watchings:
        if reason := lacks(each.runs):
            made.notes.append(f"{each.part.corpus}: {reason}.")
            continue
        runs = balanced(each.runs, OUTCOME_EACH, f"{each.seed}|outcome|{each.part.corpus}")
        areas = _areas(each, runs, [run.succeeded for run in runs])
        made.rows.append((each.part.corpus, str(len(runs)), *areas))
    return made
