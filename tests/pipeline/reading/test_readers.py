import gzip
import hashlib
import io
import json
import lzma
import tracemalloc
from itertools import zip_longest

import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ontrack.operators.canonical import reference_id
from ontrack.pipeline.reading.readers import (
    read_events,
    read_references,
    read_tasks,
    read_tools,
    references_from_successes,
)
from ontrack.pipeline.reading.sources import Source, expand
from ontrack.topics.codecs import Limits, decode_event, encode
from ontrack.topics.errors import (
    InvalidFile,
    MalformedMessage,
    MessageTooLarge,
    UnknownEventType,
    UnknownName,
    WrongShape,
)
from ontrack.topics.events import RunEnded, RunStarted, Step
from ontrack.topics.knowledge import Effect, Provenance

COMPRESS = {
    "": bytes,
    ".xz": lzma.compress,
    ".gz": gzip.compress,
    ".zst": zstandard.ZstdCompressor().compress,
}
STARTED = RunStarted(run_id="r1", task_id="t1")
STEP = Step(run_id="r1", seq=0, tool="get", args={"id": 1}, result="x")
ENDED = RunEnded(run_id="r1", outcome="success")
RUN = (STARTED, STEP, ENDED)


def lines(*records) -> bytes:
    return b"".join(
        (record if isinstance(record, bytes) else encode(record)) + b"\n" for record in records
    )


def corpus_run(run_id="0#0", task_id="7", success=True, calls=1) -> bytes:
    call = {"id": "c", "name": "get", "args": {"id": 1}, "ts": None, "result": "x", "error": None}
    record = {"run_id": run_id, "task_id": task_id, "model": "m", "success": success}
    return json.dumps(record | {"calls": [call] * calls}).encode()


CHAT = [
    {"role": "user", "content": "hi"},
    {
        "role": "assistant",
        "content": "Look.",
        "tool_calls": [{"id": "a", "function": {"name": "get", "arguments": "{}"}}],
    },
    {"role": "tool", "tool_call_id": "a", "content": "x"},
]
TRAJECTORY = {"trajectory": [{"action": "ls", "observation": "a", "thought": "t"}], "info": {}}


def write(folder, name, content):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return str(path)


def types_of(found):
    return [item.event.type for item in found]


class TestEventFiles:
    def test_events_are_read_with_their_bytes_and_place(self, tmp_path):
        path = write(tmp_path, "a.jsonl", lines(*RUN))
        reader = read_events([path])
        found = list(reader)
        assert [item.event for item in found] == list(RUN)
        assert [item.raw for item in found] == [encode(event) for event in RUN]
        assert [(item.path, item.line) for item in found] == [(path, 1), (path, 2), (path, 3)]
        assert reader.recognised == {path: "events"}

    def test_blank_lines_windows_ends_and_a_byte_order_mark_do_no_harm(self, tmp_path):
        content = b"\xef\xbb\xbf" + encode(STARTED) + b"\r\n\r\n  \n" + encode(STEP)
        found = list(read_events([write(tmp_path, "a.jsonl", content)]))
        assert [item.event for item in found] == [STARTED, STEP]
        assert [item.line for item in found] == [1, 4]
        assert found[0].raw == encode(STARTED)

    @pytest.mark.parametrize(
        ("bad", "said"),
        [
            (b'{"type":"step","run_id":"r1"', "not JSON"),
            (b"x" + encode(STEP), "not JSON"),
            (b'{"type":"step","run_id":"r1"}', "field `tool` is missing"),
            (b'{"type":"stop","run_id":"r1"}', "one of run_started, step, run_ended"),
        ],
    )
    @pytest.mark.parametrize("place", [1, 2, 4])
    def test_a_bad_line_is_an_error_with_file_and_line(self, tmp_path, bad, said, place):
        records = [*RUN[:1], *RUN[1:]]
        records.insert(place - 1, bad)
        path = write(tmp_path, "a.jsonl", lines(*records))
        with pytest.raises(InvalidFile, match=said) as caught:
            list(read_events([path]))
        assert (caught.value.path, caught.value.line) == (path, place)
        assert str(caught.value).startswith(f"{path}:{place}: ")

    def test_bad_lines_are_handed_over_and_reading_goes_on(self, tmp_path):
        content = lines(b"{cut", STARTED, b'{"type":"step"}', STEP, b'{"type":"x","run_id":"r"}')
        path = write(tmp_path, "a.jsonl", content)
        bad = []
        found = list(read_events([path], on_bad=lambda *what: bad.append(what)))
        assert [item.event for item in found] == [STARTED, STEP]
        assert [(where, line, raw, type(error)) for where, line, raw, error in bad] == [
            (path, 1, b"{cut", MalformedMessage),
            (path, 3, b'{"type":"step"}', WrongShape),
            (path, 5, b'{"type":"x","run_id":"r"}', UnknownEventType),
        ]

    def test_treatments_are_on_the_event_they_belong_to(self, tmp_path):
        raw = rb'{"type":"step","run_id":"r1","tool":"t","result":"\ud800"}'
        found = list(read_events([write(tmp_path, "a.jsonl", lines(STARTED, raw))]))
        assert [item.flags for item in found] == [(), ("lone_surrogates",)]
        assert found[1].raw == raw

    def test_limits_hold_for_lines_of_files_too(self, tmp_path):
        path = write(tmp_path, "a.jsonl", lines(*RUN))
        bad = []
        limits = Limits(message_bytes=len(encode(STEP)) - 1)
        list(read_events([path], on_bad=lambda *what: bad.append(what), limits=limits))
        assert [(line, type(error)) for _, line, _, error in bad] == [(2, MessageTooLarge)]

    def test_events_may_also_stand_in_one_json_array(self, tmp_path):
        array = json.dumps([json.loads(encode(event)) for event in RUN], indent=1).encode()
        found = list(read_events([write(tmp_path, "a.json", array)]))
        assert [item.event for item in found] == list(RUN)
        assert [item.line for item in found] == [1, 2, 3]

    def test_our_own_events_are_never_renamed(self, tmp_path):
        paths = [write(tmp_path, f"{n}.jsonl", lines(*RUN)) for n in "ab"]
        assert {item.event.run_id for item in read_events(paths)} == {"r1"}


class TestForeignFiles:
    def test_recorded_runs_are_read_line_by_line(self, tmp_path):
        content = corpus_run("a") + b"\n" + corpus_run("b", calls=0)
        path = write(tmp_path, "runs.jsonl", content)
        reader = read_events([path])
        found = list(reader)
        assert reader.recognised == {path: "corpus"}
        expected = ["run_started", "step", "run_ended", "run_started", "run_ended"]
        assert types_of(found) == expected
        assert [item.line for item in found] == [1, 1, 1, 2, 2]
        assert found[1].raw == encode(found[1].event)

    @pytest.mark.parametrize("indent", [None, 2])
    def test_a_conversation_is_one_json_document(self, tmp_path, indent):
        path = write(tmp_path, "talk.json", json.dumps(CHAT, indent=indent).encode())
        reader = read_events([path])
        found = list(reader)
        assert reader.recognised == {path: "chat"}
        assert types_of(found) == ["run_started", "step", "run_ended"]
        assert (found[1].event.run_id, found[1].event.result) == ("talk", "x")

    def test_conversations_stand_one_a_line(self, tmp_path):
        content = b"\n".join(json.dumps({"messages": CHAT}).encode() for _ in range(2))
        found = list(read_events([write(tmp_path, "talks.jsonl", content)]))
        assert [item.event.run_id for item in found if item.event.type == "step"] == [
            "talks",
            "talks:2",
        ]

    @pytest.mark.parametrize("name", ["django-1.traj", "django-1.traj.json"])
    def test_a_trajectory_is_named_after_its_file(self, tmp_path, name):
        path = write(tmp_path, name, json.dumps(TRAJECTORY, indent=2).encode())
        reader = read_events([path])
        started, step, _ = reader
        assert reader.recognised == {path: "sweagent"}
        assert (started.event.run_id, started.event.task_id) == ("django-1", "django-1")
        assert step.event.args == {"command": "ls"}

    def test_an_array_of_runs_is_read_item_by_item(self, tmp_path):
        content = b"[" + corpus_run("a") + b",\n" + corpus_run("b") + b"]"
        found = list(read_events([write(tmp_path, "a.json", content)]))
        assert [item.event.run_id for item in found[::3]] == ["a", "b"]

    def test_a_run_id_used_by_an_earlier_file_gets_the_files_name(self, tmp_path):
        paths = [write(tmp_path, f"{n}/{n}.jsonl", corpus_run()) for n in ("x", "y")]
        paths.append(write(tmp_path, "z/y.jsonl", corpus_run() + b"\n" + corpus_run()))
        ids = [item.event.run_id for item in read_events(paths) if item.event.type == "step"]
        assert ids == ["0#0", "0#0@y", "0#0@y:1", "0#0@y:2"]

    def test_a_renamed_run_keeps_its_id_in_every_event(self, tmp_path):
        paths = [write(tmp_path, f"{n}.jsonl", corpus_run()) for n in "xy"]
        renamed = list(read_events(paths))[3:]
        assert {item.event.run_id for item in renamed} == {"0#0@y"}
        assert all(json.loads(item.raw)["run_id"] == "0#0@y" for item in renamed)

    @pytest.mark.parametrize("bad", [b"{cut", b'{"run_id": "x"}', b"[]", b'"text"'])
    def test_a_foreign_line_that_is_no_run_is_an_error_with_its_line(self, tmp_path, bad):
        path = write(tmp_path, "runs.jsonl", corpus_run() + b"\n" + bad + b"\n")
        with pytest.raises(InvalidFile, match=r"no run of the format corpus") as caught:
            list(read_events([path], on_bad=lambda *_: None))
        assert (caught.value.path, caught.value.line) == (path, 2)

    def test_a_foreign_step_over_the_limit_is_quarantined_like_our_own(self, tmp_path):
        path = write(tmp_path, "runs.jsonl", corpus_run())
        step = next(item for item in read_events([path]) if item.event.type == "step")
        limits = Limits(message_bytes=len(step.raw) - 1)
        bad = []
        found = read_events([path], on_bad=lambda *what: bad.append(what), limits=limits)
        assert types_of(found) == ["run_started", "run_ended"]
        assert [(line, type(error)) for _, line, _, error in bad] == [(1, MessageTooLarge)]

    def test_strings_cut_in_half_are_mended_and_flagged(self, tmp_path):
        content = corpus_run().replace(b'"result": "x"', rb'"result": "x\ud83d"')
        found = list(read_events([write(tmp_path, "runs.jsonl", content)]))
        assert found[1].event.result == "x\ufffd"
        assert found[1].flags == ("lone_surrogates",)

    def test_a_format_can_be_demanded(self, tmp_path):
        path = write(tmp_path, "a.jsonl", corpus_run())
        with pytest.raises(InvalidFile, match="no run of the format chat"):
            list(read_events([path], format="chat"))
        assert len(list(read_events([path], format="corpus"))) == 3

    def test_an_unknown_format_is_refused_at_once(self):
        with pytest.raises(UnknownName, match="known are auto, events, corpus, sweagent, chat"):
            read_events([], format="csv")


def otlp_span(number, name, trace="a" * 32, parent=None, **more):
    attributes = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": name}
    attributes |= {"gen_ai.tool.call.result": f"result {number}"} | more
    return {
        "traceId": trace,
        "spanId": f"{number:016x}",
        "parentSpanId": parent and f"{parent:016x}",
        "startTimeUnixNano": str(number * 1_000),
        "attributes": [{"key": k, "value": {"stringValue": v}} for k, v in attributes.items()],
    }


def otlp_line(*spans) -> bytes:
    return json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]}).encode()


def agents_line(number, name, trace="trace_1", event="span_end") -> bytes:
    data = {"type": "function", "name": name, "input": "{}", "output": f"result {number}"}
    item = {"object": "trace.span", "id": f"s{number}", "trace_id": trace, "parent_id": None}
    times = {"started_at": f"2026-01-01T00:00:{number:02d}Z", "ended_at": "2026-01-01T00:01:00Z"}
    return json.dumps({"event": event, "data": item | times | {"span_data": data}}).encode()


def agents_end(trace="trace_1") -> bytes:
    return json.dumps({"event": "trace_end", "data": {"object": "trace", "id": trace}}).encode()


def inspect_log() -> bytes:
    events = [
        {"event": "tool", "function": t, "arguments": {}, "result": t} for t in ("get", "put")
    ]
    samples = [{"id": n, "epoch": 1, "events": events} for n in (1, 2)]
    return json.dumps(
        {"eval": {"task": "t", "eval_id": "e"}, "samples": samples}, indent=1
    ).encode()


OTLP_FILE = b"\n".join(
    otlp_line(otlp_span(n, tool, trace * 32))
    for n, (tool, trace) in enumerate([("get", "a"), ("get", "b"), ("put", "a"), ("put", "b")], 1)
)
AGENTS_FILE = b"\n".join(
    [
        *(agents_line(n, tool, trace) for n, tool, trace in ((1, "get", "x"), (2, "get", "y"))),
        *(agents_line(n, tool, trace) for n, tool, trace in ((3, "put", "x"), (4, "put", "y"))),
        agents_end("x"),
        agents_end("y"),
    ]
)
TRACE_FILES = {"otlp": OTLP_FILE, "openai-agents": AGENTS_FILE, "inspect": inspect_log()}


class TestTraceFiles:
    """Formats in which a run is spread over records, or a record holds several runs."""

    @pytest.mark.parametrize("name", sorted(TRACE_FILES))
    def test_each_run_is_handed_out_in_one_piece(self, tmp_path, name):
        path = write(tmp_path, "a.json", TRACE_FILES[name])
        reader = read_events([path])
        found = list(reader)
        assert reader.recognised == {path: name}
        assert types_of(found) == ["run_started", "step", "step", "run_ended"] * 2
        assert [item.event.tool for item in found if item.event.type == "step"] == [
            "get",
            "put",
        ] * 2
        assert len({item.event.run_id for item in found}) == 2
        assert all(decode(item.raw) == item.event for item in found)

    def test_what_was_recognised_is_said_once_a_format(self, tmp_path, caplog):
        paths = [write(tmp_path, f"{n}.jsonl", OTLP_FILE) for n in "ab"]
        paths.append(write(tmp_path, "c.json", inspect_log()))
        with caplog.at_level("INFO", "ontrack.pipeline.reading.event_reader"):
            list(read_events(paths))
        assert caplog.messages == [
            f"{paths[0]}: recognised the format otlp",
            f"{paths[2]}: recognised the format inspect",
        ]

    @pytest.mark.parametrize("name", ["otlp", "openai-agents"])
    @pytest.mark.parametrize("bad", [b"{cut", b"3", b"[3]", b'{"run_id": "x", "calls": []}'])
    def test_a_bad_record_ends_the_reading_or_makes_the_runs_partial(self, tmp_path, name, bad):
        path = write(tmp_path, "a.jsonl", TRACE_FILES[name].replace(b"\n", b"\n" + bad + b"\n", 1))
        with pytest.raises(InvalidFile, match=f"no record of the format {name}") as caught:
            list(read_events([path]))
        assert (caught.value.path, caught.value.line) == (path, 2)
        told = []
        found = list(read_events([path], on_bad=lambda *what: told.append(what[:3])))
        assert told == [(path, 2, bad if bad != b"[3]" else b"3")]
        # Whose the record was cannot be told.
        assert [item.flags for item in found] == [("partial_run",)] * 8

    def test_treatments_are_on_the_runs_whose_records_needed_them(self, tmp_path):
        content = AGENTS_FILE.replace(b"result 3", rb"x\ud83d")
        more = b"\n".join([agents_line(5, "get", "z"), agents_end("z")])
        found = list(read_events([write(tmp_path, "a.jsonl", content + b"\n" + more)]))
        assert found[2].event.result == "x\ufffd"
        assert [item.flags for item in found[::4]] == [("lone_surrogates",)] * 2 + [()]

    def test_a_run_that_is_renamed_is_also_renamed_as_a_parent(self, tmp_path):
        inner = {"gen_ai.conversation.id": "inner"}
        content = otlp_line(
            otlp_span(1, "ask", **{"gen_ai.conversation.id": "outer"}),
            otlp_span(2, "get", parent=1, **inner),
        )
        paths = [write(tmp_path, f"{n}.json", content) for n in "xy"]
        started = [item.event for item in read_events(paths) if item.event.type == "run_started"]
        assert [(event.run_id, event.parent_run_id) for event in started] == [
            ("outer", None),
            ("inner", "outer"),
            ("outer@y", None),
            ("inner@y", "outer@y"),
        ]

    def test_memory_does_not_grow_with_the_number_of_runs_that_are_over(self, tmp_path):
        def peak(runs: int) -> int:
            texts = (hashlib.sha512(b"%d" % n).hexdigest() * 16 for n in range(runs))
            with (tmp_path / "a.jsonl").open("wb") as file:
                for n, text in enumerate(texts):
                    line = agents_line(1, "get", str(n)).replace(b"result 1", text.encode())
                    file.write(line + b"\n" + agents_end(str(n)) + b"\n")
            tracemalloc.start()
            assert sum(1 for _ in read_events([tmp_path / "a.jsonl"])) == 3 * runs
            result = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            return result

        peak(10)
        assert min(peak(2000), peak(2000)) < min(peak(1000), peak(1000)) + 800_000

    def test_a_span_over_the_limit_is_quarantined_like_our_own(self, tmp_path):
        path = write(tmp_path, "a.json", OTLP_FILE)
        bad = []
        limits = Limits(message_bytes=400)
        found = list(read_events([path], on_bad=lambda *what: bad.append(what), limits=limits))
        assert types_of(found).count("step") + len(bad) == 4
        assert all(isinstance(error, MessageTooLarge) for *_, error in bad)

    @pytest.mark.parametrize("name", sorted(TRACE_FILES))
    @settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(data=st.data())
    def test_damage_gives_an_error_with_its_place_or_what_stands_in_the_file(
        self, tmp_path, name, data
    ):
        content = bytearray(TRACE_FILES[name])
        for _ in range(data.draw(st.integers(0, 3))):
            place = data.draw(st.integers(0, len(content) - 1))
            content[place] ^= 1 << data.draw(st.integers(0, 7))
        del content[data.draw(st.integers(1, len(content))) :]
        if data.draw(st.booleans()):
            other = TRACE_FILES[data.draw(st.sampled_from(sorted(TRACE_FILES)))]
            content = bytearray(b"\n".join(_interleaved(bytes(content), other)))
        path = write(tmp_path, "a.json", bytes(content))
        for on_bad in (None, lambda *_: None):
            try:
                found = list(read_events([path], on_bad=on_bad))
            except InvalidFile as error:
                assert error.path == path  # noqa: PT017
                continue
            for item in found:
                if item.event.type == "step":
                    assert item.event.tool.encode() in content


def decode(raw):
    return decode_event(raw).event


def _interleaved(one: bytes, other: bytes):
    for first, second in zip_longest(one.split(b"\n"), other.split(b"\n"), fillvalue=b""):
        yield first
        yield second


class TestNothingToRead:
    @pytest.mark.parametrize(
        "content", [b"", b"\n\n", b"{}", b"hello\nworld\n", b'{"tools": []}', b"[1]", b"{\n", b"3"]
    )
    def test_a_file_without_runs_says_which_formats_are_known(self, tmp_path, content):
        path = write(tmp_path, "a.json", content)
        with pytest.raises(InvalidFile, match="known formats are events, corpus, sweagent, chat"):
            list(read_events([path]))

    def test_a_file_that_does_not_exist_is_said_at_once(self, tmp_path):
        with pytest.raises(InvalidFile, match="no such file") as caught:
            read_events([tmp_path / "no.jsonl"])
        assert caught.value.path == str(tmp_path / "no.jsonl")

    def test_a_pattern_that_matches_nothing_is_an_error(self, tmp_path):
        with pytest.raises(InvalidFile, match="no file matches"):
            read_events([tmp_path / "*.jsonl"])

    def test_a_folder_with_nothing_to_read_is_an_error(self, tmp_path):
        write(tmp_path, "notes.txt", b"x")
        with pytest.raises(InvalidFile, match=r"holds no file ending in .*\.jsonl"):
            read_events([tmp_path])


class TestSources:
    @pytest.mark.parametrize("suffix", sorted(COMPRESS))
    def test_compressed_files_are_opened_as_they_are(self, tmp_path, suffix):
        path = write(tmp_path, "a.jsonl" + suffix, COMPRESS[suffix](lines(*RUN)))
        assert [item.event for item in read_events([path])] == list(RUN)

    @pytest.mark.parametrize("suffix", sorted(COMPRESS))
    def test_stdin_is_read_compressed_or_not(self, suffix):
        stdin = io.BytesIO(COMPRESS[suffix](lines(*RUN)))
        found = list(read_events(["-"], stdin=stdin))
        assert [item.event for item in found] == list(RUN)
        assert {item.path for item in found} == {"-"}

    def test_a_foreign_run_from_stdin_has_no_file_to_be_named_after(self):
        stdin = io.BytesIO(json.dumps(TRAJECTORY).encode())
        started = next(read_events(["-"], stdin=stdin)).event
        assert (started.run_id, started.task_id) == ("stdin", None)

    @pytest.mark.parametrize("suffix", [".xz", ".gz", ".zst"])
    def test_several_compressed_streams_in_a_file_are_one(self, tmp_path, suffix):
        compress = COMPRESS[suffix]
        path = write(tmp_path, "a.jsonl" + suffix, compress(lines(STARTED)) + compress(lines(STEP)))
        assert [item.event for item in read_events([path])] == [STARTED, STEP]

    @pytest.mark.parametrize("suffix", [".xz", ".gz", ".zst"])
    @pytest.mark.parametrize("kept", [0, 1, 5, 0.5, -1])
    def test_a_compressed_file_that_is_cut_short_is_an_error(self, tmp_path, suffix, kept):
        whole = COMPRESS[suffix](lines(*RUN) * 50)
        cut = whole[: int(len(whole) * kept)] if kept == 0.5 else whole[:kept]
        path = write(tmp_path, "a.jsonl" + suffix, cut)
        with pytest.raises(InvalidFile, match="damaged or cut short") as caught:
            list(read_events([path]))
        assert caught.value.path == path

    @pytest.mark.parametrize("suffix", [".xz", ".gz", ".zst"])
    @settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(data=st.data())
    def test_a_damaged_compressed_file_never_escapes_as_another_error(self, tmp_path, suffix, data):
        content = bytearray(COMPRESS[suffix](lines(*RUN)))
        place = data.draw(st.integers(0, len(content) - 1))
        content[place] ^= data.draw(st.integers(1, 255))
        path = write(tmp_path, "a.jsonl" + suffix, bytes(content))
        try:
            found = list(read_events([path]))
        except InvalidFile as error:
            assert error.path == path  # noqa: PT017
        else:
            assert len(found) == 3

    def test_plain_text_behind_a_suffix_of_compression_is_damaged(self, tmp_path):
        path = write(tmp_path, "a.jsonl.gz", lines(*RUN))
        with pytest.raises(InvalidFile, match="damaged"):
            list(read_events([path]))

    def test_a_folder_is_read_in_order_with_the_folders_below(self, tmp_path):
        for name in ("b.jsonl", "a/z.traj", "a/y.traj.json.xz", "c.json.gz", "d.ndjson.zst"):
            write(tmp_path, name, b"")
        for name in ("notes.txt", ".hidden.jsonl", ".git/x.json", "e.jsonl.bak"):
            write(tmp_path, name, b"")
        found = [source.path.removeprefix(f"{tmp_path}/") for source in expand([tmp_path])]
        assert found == ["a/y.traj.json.xz", "a/z.traj", "b.jsonl", "c.json.gz", "d.ndjson.zst"]

    def test_globs_match_files_at_any_depth_and_each_file_is_read_once(self, tmp_path):
        paths = [write(tmp_path, name, b"") for name in ("a.jsonl", "d/b.jsonl")]
        pattern = str(tmp_path / "**" / "*.jsonl")
        assert [source.path for source in expand([pattern, paths[0], tmp_path])] == sorted(paths)

    def test_a_file_whose_name_looks_like_a_pattern_is_that_file(self, tmp_path):
        path = write(tmp_path, "run[1].jsonl", b"")
        write(tmp_path, "run1.jsonl", b"")
        assert [source.path for source in expand([path])] == [path]

    @pytest.mark.parametrize(
        ("path", "stem"),
        [("d/a.jsonl.xz", "a"), ("a.traj.json", "a"), ("a.b.traj", "a.b"), ("x", "x")],
    )
    def test_a_stem_has_no_suffixes(self, path, stem):
        assert Source(path).stem == stem

    def test_an_unreadable_path_is_an_error_and_no_traceback(self, tmp_path):
        with pytest.raises(InvalidFile, match="cannot be read"):
            list(Source(str(tmp_path)).lines())

    def test_memory_does_not_grow_with_the_number_of_runs(self, tmp_path):
        def peak(runs: int) -> int:
            texts = (hashlib.sha512(b"%d" % n).hexdigest() * 16 for n in range(runs))
            content = b"\n".join(
                corpus_run(str(n)).replace(b'"result": "x"', b'"result": "%s"' % text.encode())
                for n, text in enumerate(texts)
            )
            path = write(tmp_path, f"{runs}.jsonl.xz", lzma.compress(content, preset=0))
            del content
            tracemalloc.start()
            assert sum(1 for _ in read_events([path])) == 3 * runs
            result = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            return result

        peak(10)
        # 1,000 runs are 2 MB of text; what may grow is the set of run ids. The lesser of two, since
        # now and then the interpreter rebuilds a table of its own, which takes as much at once.
        assert min(peak(2000), peak(2000)) < min(peak(1000), peak(1000)) + 500_000


class TestTools:
    TOOLS = {"tools": [{"name": "get", "effect": "read"}, {"name": "put", "poll": True}]}
    YAML = b"tools:\n  - name: get\n    effect: read\n  - {name: put, poll: true}\n"
    TOML = b'[[tools]]\nname = "get"\neffect = "read"\n[[tools]]\nname = "put"\npoll = true\n'

    @pytest.mark.parametrize(
        ("name", "content"),
        [
            ("t.json", json.dumps(TOOLS).encode()),
            ("t.json", json.dumps({"result": TOOLS}).encode()),
            ("t.json.gz", gzip.compress(json.dumps(TOOLS).encode())),
            ("t.yaml", YAML),
            ("t.yml", YAML),
            ("t.toml", TOML),
            ("tools", YAML),
            ("tools", json.dumps(TOOLS).encode()),
        ],
    )
    def test_tools_are_read_from_json_yaml_and_toml(self, tmp_path, name, content):
        get, put = read_tools(write(tmp_path, name, content))
        assert (get.name, get.effect, put.poll) == ("get", Effect.READ, True)

    def test_tools_may_come_from_stdin(self):
        assert len(read_tools("-", stdin=io.BytesIO(self.YAML))) == 2

    @pytest.mark.parametrize(
        ("name", "content", "said"),
        [
            ("t.json", b"{", "not JSON"),
            ("t.yaml", b"a: [", "cannot be parsed"),
            ("t.toml", b"a = ", "cannot be parsed"),
            ("t.toml", b"\xff", "cannot be parsed"),
            ("t.yaml", b"\xff\xfe\xfa", "cannot be parsed"),
            ("t.json", b'{"tools": [{"nam": "x"}]}', r"tools\[0\]: field `name` is missing"),
            ("t.yaml", b"just text", r"expected \{tools: \[...\]\}"),
            ("t.yaml", b"", r"expected \{tools: \[...\]\}"),
        ],
    )
    def test_a_wrong_file_is_named_with_what_is_wrong(self, tmp_path, name, content, said):
        path = write(tmp_path, name, content)
        with pytest.raises(InvalidFile, match=said) as caught:
            read_tools(path)
        assert caught.value.path == path

    def test_a_missing_file_or_a_folder_is_an_error(self, tmp_path):
        for path in (tmp_path, tmp_path / "no.json"):
            with pytest.raises(InvalidFile, match="no such file"):
                read_tools(path)

    def test_tasks_are_read_the_same_way(self, tmp_path):
        content = b"tasks:\n- id: t\n  references: [[get, {tool: put}]]\n  step_budget: 8\n"
        (task,) = read_tasks(write(tmp_path, "tasks.yaml", content))
        assert [step.tool for step in task.references[0]] == ["get", "put"]
        with pytest.raises(InvalidFile, match=r"tasks\[0\]: field `id` is missing"):
            read_tasks(write(tmp_path, "bad.yaml", b"tasks: [{}]"))


class TestReferences:
    def test_runs_of_any_format_become_references(self, tmp_path):
        paths = [
            write(tmp_path, "a.jsonl", lines(*RUN)),
            write(tmp_path, "b.jsonl", corpus_run("0#0", success=True)),
            write(tmp_path, "c.traj", json.dumps(TRAJECTORY).encode()),
        ]
        references = read_references(paths, provenance="gold")
        assert [(r.task_id, r.run_id) for r in references] == [
            ("t1", "r1"),
            ("7", "0#0"),
            ("c", "c"),
        ]
        assert {r.provenance for r in references} == {Provenance.GOLD}
        assert references[0].steps[0].result == "x"
        made = [reference_id(r.task_id, r.run_id, r.steps) for r in references]
        assert [r.reference_id for r in references] == made  # as a mined set would name them

    def test_a_run_that_failed_is_no_reference_and_that_is_said(self, tmp_path):
        path = write(tmp_path, "b.jsonl", corpus_run("0#0", success=False))
        told = []
        assert read_references([path], on_skipped=lambda *said: told.append(said)) == []
        assert told == [("0#0", "it ended in failure, so it shows no good way")]

    def test_a_run_without_a_task_is_an_error(self, tmp_path):
        path = write(tmp_path, "a.jsonl", lines(STEP))
        with pytest.raises(InvalidFile, match="run 'r1' has no task_id") as caught:
            read_references([path])
        assert (caught.value.path, caught.value.line) == (path, 1)

    def test_reference_lines_are_read_back_with_their_provenance(self, tmp_path):
        written = read_references([write(tmp_path, "a.jsonl", lines(*RUN))], provenance="axiomatic")
        path = write(tmp_path, "refs.jsonl", lines(*written))
        assert read_references([path]) == written
        with pytest.raises(InvalidFile, match="holds references, not runs"):
            list(read_events([path]))
        broken = b'{"type":"reference","reference_id":"x","task_id":"t","steps":[]}'
        path = write(tmp_path, "bad.jsonl", lines(broken))
        with pytest.raises(InvalidFile, match="field `steps`"):
            read_references([path])

    def test_an_unknown_provenance_is_refused(self):
        with pytest.raises(UnknownName, match="known are gold, mined, axiomatic, generated"):
            read_references([], provenance="silver")

    def test_only_successes_with_steps_and_a_task_become_references(self, tmp_path):
        content = b"\n".join(
            [
                corpus_run("good", "t"),
                corpus_run("failed", "t", success=False),
                corpus_run("empty", "t", calls=0),
                corpus_run("long", "t", calls=513),
                corpus_run("taskless", None),
            ]
        )
        skipped = []
        (reference,) = references_from_successes(
            [write(tmp_path, "a.jsonl", content)], on_skipped=lambda *what: skipped.append(what)
        )
        assert (reference.run_id, reference.provenance) == ("good", Provenance.MINED)
        assert [run_id for run_id, _ in skipped] == ["empty", "long"]
        assert skipped[0][1] == "0 steps; a reference has from 1 to 512"

    def test_a_reference_is_named_by_its_task_run_and_steps(self, tmp_path):
        def ids(*runs: bytes) -> list[str]:
            path = write(tmp_path, "a.jsonl", b"\n".join(runs))
            return [reference.reference_id for reference in references_from_successes([path])]

        first, other_run, other_task, other_steps = ids(
            corpus_run("a"), corpus_run("b"), corpus_run("c", "8"), corpus_run("d", calls=2)
        )
        # Equal recordings of two runs stay two references: each run can use the other's.
        assert len({first, other_run, other_task, other_steps}) == 4
        assert ids(corpus_run("a")) == [first]

    def test_interleaved_runs_are_told_apart_and_put_in_order(self, tmp_path):
        def step(run_id, seq, tool):
            return Step(run_id=run_id, seq=seq, tool=tool)

        content = lines(
            RunStarted(run_id="a", task_id="t"),
            RunStarted(run_id="b", task_id="t"),
            step("a", 1, "a1"),
            step("b", 0, "b0"),
            step("a", 0, "a0"),
            step("a", 1, "a1"),
            RunEnded(run_id="a", outcome="success"),
            step("a", 2, "after the end"),
            step("b", 1, "b1"),
        )
        references = read_references([write(tmp_path, "a.jsonl", content)])
        assert [(r.run_id, [s.tool for s in r.steps]) for r in references] == [
            ("a", ["a0", "a1"]),
            ("b", ["b0", "b1"]),
        ]

    def test_a_run_may_go_on_in_the_next_file(self, tmp_path):
        paths = [
            write(tmp_path, "1.jsonl", lines(STARTED, STEP)),
            write(tmp_path, "2.jsonl", lines(Step(run_id="r1", seq=1, tool="put"), ENDED)),
        ]
        (reference,) = references_from_successes(paths)
        assert [step.tool for step in reference.steps] == ["get", "put"]
