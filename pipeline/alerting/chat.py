"""The sink ``apprise``: chat, mail and a hundred other services, by the library Apprise."""

from __future__ import annotations

import logging
from typing import Any, Final

from ontrack.pipeline.alerting.settings import AppriseSink
from ontrack.pipeline.alerting.sinks import NotDelivered, Parcel, secret_of
from ontrack.pipeline.alerting.text import text_of, without_mentions
from ontrack.topics.errors import InvalidSettings

_TYPES: Final = ("info", "info", "warning", "failure")


class Chat:
    """One service.

    Raises
    ------
    InvalidSettings
        Apprise is not installed, a variable is not set, or the address is none of Apprise's.
    """

    def __init__(self, name: str, settings: AppriseSink, run_url: str | None) -> None:
        where = f"alerts.sinks.{name}"
        url = secret_of(settings.url, f"{where}.url")
        try:
            import apprise
        except ImportError as error:
            raise InvalidSettings(
                f"{where} needs the library Apprise; install it: pip install 'ontrack[alerts]'"
            ) from error
        # Below warnings its log may name addresses.
        logging.getLogger("apprise").setLevel(logging.WARNING)
        self._service: Any = apprise.Apprise.instantiate(url, suppress_exceptions=True)
        self._plain = apprise.NotifyFormat.TEXT
        self._run_url = run_url
        if self._service is None:
            raise InvalidSettings(
                f"{where}.url is no address that Apprise knows; expected one such as "
                "slack://…, mailto://…, ntfy://…"
            )

    async def send(self, parcel: Parcel, now_s: float) -> None:
        """Send once. Said to be plain text, so Apprise escapes it for services with markup."""
        text = text_of(parcel.delivery, self._run_url)
        try:
            taken = await self._service.async_notify(
                title=without_mentions(text.title),
                body=without_mentions(text.body),
                notify_type=_TYPES[parcel.delivery.bundle.severity],
                body_format=self._plain,
            )
        except Exception as error:  # of one of a hundred plug-ins
            problem = f"Apprise failed ({type(error).__name__})"
            raise NotDelivered(problem, try_again=True) from error
        if not taken:
            # Apprise tells no more than that; its own log has the answer.
            raise NotDelivered("the service did not take it; see Apprise's log", try_again=True)

    async def close(self) -> None:
        """Do nothing: Apprise keeps no connection of ours."""
