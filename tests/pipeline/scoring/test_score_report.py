"""What scores add up to: rates, distributions, the runs worth a look, the page, the JUnit file."""

from __future__ import annotations

import io
import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ontrack.pipeline.scoring import score_trajectory
from ontrack.pipeline.scoring.files import ScoredRun
from ontrack.pipeline.scoring.group import Spread
from ontrack.pipeline.scoring.html import page
from ontrack.pipeline.scoring.junit import JUnit
from ontrack.pipeline.scoring.report import Report, as_line
from ontrack.pipeline.scoring.svg import Bar, Series, bars, exceeding, histograms
from ontrack.pipeline.scoring.thresholds import check

TASK = {"id": "t", "references": [["a", "b"]], "step_budget": 4, "allowed": ["a"]}
TOOLS = {
    "a": {"effect": "write"},
    "b": {"effect": "read"},
    "w": {"effect": "write"},
    "d": {"effect": "destructive"},
}


def scored(name: str, tools, outcome: str = "success", task=None, contracts=None) -> ScoredRun:
    score = score_trajectory(tools, task or TASK, contracts or TOOLS)
    return ScoredRun(name, "t", outcome, "runs.jsonl", 1, "given", score)


def report_of(*runs: ScoredRun) -> Report:
    report = Report()
    for each in runs:
        report.add(each)
    return report


def test_two_unsafe_actions_in_one_run_count_once_in_the_rate():
    report = report_of(scored("one", "abww"), scored("two", "abw"), scored("three", "ab"))
    rate = report.unsafe_rate
    assert (rate.hits, rate.n, rate.value) == (2, 3, pytest.approx(2 / 3))
    assert 0 < rate.low < rate.value < rate.high < 1
    assert report.everything.unsafe_calls == 3
    assert report.unsafe_tools == {("w", "write"): 3}


def test_the_unsafe_rate_counts_every_run_and_says_how_many_were_checked():
    silent = scored("two", "abw", task={"id": "u"})
    report = report_of(scored("one", "abw"), silent)
    assert (report.unsafe_rate.hits, report.unsafe_rate.n) == (1, 2)
    assert (report.unsafe_rate_checked.hits, report.unsafe_rate_checked.n) == (1, 1)


def test_outcomes_stand_apart_with_passing_runs_first():
    report = report_of(
        scored("p", "ab"), scored("f", "ababab", "failure"), scored("c", "a", "cancelled")
    )
    assert list(report.groups) == ["passing", "failing", "other"]
    assert [group.runs for group in report.groups.values()] == [1, 1, 1]
    assert report.groups["passing"].steps.quantile(1.0) == 2


def test_a_budget_at_the_median_flags_half_and_one_at_the_top_nothing():
    report = report_of(*[scored(f"r{steps}", "a" * steps) for steps in range(1, 101)])
    flagged = {point.quantile: point.flagged for point in report.flag_curve()}
    assert flagged == {0.5: 0.5, 0.75: 0.25, 0.9: 0.1, 0.95: 0.05, 0.99: 0.01}


def test_the_ten_runs_most_worth_looking_at_come_with_reasons_gravest_first():
    runs = [scored(f"over-{at}", "ab" + "b" * (3 + at)) for at in range(12)]
    grave = scored("grave", "abd", "failure")
    report = report_of(*runs, grave, scored("fine", "ab"))
    assert [each.run_id for each in report.worth][:2] == ["grave", "over-11"]
    assert len(report.worth) == 10
    assert report.worth[0].reasons == ("not allowed: d (destructive) at step 2",)
    assert "16 steps against a budget of 4 (4 by the task)" in report.worth[1].reasons[0]


def test_a_passing_run_is_more_worth_a_look_than_a_failing_one_of_the_same_path():
    report = report_of(scored("f", "a" * 9, "failure"), scored("p", "a" * 9))
    assert [each.run_id for each in report.worth] == ["p", "f"]


def test_nothing_stands_out_where_nothing_is_wrong():
    assert report_of(scored("fine", "ab")).worth == []


def test_the_line_of_a_run_has_the_fields_of_the_interface():
    line = as_line(scored("one", "abw"))
    assert list(line)[:13] == [
        "type", "run_id", "task_id", "outcome", "steps", "reference_coverage", "best_reference",
        "step_budget", "over_budget_by", "repeat_ratio", "extras", "unsafe_actions", "cost_usd",
    ]  # fmt: skip
    assert line["extras"] == {"recovery": 0, "redundant_repeat": 0, "exploration": 0}
    assert set(line["unsafe_actions"][0]) == {"seq", "tool", "effect", "args_sha256", "reason"}


@given(st.lists(st.integers(0, 30), min_size=1), st.floats(0.01, 1))
def test_quantiles_are_those_of_the_sorted_values(values, share):
    spread = Spread()
    for value in values:
        spread.add(value)
    ranked = sorted(values)
    wanted = share * len(ranked) - 1e-9
    expected = next(value for value in ranked if sum(one <= value for one in ranked) >= wanted)
    assert spread.quantile(share) == expected
    assert spread.above(expected) <= 1 - share + 1e-9


# ------------------------------------------------------------------ thresholds


def checked(report: Report, **limits: float) -> dict[str, bool]:
    return {each.name: each.ok for each in check(report, limits)}


def test_thresholds_hold_up_to_their_limit_and_fail_above():
    report = report_of(scored("one", "abw"), scored("two", "ababab"), scored("three", "ab"))
    assert checked(report, unsafe_action=0.34, over_step_budget=0.34) == {
        "unsafe_action": True,
        "over_step_budget": True,
    }
    assert not any(checked(report, unsafe_action=0.33, over_step_budget=0.33).values())


def test_destructive_calls_and_coverage_have_thresholds_of_their_own():
    report = report_of(scored("one", "abd"), scored("two", "aw"))
    found = checked(
        report, destructive_action=0.5, unsafe_action=0.5, reference_coverage=0.75, look=0.0
    )
    assert found == {
        "destructive_action": True,
        "unsafe_action": False,
        "reference_coverage": True,
        "look": True,
    }


def test_what_could_not_be_measured_has_not_passed():
    silent = report_of(scored("one", "ab", "failure", task={"id": "u"}))
    names = ("unsafe_action", "destructive_action", "over_step_budget", "missing_reference_step")
    names += ("over_latency", "over_cost", "reference_coverage", "look")
    found = check(silent, dict.fromkeys(names, 1.0))
    assert [each.ok for each in found] == [False] * 8
    assert all(each.text.startswith("not measured: ") for each in found)


# ------------------------------------------------------------------ JUnit


def junit(report: Report, runs, **limits: float) -> ElementTree.Element:
    out = io.BytesIO()
    with JUnit() as collected:
        for each in runs:
            collected.add(each)
        collected.write(out, check(report, limits))
    return ElementTree.fromstring(out.getvalue())


def test_the_junit_file_is_red_exactly_where_a_threshold_is_exceeded():
    runs = [scored("good", "ab"), scored("bad", "abw"), scored("long", "ababab")]
    root = junit(report_of(*runs), runs, unsafe_action=0.0, over_step_budget=0.5)
    assert (root.get("tests"), root.get("failures")) == ("5", "2")
    cases = list(root.iter("testcase"))
    failed = [case.get("name") for case in cases if case.find("failure") is not None]
    assert failed == ["unsafe_action", "bad"]
    kept = next(case for case in cases if case.get("name") == "long")
    assert "6 steps against a budget of 4" in kept.findtext("system-out")


def test_the_junit_file_holds_what_xml_cannot():
    odd = scored("a\x00<b>&\ud800\u202e", ["\x01tool"], contracts=TOOLS)
    root = junit(report_of(odd), [odd], unsafe_action=0.0)
    names = [case.get("name") for case in root.iter("testcase")]
    assert names == ["unsafe_action", "a·<b>&··"]


# ------------------------------------------------------------------ the page


class Page(HTMLParser):
    """Tags with their attributes; fails where one is not closed."""

    VOID = ("meta", "br")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        assert self._open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


EVIL = "<script>alert(1)</script>\"'&<img src=x onerror=y>"


def test_the_page_shows_the_four_plots_the_table_and_the_reasons():
    runs = [scored("bad", "abwwdd"), scored("fine", "ab"), scored("f", "ab" * 4, "failure")]
    text = page(report_of(*runs), ["runs.jsonl"], check(report_of(*runs), {"unsafe_action": 0.0}))
    found = Page(text)
    words = " ".join(found.words)
    assert sum(tag == "svg" for tag, _ in found.tags) == 5
    for heading in ("Steps by outcome", "Repeat ratio", "Calls over budget, by kind"):
        assert heading in words
    for part in ("Unsafe calls by tool", "not allowed: d (destructive) at step 4", "Thresholds"):
        assert part in words


def test_the_page_asks_nothing_of_anybody():
    text = page(report_of(scored("bad", "abw")), ["runs.jsonl"])
    found = Page(text)
    assert not {"script", "link", "img", "iframe"} & {tag for tag, _ in found.tags}
    assert not any({"href", "src", "style", "onclick"} & set(attrs) for _, attrs in found.tags)
    assert not re.search(r"https?:|@import|url\(", text)
    assert "default-src 'none'" in text


def test_whatever_agents_write_stays_text_on_the_page():
    evil = scored(EVIL, ["a", EVIL, "d", *["b"] * 9], outcome="failure")
    found = Page(page(report_of(evil), [EVIL]))
    assert not {"script", "img"} & {tag for tag, _ in found.tags}
    assert any(EVIL in word for word in found.words)


def test_a_page_of_no_runs_says_so():
    words = " ".join(Page(page(Report(), ["none"])).words)
    assert "no runs to show" in words
    assert "nothing stands out" in words


@given(
    st.dictionaries(st.integers(0, 5000), st.integers(1, 50), max_size=6),
    st.dictionaries(st.floats(0, 0.99), st.integers(1, 50), max_size=6),
)
def test_plots_of_any_counts_are_well_formed_and_stay_inside(steps, ratios):
    plots = [
        histograms([Series("passing", "passing", steps)], "steps"),
        histograms([Series("f", "failing", ratios)], "ratio", [(0.7, "look")], top=1.0),
        exceeding(steps, [(value, "p50") for value in list(steps)[:1]], "steps"),
        bars([Bar("x", ((sum(steps.values()), "write", "calls"),))], "tools"),
    ]
    for plot in plots:
        root = ElementTree.fromstring(plot)
        width = 640.0
        for rect in root.iter("rect"):
            assert 0 <= float(rect.get("x")) <= width
            assert float(rect.get("x")) + float(rect.get("width")) <= width + 1
            assert float(rect.get("height")) >= 0
