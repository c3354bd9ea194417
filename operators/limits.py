"""Checks of operator settings: a wrong limit fails when it is set, not when a run meets it."""

from __future__ import annotations


def require(owner: object, low: float, high: float, *names: str) -> None:
    """Check that settings lie in [low, high].

    Raises
    ------
    ValueError
        Naming the setting, its value and the range.
    """
    for name in names:
        value = getattr(owner, name)
        if not low <= value <= high:
            raise ValueError(
                f"{type(owner).__name__}.{name} is {value}; it must lie between {low} and {high}"
            )
