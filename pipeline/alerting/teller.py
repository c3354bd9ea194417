"""The teller: folds messages through the machine and hands what comes out to the dispatcher."""

from __future__ import annotations

import time
from collections import deque

from ontrack.pipeline.alerting import machine
from ontrack.pipeline.alerting.alert import alert_of
from ontrack.pipeline.alerting.bundle import Bundle, Place
from ontrack.pipeline.alerting.dispatch import Dispatcher
from ontrack.pipeline.alerting.machine import Delivery, Outcome, State
from ontrack.pipeline.alerting.settings import AlertSettings
from ontrack.pipeline.alerting.sinks import Clock
from ontrack.pipeline.folding.record import Record
from ontrack.topics.verdicts import Output


class Teller:
    """Holds the machine's state, and knows what has been told.

    Parameters
    ----------
    settings
        Routes.
    dispatcher
        Takes what is to be delivered.
    """

    def __init__(
        self, settings: AlertSettings, dispatcher: Dispatcher, clock: Clock = time.time
    ) -> None:
        self._settings = settings
        self._dispatcher = dispatcher
        self._clock = clock
        self._state = State()
        self._floors: dict[Place, int] = {}
        self._in_hand: deque[Delivery] = deque()  # out of the state, not yet with the dispatcher

    def start_over(self, floors: dict[Place, int]) -> None:
        """Forget everything; below these offsets all has been told before.

        What is folded below them rebuilds the state: its deliveries are not made again.
        """
        self._state = State()
        self._floors = dict(floors)
        self._in_hand.clear()

    async def take(self, output: Output, record: Record, again: bool = False) -> None:
        """Take one output: tell people of it, or not, or later.

        The time of a message is the machine's time, so that a backlog is told of as it would have
        been at the time. A clock ahead of ours counts as ours.

        Raises
        ------
        MessageTooLarge
            The message is longer than any of ours.
        """
        time_s = self._time_of(record)
        alert = alert_of(output, record, time_s, again)
        if alert is None:  # nothing to tell of
            await self.pass_over(record)
            return
        outcome = machine.take(self._settings, self._state, alert, time_s)
        if record.offset >= self._floors.get(alert.place, 0):
            for route, waits in outcome.waiting:
                self._dispatcher.count_waiting(route, waits)
        await self._tell(outcome)

    async def pass_over(self, record: Record) -> None:
        """Tell what is due by the time of a message that is no alert, or none that can be read.

        Where such messages never pause, nothing else tells the time.
        """
        await self._tell(machine.due(self._settings, self._state, self._time_of(record)))

    async def tick(self) -> None:
        """Tell what is due by now: for when all is read, and the clock counts."""
        await self._tell(machine.due(self._settings, self._state, self._clock()))

    async def finish(self) -> None:
        """Tell all that waits."""
        await self._tell(machine.finish(self._settings, self._state))

    def untold_from(self, place: Place, position: int) -> int:
        """Return the lowest offset of a partition that is not told yet; else the position."""
        in_hand = [delivery.bundle for delivery in self._in_hand]
        bundles = [*machine.waiting(self._state), *in_hand, *self._dispatcher.outstanding]
        spans = [bundle.spans.get(place) for bundle in bundles]
        lowest = min((span.lowest for span in spans if span is not None), default=position)
        return max(min(lowest, position), self._floors.get(place, 0))

    def rebuilt_from(self, place: Place, untold: int, position: int) -> int:
        """Return the offset from which to read for the state as it is: windows begin there.

        While the state is being rebuilt, what opened a window may still be ahead: then from where
        the reading is.
        """
        found = (offset for where, offset in machine.openers(self._state) if where == place)
        return min((untold, position, *found))

    def _time_of(self, record: Record) -> float:
        now_s, stamp_ms = self._clock(), record.timestamp_ms
        return now_s if stamp_ms is None or stamp_ms < 0 else min(stamp_ms / 1000, now_s)

    async def _tell(self, outcome: Outcome) -> None:
        self._state = outcome.state
        # All are in hand before the first wait: where it is cut short, none of them counts as told.
        self._in_hand.extend(d for d in outcome.deliveries if not self._was_told(d.bundle))
        while self._in_hand:
            await self._dispatcher.put(self._in_hand[0])
            self._in_hand.popleft()

    def _was_told(self, bundle: Bundle) -> bool:
        return all(
            span.highest < self._floors.get(place, 0) for place, span in bundle.spans.items()
        )
