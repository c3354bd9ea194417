"""Rivals of the score: each a function of a prefix and its references, higher is better aligned.

They see what the monitor sees: the steps so far and the same references. One that needs
references, rules or stated calls and has none gives None.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt

from ontrack.operators.canonical import arguments_text, call_key, name_tokens, tool_distance
from ontrack.pipeline.encoding.encoders import CachedEncoder
from ontrack.solver import converged
from ontrack.solver.cost import CostWeights, combine, cosine_distance
from ontrack.solver.problem import SolverParams, pack_references
from ontrack.solver.structure import NODES_MAX, UNCONNECTED
from ontrack.topics.events import Step

Floats = npt.NDArray[np.float64]
Vectors = npt.NDArray[np.float32]

#: Words in the names of tools that look for something.
SEARCH_WORDS: Final = frozenset(
    {"find", "glob", "grep", "list", "locate", "lookup", "ls", "query", "rg", "search"}
)
_SHELL_WORDS: Final = frozenset({"bash", "command", "execute", "shell", "terminal"})
_START: Final = ""


@dataclass(frozen=True, slots=True)
class Trace:
    """Steps with their vectors.

    Parameters
    ----------
    steps
        n steps.
    actions, arguments
        Unit vectors of the texts, shape (n, d); zero where there is none.
    calls
        Unit vectors of action, tool and arguments as one text, shape (n, d).
    """

    steps: tuple[Step, ...]
    actions: Vectors
    arguments: Vectors
    calls: Vectors

    @classmethod
    def of(cls, steps: Sequence[Step], encoder: CachedEncoder) -> Trace:
        """Encode steps."""
        actions = [step.action or "" for step in steps]
        arguments = [arguments_text(step.args) for step in steps]
        calls = [
            f"{action}\n{step.tool} {args}".strip()
            for step, action, args in zip(steps, actions, arguments, strict=True)
        ]
        return cls(
            tuple(steps), encoder.encode(actions), encoder.encode(arguments), encoder.encode(calls)
        )

    def first(self, k: int) -> Trace:
        """Return the first k steps."""
        return Trace(self.steps[:k], self.actions[:k], self.arguments[:k], self.calls[:k])

    @property
    def tools(self) -> list[str]:
        """Names of the tools called."""
        return [step.tool for step in self.steps]


@dataclass(frozen=True, slots=True)
class Case:
    """A prefix of at least one step, what it is compared with, and the solver's settings."""

    prefix: Trace
    references: tuple[Trace, ...]
    solver: SolverParams


def cosine(case: Case) -> float | None:
    """Cosine of the mean call of the prefix with that of the nearest reference."""
    mean = case.prefix.calls.mean(axis=0, dtype=np.float64)
    return max(
        (_cosine(mean, each.calls.mean(axis=0, dtype=np.float64)) for each in case.references),
        default=None,
    )


def edit_distance(case: Case) -> float | None:
    """Edit distance to the nearest beginning of a reference, a step.

    A substitution costs nothing for the same call, 0.5 for the same tool with other arguments and
    1 otherwise; the reference's remaining steps are free.
    """
    if not case.references:
        return None
    own = [(step.tool, call_key(step.tool, step.args)) for step in case.prefix.steps]
    distances = []
    for reference in case.references:
        other = [(step.tool, call_key(step.tool, step.args)) for step in reference.steps]
        row = [float(j) for j in range(len(other) + 1)]
        for i, call in enumerate(own, start=1):
            above, row = row, [float(i)]
            for j, reference_call in enumerate(other, start=1):
                change = above[j - 1] + _substitution(call, reference_call)
                row.append(min(change, above[j] + 1.0, row[j - 1] + 1.0))
        distances.append(min(row))
    return -min(distances) / len(own)


def n_steps(case: Case) -> float | None:
    """Count the steps so far: fewer is better."""
    return -float(len(case.prefix.steps))


def grep_frac(case: Case) -> float | None:
    """Share of calls that search for something: less is better."""
    return -sum(map(is_search, case.prefix.steps)) / len(case.prefix.steps)


def markov_surprise(case: Case) -> float | None:
    """Share of pairs of successive tools that had not been seen before in the run.

    The paper's definition; a run that turns in circles has few. None below two steps.
    """
    pairs = list(pairwise(case.prefix.tools))
    return len(set(pairs)) / len(pairs) if pairs else None


def linear_uot(case: Case) -> float | None:
    """Unbalanced transport without the structure term (theta 0) or mask, solved to the end.

    The cost is the paper's (equation 1), lambda and epsilon are the profile's.
    """
    references = [each for each in case.references if len(each.steps) <= NODES_MAX]
    if not references:
        return None
    sizes = [len(each.steps) for each in references]
    alone = [np.where(np.eye(size, dtype=bool), 0, UNCONNECTED).astype(np.int16) for size in sizes]
    arrays = pack_references(alone, [np.zeros((size, size), dtype=np.bool_) for size in sizes])
    steps = len(case.prefix.steps)
    cost = np.ones((len(references), steps, arrays.width))
    for k, reference in enumerate(references):
        cost[k, :, : sizes[k]] = node_costs(case.prefix, reference)
    solved = converged.solve(
        replace(case.solver, theta=0.0),
        arrays,
        cost,
        1.0 - np.eye(steps),
        np.ones(steps),
        np.full(steps, 1.0 / arrays.mean_size),
        arrays.nu,
    )
    return -float(solved.losses.min())


def graph_edit(case: Case) -> float | None:
    """Proxy of the graph edit distance to the nearest reference's beginning of the same length.

    Half the multiset distance of the tools, half that of the edges between tools: declared
    parents, or the step before where none are declared.
    """
    if not case.references:
        return None
    k = len(case.prefix.steps)
    own = _labels(case.prefix.steps), _edges(case.prefix.steps)
    distances = []
    for reference in case.references:
        begun = reference.steps[:k]
        other = _labels(begun), _edges(begun)
        distances.append(
            0.5 * multiset_distance(own[0], other[0]) + 0.5 * multiset_distance(own[1], other[1])
        )
    return -min(distances)


def trigram(case: Case) -> float | None:
    """Mean log probability of the tools under a Laplace-smoothed trigram model of the references.

    The vocabulary is that of the references and one word for every other tool.
    """
    if not case.references:
        return None
    counts: Counter[tuple[str, str, str]] = Counter()
    contexts: Counter[tuple[str, str]] = Counter()
    for reference in case.references:
        for first, second, third in _trigrams(reference.tools):
            counts[first, second, third] += 1
            contexts[first, second] += 1
    words = len({tool for reference in case.references for tool in reference.tools}) + 1
    total = sum(
        math.log((counts[three] + 1) / (contexts[three[:2]] + words))
        for three in _trigrams(case.prefix.tools)
    )
    return total / len(case.prefix.steps)


def prerequisite_rules(case: Case) -> float | None:
    """Share of steps that come before a tool which in every reference precedes theirs.

    None where the references show no such order: then there is no rule to break.
    """
    rules = prerequisites([reference.tools for reference in case.references])
    if not any(rules.values()):
        return None
    called: set[str] = set()
    broken = 0
    for tool in case.prefix.tools:
        broken += not rules.get(tool, frozenset()) <= called
        called.add(tool)
    return -broken / len(case.prefix.steps)


BASELINES: Final[dict[str, Callable[[Case], float | None]]] = {
    "cosine": cosine,
    "edit_distance": edit_distance,
    "n_steps": n_steps,
    "grep_frac": grep_frac,
    "markov_surprise": markov_surprise,
    "linear_uot": linear_uot,
    "graph_edit": graph_edit,
    "trigram": trigram,
    "prerequisite_rules": prerequisite_rules,
}


def node_costs(prefix: Trace, reference: Trace) -> Floats:
    """Return the paper's costs of each step against each node, shape (t, m)."""
    rows = []
    for step, action, arguments in zip(prefix.steps, prefix.actions, prefix.arguments, strict=True):
        tools = np.array([tool_distance(step.tool, other) for other in reference.tools])
        text = cosine_distance(reference.actions, action) if step.action else None
        rows.append(
            combine(text, cosine_distance(reference.arguments, arguments), tools, CostWeights())
        )
    return np.array(rows)


def prerequisites(sequences: Sequence[Sequence[str]]) -> dict[str, frozenset[str]]:
    """Return, for each tool, those that come before its first call in every sequence with it."""
    rules: dict[str, frozenset[str]] = {}
    for tools in sequences:
        before: list[str] = []
        for tool in tools:
            if tool not in before:
                earlier = frozenset(before)
                rules[tool] = rules.get(tool, earlier) & earlier
                before.append(tool)
    return rules


def multiset_distance(left: Counter[object], right: Counter[object]) -> float:
    """Return the share of items of either side that the other lacks, 0 to 1."""
    either = (left | right).total()
    return 1.0 - (left & right).total() / either if either else 0.0


def is_search(step: Step) -> bool:
    """Tell whether a call searches, by the words of its name or, in a shell, its first word."""
    words = name_tokens(step.tool)
    if words & SEARCH_WORDS:
        return True
    if not words & _SHELL_WORDS:
        return False
    commands = (value.split() for value in step.args.values() if isinstance(value, str))
    return any(command[0] in SEARCH_WORDS for command in commands if command)


def _cosine(left: Floats, right: Floats) -> float:
    lengths = float(np.linalg.norm(left) * np.linalg.norm(right))
    return float(left @ right) / lengths if lengths else 0.0


def _substitution(call: tuple[str, bytes], other: tuple[str, bytes]) -> float:
    if call[1] == other[1]:
        return 0.0
    return 0.5 if call[0] == other[0] else 1.0


def _labels(steps: Sequence[Step]) -> Counter[object]:
    return Counter(step.tool for step in steps)


def _edges(steps: Sequence[Step]) -> Counter[object]:
    edges: Counter[object] = Counter()
    for place, step in enumerate(steps):
        parents = step.parents
        if parents is None:
            parents = (place - 1,) if place else ()
        edges.update((steps[each].tool, step.tool) for each in parents if each < len(steps))
    return edges


def _trigrams(tools: Sequence[str]) -> list[tuple[str, str, str]]:
    padded = [_START, _START, *tools]
    return list(zip(padded, padded[1:], padded[2:], strict=False))
