"""The command line as a user meets it: what it prints, where, and how it exits."""

from __future__ import annotations

import base64
import gzip
import json
import os
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from ontrack.pipeline.cli import cli, main
from ontrack.pipeline.cli.show import Printer, line
from ontrack.pipeline.workplace import references, simulate_run, task_ids
from ontrack.topics import codecs
from ontrack.topics.catalog import catalogue
from ontrack.topics.events import Event, RunEnded, Step
from ontrack.topics.verdicts import (
    Authority,
    DeadLetter,
    DeadLetterError,
    Decision,
    Intervention,
    InterventionName,
    Output,
    Reason,
    Scorecard,
    Verdict,
    VerdictName,
)

COMMANDS = ("demo", "replay", "worker", "send", "tail", "topics", "doctor", "bench")
ENTRY = [sys.executable, "-c", "from ontrack.pipeline.cli import main; main()"]


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No setting of the developer's takes part; the small encoder keeps the tests quick."""
    for name in [name for name in os.environ if name.startswith("ONTRACK_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("ONTRACK_ENCODER", "hashing")
    monkeypatch.chdir(tmp_path)


class Ran:
    """What one call of the command line did."""

    def __init__(self, *arguments: str | Path, stdin: bytes = b"", **variables: str) -> None:
        done = subprocess.run(
            [*ENTRY, *map(str, arguments)],
            input=stdin,
            capture_output=True,
            env=os.environ | variables,
            check=False,
            timeout=120,
        )
        self.code, self.out, self.err = done.returncode, done.stdout, done.stderr.decode()

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(text) for text in self.out.splitlines()]

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [item for item in self.lines if item["type"] == kind]


def invoke(*arguments: str | Path) -> tuple[int, list[dict[str, Any]], str]:
    """Run in this process, for what does not hang on bytes or imports: code, lines, stderr."""
    result = CliRunner().invoke(cli, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return (
        result.exit_code,
        [json.loads(text) for text in result.stdout.splitlines()],
        result.stderr,
    )


def write(name: str, *events: Event | bytes) -> Path:
    raw = [item if isinstance(item, bytes) else codecs.encode(item) for item in events]
    path = Path(name)
    path.write_bytes(b"\n".join(raw) + b"\n")
    return path


def run_events(fault: str | None = None, seed: int = 1, run_id: str = "a") -> list[Event]:
    return list(simulate_run(task_ids()[0], seed, fault, run_id=run_id).events)


def steps_of(events: Iterable[Event]) -> list[Step]:
    return [event for event in events if isinstance(event, Step)]


def knowledge() -> list[str]:
    """Options that name the workplace's references and contracts, written to files."""
    from ontrack.pipeline.workplace import contracts

    write("references.jsonl", *map(codecs.encode, references()))  # type: ignore[arg-type]
    tools = b",".join(codecs.encode(tool) for tool in contracts())
    Path("tools.json").write_bytes(b'{"tools":[' + tools + b"]}")
    return ["--references", "references.jsonl", "--provenance", "gold", "--tools", "tools.json"]


class TestDemo:
    @pytest.fixture(scope="class")
    @staticmethod
    def demo() -> Ran:
        return Ran("demo", "--json", "--fast", ONTRACK_ENCODER="wordllama")

    def test_it_shows_each_kind_of_fault_and_clean_runs(self, demo: Ran) -> None:
        assert demo.code == 0
        by_run = defaultdict(set)
        for verdict in demo.of("verdict"):
            by_run[verdict["run_id"]].add(verdict["verdict"])
        assert len(by_run) >= 6
        shown = set().union(*by_run.values())
        assert {"LOOP", "STALLED", "OFF_TRACK", "CAUSAL_INVERSION", "BLOCK"} <= shown
        clean = [run for run, names in by_run.items() if names <= {"OK", "EXPLORING"}]
        assert len(clean) >= 2
        assert all("clean" in run or "retry" in run for run in clean)

    def test_every_run_ends_with_a_scorecard_and_the_count_is_on_stderr(self, demo: Ran) -> None:
        runs = {verdict["run_id"] for verdict in demo.of("verdict")}
        assert sorted(card["run_id"] for card in demo.of("scorecard")) == sorted(runs)
        assert f"{len(runs)} runs, {len(demo.of('verdict'))} verdicts" in demo.err

    def test_a_call_that_cannot_be_undone_is_blocked_before_it_runs(self, demo: Ran) -> None:
        blocked = demo.of("decision")
        assert blocked
        assert all(decision["decision"] == "block" for decision in blocked)
        assert "demo-9-irreversible" in {decision["run_id"] for decision in blocked}

    def test_it_says_the_same_bytes_each_time(self, demo: Ran) -> None:
        assert Ran("demo", "--json", "--fast", ONTRACK_ENCODER="wordllama").out == demo.out

    def test_for_people_it_prints_titles_verdicts_and_what_to_do_next(self) -> None:
        shown = Ran("demo", "--fast").out.decode()
        assert "clean" in shown
        assert re.search(r"demo-5-loop\s+\d+\s+LOOP", shown)
        assert "→ " in shown
        assert "Next: ontrack replay" in shown
        assert "\x1b" not in shown  # no colours where nobody sees them


class TestReplay:
    def test_native_events_give_one_verdict_a_call_and_one_scorecard_a_run(self) -> None:
        events = run_events("loop") + run_events(None, 2, "b")
        ran = Ran("replay", write("runs.jsonl", *events), "--json")
        assert ran.code == 0
        assert {item["type"] for item in ran.lines} <= {"verdict", "intervention", "scorecard"}
        expected = [f"{step.run_id}:{step.seq}" for step in steps_of(events)]
        assert [verdict["id"] for verdict in ran.of("verdict")] == expected
        assert [card["run_id"] for card in ran.of("scorecard")] == ["a", "b"]
        assert "2 runs, " in ran.err

    def test_stdout_holds_the_very_bytes_that_stand_on_the_topics(self) -> None:
        ran = Ran("replay", write("runs.jsonl", *run_events("loop")), "--json")
        for raw in ran.out.splitlines():
            assert codecs.encode(codecs.decode_output(raw)) == raw

    def test_compressed_files_and_standard_input_give_the_same(self) -> None:
        path = write("runs.jsonl", *run_events("stall"))
        Path("runs.jsonl.gz").write_bytes(gzip.compress(path.read_bytes()))
        plain = Ran("replay", path, "--json")
        assert plain.out
        assert Ran("replay", "runs.jsonl.gz", "--json").out == plain.out
        assert Ran("replay", "-", "--json", stdin=path.read_bytes()).out == plain.out
        assert Ran("replay", "run*.jsonl", "--json").out == plain.out

    def test_recorded_benchmark_runs(self) -> None:
        record = {"task_id": "7", "run_id": "0#0", "model": "m", "success": True}
        calls = [{"id": f"c{n}", "name": "look", "args": {"n": n}, "result": "ok"} for n in (0, 1)]
        path = write("runs.jsonl", json.dumps(record | {"calls": calls}).encode())
        code, lines, _ = invoke("replay", path, "--json")
        assert code == 0
        assert [item["id"] for item in lines] == ["0#0:0", "0#0:1", "0#0:end"]
        assert (lines[2]["outcome"], lines[2]["task_id"]) == ("success", "7")

    def test_conversations_with_tool_calls(self) -> None:
        call = {"name": "search", "arguments": '{"q": "invoice"}'}
        messages = [
            {"role": "user", "content": "find it"},
            {
                "role": "assistant",
                "content": "I look",
                "tool_calls": [{"id": "c1", "type": "function", "function": call}],
            },
            {"role": "tool", "tool_call_id": "c1", "content": "two hits"},
        ]
        Path("talk.json").write_text(json.dumps({"messages": messages}, indent=2))
        code, lines, _ = invoke("replay", "talk.json", "--json")
        assert code == 0
        assert [(item["type"], item.get("tool")) for item in lines] == [
            ("verdict", "search"),
            ("scorecard", None),
        ]

    def test_trajectories(self) -> None:
        steps = [
            {"action": f"ls {n}", "observation": "a.py", "thought": "look", "response": "r"}
            for n in range(2)
        ]
        document = {"trajectory": steps, "history": [], "info": {"exit_status": "submitted"}}
        Path("django-1.traj").write_text(json.dumps(document))
        code, lines, _ = invoke("replay", "django-1.traj", "--json")
        assert code == 0
        assert [item["id"] for item in lines] == ["django-1:0", "django-1:1", "django-1:end"]

    def test_a_run_is_never_its_own_reference(self) -> None:
        events = [event for n in range(4) for event in run_events(None, n, f"run-{n}")]
        path = write("runs.jsonl", *events)
        ran = Ran("replay", path, "--references-from-successes", "--json")
        from ontrack.pipeline.reading.readers import references_from_successes

        maker = {item.reference_id: item.run_id for item in references_from_successes([path])}
        assert set(maker.values()) == {f"run-{n}" for n in range(4)}
        assert ran.of("verdict")
        for item in [*ran.of("verdict"), *ran.of("scorecard")]:
            assert item["best_reference"] is not None
            assert maker[item["best_reference"]] != item["run_id"]

    def test_equal_recordings_may_be_references_of_each_other(self) -> None:
        path = write("runs.jsonl", *run_events(None, 1, "a"), *run_events(None, 1, "b"))
        ran = Ran("replay", path, "--references-from-successes", "--json")
        assert {item["score"] is not None for item in ran.of("verdict")} == {True}

    def test_the_gate_decides_before_each_step_and_changes_no_verdict(self) -> None:
        path, options = write("runs.jsonl", *run_events("irreversible")), knowledge()
        code, gated, _ = invoke("replay", path, *options, "--gate", "--json")
        assert code == 0
        judged = [item for item in gated if item["type"] in ("decision", "verdict")]
        kinds = [item["type"] for item in judged]
        assert kinds == ["decision", "verdict"] * (len(kinds) // 2)
        for decision, verdict in zip(judged[::2], judged[1::2], strict=True):
            assert (decision["run_id"], decision["seq"]) == (verdict["run_id"], verdict["seq"])
        assert "block" in {item["decision"] for item in judged[::2]}
        _, plain, _ = invoke("replay", path, *options, "--json")
        assert [item for item in gated if item["type"] != "decision"] == plain

    def test_shadow_mode_prints_the_same_verdicts_and_no_intervention(self) -> None:
        path = write("runs.jsonl", *run_events("loop"))
        loud, quiet = Ran("replay", path, "--json"), Ran("replay", path, "--json", "--no-intervene")
        assert loud.of("intervention")
        assert not quiet.of("intervention")
        unheard = [verdict | {"flags": None} for verdict in quiet.of("verdict")]
        assert unheard == [verdict | {"flags": None} for verdict in loud.of("verdict")]
        assert all("shadow" in verdict["flags"] for verdict in quiet.of("verdict"))

    def test_bad_lines_are_quarantined_where_that_is_asked_for(self) -> None:
        events = run_events()
        bad = [b'{"type":"lunch","run_id":"a"}', b"{half", codecs.encode(steps_of(events)[0])]
        path = write("runs.jsonl", events[0], bad[0], *events[1:], bad[1], bad[2])
        ran = Ran("replay", path, "--json", "--quarantine", "--references-from-successes")
        assert ran.code == 0
        letters = ran.of("dead_letter")
        assert [letter["error"]["name"] for letter in letters] == [
            "UnknownEventType",
            "MalformedMessage",
            "EventAfterEnd",
        ]
        assert [base64.b64decode(letter["value_base64"]) for letter in letters] == bad
        assert [letter["offset"] for letter in letters] == [2, len(events) + 2, len(events) + 3]
        assert len(ran.of("verdict")) == len(steps_of(events))
        assert "3 dead letters" in ran.err

    def test_what_was_mended_in_a_line_is_flagged(self) -> None:
        path = write("runs.jsonl", b'{"type":"step","run_id":"a","tool":"t","args":{"x":NaN}}')
        _, (verdict, card), _ = invoke("replay", path, "--json")
        assert verdict["flags"] == card["flags"] == ["non_finite"]

    def test_the_limit_of_a_message_is_a_setting_here_too(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = write("runs.jsonl", Step(run_id="a", tool="t", result="x" * 1_200_000))
        assert Ran("replay", path, "--json").code == 2
        ran = Ran("replay", path, "--json", ONTRACK_MESSAGE_BYTES_MAX="2000000")
        assert (ran.code, len(ran.of("verdict"))) == (0, 1)

    def test_an_open_run_is_ended_at_the_end_of_the_recording(self) -> None:
        _, lines, _ = invoke("replay", write("runs.jsonl", Step(run_id="a", tool="t")), "--json")
        assert [item["type"] for item in lines] == ["verdict", "scorecard"]
        assert lines[1]["outcome"] == "unknown"


class TestErrors:
    def test_a_missing_file(self) -> None:
        ran = Ran("replay", "gone.jsonl")
        assert (ran.code, ran.out) == (2, b"")
        assert "gone.jsonl" in ran.err
        assert "Traceback" not in ran.err

    def test_a_bad_line_is_named_with_file_line_and_why(self) -> None:
        good = Step(run_id="a", tool="t")
        ran = Ran("replay", write("runs.jsonl", good, b'{"type":"step","run_id":"a","tool":5}'))
        assert ran.code == 2
        assert "runs.jsonl:2: field `tool` should be a valid string" in ran.err
        assert "Traceback" not in ran.err

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            (["--profile", "nope"], "known profiles: default, paper"),
            (["--encoder", "nope"], "encoder"),
            (["--format", "nope"], "known are auto"),
            (["--provenance", "hearsay"], "Invalid value for '--provenance'"),
            (["--no-such-option"], "No such option"),
            (["--tools", "gone.json"], "gone.json"),
            (["--tasks", "gone.yaml"], "gone.yaml"),
            (["--references", "gone"], "gone"),
        ],
    )
    def test_what_is_wrong_with_the_options_is_said_and_exits_2(
        self, arguments: list[str], said: str
    ) -> None:
        ran = Ran("replay", write("runs.jsonl", Step(run_id="a", tool="t")), *arguments)
        assert (ran.code, ran.out) == (2, b"")
        assert said in ran.err
        assert "Traceback" not in ran.err

    @pytest.mark.parametrize(
        "arguments",
        [
            ["nonsense"],
            ["replay"],
            ["send"],
            ["send", "--demo", "runs.jsonl"],
            ["send", "--demo", "--rate", "0"],
            ["replay", "-", "--references-from-successes"],
            ["topics", "nonsense"],
        ],
    )
    def test_bad_usage_exits_2(self, arguments: list[str]) -> None:
        result = CliRunner().invoke(cli, arguments)
        assert result.exit_code == 2
        assert "Error: " in result.stderr

    def test_a_misspelt_variable_exits_2_and_is_named(self) -> None:
        ran = Ran("replay", "-", ONTRACK_BORKER="x")
        assert ran.code == 2
        assert "ONTRACK_BORKER" in ran.err

    def test_that_no_run_can_be_a_reference_is_said(self) -> None:
        write("runs.jsonl", Step(run_id="a", tool="t"))
        ran = Ran("replay", "runs.jsonl", "--references-from-successes")
        assert ran.code == 0
        assert "no references: no run among these names a task and ended with success" in ran.err
        assert "outcome: success" in ran.err

    def test_a_success_that_is_too_long_for_a_reference_is_named(self) -> None:
        steps = [Step(run_id="a", task_id="t", tool="look", seq=seq) for seq in range(513)]
        write("runs.jsonl", *steps, RunEnded(run_id="a", outcome="success"))
        ran = Ran("send", "runs.jsonl", "--references-from-successes", "--broker", "127.0.0.1:1")
        assert "no reference: run a: 513 steps; a reference has from 1 to 512" in ran.err

    def test_runs_that_failed_are_no_references(self) -> None:
        lines = [
            {"run_id": name, "task_id": "t", "success": good, "calls": [{"name": name}]}
            for name, good in (("good", True), ("bad", False), ("worse", False))
        ]
        Path("runs.jsonl").write_text("\n".join(map(json.dumps, lines)))
        ran = Ran("references", "show", "runs.jsonl")
        assert "no reference: run bad: it ended in failure" in ran.err
        assert "(and 1 more)" in ran.err
        assert b"run good" in ran.out
        assert b"run bad" not in ran.out

    def test_a_command_that_is_misspelt_is_guessed(self) -> None:
        ran = Ran("repaly", "runs.jsonl")
        assert ran.code == 2
        assert "is 'replay' meant?" in ran.err

    def test_standard_input_cannot_be_read_twice(self) -> None:
        result = CliRunner().invoke(cli, ["replay", "-", "--references-from-successes"], input="x")
        assert "write the runs to a file first" in result.stderr

    @pytest.mark.parametrize("command", [["send", "runs.jsonl"], ["tail"], ["worker"]])
    def test_a_broker_that_is_away_exits_2_and_says_what_to_do(self, command: list[str]) -> None:
        write("runs.jsonl", Step(run_id="a", tool="t"))
        ran = Ran(*command, "--broker", "127.0.0.1:1")
        assert ran.code == 2
        assert "Kafka at 127.0.0.1:1 does not answer" in ran.err
        assert "make kafka" in ran.err
        assert "Traceback" not in ran.err

    @pytest.mark.parametrize("options", [[], ["--json"]])
    def test_a_reader_that_goes_away_is_no_error(self, options: list[str]) -> None:
        events = [event for n in range(40) for event in run_events("stall", n, f"run-{n}")]
        path = write("runs.jsonl", *events)
        process = subprocess.Popen(
            [*ENTRY, "replay", str(path), *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline()
        process.stdout.close()
        shown = process.stderr.read().decode()
        process.stderr.close()
        assert process.wait(60) == 0
        assert "Traceback" not in shown
        assert "BrokenPipe" not in shown

    def test_an_error_of_ours_is_one_message(self, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit) as left:
            main(["replay", "gone.jsonl"])
        assert left.value.code == 2
        assert capsys.readouterr().err.startswith("ontrack: gone.jsonl: ")


class TestHelp:
    @pytest.mark.parametrize("arguments", [[], *([name] for name in COMMANDS)])
    def test_help_is_there_for_every_command(self, arguments: list[str]) -> None:
        result = CliRunner().invoke(cli, [*arguments, "--help"])
        assert result.exit_code == 0
        assert "Usage: " in result.stdout

    def test_it_lists_the_commands_and_where_to_start(self) -> None:
        shown = CliRunner().invoke(cli, ["-h"]).stdout
        assert all(re.search(rf"^  {name} ", shown, re.MULTILINE) for name in COMMANDS)
        assert "ontrack demo" in shown

    def test_the_version_is_told(self) -> None:
        assert re.search(r"\d+\.\d+", CliRunner().invoke(cli, ["--version"]).stdout)

    @pytest.mark.parametrize(
        ("arguments", "unwanted"),
        [
            (["--help"], {"numpy", "scipy", "pydantic", "faust", "aiokafka"}),
            (["replay", "--help"], {"faust", "aiokafka"}),
            (["replay", "runs.jsonl", "--json"], {"faust", "aiokafka", "uvloop"}),
            (["demo", "--json", "--fast"], {"faust", "aiokafka", "uvloop"}),
            (["topics", "show"], {"numpy", "faust", "aiokafka"}),
            (["doctor", "--no-broker"], {"faust", "aiokafka"}),
            (["send", "runs.jsonl", "--broker=127.0.0.1:1"], {"faust"}),
        ],
    )
    def test_a_command_imports_what_it_needs(
        self, arguments: list[str], unwanted: set[str]
    ) -> None:
        write("runs.jsonl", *run_events())
        told = (
            "import sys\n"
            "from ontrack.pipeline.cli import main\n"
            "try:\n    main(sys.argv[1:])\n"
            "except SystemExit:\n    pass\n"
            "print(*sorted(sys.modules), file=sys.stderr)"
        )
        done = subprocess.run(
            [sys.executable, "-c", told, *arguments], capture_output=True, check=True, timeout=60
        )
        loaded = set(done.stderr.decode().splitlines()[-1].split())
        assert "click" in loaded
        assert not unwanted & loaded


class TestTopics:
    def test_every_topic_is_shown_with_key_and_partitions(self) -> None:
        shown = CliRunner().invoke(cli, ["topics", "show"]).stdout
        assert CliRunner().invoke(cli, ["topics", "list"]).stdout == shown
        for spec in catalogue():
            assert re.search(
                rf"^{re.escape(spec.name)} .*{spec.key}.* {spec.partitions} partitions",
                shown,
                re.MULTILINE,
            )

    def test_as_json_lines(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("ONTRACK_TOPIC_PREFIX", "mine.")
        code, lines, _ = invoke("topics", "show", "--json")
        assert code == 0
        assert [item["name"] for item in lines] == [spec.name for spec in catalogue("mine.")]
        assert {item["type"] for item in lines} == {"topic"}
        assert lines[0]["config"]["cleanup.policy"] == "delete"

    def test_as_an_asyncapi_document(self) -> None:
        document = json.loads(CliRunner().invoke(cli, ["topics", "show", "--asyncapi"]).stdout)
        assert document["asyncapi"].startswith("3.")
        addresses = {channel["address"] for channel in document["channels"].values()}
        internal = {
            "ontrack.fleet-states",
            "ontrack.snapshots",
            "ontrack.owners",
        }  # between workers, nobody else's business
        assert addresses == {spec.name for spec in catalogue()} - internal


class TestDoctor:
    def test_without_a_broker_all_is_well(self) -> None:
        result = CliRunner().invoke(cli, ["doctor", "--no-broker"])
        assert result.exit_code == 0
        assert "FAIL" not in result.stdout

    def test_each_check_is_a_line_of_json(self) -> None:
        code, lines, _ = invoke("doctor", "--no-broker", "--json")
        assert code == 0
        names = ["python", "settings", "encoder", "profile", "extras", "disk"]
        assert [item["name"] for item in lines] == names
        for item in lines:
            assert set(item) == {"type", "name", "ok", "detail", "fix"}
            assert (item["type"], item["ok"]) == ("check", True)
            assert item["detail"]

    def test_a_broker_that_is_away_fails_and_the_remedy_is_said(self) -> None:
        code, lines, _ = invoke("doctor", "--broker", "127.0.0.1:1", "--json")
        assert code == 1
        failed = {item["name"]: item for item in lines if not item["ok"]}
        assert set(failed) == {"broker"}  # one cause, one failure
        assert "127.0.0.1:1" in failed["broker"]["detail"]
        assert "make kafka" in failed["broker"]["fix"]

    def test_an_unknown_profile_fails_as_a_check(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("ONTRACK_PROFILE", "nope")
        code, lines, _ = invoke("doctor", "--no-broker", "--json")
        assert code == 1
        (failed,) = [item for item in lines if not item["ok"]]
        assert failed["name"] == "profile"
        assert "ONTRACK_PROFILE" in failed["fix"]

    def test_secrets_are_masked(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("ONTRACK_SASL_PASSWORD", "hunter2")
        for options in ([], ["--json"]):
            shown = CliRunner().invoke(cli, ["doctor", "--no-broker", *options]).output
            assert "hunter2" not in shown
            assert "sasl_password=**********" in shown

    def test_a_certificate_that_is_not_there_is_a_failed_check(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("ONTRACK_SECURITY_PROTOCOL", "SSL")
        monkeypatch.setenv("ONTRACK_SSL_CAFILE", "gone.pem")
        code, lines, _ = invoke("doctor", "--json")
        assert code == 1
        assert "gone.pem" in next(item["detail"] for item in lines if item["name"] == "broker")


HOSTILE = "x\x1b[31m\x1b]0;owned\x07\r\n\x9b2J\u202eevil\u2028\x00\udc80"


def hostile_outputs() -> list[Output]:
    """One output of each kind with a hostile text in every place that takes text."""
    common: dict[str, Any] = {"profile": HOSTILE, "settings": HOSTILE, "engine": HOSTILE}
    reason = Reason(signal=HOSTILE, text=HOSTILE)
    place: dict[str, Any] = {"id": HOSTILE, "run_id": HOSTILE, "seq": 1, "task_id": HOSTILE}
    authority = Authority.INTERVENE
    name = VerdictName.LOOP
    return [
        Verdict(
            **place,
            **common,
            tool=HOSTILE,
            verdict=name,
            severity=2,
            reasons=(reason,),
            authority=authority,
        ),
        Intervention(
            **place,
            **common,
            intervention=InterventionName.HALT,
            verdict=name,
            severity=3,
            reason=HOSTILE,
            authority=authority,
        ),
        Decision(
            **place,
            **common,
            tool=HOSTILE,
            effect=HOSTILE,
            decision="block",
            reasons=(reason,),
            call_sha256="0",
            authority=authority,
        ),
        Scorecard(
            **common,
            id=HOSTILE,
            run_id=HOSTILE,
            outcome="success",
            reason=HOSTILE,
            steps=1,
            errors=0,
            verdicts={"LOOP": 1},
            interventions={},
        ),
        DeadLetter(
            id=HOSTILE,
            topic=HOSTILE,
            partition=0,
            offset=3,
            error=DeadLetterError(name="WrongShape", text=HOSTILE),
        ),
    ]


class TestHostileText:
    @pytest.mark.parametrize("output", hostile_outputs(), ids=lambda output: output.type)
    def test_it_never_reaches_a_terminal_raw(self, output: Output) -> None:
        shown = line(output)
        assert "·[31m" in shown
        assert re.sub(r"\x1b\[[0-9;]+m", "", shown).isprintable()  # but for our own colours

    def test_nor_through_replay(self) -> None:
        hostile = HOSTILE[:-1]  # a lone surrogate is mended by the codec
        events = [
            Step(run_id=hostile, tool=hostile, action=hostile, args={hostile: hostile})
            for _ in range(5)
        ]
        ran = Ran("replay", write("runs.jsonl", *events), "--gate")
        assert ran.code == 0
        assert all(text.isprintable() for text in ran.out.decode().split("\n"))
        assert all(text.isprintable() for text in ran.err.split("\n"))

    def test_nor_through_the_name_of_a_file_or_an_error(self) -> None:
        path = write("a\x1b[31m.jsonl", b'{"type":"\\u001b[31m","run_id":"a"}')
        stopped, kept = Ran("replay", path), Ran("replay", path, "--quarantine")
        assert stopped.code == 2
        assert "\x1b" not in stopped.err
        assert b"\x1b" not in kept.out
        assert b"dead letter" in kept.out

    def test_nor_through_the_log(self) -> None:
        told = (
            "import logging, structlog\n"
            "from ontrack.pipeline.log import set_up_logging\n"
            "set_up_logging('info', False)\n"
            "bad = 'x\\x1b[31m\\x9b2J'\n"
            "structlog.get_logger('a').error(bad, key=bad)\n"
            "logging.getLogger('b').error('%s', bad)\n"
            "try:\n    raise ValueError(bad)\n"
            "except ValueError:\n    structlog.get_logger('a').exception('failed')\n"
        )
        done = subprocess.run([sys.executable, "-c", told], capture_output=True, check=True)
        shown = done.stderr.decode()
        assert "ValueError" in shown
        assert "\x1b" not in shown
        assert "\x9b" not in shown

    def test_a_message_on_an_output_topic_that_is_none_of_ours_does_not_end_the_watch(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        printer = Printer(as_json=False)
        printer.show_bytes(b'{"type":"\x1b[31m"}')
        printer.show_bytes(b"{half")
        letter = DeadLetterError(name="WrongShape", text="wrong")
        known = DeadLetter(id="a", topic="runs", partition=0, offset=3, error=letter)
        printer.show_bytes(codecs.encode(known))
        shown = capsys.readouterr().out.splitlines()
        assert [text.split()[0] for text in shown] == ["unreadable", "unreadable", "dead"]
