"""The one error tree of the project.

::

    OnTrackError
    ├── InvalidInput            something that was sent or read is wrong
    │   ├── InvalidEvent        one message or record; it becomes a dead letter
    │   │   ├── MalformedMessage     the bytes are no JSON
    │   │   ├── WrongShape           JSON, but a field is missing or of the wrong type
    │   │   ├── UnknownEventType     ``type`` names nothing we know
    │   │   ├── MessageTooLarge      over the limit of bytes
    │   │   ├── TooDeep              nested deeper than the limit
    │   │   ├── KeyMismatch          the message key is not the run id
    │   │   ├── EventAfterEnd        a step of a run that has ended
    │   │   ├── ConflictingDuplicate a sequence number seen before, with other content
    │   │   ├── RunTooLong           over the limit of steps a run
    │   │   └── BeginningLost        an unnumbered step of a run whose beginning is gone
    │   ├── InvalidFile         a file, or one line of it
    │   ├── InvalidAllowance    what a task allows contradicts itself or cannot be read
    │   └── InvalidSnapshot     stored state that does not fit; the log is folded instead
    ├── InvalidSettings         settings that contradict each other or are out of range
    ├── UnknownName             a profile, encoder or format nobody has registered
    ├── AlertUndelivered        a sink did not take an alert; it becomes a dead letter
    └── BrokerUnavailable       Kafka does not answer, or lacks a topic we need

Every message says what was wrong, where, what was expected and what to do.
"""

from __future__ import annotations


class OnTrackError(Exception):
    """Base of every error that OnTrack raises on purpose."""


class InvalidInput(OnTrackError):
    """Something that was sent to us or read from a file is wrong."""


class InvalidEvent(InvalidInput):
    """One message is unusable; whoever receives it quarantines it as a dead letter."""


class MalformedMessage(InvalidEvent):
    """The bytes are not JSON."""


class WrongShape(InvalidEvent):
    """The JSON lacks a field or holds one of the wrong type."""


class UnknownEventType(InvalidEvent):
    """The field ``type`` names no event of ours."""


class MessageTooLarge(InvalidEvent):
    """The message has more bytes than the limit allows."""


class TooDeep(InvalidEvent):
    """Arguments or result are nested deeper than the limit allows."""


class KeyMismatch(InvalidEvent):
    """The message key is not the run id, so the run would be split over partitions."""


class EventAfterEnd(InvalidEvent):
    """An event for a run that has already ended."""


class ConflictingDuplicate(InvalidEvent):
    """A sequence number that was seen before, now with different content."""


class RunTooLong(InvalidEvent):
    """A step beyond the limit of steps a run."""


class BeginningLost(InvalidEvent):
    """A step without number, of a run whose first events have left the log."""


class InvalidFile(InvalidInput):
    """A file that cannot be read, or one line of it.

    Parameters
    ----------
    path : str
        The file, as the user named it.
    line : int or None
        1-based line (or record) number, where one is to blame.
    problem : str
        What was wrong and what was expected.
    """

    def __init__(self, path: str, line: int | None, problem: str) -> None:
        self.path, self.line, self.problem = path, line, problem
        where = path if line is None else f"{path}:{line}"
        super().__init__(f"{where}: {problem}")


class InvalidAllowance(InvalidInput):
    """What a task allows contradicts itself, or one of its conditions cannot be read.

    Parameters
    ----------
    problem : str
        The whole message: task, tool, what is wrong, where, what to do.
    task_id, tool : str
        Whose allowance, and for which tool.
    expression : str or None
        The condition, where one is to blame.
    line, column : int or None
        1-based place in the condition, where it is known.
    """

    def __init__(
        self,
        problem: str,
        *,
        task_id: str,
        tool: str,
        expression: str | None = None,
        line: int | None = None,
        column: int | None = None,
    ) -> None:
        self.task_id, self.tool, self.expression = task_id, tool, expression
        self.line, self.column = line, column
        super().__init__(problem)


class InvalidSnapshot(InvalidInput):
    """Stored state that is damaged or was written under another schema or settings."""


class InvalidSettings(OnTrackError):
    """Settings that contradict each other or lie outside their range."""


class UnknownName(OnTrackError):
    """A profile, encoder, format or topic that nobody has registered."""


class AlertUndelivered(OnTrackError):
    """A sink did not take an alert, however often it was tried; it becomes a dead letter."""


class BrokerUnavailable(OnTrackError):
    """Kafka does not answer, or lacks a topic that is needed."""
