"""Open runs as states and as bytes: memory is all that differs."""

from __future__ import annotations

import sys
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ontrack.pipeline.folding.fold import Fold
from ontrack.pipeline.folding.partition import PartitionState
from ontrack.pipeline.folding.record import Record
from ontrack.pipeline.making import make_fold
from ontrack.pipeline.settings import Settings
from ontrack.pipeline.workplace import contracts, load_stream, references, simulate_run, task_ids
from ontrack.topics import codecs
from ontrack.topics.events import Event


def new_fold(warm_runs_max: int) -> Fold:
    fold = make_fold(Settings(encoder="hashing", warm_runs_max=warm_runs_max))
    fold.library.fill(references(), contracts())
    return fold


LARGE, SMALL = new_fold(1000), new_fold(2)


def outputs(fold: Fold, events: list[Event]) -> tuple[list[bytes], PartitionState]:
    state = fold.partition()
    said = []
    for number, event in enumerate(events):
        record = Record(codecs.encode(event), offset=number)
        said += [codecs.encode(output) for output in fold.apply(state, record)]
    return said, state


def test_a_run_that_was_put_away_comes_back_with_its_next_event() -> None:
    runs = [simulate_run(task_ids()[0], seed, run_id=f"r{seed}").events for seed in range(4)]
    events = [run[step] for step in range(4) for run in runs]
    kept, state = outputs(LARGE, events)
    put_away, small = outputs(SMALL, events)
    assert put_away == kept
    assert (small.runs.cold, state.runs.cold) == (2, 0)
    assert len(small.runs) == len(state.runs) == 4
    assert set(small.runs) == set(state.runs)


def test_a_run_is_found_at_every_moment_while_others_come_and_go() -> None:
    _, state = outputs(SMALL, list(simulate_run(task_ids()[0], 1, run_id="old").events[:3]))
    runs = state.runs
    run = runs["old"]
    missed: list[str] = []
    done = threading.Event()

    def look() -> None:
        while not done.is_set():
            if "old" not in runs or runs.get("old") is None or "old" not in list(runs):
                missed.append("old")

    reader = threading.Thread(target=look)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        reader.start()
        for number in range(300):
            runs[f"other-{number % 3}"] = run
            runs["old"] = runs["old"]
    finally:
        done.set()
        reader.join()
        sys.setswitchinterval(interval)
    assert missed == []
    assert sorted(runs) == ["old", "other-0", "other-1", "other-2"]
    assert len(runs) == 4
    del runs["old"]
    assert "old" not in runs
    with pytest.raises(KeyError):
        del runs["old"]


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 10_000), st.integers(4, 9))
def test_a_fleet_is_judged_the_same_however_few_runs_are_kept_as_states(
    seed: int, runs: int
) -> None:
    events = list(load_stream(runs, seed=seed, fault_rate=0.5))
    assert outputs(SMALL, events)[0] == outputs(LARGE, events)[0]
