"""The tables of docs/telemetry.md are what the program has, neither more nor less."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import Counter, Gauge, Histogram

from ontrack.pipeline.embedded import EmbeddedMonitor, proposal_of
from ontrack.pipeline.metrics import Metrics
from ontrack.pipeline.settings import Settings
from ontrack.pipeline.telemetry.evaluations import Rules
from ontrack.pipeline.workplace import contracts, demo_runs, references
from ontrack.topics.events import Agent, Step
from ontrack.topics.verdicts import (
    Authority,
    Decision,
    Intervention,
    InterventionName,
    Output,
    Scorecard,
    VerdictName,
)
from tests.pipeline.telemetry.test_evaluations import LOOP, STAMP

PAGE = (Path(__file__).parents[3] / "docs" / "telemetry.md").read_text(encoding="utf-8")


def rows(heading: str) -> list[list[str]]:
    """The cells of the first table after a heading."""
    part = PAGE.split(f"\n{heading}\n", 1)[1]
    lines = part[part.index("\n|") :].strip().split("\n\n", 1)[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def documented() -> dict[str, tuple[str, frozenset[str]]]:
    found = {}
    for name, kind, meaning in rows("## Metrics"):
        match = re.fullmatch(r"`(\w+)(?:\{([\w,]+)\})?`", name)
        assert match
        assert meaning
        labels = frozenset((match[2] or "").split(",")) - {""}
        found[match[1]] = (kind, labels)
    return found


def in_the_registry() -> dict[str, tuple[str, frozenset[str]]]:
    metrics = Metrics()
    labelled: dict[str, frozenset[str]] = {}
    for item in vars(metrics).values():
        if isinstance(item, (Counter, Gauge, Histogram)):
            labelled[item._name] = frozenset(item._labelnames)
    found = {}
    for family in metrics.registry.collect():
        labels = labelled.get(
            family.name, frozenset(name for sample in family.samples for name in sample.labels)
        )
        kinds = {"counter": ("counter", "_total"), "info": ("gauge", "_info")}
        kind, end = kinds.get(family.type, (family.type, ""))
        found[family.name + end] = (kind, labels - {"le"})
    return found


def test_every_metric_of_the_registry_is_in_the_table_and_no_other() -> None:
    expected = in_the_registry()
    if not any(name.startswith("process_") for name in expected):
        pytest.skip("no metrics of the process on this platform")
    assert documented() == expected


def full(output: Output) -> Output:
    """The output with everything filled in that may be missing."""
    if isinstance(output, Scorecard):
        agent = Agent(id="a", name="n", version="v")
        more: dict[str, Any] = {"agent": agent, "cost_usd": 0.5, "final_score": 0.5}
        more |= {"unsafe_count": 1, "over_budget_by": 1, "reference_coverage": 0.5}
        return output.model_copy(update={"task_id": "t", **more})
    return output.model_copy(update={"task_id": "t"})


def test_every_attribute_of_the_events_is_in_the_table_and_no_other() -> None:
    rules = Rules(verdicts="all", guardrails=True)
    monitor = EmbeddedMonitor(Settings(encoder="hashing"), references(), contracts())
    outputs: list[Output] = [LOOP.model_copy(update={"confirmed": True})]
    for event in (event for run in demo_runs() for event in run.events):
        if isinstance(event, Step):
            outputs.append(monitor.propose(proposal_of(event)))
        outputs += monitor.feed(event)
    outputs.append(
        Intervention(
            id="r:1",
            run_id="r",
            seq=1,
            agent=Agent(id="a"),
            intervention=InterventionName.HALT,
            verdict=VerdictName.LOOP,
            severity=3,
            reason="again and again",
            authority=Authority.INTERVENE,
            **STAMP,
        )
    )
    assert any(isinstance(output, Decision) for output in outputs)
    kinds: dict[str, set[str]] = {}
    names = set()
    for output in outputs:
        evaluation = rules.evaluation(full(output))
        if evaluation is not None:
            name = str(evaluation.attributes["gen_ai.evaluation.name"])
            names.add(name)
            for attribute in evaluation.attributes:
                kinds.setdefault(attribute, set()).add(name.removeprefix("ontrack."))
    everywhere = {"verdict", "intervention", "final_score", "gate"}
    table = {
        attribute.strip("`"): everywhere if on == "all" else set(on.split(", "))
        for attribute, on, _ in rows("### Attributes")
    }
    assert table == kinds
    assert {row[0].strip("`") for row in rows("### Verdicts: `gen_ai.evaluation.result`")} == names


def test_every_setting_of_telemetry_is_in_the_table_with_its_default() -> None:
    part = PAGE.split("| setting | default |", 1)[1].split("\n\n", 1)[0]
    table = dict(re.findall(r"\| `(telemetry\w*)` \| `?([\w.]+)`? \|", part))
    expected = {
        name: str(field.default).lower() if isinstance(field.default, bool) else str(field.default)
        for name, field in Settings.model_fields.items()
        if name.startswith("telemetry")
    }
    assert table == expected
