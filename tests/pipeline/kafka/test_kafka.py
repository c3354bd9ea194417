"""The worker on a real broker: same bytes as embedded, nothing lost, bad input quarantined."""

from __future__ import annotations

import asyncio
import base64
import json
import time

import pytest

from ontrack.pipeline.embedded import EmbeddedMonitor
from ontrack.pipeline.kafka.connection import topics_of
from ontrack.pipeline.kafka.sender import send_events, send_knowledge
from ontrack.pipeline.settings import Settings
from ontrack.pipeline.workplace import contracts, references, simulate_run, task_ids
from ontrack.topics import codecs
from ontrack.topics.events import Event, Proposal
from tests.pipeline.fleet import (
    WorkerProcess,
    by_id,
    output_topics,
    produce,
    read_all,
    wait_for,
)

FAULTS = (None, "loop", "stall", "hallucination", "inversion", "irreversible", "retry")


def fleet_events(runs: int, seed: int = 0) -> list[Event]:
    """Runs of all tasks and faults, interleaved."""
    tasks = task_ids()
    streams = [
        list(
            simulate_run(
                tasks[index % len(tasks)],
                seed + index,
                FAULTS[index % len(FAULTS)],
                run_id=f"run-{seed}-{index}",
            ).events
        )
        for index in range(runs)
    ]
    longest = max(map(len, streams))
    return [stream[step] for step in range(longest) for stream in streams if step < len(stream)]


def embedded_outputs(settings: Settings, events: list[Event]) -> dict[str, dict[str, bytes]]:
    """What the embedded driver says, by topic and id."""
    monitor = EmbeddedMonitor(settings, references(), contracts())
    topics = topics_of(settings)
    by_type = {
        "verdict": topics.verdicts.name,
        "intervention": topics.interventions.name,
        "scorecard": topics.scorecards.name,
    }
    found: dict[str, dict[str, bytes]] = {name: {} for name in by_type.values()}
    for event in events:
        for output in monitor.feed(event):
            found[by_type[output.type]][output.id] = codecs.encode(output)
    return found


async def publish(settings: Settings, events: list[Event], rate: float | None = None) -> None:
    await send_events(settings, events, rate)


def test_the_worker_and_the_embedded_driver_say_the_same_bytes(
    settings: Settings, worker: WorkerProcess
) -> None:
    events = fleet_events(28)
    expected = embedded_outputs(settings, events)
    asyncio.run(send_knowledge(settings, references(), contracts()))
    worker.start()
    worker.wait_ready()
    asyncio.run(publish(settings, events))
    for topic, outputs in expected.items():
        assert by_id(asyncio.run(wait_for(settings, topic, len(outputs)))) == outputs
    names = {json.loads(v)["verdict"] for v in expected[topics_of(settings).verdicts.name].values()}
    assert {"OK", "LOOP", "OFF_TRACK"} <= names


@pytest.mark.parametrize("runtime", ["faust", "aiokafka"], indirect=True)
def test_a_killed_and_a_stopped_worker_lose_no_verdict(
    settings: Settings, worker: WorkerProcess
) -> None:
    events = fleet_events(42)
    expected = embedded_outputs(settings, events)
    asyncio.run(send_knowledge(settings, references(), contracts()))
    worker.start()
    worker.wait_ready()

    async def stream_while_restarting() -> None:
        sending = asyncio.create_task(publish(settings, events, rate=60))
        for end in (worker.kill, worker.stop, worker.kill):
            await asyncio.sleep(1.5)
            await asyncio.to_thread(end)
            await asyncio.to_thread(worker.start)
        await sending

    asyncio.run(stream_while_restarting())
    worker.wait_ready()
    for topic, outputs in expected.items():
        assert by_id(asyncio.run(wait_for(settings, topic, len(outputs)))) == outputs


@pytest.mark.parametrize("runtime", ["faust", "aiokafka"], indirect=True)
def test_a_cold_start_says_nothing_twice(settings: Settings, worker: WorkerProcess) -> None:
    events = fleet_events(14)
    asyncio.run(send_knowledge(settings, references(), contracts()))
    asyncio.run(publish(settings, events))
    worker.start()
    worker.wait_ready()
    topics = output_topics(settings)
    first = [len(asyncio.run(read_all(settings, topic))) for topic in topics]
    worker.kill()
    worker.start()
    worker.wait_ready()
    assert worker.metric("ontrack_events_total") == len(events)  # folded again, all of them
    assert [len(asyncio.run(read_all(settings, topic))) for topic in topics] == first
    assert first[0] > 0


def test_bad_messages_become_dead_letters_and_the_rest_is_judged(
    settings: Settings, worker: WorkerProcess
) -> None:
    good = fleet_events(1)
    over_limit = json.dumps(
        {"type": "step", "run_id": "big", "tool": "t", "result": "x" * 1_100_000}
    )
    deep = '{"type":"step","run_id":"deep","tool":"t","args":{"a":' + "[" * 100 + "]" * 100 + "}}"
    bad: list[tuple[bytes | None, bytes | None, str]] = [
        (b"a", b"\xff\xfe not json", "MalformedMessage"),
        (b"a", b"", "MalformedMessage"),
        (b"a", None, "MalformedMessage"),
        (b"a", b"[1, 2]", "WrongShape"),
        (b"a", b'{"type":"step","tool":"t"}', "WrongShape"),
        (b"a", b'{"type":"step","run_id":"a","tool":"t","seq":"one"}', "WrongShape"),
        (b"a", b'{"type":"lunch","run_id":"a"}', "UnknownEventType"),
        (b"big", over_limit.encode(), "MessageTooLarge"),
        (b"deep", deep.encode(), "TooDeep"),
        (b"other", b'{"type":"step","run_id":"a","tool":"t"}', "KeyMismatch"),
        (None, b'{"type":"step","run_id":"a","tool":"t"}', "KeyMismatch"),
        (good[0].run_id.encode(), codecs.encode(good[1]), "EventAfterEnd"),
    ]
    topics = topics_of(settings)
    worker.start()
    worker.wait_ready()
    pairs = [(event.run_id.encode(), codecs.encode(event)) for event in good]
    asyncio.run(produce(settings, topics.events.name, pairs))
    asyncio.run(produce(settings, topics.events.name, [(key, value) for key, value, _ in bad]))
    letters = asyncio.run(wait_for(settings, topics.dead_letters.name, len(bad)))
    told = [json.loads(message.value) for message in letters]
    found = sorted(
        (letter["error"]["name"], base64.b64decode(letter["value_base64"] or "")) for letter in told
    )
    assert found == sorted((name, value or b"") for _, value, name in bad)
    assert all(letter["topic"] == topics.events.name and letter["error"]["text"] for letter in told)
    steps = [event for event in good if event.type == "step"]
    assert len(asyncio.run(read_all(settings, topics.verdicts.name))) == len(steps)
    assert worker.metric("ontrack_dead_letters_total") == len(bad)


@pytest.mark.parametrize("runtime", ["faust", "aiokafka"], indirect=True)
def test_a_proposal_is_answered_from_the_run_as_it_stands(
    settings: Settings, worker: WorkerProcess
) -> None:
    run = simulate_run(task_ids()[0], 1, "irreversible", run_id="asked")
    onset = run.onset_seq
    assert onset is not None
    before = [event for event in run.events if event.type != "step" or event.seq < onset]
    before = [event for event in before if event.type != "run_ended"]
    call = next(event for event in run.events if event.type == "step" and event.seq == onset)
    proposal = Proposal(
        run_id="asked", task_id=call.task_id, action=call.action, tool=call.tool, args=call.args
    )
    topics = topics_of(settings)
    asyncio.run(send_knowledge(settings, references(), contracts()))
    worker.start()
    worker.wait_ready()
    asyncio.run(publish(settings, before))
    steps = sum(event.type == "step" for event in before)
    asyncio.run(wait_for(settings, topics.verdicts.name, steps))
    asyncio.run(produce(settings, topics.proposals.name, [(b"asked", codecs.encode(proposal))]))
    answer = json.loads(asyncio.run(wait_for(settings, topics.decisions.name, 1))[0].value)
    assert (answer["decision"], answer["run_id"], answer["seq"]) == ("block", "asked", onset)
    assert answer["reasons"][0]["text"]


def test_a_run_is_compared_with_what_was_published_before_its_first_event(
    settings: Settings, worker: WorkerProcess
) -> None:
    task = task_ids()[0]
    topics = topics_of(settings)
    early = simulate_run(task, 1, run_id="early").events
    late = simulate_run(task, 1, run_id="late").events
    worker.start()
    worker.wait_ready()
    asyncio.run(publish(settings, list(early[:3])))
    time.sleep(0.05)  # the broker's clock counts milliseconds
    asyncio.run(send_knowledge(settings, references(), contracts()))
    time.sleep(0.05)
    asyncio.run(publish(settings, [*early[3:], *late]))
    steps = sum(event.type == "step" for event in [*early, *late])
    messages = asyncio.run(wait_for(settings, topics.verdicts.name, steps))
    verdicts = [json.loads(message.value) for message in messages]
    assert {v["best_reference"] for v in verdicts if v["run_id"] == "early"} == {None}
    assert None not in {v["best_reference"] for v in verdicts if v["run_id"] == "late"}
    worker.kill()
    worker.start()  # and folding the log again must not change its mind
    worker.wait_ready()
    assert len(asyncio.run(read_all(settings, topics.verdicts.name))) == steps


@pytest.mark.parametrize("runtime", ["faust", "aiokafka"], indirect=True)
def test_a_worker_that_was_stopped_begins_again_at_its_checkpoint(
    settings: Settings, worker: WorkerProcess
) -> None:
    events = fleet_events(28)
    half = len(events) // 2
    expected = embedded_outputs(settings, events)
    topics = topics_of(settings)
    asyncio.run(send_knowledge(settings, references(), contracts()))
    worker.start()
    worker.wait_ready()
    asyncio.run(publish(settings, events[:half]))
    steps = sum(event.type == "step" for event in events[:half])
    asyncio.run(wait_for(settings, topics.verdicts.name, steps))
    worker.stop()  # in good order: the open runs are written down
    assert asyncio.run(read_all(settings, topics.snapshots.name))
    worker.start()
    worker.wait_ready()
    assert worker.metric("ontrack_events_total") == 0  # nothing was folded again
    assert worker.metric("ontrack_snapshots_refused_total") == 0
    asyncio.run(publish(settings, events[half:]))
    for topic, outputs in expected.items():
        assert by_id(asyncio.run(wait_for(settings, topic, len(outputs)))) == outputs
