"""What we make of Faust's driver: a short wait for news; and the lag that its fetches tell."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ontrack.pipeline.kafka.app import _ends, make_app
from ontrack.pipeline.kafka.owner import Watermark
from ontrack.pipeline.kafka.transport import FETCH_WAIT_MS, Transport
from ontrack.pipeline.kafka.worker import Worker
from ontrack.pipeline.settings import Settings
from tests.pipeline.test_metrics import samples


def settings_in(folder: Path) -> Settings:
    return Settings(encoder="hashing", data_dir=str(folder / "data"))


async def test_the_consumer_that_faust_makes_waits_no_longer_than_ours(tmp_path: Path) -> None:
    app: Any = make_app(settings_in(tmp_path))
    assert isinstance(app.transport, Transport)
    made = app.consumer._new_consumer_thread()._create_worker_consumer(app.transport)
    # The name is aiokafka's own; if it moves, the setting has no effect any more.
    assert made._fetch_max_wait_ms == FETCH_WAIT_MS


@dataclass(frozen=True)
class Place:
    topic: str
    partition: int


class FakeConsumer:
    def __init__(self, ends: dict[Place, int | None], lost: bool = False) -> None:
        self.ends = ends
        self.lost = lost

    def assignment(self) -> set[Place]:
        return set(self.ends)

    def highwater(self, place: Place) -> int | None:
        assert not self.lost, "Partition is not assigned"
        return self.ends[place]


@dataclass
class FakeApp:
    consumer: FakeConsumer


def test_ends_are_those_of_the_events_that_a_fetch_has_told() -> None:
    ends: dict[Place, int | None] = {
        Place("events", 0): 7,
        Place("events", 1): None,  # nothing has been fetched yet
        Place("proposals", 0): 9,
    }
    assert _ends(FakeApp(FakeConsumer(ends)), "events") == {0: 7}


def test_a_partition_that_is_lost_meanwhile_tells_no_end() -> None:
    assert _ends(FakeApp(FakeConsumer({Place("events", 0): 7}, lost=True)), "events") == {}


@dataclass
class FakeOwner:
    watermark: Watermark


async def test_the_lag_is_counted_from_the_watermark_of_each_partition_we_have(
    tmp_path: Path,
) -> None:
    async def failed(_error: BaseException) -> None:
        raise AssertionError("nothing fails here")

    worker = Worker(settings_in(tmp_path), failed)
    worker.owners[1] = FakeOwner(Watermark("events", next_offset=40))  # type: ignore[assignment]
    worker.note_ends({1: 50, 2: 99})
    found = samples(worker.metrics)
    assert found["ontrack_watermark_lag", ("1",)] == 10
    assert ("ontrack_watermark_lag", ("2",)) not in found
