"""The memory of events: bounded by bytes over all runs, whole runs or none."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ontrack.pipeline.serving.event_memory import OVERHEAD_BYTES, EventMemory


def test_events_come_back_in_the_order_in_which_they_were_added() -> None:
    memory = EventMemory()
    for run_id, value in (("a", b"1"), ("b", b"2"), ("a", b"3")):
        memory.add(run_id, value)
    assert memory.events("a") == (b"1", b"3")
    assert memory.since("a", 1) == [b"3"]
    assert memory.since("a", 9) == []
    assert memory.events("c") is None
    assert memory.since("c", 0) is None
    assert memory.held_bytes == 3 * (1 + OVERHEAD_BYTES)


def test_the_run_that_was_silent_for_the_longest_goes_first_and_goes_whole() -> None:
    memory = EventMemory(bytes_max=4 * (10 + OVERHEAD_BYTES))
    for run_id in ("a", "b", "a", "c"):
        memory.add(run_id, b"x" * 10)
    memory.add("c", b"x" * 10)
    assert memory.events("b") is None
    assert memory.has_forgotten("b")
    assert memory.events("a") is not None
    memory.add("b", b"late")  # its beginning is gone
    assert memory.events("b") is None


def test_a_run_larger_than_the_memory_is_not_held_in_part() -> None:
    memory = EventMemory(bytes_max=100)
    memory.add("a", b"x" * 101)
    memory.add("a", b"y")
    assert memory.events("a") is None
    assert (len(memory), memory.held_bytes) == (0, 0)


def test_a_run_that_grows_without_end_does_not_drive_out_all_others() -> None:
    memory = EventMemory(bytes_max=100 * (10 + OVERHEAD_BYTES))
    others = [f"run-{number}" for number in range(40)]
    for run_id in others:
        memory.add(run_id, b"x" * 10)
    for _ in range(200):
        memory.add("greedy", b"x" * 10)
    assert memory.events("greedy") is None
    assert memory.has_forgotten("greedy")
    assert all(memory.events(run_id) is not None for run_id in others)


@given(
    st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 60)), max_size=40),
    st.integers(0, 600),
)
def test_never_more_than_the_bound_is_held_and_runs_are_whole(
    added: list[tuple[str, int]], bytes_max: int
) -> None:
    memory, all_of = EventMemory(bytes_max), {}  # type: ignore[var-annotated]
    for number, (run_id, size) in enumerate(added):
        value = f"{number:02}".encode() + b"x" * size
        memory.add(run_id, value)
        all_of.setdefault(run_id, []).append(value)
        held = {name: memory.events(name) for name in "abcd"}
        here = [value for events in held.values() if events is not None for value in events]
        assert memory.held_bytes == sum(len(value) + OVERHEAD_BYTES for value in here) <= bytes_max
        for name, events in held.items():
            assert events is None or list(events) == all_of[name]
            assert events is None or not memory.has_forgotten(name)
