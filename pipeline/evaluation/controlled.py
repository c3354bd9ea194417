"""Controlled tasks: DAGs of steps with synthetic unit embeddings, for experiments with known truth.

A text ``edit~3`` is a paraphrase of ``edit``: the same direction with noise of its own. Texts with
other words before the ``~`` are nearly orthogonal to it. Source: section 6.1 of the paper.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

import numpy as np
import numpy.typing as npt

from ontrack.pipeline.embedded import EmbeddedMonitor, proposal_of
from ontrack.pipeline.settings import Settings
from ontrack.topics.events import ErrorInfo, RunEnded, Step
from ontrack.topics.knowledge import Effect, Provenance, Reference, ReferenceStep, ToolContract
from ontrack.topics.verdicts import Decision, Intervention, Scorecard, Verdict

NOISE: Final = 0.25
REFERENCES: Final = 3

_RUN: Final = "controlled"


class SyntheticEncoder:
    """Unit vectors drawn from a hash of the text; paraphrases lie around a common direction."""

    name = "synthetic"
    dimension = 64

    def encode(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """Return a unit row per text, shape (n, 64); zeros for the empty text."""
        rows = [self._direction(text) for text in texts]
        return np.array(rows, np.float32).reshape(len(texts), self.dimension)

    def _direction(self, text: str) -> npt.NDArray[np.float64]:
        if not text:
            return np.zeros(self.dimension)
        base, _, variant = text.partition("~")
        vector = self._drawn(base)
        if variant:
            vector = vector + NOISE * self._drawn(text)
        return vector / np.linalg.norm(vector)

    def _drawn(self, seed: str) -> npt.NDArray[np.float64]:
        number = int.from_bytes(blake2b(seed.encode(), digest_size=8).digest(), "big")
        vector = np.random.default_rng(number).standard_normal(self.dimension)
        return np.asarray(vector / np.linalg.norm(vector))


@dataclass(frozen=True, slots=True)
class Node:
    """One step of a task: its name, its tool, the names of the steps it depends on."""

    name: str
    tool: str
    parents: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ControlledTask:
    """A task as a DAG, its nodes in a topological order."""

    name: str
    nodes: tuple[Node, ...]

    @property
    def names(self) -> list[str]:
        """The nodes' names in order."""
        return [node.name for node in self.nodes]

    def step(self, name: str, variant: object) -> Step:
        """Return one step, paraphrased by ``variant``, which declares its artifacts.

        One argument names what the step is about, as a reference of the same task does; the other
        is wording.
        """
        node = next(node for node in self.nodes if node.name == name)
        wording = f"{name}~{variant}"
        return Step(
            run_id=_RUN,
            task_id=self.name,
            action=f"do {wording}",
            tool=node.tool,
            args={"target": name, "wording": wording},
            result=f"result of {name} {variant}",
            consumed=tuple(f"art:{parent}" for parent in node.parents),
            produced=(f"art:{name}",),
        )

    def steps(self, names: Sequence[str], variant: object) -> list[Step]:
        """Return several steps, each with a wording of its own."""
        return [self.step(name, f"{variant}-{place}") for place, name in enumerate(names)]

    def reference(self, reference_id: str, names: Sequence[str], variant: object) -> Reference:
        """Return a recorded run of the task: its steps in this order, all worded alike."""
        return Reference(
            reference_id=reference_id,
            task_id=self.name,
            provenance=Provenance.GOLD,
            steps=tuple(ReferenceStep.of(self.step(name, variant)) for name in names),
        )

    def references(self) -> list[Reference]:
        """Return three recorded runs of the task, worded differently."""
        return [
            self.reference(f"{self.name}-{index}", self.names, f"ref{index}")
            for index in range(REFERENCES)
        ]

    def contracts(self) -> list[ToolContract]:
        """Declare each tool of the task as one that writes."""
        return [ToolContract(name=node.tool, effect=Effect.WRITE) for node in self.nodes]


SIX_STEPS: Final = ControlledTask(
    "six",
    (
        Node("search", "search_code"),
        Node("read", "open_log", ("search",)),
        Node("schema", "check_schema", ("search",)),
        Node("edit", "edit_file", ("read", "schema")),
        Node("test", "run_tests", ("edit",)),
        Node("commit", "git_commit", ("test",)),
    ),
)
#: What the gate knows of its tools.
SIX_CONTRACTS: Final = (
    ToolContract(name="search_code", effect=Effect.READ),
    ToolContract(name="open_log", effect=Effect.READ),
    ToolContract(name="check_schema", effect=Effect.READ, produces=("=schema_checked",)),
    ToolContract(name="edit_file", effect=Effect.WRITE),
    ToolContract(name="run_tests", effect=Effect.WRITE, produces=("=tests_passed",)),
    ToolContract(name="git_commit", effect=Effect.DESTRUCTIVE, consumes=("=tests_passed",)),
)


def random_task(seed: int) -> ControlledTask:
    """Return a connected DAG of six to ten steps, one or two parents each, each its own tool."""
    rng = np.random.default_rng(seed)
    nodes: list[Node] = []
    for index in range(int(rng.integers(6, 11))):
        parents: tuple[str, ...] = ()
        if index:
            recent = range(max(0, index - 2), index)
            count = min(int(rng.integers(1, 3)), len(recent))
            chosen = rng.choice(list(recent), size=count, replace=False)
            parents = tuple(f"t{seed}n{parent}" for parent in sorted(chosen))
        nodes.append(Node(f"t{seed}n{index}", f"tool{seed}x{index}", parents))
    return ControlledTask(f"task{seed}", tuple(nodes))


def valid_order(task: ControlledTask, rng: np.random.Generator) -> list[str]:
    """Return the names in a random order in which nothing comes before what it depends on."""
    done: list[str] = []
    left = {node.name: node for node in task.nodes}
    while left:
        ready = [name for name, node in left.items() if set(node.parents) <= set(done)]
        done.append(str(rng.choice(ready)))
        del left[done[-1]]
    return done


def foreign(number: int) -> Step:
    """Return a hallucinated step: intent, tool and arguments of another world."""
    return Step(
        run_id=_RUN,
        action=f"weather {number}",
        tool=f"zz{number}qq",
        args={"city": f"town{number}"},
        result=f"sunny {number}",
        consumed=(),
        produced=(),
    )


def failed(step: Step) -> Step:
    """Return the step as it would have come back from a tool that broke."""
    return step.model_copy(update={"error": ErrorInfo(message="boom"), "result": None})


def again(step: Step, number: int = 0) -> Step:
    """Return the same call once more: not a second delivery of the first."""
    return step.model_copy(update={"call_id": f"again{number}"})


class Controlled:
    """One run through the embedded monitor with synthetic embeddings.

    Attributes
    ----------
    verdicts, interventions
        What was published so far.
    """

    def __init__(
        self,
        settings: Settings,
        task: ControlledTask | None,
        contracts: Sequence[ToolContract] = (),
    ) -> None:
        self._monitor = EmbeddedMonitor(
            settings, task.references() if task else (), contracts, encoder=SyntheticEncoder()
        )
        self._task_id = None if task is None else task.name
        self.verdicts: list[Verdict] = []
        self.interventions: list[Intervention] = []

    def feed(self, steps: Sequence[Step]) -> list[Verdict]:
        """Let steps happen; returns their verdicts."""
        first = len(self.verdicts)
        for step in steps:
            for said in self._monitor.feed(step.model_copy(update={"task_id": self._task_id})):
                if isinstance(said, Verdict):
                    self.verdicts.append(said)
                elif isinstance(said, Intervention):
                    self.interventions.append(said)
        return self.verdicts[first:]

    def ask(self, step: Step) -> Decision:
        """Ask the gate about a call."""
        asked = step.model_copy(update={"task_id": self._task_id})
        return self._monitor.propose(proposal_of(asked))

    def end(self) -> Scorecard:
        """End the run."""
        outputs = self._monitor.feed(RunEnded(run_id=_RUN, outcome="success"))
        return next(each for each in outputs if isinstance(each, Scorecard))
