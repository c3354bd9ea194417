"""The frontier in the compiled step; parents, satisfied and active nodes are bits of words."""

from __future__ import annotations

import numpy as np

from ontrack.solver.arrays import Bools, Floats, Ints
from ontrack.solver.compiled_parts import part


@part()
def cover(columns: Floats, nu: Floats, kappa: float, words: Ints, satisfied: Bools) -> None:
    """Satisfied nodes, as flags and as bits in the first row of ``words``."""
    words[:] = 0
    for j in range(nu.size):
        satisfied[j] = nu[j] > 0.0 and columns[j] / nu[j] >= kappa
        words[0, j >> 6] |= np.int64(satisfied[j]) << (j & 63)


@part()
def activate(nu: Floats, links: Ints, words: Ints, active: Bools) -> None:
    """Active nodes, as flags and as bits in the second row of ``words``."""
    for j in range(nu.size):
        missing = np.int64(0)
        for word in range(links.shape[1]):
            missing |= links[j, word] & ~words[0, word]
        active[j] = nu[j] > 0.0 and missing == 0
        words[1, j >> 6] |= np.int64(active[j]) << (j & 63)


@part()
def mask(
    nu: Floats,
    links: Ints,
    words: Ints,
    satisfied: Bools,
    active: Bools,
    ahead: float,
    dormant: float,
    lookahead: Bools,
    marginal: Floats,
) -> None:
    """Nodes one step ahead, and nu-hat."""
    for j in range(nu.size):
        near = np.int64(0)
        for word in range(links.shape[1]):
            near |= links[j, word] & words[1, word]
        lookahead[j] = near != 0 and not active[j]
        share = ahead if lookahead[j] else dormant
        marginal[j] = nu[j] * (1.0 if active[j] or satisfied[j] else share)
