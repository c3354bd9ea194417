"""Tables 2 and 3 and the campaign, as sections of the report."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from ontrack.pipeline.evaluation.controlled_scenarios import (
    BENIGN,
    FAULTY,
    Campaign,
    Outcome,
    campaign,
    table2,
    table3,
)
from ontrack.pipeline.evaluation.statistics import wilson
from ontrack.pipeline.evaluation.tables_report import NONE, Table, number, percent
from ontrack.pipeline.evaluation.watching import PROFILES
from ontrack.pipeline.settings import Settings

_MARK: Final = {True: "yes", False: "**no**"}


def controlled_tables(
    settings: Settings, tasks: int, advance: Callable[[], None] = lambda: None
) -> list[Table]:
    """Run the controlled experiments under both profiles."""
    by_profile = {
        profile: settings.model_copy(
            update={
                "profile": profile,
                "operators": settings.operators if profile == settings.profile else {},
                "calibration": None,
            }
        )
        for profile in PROFILES
    }
    second = {name: table2(each) for name, each in by_profile.items()}
    third = {name: table3(each) for name, each in by_profile.items()}
    found = {name: campaign(each, tasks, advance) for name, each in by_profile.items()}
    return [
        _outcomes(
            "Table 2: the six-step task",
            "Synthetic unit embeddings, three references, eight scenarios. Latency: steps after "
            "the onset. Silence: no verdict beyond EXPLORING, no intervention. A cycle goes on "
            "for ten steps, since the profiles differ in how many repeats they wait for; E and H "
            "have tool contracts.",
            second,
        ),
        _outcomes(
            "Table 3: the gate",
            "The same task. `unknown` lets a call pass, and says that nobody knew anything.",
            third,
        ),
        _campaign(found),
    ]


def _outcomes(title: str, protocol: str, by_profile: Mapping[str, list[Outcome]]) -> Table:
    headings = ["scenario", "expected"]
    for profile in by_profile:
        headings += [f"{profile}: fired", "latency", "as expected"]
    table = Table(title, protocol, tuple(headings))
    for same in zip(*by_profile.values(), strict=True):
        row = [same[0].scenario, same[0].expected]
        for each in same:
            latency = NONE if each.latency is None else str(each.latency)
            row += [each.fired, latency, _MARK[each.right]]
        table.rows.append(tuple(row))
    for profile, outcomes in by_profile.items():
        said = [f"{each.scenario}: {each.note}" for each in outcomes if each.note]
        if said:
            table.notes.append(f"{profile}. {'; '.join(said)}.")
    if any(not each.right for each in by_profile.get("default", ()) if "branch" in each.scenario):
        table.notes.append(
            "To `default`, two steps in three with tools that neither contracts nor references "
            "know are off track, wherever they lead; a branch of two such steps is no exception."
        )
    return table


def _campaign(by_profile: Mapping[str, Campaign]) -> Table:
    tasks = next(iter(by_profile.values())).tasks
    table = Table(
        "Campaign: random tasks",
        f"{tasks} random DAG tasks (seeds 0–{tasks - 1}) under seven conditions: three faults and "
        f"four benign ones. The latency is the median of those found. An inversion is drawn from "
        "steps beyond the lookahead: one level of prematurity is tolerated by design.",
        ("condition", *by_profile),
    )
    for fault, expected in FAULTY.items():
        row = [f"{fault}: found as {expected}"]
        for each in by_profile.values():
            hits = sorted(at for at in each.latencies[fault] if at is not None)
            middle = f", latency {hits[len(hits) // 2]}" if hits else ""
            row.append(f"{len(hits)}/{tasks}{middle}")
        table.rows.append(tuple(row))
    for condition in BENIGN:
        counts = [f"{each.disturbed[condition]}/{tasks}" for each in by_profile.values()]
        table.rows.append((f"{condition}: runs disturbed", *counts))
    total = [
        percent(wilson(sum(each.disturbed.values()), tasks * len(BENIGN)))
        for each in by_profile.values()
    ]
    table.rows.append(("all benign: runs disturbed", *total))
    gaps = [number(each.gap_max, 4) for each in by_profile.values()]
    table.rows.append(("largest gap between last and final score", *gaps))
    return table
