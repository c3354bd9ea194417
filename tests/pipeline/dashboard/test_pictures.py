"""Pictures of runs: whoever goes away leaves no thread behind that reads what others change."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable
from typing import Any

import pytest

from ontrack.pipeline.dashboard.feeds.feed import Unavailable
from ontrack.pipeline.dashboard.feeds.pictures import Pictures
from ontrack.pipeline.dashboard.run.model import RunFold
from ontrack.pipeline.folding.record import Record
from ontrack.pipeline.making import make_fold
from ontrack.pipeline.settings import load_settings
from ontrack.topics import codecs
from ontrack.topics.events import Step
from ontrack.topics.verdicts import Output

RECORDS = [
    Record(codecs.encode(Step(run_id="r", seq=seq, tool="look", result=seq))) for seq in range(50)
]


class Gate:
    """Holds the thread that folds at its first event, until it is let go on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached, self.opened = threading.Event(), threading.Event()
        self.folded = 0
        self.is_folding = False
        quickly = RunFold.feed
        gate = self

        def held(fold: RunFold, records: Iterable[Record]) -> list[Output]:
            gate.is_folding = True
            gate.reached.set()
            assert gate.opened.wait(20)
            try:
                return quickly(fold, records)
            finally:
                gate.folded += 1
                gate.is_folding = False

        monkeypatch.setattr(RunFold, "feed", held)


async def whole(_place: Any) -> tuple[list[Record], int]:
    return RECORDS, len(RECORDS)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    return Gate(monkeypatch)


@pytest.fixture
def pictures() -> Pictures:
    settings = load_settings(encoder="hashing")
    return Pictures(lambda: make_fold(settings), settings.limits)


async def test_the_library_is_not_changed_while_a_thread_folds_whose_asker_went_away(
    pictures: Pictures, gate: Gate
) -> None:
    asking = asyncio.create_task(pictures.of("r", whole))
    await asyncio.to_thread(gate.reached.wait, 20)
    saw: list[bool] = []

    async def change() -> None:
        async with pictures.turn:
            saw.append(gate.is_folding)

    asking.cancel()
    changing = asyncio.create_task(change())
    await asyncio.sleep(0.05)
    asking.cancel()  # by whoever is impatient: twice changes nothing
    await asyncio.sleep(0.05)
    assert saw == []
    gate.opened.set()
    await changing
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert saw == [False]
    assert gate.folded == 1, "the rest is not folded for nobody"


async def test_a_run_that_was_given_up_is_folded_again_from_its_beginning(
    pictures: Pictures, gate: Gate
) -> None:
    asking = asyncio.create_task(pictures.of("r", whole))
    await asyncio.to_thread(gate.reached.wait, 20)
    asking.cancel()
    gate.opened.set()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert pictures.folding("r") == ""
    assert len((await pictures.of("r", whole)).timeline) == len(RECORDS)


async def test_a_run_without_events_says_so_and_leaves_the_turn_to_others(
    pictures: Pictures,
) -> None:
    async def none(_place: Any) -> tuple[list[Record], int]:
        return [], 0

    with pytest.raises(Unavailable, match="could be folded"):
        await pictures.of("r", none)
    assert not pictures.turn.locked()
