"""What a worker does besides folding."""

from __future__ import annotations

import gc
from typing import Any

import pytest

from ontrack.pipeline.kafka.worker import Worker
from ontrack.pipeline.settings import Settings


class FakeOwner:
    def __init__(self, ready: bool) -> None:
        self.ready = ready
        self.resumed = False

    async def resume(self) -> None:
        self.resumed = True


async def no_failure(error: BaseException) -> None:
    raise AssertionError(error)


@pytest.mark.parametrize("ready", [False, True])
async def test_once_all_is_recovered_collections_leave_it_alone(ready: bool) -> None:
    worker = Worker(Settings(encoder="hashing"), no_failure)
    owners: dict[int, Any] = {0: FakeOwner(True), 1: FakeOwner(ready)}
    worker.owners.update(owners)
    gc.unfreeze()
    try:
        await worker._resume(owners[0])
        assert owners[0].resumed
        assert (gc.get_freeze_count() > 1000) is ready
    finally:
        gc.unfreeze()
