"""Order and kinship on a real broker: overtaking steps, gaps, halts that cross partitions."""

from __future__ import annotations

import asyncio
import json
import random
from collections import defaultdict

from ontrack.pipeline.kafka.connection import topics_of
from ontrack.pipeline.kafka.partitions import partition_of
from ontrack.pipeline.kafka.sender import send_events, send_knowledge
from ontrack.pipeline.settings import Settings
from ontrack.pipeline.workplace import contracts, references
from ontrack.topics import codecs
from ontrack.topics.events import ChildStarted, Event, GapClosed, ParentHalted, RunStarted, Step
from tests.pipeline.fleet import WorkerProcess, by_id, read_all, wait_for
from tests.pipeline.kafka.test_kafka import embedded_outputs, fleet_events


def overtaking(events: list[Event], seed: int) -> list[Event]:
    """The same events; within each run some steps are sent before those they followed."""
    rng = random.Random(seed)
    found = list(events)
    places = defaultdict(list)
    for place, event in enumerate(found):
        if isinstance(event, Step) and event.seq:
            places[event.run_id].append(place)
    for of_run in places.values():
        for one, other in zip(of_run[::2], of_run[1::2], strict=False):
            if rng.random() < 0.5:
                found[one], found[other] = found[other], found[one]
    assert found != events
    return found


def test_steps_that_overtook_each_other_are_judged_in_order_over_a_kill(
    settings: Settings, worker: WorkerProcess
) -> None:
    events = fleet_events(28)
    expected = embedded_outputs(settings, events)
    asyncio.run(send_knowledge(settings, references(), contracts()))
    worker.more = {"ONTRACK_REORDER_MS": "60000"}
    worker.start()
    worker.wait_ready()

    async def stream_and_kill() -> None:
        sending = asyncio.create_task(send_events(settings, overtaking(events, 1), 80))
        await asyncio.sleep(1.5)
        await asyncio.to_thread(worker.kill)
        await asyncio.to_thread(worker.start)
        await sending

    asyncio.run(stream_and_kill())
    worker.wait_ready()
    for topic, outputs in expected.items():
        assert by_id(asyncio.run(wait_for(settings, topic, len(outputs)))) == outputs


def test_a_step_that_never_comes_is_given_up_by_an_event_in_the_log(
    settings: Settings, worker: WorkerProcess
) -> None:
    topics = topics_of(settings)
    steps: list[Event] = [Step(run_id="holed", seq=n, tool="look", args={"n": n}) for n in (0, 2)]
    worker.start()
    worker.wait_ready()
    asyncio.run(send_events(settings, steps, None))
    verdicts = by_id(asyncio.run(wait_for(settings, topics.verdicts.name, 2)))
    assert json.loads(verdicts["holed:2"])["flags"] == ["gap"]
    log = [m.value for m in asyncio.run(read_all(settings, topics.events.name))]
    notices = [codecs.decode_event(value).event for value in log][2:]
    assert notices == [GapClosed(run_id="holed", seq=2)]
    worker.kill()
    worker.start()
    worker.wait_ready()
    assert len(asyncio.run(read_all(settings, topics.verdicts.name))) == 2


def test_a_halt_reaches_a_subagent_in_another_partition(
    settings: Settings, worker: WorkerProcess
) -> None:
    topics = topics_of(settings)
    child = next(
        name
        for name in (f"child-{number}" for number in range(100))
        if partition_of(name.encode(), settings.partitions)
        != partition_of(b"parent", settings.partitions)
    )
    again = {"tool": "look", "args": {"q": 1}, "result": "same"}
    begun = RunStarted(run_id=child, parent_run_id="parent")
    loop: list[Event] = [Step(run_id="parent", seq=n, **again) for n in range(8)]
    worker.start()
    worker.wait_ready()
    asyncio.run(send_events(settings, [begun, *loop], None))
    said = by_id(asyncio.run(wait_for(settings, topics.interventions.name, 3)))
    halt = json.loads(said[f"{child}:parent:halt"])
    assert (halt["run_id"], halt["intervention"], halt["authority"]) == (child, "halt", "intervene")
    log = asyncio.run(read_all(settings, topics.events.name))
    written = [codecs.decode_event(m.value).event for m in log]
    assert ChildStarted(run_id="parent", child_run_id=child) in written
    assert ParentHalted(run_id=child, parent_run_id="parent") in written
