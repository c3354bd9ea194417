"""Text of agents and files on a terminal: nothing in it may steer the terminal."""

from __future__ import annotations

import os
import sys


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


def drop_output() -> None:
    """Let what is printed from now on go nowhere: the reader of standard output went away."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
