"""Outputs for the tests of the dashboard, as a monitor would say them."""

from __future__ import annotations

from typing import Any

from ontrack.topics.events import Agent
from ontrack.topics.verdicts import (
    Authority,
    DeadLetter,
    DeadLetterError,
    Decision,
    Intervention,
    InterventionName,
    Reason,
    Scorecard,
    Verdict,
    VerdictName,
)

STAMP: dict[str, Any] = {"profile": "default", "settings": "abc", "engine": "1.0"}
SEVERITIES = {"OK": 0, "EXPLORING": 0, "WARN": 1, "LOOP": 2, "STALLED": 2, "OFF_TRACK": 3}


def _who(agent: str | None) -> Agent | None:
    return None if agent is None else Agent(name=agent)


def verdict(
    run_id: str, seq: int, name: str = "OK", agent: str | None = "ada", **more: Any
) -> Verdict:
    return Verdict(
        **{
            "id": f"{run_id}:{seq}",
            "run_id": run_id,
            "seq": seq,
            "agent": _who(agent),
            "task_id": "t1",
            "tool": "search",
            "verdict": VerdictName(name),
            "severity": SEVERITIES.get(name, 3),
            "authority": Authority.INTERVENE,
            **STAMP,
            **more,
        }
    )


def intervention(run_id: str, seq: int, name: str = "halt", **more: Any) -> Intervention:
    return Intervention(
        **{
            "id": f"{run_id}:{seq}:{name}",
            "run_id": run_id,
            "seq": seq,
            "agent": _who("ada"),
            "task_id": "t1",
            "intervention": InterventionName(name),
            "verdict": VerdictName.LOOP,
            "severity": 2,
            "reason": "three equal calls",
            "authority": Authority.INTERVENE,
            **STAMP,
            **more,
        }
    )


def decision(run_id: str, seq: int, answer: str = "block", **more: Any) -> Decision:
    return Decision(
        **{
            "id": f"{run_id}:{seq}:{answer}",
            "run_id": run_id,
            "seq": seq,
            "agent": _who("ada"),
            "task_id": "t1",
            "tool": "refund",
            "effect": "destructive",
            "decision": answer,
            "reasons": (Reason(signal="missing", text="nothing made the order"),),
            "call_sha256": "0" * 64,
            "authority": Authority.INTERVENE,
            **STAMP,
            **more,
        }
    )


def scorecard(run_id: str, outcome: str = "success", steps: int = 3, **more: Any) -> Scorecard:
    return Scorecard(
        **{
            "id": f"{run_id}:end",
            "run_id": run_id,
            "agent": _who("ada"),
            "task_id": "t1",
            "outcome": outcome,
            "steps": steps,
            "errors": 0,
            "verdicts": {},
            "interventions": {},
            "cost_usd": 0.5,
            **STAMP,
            **more,
        }
    )


def dead_letter(number: int, size: int = 10) -> DeadLetter:
    return DeadLetter(
        id=f"events:0:{number}",
        topic="events",
        partition=0,
        offset=number,
        value_base64="A" * size,
        value_bytes=size * 3 // 4,
        error=DeadLetterError(name="WrongShape", text="no tool"),
    )
