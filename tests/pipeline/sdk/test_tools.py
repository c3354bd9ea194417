"""Decorated tools: asked about, run, reported, whatever kind of function they are."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

import pytest
from hypothesis import given

from ontrack.pipeline.sdk import HttpChannel, SyncMonitor, declared, monitored, tool
from ontrack.pipeline.sdk.client import Blocked, Monitor
from ontrack.pipeline.sdk.current import current_run
from ontrack.pipeline.sdk.declared import declared_contracts
from ontrack.topics.errors import BrokerUnavailable, InvalidSettings
from ontrack.topics.verdicts import Verdict
from tests.pipeline.sdk.recorded import ORDER, SETTINGS, Recorded
from tests.strategies import arguments, json_values


@pytest.fixture(autouse=True)
def nothing_declared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(declared, "_contracts", {})


def watched(monitor: Recorded, **more: Any) -> Monitor:
    return Monitor(embedded=monitor, run_id="r", settings=SETTINGS, **more)


def watched_sync(monitor: Recorded, **more: Any) -> SyncMonitor:
    return SyncMonitor(embedded=monitor, run_id="r", settings=SETTINGS, **more)


@tool
def find(customer: str, limit: int = 10) -> dict[str, str]:
    return ORDER


@tool(name="pay", action="pay back")
def refund(order: str) -> str:
    return f"paid {order}"


@tool
async def look(place: str = "here") -> str:
    await asyncio.sleep(0)
    return f"nothing {place}"


# ------------------------------------------------------------------ the usual


def test_a_plain_function_asks_runs_and_reports() -> None:
    monitor = Recorded()
    with watched_sync(monitor):
        with pytest.raises(Blocked, match="pay may not run"):
            refund("ord-12345")
        assert find("Ada") == ORDER
        assert refund(order="ord-12345") == "paid ord-12345"
    first, second = monitor.steps
    assert (first.seq, first.tool, first.args) == (0, "find", {"customer": "Ada", "limit": 10})
    assert first.result == ORDER
    assert (second.tool, second.action) == ("pay", "pay back")
    assert second.parents is None
    assert first.started_at is not None
    assert first.ended_at is not None
    assert first.started_at <= first.ended_at
    assert monitor.end.outcome == "success"


async def test_an_async_function_does_the_same() -> None:
    monitor = Recorded()
    async with watched(monitor):
        assert await look() == "nothing here"
        assert find("Ada") == ORDER  # a plain one, on the loop: the monitor is in this process
    assert [(s.tool, s.args) for s in monitor.steps] == [
        ("look", {"place": "here"}),
        ("find", {"customer": "Ada", "limit": 10}),
    ]


async def test_outside_of_a_run_a_tool_is_the_function_it_was() -> None:
    assert find("Ada") == ORDER
    assert await look("there") == "nothing there"
    assert find.__name__ == "find"
    with pytest.raises(TypeError):
        find()  # type: ignore[call-arg]


@given(arguments(), json_values())
def test_arguments_and_results_come_through_equal(args: dict[str, Any], result: Any) -> None:
    monitor = Recorded()

    @tool(gate=False)
    def anything(**given: Any) -> Any:
        return result

    with watched_sync(monitor):
        assert anything(**args) is result
    (step,) = monitor.steps
    assert (step.args, step.result) == (args, result)


def test_what_is_blocked_may_return_a_value_of_its_own() -> None:
    monitor, ran = Recorded(), []

    @tool(name="pay", blocked=None)
    def pay(order: str) -> None:
        ran.append(order)

    with watched_sync(monitor):
        assert pay("ord-12345") is None
    assert (ran, monitor.steps) == ([], [])


def test_a_tool_that_is_not_gated_is_reported_only() -> None:
    monitor = Recorded()
    with watched_sync(monitor):
        tool(name="pay", gate=False)(lambda order: order)("ord-12345")
    assert [step.tool for step in monitor.steps] == ["pay"]


# ------------------------------------------------------------------ errors


@pytest.mark.parametrize("error", [ValueError("no such order"), KeyboardInterrupt(), SystemExit(2)])
def test_an_error_is_reported_and_passes_through(error: BaseException) -> None:
    monitor = Recorded()

    @tool
    def fails() -> None:
        raise error

    with watched_sync(monitor):
        with pytest.raises(type(error)) as caught:
            fails()
        assert caught.value is error
    (step,) = monitor.steps
    assert step.error is not None
    assert (step.error.type, step.error.message) == (type(error).__name__, str(error))


async def test_a_cancelled_tool_is_reported_and_cancelled() -> None:
    monitor, began = Recorded(), asyncio.Event()

    @tool
    async def waits() -> None:
        began.set()
        await asyncio.sleep(60)

    async with watched(monitor):
        task = asyncio.create_task(waits())
        await began.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    (step,) = monitor.steps
    assert step.error is not None
    assert step.error.type == "CancelledError"
    assert monitor.end.outcome == "success"


def test_a_step_that_nobody_takes_does_not_cost_the_result(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monitor = Recorded()

    async def fails(*_: Any, **__: Any) -> Any:
        raise BrokerUnavailable("gone")

    with watched_sync(monitor) as run:
        monkeypatch.setattr(run.monitor, "step", fails)
        assert find("Ada") == ORDER
    told = capsys.readouterr()
    assert "step_not_reported" in told.out + told.err


@pytest.mark.parametrize("thing", [Recorded, classmethod(len), staticmethod(len), 7])
def test_only_functions_can_be_tools(thing: Any) -> None:
    with pytest.raises(TypeError, match="no function"):
        tool(thing)


async def test_a_run_that_is_not_open_says_so() -> None:
    run = watched(Recorded())
    bound = monitored(run)(lambda: 1)
    with pytest.raises(RuntimeError, match="has not begun or is over"):
        bound()


# ------------------------------------------------------------------ nesting and contexts


def test_tools_inside_a_tool_become_its_parents() -> None:
    monitor = Recorded()

    @tool
    def outer() -> str:
        find("a")
        middle()
        return "done"

    @tool
    def middle() -> None:
        find("b")

    with watched_sync(monitor):
        outer()
        find("c")
    found = {step.seq: (step.tool, step.parents) for step in monitor.steps}
    assert found == {
        0: ("find", None),
        1: ("find", None),
        2: ("middle", (1,)),
        3: ("outer", (0, 2)),
        4: ("find", None),
    }


def test_a_call_that_was_too_large_to_be_reported_is_nobodys_parent() -> None:
    monitor = Recorded()

    @tool
    def copy(size: int) -> list[str]:
        return ["x" * 60_000] * size

    @tool
    def archive() -> str:
        copy(20)
        copy(1)
        copy(21)
        return "done"

    with watched_sync(monitor):
        archive()
    found = {step.seq: (step.tool, step.args, step.parents) for step in monitor.steps}
    assert found == {0: ("copy", {"size": 1}, None), 1: ("archive", {}, (0,))}


async def test_tasks_that_run_side_by_side_keep_their_own_parents() -> None:
    monitor = Recorded()

    @tool
    async def outer(name: str) -> None:
        await asyncio.gather(look(f"{name}1"), look(f"{name}2"))

    async with watched(monitor):
        await asyncio.gather(outer("a"), outer("b"))
    places = {step.seq: step.args.get("place") for step in monitor.steps}
    for step in monitor.steps:
        if step.tool == "outer":
            assert step.parents is not None
            assert {places[seq] for seq in step.parents} == {
                f"{step.args['name']}{number}" for number in (1, 2)
            }
    assert sorted(places) == list(range(6))


async def test_a_thread_with_a_copied_context_belongs_to_the_run_and_a_bare_one_does_not() -> None:
    monitor = Recorded()
    async with watched(monitor) as run:
        assert current_run() is run
        assert await asyncio.to_thread(find, "Ada") == ORDER
        thread = threading.Thread(target=find, args=("Bob",))
        thread.start()
        await asyncio.to_thread(thread.join)
        bound = monitored(run, name="find")(lambda customer: ORDER)
        thread = threading.Thread(target=bound, args=("Eve",))
        thread.start()
        await asyncio.to_thread(thread.join)
    assert current_run() is None
    assert [step.args["customer"] for step in monitor.steps] == ["Ada", "Eve"]


async def test_an_async_tool_may_run_in_a_run_that_blocks() -> None:
    monitor = Recorded()
    with watched_sync(monitor):
        assert await look() == "nothing here"
    assert [step.tool for step in monitor.steps] == ["look"]


def test_the_inner_of_two_runs_is_the_current_one() -> None:
    outer, inner = Recorded(), Recorded()
    with watched_sync(outer) as run:
        with watched_sync(inner):
            find("b")
        assert current_run() is run
        find("a")
    assert [step.args["customer"] for step in outer.steps] == ["a"]
    assert [step.args["customer"] for step in inner.steps] == ["b"]


def test_a_call_in_another_run_is_no_part_of_this_one() -> None:
    outer, inner = Recorded(), Recorded()

    @tool
    def delegate() -> None:
        with watched_sync(inner):
            find("b")

    with watched_sync(outer):
        delegate()
    assert [step.parents for step in outer.steps] == [None]


async def test_a_plain_tool_cannot_hold_up_the_loop_that_its_answer_comes_by() -> None:
    run = Monitor(run_id="r", serve_url="http://127.0.0.1:9", settings=SETTINGS)

    async def taken(_event: Any) -> tuple[()]:
        return ()

    run._channel.send = taken  # type: ignore[method-assign]
    async with run:
        with pytest.raises(RuntimeError, match="make it async"):
            find("Ada")


# ------------------------------------------------------------------ streams


def test_a_generator_is_one_step_with_what_it_yielded() -> None:
    monitor = Recorded()

    @tool
    def pages(count: int) -> Iterator[Any]:
        for number in range(count):
            find(str(number))
            yield number
        return "end"

    with watched_sync(monitor):
        assert list(pages(3)) == [0, 1, 2]
        assert monitor.steps[-1].result == [0, 1, 2]
        assert monitor.steps[-1].parents == (0, 1, 2)
        for number in pages(3):
            if number == 1:
                break
    assert list(pages(2)) == [0, 1]
    last = monitor.steps[-1]
    assert (last.tool, last.result, last.error) == ("pages", [0, 1], None)


def test_a_generator_may_be_sent_to_thrown_into_and_return() -> None:
    monitor = Recorded()

    @tool
    def talks() -> Any:
        try:
            heard = yield "a"
        except KeyError:
            heard = "an error"
        yield heard
        return "end"

    def through() -> Any:
        return (yield from talks())

    with watched_sync(monitor):
        stream = through()
        assert (next(stream), stream.send("hello")) == ("a", "hello")
        with pytest.raises(StopIteration) as end:
            next(stream)
        assert end.value.value == "end"
        stream = through()
        next(stream)
        assert stream.throw(KeyError("x")) == "an error"
        with pytest.raises(ZeroDivisionError):
            stream.throw(ZeroDivisionError)
    first, second = monitor.steps
    assert first.error is None
    assert second.error is not None
    assert (second.result, second.error.type) == (["a", "an error"], "ZeroDivisionError")


async def test_an_async_generator_is_one_step() -> None:
    monitor = Recorded()

    @tool
    async def chunks(fail: bool = False) -> AsyncIterator[str]:
        yield "a"
        await look()
        yield "b"
        if fail:
            raise OSError("cut off")

    async with watched(monitor):
        assert [chunk async for chunk in chunks()] == ["a", "b"]
        with pytest.raises(OSError, match="cut off"):
            [chunk async for chunk in chunks(fail=True)]
        async with contextlib.aclosing(chunks()) as stream:
            assert await anext(stream) == "a"
    found = [(s.result, s.error.type if s.error else None) for s in monitor.steps if s.parents]
    assert found == [(["a", "b"], None), (["a", "b"], "OSError")]
    assert monitor.steps[-1].result == ["a"]
    assert [chunk async for chunk in chunks()] == ["a", "b"]


@pytest.mark.parametrize("is_watched", [True, False])
async def test_an_async_generator_hears_what_is_sent_and_thrown_into_it(is_watched: bool) -> None:
    monitor, heard = Recorded(), list[object]()

    @tool
    async def echo() -> AsyncIterator[str]:
        try:
            while True:
                heard.append((yield f"said {len(heard)}"))
        except ZeroDivisionError:
            heard.append("thrown")
            yield "an error"
        finally:
            heard.append("closed")

    async def talk() -> None:
        stream: Any = echo()
        assert await anext(stream) == "said 0"
        assert await stream.asend("A") == "said 1"
        assert await stream.athrow(ZeroDivisionError()) == "an error"
        await stream.aclose()

    if is_watched:
        async with watched(monitor):
            await talk()
        assert [step.result for step in monitor.steps] == [["said 0", "said 1", "an error"]]
    else:
        await talk()
    assert heard == ["A", "thrown", "closed"]


def test_a_blocked_generator_raises_at_its_first_item_or_yields_nothing() -> None:
    monitor = Recorded()

    @tool(name="pay")
    def pays(order: str) -> Iterator[str]:
        yield order

    @tool(name="pay", blocked=None)
    def pays_maybe(order: str) -> Iterator[str]:
        yield order

    with watched_sync(monitor):
        with pytest.raises(Blocked):
            next(pays("ord-12345"))
        assert list(pays_maybe("ord-12345")) == []
    assert monitor.steps == []


# ------------------------------------------------------------------ contracts


def test_the_options_of_a_tool_are_its_contract() -> None:
    @tool(effect="destructive", consumes=["args.order"], identity=["order"])
    def pay(order: str) -> None:
        """Pay back.

        At once.
        """

    @tool(poll=True)
    def status() -> str:
        return "waiting"

    @tool
    def other() -> None: ...

    first, second = declared_contracts()
    assert (first.name, first.effect, first.description) == ("pay", "destructive", "Pay back.")
    assert (first.consumes, first.identity) == (("args.order",), ("order",))
    assert (second.name, second.poll) == ("status", True)


def test_a_monitor_in_this_process_knows_the_contracts_of_the_program() -> None:
    @tool(effect="read", produces=("result.ticket",))
    def open_ticket() -> dict[str, str]:
        return {"ticket": "t-98765"}

    @tool(effect="destructive", consumes=("args.ticket",))
    def close_ticket(ticket: str) -> str:
        return "closed"

    monitor = Recorded()
    with watched_sync(monitor) as run:
        with pytest.raises(Blocked):
            close_ticket("t-98765")
        close_ticket(open_ticket()["ticket"])
        # Without the monitor the policy knows what each can do.
        assert run.check("open_ticket", deadline_ms=0).decision == "allow"
        assert run.check("close_ticket", deadline_ms=0).decision == "block"


@pytest.mark.parametrize("options", [{"effect": "harmless"}, {"effect": "read", "name": "x" * 300}])
def test_what_makes_no_contract_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidSettings, match="the contract of tool"):
        tool(**options)(lambda: None)
    assert declared_contracts() == ()


# ------------------------------------------------------------------ what is said


def test_what_the_monitor_says_is_told_to_the_agent() -> None:
    heard: list[Any] = []
    with watched_sync(Recorded(), on_output=heard.append):
        find("Ada")
    assert isinstance(heard[0], Verdict)
    assert [output.type for output in heard] == ["verdict", "scorecard"]


def test_who_looks_on_and_fails_takes_no_result_from_the_tool() -> None:
    def fails(_output: Any) -> None:
        raise ValueError("a bug of the agent's own")

    monitor = Recorded()
    with watched_sync(monitor, on_output=fails):
        assert find("Ada") == ORDER
    assert monitor.end.outcome == "success"
    assert len(monitor.steps) == 1


def test_a_result_that_cannot_be_looked_into_is_returned_and_shown() -> None:
    class Closed(Mapping[str, Any]):
        def __getitem__(self, name: str) -> Any:
            raise RuntimeError("the cursor is closed")

        def __iter__(self) -> Iterator[str]:
            return iter(["a"])

        def __len__(self) -> int:
            return 1

        def __repr__(self) -> str:
            return "a closed cursor"

    rows = Closed()

    @tool
    def query(before: Any = None) -> Any:
        return rows

    monitor = Recorded()
    with watched_sync(monitor):
        assert query(rows) is rows
    (step,) = monitor.steps
    assert (step.args, step.result) == ({"before": "a closed cursor"}, "a closed cursor")


async def test_a_tool_that_outlives_its_run_still_gives_its_result() -> None:
    goes_on = asyncio.Event()

    @tool(gate=False)
    async def slow() -> str:
        await goes_on.wait()
        return "late"

    server = HttpChannel(SETTINGS, "http://127.0.0.1:9", send_s=0.1)
    async with watched(Recorded()) as run:
        task = asyncio.create_task(slow())
        await asyncio.sleep(0)
    run._channel = server  # closed, as one to `ontrack serve` is by now
    goes_on.set()
    assert await task == "late"
