"""What the three feeds share: their state, and the little they remember of what they heard."""

from __future__ import annotations

import time
from collections import OrderedDict
from dataclasses import replace
from typing import Any, Final

import structlog

from ontrack.pipeline.dashboard.feeds.feed import FeedState, FeedStatus, Letter, OnOutput
from ontrack.pipeline.dashboard.run.model import RunPicture
from ontrack.pipeline.folding.quarantine import fault
from ontrack.topics.verdicts import DeadLetter, Decision, Output, Verdict, as_plain

_log = structlog.get_logger(__name__)

RUNS_MAX: Final = 5000
DECISIONS_MAX: Final = 50  # of one run
LETTERS_MAX: Final = 200
LETTER_CHARACTERS_MAX: Final = 16_384  # of a letter's original in base64: a multiple of four


def now_ms() -> int:
    """Return the time of this machine in milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def cut(letter: DeadLetter) -> DeadLetter:
    """Keep of a dead letter's original what a page shows; its size stays in ``value_bytes``."""
    if letter.value_base64 is None or len(letter.value_base64) <= LETTER_CHARACTERS_MAX:
        return letter
    return letter.model_copy(update={"value_base64": letter.value_base64[:LETTER_CHARACTERS_MAX]})


class Heard:
    """What the fleet model does not keep and a run's page needs: decisions and settings."""

    def __init__(self) -> None:
        self._decisions: OrderedDict[str, dict[str, dict[str, Any]]] = OrderedDict()
        self._stamps: OrderedDict[str, tuple[str, str]] = OrderedDict()
        self._letters: OrderedDict[str, Letter] = OrderedDict()

    def said(self, output: Output, time_ms: int) -> None:
        """Note an output and when it was said; of a dead letter said twice, the first time."""
        if isinstance(output, DeadLetter):
            self._letters.setdefault(output.id, Letter(cut(output), time_ms))
            _trim(self._letters, LETTERS_MAX)
        elif isinstance(output, Decision):
            kept = self._decisions.setdefault(output.run_id, {})
            kept[output.id] = as_plain(output)
            if len(kept) > DECISIONS_MAX:
                del kept[next(iter(kept))]
            self._decisions.move_to_end(output.run_id)
            _trim(self._decisions, RUNS_MAX)
        elif isinstance(output, Verdict):
            self._stamps[output.run_id] = output.settings, output.engine
            self._stamps.move_to_end(output.run_id)
            _trim(self._stamps, RUNS_MAX)

    def letters(self, limit: int) -> list[Letter]:
        """Return the latest dead letters, latest first."""
        return list(reversed(self._letters.values()))[: max(0, limit)]

    def complete(self, picture: RunPicture) -> RunPicture:
        """Add the gate's decisions, and say where the run was judged under other settings."""
        notes = picture.notes
        stamp = self._stamps.get(picture.run_id)
        if stamp is not None and stamp[0] != picture.settings["settings"]:
            notes += (
                "the monitor judged this run under other settings than this dashboard has: what "
                "is shown is what it would say under these; start the dashboard with the "
                "monitor's settings",
            )
        elif stamp is not None and stamp[1] != picture.settings["engine"]:
            notes += (
                f"the run was judged by version {stamp[1]}, and is shown as "
                f"{picture.settings['engine']} judges it",
            )
        decisions = tuple(self._decisions.get(picture.run_id, {}).values())
        return replace(picture, notes=notes, decisions=decisions)


class Told:
    """State of a feed, and whom it tells.

    One who is told and fails must not end the feed: it is logged, and the next output is told.
    """

    def __init__(self) -> None:
        self.heard = Heard()
        self._state = FeedState("connecting", "connecting", now_ms())
        self._on_output: OnOutput | None = None

    @property
    def state(self) -> FeedState:
        """How it stands."""
        return self._state

    def listen(self, on_output: OnOutput) -> None:
        """Tell somebody from now on."""
        self._on_output = on_output

    def become(self, status: FeedStatus, text: str) -> None:
        """Change the state; the same one again changes nothing."""
        if (status, text) != (self._state.status, self._state.text):
            since = self._state.since_ms if status == self._state.status else now_ms()
            self._state = FeedState(status, text, since)

    def said(self, output: Output, time_ms: int) -> None:
        """Pass an output on."""
        self.heard.said(output, time_ms)
        if self._on_output is None:
            return
        try:
            self._on_output(output, time_ms)
        except Exception as error:  # noqa: BLE001
            _log.error("output_not_shown", id=output.id, **fault(error))


def _trim(kept: OrderedDict[str, Any], most: int) -> None:
    while len(kept) > most:
        kept.popitem(last=False)
