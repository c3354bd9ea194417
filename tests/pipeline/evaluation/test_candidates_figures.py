"""Some references against all of them: jobs, steps and figures."""

from __future__ import annotations

from typing import Any

import pytest

from ontrack.operators import pooling
from ontrack.operators.candidates import CandidateParams
from ontrack.pipeline.cli import evaluate_twins, measures
from ontrack.pipeline.evaluation import candidates
from ontrack.pipeline.evaluation.candidates import CandidatesJob, StepPair
from ontrack.pipeline.evaluation.corpus import read_corpora
from ontrack.pipeline.evaluation.watching import Setup, Watcher
from ontrack.pipeline.settings import load_settings
from ontrack.pipeline.workplace import contracts
from tests.pipeline.evaluation.runs import write_workplace


@pytest.fixture(scope="module")
def watcher(tmp_path_factory: pytest.TempPathFactory) -> Watcher:
    path = write_workplace(tmp_path_factory.mktemp("corpus"), good=3, bad=1)
    few = {"transport": {"candidates": {"all_max": 2, "aligned_min": 2, "cells": 0}}}
    made = load_settings(profile="paper", encoder="hashing", kernel="numpy", operators=few)
    return Watcher(Setup(made, contracts(), tuple(read_corpora([str(path)]))))


def test_a_pool_begins_with_the_runs_own_task_and_never_holds_the_run(watcher: Watcher) -> None:
    recordings = tuple(watcher.recordings.values())
    jobs = candidates.recorded_jobs(recordings, (3, 6), 4, seed=0)
    assert {job.count for job in jobs} == {3, 6}
    for job in jobs:
        own = {
            run.run_id
            for run in recordings
            if run.key == job.task and run.succeeded and run.run_id != job.run_id
        }
        assert job.run_id not in job.references
        assert len(job.references) <= job.count
        assert len(own & set(job.references)) == min(len(own), job.count)


def test_steps_are_taken_with_some_and_with_all(watcher: Watcher) -> None:
    job = candidates.recorded_jobs(tuple(watcher.recordings.values()), (6,), 1, seed=0)[0]
    pairs = candidates.follow(watcher, job)
    assert len(pairs) == len(watcher.recordings[job.run_id].steps)
    assert all(each.pruned and each.excess >= 0 for each in pairs)
    assert sum(each.excess <= candidates.TIE for each in pairs) > 0.8 * len(pairs)


def test_a_controlled_run_has_as_many_wordings_as_asked_for(watcher: Watcher) -> None:
    job = candidates.controlled_jobs(1, (5,))[0]
    assert candidates.follow(watcher, job)


def test_figures_are_shares_of_steps_and_a_ratio_of_sums() -> None:
    pairs = [StepPair(0.0, False, 0.0, 1.0, 4.0, True), StepPair(0.1, True, -0.2, 2.0, 4.0, True)]
    jobs = [CandidatesJob("one", "t", 20, "r"), CandidatesJob("one", "u", 20, "s")]
    made = candidates.summarise(jobs, [pairs, pairs[:1]], "paper", 0)
    figures = {each.measure: each.estimate for each in made if each.corpus == "one"}
    assert figures["same_best"].value == pytest.approx(2 / 3)
    assert figures["time_ratio"].value == pytest.approx(4 / 12)
    assert figures["excess_loss_max"].value == pytest.approx(0.1)
    assert figures["score_gap_max"].value == pytest.approx(0.2)
    assert figures["leak_differs"].value == pytest.approx(1 / 3)
    assert {each.method for each in made} == {"K=20"}


def test_neither_is_always_first_and_the_first_step_is_warmed_up(
    watcher: Watcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who comes second finds warm caches: with one order equal work was told as a ratio of 0.4."""
    order: list[bool] = []
    plain, gather = pooling.step, candidates.gather

    def seen(params: Any, *more: Any) -> Any:
        order.append(params.candidates.all_max >= 1000)
        return plain(params, *more)

    def gathered(*given: Any) -> Any:
        found = gather(*given)
        order.clear()  # of the monitor's own steps
        return found

    job = candidates.recorded_jobs(tuple(watcher.recordings.values()), (6,), 1, seed=0)[0]
    before = [each._replace(seconds=0, all_seconds=0) for each in candidates.follow(watcher, job)]
    monkeypatch.setattr(pooling, "step", seen)
    monkeypatch.setattr(candidates, "gather", gathered)
    pairs = candidates.follow(watcher, job)
    assert [each._replace(seconds=0, all_seconds=0) for each in pairs] == before
    assert len(order) == 2 * len(pairs) + 2
    firsts = order[2::2]  # the two that warm up apart
    assert abs(sum(firsts) - sum(not each for each in firsts)) <= 1


def test_what_takes_long_says_how_far_it_is_without_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measures, "LINE_S", 0.0)
    with measures.progress("candidates, paper", 1200) as advance:
        for _ in range(2):
            advance()
    told = capsys.readouterr()
    assert told.err == "candidates, paper: 1 of 1,200\ncandidates, paper: 2 of 1,200\n"
    assert told.out == ""


def test_the_command_asks_for_numbers_at_which_something_is_left_out() -> None:
    """At 10 and 20 all were aligned twice over: half of the time, and a ratio of 1 at best."""
    counts = {each.name: each.default for each in evaluate_twins.candidates.params}["counts"]
    assert min(map(int, counts.split(","))) > CandidateParams().all_max
