"""The machine: what is told when, and that nothing is lost."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from ontrack.pipeline.alerting import machine
from ontrack.pipeline.alerting.alert import Alert, alert_of, matches
from ontrack.pipeline.alerting.bundle import Bundle
from ontrack.pipeline.alerting.machine import Delivery, State
from ontrack.pipeline.alerting.settings import AlertSettings, Route
from ontrack.pipeline.alerting.text import text_of
from ontrack.topics.verdicts import VerdictName
from tests.pipeline.alerting.alerts_kit import (
    NIGHT_S,
    NOON_S,
    alert,
    decision,
    halt,
    intervention,
    record_at,
    settings_with,
    warn,
)

NIGHTS = {"from": "22:00", "to": "07:00"}


class Told:
    """A machine that is fed, and what it delivered: (cause, count, id of the lead)."""

    def __init__(self, settings: AlertSettings) -> None:
        self.settings = settings
        self.state = State()
        self.deliveries: list[Delivery] = []
        self.offset = 0

    def take(self, output: Any, now_s: float, again: bool = False) -> list[tuple[str, int, str]]:
        self.offset += 1
        found = alert_of(output, record_at(self.offset, output, now_s), now_s, again)
        assert found is not None
        return self._did(machine.take(self.settings, self.state, found, now_s))

    def due(self, now_s: float) -> list[tuple[str, int, str]]:
        return self._did(machine.due(self.settings, self.state, now_s))

    def _did(self, outcome: machine.Outcome) -> list[tuple[str, int, str]]:
        self.state = outcome.state
        self.deliveries += outcome.deliveries
        return [(d.cause, d.bundle.count, d.lead.id) for d in outcome.deliveries]


def one_route(**route: Any) -> AlertSettings:
    return settings_with({"name": "r", "sinks": ["ops"]} | route)


def test_the_same_run_and_verdict_within_the_time_is_one_alert_and_the_rest_is_counted() -> None:
    told = Told(one_route(dedupe_s=60))
    assert told.take(warn(seq=1), NOON_S) == [("alert", 1, "run-1:1:warn")]
    assert told.take(warn(seq=2), NOON_S + 10) == []
    assert told.take(warn(seq=3), NOON_S + 59) == []
    assert told.due(NOON_S + 59.9) == []
    assert told.due(NOON_S + 60) == [("more", 2, "run-1:2:warn")]
    assert told.due(NOON_S + 500) == []
    assert told.take(warn(seq=4), NOON_S + 501) == [("alert", 1, "run-1:4:warn")]


def test_another_run_or_verdict_is_another_alert() -> None:
    told = Told(one_route())
    assert len(told.take(warn("a"), NOON_S)) == 1
    assert len(told.take(warn("b"), NOON_S)) == 1
    assert len(told.take(warn("a", 1, verdict=VerdictName.STALLED), NOON_S)) == 1


def test_a_halt_is_never_swallowed_by_a_warning() -> None:
    told = Told(one_route(group_by=["run"]))
    told.take(warn(seq=1), NOON_S)
    assert told.take(halt(seq=2), NOON_S + 1) == [("alert", 1, "run-1:2:halt")]


def test_what_is_over_the_rate_is_counted_in_the_next_alert() -> None:
    told = Told(one_route(rate_per_minute=2))
    assert len(told.take(warn("a"), NOON_S)) == 1
    assert len(told.take(warn("b"), NOON_S + 1)) == 1
    assert told.take(warn("c"), NOON_S + 2) == []
    assert told.take(halt("d"), NOON_S + 3) == []
    assert told.due(NOON_S + 59) == []
    # The first minute is over: what waited comes as one, the gravest first.
    assert told.due(NOON_S + 60) == [("rate", 2, "d:0:halt")]


def test_in_the_quiet_only_the_severe_is_told_and_a_summary_comes_at_its_end() -> None:
    told = Told(one_route(quiet=NIGHTS, quiet_severity_min=3))
    assert told.take(warn("a"), NIGHT_S) == []
    assert told.take(warn("b"), NIGHT_S + 60) == []
    assert told.take(halt("c"), NIGHT_S + 61) == [("alert", 1, "c:0:halt")]
    seven = datetime(2025, 12, 1, 7, tzinfo=UTC).timestamp()
    assert told.due(seven - 1) == []
    assert told.due(seven) == [("quiet", 2, "a:0:warn")]
    assert told.take(warn("a", 1), seven + 1) == [("alert", 1, "a:1:warn")]


def test_what_waits_when_the_quiet_begins_is_held_until_its_end() -> None:
    ten = datetime(2025, 12, 1, 22, tzinfo=UTC).timestamp()
    told = Told(one_route(quiet=NIGHTS, dedupe_s=60))
    assert len(told.take(warn(seq=1), ten - 10)) == 1
    assert told.take(warn(seq=2), ten - 5) == []
    assert told.due(ten + 50) == []
    assert told.due(ten + 9 * 3600) == [("quiet", 1, "run-1:2:warn")]


def test_all_that_waits_when_the_quiet_begins_is_held_together() -> None:
    ten = datetime(2025, 12, 1, 22, tzinfo=UTC).timestamp()
    told = Told(one_route(quiet=NIGHTS, dedupe_s=60, rate_per_minute=2))
    for run in ("a", "b", "c"):  # two are told, the third is over the rate
        told.take(warn(run, 1), ten - 10)
    for run in ("a", "b"):  # in their windows
        told.take(warn(run, 2), ten - 5)
    assert told.due(ten + 60) == []
    assert told.take(warn("d"), ten + 61) == []
    assert told.due(ten + 9 * 3600) == [("quiet", 4, "a:2:warn")]


def test_the_first_route_that_fits_takes_it_unless_it_goes_on() -> None:
    routes = [
        {"name": "all", "sinks": ["dev"], "continue": True},
        {"name": "halts", "intervention": ["halt"], "sinks": ["ops"]},
        {"name": "rest", "sinks": ["dev"]},
    ]
    told = Told(settings_with(*routes))
    told.take(halt("a"), NOON_S)
    told.take(warn("b"), NOON_S)
    found = [(d.route.name, d.lead.run_id) for d in told.deliveries]
    assert found == [("all", "a"), ("halts", "a"), ("all", "b"), ("rest", "b")]


def test_what_no_route_takes_goes_to_the_last_resort_which_is_every_sink() -> None:
    told = Told(settings_with({"name": "r", "tenant": ["acme"], "sinks": ["ops"]}))
    told.take(warn(tenant="other"), NOON_S)
    (delivery,) = told.deliveries
    assert (delivery.route.name, delivery.route.sinks) == ("default", ("ops", "dev"))


def test_routes_match_by_exact_values_and_globs() -> None:
    def fits(**conditions: Any) -> bool:
        route = Route(name="r", sinks=(), **conditions)
        return matches(route, alert(warn("r", tenant=None)))

    assert fits()
    assert fits(agent=("x", "cod*"), verdict=("LOOP",), intervention=("warn",), severity_min=2)
    assert fits(task=("task-[0-9]",))
    assert not fits(agent=("Coder",))
    assert not fits(severity_min=3)
    assert not fits(tenant=("*",))  # it says none


def test_a_route_without_sinks_mutes() -> None:
    muted = {"name": "muted", "agent": ["coder"], "sinks": []}
    assert Told(settings_with(muted)).take(warn(), NOON_S) == []


def test_the_same_message_again_counts_nothing_unless_it_was_sent_again_on_purpose() -> None:
    told = Told(one_route(dedupe_s=0))
    assert len(told.take(warn(), NOON_S)) == 1
    assert told.take(warn(), NOON_S + 1) == []
    assert len(told.take(warn(), NOON_S + 2, again=True)) == 1


def test_a_blocked_call_is_told_like_a_block_and_an_allowed_one_is_not() -> None:
    told = alert(decision())
    assert (told.verdict, told.intervention, told.severity) == ("BLOCK", "block", 3)
    assert "its tests never ran" in told.text
    assert alert_of(decision(answer="allow"), record_at(0), NOON_S) is None


def test_time_never_goes_back() -> None:
    told = Told(one_route(dedupe_s=60))
    told.take(warn(seq=1), NOON_S)
    assert told.take(warn(seq=2), NOON_S - 5000) == []
    assert told.state.now_s == NOON_S


# ------------------------------------------------------------------ properties

RUNS = ["a", "b", "c"]
outputs = st.builds(
    lambda kind, run, seq: (
        decision(run, seq) if kind is decision else kind(run, seq, tenant=f"t{seq % 2}")
    ),
    st.sampled_from([warn, halt, intervention, decision]),
    st.sampled_from(RUNS),
    st.integers(0, 500),
)
pauses = st.sampled_from([0, 0, 0, 1, 20, 61, 1000, 4000, 20_000]) | st.floats(-5, 100)
steps = st.lists(st.tuples(st.none() | outputs, pauses), min_size=5, max_size=60)
routes_of = st.lists(
    st.fixed_dictionaries(
        {
            "sinks": st.sampled_from([["ops"], ["ops", "dev"], []]),
            "continue": st.booleans(),
            "dedupe_s": st.sampled_from([0, 1, 30, 900]),
            "rate_per_minute": st.sampled_from([1, 2, 50]),
            "quiet": st.none()
            | st.sampled_from(
                [NIGHTS, {"from": "01:01", "to": "01:05"}, {"from": "01:02", "to": "09:00"}]
            ),
            "quiet_severity_min": st.integers(0, 3),
            "group_by": st.sampled_from([["run", "verdict"], ["agent"], []]),
            "tenant": st.sampled_from([[], ["t0"]]),
        }
    ),
    max_size=3,
)


def taken_by(settings: AlertSettings, found: Alert) -> list[str]:
    """Oracle: names of the routes that have to tell of an alert, by the words of the manual."""
    names = []
    for route in settings.routes:
        if matches(route, found):
            names.append((route.name, bool(route.sinks)))
            if not route.goes_on:
                break
    if not names:
        names = [("default", True)]
    return [name for name, has_sinks in names if has_sinks]


@hypothesis_settings(max_examples=60)
@given(routes_of, steps)
def test_nothing_is_lost_each_alert_is_delivered_counted_or_waits(
    routes: list[dict[str, Any]], given_steps: list[tuple[Any, float]]
) -> None:
    settings = settings_with(*({"name": f"r{n}"} | route for n, route in enumerate(routes)))
    state, now_s, expected = State(), NIGHT_S, Counter[str]()
    deliveries: list[Delivery] = []
    seen: set[str] = set()
    for place, (output, pause_s) in enumerate(given_steps):
        now_s += pause_s
        if output is None:
            outcome = machine.due(settings, state, now_s)
        else:
            found = alert_of(output, record_at(place, output, now_s, partition=place), now_s)
            assert found is not None
            if found.id not in seen:
                expected.update(taken_by(settings, found))
            seen.add(found.id)
            before = state
            outcome = machine.take(settings, state, found, now_s)
            assert machine.take(settings, before, found, now_s).deliveries == outcome.deliveries
        state = outcome.state
        deliveries += outcome.deliveries
        told = Counter[str]()
        for delivery in deliveries:
            told[delivery.route.name] += delivery.bundle.count
        for name, remembered in state.routes.items():
            waits = [remembered.held, remembered.backlog]
            waits += [window.pending for window in remembered.windows.values()]
            told[name] += sum(bundle.count for bundle in waits if bundle is not None)
        assert told == expected
    # Two days later all is told, and by no more than the clock.
    for hours in range(1, 60):
        outcome = machine.due(settings, state, now_s + hours * 3600)
        state, deliveries = outcome.state, deliveries + list(outcome.deliveries)
    assert list(machine.waiting(state)) == []
    final = Counter[str]()
    for delivery in deliveries:
        final[delivery.route.name] += delivery.bundle.count
    assert final == expected
    # Each alert stands alone in a partition here: no route told one twice.
    twice = Counter((d.route.name, p) for d in deliveries for p in d.bundle.spans)
    assert max(twice.values(), default=0) <= 1


@given(steps, st.sampled_from([0, 1, 30, 900]), st.integers(1, 3))
def test_one_route_tells_as_a_slow_twin_that_keeps_every_alert(
    given_steps: list[tuple[Any, float]], dedupe_s: float, rate: int
) -> None:
    settings = one_route(dedupe_s=dedupe_s, rate_per_minute=rate)
    told, twin, now_s = Told(settings), Twin(dedupe_s, rate), NOON_S
    for output, pause_s in given_steps:
        now_s += max(0.0, pause_s)
        if output is None:
            assert told.due(now_s) == twin.due(now_s)
        else:
            assert told.take(output, now_s) == twin.take(output, now_s)


class Twin:
    """Obviously right: lists of ids, searched from end to end; no quiet hours, one route."""

    def __init__(self, dedupe_s: float, rate: int) -> None:
        self.dedupe_s, self.rate = dedupe_s, rate
        self.sent: list[float] = []
        self.open: list[list[Any]] = []  # [until, key, waiting]
        self.over: list[Any] = []
        self.seen: set[str] = set()

    def may(self, now: float) -> bool:
        return sum(now - at < 60 for at in self.sent) < self.rate

    def due(self, now: float) -> list[tuple[str, int, str]]:
        told = []
        for window in sorted(self.open, key=lambda w: w[0]):
            until, key, waits = window
            if until > now:
                continue
            self.open.remove(window)
            if waits and self.may(now):
                told.append(("more", len(waits), waits[0].id))
                self.sent.append(now)
                self.open.append([now + self.dedupe_s, key, []])
            else:
                self.over += waits
        if self.over and self.may(now):
            told.append(("rate", len(self.over), gravest(self.over)))
            self.sent.append(now)
            self.over = []
        return told

    def take(self, output: Any, now: float) -> list[tuple[str, int, str]]:
        told = self.due(now)
        if output.id in self.seen:
            return told
        self.seen.add(output.id)
        found = alert(output)
        key = (found.run_id, found.verdict, found.severity, found.intervention)
        for _until, other, waits in self.open:
            if other == key:
                waits.append(found)
                return told
        if not self.may(now):
            self.over.append(found)
            return told
        self.sent.append(now)
        if self.dedupe_s:
            self.open.append([now + self.dedupe_s, key, []])
        told.append(("alert", 1 + len(self.over), found.id))
        self.over = []
        return told


def gravest(alerts: list[Alert]) -> str:
    top = max(found.severity for found in alerts)
    return next(found.id for found in alerts if found.severity == top)


@given(st.lists(st.sampled_from(["warn", "halt"]), min_size=1, max_size=80))
def test_a_bundle_keeps_the_first_ones_and_always_the_gravest(kinds: list[str]) -> None:
    told = Told(one_route(group_by=[], rate_per_minute=1, dedupe_s=0))
    told.take(warn("first"), NOON_S)
    for seq, kind in enumerate(kinds):
        told.take((warn if kind == "warn" else halt)("r", seq), NOON_S)
    ((_, count, lead),) = told.due(NOON_S + 60)
    assert count == len(kinds)
    (delivery,) = told.deliveries[1:]
    assert len(delivery.bundle.kept) == min(len(kinds), 20)
    first = kinds.index("halt") if "halt" in kinds else 0
    assert lead == f"r:{first}:{kinds[first]}"
    assert sum(delivery.bundle.kinds.values()) == count


def test_twenty_warnings_leave_no_halt_a_mere_count() -> None:
    told = Told(one_route(rate_per_minute=1, dedupe_s=0))
    for number in range(40):
        told.take(warn(f"warned-{number}"), NOON_S)
    for number in range(3):
        told.take(halt(f"halted-{number}"), NOON_S)
    told.due(NOON_S + 61)
    *_, last = told.deliveries
    runs = [kept.run_id for kept in last.bundle.kept]
    assert runs[-3:] == ["halted-0", "halted-1", "halted-2"]
    assert (len(runs), last.bundle.count) == (20, 42)
    text = text_of(last, None)
    assert text.title == "[halt] LOOP in run halted-0 (coder) and 41 more"
    assert "runs: halted-0, halted-1, halted-2, warned-1, warned-2, …" in text.body


@given(st.permutations(range(6)), st.integers(1, 5))
def test_the_same_alerts_have_one_digest_in_whatever_order_they_came_together(
    order: list[int], cut: int
) -> None:
    alerts = [Bundle.of(alert(warn(f"run-{number}"), number)) for number in range(6)]

    def joined(places: Sequence[int]) -> Bundle:
        return functools.reduce(Bundle.with_, [alerts[place] for place in places])

    found = joined(order[:cut]).with_(joined(order[cut:]))
    assert found.digest == joined(range(6)).digest
    assert found.digest != joined(range(5)).digest
    assert joined([0, 0]).digest != alerts[0].digest
