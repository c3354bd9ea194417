"""``ontrack bench all``: the budget, who is left out, the aims, the lines and the tables."""

import json
import os
import socket
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from aiokafka.errors import TopicAuthorizationFailedError
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from rpds import HashTrieMap

from ontrack.pipeline.bench import aims, machine, pipeline, suite, suite_parts
from ontrack.pipeline.bench.clock import Contestant
from ontrack.pipeline.bench.deepsize import MAP_ENTRY_BYTES, deep_size
from ontrack.pipeline.bench.horizon import LongRun, contestants, label
from ontrack.pipeline.bench.row import LeftOut, Row
from ontrack.pipeline.bench.suite import Part, Unavailable
from ontrack.pipeline.blas import THREAD_VARIABLES
from ontrack.pipeline.cli import bench_all
from ontrack.pipeline.cli.bench import command
from ontrack.pipeline.settings import load_settings
from ontrack.topics.errors import InvalidInput

NAMES = ["pipeline", "step", "horizon", "vital", "distance", "hooks"]


class FakeClock:
    """Time that passes only when somebody says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def taking(self, seconds: float, *found: Row | LeftOut) -> Callable[[float], Sequence]:
        """Return a part that takes this long, whatever it was given, and notes its share."""

        def measure(given: float) -> Sequence:
            self.given.append(given)
            self.now += seconds
            return found

        return measure

    given: list[float]


@pytest.fixture
def clock() -> FakeClock:
    made = FakeClock()
    made.given = []
    return made


def test_a_part_that_fails_takes_no_other_with_it(clock: FakeClock) -> None:
    def fails(_seconds: float) -> Sequence:
        raise InvalidInput("no run has a step")

    row = Row("last", "one", "small", 1.0)
    parts = [Part("first", 1, fails), Part("last", 1, clock.taking(1.0, row))]
    left_out = LeftOut("first", "first", "no run has a step")
    assert list(suite.run(parts, 60.0, clock=clock)) == [left_out, row]


def test_a_broker_that_refuses_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refused(*_given: object) -> list[object]:
        raise TopicAuthorizationFailedError("bench.events")

    monkeypatch.setattr(suite_parts, "_unreachable", lambda _broker: None)
    monkeypatch.setattr(pipeline, "measure", refused)
    with pytest.raises(Unavailable, match="TopicAuthorizationFailedError"):
        suite_parts._pipeline(load_settings(encoder="hashing"), print, 30.0)


def test_the_facts_say_which_runtime_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[dict[str, object]] = []
    monkeypatch.setattr(
        bench_all, "show", lambda _parts, _seconds, facts, _json: shown.append(facts)
    )
    monkeypatch.setenv("ONTRACK_RUNTIME", "aiokafka")
    bench_all.run_all("127.0.0.1:1", (), 1.0, True)
    assert shown[0]["runtime"] == "aiokafka"


# ------------------------------------------------------------------ the budget


def test_the_time_is_divided_by_the_parts_shares(clock: FakeClock) -> None:
    parts = [Part(str(share), share, clock.taking(10 * share)) for share in (1, 2, 3)]
    assert list(suite.run(parts, 60.0, clock=clock)) == []
    assert clock.given == [10.0, 20.0, 30.0]


def test_what_a_part_leaves_or_takes_beyond_is_the_others(clock: FakeClock) -> None:
    parts = [
        Part("hasty", 1, clock.taking(5.0)),  # is given 10
        Part("slow", 1, clock.taking(40.0)),  # is given 12.5
        Part("last", 3, clock.taking(5.0)),
    ]
    assert list(suite.run(parts, 50.0, clock=clock)) == []
    assert clock.given == pytest.approx([10.0, 11.25, 5.0])


def test_a_part_for_which_no_time_is_left_is_named(clock: FakeClock) -> None:
    parts = [Part("endless", 1, clock.taking(99.0)), Part("late", 1, clock.taking(1.0))]
    (found,) = suite.run(parts, 20.0, clock=clock)
    assert found == LeftOut("late", "late", "no time was left of 20 s")


@given(st.lists(st.tuples(st.floats(0.1, 9), st.floats(0, 2)), min_size=1, max_size=8))
def test_parts_that_keep_to_their_seconds_never_exceed_the_whole(
    drawn: list[tuple[float, float]],
) -> None:
    clock = FakeClock()

    def keeping(use: float) -> Callable[[float], Sequence]:
        def measure(given: float) -> Sequence:
            clock.now += given * min(use, 1.0)
            return []

        return measure

    parts = [Part("p", share, keeping(use)) for share, use in drawn]
    assert list(suite.run(parts, 100.0, clock=clock)) == []
    assert clock.now <= 100.0 + 1e-6


def test_a_part_that_cannot_run_says_why_and_the_others_go_on(clock: FakeClock) -> None:
    def unavailable(_: float) -> Sequence:
        raise Unavailable("no broker at nowhere")

    row = Row("b", "engine", "n", 1.0)
    parts = [Part("a", 1, unavailable), Part("b", 1, clock.taking(1.0, row))]
    assert list(suite.run(parts, 9.0, clock=clock)) == [
        LeftOut("a", "a", "no broker at nowhere"),
        row,
    ]


# ------------------------------------------------------------------ the aims


def measured(**changes: float) -> list[Row]:
    """Rows in which every aim is just met, but for what is changed."""
    size, short, long = "t=m=40,K=3", "t=200,m=40,K=3", "t=2000,m=40,K=3"
    p50 = {
        "engine": 100.0,
        "textbook": 1000.0,
        "pot": 30_000.0,
        "monitor_cached": 250.0,
        "converged": 10_000.0,
    } | changes
    rows = [Row("step", name, size, us, 0.0, 2 * us) for name, us in p50.items()]
    rows.append(Row("step", "longest_on_loop", "t=m=73,K=3", 15_000.0, 0.0, 20_000.0))
    rows += [Row("step", "engine", "t=m=80,K=3", 1.0)]  # of another size: not what is asked for
    for name in ("transport", "monitor"):
        rows += [Row("horizon", name, short, 10.0), Row("horizon", name, long, 15.0)]
    rows.append(Row("horizon", "held", long, held_bytes=2 * 2**20))
    rows.append(Row("pipeline", "embedded", "n", events_per_s=1000.0))
    rows.append(Row("pipeline", "worker", "n", events_per_s=600.0))
    rows.append(Row("pipeline", "end_to_end", "n", 10_000.0))
    return rows


def test_every_aim_of_the_issue_is_held_against_its_figure() -> None:
    judged = {each.aim.name: each for each in aims.judge(measured())}
    assert [each.verdict for each in judged.values()] == ["met"] * len(aims.AIMS)
    assert judged["textbook numpy : engine step, t=m=40, K=3"].figure == 10
    assert judged["POT's re-solve : engine step"].figure == 300
    assert judged["whole monitor step, p99 : p50"].figure == 2
    assert judged["memory of the run of 2,000 steps, MiB"].figure == 2


@pytest.mark.parametrize(
    ("changed", "aim"),
    [
        ({"textbook": 999.0}, "textbook numpy : engine step, t=m=40, K=3"),
        ({"pot": 29_999.0}, "POT's re-solve : engine step"),
        ({"monitor_cached": 251.0}, "whole monitor step : engine step"),
        ({"converged": 10_001.0}, "escalated solve : the larger of 10 ms and 40 engine steps"),
    ],
)
def test_what_is_beyond_its_limit_is_missed(changed: dict[str, float], aim: str) -> None:
    verdicts = {each.aim.name: each.verdict for each in aims.judge(measured(**changed))}
    assert verdicts.pop(aim) == "missed"
    assert set(verdicts.values()) == {"met"}


def test_an_escalated_solve_may_take_forty_engine_steps() -> None:
    rows = [replace(r, p50_us=400.0) if r.name == "engine" else r for r in measured()]
    rows = [replace(r, p50_us=15_999.0) if r.name == "converged" else r for r in rows]
    verdicts = {each.aim.name: each.verdict for each in aims.judge(rows)}
    assert verdicts["escalated solve : the larger of 10 ms and 40 engine steps"] == "met"


def test_beside_ratios_of_medians_stand_those_of_the_lower_quantiles() -> None:
    halves = {"engine": 80.0, "textbook": 640.0}
    rows = [replace(row, p20_us=halves.get(row.name)) for row in measured()]
    judged = {each.aim.name: each for each in aims.judge(rows)}
    assert judged["textbook numpy : engine step, t=m=40, K=3"].quiet == 8
    assert judged["textbook numpy : engine step, t=m=40, K=3"].verdict == "met"  # by the median
    assert judged["POT's re-solve : engine step"].quiet is None
    assert judged["whole monitor step, p99 : p50"].quiet is None


def test_what_was_left_out_is_neither_met_nor_missed() -> None:
    assert {each.verdict for each in aims.judge([])} == {"not measured"}
    for each in aims.judge([]):
        assert each.as_record()["figure"] is None


# ------------------------------------------------------------------ lines and tables


def some_parts(clock: FakeClock) -> list[Part]:
    missing = LeftOut("step", "pot", "POT is not installed")
    return [Part("step", 1, clock.taking(3.0, *measured(), missing))]


def test_programs_get_the_machine_the_figures_who_is_left_out_the_aims_and_the_end(
    clock: FakeClock, capsys: pytest.CaptureFixture[str]
) -> None:
    bench_all.show(some_parts(clock), 60.0, {"cpu": "x"}, True, clock)
    out, complaint = capsys.readouterr()
    lines = [json.loads(line) for line in out.splitlines()]
    kinds = [line["type"] for line in lines]
    assert (kinds[0], kinds[-1]) == ("machine", "end")
    assert kinds.count("figure") == len(measured())
    assert kinds.count("aim") == len(aims.AIMS)
    left_out = {line["bench"]: line for line in lines if line["type"] == "left_out"}
    assert left_out.keys() == {"step", "memory", "recovery", "scale"}
    assert "step: pot is left out: POT is not installed" in complaint
    assert lines[-1]["seconds"] == 3.0
    assert {"load", "steal"} <= lines[-1].keys()


def test_a_line_is_there_before_the_next_part_begins(
    clock: FakeClock, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[str] = []

    def looking(_: float) -> Sequence:
        seen.append(capsys.readouterr().out)
        return []

    parts = [Part("a", 1, clock.taking(1.0, Row("a", "engine", "n", 1.0))), Part("b", 1, looking)]
    bench_all.show(parts, 60.0, {}, True, clock)
    (told,) = seen
    assert json.loads(told.splitlines()[-1])["name"] == "engine"


def test_people_get_tables_of_figures_of_what_is_left_out_and_of_aims(
    clock: FakeClock, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "180")
    bench_all.show(some_parts(clock), 60.0, {"cpu": "x", "blas": None}, False, clock)
    out = capsys.readouterr().out
    for title in ("All benches", "Left out", "Aims"):
        assert title in out
    (aim,) = [line for line in out.splitlines() if "POT's re-solve" in line]
    assert aim.split()[-4:] == ["≥", "300", "300.00", "met"]  # no p20 in these rows
    assert any("ontrack bench recovery" in line for line in out.splitlines())
    assert "cpu x" in out
    assert "blas" not in out


# ------------------------------------------------------------------ the real parts


@pytest.fixture
def _one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in THREAD_VARIABLES:
        monkeypatch.setenv(name, os.environ.get(name, "1"))


def test_all_parts_take_part_and_their_shares_fit_ten_minutes() -> None:
    parts = suite_parts.parts(load_settings(), (), print)
    assert [part.bench for part in parts] == NAMES
    assert suite.TOTAL_S < 600


@pytest.mark.parametrize(
    ("hidden", "bench", "name", "advice"),
    [
        ("ek", "distance", "ek", "pip install ek"),
        ("pm4py", "vital", "pm4py", "pip install pm4py"),
        ("ot.gromov", "step", "pot", 'pip install "ontrack[bench]"'),
    ],
)
def test_a_yardstick_that_is_not_installed_is_named(
    monkeypatch: pytest.MonkeyPatch, hidden: str, bench: str, name: str, advice: str
) -> None:
    monkeypatch.setitem(sys.modules, hidden, None)
    if hidden == "ek":
        monkeypatch.setitem(sys.modules, "ek.agents.trajectory", None)
    monkeypatch.setattr(suite_parts, "MEASURED_S_MIN", 0.01)
    settings = load_settings(encoder="hashing", kernel="numpy")
    (part,) = [each for each in suite_parts.parts(settings, (), print) if each.bench == bench]
    found = part.measure(0.01)
    (left_out,) = [each for each in found if isinstance(each, LeftOut)]
    assert (left_out.bench, left_out.name) == (bench, name)
    assert advice in left_out.reason
    names = {each.name for each in found if isinstance(each, Row)}
    assert names
    assert bench != "step" or {"engine", "textbook", "longest_on_loop"} <= names


def test_without_a_broker_the_worker_is_left_out_with_the_address() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"  # nobody listens there
        settings = load_settings(broker=address)
        part = suite_parts.parts(settings, (), print)[0]
        with pytest.raises(Unavailable, match=address):
            part.measure(10.0)


@given(st.floats(0, 600))
def test_the_workers_bench_is_never_planned_for_more_than_its_time(seconds: float) -> None:
    plan = suite_parts.pipeline_plan(seconds)
    assert plan.events >= suite_parts.EVENTS_MIN
    free = seconds - suite_parts.PIPELINE_START_S
    if free > 60:
        backlog = 4.0 * plan.events / suite_parts.EMBEDDED_EVENTS_PER_S
        questions = 2 * plan.questions / suite_parts.QUESTIONS_PER_S
        assert backlog + plan.latency_s + questions <= free + 1
        assert suite_parts.pipeline_plan(seconds + 60).events >= plan.events


def test_the_command_without_a_name_is_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple] = []
    monkeypatch.setattr(bench_all, "run_all", lambda *given: asked.append(given))
    assert CliRunner().invoke(command, []).exit_code == 0
    arguments = ["all", "--json", "--seconds", "60", "--broker", "b:1", "--corpus", "f"]
    assert CliRunner().invoke(command, arguments).exit_code == 0
    assert asked == [(None, (), None, False), ("b:1", ("f",), 60.0, True)]


# ------------------------------------------------------------------ long runs


@pytest.fixture(scope="module")
def long_run() -> LongRun:
    return LongRun(load_settings(encoder="hashing", kernel="numpy"), (20, 120))


def test_the_step_that_is_timed_is_the_one_that_the_run_took(long_run: LongRun) -> None:
    for length, moments in long_run.moments.items():
        assert all(moment.is_aligned for moment in moments)
        last = moments[-1]
        (output,) = long_run.apply(last)
        assert json.loads(output)["seq"] == length - 1
        assert len(last.after.seen) == length
        plain = next(moment for moment in reversed(moments) if moment.is_plain)
        state, alignment = long_run.align(plain)
        assert plain.after.transport is not None
        np.testing.assert_array_equal(state.plan, plain.after.transport.plan)
        assert alignment.losses.shape == (3,)


def test_whole_steps_and_the_transport_alone_are_timed_at_each_length(long_run: LongRun) -> None:
    made: list[Contestant] = contestants(long_run)
    assert [(each.name, each.size) for each in made] == [
        (name, label(length)) for length in (20, 120) for name in ("monitor", "transport")
    ]
    for each in made:
        each.run(each.prepare())


def test_a_longer_run_holds_more_but_not_what_is_everybodys(long_run: LongRun) -> None:
    short, long = long_run.held_bytes[20], long_run.held_bytes[120]
    assert 5_000 < short < long < 1_000_000


# ------------------------------------------------------------------ sizes


def test_an_array_counts_its_data_once_and_a_view_what_it_looks_at() -> None:
    data = np.zeros(10_000)
    assert deep_size([data, data]) == deep_size(data) + sys.getsizeof([data, data])
    assert deep_size(data) >= data.nbytes
    assert deep_size(data[:1]) >= data.nbytes


def test_what_others_hold_as_well_does_not_count() -> None:
    shared = [np.zeros(1000), "text" * 100]
    both = {"own": np.ones(10), "shared": shared}
    assert deep_size(both, without=[shared]) == deep_size(both) - deep_size(shared)


def test_entries_of_a_persistent_map_count() -> None:
    full = HashTrieMap({number: bytes(100) + bytes([number]) for number in range(50)})
    entries = 50 * (MAP_ENTRY_BYTES + sys.getsizeof(bytes(101)))
    assert deep_size(full) >= deep_size(HashTrieMap()) + entries


@given(st.recursive(st.integers() | st.text(), lambda inner: st.lists(inner, max_size=4)))
def test_a_tree_weighs_what_its_parts_weigh(tree: object) -> None:
    seen: set[int] = set()

    def weigh(part: object) -> int:
        if id(part) in seen:
            return 0
        seen.add(id(part))
        inner = part if isinstance(part, list) else []
        return sys.getsizeof(part) + sum(map(weigh, inner))

    assert deep_size(tree) == weigh(tree)


# ------------------------------------------------------------------ the machine


def test_stolen_time_is_a_share_of_what_passed_between_two_readings() -> None:
    #        user nice system idle iowait irq softirq steal guest guest_nice
    before = (100, 0, 50, 500, 0, 0, 0, 10, 30, 0)
    after = (160, 0, 60, 520, 0, 0, 0, 20, 70, 0)
    assert machine.stolen(before, after) == pytest.approx(10 / 100)
    assert machine.stolen(before, before) is None
    assert machine.stolen(None, after) is None


def test_the_circumstances_name_load_system_and_versions() -> None:
    told = machine.circumstances()
    assert len(told["load"]) == 3
    assert told["versions"]["scipy"] is not None
    assert told["versions"].keys() >= {"POT", "pm4py", "ek", "aiokafka", "numba"}
