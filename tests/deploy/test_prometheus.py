"""Prometheus' files: promtool takes them, rules fire when they should, runbooks exist."""

from __future__ import annotations

import re
import subprocess

import pytest
import yaml

from ontrack.pipeline.metrics import Metrics
from tests.deploy.tools import PROMETHEUS, ROOT, metrics_in, queries, rules, tool

#: Prometheus' own.
BUILT_IN = {"up", "ALERTS"}


def metric_names() -> set[str]:
    """What a process of ours shows, with the parts of histograms."""
    names = set(BUILT_IN)
    for family in Metrics().registry.collect():
        ends = {"counter": ["_total"], "histogram": ["_bucket", "_count", "_sum"]}
        ends["info"] = ["_info"]
        names |= {family.name + end for end in ends.get(family.type, [""])}
    return names


def anchors_of(markdown: str) -> set[str]:
    """The places that a Markdown page has, as its readers' browsers know them."""
    headings = re.findall(r"^#+ (.+)$", markdown, re.MULTILINE)
    plain = [re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings]
    return {heading.replace(" ", "-") for heading in plain}


def promtool(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [tool("promtool"), *arguments], cwd=PROMETHEUS, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ("check", "config", "--syntax-only", "prometheus.yml"),
        ("check", "rules", "alerts.yml"),
        ("test", "rules", "alerts_test.yml"),
    ],
    ids=lambda arguments: " ".join(arguments[:2]),
)
def test_promtool_finds_nothing_wrong(arguments: tuple[str, ...]) -> None:
    done = promtool(*arguments)
    assert done.returncode == 0, done.stdout + done.stderr


def test_promtool_would_find_a_rule_that_does_not_fire() -> None:
    scenarios = yaml.safe_load((PROMETHEUS / "alerts_test.yml").read_text(encoding="utf-8"))
    (down,) = [t for t in scenarios["tests"] if t["name"] == "one of two workers is away"]
    down["input_series"][1]["values"] = "1x60"
    scenarios["tests"] = [down]
    wrong = PROMETHEUS / ".wrong_test.yml"  # rule files are named relative to the test's
    try:
        wrong.write_text(yaml.safe_dump(scenarios), encoding="utf-8")
        done = promtool("test", "rules", wrong.name)
    finally:
        wrong.unlink(missing_ok=True)
    assert done.returncode != 0
    assert "OnTrackWorkerDown" in done.stdout + done.stderr


def test_every_rule_has_a_scenario_in_which_it_fires() -> None:
    scenarios = yaml.safe_load((PROMETHEUS / "alerts_test.yml").read_text(encoding="utf-8"))
    fired = {
        name
        for scenario in scenarios["tests"]
        for question in scenario["promql_expr_test"]
        for sample in question["exp_samples"]
        for name in re.findall(r'alertname="(\w+)"', sample["labels"])
    }
    assert fired == {rule["alert"] for rule in rules()}


def test_every_rule_says_what_it_is_and_leads_to_a_runbook_that_exists() -> None:
    seen = set()
    for rule in rules():
        assert rule["alert"] not in seen, "twice"
        seen.add(rule["alert"])
        assert rule["labels"]["severity"] in {"page", "ticket", "info"}, rule["alert"]
        notes = rule["annotations"]
        assert set(notes) == {"summary", "description", "runbook_url"}, rule["alert"]
        page, _, anchor = notes["runbook_url"].partition("#")
        text = (ROOT / page).read_text(encoding="utf-8")
        assert anchor in anchors_of(text), f"{rule['alert']}: {page} has no place {anchor!r}"
    assert len(seen) > 20


def test_every_runbook_names_the_alerts_that_lead_to_it() -> None:
    text = (ROOT / "docs" / "operating.md").read_text(encoding="utf-8")
    sections = {
        next(iter(anchors_of(f"# {section.splitlines()[0]}"))): section
        for section in re.split(r"^#+ ", text, flags=re.MULTILINE)[1:]
    }
    lost = [
        rule["alert"]
        for rule in rules()
        if f"`{rule['alert']}`" not in sections[rule["annotations"]["runbook_url"].split("#")[1]]
    ]
    assert lost == []


def test_every_metric_that_is_asked_for_exists() -> None:
    known = metric_names()
    asked = [(rule["alert"], rule["expr"]) for rule in rules()] + list(queries())
    assert len(asked) > 60
    unknown = {(name, metric) for name, text in asked for metric in metrics_in(text) - known}
    assert unknown == set()
    nameless = [name for name, text in asked if not metrics_in(text)]
    assert nameless == []


def test_what_rules_compare_is_shown_before_it_happens_for_the_first_time() -> None:
    compared = {
        selector
        for rule in rules()
        for selector in re.findall(
            r'(ontrack_(?:verdicts|interventions|decisions)_total)\{[^}]*?(\w+)="(\w+)"\}',
            rule["expr"],
        )
    }
    assert len(compared) >= 4
    page = Metrics().text().decode()
    assert [each for each in compared if '{}{{{}="{}"}} 0.0'.format(*each) not in page] == []


def test_the_names_in_an_expression_are_found() -> None:
    text = 'sum by (le, x) (rate(ontrack_a_total{b="c{}"}[5m])) / on (instance) foo{a="b"} > up'
    assert metrics_in(text) == {"ontrack_a_total", "foo", "up"}
