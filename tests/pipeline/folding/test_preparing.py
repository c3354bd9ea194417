"""Reference sets are compiled off the event loop, and the verdicts are the same."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from ontrack.pipeline.embedded import EmbeddedMonitor
from ontrack.pipeline.folding import offload
from ontrack.pipeline.folding.fold import Fold
from ontrack.pipeline.folding.library import Preparation
from ontrack.pipeline.folding.preparing import prepare_proposal, prepare_question
from ontrack.pipeline.folding.record import Record
from ontrack.pipeline.folding.reference_sets import ReferenceSets
from ontrack.pipeline.kafka.log import record_of
from ontrack.pipeline.making import make_fold
from ontrack.pipeline.serving.engine import EmbeddedEngine
from ontrack.pipeline.settings import Settings
from ontrack.pipeline.workplace import contracts, references, simulate_run, task_ids
from ontrack.topics import codecs
from ontrack.topics.events import Event, Proposal, RunStarted
from ontrack.topics.knowledge import ToolContract
from tests.pipeline.kafka import test_owner
from tests.pipeline.kafka.test_gateway import Harness
from tests.pipeline.kafka.test_owner import FakeKafka, fill, new_owner

SETTINGS = Settings(encoder="hashing", warm_runs_max=1)


def new_fold() -> Fold:
    fold = make_fold(SETTINGS)
    fold.library.fill(references(), contracts())
    return fold


def record(event: Event | Proposal, offset: int) -> Record:
    return Record(codecs.encode(event), event.run_id.encode(), "t", 0, offset, 1_000 + offset)


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Of each set that is compiled, whether it was on the main thread, the event loop's."""
    found: list[bool] = []
    whole = ReferenceSets._compile

    def noted(self: ReferenceSets, *arguments: Any) -> Any:
        found.append(threading.current_thread() is threading.main_thread())
        return whole(self, *arguments)

    monkeypatch.setattr(ReferenceSets, "_compile", noted)
    return found


def events() -> list[Event]:
    runs = [
        simulate_run(task, seed, run_id=f"r{seed}-{task}").events
        for seed in range(2)
        for task in task_ids()[:3]
    ]
    unnamed = RunStarted(run_id="late-name")
    named = RunStarted(run_id="late-name", task_id=task_ids()[0])
    return [unnamed, named, *(run[at] for at in range(4) for run in runs)]


async def folded(fold: Fold, stream: Sequence[Event]) -> list[bytes]:
    holder, said = SimpleNamespace(state=fold.partition()), []
    for offset, event in enumerate(stream):
        outputs = await offload.apply(fold, holder, record(event, offset))
        said += [codecs.encode(output) for output in outputs]
    return said


async def test_no_set_is_compiled_on_the_event_loop_and_every_byte_is_the_same(
    compiled: list[bool],
) -> None:
    said = await folded(new_fold(), events())
    assert compiled
    assert not any(compiled)
    fold, plain = new_fold(), []
    state = fold.partition()
    for offset, event in enumerate(events()):
        plain += [codecs.encode(each) for each in fold.apply(state, record(event, offset))]
    assert said == plain


async def test_nor_after_a_publication_nor_for_questions_nor_for_a_run_that_was_put_away(
    compiled: list[bool],
) -> None:
    fold = new_fold()
    state = fold.partition()
    first, second = (simulate_run(task, 0, run_id=task).events for task in task_ids()[:2])
    holder = SimpleNamespace(state=state)
    for offset, event in enumerate([first[0], first[1], second[0], second[1]]):
        await offload.apply(fold, holder, record(event, offset))
    assert state.runs.who(first[0].run_id).is_cold  # type: ignore[union-attr]
    before = len(compiled)

    # Another tool's contract: no set has to be compiled again.
    fold.library.add_contract("elsewhere", ToolContract(name="elsewhere"), 5_000)
    new = Proposal(run_id="new", task_id=task_ids()[0], tool="look")
    await prepare_proposal(fold, state, new)
    fold.propose(state, new)
    assert len(compiled) == before

    # One of theirs: what is asked about is compiled anew, in a thread.
    steps = next(item for item in references() if item.task_id == task_ids()[0]).steps
    tool = ToolContract(name=steps[0].tool, description="another text")
    fold.library.add_contract(tool.name, tool, 6_000)
    await prepare_question(fold, state, record(new, 9_000))
    fold.decide(state, record(new, 9_000))
    assert len(compiled) > before
    assert not any(compiled)

    # A run that is kept as bytes, where its set was let go meanwhile.
    fold.library._sets._kept.clear()
    await offload.apply(fold, holder, record(first[2], 4))
    assert not any(compiled)


async def test_the_event_loop_goes_on_while_a_set_is_compiled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    entered, may_go_on = threading.Event(), threading.Event()
    whole = ReferenceSets._compile

    def slow(self: ReferenceSets, *arguments: Any) -> Any:
        entered.set()
        assert may_go_on.wait(30)
        return whole(self, *arguments)

    monkeypatch.setattr(ReferenceSets, "_compile", slow)
    fold = new_fold()
    folding = asyncio.create_task(folded(fold, events()[2:4]))
    while not entered.is_set():
        await asyncio.sleep(0.001)
    # What is published meanwhile is later than the run's first event.
    fold.library.add_contract("elsewhere", ToolContract(name="elsewhere"), 10_000)
    assert not folding.done()
    may_go_on.set()
    said = await folding
    assert said == await folded(new_fold(), events()[2:4])


async def test_what_is_published_while_a_set_is_compiled_counts_for_a_question_asked_as_of_now(
    monkeypatch: pytest.MonkeyPatch, compiled: list[bool]
) -> None:
    fold = new_fold()
    new = Proposal(run_id="new", task_id=task_ids()[0], tool="look")
    steps = next(item for item in references() if item.task_id == new.task_id).steps
    make = Preparation.make
    published: list[ToolContract] = []

    def make_and_publish(self: Preparation) -> None:
        make(self)
        if not published:
            published.append(ToolContract(name=steps[0].tool, description="another text"))
            fold.library.add_contract(published[0].name, published[0], 9_000)

    monkeypatch.setattr(Preparation, "make", make_and_publish)
    await prepare_proposal(fold, fold.partition(), new)
    before = len(compiled)
    fold.propose(fold.partition(), new)
    assert published
    assert len(compiled) == before
    assert not any(compiled)


async def test_a_partition_comes_back_from_its_checkpoint_without_compiling_on_the_event_loop(
    monkeypatch: pytest.MonkeyPatch, compiled: list[bool]
) -> None:
    kafka = FakeKafka()
    monkeypatch.setattr("tests.pipeline.kafka.test_owner.FOLD", new_fold())
    first = new_owner(kafka)
    await first.resume()
    stream = [run[at] for at in range(2) for run in (simulated(0), simulated(1))]
    await first.take(fill(kafka, stream))
    await first.save()
    compiled.clear()

    monkeypatch.setattr("tests.pipeline.kafka.test_owner.FOLD", new_fold())
    second = new_owner(kafka)
    await second.resume()
    assert sorted(second.state.runs) == sorted({event.run_id for event in stream})
    assert compiled
    assert not any(compiled)


def simulated(task: int) -> Sequence[Event]:
    return simulate_run(task_ids()[task], 0, run_id=f"run-{task}").events


async def test_a_fault_while_a_set_is_compiled_is_met_by_the_fold(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(self: ReferenceSets, *_arguments: Any) -> Any:
        raise RuntimeError("no")

    monkeypatch.setattr(ReferenceSets, "_compile", broken)
    (letter,) = await folded(new_fold(), events()[2:3]) or [b""]
    assert b"dead_letter" in letter


async def test_a_fault_of_ours_in_reading_a_record_is_met_by_the_fold(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fold = new_fold()

    def broken(_record: Record) -> Any:
        raise ValueError("a fault of ours")

    monkeypatch.setattr(fold, "_decoded", broken)
    (letter,) = await folded(fold, events()[2:3])
    assert b"ValueError" in letter
    monkeypatch.setattr(fold, "asked", broken)
    question = record(Proposal(run_id="new", task_id=task_ids()[0], tool="look"), 0)
    await prepare_question(fold, fold.partition(), question)


async def test_an_embedded_engine_compiles_nothing_on_the_loop_to_answer(
    compiled: list[bool],
) -> None:
    monitor = EmbeddedMonitor(SETTINGS, references(), contracts())
    engine = EmbeddedEngine(monitor, 60.0, lambda _output: None)
    await engine.ask(Proposal(run_id="new", task_id=task_ids()[0], tool="look"), 1.0)
    assert compiled
    assert not any(compiled)


async def test_a_gate_over_http_compiles_nothing_on_the_loop_to_answer(
    compiled: list[bool],
) -> None:
    harness = Harness(warm_runs_max=1)
    harness.fold.library.fill(references(), contracts())
    _, answer = await harness.ask(run_id="new", task_id=task_ids()[0], deadline_ms=20_000)
    assert answer["decided_by"] == "monitor"
    assert compiled
    assert not any(compiled)


async def test_a_partition_compiles_nothing_on_the_loop_to_answer_a_message(
    compiled: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(test_owner, "FOLD", new_fold())
    kafka = test_owner.FakeKafka(now_ms=1_000)
    owner = test_owner.new_owner(kafka)
    await owner.resume()
    asked = Proposal(run_id="new", task_id=task_ids()[0], tool="look")
    message = kafka.append(test_owner.PROPOSALS, b"new", codecs.encode(asked))
    await owner.decide([record_of(message)])  # type: ignore[arg-type]
    assert compiled
    assert not any(compiled)
