"""Feed: where the dashboard's news come from, wherever the monitor runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

from ontrack.pipeline.dashboard.run.model import RunPicture
from ontrack.topics.knowledge import Reference, Task, ToolContract
from ontrack.topics.verdicts import DeadLetter, Output

FeedStatus = Literal["connecting", "live", "down"]

#: Told of each output and of when it was said, in milliseconds since 1970.
OnOutput = Callable[[Output, int], None]


class Unavailable(Exception):
    """What was asked for cannot be given; the text says why and what to do, fit for a page."""


@dataclass(frozen=True, slots=True)
class FeedState:
    """Whether news come in, and a sentence on it.

    ``since_ms`` is when it became so, in milliseconds since 1970.
    """

    status: FeedStatus
    text: str
    since_ms: int


@dataclass(frozen=True, slots=True)
class Letter:
    """A dead letter, and when it was written, in milliseconds since 1970: it does not say."""

    said: DeadLetter
    time_ms: int


@dataclass(frozen=True, slots=True)
class Known:
    """What runs are compared with, as of now; each sorted by its id or name."""

    references: tuple[Reference, ...] = ()
    contracts: tuple[ToolContract, ...] = ()
    tasks: tuple[Task, ...] = ()

    def ordered(self) -> Known:
        """Return the same, sorted."""
        return Known(
            tuple(sorted(self.references, key=lambda item: item.reference_id)),
            tuple(sorted(self.contracts, key=lambda item: item.name)),
            tuple(sorted(self.tasks, key=lambda item: item.id)),
        )


class Feed(Protocol):
    """News of a monitor, and questions about it.

    A feed whose source goes away is ``down``, tries again for as long as it takes, and goes on
    where it stopped: outputs may come twice, with the same id and bytes. All methods belong to the
    event loop that called :meth:`start`.
    """

    @property
    def name(self) -> str:
        """Where the news come from, for the page's head: an address, or "this process"."""

    @property
    def state(self) -> FeedState:
        """How it stands."""

    async def start(self, on_output: OnOutput) -> None:
        """Begin, in the background: a source that is away is ``down``, not an exception."""

    async def stop(self) -> None:
        """End what :meth:`start` began."""

    async def picture(self, run_id: str) -> RunPicture:
        """Fold the run again, as far as it has come, and look at it.

        Asked again, it folds only what is new since.

        Raises
        ------
        Unavailable
            The run's events are not known (any more), or their source is away.
        """

    def reading(self, run_id: str) -> str:
        """Return how far :meth:`picture` has come with a run, for those who wait; "" unknown."""

    async def run_events(self, run_id: str) -> list[bytes]:
        """Return the run's events as their source holds them, one JSON object each.

        Raises
        ------
        Unavailable
            As for :meth:`picture`.
        """

    async def known(self) -> Known:
        """Return references, contracts and tasks as of now.

        Raises
        ------
        Unavailable
            The source is away.
        """

    async def dead_letters(self, limit: int) -> list[Letter]:
        """Return the latest dead letters, the latest first.

        Raises
        ------
        Unavailable
            The source is away.
        """
