"""Recorded runs through the public monitor: what is measured is what users get.

Everything goes through :class:`~ontrack.pipeline.embedded.EmbeddedMonitor`, one a run, and only
what it publishes is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple

from ontrack.pipeline.embedded import EmbeddedMonitor, proposal_of
from ontrack.pipeline.evaluation.corpus import Recording
from ontrack.pipeline.evaluation.injected import Herd
from ontrack.pipeline.folding.library import Library
from ontrack.pipeline.making import encoder_of, make_fold, profile_of
from ontrack.pipeline.settings import Settings
from ontrack.topics.events import Event, RunEnded, Step
from ontrack.topics.knowledge import ToolContract
from ontrack.topics.verdicts import (
    Decision,
    Intervention,
    InterventionName,
    Output,
    Scorecard,
    Verdict,
    VerdictName,
)

PROFILES: Final = ("paper", "default")
SEVERE_FROM: Final = 3  # severity of a verdict that has the authority to intervene


@dataclass(frozen=True, slots=True)
class Setup:
    """What every process of an experiment is given once."""

    settings: Settings
    contracts: tuple[ToolContract, ...]
    recordings: tuple[Recording, ...]


class Seen(NamedTuple):
    """What a verdict said."""

    seq: int
    verdict: VerdictName
    severity: int
    score: float | None
    rank_score: float | None
    signals: tuple[str, ...]

    @property
    def is_severe(self) -> bool:
        """Whether the verdict has the severity of an intervention."""
        return self.severity >= SEVERE_FROM

    @property
    def is_alarm(self) -> bool:
        """Whether somebody is told: severe, or the warning that a run goes round."""
        return self.is_severe or "repeats" in self.signals


class Act(NamedTuple):
    """An intervention."""

    seq: int
    intervention: InterventionName
    verdict: VerdictName


@dataclass(frozen=True, slots=True)
class Watched:
    """What the monitor published about one run.

    Parameters
    ----------
    seen
        Verdicts by step.
    acts
        Interventions in order.
    decisions
        The gate's answer to each call, where it was asked.
    final_score
        Of the scorecard.
    unusable
        Events that became dead letters.
    """

    seen: tuple[Seen, ...]
    acts: tuple[Act, ...]
    decisions: tuple[Decision, ...]
    final_score: float | None
    unusable: int

    def first_halt(self) -> int | None:
        """Return the step at which the run was to be halted."""
        halts = (act.seq for act in self.acts if act.intervention is InterventionName.HALT)
        return next(halts, None)


class Watcher:
    """One process's share of an experiment: monitors runs, one after the other.

    Attributes
    ----------
    encoder
        The settings' text encoder, for baselines.
    recordings
        By run id.
    """

    def __init__(self, setup: Setup) -> None:
        self.settings = setup.settings
        self.contracts = {contract.name: contract for contract in setup.contracts}
        self.recordings = {run.run_id: run for run in setup.recordings}
        self.encoder = encoder_of(setup.settings)
        self.profile = profile_of(setup.settings, self.encoder.name)

    @cached_property
    def herd(self) -> Herd:
        """All recordings, as donors of injections."""
        return Herd(tuple(self.recordings.values()), self.contracts)

    def monitor(self, task: str, references: Sequence[Recording]) -> EmbeddedMonitor:
        """Return a new monitor that knows these runs as references of the task."""
        found = EmbeddedMonitor(
            self.settings,
            [reference.as_reference_of(task) for reference in references],
            self.contracts.values(),
            encoder=self.encoder,
        )
        found.fold.library.pool_with(self.fleet)
        return found

    @cached_property
    def fleet(self) -> Library:
        """What a fleet's monitor would hold: the successes of all tasks, whose self-tests count."""
        fold = make_fold(self.settings, self.encoder)
        successes = [run for run in self.recordings.values() if run.succeeded]
        fold.library.fill(
            [run.as_reference_of(run.key) for run in successes], self.contracts.values()
        )
        return fold.library

    def named(self, run_ids: Sequence[str]) -> tuple[Recording, ...]:
        """Return recordings by id."""
        return tuple(self.recordings[run_id] for run_id in run_ids)

    def watch(
        self,
        events: Sequence[Event],
        task: str,
        references: Sequence[Recording],
        *,
        gate: bool = False,
        end: bool = False,
    ) -> Watched:
        """Monitor one run.

        Parameters
        ----------
        events
            Its start and steps.
        gate
            Ask about every call before its step.
        end
            End the run, for the score of the final solve.
        """
        monitor = self.monitor(task, references)
        outputs: list[Output] = []
        for event in events:
            if gate and isinstance(event, Step):
                outputs.append(monitor.propose(proposal_of(event)))
            outputs += monitor.feed(event)
        if end:
            outputs += monitor.feed(RunEnded(run_id=events[0].run_id))
        return _watched(outputs)

    def ask(
        self, events: Sequence[Event], task: str, references: Sequence[Recording], step: int
    ) -> Decision:
        """Ask the gate about one call of a run, after the steps before it."""
        monitor = self.monitor(task, references)
        for event in events:
            if isinstance(event, Step) and event.seq == step:
                return monitor.propose(proposal_of(event))
            monitor.feed(event)
        raise ValueError(f"the run has no step {step}")


def _watched(outputs: Sequence[Output]) -> Watched:
    verdicts = [each for each in outputs if isinstance(each, Verdict)]
    final = next((each.final_score for each in outputs if isinstance(each, Scorecard)), None)
    return Watched(
        seen=tuple(
            Seen(
                each.seq,
                each.verdict,
                each.severity,
                each.score,
                each.rank_score,
                tuple(reason.signal for reason in each.reasons),
            )
            for each in verdicts
        ),
        acts=tuple(
            Act(each.seq, each.intervention, each.verdict)
            for each in outputs
            if isinstance(each, Intervention)
        ),
        decisions=tuple(each for each in outputs if isinstance(each, Decision)),
        final_score=final,
        unusable=sum(each.type == "dead_letter" for each in outputs),
    )
