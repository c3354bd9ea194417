"""Rates: a share of independent trials, and how well so many trials tell it."""

from __future__ import annotations

import math
from typing import Final

Z95: Final = 1.959963984540054
"""Quantile of the normal distribution for a 95 % interval."""


def wilson(hits: int, count: int, z: float = Z95) -> tuple[float, float]:
    """Return Wilson's score interval of a share, ``count`` > 0.

    Unlike the normal interval it stays in [0, 1] and has width at 0 and ``count``. By hand, since
    importing ``scipy.stats`` for it takes a second. Source: Wilson (1927).

    Examples
    --------
    >>> [round(end, 3) for end in wilson(3, 5)]
    [0.231, 0.882]
    """
    share, spread = hits / count, z * z / count
    middle = (share + spread / 2) / (1 + spread)
    half = z * math.sqrt(share * (1 - share) / count + spread / (4 * count)) / (1 + spread)
    # At 0 and at all the bound is the share itself, which rounding must not cross.
    return min(share, max(0.0, middle - half)), max(share, min(1.0, middle + half))
