"""Sinks: what stands on the wire, checked against the specifications by other means."""

from __future__ import annotations

import base64
import builtins
import hashlib
import hmac
import logging
import re
import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ontrack.pipeline.alerting.bundle import Bundle
from ontrack.pipeline.alerting.dispatch import make_sink, make_sinks, parcels_of
from ontrack.pipeline.alerting.machine import Delivery
from ontrack.pipeline.alerting.settings import AlertSettings
from ontrack.pipeline.alerting.sinks import HttpSender, NotDelivered, Parcel, _seconds
from ontrack.pipeline.alerting.text import text_of, without_mentions
from ontrack.topics.errors import InvalidSettings
from ontrack.topics.events import Agent
from tests.pipeline.alerting.alerts_kit import (
    NOON_S,
    SECRET,
    Receiver,
    alert,
    decision,
    halt,
    settings_with,
    warn,
)

# `postableAlerts` of Alertmanager's API v2 as its OpenAPI document describes it: labels are
# required; every other field is known, and nothing else may stand there.
LABELS = {"type": "object", "additionalProperties": {"type": "string"}}
POSTABLE_ALERTS = {
    "type": "array",
    "items": {
        "type": "object",
        "required": ["labels"],
        "additionalProperties": False,
        "properties": {
            "startsAt": {"type": "string", "format": "date-time"},
            "endsAt": {"type": "string", "format": "date-time"},
            "annotations": LABELS,
            "labels": LABELS,
            "generatorURL": {"type": "string", "format": "uri"},
        },
    },
}


def parcel(*outputs: Any, route: dict[str, Any] | None = None, cause: Any = "alert") -> Parcel:
    settings = settings_with({"name": "r", "sinks": ["ops"]} | (route or {}))
    bundle = Bundle.of(alert(outputs[0]))
    for place, output in enumerate(outputs[1:], 1):
        bundle = bundle.with_(Bundle.of(alert(output, offset=place, at_s=NOON_S + place)))
    (made,) = parcels_of(Delivery(settings.routes[0], cause, bundle.gravest, bundle))
    return made


def sink(url: str, kind: str, **more: Any) -> Any:
    run_url = more.pop("run_url", None)
    table = {"sinks": {"ops": {"type": kind, "url": url} | more}, "run_url": run_url}
    return make_sink("ops", AlertSettings.model_validate(table).sinks["ops"], run_url)


# ------------------------------------------------------------------ webhook


def verified(headers: dict[str, str], body: bytes, secret: str) -> bool:
    """Verify as a receiver would: written from the specification, not from the sender."""
    key = base64.b64decode(secret.split("_", 1)[1])
    signed = b".".join(
        [headers["webhook-id"].encode(), headers["webhook-timestamp"].encode(), body]
    )
    expected = base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()
    offered = headers["webhook-signature"].split(" ")
    if abs(time.time() - int(headers["webhook-timestamp"])) > 300:
        return False
    return any(hmac.compare_digest(f"v1,{expected}", each) for each in offered)


async def test_a_webhook_is_json_and_signed_as_standard_webhooks_says() -> None:
    with Receiver() as receiver:
        hook = sink(receiver.url, "webhook", secret=SECRET, headers={"X-Team": "ops"})
        sent = parcel(halt())
        await hook.send(sent, time.time())
        await hook.close()
    (request,) = receiver.requests
    assert verified(request.headers, request.body, SECRET)
    assert not verified(request.headers, request.body + b" ", SECRET)
    other = "whsec_" + base64.b64encode(b"x" * 32).decode()
    assert not verified(request.headers, request.body, other)
    assert request.headers["content-type"] == "application/json"
    assert request.headers["x-team"] == "ops"
    assert request.headers["webhook-id"] == sent.id
    assert "." not in sent.id  # it separates what is signed
    assert request.json["type"] == "ontrack.alert"
    data = request.json["data"]
    assert data["title"] == "[halt] LOOP in run run-1 (coder)"
    assert data["alert"]["id"] == "run-1:0:halt"
    assert (data["count"], data["route"], data["cause"]) == (1, "r", "alert")


async def test_a_webhook_without_a_secret_is_not_signed() -> None:
    with Receiver() as receiver:
        hook = sink(receiver.url, "webhook")
        await hook.send(parcel(warn()), NOON_S)
        await hook.close()
    assert "webhook-signature" not in receiver.requests[0].headers


@pytest.mark.parametrize(
    ("status", "again"),
    [(500, True), (503, True), (408, True), (425, True), (429, True), (400, False), (404, False)]
    + [(301, False), (307, False)],
)
async def test_what_may_go_better_later_is_told_from_what_will_not(
    status: int, again: bool
) -> None:
    with Receiver(
        lambda _: (status, {"location": "http://127.0.0.1:9/", "retry-after": "7"})
    ) as it:
        hook = sink(it.url, "webhook")
        with pytest.raises(NotDelivered) as caught:
            await hook.send(parcel(warn()), NOON_S)
        await hook.close()
    assert (caught.value.try_again, caught.value.after_s) == (again, 7.0)
    assert str(caught.value) == f"it answered {status}"
    assert len(it.requests) == 1  # no redirect was followed


async def test_nobody_at_the_address_is_worth_another_try_and_the_address_is_not_told() -> None:
    hook = sink("http://user:hush@127.0.0.1:9/hush", "webhook")
    with pytest.raises(NotDelivered) as caught:
        await hook.send(parcel(warn()), NOON_S)
    await hook.close()
    assert caught.value.try_again
    assert "hush" not in str(caught.value)


def test_retry_after_is_seconds_or_a_date_and_bounded() -> None:
    assert _seconds("12") == 12.0
    assert _seconds("999999999999") == 3600.0
    assert _seconds("soon") is None
    assert _seconds(None) is None
    ahead = format_datetime(datetime.now(UTC) + timedelta(seconds=90), usegmt=True)
    assert 60 < (_seconds(ahead) or 0) <= 90
    assert _seconds("Wed, 21 Oct 2015 07:28:00 GMT") == 0.0


@given(st.text(max_size=40))
def test_no_retry_after_header_is_a_fault_of_ours(text: str) -> None:
    found = _seconds(text)
    assert found is None or 0 <= found <= 3600


def test_the_same_alerts_have_the_same_id_and_one_more_has_another() -> None:
    assert parcel(warn(seq=1), warn(seq=2)).id == parcel(warn(seq=1), warn(seq=2)).id
    ids = {
        parcel(warn(seq=1)).id,
        parcel(warn(seq=1), warn(seq=2)).id,
        parcel(warn(seq=1), warn(seq=3)).id,
        parcel(warn(seq=1), route={"name": "other"}).id,
        parcel(warn(seq=1), route={"sinks": ["dev"]}).id,
    }
    assert len(ids) == 5


# ------------------------------------------------------------------ Alertmanager


async def test_alertmanager_gets_what_its_api_describes() -> None:
    with Receiver() as receiver:
        url = receiver.url.removesuffix("/hook") + "/"
        manager = sink(url, "alertmanager", token="t", run_url="https://e.org/r/{run_id}")
        now_s = time.time()
        await manager.send(parcel(halt("a/b"), warn("a/b", 1)), now_s)
        await manager.close()
    (request,) = receiver.requests
    assert request.path == "/api/v2/alerts"
    assert request.headers["authorization"] == "Bearer t"
    checker = jsonschema.FormatChecker()
    jsonschema.validate(request.json, POSTABLE_ALERTS, format_checker=checker)
    (sent,) = request.json
    assert sent["labels"] == {
        "alertname": "OnTrackAlert",
        "route": "r",
        "severity": "critical",
        "run_id": "a/b",
        "agent": "coder",
        "task": "task-1",
        "tenant": "acme",
        "verdict": "LOOP",
    }
    assert sent["generatorURL"] == "https://e.org/r/a%2Fb"
    assert sent["annotations"]["count"] == "2"
    starts, ends = (datetime.fromisoformat(sent[name]) for name in ("startsAt", "endsAt"))
    assert starts.timestamp() == NOON_S
    assert ends.timestamp() == pytest.approx(now_s + 300, abs=0.01)


def test_labels_name_no_run_where_a_route_does_not_group_by_runs_and_nothing_empty() -> None:
    from ontrack.pipeline.alerting.alertmanager import labels_of

    plain = warn(agent=None, task_id=None, tenant="")
    found = labels_of(parcel(plain, route={"group_by": ["agent"]}).delivery)
    assert found == {
        "alertname": "OnTrackAlert",
        "route": "r",
        "severity": "warning",
        "verdict": "LOOP",
        "intervention": "warn",
    }


# ------------------------------------------------------------------ text and Apprise

# Without half surrogate pairs: no record can hold one, they are replaced where it is read.
names = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=60)


def test_a_text_says_what_where_and_how_many_more() -> None:
    text = text_of(parcel(halt(), warn("run-2"), warn("run-2", 1), cause="rate").delivery, None)
    assert text.title == "[halt] LOOP in run run-1 (coder) and 2 more"
    assert text.body.splitlines() == [
        "the same call was made three times without news",
        "run run-1, step 0, task task-1, tenant acme, see steps 1, 2, at 2025-12-01 12:00:00Z",
        "",
        "and 2 more, held back by the route's rate (2025-12-01 12:00:00Z to "
        "2025-12-01 12:00:02Z); in all: halt LOOP 1, warn LOOP 2; runs: run-1, run-2",
    ]


@given(names, names, names)
def test_names_of_agents_steer_no_terminal_and_stay_on_their_line(
    run: str, agent: str, reason: str
) -> None:
    output = halt(run, agent=Agent(id=agent), reason=reason, tenant=agent)
    text = text_of(parcel(output).delivery, "https://e.org/{run_id}")
    assert text.title.isprintable()
    assert all(line.isprintable() for line in text.body.split("\n"))
    assert len(text.body.split("\n")) == 3


def test_nobody_is_called_on_by_a_name_that_an_agent_chose() -> None:
    for text in ("@everyone", "<!channel>", "<@U123>", "<#C1>", "mail @here now"):
        tamed = without_mentions(text)
        assert not re.search(r"@(everyone|here|U)|<[!@#]", tamed)
        assert tamed.replace("\u200b", "") == text


class Service:
    """An Apprise service that keeps what it is given."""

    def __init__(self, taken: bool | Exception = True) -> None:
        self.taken, self.calls = taken, []

    async def async_notify(self, **given: Any) -> bool:
        self.calls.append(given)
        if isinstance(self.taken, Exception):
            raise self.taken
        return self.taken


async def test_apprise_brings_plain_text_to_a_service_escaped_where_it_reads_markup() -> None:
    pytest.importorskip("apprise")
    with Receiver() as receiver:
        # Apprise's own service for any JSON endpoint, told to speak HTML.
        chat = sink(f"json://127.0.0.1:{receiver.port}/?format=html", "apprise")
        await chat.send(parcel(halt(reason="<b>stop</b> & @everyone")), NOON_S)
        await chat.close()
    sent = receiver.requests[0].json
    assert "<b>" not in sent["message"]
    assert "&lt;b&gt;stop" in sent["message"]
    assert "@everyone" not in sent["message"]
    assert sent["type"] == "failure"
    assert "[halt] LOOP" in sent["title"]


async def test_what_apprise_cannot_deliver_is_tried_again_and_its_faults_end_nothing() -> None:
    pytest.importorskip("apprise")
    chat = sink("json://127.0.0.1:9/", "apprise")
    with pytest.raises(NotDelivered) as caught:
        await chat.send(parcel(halt()), NOON_S)
    assert caught.value.try_again
    chat._service = Service(RuntimeError("hush"))
    with pytest.raises(NotDelivered, match=r"Apprise failed \(RuntimeError\)"):
        await chat.send(parcel(halt()), NOON_S)


def test_an_address_that_apprise_does_not_know_is_refused_without_being_shown() -> None:
    pytest.importorskip("apprise")
    with pytest.raises(InvalidSettings, match="no address that Apprise knows") as caught:
        sink("hush://hush", "apprise")
    assert "hush" not in str(caught.value)


def test_without_apprise_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    really = builtins.__import__

    def no_apprise(name: str, *more: Any, **named: Any) -> Any:
        if name == "apprise":
            raise ImportError(name)
        return really(name, *more, **named)

    monkeypatch.setattr(builtins, "__import__", no_apprise)
    with pytest.raises(InvalidSettings, match=r"pip install 'ontrack\[alerts\]'"):
        sink("json://localhost/", "apprise")
    settings_without = {"sinks": {"ops": {"type": "webhook", "url": "http://localhost/"}}}
    assert list(make_sinks(AlertSettings.model_validate(settings_without))) == ["ops"]


def test_apprise_logs_no_addresses() -> None:
    pytest.importorskip("apprise")
    sink("json://localhost/", "apprise")
    assert logging.getLogger("apprise").level >= logging.WARNING


def test_a_blocked_call_is_told_with_its_tool_and_reasons_and_no_arguments() -> None:
    text = text_of(parcel(decision()).delivery, None)
    assert text.title == "[block] BLOCK in run run-1"
    assert text.body.startswith("the call of git_push was blocked: its tests never ran\n")


@pytest.mark.parametrize("kind", ["token", "header", "url"])
async def test_the_line_end_of_a_file_of_secrets_is_no_part_of_one(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Receiver() as receiver:
        secret = receiver.url if kind == "url" else "hush"
        monkeypatch.setenv("A_SECRET", f"{secret}\n")
        given: dict[str, dict[str, Any]] = {
            "token": {"type": "alertmanager", "url": receiver.url, "token": "env:A_SECRET"},
            "header": {
                "type": "webhook",
                "url": receiver.url,
                "headers": {"X-Key": "env:A_SECRET"},
            },
            "url": {"type": "webhook", "url": "env:A_SECRET"},
        }
        made = AlertSettings.model_validate({"sinks": {"ops": given[kind]}})
        client = make_sink("ops", made.sinks["ops"], None)
        await client.send(parcel(halt()), NOON_S)
        await client.close()
    (request,) = receiver.taken()
    expected = {"token": ("authorization", "Bearer hush"), "header": ("x-key", "hush")}
    for name, value in [expected[kind]] if kind in expected else []:
        assert request.headers[name] == value


def test_a_secret_with_a_line_end_inside_is_refused_before_anything_is_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("A_SECRET", "hush\nhush")
    given = {"type": "webhook", "url": "http://localhost/", "headers": {"X-Key": "env:A_SECRET"}}
    made = AlertSettings.model_validate({"sinks": {"ops": given}})
    with pytest.raises(InvalidSettings, match=r"alerts\.sinks\.ops\.headers\.X-Key") as caught:
        make_sinks(made)
    assert "hush" not in str(caught.value)


async def test_what_http_cannot_hold_is_a_failure_of_the_parcel_and_not_of_the_process() -> None:
    with Receiver() as receiver:
        sender = HttpSender(receiver.url)
        with pytest.raises(NotDelivered, match="headers cannot be used") as caught:
            await sender.post(b"{}", {"x-key": "a\nb"})
    assert not caught.value.try_again
    await sender.close()
