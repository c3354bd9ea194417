"""Experiments: jobs through the public monitor, and what is made of their results."""

import json
from pathlib import Path

import pytest

from ontrack.pipeline.evaluation import abort, faults, gate, loops, policies, ranking
from ontrack.pipeline.evaluation.corpus import Recording, ReferencePlan, read_corpora
from ontrack.pipeline.evaluation.figures import calibration_points, roc_points
from ontrack.pipeline.evaluation.inject import ATTACKS
from ontrack.pipeline.evaluation.injected import Herd
from ontrack.pipeline.evaluation.measures import Estimate, Measure
from ontrack.pipeline.evaluation.policies import Course
from ontrack.pipeline.evaluation.processes import run_jobs
from ontrack.pipeline.evaluation.watching import Setup, Watcher
from ontrack.pipeline.settings import load_settings
from ontrack.pipeline.workplace import contracts
from ontrack.topics.errors import InvalidFile
from ontrack.topics.events import Step
from tests.pipeline.evaluation.runs import recording, write_workplace

Plan = dict[str, tuple[Recording, ...]]


@pytest.fixture(scope="module")
def setup(tmp_path_factory: pytest.TempPathFactory) -> Setup:
    path = write_workplace(tmp_path_factory.mktemp("corpus"))
    settings = load_settings(profile="paper", encoder="hashing", kernel="numpy")
    return Setup(settings, contracts(), tuple(read_corpora([str(path)])))


@pytest.fixture(scope="module")
def chosen(setup: Setup) -> Plan:
    return ReferencePlan(count=3, equal=False).choose(setup.recordings)


@pytest.fixture(scope="module")
def herd(setup: Setup) -> Herd:
    return Herd(setup.recordings, {each.name: each for each in setup.contracts})


def value(measures: list[Measure], method: str, measure: str) -> Estimate:
    (found,) = [m.estimate for m in measures if (m.method, m.measure) == (method, measure)]
    return found


def test_a_measure_is_the_line_that_the_interface_promises() -> None:
    made = Measure("gate", "c", "paper", "gate", "blocked_clean", Estimate(1 / 3, 0, 1, 9))
    assert json.loads(json.dumps(made.as_record())) == {
        "type": "measure",
        "experiment": "gate",
        "corpus": "c",
        "profile": "paper",
        "method": "gate",
        "measure": "blocked_clean",
        "k": None,
        "value": 0.3333,
        "low": 0.0,
        "high": 1.0,
        "n": 9,
    }


# ------------------------------------------------------------------ processes


def test_the_results_do_not_depend_on_the_number_of_processes(setup: Setup, chosen: Plan) -> None:
    jobs = [
        ranking.RankingJob(run.run_id, tuple(r.run_id for r in chosen[run.run_id]), (3, 0))
        for run in setup.recordings[:9]
    ]
    counted: list[int] = []
    alone = run_jobs(ranking.score_run, setup, jobs, 1)
    together = run_jobs(ranking.score_run, setup, jobs, 2, lambda: counted.append(1))
    assert together == alone
    assert len(counted) == len(jobs)


# ------------------------------------------------------------------ ranking


def test_successes_of_the_workplace_rank_above_its_failures(setup: Setup, chosen: Plan) -> None:
    runs = ranking.eligible(setup.recordings, chosen)
    jobs = [
        ranking.RankingJob(run.run_id, tuple(r.run_id for r in chosen[run.run_id]), (0,))
        for run in runs
    ]
    scores = run_jobs(ranking.score_run, setup, jobs, 1)
    scored = {job.run_id: each for job, each in zip(jobs, scores, strict=True)}
    measures = ranking.summarise(runs, scored, "paper", seed=0)
    for method in ("rank_score", "edit_distance"):
        within = value(measures, method, "auroc_within_task")
        assert within.value is not None
        assert within.value > 0.8, method
        assert within.n == 18
    against = {m.more["against"] for m in measures if m.measure == "auroc_within_task_difference"}
    assert against == set(ranking.RIVALS)


def test_runs_shorter_than_k_can_be_left_out() -> None:
    runs = [recording("a", "xyz"), recording("b", "x", success=False), recording("c", "xy")]
    scored = {
        run.run_id: {2: dict.fromkeys(ranking.METHODS, float(len(run.steps)))} for run in runs
    }
    all_runs = ranking.summarise(runs, scored, "p", 0)
    assert value(all_runs, "cosine", "auroc_pooled").n == 3
    assert ranking.summarise(runs, scored, "p", 0, full_prefixes=True) == []


def test_all_corpora_together_are_the_runs_with_references() -> None:
    runs = [recording("a", "x"), recording("b", "y", success=False)]
    lonely = [
        recording("c", "x", corpus="d"),
        recording("d", "y", success=False, corpus="d"),
    ]
    scored = {run.run_id: {2: dict.fromkeys(ranking.METHODS, 1.0)} for run in runs}
    nothing = dict.fromkeys(ranking.METHODS) | {"n_steps": -1.0}
    scored |= {run.run_id: {2: nothing} for run in lonely}
    found = {
        (m.corpus, m.method): m.estimate.n
        for m in ranking.summarise([*runs, *lonely], scored, "p", 0)
        if m.measure == "auroc_pooled"
    }
    assert found["c", "cosine"] == found["c", "n_steps"] == 2
    assert found["(all)", "cosine"] == found["(all)", "n_steps"] == 2
    assert found["d", "n_steps"] == 2
    assert ("d", "cosine") not in found


def test_runs_without_references_are_ranked_only_where_the_corpus_has_none() -> None:
    runs = [recording("a", "x"), recording("b", "y"), recording("only", "x", task="u")]
    chosen = ReferencePlan().choose(runs)
    assert [run.run_id for run in ranking.eligible(runs, chosen)] == ["a", "b"]
    lonely = [recording("a", "x"), recording("b", "y", task="u", success=False)]
    assert len(ranking.eligible(lonely, ReferencePlan().choose(lonely))) == 2


# ------------------------------------------------------------------ gate and faults


def test_the_gate_is_asked_about_clean_calls_and_about_each_attack(
    setup: Setup, chosen: Plan, herd: Herd
) -> None:
    jobs = gate.plan(setup.recordings, chosen, herd, seed=1, runs_max=2)
    assert {job.attack for job in jobs} <= {None, *ATTACKS}
    assert [job.attack for job in jobs].count(None) == 2
    answers = run_jobs(gate.ask, setup, jobs, 1)
    for job, answer in zip(jobs, answers, strict=True):
        assert answer.blocked <= answer.asked
        if job.attack is None:
            assert answer.asked == len(Watcher(setup).recordings[job.run_id].steps)
    measures = gate.summarise(jobs, answers, "paper", seed=0)
    attacks = value(measures, "gate", "blocked_injected")
    assert attacks.n == sum(job.attack is not None for job in jobs)
    assert value(measures, "gate", "blocked_clean").n == 2
    # A tool that nobody declared and no reference uses.
    assert value(measures, "exfiltration", "blocked_injected").value == 1.0


def test_loops_are_found_at_once_and_a_fault_counts_from_its_first_step(
    setup: Setup, chosen: Plan, herd: Herd
) -> None:
    jobs = faults.plan(setup.recordings, chosen, herd, seed=1, runs_max=3)
    assert [job.kind for job in jobs].count("foreign_tool") == 3
    wanted = [job for job in jobs if job.kind in ("loop", "foreign_tool", faults.CLEAN)]
    alarms = run_jobs(faults.watch, setup, wanted, 1)
    measures = faults.summarise(wanted, alarms, "paper")
    assert value(measures, "loop", "found")[::3] == (1.0, 3)
    assert value(measures, "loop", "latency_max").value == 0.0
    assert value(measures, "foreign_tool", "found_by_name").value == 1.0
    assert value(measures, faults.CLEAN, "false_positive_runs").n == 3


def test_the_same_seed_injects_the_same_and_another_seed_elsewhere(
    setup: Setup, herd: Herd
) -> None:
    run = next(run for run in setup.recordings if run.succeeded)
    made = [herd.inject("loop", run, seed) for seed in (1, 1, *range(2, 8))]
    assert made[0] == made[1]
    assert any(each != made[0] for each in made[2:])


def test_a_foreign_tool_is_one_that_the_whole_corpus_does_not_use() -> None:
    runs = [recording("a", "xyz"), recording("b", "pqrs", corpus="other")]
    made = Herd(runs, {}).inject("foreign_tool", runs[0], seed=0)
    assert made is not None
    steps = [event for event in made.events if isinstance(event, Step)]
    assert {step.tool for step in steps[made.first : made.first + 3]} <= set("pqrs")
    # Where there is no other corpus, the workplace lends its tools.
    alone = Herd(runs[:1], {}).inject("foreign_tool", runs[0], seed=0)
    assert alone is not None
    assert len(alone.events) == len(runs[0].events) + 3


def test_verdicts_before_the_fault_are_not_counted() -> None:
    jobs = [faults.FaultJob("c", run_id, (), "loop", 0) for run_id in "ab"]
    measures = faults.summarise(
        jobs, [faults.Alarms((2, 3), ("LOOP", "LOOP")), faults.Alarms((), ())], "p"
    )
    assert value(measures, "loop", "found")[::3] == (0.5, 2)
    assert value(measures, "loop", "latency_median").value == 2.0


# ------------------------------------------------------------------ loops


def test_a_streak_is_at_least_four_identical_calls_in_a_row() -> None:
    def made(*results: str) -> list[Step]:
        return [Step(run_id="r", tool="look", result=result) for result in results]

    assert loops.streaks(made("a", "a", "a"), with_results=True) == []
    assert loops.streaks(made("b", "a", "a", "a", "a"), with_results=True) == [(1, 4)]
    assert loops.streaks(made("1", "2", "3", "4", "5"), with_results=True) == []
    assert loops.streaks(made("1", "2", "3", "4", "5"), with_results=False) == [(0, 4)]


def test_a_matrix_tells_loops_in_time_from_legitimate_patterns(tmp_path: Path) -> None:
    same = {"tool": "read", "args": {"path": "a"}, "result": "X", "error": False, "action": ""}
    file = tmp_path / "matrix.json"
    batch = [{**same, "args": {"path": f"f{n}"}, "result": f"ok {n}"} for n in range(6)]
    file.write_text(
        json.dumps(
            {
                "L": {"what": "the same again", "loop_by_step": 4, "steps": [same] * 6},
                "P": {"what": "a batch", "loop_by_step": None, "steps": batch},
            }
        )
    )
    matrix = loops.read_matrix(str(file))
    setup = Setup(load_settings(profile="paper", encoder="hashing", kernel="numpy"), (), ())
    jobs = [loops.LoopJob(name, pattern) for name, pattern in matrix.items()]
    signs = dict(zip(matrix, run_jobs(loops.watch, setup, jobs, 1), strict=True))
    measures = loops.summarise_matrix("matrix", matrix, signs, "paper")
    assert value(measures, "L", "found").value == 1.0
    assert value(measures, "monitor", "found")[::3] == (1.0, 1)
    assert value(measures, "monitor", "false_loop")[::3] == (0.0, 1)


def test_a_loop_found_too_late_is_not_found() -> None:
    pattern = loops.Pattern(loop_by_step=4, steps=[{"tool": "a"}])
    for warned, hit in (((3,), 1.0), ((4,), 0.0), ((), 0.0)):
        measures = loops.summarise_matrix(
            "m", {"L": pattern}, {"L": loops.LoopSigns(warned, None, None)}, "p"
        )
        assert value(measures, "monitor", "found").value == hit


@pytest.mark.parametrize("text", ["{", '{"L": {"loop_by_step": 4}}', '{"L": {"steps": [{}]}}'])
def test_a_matrix_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "matrix.json"
    file.write_text(text)
    with pytest.raises(InvalidFile, match="loop_by_step"):
        loops.read_matrix(str(file))


def test_a_matrix_is_refused_in_our_words(tmp_path: Path) -> None:
    file = tmp_path / "matrix.json"
    file.write_text('{"again": {"steps": [{"tool": 5}]}}')
    with pytest.raises(InvalidFile, match="field `tool` should be a valid string, found 5$"):
        loops.read_matrix(str(file))
    with pytest.raises(InvalidFile, match="cannot be read: Is a directory"):
        loops.read_matrix(str(tmp_path))


def test_warnings_are_counted_by_outcome() -> None:
    runs = [recording("a", "xy"), recording("b", "xxxx", success=False), recording("c", "y")]
    signs = {
        "a": loops.LoopSigns((1,), None, None),
        "b": loops.LoopSigns((3,), 3, 3),
        "c": loops.LoopSigns((), None, None),
    }
    measures = loops.summarise(runs, signs, "p")
    assert value(measures, "monitor", "warned_success")[::3] == (0.5, 2)
    assert value(measures, "monitor", "halted_success").value == 0.0
    assert value(measures, "monitor", "halted_failure")[::3] == (1.0, 1)
    # The results differ (x0, x1, …), so it is a streak of calls only.
    assert value(measures, "monitor", "natural_calls_found")[::3] == (1.0, 1)
    assert all(measure.measure != "natural_found" for measure in measures)


# ------------------------------------------------------------------ abort


def course(length: int, severe: tuple[int, ...] = (), halt: int | None = None) -> Course:
    return Course(
        tuple(place in severe for place in range(length)),
        halt,
        tuple(1.0 - 0.1 * place for place in range(length)),
        tuple(float(place + 1) for place in range(length)),
    )


def test_flag_density_stops_at_the_step_that_fills_the_window() -> None:
    runs = [recording("a", "x" * 10)]
    flagged = [course(10, severe=(2, 4, 5, 9))]
    assert policies.flag_density(0.2)(runs, flagged) == [4]
    assert policies.flag_density(0.5)(runs, flagged) == [5]
    assert policies.flag_density(0.7)(runs, flagged) == [None]


def test_a_limit_is_never_learned_from_the_run_or_its_fold() -> None:
    # Twenty successes of 3 steps in twenty tasks, and one failure of 9.
    runs = [recording(f"r{n}", "xyz", task=f"t{n}") for n in range(20)]
    runs.append(recording("long", "x" * 9, task="t-long", success=False))
    courses = [course(len(run.steps)) for run in runs]
    assert policies.step_limit(0.95)(runs, courses) == [None] * 20 + [3]
    # One success of 9 steps cannot raise its own limit.
    runs[0] = recording("r0", "x" * 9, task="t0")
    assert policies.step_limit(0.5)(runs, [course(len(run.steps)) for run in runs])[0] == 3


def test_five_other_successes_of_the_task_set_its_own_limit() -> None:
    runs = [recording(f"r{n}", "x" * 8, task="slow") for n in range(6)]
    runs += [recording(f"q{n}", "xy", task=f"t{n}") for n in range(9)]
    stops = policies.step_limit(0.95)(runs, [course(len(run.steps)) for run in runs])
    assert stops == [None] * 15


def test_without_any_success_nothing_is_stopped_by_a_limit() -> None:
    runs = [recording("a", "x" * 9, success=False)]
    for policy in (
        policies.step_limit(0.9),
        policies.cosine_limit(0.1),
        policies.budget_limit(1.5),
    ):
        assert policy(runs, [course(9)]) == [None]


def test_a_hybrid_stops_with_the_first_of_its_policies() -> None:
    runs = [recording(name, "x" * 6) for name in "abc"]
    courses = [course(6, severe=(3, 4), halt=5), course(6, halt=2), course(6)]
    policy = policies.either(policies.flag_density(0.3), policies.halt)
    assert policy(runs, courses) == [4, 2, None]


def test_precision_false_stops_and_savings_are_what_the_stops_say() -> None:
    runs = [
        recording("good", "xy", task="t1"),
        recording("also", "xy", task="t2"),
        recording("bad", "x" * 10, task="t3", success=False),
        recording("worse", "x" * 10, task="t4", success=False),
    ]
    courses = {
        "good": course(2, halt=1),
        "also": course(2),
        "bad": course(10, halt=3),
        "worse": course(10, halt=9),
    }
    measures = abort.summarise(runs, courses, "p", seed=0)
    assert value(measures, "halt", "precision")[::3] == (pytest.approx(2 / 3), 3)
    assert value(measures, "halt", "precision_balanced").value == pytest.approx(1 / 1.5)
    assert value(measures, "halt", "false_stops")[::3] == (0.5, 2)
    assert value(measures, "halt", "true_stops")[::3] == (1.0, 2)
    # After the stop at step 3 of 10, six are saved; a stop at the last step saves none.
    assert value(measures, "halt", "steps_saved").value == pytest.approx(6 / 20)
    assert (0.5, pytest.approx(0.3)) in abort.savings(runs, courses)["halt"]


def test_what_was_spent_is_dollars_where_steps_have_costs_and_characters_elsewhere(
    setup: Setup, chosen: Plan
) -> None:
    run = setup.recordings[0]
    names = tuple(each.run_id for each in chosen[run.run_id])
    found = abort.watch(Watcher(setup), abort.AbortJob(run.run_id, names))
    costs = [step.cost_usd or 0.0 for step in run.steps]
    assert found.spent == pytest.approx([sum(costs[: n + 1]) for n in range(len(costs))])
    assert len(found.cosine) == found.length == len(run.steps)
    assert all(-1.0001 <= each <= 1.0001 for each in found.cosine)


# ------------------------------------------------------------------ curves


def test_the_roc_runs_from_corner_to_corner_and_its_area_is_the_auroc() -> None:
    points = roc_points([3.0, 2.0, 2.0, 1.0], [True, True, False, False])
    assert (points[0], points[-1]) == ((0.0, 0.0), (1.0, 1.0))
    area = sum((b[0] - a[0]) * (a[1] + b[1]) / 2 for a, b in zip(points, points[1:], strict=False))
    assert area == pytest.approx(0.875)


def test_calibration_cuts_the_runs_into_equal_parts_by_score() -> None:
    points = calibration_points([4.0, 1.0, 3.0, 2.0], [True, False, True, False], bins=2)
    assert points == [(0.25, 0.0), (0.75, 1.0)]
