"""What people read: a title and a few lines of plain text, nothing of a call's arguments."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final, NamedTuple
from urllib.parse import quote

from ontrack.pipeline.alerting.alert import Alert, shown_name
from ontrack.pipeline.alerting.machine import Cause, Delivery

_RUNS_NAMED_MAX: Final = 5
_MENTION: Final = re.compile(r"(?<=[@#])(?=\w)|(?<=<)(?=[@!#])")
_NO_BREAK: Final = "\u200b"

_CAUSES: Final[dict[Cause, str]] = {
    "alert": "",
    "more": "more of what was told before",
    "rate": "held back by the route's rate",
    "quiet": "held back in the quiet hours",
    "end": "what was left at the end",
}


class Text(NamedTuple):
    """A title of one line, and a body of several; plain text both."""

    title: str
    body: str


def text_of(delivery: Delivery, run_url: str | None) -> Text:
    """Say what a delivery tells: the lead, and how many more there are."""
    lead, bundle = delivery.lead, delivery.bundle
    who = f" ({shown_name(lead.agent)})" if lead.agent else ""
    title = f"[{lead.intervention}] {lead.verdict} in run {shown_name(lead.run_id)}{who}"
    if bundle.count > 1:
        title += f" and {bundle.count - 1} more"
    lines = [lead.text, _place(lead)]
    if bundle.count > 1:
        lines += ["", _more(delivery)]
    link = link_of(lead, run_url)
    if link is not None:
        lines.append(link)
    return Text(title, "\n".join(lines))


def link_of(alert: Alert, run_url: str | None) -> str | None:
    """Return the address of a run's page, where one is set; ``{run_id}`` stands for the run."""
    return None if run_url is None else run_url.replace("{run_id}", quote(alert.run_id, safe=""))


def without_mentions(text: str) -> str:
    """Take from names of agents the power to call on people: ``@everyone``, ``<!channel>``.

    A space of no width is put behind the sign; the text looks the same.
    """
    return _MENTION.sub(_NO_BREAK, text)


def _place(alert: Alert) -> str:
    parts = [f"run {shown_name(alert.run_id)}", f"step {alert.seq}"]
    parts += [
        f"{name} {shown_name(value)}"
        for name, value in (("task", alert.task), ("tenant", alert.tenant))
        if value
    ]
    if alert.evidence:
        parts.append(f"see steps {', '.join(map(str, alert.evidence))}")
    return ", ".join([*parts, f"at {_clock(alert.time_s)}"])


def _more(delivery: Delivery) -> str:
    """Say how many more there are, of which kinds, and of which runs as far as they are known."""
    bundle = delivery.bundle
    kinds = ", ".join(
        f"{intervention} {verdict} {count}"
        for (intervention, verdict), count in sorted(bundle.kinds.items())
    )
    gravest_first = sorted(bundle.kept, key=lambda alert: -alert.severity)
    runs = list(dict.fromkeys(shown_name(alert.run_id) for alert in gravest_first))
    named = ", ".join(runs[:_RUNS_NAMED_MAX]) + (", …" if len(runs) > _RUNS_NAMED_MAX else "")
    why = _CAUSES[delivery.cause] or "held back since the last one"
    span = f"{_clock(bundle.first_s)} to {_clock(bundle.last_s)}"
    return f"and {bundle.count - 1} more, {why} ({span}); in all: {kinds}; runs: {named}"


def _clock(time_s: float) -> str:
    return datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
