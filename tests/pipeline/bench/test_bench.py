"""``ontrack bench step``: the command, the yardstick's results, the clock, the monitored run."""

import json
import os
import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from ontrack.pipeline.bench import alignments, clock, textbook
from ontrack.pipeline.bench.monitoring import MonitorStep
from ontrack.pipeline.blas import THREAD_VARIABLES
from ontrack.pipeline.cli.bench import command
from ontrack.pipeline.settings import load_settings
from ontrack.solver.problem import SolverParams
from tests.solver.problems import Problem, problems, solver_params, stream

EXPECTED = {
    ("engine", "t=m=20,K=3"),
    ("engine", "t=m=40,K=3"),
    ("engine", "t=m=80,K=3"),
    ("textbook", "t=m=20,K=3"),
    ("textbook", "t=m=40,K=3"),
    ("textbook", "t=m=80,K=3"),
    ("converged", "t=m=40,K=3"),
    ("monitor", "t=m=40,K=3"),
    ("monitor_cached", "t=m=40,K=3"),
}


# ------------------------------------------------------------------ the command


def test_the_command_prints_the_machine_and_then_every_figure() -> None:
    program = "from ontrack.pipeline.cli import main; main()"
    environment = {k: v for k, v in os.environ.items() if k not in THREAD_VARIABLES}
    done = subprocess.run(
        [sys.executable, "-c", program, "bench", "step", "--json", "--seconds", "0.01"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    machine, *figures = [json.loads(line) for line in done.stdout.splitlines()]
    assert machine["type"] == "machine"
    assert machine["numpy"] == np.__version__
    assert machine["blas_threads"] in (1, None)
    assert {"cpu", "cores", "python", "blas", "openblas_coretype", "encoder"} <= set(machine)
    assert {(f["name"], f["size"]) for f in figures} - {("pot", "t=m=40,K=3")} == EXPECTED
    for figure in figures:
        assert figure["type"] == "figure"
        assert figure["bench"] == "step"
        assert 0 < figure["p50_us"] <= figure["p95_us"] <= figure["p99_us"]
        assert figure["events_per_s"] > 0
        assert figure["samples"] >= 1


def test_a_ratio_times_the_figure_it_names_is_the_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    figures, _ = run_in_this_process(monkeypatch)
    medians = {(f["name"], f["size"]): f["p50_us"] for f in figures}
    for figure in figures:
        if figure["name"] == "engine":
            assert figure["ratio_to"] is None
            assert figure["ratio"] is None
        else:
            assert figure["ratio_to"] == "engine"
            named = medians[figure["ratio_to"], figure["size"]]
            assert figure["ratio"] * named == pytest.approx(figure["p50_us"], rel=0.01)


def test_without_pot_the_command_says_so_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ot.gromov", None)
    figures, complaint = run_in_this_process(monkeypatch)
    assert {(f["name"], f["size"]) for f in figures} == EXPECTED
    assert 'pip install "ontrack[bench]"' in complaint


def test_people_get_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    keep_threads(monkeypatch)
    monkeypatch.setitem(sys.modules, "ot.gromov", None)
    monkeypatch.setenv("COLUMNS", "120")
    result = CliRunner().invoke(command, ["step", "--seconds", "0.01"], catch_exceptions=False)
    assert result.exit_code == 0
    rows = [line for line in result.stdout.splitlines() if "t=m=" in line]
    assert len(rows) == len(EXPECTED)
    assert "blas_threads" in result.stdout


def run_in_this_process(monkeypatch: pytest.MonkeyPatch) -> tuple[list[dict], str]:
    keep_threads(monkeypatch)
    arguments = ["step", "--json", "--seconds", "0.01"]
    result = CliRunner().invoke(command, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    return [line for line in lines if line["type"] == "figure"], result.stderr


def keep_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the variables that the command sets put back after the test."""
    for name in THREAD_VARIABLES:
        monkeypatch.setenv(name, os.environ.get(name, "1"))


# ------------------------------------------------------------------ the yardstick


def by_the_book(problem: Problem, params: SolverParams, k: int) -> textbook.State:
    """Stream a problem against one of its references with the textbook implementation."""
    own = problem.references[k]
    parents = np.zeros((own.size, own.size), dtype=np.bool_)
    for parent, child in own.edges:
        parents[child, parent] = True
    reference = textbook.Reference(np.array(own.distance), parents, np.array(own.nu))
    state = textbook.State(np.zeros((0, own.size)), np.zeros(0), np.ones(own.size))
    for size in range(1, problem.steps + 1):
        state, _ = textbook.step(
            params,
            reference,
            state,
            problem.costs[k][:size],
            problem.distance_at(size),
            problem.ages[size - 1, :size],
            problem.mu[:size],
        )
    return state


@given(problems(), solver_params)
@settings(max_examples=30, deadline=None)
def test_textbook_and_engine_give_the_same_couplings(
    problem: Problem, params: SolverParams
) -> None:
    coupling = stream(problem, params)
    for k, reference in enumerate(problem.references):
        state = by_the_book(problem, params, k)
        np.testing.assert_allclose(
            state.plan, coupling.plan[k, :, : reference.size], rtol=1e-9, atol=1e-9
        )


@given(st.integers(1, 12), st.integers(1, 4), st.integers(0, 2**32 - 1))
@settings(max_examples=30, deadline=None)
def test_textbook_and_engine_do_the_same_work_on_what_is_timed(
    size: int, count: int, seed: int
) -> None:
    event = alignments.make_step(size, count, seed)
    coupling, losses = alignments.engine(event)
    assert coupling.plan.shape == (count, size, size)
    for k, (state, loss) in enumerate(alignments.by_the_book(event)):
        # float32: the engine's plan is stored in it, and on the compiled kernel made in it.
        np.testing.assert_allclose(state.plan, coupling.plan[k], rtol=0, atol=1e-6)
        np.testing.assert_allclose(state.u, coupling.u[k], rtol=1e-4)
        np.testing.assert_allclose(state.v, coupling.v[k], rtol=1e-4)
        assert loss == pytest.approx(losses[k], abs=1e-6)


@pytest.mark.parametrize("seed", range(4))
def test_textbook_and_engine_agree_at_the_size_that_is_compared(seed: int) -> None:
    event = alignments.make_step(40, 3, seed)
    coupling, losses = alignments.engine(event)
    for k, (state, loss) in enumerate(alignments.by_the_book(event)):
        np.testing.assert_allclose(state.plan, coupling.plan[k], rtol=0, atol=1e-6)
        assert loss == pytest.approx(losses[k], abs=1e-6)


def test_the_timed_run_follows_its_references() -> None:
    # Otherwise rows would be empty, and the figures those of a run that matches nothing.
    event = alignments.make_step(40, 3, seed=0)
    coupling, _ = alignments.engine(event)
    matched = coupling.plan.sum(axis=2) / event.mu
    assert (matched > 0.4).all()


def test_pot_solves_every_reference_of_the_prefix() -> None:
    pytest.importorskip("ot")
    solve = alignments.pot_solver()
    assert solve is not None
    event = alignments.make_step(8, 3, seed=0)
    plans = solve(event)
    assert [plan.shape for plan in plans] == [(8, 8)] * 3
    for plan in plans:
        assert np.isfinite(plan).all()
        assert (plan >= 0).all()
        assert plan.sum() > 0.1


# ------------------------------------------------------------------ the clock


class FakeTime:
    """Time that passes only when something is run."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_ns = 0
        monkeypatch.setattr(clock, "perf_counter_ns", lambda: self.now_ns)

    def taking(self, *milliseconds: float) -> Callable[[object], None]:
        """Return something to run that takes these times in turn."""
        calls = 0

        def run(_: object) -> None:
            nonlocal calls
            self.now_ns += round(milliseconds[calls % len(milliseconds)] * 1e6)
            calls += 1

        return run


def test_figures_are_percentiles_and_ratios_of_medians(monkeypatch: pytest.MonkeyPatch) -> None:
    time = FakeTime(monkeypatch)
    engine = clock.Contestant("engine", "n", int, time.taking(1.0))
    other = clock.Contestant("other", "n", int, time.taking(2.0, 3.0, 4.0), ratio_to="engine")
    elsewhere = clock.Contestant("engine", "N", int, time.taking(4.0))
    first, second, third = clock.measure([engine, other, elsewhere], seconds=10.0)
    assert (first.p50_us, first.p95_us, first.p99_us) == (1000.0, 1000.0, 1000.0)
    assert first.events_per_s == 1000.0
    assert first.ratio is None
    assert second.p50_us == 3000.0
    assert second.ratio == 3.0
    assert (first.p20_us, second.p20_us) == (1000.0, 2000.0)
    assert third.p50_us == 4000.0


def test_contestants_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    time = FakeTime(monkeypatch)
    order: list[str] = []

    def contestant(name: str) -> clock.Contestant:
        run = time.taking(1.0)
        return clock.Contestant(name, "n", lambda: order.append(name), run)

    clock.measure([contestant("a"), contestant("b"), contestant("c")], seconds=0.06)
    after_warm_up = "".join(order).lstrip("a").lstrip("b").lstrip("c")
    assert after_warm_up == "abc" * 10


def test_a_slow_contestant_joins_some_rounds_only_but_the_first_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    time = FakeTime(monkeypatch)
    quick = clock.Contestant("quick", "n", int, time.taking(1.0))
    slow = clock.Contestant("slow", "n", int, time.taking(50.0))
    figures = clock.measure([quick, slow], seconds=2.0)
    assert figures[0].samples == pytest.approx(10 * figures[1].samples, abs=10)
    assert clock.measure([quick, slow], seconds=1e-6)[1].samples == 1


def test_preparing_an_input_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    time = FakeTime(monkeypatch)
    preparing = time.taking(7.0)
    contestant = clock.Contestant("a", "n", lambda: preparing(None), time.taking(1.0))
    (figure,) = clock.measure([contestant], seconds=1.0)
    assert figure.p99_us == 1000.0


# ------------------------------------------------------------------ the monitored run


def test_the_monitored_step_is_the_fast_path_in_words_never_seen_before() -> None:
    monitor = MonitorStep(load_settings(encoder="hashing"), size=40, count=3)
    encoder = monitor._monitor.fold.encoder
    first, second = monitor.message(), monitor.message()
    assert first != second
    for message in (first, second):
        before = encoder.misses
        monitor.message()  # puts the run back to before its last step
        (output,) = monitor.apply(message)
        assert encoder.misses == before + 3
        verdict = json.loads(output)
        assert verdict["id"] == "bench-run:39"
        assert (verdict["verdict"], verdict["confirmed"]) == ("OK", None)
        assert verdict["best_reference"].startswith("bench-")


def test_where_texts_repeat_all_vectors_come_out_of_the_cache() -> None:
    monitor = MonitorStep(load_settings(encoder="hashing"), size=40, count=3, variants=3)
    encoder = monitor._monitor.fold.encoder
    misses, messages = encoder.misses, [monitor.message() for _ in range(4)]
    assert messages[0] == messages[3]
    assert len(set(messages)) == 3
    for message in messages:
        monitor.message()
        (output,) = monitor.apply(message)
        assert json.loads(output)["verdict"] == "OK"
    assert encoder.misses == misses


def test_the_monitored_step_is_compared_with_three_references_of_its_length() -> None:
    monitor = MonitorStep(load_settings(encoder="hashing"), size=40, count=3)
    references = monitor._before.knowledge.references
    assert references is not None
    assert references.arrays.sizes.tolist() == [40, 40, 40]
    assert monitor._before.prefix.size == 39
    # Built-in rules find the dependencies, so structure takes part in the alignment.
    assert sum(len(parents) for parents in monitor._before.prefix.parents) >= 30
