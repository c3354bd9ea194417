"""Faust's transport with a shorter wait for news, and an end that does not wait for a broker.

Faust asks the broker to hold a fetch for up to 1.5 s where there is nothing to read, and has no
setting for it. A client has one fetch at a time under way to a broker, for all partitions that it
is not just working on: when these are the quiet ones (proposals, for one), the busy ones wait for
the end of it, up to 1.5 s.

At its end Faust commits and leaves the group, and waits for the broker's answers as long as for any
other request: 90 s, again and again where the group's coordinator is still loading after a restart.
Nothing relies on that commit.
"""

from __future__ import annotations

from typing import Any

from faust.transport.drivers import aiokafka as driver

from ontrack.pipeline.kafka.closing import closed

FETCH_WAIT_MS = 10
"""A tenth of the latency of a decision, and about a hundred small requests a second when idle."""


class _ConsumerThread(driver.AIOKafkaConsumerThread):
    def _create_worker_consumer(self, transport: Any) -> Any:
        consumer = super()._create_worker_consumer(transport)
        # Read by aiokafka as its fetcher starts; its constructor is called by Faust's driver.
        assert hasattr(consumer, "_fetch_max_wait_ms"), "this aiokafka keeps its settings elsewhere"
        consumer._fetch_max_wait_ms = FETCH_WAIT_MS
        return consumer

    async def on_thread_stop(self) -> None:
        """Leave the group, unless the broker does not answer."""
        await closed("Faust's thread", super().on_thread_stop())


class _Consumer(driver.Consumer):
    async def on_stop(self) -> None:
        """Commit, unless the broker does not answer."""
        await closed("Faust's consumer", super().on_stop())

    def _new_consumer_thread(self) -> Any:
        return _ConsumerThread(self, loop=self.loop, beacon=self.beacon)


class Transport(driver.Transport):
    """Kafka by Faust's own driver, but for the wait."""

    Consumer = _Consumer
