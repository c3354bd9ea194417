"""Sinks: where alerts go. Each one sends a parcel once; trying again is the dispatcher's work."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final, Protocol

import aiohttp
from pydantic import SecretStr

from ontrack.pipeline.alerting.machine import Delivery
from ontrack.pipeline.alerting.settings import FROM_ENVIRONMENT
from ontrack.topics.errors import InvalidSettings

Clock = Callable[[], float]

_TRY_AGAIN: Final = frozenset({408, 425, 429})
_RETRY_AFTER_S_MAX: Final = 3600.0


@dataclass(frozen=True, slots=True)
class Parcel:
    """A delivery on its way to one sink; ``id`` is the same however often it is sent."""

    id: str
    sink: str
    delivery: Delivery


class NotDelivered(Exception):  # noqa: N818
    """A sink did not take a parcel.

    Parameters
    ----------
    problem
        What happened; never an address, which may hold secrets.
    try_again
        Whether it may go better later.
    after_s
        When the sink asks to be tried again.
    """

    def __init__(self, problem: str, *, try_again: bool, after_s: float | None = None) -> None:
        self.problem, self.try_again, self.after_s = problem, try_again, after_s
        super().__init__(problem)


class SinkClient(Protocol):
    """One sink, ready to be used."""

    async def send(self, parcel: Parcel, now_s: float) -> None:
        """Send once. Raises :class:`NotDelivered`."""
        ...

    async def close(self) -> None:
        """Close connections."""
        ...


def secret_of(value: SecretStr, where: str) -> str:
    """Return a secret, which may stand in an environment variable.

    A line end behind it, as files of secrets have one, is no part of it.

    Raises
    ------
    InvalidSettings
        The variable is not set, or holds what no address and no header can.
    """
    text = value.get_secret_value()
    if text.startswith(FROM_ENVIRONMENT):
        name = text.removeprefix(FROM_ENVIRONMENT)
        text = os.environ.get(name, "")
        if not text.strip():
            raise InvalidSettings(
                f"{where} stands in the variable {name}, which is not set; set it"
            )
    found = text.strip()
    if any(character < " " or character == "\x7f" for character in found):
        raise InvalidSettings(f"{where} has a line end or another control character inside")
    return found


class HttpSender:
    """Posts JSON and turns what happens into :class:`NotDelivered`."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._session: aiohttp.ClientSession | None = None

    async def post(self, body: bytes, headers: Mapping[str, str]) -> None:
        """Post once; any answer below 300 is fine. The caller limits the time."""
        if self._session is None:
            self._session = aiohttp.ClientSession()
        try:
            async with self._session.post(
                self._url,
                data=body,
                headers={"content-type": "application/json", **headers},
                allow_redirects=False,
            ) as answer:
                status, after = answer.status, answer.headers.get("retry-after")
        except ValueError as error:  # InvalidURL is one, and what a header cannot hold gives one
            problem = "its address or its headers cannot be used"
            raise NotDelivered(problem, try_again=False) from error
        except (aiohttp.ClientError, OSError) as error:
            problem = f"no answer ({type(error).__name__})"
            raise NotDelivered(problem, try_again=True) from error
        if status >= 300:
            raise NotDelivered(
                f"it answered {status}",
                try_again=status >= 500 or status in _TRY_AGAIN,
                after_s=_seconds(after),
            )

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None


def as_json(value: Any) -> bytes:
    """Encode a body; equal values give equal bytes."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.encode("utf-8", "replace")


def rfc3339(time_s: float) -> str:
    """Return a time as RFC 3339 text, UTC, to the millisecond."""
    moment = datetime.fromtimestamp(time_s, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _seconds(after: str | None) -> float | None:
    """Read ``Retry-After``: seconds, or a date. Source: RFC 9110, section 10.2.3."""
    if after is None:
        return None
    text = after.strip()
    if text.isascii() and text.isdigit():
        return min(float(text[:9]), _RETRY_AFTER_S_MAX)
    try:
        moment = parsedate_to_datetime(text)
    except ValueError:
        return None  # not to be understood: our own back-off holds
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return min(max(0.0, (moment - datetime.now(UTC)).total_seconds()), _RETRY_AFTER_S_MAX)
