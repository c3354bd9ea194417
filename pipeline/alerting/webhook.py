"""The sink ``webhook``: JSON to an endpoint of one's own, signed.

Source: Standard Webhooks 1.0 (headers ``webhook-id``, ``webhook-timestamp``,
``webhook-signature``; symmetric signatures ``v1``, HMAC-SHA256 over id, timestamp and body).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from typing import Any, Final

from ontrack.pipeline.alerting.alert import Alert
from ontrack.pipeline.alerting.settings import WebhookSink
from ontrack.pipeline.alerting.sinks import HttpSender, Parcel, as_json, rfc3339, secret_of
from ontrack.pipeline.alerting.text import link_of, text_of
from ontrack.topics.errors import InvalidSettings

_PREFIX: Final = "whsec_"
_KEY_BYTES_MIN: Final = 24
_KEY_BYTES_MAX: Final = 64


class Webhook:
    """One endpoint.

    Raises
    ------
    InvalidSettings
        A variable is not set, or the secret is none.
    """

    def __init__(self, name: str, settings: WebhookSink, run_url: str | None) -> None:
        where = f"alerts.sinks.{name}"
        self._http = HttpSender(secret_of(settings.url, f"{where}.url"))
        self._run_url = run_url
        self._headers = {
            header: secret_of(value, f"{where}.headers.{header}")
            for header, value in settings.headers.items()
        }
        self._key: bytes | None = None
        if settings.secret is not None:
            self._key = _key(secret_of(settings.secret, f"{where}.secret"), f"{where}.secret")

    async def send(self, parcel: Parcel, now_s: float) -> None:
        """Post once, with a signature of its own time."""
        body = body_of(parcel, self._run_url)
        stamp = str(int(now_s))
        headers = {**self._headers, "webhook-id": parcel.id, "webhook-timestamp": stamp}
        if self._key is not None:
            headers["webhook-signature"] = _signature(self._key, parcel.id, stamp, body)
        await self._http.post(body, headers)

    async def close(self) -> None:
        """Close the connections."""
        await self._http.close()


def body_of(parcel: Parcel, run_url: str | None) -> bytes:
    """Return the body: the same bytes however often a parcel is sent."""
    delivery = parcel.delivery
    bundle = delivery.bundle
    text = text_of(delivery, run_url)
    data = {
        "route": delivery.route.name,
        "cause": delivery.cause,
        "title": text.title,
        "text": text.body,
        "alert": _plain(delivery.lead),
        "link": link_of(delivery.lead, run_url),
        "count": bundle.count,
        "first_at": rfc3339(bundle.first_s),
        "last_at": rfc3339(bundle.last_s),
        "kinds": [
            {"intervention": intervention, "verdict": verdict, "count": count}
            for (intervention, verdict), count in sorted(bundle.kinds.items())
        ],
        "alerts": [_plain(alert) for alert in bundle.kept],
    }
    return as_json({"type": "ontrack.alert", "timestamp": rfc3339(bundle.last_s), "data": data})


def _plain(alert: Alert) -> dict[str, Any]:
    return {
        "id": alert.id,
        "run_id": alert.run_id,
        "seq": alert.seq,
        "agent": alert.agent,
        "task_id": alert.task,
        "tenant": alert.tenant,
        "tool": alert.tool,
        "intervention": alert.intervention,
        "verdict": alert.verdict,
        "severity": alert.severity,
        "authority": alert.authority,
        "reason": alert.text,
        "evidence": list(alert.evidence),
        "at": rfc3339(alert.time_s),
    }


def _signature(key: bytes, parcel_id: str, stamp: str, body: bytes) -> str:
    signed = f"{parcel_id}.{stamp}.".encode() + body
    return "v1," + base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()


def _key(secret: str, where: str) -> bytes:
    try:
        key = base64.b64decode(secret.removeprefix(_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not secret.startswith(_PREFIX) or not _KEY_BYTES_MIN <= len(key) <= _KEY_BYTES_MAX:
        raise InvalidSettings(
            f"{where}: expected {_PREFIX} and {_KEY_BYTES_MIN} to {_KEY_BYTES_MAX} random bytes in "
            f'base64; make one: echo "{_PREFIX}$(head -c 32 /dev/urandom | base64)"'
        )
    return key
