"""Fixtures of the tests that put the pipeline on a broker."""

from __future__ import annotations

import asyncio

import pytest

from ontrack.pipeline.settings import Settings
from tests.pipeline.fleet import provision, settings_for


@pytest.fixture
def settings(broker: str, fresh_prefix: str) -> Settings:
    """Settings of one test, with topics and group of its own; the topics are there."""
    made = settings_for(broker, fresh_prefix)
    asyncio.run(provision(made))
    return made
