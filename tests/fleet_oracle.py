"""The oracle of the fleet's minutes: all outputs at once, counted by plain Python."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from ontrack.operators.fleet_state import FleetParams
from ontrack.topics.fleet import MINUTE_MS as MINUTE
from ontrack.topics.fleet import FleetAggregate
from ontrack.topics.verdicts import Decision, Intervention, Output, Scorecard, Verdict

Timed = tuple[Output, int]


def by_plain_python(timed: Sequence[Timed], params: FleetParams) -> dict[tuple[int, str], Any]:
    """What the lines have to say, a minute at a time, from all outputs at once."""
    runs: dict[str, list[Timed]] = defaultdict(list)
    for output, time_ms in timed:
        if not isinstance(output, Decision):
            runs[output.run_id].append((output, time_ms))
    found: dict[tuple[int, str], Counter[str]] = defaultdict(Counter)
    spans = []
    for said in runs.values():
        begin = min(time_ms for _, time_ms in said)
        group = group_text(next(output for output, time_ms in said if time_ms == begin))
        ends = [time_ms for output, time_ms in said if isinstance(output, Scorecard)]
        silent = max(time_ms for _, time_ms in said) + params.silent_ms
        spans.append((group, begin // MINUTE, (ends[0] if ends else silent) // MINUTE))
        found[begin // MINUTE, group]["started"] += 1
    for output, time_ms in timed:
        here = found[time_ms // MINUTE, group_text(output)]
        if isinstance(output, Verdict):
            here[f"verdict {output.verdict.value}"] += 1
        elif isinstance(output, Intervention):
            here[f"intervention {output.intervention.value}"] += 1
        elif isinstance(output, Decision):
            here["blocks"] += output.decision == "block"
        elif isinstance(output, Scorecard):
            here[f"finished {output.outcome}"] += 1
            here[f"steps {output.outcome}"] += output.steps
            here[f"cost {output.outcome}"] += round((output.cost_usd or 0) * 1e6)
            here["unsafe"] += (output.unsafe_count or 0) > 0
            here["checked"] += output.unsafe_count is not None
            here["over"] += (output.over_budget_by or 0) > 0
            here["budgeted"] += output.step_budget is not None
    for group, begin, end in spans:
        for minute in range(begin, end + 1):
            found[minute, group]["open"] += minute < end
    cards = [(o, at // MINUTE) for o, at in timed if isinstance(o, Scorecard)]
    for (minute, group), here in found.items():
        until = [(c, at) for c, at in cards if at <= minute and group_text(c) == group]
        lost = [
            c.steps
            for c, _ in until
            if c.outcome in ("failure", "cancelled") and "halt" not in c.interventions
        ]
        halted = [
            c.steps
            for c, at in until
            if at == minute and c.outcome != "success" and "halt" in c.interventions
        ]
        if len(lost) >= params.baseline_runs_min:
            mean = sum(lost) / len(lost)
            here["saved"] = round(1000 * sum(max(0, mean - steps) for steps in halted))
    return {key: +here for key, here in found.items()}


def group_text(output: Any) -> str:
    agent = None if output.agent is None else output.agent.id
    return json.dumps([agent, output.task_id, output.tenant], separators=(",", ":"))


def as_counted(lines: Iterable[FleetAggregate]) -> dict[tuple[int, str], Any]:
    """Lines in the words of the oracle."""
    found = {}
    for line in lines:
        here = Counter(
            started=line.started,
            open=line.open_runs,
            blocks=line.blocks,
            unsafe=line.unsafe_runs,
            checked=line.unsafe_checked,
            over=line.over_budget_runs,
            budgeted=line.budgeted_runs,
            saved=round(1000 * line.saved_steps),
        )
        for word, counts in (
            ("verdict", line.verdicts),
            ("intervention", line.interventions),
            ("finished", line.finished),
            ("steps", line.steps),
        ):
            here.update({f"{word} {name}": count for name, count in counts.items()})
        here.update({f"cost {name}": round(usd * 1e6) for name, usd in line.cost_usd.items()})
        key = round(line.minute.timestamp() / 60), line.group.key.text
        found[key] = +here
    return found
