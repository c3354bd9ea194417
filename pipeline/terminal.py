"""Text of agents and files on a terminal: nothing in it may steer the terminal."""

from __future__ import annotations


def printable(text: str, keep: str = "") -> str:
    """Replace control, format and surrogate characters by a middle dot.

    Escape sequences, line ends, C1 controls and bidirectional overrides are among them.

    Parameters
    ----------
    text
        Anything.
    keep
        Characters that may stay although they are not printable, such as a newline.
    """
    return "".join(char if char.isprintable() or char in keep else "·" for char in text)
