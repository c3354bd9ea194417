"""Fixtures for every test; those that need Kafka are marked ``kafka`` by using one of these."""

import os
import uuid
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase

import pytest
from hypothesis import settings as hypothesis_settings

from tests.broker import (
    TEST_SETTINGS,
    BrokerUnavailableError,
    LocalBroker,
    check_reachable,
)
from tests.long import LONG

# No test asserts on time, so none may fail because the machine was busy.
# Few examples a property: `make test` stays well below a quarter of an hour on two cores. The other
# profile is for `make test-long`.
hypothesis_settings.register_profile("short", deadline=None, max_examples=20)
hypothesis_settings.register_profile("long", deadline=None, max_examples=200)
hypothesis_settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "short"))

BROKER_FIXTURES = {"broker", "own_broker"}


@pytest.hookimpl(tryfirst=True)  # before -m selects by marker
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        name = item.nodeid.removeprefix("tests/")
        if any(name.startswith(pattern) or fnmatchcase(name, pattern) for pattern in LONG):
            item.add_marker("long")
        if BROKER_FIXTURES & set(getattr(item, "fixturenames", ())):
            item.add_marker("kafka")


def started(broker: LocalBroker, settings: Mapping[str, str] = TEST_SETTINGS) -> LocalBroker:
    """Start it; skip where no broker can be had, but fail in CI, where silence would lie."""
    try:
        broker.start(settings)
    except BrokerUnavailableError as reason:
        if os.environ.get("CI") == "true":
            pytest.fail(f"CI must run the Kafka tests. {reason}", pytrace=False)
        pytest.skip(f"no broker, and ONTRACK_TEST_BROKER is not set. {reason}")
    return broker


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a broker that all tests share: use `fresh_prefix` for topics and groups."""
    given = os.environ.get("ONTRACK_TEST_BROKER")
    if given:
        check_reachable(given)
        yield given
        return
    local = LocalBroker(tmp_path_factory.mktemp("kafka"))
    try:
        yield started(local).address
    finally:
        local.stop()


@pytest.fixture
def own_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalBroker]:
    """A broker for one test alone, which may stop, kill and start it again."""
    local = LocalBroker(tmp_path_factory.mktemp("own-kafka"))
    try:
        yield started(local)
    finally:
        local.stop()


@pytest.fixture
def fresh_prefix() -> str:
    """A prefix for topics and consumer groups that no other test uses, such as ``t3f9c21.``."""
    return f"t{uuid.uuid4().hex[:8]}."
