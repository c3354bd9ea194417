"""The end of a connection does not keep the rest from ending."""

from __future__ import annotations

import asyncio

import pytest
from aiokafka.errors import KafkaConnectionError

from ontrack.pipeline.kafka import closing
from ontrack.pipeline.kafka.closing import closed


async def raising(error: BaseException) -> None:
    raise error


async def test_what_does_not_end_is_left_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(closing, "CLOSE_S_MAX", 0.01)
    await asyncio.wait_for(closed("part", asyncio.Event().wait()), 5)


@pytest.mark.parametrize("error", [KafkaConnectionError("away"), asyncio.CancelledError()])
async def test_what_ends_badly_has_ended(error: BaseException) -> None:
    await closed("part", raising(error))


async def test_whoever_is_cancelled_meanwhile_is_cancelled() -> None:
    task = asyncio.create_task(closed("part", asyncio.Event().wait()))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_fault_of_ours_is_not_hidden() -> None:
    with pytest.raises(ZeroDivisionError):
        await closed("part", raising(ZeroDivisionError()))
