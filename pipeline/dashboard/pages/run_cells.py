"""Run cells: a run's picture as the rows, names and values that its page shows."""

from __future__ import annotations

import json
from typing import Any

from ontrack.pipeline.dashboard.pages.text import money, number, run_href, shown
from ontrack.pipeline.dashboard.pages.widgets import Row
from ontrack.pipeline.dashboard.run.model import RunPicture, TimelineStep
from ontrack.pipeline.terminal import printable
from ontrack.topics.verdicts import WOULD_HALT

EVENT_CHARACTERS_MAX = 8_000


def run_facts(picture: RunPicture) -> list[list[str]]:
    """Return what stands at the head of a run's page."""
    agent = picture.agent or {}
    named = [agent.get("name") or agent.get("id"), agent.get("version")]
    last = picture.timeline[-1].verdict if picture.timeline else None
    state = picture.state if picture.outcome is None else f"{picture.state}: {picture.outcome}"
    if picture.shadow and any(WOULD_HALT in step.flags for step in picture.timeline):
        state = f"{state}, would have halted"
    facts: list[list[Any]] = [
        ["Last verdict", last, "verdict"],
        ["State", state],
        ["Steps", str(len(picture.timeline))],
        ["Mode", "shadow: it only watches" if picture.shadow else "live"],
        ["Agent", " ".join(part for part in named if part) or None],
        ["Task", picture.task_id],
        ["Tenant", picture.tenant],
    ]
    told = [[fact[0], shown(fact[1], 512), *fact[2:]] for fact in facts if fact[1]]
    if picture.parent_run_id is not None:
        parent = picture.parent_run_id
        told.append(["Started by run", shown(parent), "link", run_href(parent)])
    told += [[name.capitalize(), shown(value)] for name, value in picture.settings.items() if value]
    return told


def step_cells(step: TimelineStep) -> Row:
    """Return a step as a row of the timeline."""
    why = [reason_text(reason) for reason in step.reasons]
    why += [
        f"→ {item['intervention']}: {shown(str(item['reason']))}" for item in step.interventions
    ]
    if step.error is not None:
        why.append(f"failed: {shown(step.error)}")
    took = None if step.duration_s is None else f"{step.duration_s:.2f} s"
    return str(step.seq), [
        str(step.seq),
        step.verdict,
        shown(step.tool),
        None if not step.action else [shown(step.action)],
        why or None,
        _parents(step),
        took,
        money(step.cost_usd),
        _moment(step.time),
    ]


def _moment(time: str | None) -> str | None:
    return None if time is None else time.replace("T", " ")[:19]


def _parents(step: TimelineStep) -> str | None:
    if not step.parents:
        return None
    late = set(step.late_parents)
    return ", ".join(f"{seq} (late)" if seq in late else str(seq) for seq in step.parents)


def reason_text(reason: dict[str, Any], limit: int = 400) -> str:
    """Return why, by which signal, and how far over which threshold."""
    value, threshold = reason.get("value"), reason.get("threshold")
    figures = "" if value is None else f" ({value:.3g}"
    if figures:
        figures += ")" if threshold is None else f"; threshold {threshold:.3g})"
    return f"{shown(str(reason['text']), limit)} [{shown(str(reason['signal']))}{figures}]"


def step_facts(step: TimelineStep) -> list[list[str]]:
    """Return what a step's details say besides its reasons."""
    confirmed = {None: None, True: "yes", False: "no"}[step.confirmed]
    facts: list[list[Any]] = [
        ["Verdict", step.verdict, "verdict"],
        ["Tool", step.tool],
        ["Intent", step.action],
        ["Severity", str(step.severity)],
        ["Evidence: steps", ", ".join(map(str, step.evidence)) or None],
        ["Flags", ", ".join(step.flags) or None],
        ["Confirmed by the converged solve", confirmed],
        ["Failed with", step.error],
        ["Time", _moment(step.time)],
    ]
    return [[fact[0], shown(fact[1], 1_000), *fact[2:]] for fact in facts if fact[1]]


def score_facts(card: dict[str, Any]) -> list[list[str]]:
    """Return a scorecard as names and values: the names of its fields, without the empty ones."""
    hidden = {"type", "id", "run_id", "task_id", "agent", "tenant", "profile", "settings", "engine"}
    told = []
    for name, value in card.items():
        if name in hidden or value is None or value in ([], {}, ()):
            continue
        told.append([name.replace("_", " ").capitalize(), _plain(name, value)])
    return told


def _plain(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if name == "cost_usd":
        return money(value) or ""
    if isinstance(value, float):
        return number(value, 3) or ""
    if isinstance(value, dict):
        return ", ".join(f"{shown(str(key))} {shown(str(item))}" for key, item in value.items())
    if isinstance(value, list | tuple):
        return "; ".join(_call(item) for item in value[:20]) + (" …" if len(value) > 20 else "")
    return shown(str(value))


def _call(item: Any) -> str:
    if isinstance(item, dict):  # an unsafe call
        tool, reason = shown(str(item.get("tool"))), shown(str(item.get("reason")))
        return f"step {item.get('seq')} {tool}: {reason}"
    return shown(str(item))


def decision_cells(index: int, decision: dict[str, Any]) -> Row:
    """Return a decision of the gate as a row."""
    why = [reason_text(reason) for reason in decision.get("reasons", ())]
    return str(index), [
        str(decision.get("seq", "")),
        str(decision.get("decision", "")),
        shown(str(decision.get("tool", ""))),
        why or None,
    ]


def event_text(events: list[bytes], seq: int) -> str:
    """Return the event of a step as text to be read: indented JSON, nothing that could steer."""
    place = 0
    for raw in events:
        try:
            event = json.loads(raw)
        except ValueError:
            continue
        if not isinstance(event, dict) or event.get("type", "step") != "step":
            continue
        own = event.get("seq")
        if seq == (place if own is None else own):
            text = json.dumps(event, indent=2, ensure_ascii=False)
            cut = printable(text[:EVENT_CHARACTERS_MAX], keep="\n")
            left = len(text) - EVENT_CHARACTERS_MAX
            return cut if left <= 0 else f"{cut}\n… and {left:,} characters more"
        place += 1
    return "This step's event is not known here any more."
