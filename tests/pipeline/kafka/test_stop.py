"""A worker that is told to stop ends in good order, also where its broker does not answer."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from ontrack.pipeline.kafka.sender import send_events, send_knowledge
from ontrack.pipeline.kafka.shell import STOP_S_MAX
from ontrack.pipeline.workplace import contracts, load_stream, references
from tests.broker import LocalBroker
from tests.pipeline.fleet import WorkerProcess, provision, settings_for


@pytest.mark.parametrize("runtime", ["faust", "aiokafka"])
@pytest.mark.parametrize("away", [signal.SIGSTOP, signal.SIGKILL], ids=["silent", "gone"])
def test_a_worker_whose_broker_is_away_ends_in_good_order(
    away: signal.Signals, runtime: str, tmp_path: Path, own_broker: LocalBroker
) -> None:
    settings = settings_for(own_broker.address, "stop.")
    worker = WorkerProcess(settings, tmp_path, runtime=runtime)

    async def frozen_while_events_flow() -> int:
        flowing = asyncio.create_task(
            send_events(settings, load_stream(200, seed=1, fault_rate=0.2), 100.0)
        )
        await asyncio.sleep(3.0)
        pid = own_broker.pid()
        os.kill(pid, away)  # silent: connections stay, and nothing is answered
        await asyncio.sleep(2.0)  # fetches fail, and are tried again
        try:
            assert worker.process is not None
            worker.process.send_signal(signal.SIGTERM)
            return await asyncio.to_thread(worker.process.wait, 2 * STOP_S_MAX)
        finally:
            if away is signal.SIGSTOP:
                os.kill(pid, signal.SIGCONT)
            else:
                await asyncio.to_thread(own_broker.start)  # else the sender would wait for ever
            flowing.cancel()
            await asyncio.gather(flowing, return_exceptions=True)

    try:
        asyncio.run(provision(settings))
        asyncio.run(send_knowledge(settings, references(), contracts()))
        worker.start()
        worker.wait_ready()
        code = asyncio.run(frozen_while_events_flow())
        assert "stopped_by_force" not in worker.tail()
        assert code == 0
    finally:
        worker.kill()
