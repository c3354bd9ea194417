"""Fixtures of the tests that put the pipeline on a broker."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from ontrack.pipeline.settings import Settings
from tests.pipeline.fleet import WorkerProcess, provision, settings_for


@pytest.fixture
def settings(broker: str, fresh_prefix: str) -> Settings:
    """Settings of one test, with topics and group of its own; the topics are there."""
    made = settings_for(broker, fresh_prefix)
    asyncio.run(provision(made))
    return made


@pytest.fixture
def runtime(request: pytest.FixtureRequest) -> str:
    """What delivers to the test's worker; Faust where the test does not say."""
    return str(getattr(request, "param", "faust"))


@pytest.fixture
def worker(settings: Settings, tmp_path: Path, runtime: str) -> Iterator[WorkerProcess]:
    """A worker on the test's topics, not started; stopped at the end."""
    process = WorkerProcess(settings, tmp_path, runtime=runtime)
    try:
        yield process
    finally:
        process.stop()
