"""What the pages show, as rows and words, without a browser."""

from __future__ import annotations

import base64
import json
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ontrack.pipeline.dashboard.feeds.feed import FeedState, Letter, Unavailable
from ontrack.pipeline.dashboard.fleet.model import FleetModel, filled
from ontrack.pipeline.dashboard.pages.text import TONES, moment, money, run_href, shown
from ontrack.pipeline.dashboard.run.model import TimelineStep
from ontrack.topics.knowledge import Reference, StepBudget, Task
from ontrack.topics.verdicts import DeadLetter, DeadLetterError, VerdictName
from tests.pipeline.dashboard.said import dead_letter, intervention, scorecard, verdict

pytest.importorskip("nicegui")

from ontrack.pipeline.dashboard.pages import fleet_cells, run_cells
from ontrack.pipeline.dashboard.pages import letters as letters_page
from ontrack.pipeline.dashboard.pages import references as references_page
from ontrack.pipeline.dashboard.pages import run as run_page
from ontrack.pipeline.dashboard.pages.desk import Desk
from ontrack.pipeline.dashboard.pages.fleet_cells import Asked


def test_every_verdict_has_a_tone() -> None:
    assert set(TONES) == {name.value for name in VerdictName}


@given(st.text(), st.integers(1, 50))
def test_text_of_agents_is_one_line_that_nothing_in_it_can_steer(text: str, limit: int) -> None:
    line = shown(text, limit)
    assert line.isprintable()
    assert len(line) <= limit + 1


def test_long_text_ends_in_dots() -> None:
    assert shown("abcdef", 3) == "abc…"
    assert shown("two\nlines\u202e!") == "two lines·!"


@given(st.text(min_size=1))
def test_a_link_to_a_run_brings_its_id_back(run_id: str) -> None:
    parts = urlsplit("http://x" + run_href(run_id))
    found = unquote(parts.path.removeprefix("/run/"))
    if parts.query:
        found = dict(parse_qsl(parts.query, keep_blank_values=True))["id"]
    assert found == run_id.encode("utf-8", "replace").decode()
    assert parts.netloc == "x"


@pytest.mark.parametrize("run_id", [".", "..", "a\nb", "a\n"])
def test_a_run_that_no_path_can_name_is_named_in_a_query(run_id: str) -> None:
    assert urlsplit(run_href(run_id)).path == "/run"


@pytest.mark.parametrize(
    ("usd", "text"), [(None, None), (0.0, "$0.00"), (0.0123, "$0.0123"), (1234.5, "$1,234.50")]
)
def test_small_amounts_keep_their_digits(usd: float | None, text: str | None) -> None:
    assert money(usd) == text


def test_an_address_says_what_is_asked_for() -> None:
    said = {"agent": "ada", "verdict": "LOOP", "since": "5", "sort": "run_id", "page": "3"}
    asked = Asked.of(said)
    query = asked.query(10 * 60_000)
    assert (query.agent, query.verdict, query.since_ms) == ("ada", "LOOP", 5 * 60_000)
    assert (query.sort, query.descending, asked.page) == ("run_id", False, 2)
    assert dict(parse_qsl(urlsplit(asked.address()).query)) == said


@given(
    st.dictionaries(
        st.sampled_from(["text", "verdict", "state", "agent", "since", "sort", "page", "x"]),
        st.text(max_size=20),
    )
)
def test_any_address_is_understood_and_leads_back_to_itself(query: dict[str, str]) -> None:
    asked = Asked.of(query)
    asked.query(0)
    back = dict(parse_qsl(urlsplit(asked.address()).query, keep_blank_values=True))
    again = Asked.of(back)
    assert (again.sort, again.descending, again.page) == (asked.sort, asked.descending, asked.page)
    assert again.filters.keys() == asked.filters.keys()


def test_a_row_shows_names_as_text_and_links_to_its_run() -> None:
    model = filled([(verdict("r/<b>", 0, "WARN", agent="<i>\u202e", coverage=0.5), 7)])
    row = model.row("r/<b>")
    assert row is not None
    key, cells = fleet_cells.cells(row)
    assert key == "r/<b>"
    assert cells[:2] == [["r/<b>", "/run/r%2F%3Cb%3E"], ["WARN", "warn"]]
    assert cells[3:6] == ["open", 7, "<i>·"]
    assert "0.50" in cells
    json.dumps(cells)


def test_without_being_asked_the_worst_come_first_and_the_address_need_not_say_so() -> None:
    asked = Asked.of({})
    assert (asked.sort, asked.descending, asked.address()) == ("worst", True, "/")
    assert Asked.of({"sort": "-last"}).address() == "/?sort=-last"
    assert Asked.of({"sort": "nonsense"}).sort == "worst"
    assert fleet_cells.orders(asked) == list(fleet_cells.ORDERS)
    assert fleet_cells.orders(Asked.of({"sort": "coverage"}))[-1] == (
        "coverage",
        "coverage, ascending",
    )


@pytest.mark.parametrize(
    ("outcome", "last", "halted", "status", "state"),
    [
        (None, "LOOP", False, ("LOOP", "bad"), "open"),
        (None, "OK", True, ("halted", "bad"), "halted after OK"),
        ("failure", "OK", False, ("failed", "bad"), "ended after OK"),
        ("failure", "OK", True, ("failed", "bad"), "ended, halted after OK"),
        ("success", "OK", False, ("succeeded", "ok"), "ended after OK"),
        ("success", "OFF_TRACK", False, ("succeeded", "bad"), "ended after OFF TRACK"),
        ("cancelled", "OK", False, ("cancelled", "info"), "ended after OK"),
        ("cancelled", "WARN", True, ("halted", "bad"), "ended, halted after WARN"),
        ("unknown", "WARN", False, ("ended", "warn"), "ended after WARN"),
        ("success", None, False, ("succeeded", "ok"), "ended"),
    ],
)
def test_a_run_s_status_is_what_became_of_it_as_bad_as_the_worse_looks(
    outcome: str | None, last: str | None, halted: bool, status: tuple[str, str], state: str
) -> None:
    model = FleetModel()
    if halted:
        model.said(intervention("r", 0), 1)
    if last is not None:
        model.said(verdict("r", 0, last), 1)
    if outcome is not None:
        model.said(scorecard("r", outcome), 2)
    row = model.row("r")
    assert row is not None
    assert fleet_cells.status(row) == status
    assert fleet_cells.cells(row)[1][3] == state


@given(st.none() | st.text(min_size=1, max_size=5) | st.sampled_from(["-", "--", "-a"]))
def test_a_filter_tells_every_name_from_none(name: str | None) -> None:
    model = filled([(verdict("r", 0, agent=name), 1), (verdict("other", 0, agent="x" * 9), 1)])
    asked = Asked.of({"agent": fleet_cells.filter_of(name)})
    found = [row.run_id for row in model.view(asked.query(0)).page().rows]
    assert found == ["r"]


def test_the_offender_of_which_nobody_said_the_name_leads_to_its_runs() -> None:
    model = filled([(verdict("r", 0, "LOOP", agent=None), 1), (verdict("s", 0, "LOOP"), 1)])
    rows = dict(fleet_cells.offender_cells(group) for group in model.offenders("agent"))
    (key,) = (key for key, row in rows.items() if row[0] == "not said")
    query = Asked.of({"agent": key}).query(0)
    assert [row.run_id for row in model.view(query).page().rows] == ["r"]


def test_what_halts_saved_is_not_zero_while_it_cannot_be_told() -> None:
    def saved(model: FleetModel) -> list[str]:
        return fleet_cells.cost_facts(model.totals())[-1][1:]

    halted = {"interventions": {"halt": 1}}
    model = FleetModel()
    assert saved(model) == ["no halted run has ended yet", "words"]
    model.said(scorecard("h", "cancelled", 4, **halted), 1)
    assert saved(model) == ["too few runs to estimate", "words"]
    for number in range(5):
        model.said(scorecard(f"f{number}", "failure", 10, cost_usd=1.0), 2)
    assert saved(model) == ["6 steps, $0.60"]
    free = filled([(scorecard("h", "cancelled", 4, cost_usd=None, **halted), 1)])
    for number in range(5):
        free.said(scorecard(f"f{number}", "failure", 10, cost_usd=None), 2)
    assert saved(free) == ["6 steps"]


def test_the_sums_lead_to_dead_letters_once_there_are_some() -> None:
    model = filled([(verdict("r", 0, "LOOP"), 1)])
    assert fleet_cells.run_facts(model.totals()) == [
        ["Open runs", "1"],
        ["Flagged", "1"],
        ["Halted", "0"],
        ["Failed", "0"],
    ]
    model.said(dead_letter(1), 2)
    assert fleet_cells.run_facts(model.totals())[-1] == ["Dead letters", "1", "link", "/letters"]


def timeline(**more: Any) -> TimelineStep:
    return TimelineStep(
        **{
            "seq": 4,
            "tool": "search",
            "action": None,
            "verdict": "LOOP",
            "severity": 2,
            "reasons": (
                {"signal": "repeats", "value": 3.0, "threshold": 2.0, "text": "again"},
                {"signal": "plain", "value": None, "threshold": None, "text": "because"},
            ),
            "interventions": ({"intervention": "halt", "reason": "leave it", "evidence": ()},),
            "evidence": (1, 2),
            "flags": (),
            "confirmed": None,
            "error": "timeout",
            "time": "2026-01-02T03:04:05.678+00:00",
            "duration_s": 1.5,
            "cost_usd": 0.01,
            "parents": (1, 3),
            "late_parents": (3,),
            **more,
        }
    )


def test_a_step_says_why_what_was_done_and_what_it_builds_on() -> None:
    _, cells = run_cells.step_cells(timeline())
    assert cells[4] == [
        "again [repeats (3; threshold 2)]",
        "because [plain]",
        "→ halt: leave it",
        "failed: timeout",
    ]
    assert cells[5:] == ["1, 3 (late)", "1.50 s", "$0.0100", "2026-01-02 03:04:05"]


def test_a_step_s_details_leave_out_what_is_not_known() -> None:
    names = [fact[0] for fact in run_cells.step_facts(timeline(error=None, time=None))]
    assert names == ["Verdict", "Tool", "Severity", "Evidence: steps"]


def test_a_scorecard_is_its_fields_without_the_empty_ones() -> None:
    card = {
        "type": "scorecard",
        "outcome": "failure",
        "reward": None,
        "final_converged": True,
        "repeat_ratio": 0.25,
        "verdicts": {"OK": 2, "LOOP": 1},
        "missing_steps": [],
        "unsafe_actions": [{"seq": 1, "tool": "pay", "effect": "destructive", "reason": "no"}],
        "cost_usd": 0.5,
    }
    assert run_cells.score_facts(card) == [
        ["Outcome", "failure"],
        ["Final converged", "yes"],
        ["Repeat ratio", "0.250"],
        ["Verdicts", "OK 2, LOOP 1"],
        ["Unsafe actions", "step 1 pay: no"],
        ["Cost usd", "$0.50"],
    ]


def test_the_event_of_a_step_is_found_by_its_number_or_its_place() -> None:
    named = [b'{"type":"run_started"}', b'{"type":"step","seq":7,"tool":"a"}']
    assert '"tool": "a"' in run_cells.event_text(named, 7)
    placed = [b"no JSON", b"[]", b'{"tool":"a"}', b'{"tool":"b"}']
    assert '"tool": "b"' in run_cells.event_text(placed, 1)
    assert "not known" in run_cells.event_text(placed, 2)


def test_an_event_is_shown_shortened_and_harmless() -> None:
    raw = json.dumps({"seq": 0, "result": "\u202e\x1b[2J" + "x" * 10_000}).encode()
    text = run_cells.event_text([raw], 0)
    assert "\u202e" not in text
    assert "characters more" in text
    assert len(text) < run_cells.EVENT_CHARACTERS_MAX + 100


def test_references_are_found_by_id_task_or_tool() -> None:
    reference = Reference(reference_id="Gold-1", task_id="refund", steps=({"tool": "pay"},))
    for text in ("", "gold", "REFUND", "pay"):
        assert references_page.matches(reference, text)
    assert not references_page.matches(reference, "search")
    row = references_page.reference_cells(reference)[1]
    assert row == ["Gold-1", "refund", "mined", "1", ["pay"]]


def test_a_task_that_allows_nothing_is_told_from_one_that_does_not_say() -> None:
    none = Task(id="a", allowed=(), step_budget=StepBudget(rule="fixed", value=8))
    assert references_page.task_cells(none)[1] == ["a", "8 (fixed)", "none", None]
    assert references_page.task_cells(Task(id="b"))[1] == ["b", None, None, None]


WRITTEN_MS = 1_767_323_045_678


def letter(raw: bytes | None) -> Letter:
    said = DeadLetter(
        id="t:0:1",
        topic="ontrack.events",
        partition=0,
        offset=1,
        value_base64=None if raw is None else base64.b64encode(raw).decode(),
        value_bytes=len(raw or b""),
        headers=(("h", None), ("k", "v")),
        error=DeadLetterError(name="MalformedMessage", text="not JSON"),
    )
    return Letter(said, WRITTEN_MS)


@given(st.binary(max_size=6_000))
def test_bytes_of_a_dead_letter_are_text_of_bounded_length(raw: bytes) -> None:
    text = letters_page.bytes_text(letter(raw).said.value_base64)
    assert all(char.isprintable() or char in "\n\t" for char in text)
    assert len(text) <= letters_page.BYTES_SHOWN_MAX + 2
    if len(raw) > letters_page.BYTES_SHOWN_MAX:
        assert text.endswith(" …")


def test_what_has_no_bytes_or_no_base64_says_so() -> None:
    assert letters_page.bytes_text(None) == "(no bytes)"
    assert letters_page.bytes_text("a") == "(not readable)"


def test_a_dead_letter_s_row_and_facts() -> None:
    assert letters_page.letter_cells(letter(b"{"))[1] == [
        "ontrack.events · 0 · 1",
        "MalformedMessage",
        ["not JSON"],
        None,
        "1",
        WRITTEN_MS,
    ]
    facts = letters_page.letter_facts(letter(b"{"))
    assert facts[0] == ["Written", "2026-01-02 03:04:05 UTC"]
    assert ["header h", "–"] in facts
    assert ["header k", "v"] in facts


@pytest.mark.parametrize("wild_ms", [-(2**62), 2**62, -1])
def test_a_time_that_no_calendar_has_is_shown_as_it_is(wild_ms: int) -> None:
    assert moment(wild_ms) in (f"{wild_ms} ms", "1969-12-31 23:59:59 UTC")


class Nowhere:
    """A feed that knows no run, and counts how often it is asked."""

    state = FeedState("live", "", 0)
    asked = 0

    async def picture(self, _run_id: str) -> None:
        self.asked += 1
        raise Unavailable("no event of it stands there")


class Silent:
    """Stands for an element of a page that nobody sees."""

    text = ""

    def say(self, text: str) -> None:
        self.text = text

    def set_visibility(self, _visible: bool) -> None:
        """Nothing."""

    def set_empty(self, _title: str, _text: str) -> None:
        """Nothing."""


async def test_a_run_that_is_not_known_is_asked_for_seldom_until_something_is_said() -> None:
    feed: Any = Nowhere()
    now = [0]
    model = FleetModel()
    page: Any = run_page.RunPage(Desk(feed, model, clock_ms=lambda: now[0]), "misspelt")
    page._fault, page._grid = Silent(), Silent()
    for _ in range(600):  # five minutes
        await page._look()
        now[0] += int(run_page.LOOK_S * 1_000)
    assert 2 < feed.asked < 12
    before = feed.asked
    model.said(verdict("misspelt", 0), now[0])
    await page._look()
    assert feed.asked == before + 1
