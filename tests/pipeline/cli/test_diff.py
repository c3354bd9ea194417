"""What `ontrack diff` finds, counts and exits with."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from ontrack.pipeline.cli import cli
from ontrack.pipeline.cli.diff import Said, Tally, differences
from ontrack.topics import codecs
from ontrack.topics.verdicts import (
    Authority,
    Decision,
    Intervention,
    InterventionName,
    Output,
    Scorecard,
    Verdict,
    VerdictName,
)

ENTRY = [sys.executable, "-c", "from ontrack.pipeline.cli import main; main()"]
STAMP: dict[str, Any] = {"profile": "paper", "settings": "abc", "engine": "1"}


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


def verdict(seq: int, name: str = "OK", run_id: str = "r", **fields: Any) -> Verdict:
    given: dict[str, Any] = {"severity": 0, "authority": Authority.INTERVENE} | STAMP | fields
    return Verdict(id=f"{run_id}:{seq}", run_id=run_id, seq=seq, verdict=VerdictName(name), **given)


def intervention(seq: int) -> Intervention:
    return Intervention(
        id=f"r:{seq}:replan",
        run_id="r",
        seq=seq,
        intervention=InterventionName.REPLAN,
        verdict=VerdictName.LOOP,
        severity=3,
        reason="look elsewhere",
        authority=Authority.INTERVENE,
        **STAMP,
    )


def decision(answer: str) -> Decision:
    return Decision.model_validate(
        {"id": "r:1:abc", "run_id": "r", "seq": 1, "tool": "pay", "effect": "write"}
        | {"decision": answer, "call_sha256": "abc", "authority": "warn"}
        | STAMP
    )


def scorecard(outcome: str) -> Scorecard:
    return Scorecard.model_validate(
        {"id": "r:end", "run_id": "r", "outcome": outcome, "steps": 1, "errors": 0}
        | {"verdicts": {"OK": 1}, "interventions": {}}
        | STAMP
    )


def write(name: str, *outputs: Output | bytes) -> str:
    lines = [item if isinstance(item, bytes) else codecs.encode(item) for item in outputs]
    Path(name).write_bytes(b"".join(line + b"\n" for line in lines))
    return name


def diff(*arguments: str, stdin: bytes | None = None) -> Result:
    result = CliRunner().invoke(cli, ["diff", *arguments], input=stdin)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def told(*arguments: str) -> tuple[int, list[dict[str, Any]], dict[str, Any]]:
    """Exit code, differences and summary."""
    result = diff(*arguments, "--json")
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert [line["type"] for line in lines] == ["difference"] * (len(lines) - 1) + ["summary"]
    return result.exit_code, lines[:-1], lines[-1]


def test_a_changed_verdict_is_shown_with_both_values_and_exits_1() -> None:
    a = write("a.jsonl", verdict(0), verdict(1, score=0.25))
    b = write("b.jsonl", verdict(0), verdict(1, "LOOP", severity=3, score=0.5))
    code, found, summary = told(a, b)
    assert code == 1
    assert found == [
        {
            "type": "difference",
            "of": "verdict",
            "id": "r:1",
            "run_id": "r",
            "seq": 1,
            "change": "changed",
            "fields": {"verdict": ["OK", "LOOP"], "severity": [0, 3], "score": [0.25, 0.5]},
        }
    ]
    assert summary["equal"] is False
    assert (summary["same"], summary["changed"]) == (1, 1)
    assert summary["verdict_changes"] == [{"from": "OK", "to": "LOOP", "count": 1}]
    assert summary["fields"] == {"verdict": 1, "severity": 1, "score": 1}
    people = diff(a, b)
    assert people.exit_code == 1
    assert "OK               → LOOP" in people.stdout
    assert "verdict r:1: verdict OK → LOOP, severity 0 → 3, score 0.25 → 0.5" in people.stdout


def test_equal_streams_exit_0_whatever_their_order_and_repetitions() -> None:
    a = write("a.jsonl", verdict(0), intervention(1), verdict(1), scorecard("success"))
    b = write("b.jsonl", scorecard("success"), verdict(1), verdict(0), verdict(1), intervention(1))
    code, found, summary = told(a, b)
    assert (code, found, summary["equal"], summary["same"]) == (0, [], True, 4)
    assert diff(a, b).stdout.rstrip().endswith("equal")


def test_what_only_one_stream_says_is_a_difference_unless_only_changes_are_asked_for() -> None:
    a = write("a.jsonl", verdict(0), verdict(1), intervention(1))
    b = write("b.jsonl", verdict(0), scorecard("failure"))
    code, found, summary = told(a, b)
    assert code == 1
    assert [(item["id"], item["change"]) for item in found] == [
        ("r:1", "missing_in_b"),
        ("r:1:replan", "missing_in_b"),
        ("r:end", "missing_in_a"),
    ]
    assert summary["by_type"]["verdict"]["missing_in_b"] == 1
    assert "scorecard r:end: missing in A (failure)" in diff(a, b).stdout
    code, found, summary = told(a, b, "--only-changed")
    assert (code, found, summary["missing_in_b"]) == (0, [], 2)


def test_interventions_and_scorecards_are_compared_by_field_too() -> None:
    a = write("a.jsonl", scorecard("success"), intervention(2))
    changed = intervention(2).model_copy(update={"reason": "stop"})
    b = write("b.jsonl", scorecard("failure"), changed)
    _, found, _ = told(a, b)
    assert [item["fields"] for item in found] == [
        {"outcome": ["success", "failure"]},
        {"reason": ["look elsewhere", "stop"]},
    ]


def test_other_settings_alone_are_counted_apart_from_what_they_changed() -> None:
    a = write("a.jsonl", verdict(0), verdict(1))
    b = write("b.jsonl", verdict(0, settings="xyz"), verdict(1, "WARN", settings="xyz"))
    code, found, summary = told(a, b)
    assert code == 1
    assert [item["change"] for item in found] == ["changed_stamp", "changed"]
    assert (summary["changed_stamp"], summary["changed"]) == (1, 1)
    shown = diff(a, b).stdout
    assert "verdict r:1: verdict OK → WARN" in shown
    assert "r:0" not in shown


def test_other_bytes_with_the_same_content_are_a_difference() -> None:
    a = write("a.jsonl", verdict(0))
    spaced = json.dumps(json.loads(codecs.encode(verdict(0)))).encode()
    code, found, _ = told(a, write("b.jsonl", spaced))
    assert (code, found[0]["change"], found[0]["fields"]) == (1, "changed", {})
    assert "other bytes, same content" in diff(a, "b.jsonl").stdout


def test_a_stream_that_contradicts_itself_is_told() -> None:
    a = write("a.jsonl", verdict(0))
    b = write("b.jsonl", verdict(0), verdict(0, "WARN"))
    code, found, summary = told(a, b)
    assert (code, summary["contradictions"], summary["same"]) == (1, 1, 1)
    assert found[0]["change"] == "contradiction_in_b"
    assert "B says it twice" in diff(a, b).stdout


def test_other_engines_are_named_with_the_way_to_make_them_alike() -> None:
    a = write("a.jsonl", verdict(0, engine="0.1.0"))
    b = write("b.jsonl", verdict(0, engine="0.1.0+numba"))
    assert "engine 0.1.0 in A, 0.1.0+numba in B" in diff(a, b).stderr
    assert "ONTRACK_KERNEL=numpy" in diff(a, b).stderr
    assert "engine" not in diff(a, a).stderr


def test_answers_to_questions_that_the_other_stream_never_heard_are_no_difference() -> None:
    live, again = write("a.jsonl", verdict(0), decision("allow")), write("b.jsonl", verdict(0))
    code, found, summary = told(live, again)
    assert (code, found, summary["missing_in_b"]) == (0, [], 1)
    assert told(again, live)[0] == 0
    shown = diff(live, again).output
    assert "nobody asked the gate in B" in shown
    assert "equal" in shown
    # But a stream that says nothing at all is another one, and so is one that was asked elsewhere.
    assert told(live, write("none.jsonl"))[0] == 1
    assert told(write("only.jsonl", decision("allow")), write("none.jsonl"))[0] == 1


def test_of_decisions_the_last_one_counts() -> None:
    a = write("a.jsonl", decision("unknown"), decision("block"))
    assert told(a, write("b.jsonl", decision("block")))[0] == 0
    _, found, _ = told(a, write("c.jsonl", decision("allow")))
    assert found[0]["fields"] == {"decision": ["block", "allow"]}


def test_only_so_many_examples_are_shown_to_people() -> None:
    a = write("a.jsonl", *(verdict(seq) for seq in range(20)))
    b = write("b.jsonl", *(verdict(seq, "WARN") for seq in range(20)))
    assert diff(a, b, "--examples", "3").stdout.count("verdict r:") == 3
    assert diff(a, b).stdout.count("verdict r:") == 10
    assert len(told(a, b)[1]) == 20


def test_compressed_files_standard_input_and_pipes_are_read() -> None:
    a = write("a.jsonl", verdict(0))
    Path("a.jsonl.gz").write_bytes(gzip.compress(Path(a).read_bytes()))
    assert diff("a.jsonl.gz", "-", stdin=Path(a).read_bytes()).exit_code == 0
    os.mkfifo("pipe")
    writer = subprocess.Popen(
        [sys.executable, "-c", "open('pipe','w').write(open('a.jsonl').read())"]
    )
    assert diff(a, "pipe").exit_code == 0
    assert writer.wait(30) == 0


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b"not json", "not JSON"),
        (b"[1]", "expected an object"),
        (b'{"type":"step","run_id":"r","tool":"t"}', "expected an object with an id"),
        (b'{"type":"verdict"}', "expected an object with an id"),
    ],
)
def test_a_line_of_another_kind_exits_2_and_is_named(line: bytes, problem: str) -> None:
    a = write("a.jsonl", verdict(0))
    b = write("b.jsonl", verdict(0), line)
    done = subprocess.run([*ENTRY, "diff", a, b], capture_output=True, check=False, timeout=60)
    assert done.returncode == 2
    assert done.stderr.decode().startswith("ontrack: b.jsonl:2: ")
    assert problem in done.stderr.decode()


def test_a_missing_file_and_standard_input_twice_exit_2() -> None:
    done = subprocess.run(
        [*ENTRY, "diff", "-", "gone"], capture_output=True, check=False, input=b""
    )
    assert (done.returncode, b"gone: no such file" in done.stderr) == (2, True)
    assert diff("-", "-").exit_code == 2


def test_what_is_shown_cannot_steer_the_terminal() -> None:
    a = write("a.jsonl", verdict(0, run_id="\x1b[31m", task_id="a\x07"))
    b = write("b.jsonl", verdict(0, run_id="\x1b[31m", task_id="b\x9b2J"))
    shown = diff(a, b).stdout
    assert "a· → b·2J" in shown
    assert not set("\x1b\x07\x9b") & set(shown)


def test_it_needs_neither_numbers_nor_kafka() -> None:
    a = write("a.jsonl", verdict(0))
    told = (
        "import sys\nfrom ontrack.pipeline.cli import main\n"
        "try:\n    main(sys.argv[1:])\nexcept SystemExit:\n    pass\n"
        "print(*sorted(sys.modules), file=sys.stderr)"
    )
    run = [sys.executable, "-c", told, "diff", a, a]
    done = subprocess.run(run, capture_output=True, check=True, timeout=60)
    assert b"equal" in done.stdout
    assert not {"numpy", "aiokafka", "faust"} & set(done.stderr.decode().split())


ids = st.integers(0, 6)
stream = st.lists(st.tuples(ids, st.sampled_from(["OK", "WARN", "LOOP"])), max_size=12)


@given(a=stream, b=stream)
def test_it_counts_as_a_slow_comparison_of_dictionaries_does(
    a: list[tuple[int, str]], b: list[tuple[int, str]]
) -> None:
    def held(lines: list[tuple[int, str]]) -> tuple[Said, dict[int, str]]:
        said, plain = Said(), {}
        for seq, name in lines:
            said.add(("verdict", f"r:{seq}"), codecs.encode(verdict(seq, name)))
            plain.setdefault(seq, name)
        return said, plain

    (said_a, plain_a), (said_b, plain_b) = held(a), held(b)
    tally = Tally()
    found = list(differences(said_a, said_b, tally))
    both = plain_a.keys() & plain_b.keys()
    assert tally.total("same") == sum(plain_a[seq] == plain_b[seq] for seq in both)
    assert tally.total("changed") == sum(plain_a[seq] != plain_b[seq] for seq in both)
    assert tally.total("missing_in_b") == len(plain_a.keys() - plain_b.keys())
    assert tally.total("missing_in_a") == len(plain_b.keys() - plain_a.keys())
    twice = sum(
        len({name for other, name in lines if other == seq}) > 1
        for lines in (a, b)
        for seq in {seq for seq, _ in lines}
    )
    assert tally.total("contradictions") == twice
    assert len(found) == sum(tally.total(what) for what in tally.by_kind.get("verdict", ())) - (
        tally.total("same")
    )


@given(st.lists(st.binary(max_size=40), max_size=10))
def test_a_held_line_comes_back_as_it_was(texts: list[bytes]) -> None:
    said = Said()
    lines = {}
    for index, text in enumerate(texts):
        raw = json.dumps({"type": "verdict", "id": str(index), "note": text.hex()}).encode()
        lines["verdict", str(index)] = json.loads(raw)
        said.add(("verdict", str(index)), raw)
    assert {key: said.record(key) for key in said} == lines
