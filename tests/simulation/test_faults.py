"""The short form of the fault campaign; ``make faults`` runs the long one."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.broker import LocalBroker
from tests.simulation.campaign import run_scenario
from tests.simulation.stage import SHORT


@pytest.mark.kafka
@pytest.mark.parametrize("runtime", ["faust", "aiokafka"])
@pytest.mark.parametrize(
    "name",
    [
        "kill -9 of workers",
        "workers stopped",
        "one of three workers lost, one added",
        "broker killed",
    ],
)
def test_whatever_happens_the_verdicts_are_those_of_an_undisturbed_run(
    name: str, runtime: str, tmp_path: Path, own_broker: LocalBroker
) -> None:
    own_broker.stop()  # only to learn whether a broker can be had: each scenario starts its own
    row = asyncio.run(run_scenario(name, 1, SHORT, tmp_path, runtime))
    assert row.ok, row
    assert row.disturbances >= 1
    assert row.events > 400
