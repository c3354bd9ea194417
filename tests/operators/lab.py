"""A controlled laboratory: tasks as DAGs, synthetic unit embeddings, runs through the operators.

A text ``edit~3`` is a paraphrase of ``edit``: same base vector, its own noise. Texts with different
bases are nearly orthogonal, as the paper's controlled experiments have it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ontrack.operators import run
from ontrack.operators.admission import admit
from ontrack.operators.knowledge import Knowledge
from ontrack.operators.profiles import Profile, paper
from ontrack.operators.references import compile_references, texts
from ontrack.operators.report import Stamp
from ontrack.operators.vectors import StepVectors, step_texts
from ontrack.pipeline.evaluation import controlled
from ontrack.pipeline.evaluation.controlled import Node
from ontrack.topics.events import ErrorInfo, Proposal, RunEnded, Step
from ontrack.topics.knowledge import Provenance, Reference, ReferenceStep, ToolContract
from ontrack.topics.verdicts import Decision, Intervention, Scorecard, Verdict

DIMENSION = 64
NOISE = 0.25


def _unit(seed: str) -> np.ndarray:
    number = int.from_bytes(hashlib.blake2b(seed.encode(), digest_size=8).digest(), "big")
    vector = np.random.default_rng(number).standard_normal(DIMENSION)
    return vector / np.linalg.norm(vector)


def embed(text: str) -> np.ndarray:
    """Synthetic unit embedding of one text."""
    if not text:
        return np.zeros(DIMENSION, np.float32)
    base, _, variant = text.partition("~")
    vector = _unit(base)
    if variant:
        vector = vector + NOISE * _unit(text)
    return (vector / np.linalg.norm(vector)).astype(np.float32)


@dataclass(frozen=True)
class LabTask:
    """A task as a DAG, nodes in a topological order."""

    name: str
    nodes: tuple[Node, ...]

    def node(self, name: str) -> Node:
        return next(node for node in self.nodes if node.name == name)


SIX_STEPS = LabTask("six", controlled.SIX_STEPS.nodes)


def step_of(task: LabTask, name: str, variant: object = "", **changes: object) -> Step:
    """One step of a task, paraphrased by ``variant``, with its artifact ids declared."""
    node = task.node(name)
    wording = f"{name}~{variant}" if variant != "" else name
    return Step(
        run_id="r",
        task_id=task.name,
        action=f"do {wording}",
        tool=node.tool,
        args={"target": wording},
        result=f"result of {name} {variant}",
        consumed=tuple(f"art:{parent}" for parent in node.parents),
        produced=(f"art:{name}",),
    ).model_copy(update=changes)


def foreign(number: int, **changes: object) -> Step:
    """A hallucinated step: intent, tool and arguments of another world."""
    step = Step(
        run_id="r",
        action=f"weather {number}",
        tool=f"zz{number}qq",
        args={"city": f"town{number}"},
        result=f"sunny {number}",
        consumed=(),
        produced=(),
    )
    return step.model_copy(update=changes)


def reference_of(
    task: LabTask,
    index: int = 0,
    provenance: Provenance = Provenance.GOLD,
    order: Sequence[str] | None = None,
) -> Reference:
    names = order or [node.name for node in task.nodes]
    steps = [ReferenceStep.of(step_of(task, name, f"ref{index}")) for name in names]
    return Reference(
        reference_id=f"{task.name}-{index}",
        task_id=task.name,
        provenance=provenance,
        steps=tuple(steps),
    )


class Lab:
    """One run through the operators, event by event."""

    def __init__(
        self,
        references: Sequence[Reference] = (),
        contracts: Sequence[ToolContract] = (),
        profile: Profile | None = None,
    ) -> None:
        self.profile = profile or paper("synthetic")
        by_name = {contract.name: contract for contract in contracts}
        compiled = None
        if references:
            vectors = [embed(text) for text in texts(references)]
            compiled = compile_references(references, by_name, vectors, self.profile.artifacts)
        stamp = Stamp(self.profile.name, self.profile.digest("synthetic"), "test")
        knowledge = Knowledge(by_name, compiled)
        self.state = run.start(stamp, RunEnded(run_id="r", task_id="t"), knowledge)
        self.verdicts: list[Verdict] = []
        self.interventions: list[Intervention] = []

    def vectors(self, call: Step | Proposal) -> StepVectors:
        return StepVectors(*map(embed, step_texts(call, 65_536)))

    def feed(self, *steps: Step) -> list[Verdict]:
        """Fold steps; returns their verdicts."""
        first = len(self.verdicts)
        for event in steps:
            admission = admit(
                "r", self.state.seen, self.state.highest, self.profile.steps_max, event
            )
            if admission.duplicate:
                continue
            self.state, verdict, intervention = run.step(
                self.profile, self.state, event, admission, self.vectors(event)
            )
            self.verdicts.append(verdict)
            if intervention is not None:
                self.interventions.append(intervention)
        return self.verdicts[first:]

    def propose(self, step: Step) -> Decision:
        proposal = Proposal(
            run_id="r", seq=step.seq, action=step.action, tool=step.tool, args=step.args
        )
        return run.propose(self.profile, self.state, proposal, self.vectors(proposal))

    def end(self) -> Scorecard:
        return run.end(self.profile, self.state, RunEnded(run_id="r", outcome="success"))

    @property
    def names(self) -> list[str]:
        return [verdict.verdict.value for verdict in self.verdicts]


def failed(step: Step, message: str = "boom") -> Step:
    return step.model_copy(update={"error": ErrorInfo(message=message), "result": None})


def with_theta(profile: Profile, theta: float) -> Profile:
    solver = replace(profile.transport.solver, theta=theta)
    return replace(profile, transport=replace(profile.transport, solver=solver))
