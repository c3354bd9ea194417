"""What the queue M/G/1 says of a worker."""

from __future__ import annotations

import random
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ontrack.pipeline.bench.queueing import Service


def simulated_wait_s(service: list[float], rate: float, seed: int) -> float:
    """Mean wait of a queue that is played through, event by event."""
    dice = random.Random(seed)
    free_s, waited = 0.0, 0.0
    arrivals = list(accumulate(dice.expovariate(rate) for _ in range(200_000)))
    for arrival in arrivals:
        begins = max(arrival, free_s)
        waited += begins - arrival
        free_s = begins + dice.choice(service)
    return waited / len(arrivals)


def test_a_worker_that_is_half_busy_lets_an_event_wait_for_half_a_service() -> None:
    service = Service.of([0.002, 0.002])
    assert service.variation == 0
    assert service.utilisation(250) == pytest.approx(0.5)
    assert service.waiting_s(250) == pytest.approx(0.001)


def test_beyond_what_it_sustains_the_wait_has_no_end() -> None:
    assert Service(0.002, 1.0).waiting_s(500) == float("inf")


@pytest.mark.parametrize("times", [[0.001], [0.0005, 0.0005, 0.004], [0.001, 0.003]])
@pytest.mark.parametrize("busy", [0.3, 0.7])
def test_the_model_agrees_with_a_queue_that_is_played_through(
    times: list[float], busy: float
) -> None:
    service = Service.of(times)
    rate = busy / service.mean_s
    assert service.waiting_s(rate) == pytest.approx(simulated_wait_s(times, rate, 1), rel=0.1)


def test_agents_that_are_slow_are_many() -> None:
    assert Service(0.002, 0.0).agents(step_s=10.0, utilisation=0.5) == 2500


@given(
    st.lists(st.floats(1e-5, 1.0), min_size=1, max_size=20),
    st.floats(0.01, 0.98),
    st.floats(0.01, 0.98),
)
def test_who_is_busier_lets_wait_longer(times: list[float], one: float, other: float) -> None:
    service = Service.of(times)
    calm, busy = sorted((one, other))
    assert service.waiting_s(calm / service.mean_s) <= service.waiting_s(busy / service.mean_s)
