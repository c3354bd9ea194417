"""Events of which the monitor could make nothing: to it their numbers were never used."""

from __future__ import annotations

from typing import Final

from ontrack.topics.errors import MalformedMessage, MessageTooLarge, TooDeep, WrongShape
from ontrack.topics.verdicts import DeadLetter, Output

_ERRORS: Final = frozenset(
    error.__name__ for error in (MalformedMessage, WrongShape, MessageTooLarge, TooDeep)
)


def is_unreadable(output: Output) -> bool:
    """Tell whether this is the dead letter of an event that could not be read.

    Only of the very event that was handed over: steps that waited for it had been read before.
    """
    return isinstance(output, DeadLetter) and output.error.name in _ERRORS
