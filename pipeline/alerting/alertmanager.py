"""The sink ``alertmanager``: Prometheus' Alertmanager groups, silences and escalates.

Source: Alertmanager's API v2 (``POST /api/v2/alerts``, ``postableAlerts``).
"""

from __future__ import annotations

from typing import Any, Final

from ontrack.pipeline.alerting.alert import Alert, shown_name
from ontrack.pipeline.alerting.machine import Delivery
from ontrack.pipeline.alerting.settings import AlertmanagerSink
from ontrack.pipeline.alerting.sinks import HttpSender, Parcel, as_json, rfc3339, secret_of
from ontrack.pipeline.alerting.text import link_of, text_of

_PATH: Final = "/api/v2/alerts"
_SEVERITIES: Final = ("none", "info", "warning", "critical")


class Alertmanager:
    """One Alertmanager.

    Raises
    ------
    InvalidSettings
        A variable is not set.
    """

    def __init__(self, name: str, settings: AlertmanagerSink, run_url: str | None) -> None:
        where = f"alerts.sinks.{name}"
        url = secret_of(settings.url, f"{where}.url").rstrip("/")
        self._http = HttpSender(url if url.endswith(_PATH) else url + _PATH)
        self._run_url = run_url
        self._resolve_after_s = settings.resolve_after_s
        self._headers: dict[str, str] = {}
        if settings.token is not None:
            token = secret_of(settings.token, f"{where}.token")
            self._headers["authorization"] = f"Bearer {token}"

    async def send(self, parcel: Parcel, now_s: float) -> None:
        """Post once: a list of one alert."""
        alert = alert_body(parcel, self._run_url, now_s + self._resolve_after_s)
        await self._http.post(as_json([alert]), self._headers)

    async def close(self) -> None:
        """Close the connections."""
        await self._http.close()


def alert_body(parcel: Parcel, run_url: str | None, ends_s: float) -> dict[str, Any]:
    """Return one ``postableAlert``.

    Labels say which alert it is: those of the lead as far as the whole group has them. It ends a
    while after it is sent, not after what it tells: one that has ended would notify nobody.
    """
    delivery = parcel.delivery
    text = text_of(delivery, run_url)
    body: dict[str, Any] = {
        "labels": labels_of(delivery),
        "annotations": {
            "summary": text.title,
            "description": text.body,
            "count": str(delivery.bundle.count),
            "alert_id": parcel.id,
        },
        "startsAt": rfc3339(delivery.bundle.first_s),
        "endsAt": rfc3339(max(ends_s, delivery.bundle.last_s)),
    }
    link = link_of(delivery.lead, run_url)
    if link is not None:
        body["generatorURL"] = link
    return body


def labels_of(delivery: Delivery) -> dict[str, str]:
    """Return the labels: severity as names, and no run where the route does not group by runs."""
    kept = delivery.bundle.kept
    labels = {"alertname": "OnTrackAlert", "route": delivery.route.name}
    labels["severity"] = _SEVERITIES[delivery.bundle.severity]
    values = {name: {_label(alert, name) for alert in kept} for name in _LABELS}
    if "run" not in delivery.route.group_by:
        del values["run_id"]
    labels |= {name: value.pop() for name, value in values.items() if len(value) == 1}
    return {name: value for name, value in labels.items() if value}


_LABELS: Final = ("run_id", "agent", "task", "tenant", "verdict", "intervention")


def _label(alert: Alert, name: str) -> str:
    values = {
        "run_id": alert.run_id,
        "agent": alert.agent,
        "task": alert.task,
        "tenant": alert.tenant,
        "verdict": alert.verdict,
        "intervention": alert.intervention,
    }
    return shown_name(values[name])
