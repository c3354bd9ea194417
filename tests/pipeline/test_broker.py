"""The broker that the Kafka tests stand on."""

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from tests.broker import LocalBroker, check_reachable, create_topic


async def send(address: str, topic: str, *values: bytes) -> None:
    async with AIOKafkaProducer(bootstrap_servers=address, acks="all") as producer:
        for value in values:
            await producer.send_and_wait(topic, value, key=b"run-1")


async def read(address: str, topic: str, count: int) -> list[bytes]:
    consumer = AIOKafkaConsumer(topic, bootstrap_servers=address, auto_offset_reset="earliest")
    async with consumer:
        return [(await consumer.getone()).value for _ in range(count)]


async def test_a_message_that_was_sent_is_read_back(broker: str, fresh_prefix: str) -> None:
    topic = f"{fresh_prefix}events"
    await create_topic(broker, topic)
    await send(broker, topic, b'{"seq":0}', b'{"seq":1}')
    assert await read(broker, topic, 2) == [b'{"seq":0}', b'{"seq":1}']


async def test_messages_outlive_a_stop_and_a_crash_of_the_broker(own_broker: LocalBroker) -> None:
    await create_topic(own_broker.address, "events")
    before = own_broker.address
    await send(before, "events", b"first")
    own_broker.stop()
    assert own_broker.start() == before
    await send(before, "events", b"second")
    own_broker.kill()
    assert own_broker.start() == before
    assert await read(before, "events", 2) == [b"first", b"second"]


def test_a_given_broker_that_is_not_there_is_named(unused_tcp_port: int) -> None:
    address = f"127.0.0.1:{unused_tcp_port}"
    with pytest.raises(ConnectionError, match=f"ONTRACK_TEST_BROKER={address} is not reachable"):
        check_reachable(address)
