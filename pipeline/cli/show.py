"""How outputs look: JSON Lines for programs, one line each for people."""

from __future__ import annotations

import sys
from collections import Counter

import click

from ontrack.pipeline.terminal import printable
from ontrack.topics import codecs
from ontrack.topics.errors import InvalidEvent
from ontrack.topics.fleet import FleetAggregate
from ontrack.topics.verdicts import (
    WOULD_HALT,
    Authority,
    DeadLetter,
    Decision,
    Intervention,
    Output,
    Reason,
    Scorecard,
    Verdict,
    VerdictName,
)

_COLOURS = {
    "OK": "green",
    "EXPLORING": "cyan",
    "WARN": "yellow",
    "LOOP": "red",
    "STALLED": "red",
    "CAUSAL_INVERSION": "red",
    "OFF_TRACK": "red",
    "BLOCK": "magenta",
}


class Printer:
    """Prints outputs as they come and counts them.

    Parameters
    ----------
    as_json
        One JSON object a line, with the very bytes that stand on the topic.
    """

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self.counts: Counter[str] = Counter()

    def show(self, output: Output, unheeded: bool = False) -> None:
        """Print one output; what is not handed on to the agent says so, to people."""
        self.counts[output.type] += 1
        if isinstance(output, Verdict):
            self.counts[output.verdict.value] += 1
        if self._as_json:
            sys.stdout.buffer.write(codecs.encode(output) + b"\n")
        else:
            click.echo(line(output, unheeded))

    def show_bytes(self, value: bytes) -> None:
        """Print one output as it was read from a topic."""
        if self._as_json:
            self.counts["lines"] += 1
            sys.stdout.buffer.write(value + b"\n")
        else:
            try:
                self.show(codecs.decode_output(value))
            except InvalidEvent as error:
                self._unreadable(error)

    def show_fleet(self, value: bytes) -> None:
        """Print one line of the fleet's minutes as it was read from its topic."""
        if self._as_json:
            self.show_bytes(value)
            return
        try:
            click.echo(fleet_line(codecs.decode_fleet(value)))
        except InvalidEvent as error:
            self._unreadable(error)

    def flush(self) -> None:
        """Flush stdout."""
        sys.stdout.flush()

    def _unreadable(self, error: InvalidEvent) -> None:
        """Say so: somebody else's message on our topic must not end the watch."""
        self.counts["unreadable"] += 1
        click.echo(f"{click.style('unreadable', fg='red')} {_plain(str(error), 200)}")


def line(output: Output, unheeded: bool = False) -> str:
    """Return one output as one line for people."""
    if isinstance(output, Verdict):
        name = output.verdict.value
        label = click.style(f"{name:16}", fg=_COLOURS[name], bold=output.severity >= 2)
        coverage = "" if output.coverage is None else f" cov {output.coverage:4.0%}"
        what = f"{_plain(output.tool or '', 24):24}{coverage}{_why(output.reasons)}"
        would = " (would have halted)" if WOULD_HALT in output.flags else ""
        less = " (only a warning: its references are not sure enough)" if _lowered(output) else ""
        return f"{_place(output)}{label} {what}{less}{would}"
    if isinstance(output, Intervention):
        label = click.style(f"→ {output.intervention.value.upper():14}", fg="magenta", bold=True)
        unsaid = " (only watched: the agent is not told)" if unheeded else ""
        return f"{_place(output)}{label} {_plain(output.reason, 160)}{unsaid}"
    if isinstance(output, Decision):
        colour = "red" if output.decision == "block" else "green"
        is_unsaid = output.decision == "unknown" and output.authority is Authority.INFORM
        told = "would block" if is_unsaid and output.reasons else output.decision
        label = click.style(f"gate: {told:10}", fg=colour)
        return f"{_place(output)}{label} {_plain(output.tool, 24):24}{_why(output.reasons)}"
    if isinstance(output, Scorecard):
        verdicts = " ".join(f"{name} {count}" for name, count in output.verdicts.items())
        score = "" if output.final_score is None else f", final score {output.final_score:.3f}"
        return (
            f"{_plain(output.run_id, 28):28}  end  {output.outcome}: {output.steps} steps{score}"
            f" ({verdicts or 'no steps'}){_path(output)}"
        )
    assert isinstance(output, DeadLetter)
    label = click.style("dead letter", fg="red")
    what = f"{output.error.name}: {_plain(output.error.text, 200)}"
    return f"{label} {_plain(output.topic, 120)}:{output.offset}  {what}"


def fleet_line(told: FleetAggregate) -> str:
    """Return what a group of runs did in a minute as one line for people."""
    group = " / ".join(_plain(name or "–", 20) for name in told.group.key)
    where = "all" if told.partition is None else f"p{told.partition}"
    said = [f"{told.open_runs} open", f"{told.started} started"]
    said += [f"{count} {_plain(name, 20)}" for name, count in told.finished.items()]
    said += [
        click.style(f"{count} {_plain(name, 20)}", fg=_COLOURS.get(name, "white"))
        for name, count in told.verdicts.items()
    ]
    said += [f"{count} × {_plain(name, 20)}" for name, count in told.interventions.items()]
    for count, text in (
        (told.blocks, "blocked"),
        (told.unsafe_runs, f"of {told.unsafe_checked} unsafe"),
        (told.over_budget_runs, f"of {told.budgeted_runs} over budget"),
        (told.late, "late"),
    ):
        if count:
            said.append(click.style(f"{count} {text}", fg="yellow"))
    if told.cost_usd:
        said.append(f"{sum(told.cost_usd.values()):.2f} USD")
    if told.saved_steps:
        said.append(f"{told.saved_steps:g} steps saved")
    mark = " final" if told.final else ""
    return f"{told.minute:%Y-%m-%d %H:%MZ}  {where:4}{group}  {', '.join(said)}{mark}"


def _path(card: Scorecard) -> str:
    """Say what is wrong with the path: what a task's own rules were not kept by."""
    said = {
        "missing_reference_step": f"missing {', '.join(card.missing_steps[:3])}",
        "over_step_budget": f"{card.over_budget_by} over a budget of {card.step_budget}",
        "unsafe_action": f"{card.unsafe_count} unsafe",
        "over_latency": f"took {card.latency_s or 0.0:.1f} s",
        "over_cost": f"cost {card.cost_usd or 0.0:.2f} USD",
    }
    told = [said.get(defect, defect) for defect in card.defects]
    return click.style(f" path: {_plain('; '.join(told), 120)}", fg="yellow") if told else ""


def _lowered(verdict: Verdict) -> bool:
    """Tell whether a verdict weighs less than its name says, its references not being sure."""
    is_mild = verdict.verdict in (VerdictName.OK, VerdictName.EXPLORING, VerdictName.WARN)
    return not is_mild and verdict.authority is not Authority.INTERVENE


def _place(output: Verdict | Intervention | Decision) -> str:
    return f"{_plain(output.run_id, 28):28} {output.seq:>4}  "


def _why(reasons: tuple[Reason, ...]) -> str:
    return f"  {_plain(reasons[0].text, 160)}" if reasons else ""


def _plain(text: str, width: int) -> str:
    """Return text of agents without control characters, cut to a width."""
    clean = printable(text)
    return clean if len(clean) <= width else clean[: width - 1] + "…"
