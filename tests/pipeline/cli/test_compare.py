"""`ontrack compare`: who is compared with whom, what is printed, how it exits; its benchmark."""

from __future__ import annotations

import json
import lzma
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from ontrack.operators.trajectory import SCHEMES, TrajectoryDistance, fold_text
from ontrack.pipeline.bench import clock, distances
from ontrack.pipeline.cli import cli, main
from ontrack.pipeline.comparing import RecordedRun, pair_up, read_runs, weights_of
from ontrack.topics.codecs import DEFAULT_LIMITS
from ontrack.topics.knowledge import ReferenceStep, ToolContract

GOLD = [("search", {"q": "cat"}), ("answer", {"a": "meow"})]
DETOUR = [GOLD[0], *GOLD]
Calls = Sequence[tuple[str, dict[str, Any]]]


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


def compare(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["compare", *arguments])


def lines(result: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def events(run_id: str, calls: Calls, task: str | None = None, **fields: Any) -> list[str]:
    return [json.dumps({"type": "run_started", "run_id": run_id, "task_id": task})] + [
        json.dumps(
            {"type": "step", "run_id": run_id, "seq": seq, "tool": tool, "args": args} | fields
        )
        for seq, (tool, args) in enumerate(calls)
    ]


def write(name: str, *runs: list[str]) -> str:
    Path(name).write_text("\n".join(line for run in runs for line in run) + "\n")
    return name


def run(run_id: str, task: str | None = None, tools: str = "a") -> RecordedRun:
    return RecordedRun(run_id, task, tuple(ReferenceStep(tool=tool) for tool in tools))


# ------------------------------------------------------------------ the command


def test_one_run_against_one_reference_whatever_their_ids() -> None:
    a, b = write("a.jsonl", events("one", DETOUR)), write("b.jsonl", events("two", GOLD))
    result = compare(a, "--reference", b, "--json")
    assert result.exit_code == 0
    found, summary = lines(result)
    assert found == {
        "type": "comparison",
        "run_id": "one",
        "reference_id": "two",
        "task_id": None,
        "scheme": "in_order",
        "dag": False,
        "distance": 2.0,
        "max_distance": 10.0,
        "normalised": 0.2,
        "alignment": [[0, None, 2.0], [1, 0, 0.0], [2, 1, 0.0]],
    }
    assert summary["paired_by"] == "one"
    assert (summary["pairs"], summary["normalised"]) == (1, 0.2)


@pytest.mark.parametrize(
    ("scheme", "distance", "largest"),
    [("in_order", 2.0, 10.0), ("exact", 10.0, 10.0), ("any_order", 2.0, 10.0), ("superset", 0, 4)],
)
def test_every_scheme_by_name(scheme: str, distance: float, largest: float) -> None:
    a, b = write("a.jsonl", events("one", DETOUR)), write("b.jsonl", events("two", GOLD))
    found = lines(compare(a, "--reference", b, "--scheme", scheme, "--json"))[0]
    assert (found["distance"], found["max_distance"]) == (distance, largest)


def test_people_get_both_sides_and_what_differs() -> None:
    a = write("a.jsonl", events("one", [GOLD[0], ("note", {}), ("answer", {"a": "woof", "n": 1})]))
    b = write("b.jsonl", events("two", [*GOLD, ("bye", {})]))
    out = compare(a, "--reference", b).stdout
    assert [line.split()[0] for line in out.splitlines()[2:5]] == ["same", "extra", "differs"]
    assert 'a: "woof" → "meow"' in out
    assert "n: 1 → (none)" in out
    assert "missing" in out
    assert "in_order: distance 4 of at most 11 = 0.3636, 1 pair (one against one)" in out


def test_text_of_agents_cannot_steer_the_terminal() -> None:
    a = write("a.jsonl", events("one\u202e", [("t", {"x": "\u001b[31m\u202e"})]))
    b = write("b.jsonl", events("two", [("t\u0007", {})]))
    out = compare(a, "--reference", b).stdout
    assert not {"\u001b", "\u202e", "\u0007"} & set(out)


def test_the_corpus_is_a_ratio_of_sums_and_can_fail() -> None:
    a = write("a.jsonl", events("1", [("a", {})]), events("2", [("a", {})] * 9))
    b = write("b.jsonl", events("1", [("b", {})]), events("2", [("a", {})] * 9))
    result = compare(a, "--reference", b, "--json")
    assert lines(result)[-1] == {
        "type": "summary",
        "scheme": "in_order",
        "dag": False,
        "paired_by": "run",
        "pairs": 2,
        "unpaired": 0,
        "distance": 2.0,
        "max_distance": 20.0,
        "normalised": 0.1,
    }
    assert compare(a, "--reference", b, "--fail-above", "0.1").exit_code == 0
    failed = compare(a, "--reference", b, "--fail-above", "0.09")
    assert failed.exit_code == 1
    assert "0.1000 is above 0.09" in failed.stderr


def test_contracts_and_weights_price_the_steps() -> None:
    Path("tools.yaml").write_text(
        "tools:\n- {name: look, effect: read}\n- {name: delete, effect: destructive}\n"
    )
    a = write("a.jsonl", events("1", [("look", {"id": 1}), ("delete", {})]))
    b = write("b.jsonl", events("2", [("look", {"id": 2})]))

    def distance(*more: str) -> float:
        return float(lines(compare(a, "--reference", b, "--json", *more))[0]["distance"])

    assert distance() == 2.0
    assert distance("--tools", "tools.yaml") == 11.0
    assert distance("--tools", "tools.yaml", "--weight", "destructive=30") == 31.0
    assert distance("--weight", "delete=5", "--weight", "look:id=0.5") == 5.5
    unused = compare(a, "--reference", b, "--weight", "lokk=5")
    assert "--weight lokk: no run calls this tool" in unused.stderr


def test_fold_ignores_case_and_white_space() -> None:
    a = write("a.jsonl", events("1", [("t", {"x": "New  York"})]))
    b = write("b.jsonl", events("2", [("t", {"x": "new york"})]))
    assert lines(compare(a, "--reference", b, "--json"))[0]["distance"] == 1.0
    assert lines(compare(a, "--reference", b, "--json", "--fold"))[0]["distance"] == 0.0


def test_dag_reads_the_dependencies_of_the_reference() -> None:
    looks: Calls = [("weather", {}), ("hotels", {})]
    a = write("a.jsonl", events("1", looks[::-1]))
    b = write("b.jsonl", events("2", looks, parents=[]))
    found = lines(compare(a, "--reference", b, "--dag", "--json"))[0]
    assert (found["distance"], found["is_exact"], found["lower_bound"]) == (0.0, True, 0.0)
    assert lines(compare(a, "--reference", b, "--json"))[0]["distance"] == 2.0
    told = compare(b, "--reference", a, "--dag")
    assert "no reference declares parents or consumed: --dag changes nothing" in told.stderr


def test_runs_and_references_may_be_compressed_and_references_may_be_published_lines() -> None:
    Path("a.jsonl.xz").write_bytes(lzma.compress("\n".join(events("1", GOLD, "t")).encode()))
    step = {"tool": "search", "args": {"q": "cat"}}
    reference = {"type": "reference", "reference_id": "ref", "task_id": "t", "steps": [step]}
    Path("b.jsonl").write_text(json.dumps(reference | {"provenance": "gold"}))
    found = lines(compare("a.jsonl.xz", "--reference", "b.jsonl", "--json"))[0]
    assert (found["reference_id"], found["distance"]) == ("ref", 2.0)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["a.jsonl"], "Missing option '--reference'"),
        (["a.jsonl", "--reference", "gone"], "gone: no such file or folder"),
        (["a.jsonl", "--reference", "a.jsonl", "--scheme", "best"], "'best' is not one of"),
        (["a.jsonl", "--reference", "a.jsonl", "--dag", "--scheme", "exact"], "--dag goes with"),
        (["-", "--reference", "-"], "only one of PATH and --reference"),
        (["a.jsonl", "--reference", "a.jsonl", "--weight", "x"], "expected WHAT=NUMBER"),
        (["a.jsonl", "--reference", "a.jsonl", "--weight", "x=-1"], "must be finite and not"),
        (["a.jsonl", "--reference", "b.jsonl", "--by", "run"], "nothing to compare"),
        (["a.jsonl", "--reference", "b.jsonl", "--by", "task"], "shares its task_id"),
    ],
)
def test_bad_usage_and_unreadable_input_exit_with_2(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write("a.jsonl", events("one", GOLD))
    write("b.jsonl", events("two", GOLD))
    with pytest.raises(SystemExit) as exited:
        main(["compare", *arguments])
    assert exited.value.code == 2
    told = capsys.readouterr()
    assert words in told.err
    assert not told.out


def test_empty_runs_have_defined_distances() -> None:
    a, b = write("a.jsonl", events("1", [])), write("b.jsonl", events("2", GOLD))
    found = lines(compare(a, "--reference", b, "--json"))[0]
    assert (found["distance"], found["normalised"]) == (4.0, 1.0)
    nothing = lines(compare(a, "--reference", a, "--json"))[0]
    assert (nothing["distance"], nothing["normalised"], nothing["alignment"]) == (0.0, 0.0, [])


# ------------------------------------------------------------------ who with whom


def test_runs_of_the_same_id_are_pairs_where_any_id_is_on_both_sides() -> None:
    found = pair_up([run("1", "t"), run("2", "t")], [run("2", "t"), run("3", "t")])
    assert found.rule == "run"
    assert [(one.run_id, [each.run_id for each in others]) for one, others in found.pairs] == [
        ("2", ["2"])
    ]
    assert [each.run_id for each in found.alone] == ["1"]


def test_else_the_references_of_the_task_are_candidates_but_never_the_run_itself() -> None:
    runs = [run("1", "t"), run("2", "u"), run("3")]
    found = pair_up(runs, [run("1", "t"), run("4", "t"), run("5", "t"), run("6")], "task")
    assert [(one.run_id, [each.run_id for each in others]) for one, others in found.pairs] == [
        ("1", ["4", "5"])
    ]
    assert [each.run_id for each in found.alone] == ["2", "3"]


def test_the_nearest_reference_of_a_task_counts_and_the_others_are_named_not() -> None:
    a = write("a.jsonl", events("1", GOLD, "t"))
    b = write("b.jsonl", events("far", [("x", {})], "t"), events("near", DETOUR, "t"))
    result = compare(a, "--reference", b, "--json")
    assert lines(result)[0]["reference_id"] == "near"
    assert lines(result)[-1]["pairs"] == 1


def test_steps_are_taken_by_number_and_a_step_told_twice_once() -> None:
    told = events("1", [("a", {}), ("b", {}), ("c", {})])
    path = write("a.jsonl", [told[3], told[1], told[1], told[2]])
    (found,) = read_runs([path], DEFAULT_LIMITS)
    assert [step.tool for step in found.steps] == ["a", "b", "c"]


def test_a_weight_of_a_tool_wins_over_its_effect_whatever_the_order() -> None:
    contracts = [ToolContract(name="a:b", effect="write")]
    for told in ({"a:b": 7.0, "a:b:x": 2.0}, {"a:b:x": 2.0, "write": 4.0, "a:b": 7.0}):
        found = weights_of(contracts, told).of("a:b")
        assert (found.step, found.of("x"), found.of("y")) == (7.0, 2.0, 1.0)


# ------------------------------------------------------------------ bench distance


def test_the_benchmark_times_every_scheme(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "WARM_UP_CALLS", 1)
    figures = clock.measure(distances.contestants(steps=30), 0.001)
    ours = [each.size for each in figures if each.name == distances.OURS]
    assert ours == [f"{each}, 30 steps" for each in (*SCHEMES, distances.EQUAL)]
    for each in figures:
        assert each.ratio_to == (None if each.name == distances.OURS else distances.OURS)


def test_the_runs_of_the_benchmark_differ_in_every_scheme() -> None:
    predicted, reference = distances.pair(0)
    assert len(predicted) == len(reference) == distances.STEPS
    for scheme in SCHEMES:
        found = TrajectoryDistance(scheme, canonicaliser=fold_text)(predicted, reference)
        assert found.distance > 0.0
        assert found.normalised < 1.0 or scheme == "exact"


@pytest.mark.skipif(distances.yardstick() is None, reason="ek is not installed")
@pytest.mark.parametrize("seed", range(3))
def test_distances_are_those_of_the_public_metric(seed: int) -> None:
    yardstick = distances.yardstick()
    assert yardstick is not None
    predicted, reference = distances.pair(seed, 40)
    theirs = [[yardstick.step(*call) for call in side] for side in (predicted, reference)]
    for scheme in SCHEMES:
        score = yardstick.metric(scheme=scheme)(*theirs)
        found = TrajectoryDistance(scheme, canonicaliser=fold_text)(predicted, reference)
        assert found.max_distance == pytest.approx(score.detail["denom"])
        if scheme == "any_order":  # theirs is greedy
            assert found.normalised <= score.value + 1e-12
        else:
            assert found.normalised == pytest.approx(score.value)
