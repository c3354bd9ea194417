"""Reference coverage: how much of a known-good path a run has walked, in order.

One pointer a reference: it moves on when the run calls the tool it points at, so that extra calls
are invisible, however many, and a reference is no transcript. Names only; arguments belong to the
alignment.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ontrack.topics.knowledge import Reference

Pointers = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ReferencePath:
    """One valid order of calls.

    Parameters
    ----------
    reference_id
        What reports call it.
    tools
        Names, in order; at least one.
    run_ids
        The recorded runs it was taken from, as far as known. A run is never compared with a path
        that only the run itself has shown.
    """

    reference_id: str
    tools: tuple[str, ...]
    run_ids: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.tools:
            raise ValueError(f"reference path {self.reference_id!r} has no steps; name a tool")

    @classmethod
    def of(cls, reference: Reference) -> ReferencePath:
        """Keep the names of a reference's calls."""
        return cls(
            reference.reference_id,
            tuple(step.tool for step in reference.steps),
            () if reference.run_id is None else (reference.run_id,),
        )


@dataclass(frozen=True, slots=True)
class Coverage:
    """How far the best reference was covered.

    Parameters
    ----------
    share
        Matched calls / length of the reference, in [0, 1].
    reference_id
        The best reference: the first of those with the highest share.
    missing
        Its calls that were not reached, in order.
    """

    share: float
    reference_id: str
    missing: tuple[str, ...]


def start(paths: Sequence[ReferencePath]) -> Pointers:
    """Point at the first call of each reference."""
    return (0,) * len(paths)


def step(paths: Sequence[ReferencePath], pointers: Pointers, tool: str) -> Pointers:
    """Move on where the call is the one pointed at.

    Source: seed article, ``score_trajectory``; greedy is exact for the longest prefix that is a
    subsequence of the run.
    """
    return tuple(
        place + (place < len(path.tools) and path.tools[place] == tool)
        for path, place in zip(paths, pointers, strict=True)
    )


def best(paths: Sequence[ReferencePath], pointers: Pointers) -> Coverage | None:
    """Return the coverage of the reference that was followed best; None without references."""
    if not paths:
        return None
    shares = [place / len(path.tools) for path, place in zip(paths, pointers, strict=True)]
    at = max(range(len(paths)), key=shares.__getitem__)
    return Coverage(shares[at], paths[at].reference_id, paths[at].tools[pointers[at] :])
