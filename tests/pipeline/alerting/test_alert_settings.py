"""The table [alerts]: what may stand in it, and what people are told where it is wrong."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr, ValidationError

from ontrack.pipeline.alerting.dispatch import make_sinks
from ontrack.pipeline.alerting.quiet import DAYS, QuietHours
from ontrack.pipeline.alerting.settings import AlertSettings
from ontrack.pipeline.alerting.sinks import secret_of
from ontrack.topics.errors import InvalidSettings
from tests.pipeline.alerting.alerts_kit import SECRET, settings_with

HOOK = {"type": "webhook", "url": "https://example.com/hook"}


def test_one_sink_and_nothing_else_tells_everybody_of_everything() -> None:
    settings = AlertSettings.model_validate({"sinks": {"ops": HOOK}})
    (route,) = settings.every_route
    assert (route.name, route.sinks, route.quiet) == ("default", ("ops",), None)


def test_nothing_at_all_is_fine_and_tells_nobody() -> None:
    assert AlertSettings().every_route[0].sinks == ()


@pytest.mark.parametrize(
    ("given_table", "problem"),
    [
        ({"sinks": {"ops": {"type": "pager", "url": "x"}}}, "'apprise', 'alertmanager'"),
        ({"sinks": {"ops": {"type": "webhook", "url": "ftp://x"}}}, "http:// or https://"),
        ({"sinks": {"ops": {"type": "apprise", "url": "nothing"}}}, "slack://"),
        ({"sinks": {"ops": {"type": "webhook", "url": "env:A B"}}}, "environment variable"),
        ({"sinks": {"ops": {"type": "webhook", "url": "env:ONTRACK_X"}}}, "another name"),
        ({"sinks": {"ops": HOOK | {"headers": {"webhook-id": "1"}}}}, "begins with webhook-"),
        ({"sinks": {"ops": HOOK | {"colour": "red"}}}, "Extra inputs"),
        ({"sinks": {"a b": HOOK}}, "pattern"),
        ({"sinks": {"ops": HOOK}, "routes": [{"name": "r", "sinks": ["op"]}]}, "sinks: ops"),
        ({"sinks": {}, "routes": [{"name": "default", "sinks": []}]}, "two routes"),
        ({"routes": [{"name": "r", "sinks": [], "severity_min": 4}]}, "less than or equal to 3"),
        ({"routes": [{"name": "r", "sinks": [], "group_by": ["tool"]}]}, "'run', 'agent'"),
        ({"default": {"sinks": [], "quiet": {"from": "7:00", "to": "8:00"}}}, "such as 22:00"),
        ({"default": {"sinks": [], "quiet": {"from": "07:00", "to": "07:00"}}}, "00:00 to 24:00"),
        (
            {"default": {"sinks": [], "quiet": {"from": "07:00", "to": "08:00", "zone": "Bonn"}}},
            "Europe/Berlin",
        ),
        ({"run_url": "runs/{run_id}"}, "https://example.com/runs/{run_id}"),
    ],
)
def test_what_is_wrong_is_said_with_what_was_expected(
    given_table: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ValidationError) as caught:
        AlertSettings.model_validate(given_table)
    assert problem in str(caught.value)


def test_secrets_are_masked_wherever_settings_are_shown() -> None:
    settings = AlertSettings.model_validate(
        {
            "sinks": {
                "a": {"type": "apprise", "url": "slack://token-hush/b/c"},
                "b": {"type": "alertmanager", "url": "http://u:hush@am/", "token": "hush"},
                "c": HOOK | {"secret": SECRET, "headers": {"X-Key": "hush"}},
            }
        }
    )
    for shown in (
        repr(settings),
        str(settings.model_dump(mode="json")),
        settings.model_dump_json(),
    ):
        assert "hush" not in shown
        assert SECRET not in shown


def test_a_secret_may_stand_in_a_variable_which_must_be_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPS_URL", "https://example.com/1")
    assert secret_of(SecretStr("env:OPS_URL"), "alerts.sinks.ops.url") == "https://example.com/1"
    assert secret_of(SecretStr("plain"), "x") == "plain"
    monkeypatch.delenv("OPS_URL")
    with pytest.raises(InvalidSettings, match=r"alerts.sinks.ops.url stands in the variable OPS_U"):
        secret_of(SecretStr("env:OPS_URL"), "alerts.sinks.ops.url")


@pytest.mark.parametrize("secret", ["hush", "whsec_", "whsec_c2hvcnQ=", "whsec_%%%", SECRET[6:]])
def test_a_secret_that_does_not_sign_is_refused_without_being_shown(secret: str) -> None:
    settings = AlertSettings.model_validate({"sinks": {"c": HOOK | {"secret": secret}}})
    with pytest.raises(InvalidSettings, match="24 to 64 random bytes") as caught:
        make_sinks(settings)
    assert "c2hvcnQ" not in str(caught.value)


def test_routes_are_frozen_and_named_as_in_the_file() -> None:
    settings = settings_with({"name": "r", "sinks": ["ops"], "continue": True})
    assert settings.routes[0].goes_on
    with pytest.raises(ValidationError):
        settings.routes[0].goes_on = False  # type: ignore[misc]


# ------------------------------------------------------------------ quiet hours


def quiet(**given_table: Any) -> QuietHours:
    return QuietHours.model_validate({"from": "22:00", "to": "07:00"} | given_table)


def test_a_night_belongs_to_the_day_on_which_it_begins() -> None:
    fridays = quiet(days=["fri"])
    at = datetime(2026, 11, 27, 12, tzinfo=UTC)  # a Friday
    hours = [hour for hour in range(72) if fridays.covers(at + timedelta(hours=hour))]
    assert hours == list(range(10, 19))  # Friday 22:00 to Saturday 07:00


def test_quiet_hours_follow_the_clock_on_the_wall_through_the_change_of_the_hour() -> None:
    berlin = quiet(zone="Europe/Berlin")
    zone = ZoneInfo("Europe/Berlin")
    for day in (28, 29, 30):  # the clocks went forward on 29 March 2026
        assert not berlin.covers(datetime(2026, 3, day, 7, 0, tzinfo=zone))
        assert berlin.covers(datetime(2026, 3, day, 6, 59, tzinfo=zone))
    assert berlin.covers(datetime(2026, 3, 29, 4, 59, tzinfo=UTC))
    assert not berlin.covers(datetime(2026, 3, 29, 5, 0, tzinfo=UTC))


@given(
    st.integers(0, 1439),
    st.integers(1, 1440),
    st.sets(st.sampled_from(DAYS), min_size=1),
    st.integers(0, 4_000_000_000).map(lambda time_s: datetime.fromtimestamp(time_s, UTC)),
)
def test_quiet_hours_cover_what_a_list_of_all_quiet_minutes_covers(
    begin: int, end: int, days: set[str], moment: datetime
) -> None:
    if begin == end:
        return
    clock = [f"{minute // 60:02}:{minute % 60:02}" for minute in (begin, end)]
    hours = quiet(**{"from": clock[0], "to": clock[1], "days": sorted(days)})
    length = (end - begin) % 1440 or 1440
    minutes = {
        (day * 1440 + begin + passed) % (7 * 1440)
        for day in range(7)
        if DAYS[day] in days
        for passed in range(length)
    }
    now = moment.weekday() * 1440 + moment.hour * 60 + moment.minute
    assert hours.covers(moment) == (now in minutes)
